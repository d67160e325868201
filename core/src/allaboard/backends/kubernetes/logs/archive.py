"""What followers read of the logs of an attempt, for when its pods are gone and its followers too: a
ConfigMap beside the run record, which owns it.

The process that sees the end writes it; a process that has read more writes it again.
``binaryData.tries`` is gzipped JSON: what is known of each try, and the end of what it wrote. Every try has
the same room, and all of them together stay well below what an API server takes (`ROOM`).
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

from allaboard.backends.kubernetes.client.errors import (
    ApiError,
    Conflict,
    Exists,
    Forbidden,
    Missing,
)
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS
from allaboard.backends.kubernetes.logs.cache import KeptTry
from allaboard.backends.kubernetes.logs.parsing import Stamped
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.backends.kubernetes.observe.observation import Memory
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.text.names import attempt_name
from allaboard.text.untrusted import RECORDS, parse_json

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

LABEL = labels.PREFIX + "logs"
"""Its value is the format."""
FORMAT = "v1"
ROOM = 512 << 10
"""Bytes of all logs of an attempt, gzipped."""
LARGEST, SMALLEST = 64 << 10, 1 << 10
"""Bytes of text of one try."""
TIMES = 5
"""Swaps in a row that may be lost to others before what we have is given up."""


def save(api: Api, stored: Stored, tries: Sequence[KeptTry], memory: Memory, until: float | None) -> None:
    """Keep these of the attempt that a record means, beside those that are kept already. ``until``: when it
    ended; a pod that was made after that, by an operator which had not noticed, is none of its members, and
    ``memory`` does not know it.
    A client that may not write leaves it to others.
    """
    ours = [one for one in tries if (one.lines or one.whole) and not _is_late(one.one, memory, until)]
    if not ours:
        return
    for _ in range(TIMES):
        there = _read_archive(api, stored, stored.record.attempt, stored.record.generation)
        known = {} if there is None else {one.one.id: one for one in unpack_tries(there)}
        both = [*without_doubles(merge_tries([*known.values(), *ours]))]
        if there is not None and both == [*known.values()]:
            return
        body = _manifest(stored, both, there)
        try:
            (api.create(CONFIGMAPS, body) if there is None else api.replace(CONFIGMAPS, body))
            return
        except (Exists, Conflict, Missing):
            continue
        except ApiError:
            return


def _is_late(one: ContainerRun, memory: Memory, until: float | None) -> bool:
    if until is None or one.begun is None or one.begun < until:
        return False
    return one.begun > until or bool(one.uid and one.uid not in memory.pods.get(one.member, {}))


def load(api: Api, stored: Stored, attempt: int, generation: int) -> list[KeptTry]:
    """What is kept of an attempt of this run."""
    there = _read_archive(api, stored, attempt, generation)
    return [] if there is None else [*unpack_tries(there)]


def forget(api: Api, run: str) -> None:
    """Of all attempts of a run: it is deleted."""
    for there in api.list(CONFIGMAPS, labels=f"{labels.selector(run)},{LABEL}")[0]:
        api.delete(CONFIGMAPS, there["metadata"]["name"], uid=there["metadata"]["uid"])


def _read_archive(api: Api, stored: Stored, attempt: int, generation: int) -> Json | None:
    name = labels.logs_name(attempt_name(stored.record.run, attempt, generation))
    try:
        body = api.get(CONFIGMAPS, name)
    except (Missing, Forbidden):
        return None
    return body if labels.label_of(body, LABEL) == FORMAT else None


def _manifest(stored: Stored, tries: Sequence[KeptTry], there: Json | None) -> Json:
    record = stored.record
    name = labels.logs_name(attempt_name(record.run, record.attempt, record.generation))
    held = {"resourceVersion": there["metadata"]["resourceVersion"]} if there is not None else {}
    # No label of the attempt: it is none of the objects that the attempt is made of.
    own_labels = {
        labels.MANAGED_BY: "allaboard",
        labels.RUN: record.run,
        labels.JOB: record.job,
        LABEL: FORMAT,
    }
    owner = labels.owner_reference({"apiVersion": "v1", "kind": "ConfigMap", **stored.body})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": own_labels, "ownerReferences": [owner], **held},
        "binaryData": {"tries": base64.b64encode(pack_tries(tries)).decode()},
    }


# Values.


def merge_tries(tries: Iterable[KeptTry]) -> list[KeptTry]:
    """Each try once: as it is known best."""
    best: dict[str, KeptTry] = {}
    for one in tries:
        other = best.get(one.one.id)
        if other is None or _worth(one) > _worth(other):
            best[one.one.id] = one
    return [*best.values()]


def without_doubles(tries: Sequence[KeptTry]) -> Iterator[KeptTry]:
    """Without captures of a pod that could not be read any more, where the try that wrote it is
    known.
    """
    named = [one for one in tries if one.one.uid]
    written = {(one.one.member, line.at, line.text) for one in named for line in one.lines}
    for one in tries:
        if one.one.uid or not all((one.one.member, at, text) in written for at, text, *_ in one.lines):
            yield one


def _worth(one: KeptTry) -> tuple[bool, bool, int]:
    return not one.from_status, one.whole, one.size


def pack_tries(tries: Sequence[KeptTry]) -> bytes:
    """As they are written: the more there are, and the less they can be squeezed, the less of each."""
    room = LARGEST
    while True:
        text = json.dumps(
            [_try_to_json(one, room) for one in tries], separators=(",", ":"), ensure_ascii=False
        )
        data = gzip.compress(text.encode(errors="replace"), mtime=0)
        if len(data) <= ROOM:
            return data
        if room > SMALLEST:
            room //= 2
        else:  # thousands of tries: the first to fail and the last ones tell the most
            tries = [*tries[: len(tries) // 4], *tries[-(len(tries) // 4) :]]


def _try_to_json(one: KeptTry, room: int) -> Json:
    lines: deque[Stamped] = deque()
    size = 0
    for line in reversed(one.lines):
        size += len(line.text) + 1
        if size > room and lines:
            break
        lines.appendleft(Stamped(line.at, line.text[-room:]))
    said = {name: value for name, value in asdict(one.one).items() if name != "words"}
    cut = one.cut or len(lines) < len(one.lines)
    return {
        "try": said,
        "lines": [[line.at, line.text] for line in lines],
        "cut": cut,
        "whole": one.whole,
        "told": one.from_status,
    }


def unpack_tries(body: Json) -> Iterator[KeptTry]:
    """The inverse, of a ConfigMap. What is damaged is nothing; fields of a newer writer are left out."""
    known = {field.name for field in fields(ContainerRun)}
    try:
        data = _unzipped(base64.b64decode(body["binaryData"]["tries"]))
        tries = [
            KeptTry(
                ContainerRun(**{k: v for k, v in one["try"].items() if k in known}),
                lines := deque(Stamped(int(at), str(text)) for at, text, *_ in one["lines"]),
                sum(len(line.text) + 1 for line in lines),
                one["cut"],
                one["whole"],
                one["told"],
            )
            for one in parse_json(data, RECORDS, spelling=False, any_text=True)
        ]
    except (LookupError, TypeError, ValueError, OSError, EOFError, binascii.Error):
        return
    yield from tries


def _unzipped(data: bytes) -> bytes:
    """No more than a reader of JSON takes: what is small in a ConfigMap may be very large."""
    with gzip.open(io.BytesIO(data)) as file:
        return file.read(RECORDS.size + 1)


def lost_tries(
    memory: Memory, layout: Layout, known: Iterable[ContainerRun], container: str, *, all_ran: bool = False
) -> Iterator[KeptTry]:
    """Tries of an attempt that is over which are known to have run, and of which nothing was read: they are
    named where the log would be. ``all_ran``: every member has, also where nobody saw it.
    """
    known = [*known]
    tries = [one for one in known if not one.init]
    here = {one.member for one in known}
    met = {(one.uid, one.restart) for one in tries}
    captured = {one.member for one in tries if not one.uid}  # captured too late to see which try
    for member in layout.members:
        seen = memory.members.get(member.name)
        if seen is None or seen.log is None or member.name in captured:
            # It has never run, or what is missing cannot be told.
            if all_ran and member.name not in here:
                who = (container, False, member.name, member.rank, 0)
                yield KeptTry(ContainerRun(f"{member.name}@", "", "", *who, False, False, True))
            continue
        for uid, restarts in memory.pods.get(member.name, {}).items():
            for restart in range(restarts + 1):
                if (uid, restart) not in met:
                    who = (container, False, member.name, member.rank, restart)
                    gone = ContainerRun(f"{uid}/{restart}", "", uid, *who, False, False, True)
                    yield KeptTry(replace(gone, begun=seen.started if restart == restarts else None))

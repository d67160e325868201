"""Archive of the logs of an attempt, which outlives its pods and its followers: a ConfigMap that the run
record owns.

The process that sees the end writes it; a process that has read more writes it again.
``binaryData.tries`` is gzipped JSON: the data of each try, and the end of its log. Every try has the same
room, and all of them together stay well below the limit of an API server (`ROOM`).
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
    """Keep these tries of the attempt of a record, beside those that are kept already. ``until``: the end of
    the attempt. A pod that an operator made later is none of its members, and ``memory`` does not know it.
    A client that may not write leaves the archive to others.
    """
    ours = [
        kept for kept in tries if (kept.lines or kept.whole) and not _is_late(kept.instance, memory, until)
    ]
    if not ours:
        return
    for _ in range(TIMES):
        there = _read_archive(api, stored, stored.record.attempt, stored.record.generation)
        known = {} if there is None else {kept.instance.id: kept for kept in unpack_tries(there)}
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


def _is_late(instance: ContainerRun, memory: Memory, until: float | None) -> bool:
    if until is None or instance.begun is None or instance.begun < until:
        return False
    return instance.begun > until or bool(
        instance.uid and instance.uid not in memory.pods.get(instance.member, {})
    )


def load(api: Api, stored: Stored, attempt: int, generation: int) -> list[KeptTry]:
    """Read the tries of an attempt of this run that are kept."""
    there = _read_archive(api, stored, attempt, generation)
    return [] if there is None else [*unpack_tries(there)]


def forget(api: Api, run: str) -> None:
    """Delete the archives of all attempts of a run."""
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
    """Each try once, in its most complete form."""
    best: dict[str, KeptTry] = {}
    for kept in tries:
        other = best.get(kept.instance.id)
        if other is None or _worth(kept) > _worth(other):
            best[kept.instance.id] = kept
    return [*best.values()]


def without_doubles(tries: Sequence[KeptTry]) -> Iterator[KeptTry]:
    """Leave out captures without a pod's uid whose lines a known try wrote."""
    named = [kept for kept in tries if kept.instance.uid]
    written = {(kept.instance.member, line.at, line.text) for kept in named for line in kept.lines}
    for kept in tries:
        if kept.instance.uid or not all(
            (kept.instance.member, at, text) in written for at, text, *_ in kept.lines
        ):
            yield kept


def _worth(kept: KeptTry) -> tuple[bool, bool, int]:
    return not kept.from_status, kept.whole, kept.size


def pack_tries(tries: Sequence[KeptTry]) -> bytes:
    """Gzipped JSON of the tries, of `ROOM` bytes at most: the more tries, the fewer lines of each."""
    room = LARGEST
    while True:
        text = json.dumps(
            [_try_to_json(kept, room) for kept in tries], separators=(",", ":"), ensure_ascii=False
        )
        data = gzip.compress(text.encode(errors="replace"), mtime=0)
        if len(data) <= ROOM:
            return data
        if room > SMALLEST:
            room //= 2
        else:  # thousands of tries: the first to fail and the last ones tell the most
            tries = [*tries[: len(tries) // 4], *tries[-(len(tries) // 4) :]]


def _try_to_json(kept: KeptTry, room: int) -> Json:
    lines: deque[Stamped] = deque()
    size = 0
    for line in reversed(kept.lines):
        size += len(line.text) + 1
        if size > room and lines:
            break
        lines.appendleft(Stamped(line.at, line.text[-room:]))
    try_fields = {name: value for name, value in asdict(kept.instance).items() if name != "words"}
    cut = kept.cut or len(lines) < len(kept.lines)
    return {
        "try": try_fields,
        "lines": [[line.at, line.text] for line in lines],
        "cut": cut,
        "whole": kept.whole,
        "told": kept.from_status,
    }


def unpack_tries(body: Json) -> Iterator[KeptTry]:
    """Read the tries of a ConfigMap. A damaged one has none; fields of a newer writer are left out."""
    known = {field.name for field in fields(ContainerRun)}
    try:
        data = _unzipped(base64.b64decode(body["binaryData"]["tries"]))
        tries = [
            KeptTry(
                ContainerRun(**{k: v for k, v in item["try"].items() if k in known}),
                lines := deque(Stamped(int(at), str(text)) for at, text, *_ in item["lines"]),
                sum(len(line.text) + 1 for line in lines),
                item["cut"],
                item["whole"],
                item["told"],
            )
            for item in parse_json(data, RECORDS, spelling=False, any_text=True)
        ]
    except (LookupError, TypeError, ValueError, OSError, EOFError, binascii.Error):
        return
    yield from tries


def _unzipped(data: bytes) -> bytes:
    """Unzip no more than a reader of JSON takes: a small ConfigMap may unpack to a very large text."""
    with gzip.open(io.BytesIO(data)) as file:
        return file.read(RECORDS.size + 1)


def lost_tries(
    memory: Memory, layout: Layout, known: Iterable[ContainerRun], container: str, *, all_ran: bool = False
) -> Iterator[KeptTry]:
    """Tries of an ended attempt that ran and of which no line was read; they stand where their logs would be.
    ``all_ran``: every member ran, even where nobody saw it.
    """
    known = [*known]
    tries = [instance for instance in known if not instance.init]
    here = {instance.member for instance in known}
    met = {(instance.uid, instance.restart) for instance in tries}
    captured = {
        instance.member for instance in tries if not instance.uid
    }  # captured too late to see which try
    for member in layout.members:
        seen = memory.members.get(member.name)
        if seen is None or seen.log is None or member.name in captured:
            # The member has never run, or nobody knows which tries are missing.
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

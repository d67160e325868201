"""The one writer of a run's folder: an epoch in the store, which every save checks.

    <uri>/<run>/writers/000000000002.json     the highest number writes

    {"version": 1, "number": 2, "after": 100, "attempt": "8f3c...", "by": "process 4711 on host-b",
     "at": "2026-11-26T18:00:00.250Z",
     "takeovers": [{"number": 1, "after": null, "attempt": "1f0c..."}, {"number": 2, "after": 100, ...}]}

A process that begins to write creates the next record, exclusively, and so takes over from the one before.
``after`` is the step after which it goes on: None when it begins from scratch. The earlier process finds the
record of the next number when it saves, and ends with `TakenOver`.

It may find that too late: a process may sleep between its look and its manifest, and a file server may answer
the look from its cache. So each manifest has its writer's number, and **readers decide**: a checkpoint of an
earlier writer counts up to the step after which each later one goes on, and not above (`is_superseded`).
Nobody resumes from two histories that are mixed, whatever was written when. A manifest without a number, of
an older release or of a `save` by hand, always counts.

Records stay: the number after one's own is all that a save asks for. A record repeats the takeovers before
it, so that a reader needs the highest alone. A record that cannot be read is nobody's, and its number is
not used again.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from allaboard.checkpoints.manifest import Manifest
from allaboard.checkpoints.names import WRITERS
from allaboard.errors import (
    OwnershipConflict,
    StorageConflict,
    StorageMissing,
    StorageUnsupported,
    TakenOver,
)
from allaboard.storage.base import Store, join, read_small
from allaboard.text.units import rfc3339
from allaboard.text.untrusted import Unreadable, parse_json, show

FOLDER = WRITERS
VERSION = 1
#: So many takeovers are repeated; a checkpoint of a writer before them is judged by these.
KEPT = 1000
_TRIES = 100
_LARGEST = 1 << 20
_LONGEST = 200

_KEY = re.compile(FOLDER + r"/(\d{12})\.json")


@dataclass(frozen=True, slots=True)
class Takeover:
    """Writer ``number`` went on after the step ``after`` (None: from scratch); ``attempt`` identifies the
    attempt of a run that it belongs to, None for a script that was started by hand.
    """

    number: int
    after: int | None = None
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class Writer:
    """A record. ``takeovers``: its own and those before it, the oldest first."""

    number: int
    by: str = ""
    at: str | None = None
    takeovers: tuple[Takeover, ...] = ()

    @property
    def own(self) -> Takeover:
        return self.takeovers[-1]

    def encode(self) -> bytes:
        own = self.own
        body = {
            "version": VERSION,
            "number": self.number,
            "after": own.after,
            "attempt": own.attempt,
            "by": self.by,
            "at": self.at,
            "takeovers": [
                {"number": takeover.number, "after": takeover.after, "attempt": takeover.attempt}
                for takeover in self.takeovers[-KEPT:]
            ],
        }
        return (json.dumps(body) + "\n").encode()


def is_superseded(manifest: Manifest, newest: Writer | None) -> bool:
    """True if this checkpoint belongs to a history that a later writer has left behind."""
    if newest is None or manifest.writer is None:
        return False
    return any(
        later.number > manifest.writer and (later.after is None or manifest.step > later.after)
        for later in newest.takeovers
    )


def numbers_of(keys: Iterable[str]) -> list[int]:
    """The numbers of the writers among these keys of a run's folder, ascending."""
    matches = (_KEY.fullmatch(key) for key in keys)
    return sorted(int(match.group(1)) for match in matches if match)


def newest_writer(store: Store, numbers: Iterable[int] | None = None) -> Writer | None:
    """The record of the highest number that can be read; None when nobody wrote with an epoch yet.
    ``numbers``: those that are there, when a listing has just told them.
    """
    if numbers is None:
        numbers = numbers_of(entry.key for entry in store.entries(FOLDER))
    for number in sorted(numbers, reverse=True):
        writer = _read(store, number)
        if writer is not None:
            return writer
    return None


def check_attempt(store: Store, newest: Writer | None, attempt: str | None) -> None:
    """Raises TakenOver when this attempt has written here and another one has taken over from it: a member
    that is started again must not take the folder back.
    """
    if newest is None or attempt is None or newest.own.attempt == attempt:
        return
    if any(takeover.attempt == attempt for takeover in newest.takeovers):
        raise taken_over(store, newest)


def check_writer(store: Store, number: int) -> None:
    """Raises TakenOver when there is a later writer than ``number``. One small request."""
    if store.stat(_key(number + 1)) is None:
        return
    newest = newest_writer(store)
    if newest is not None and newest.number > number:
        raise taken_over(store, newest)


def claim(
    store: Store, after: int | None, attempt: str | None, now: float, *, exclusive: bool = True
) -> Writer:
    """Become the writer of this run's folder: whoever was it before saves no more. ``now``: epoch seconds.

    Raises TakenOver as `check_attempt` does, StorageUnsupported when the store has no exclusive create (then
    nothing was written; without ``exclusive`` the record is written all the same), StorageError.
    """
    number = 0
    for _ in range(_TRIES):
        newest = newest_writer(store)
        check_attempt(store, newest, attempt)
        before = newest.takeovers if newest is not None else ()
        # A number that cannot be read is taken, too.
        number = max(number, newest.number if newest is not None else 0) + 1
        own = Takeover(number, after, attempt)
        writer = Writer(number, _this_process(), rfc3339(now), (*before, own))
        try:
            _create(store, writer, exclusive)
        except StorageConflict:
            continue
        return writer
    raise OwnershipConflict(
        f"{join(store.uri, FOLDER)}: lost {_TRIES} races for the next number; "
        "find the processes that write into this folder, and leave one"
    )


def taken_over(store: Store, newest: Writer) -> TakenOver:
    own = newest.own
    goes_on = "began from scratch" if own.after is None else f"goes on after step {own.after}"
    return TakenOver(
        f"checkpoints {store.uri}: {newest.by or 'another process'} has taken over this folder at "
        f"{newest.at or 'an unknown time'} and {goes_on}; {_this_process()} "
        "saves no more, so that their checkpoints do not mix; let the other one train, or stop it and "
        "start this one anew"
    )


def _create(store: Store, writer: Writer, exclusive: bool) -> None:
    key = _key(writer.number)
    try:
        store.create(key, writer.encode())
    except StorageUnsupported:
        if exclusive:
            raise
        if store.stat(key) is not None:
            raise StorageConflict(f"{join(store.uri, key)}: it exists already") from None
        store.write(key, writer.encode())


def _key(number: int) -> str:
    return f"{FOLDER}/{number:012d}.json"


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _read(store: Store, number: int) -> Writer | None:
    """The record of this number; None for what is no record of a writer."""
    try:
        body = parse_json(read_small(store, _key(number), _LARGEST), spelling=False)
    except (Unreadable, StorageMissing):
        return None
    if not isinstance(body, dict) or body.get("number") != number:
        return None
    own = _takeover(body)
    if own is None:
        return None
    known = _takeovers(body.get("takeovers"), number)
    return Writer(number, _text(body.get("by")) or "", _text(body.get("at")), (*known, own))


def _takeovers(listed: Any, before: int) -> list[Takeover]:
    """Those of lower numbers, ascending."""
    if not isinstance(listed, list):
        return []
    takeovers = (_takeover(item) for item in listed[-KEPT:])
    return sorted(
        (takeover for takeover in takeovers if takeover and takeover.number < before),
        key=lambda takeover: takeover.number,
    )


def _takeover(item: Any) -> Takeover | None:
    if not isinstance(item, dict) or not _is_count(item.get("number")):
        return None
    after = item.get("after")
    if after is not None and not _is_count(after):
        return None
    return Takeover(item["number"], after, _text(item.get("attempt")))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> str | None:
    return show(value, _LONGEST, quote=False) if isinstance(value, str) else None

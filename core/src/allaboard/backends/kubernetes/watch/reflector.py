"""State of one list and watch, and its next step. Pure: time and chance are handed in; `informer` carries
the steps out.

A feed watches printed rows, not objects (core/docs/contract.md, Watching): 207 bytes per change instead of
6,400. A row is a wake-up, never a state, so a feed keeps two numbers of it, which show that its cells, except
the ages, have changed. A follower of a run is woken when a row of it comes, goes or changes, and then reads
the objects.

- A row is of the run that its name begins with, up to a dash: ``digits-1f0c9a77-2`` and its pods
  ``digits-1f0c9a77-worker-0`` are of ``digits-1f0c9a77``. A follower that is woken needlessly loses nothing.
- The server ends a watch in time, or it is cut: resumed from the last version that was seen. Too old (410):
  all is listed anew, and rows that differ from before wake. So changes in the gap are noticed, except an
  object that was deleted and made again in it with the same row; the look that a follower takes now and then
  shows it.
- Watching is forbidden, or brings nothing (a proxy that holds streams back): lists now and then.
- Listing is forbidden, or the server does not answer: the feed is not `live`, and followers poll,
  more seldom when the server does not answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from allaboard.backends.kubernetes.client.errors import Forbidden, Gone, Silent
from allaboard.backends.kubernetes.client.protocol import Json, version_of
from allaboard.errors import AllaboardError, BackendUnreachable

POLL = 12.0
"""Seconds, give or take a fourth, between looks where no watch works."""
UNANSWERED = 5
"""Factor by which looks are rarer while the server does not answer."""
AGAIN = 600.0
"""Seconds after which a watch that was forbidden, or brought nothing, is tried again."""
FRUITLESS = 9
"""Failed watches in a row after which the feed polls by lists; a silent watch counts as `SILENT`. Lists
are answered then, and watches do not come through.
"""
SILENT = 3
FIRST_REST, LONGEST_REST = 0.5, 30.0
SHORT = 2.0
"""A watch that ends sooner, without an event, has brought nothing, and is not opened again at once."""


@dataclass(frozen=True, slots=True)
class List:
    """All rows, by pages."""


@dataclass(frozen=True, slots=True)
class Watch:
    version: str


@dataclass(frozen=True, slots=True)
class Rest:
    seconds: float


Step = List | Watch | Rest


class PodAlarm(NamedTuple):
    """A pod whose row indicates failure; or, where it has not ``failed``, a pod that is done or, where it
    ``goes``, is being deleted. ``version`` is that of its row ("": not known): a watch from there on shows
    the end of the pod, even when it is gone.
    """

    pod: str
    version: str
    failed: bool
    goes: bool = False


class Follower(Protocol):
    """A follower of a run. ``alarm`` is called at once for a pod whose log may be gone a moment later."""

    run: str

    def wake(self) -> None: ...

    def alarm(self, alarm: PodAlarm) -> None: ...


class Feed:
    """``chance`` draws from [0, 1). ``expected``: a run has a row here from its start to its end."""

    def __init__(self, chance: Callable[[], float], expected: bool = True) -> None:
        self._expected = expected
        self.trouble: AllaboardError | None = None
        self._chance = chance
        self._followers: dict[str, tuple[Follower, ...]] = {}
        self._known: dict[int, str | int | None] = {}
        self._present: set[str] = set()  # followed runs that have a row
        self._version: str | None = None
        self._listed = False
        self._failures = 0
        self._fruitless = 0
        self._gone = 0
        self._rest = 0.0
        self._poll_until = 0.0
        self._progress = False
        self._opened: float | None = None
        self._hears = False

    # --- followers

    def join(self, follower: Follower) -> None:
        self._followers[follower.run] = (*self._followers.get(follower.run, ()), follower)

    def leave(self, follower: Follower) -> None:
        others = tuple(other for other in self._followers.get(follower.run, ()) if other is not follower)
        if others:
            self._followers[follower.run] = others
        else:
            self._followers.pop(follower.run, None)
            self._present.discard(follower.run)

    def followers(self) -> list[Follower]:
        return [follower for followers in self._followers.values() for follower in followers]

    @property
    def followed(self) -> bool:
        return bool(self._followers)

    @property
    def live(self) -> bool:
        """True when a change is noticed soon without a look."""
        return self._listed and self._failures <= 1

    @property
    def hears(self) -> bool:
        """True when every change has brought a row: the watch is open, or lists take its place."""
        return self._hears

    # --- the next step

    def next_step(self, now: float) -> Step:
        if self._rest:
            rest, self._rest = self._rest, 0.0
            return Rest(rest)
        if self._version is None:
            return List()
        if self._fruitless >= FRUITLESS:
            # A list just came: the server is well, its watches are not.
            self._fruitless, self._poll_until = 0, now + AGAIN
        if now < self._poll_until:
            self._version = None
            return Rest(self.poll())
        self._progress, self._opened, self._hears = False, None, False
        return Watch(self._version)

    def poll(self) -> float:
        """Seconds until the next poll of a follower that no row will wake."""
        often = UNANSWERED if isinstance(self.trouble, BackendUnreachable) else 1
        return POLL * often * (0.75 + self._chance() / 2)

    # --- input

    def add_list(self, rows: Iterable[Mapping[str, Any]], version: str) -> None:
        """Take a whole list. Followers whose rows have changed are woken; the first list wakes none."""
        before, self._known = self._known, {}
        present: set[str] = set()
        changed: set[str] = set()
        for row in rows:
            name = _name(row)
            key, signature = hash(name), _row_signature(row)
            self._known[key] = signature
            runs = [run for run in _runs(name) if run in self._followers]
            present.update(runs)
            if self._listed and (signature is None or before.get(key) != signature):
                changed.update(runs)
        if self._listed and self._expected:
            # A run without a row may have come and gone since the last list: nothing else shows that.
            changed.update(self._followers.keys() - present)
        for run in changed | (self._present - present):
            self._wake(run)
        self._present = present
        self._version, self._listed = version, True
        self._well()

    def add_event(self, kind: str, body: Json) -> None:
        """Take an event of the watch, with the row of one object."""
        self._version = version_of(body) or self._version
        self._progress = True
        self._well()
        if kind == "BOOKMARK":  # its row is an empty object's
            return
        for row in body["rows"]:
            name = _name(row)
            key, signature = hash(name), _row_signature(row)
            if kind == "DELETED":
                self._known.pop(key, None)
            elif signature is not None and self._known.get(key) == signature:
                continue
            else:
                self._known[key] = signature
            is_failing = kind != "DELETED" and _indicates_failure(row)
            goes = kind != "DELETED" and row.get("Status") == "Terminating"
            is_done = kind != "DELETED" and row.get("Status") == "Completed"
            for run in _runs(name):
                if run in self._followers:
                    self._present.add(run)
                    if is_failing or goes or is_done:
                        self._alarm(run, PodAlarm(name, self._version or "", is_failing, goes))
                    self._wake(run)

    def mark_opened(self, now: float) -> None:
        """Note that the server took the watch."""
        self._opened = now
        self._well()

    def mark_ended(self, error: AllaboardError | None, now: float) -> None:
        """Note that the watch or the list ended; ``error`` None: the server ended the watch in time."""
        watching, progress = self._version is not None, self._progress
        # Not since it was asked for: a client may have tried for long to get through.
        lived = watching and self._opened is not None and now - self._opened >= SHORT
        self._progress, self._opened, self._hears = False, None, False
        if error is None:
            self._fruitless = 0
            if not progress and not lived:
                self._rest = self._pause(1)
            return
        self.trouble = error
        if isinstance(error, Gone):
            # Once is a matter of time; a server that says so of every list must not be asked without a rest.
            self._gone = 1 if progress or lived else self._gone + 1
            self._rest = self._pause(self._gone - 1) if self._gone > 1 else 0.0
            self._version = None
        elif isinstance(error, Forbidden) and watching:
            self._poll_until = now + AGAIN
        else:
            # A stream that worked until it was cut is taken up soon; others may be cut with us.
            worked = progress or (lived and not isinstance(error, Silent))
            self._failures = 1 if worked else self._failures + 1
            if worked or not watching:
                self._fruitless = 0
            else:
                self._fruitless += SILENT if isinstance(error, Silent) else 1
            if self._fruitless and self._fruitless % SILENT == 0:
                self._version = None
            self._rest = self._pause(self._failures)

    def _wake(self, run: str) -> None:
        for follower in self._followers.get(run, ()):
            follower.wake()

    def _wake_all(self) -> None:
        for follower in self.followers():
            follower.wake()

    def _alarm(self, run: str, alarm: PodAlarm) -> None:
        for follower in self._followers.get(run, ()):
            follower.alarm(alarm)

    def _well(self) -> None:
        self._failures, self.trouble, self._hears = 0, None, True

    def _pause(self, times: int) -> float:
        longest: float = min(LONGEST_REST, FIRST_REST * 2 ** (times - 1))
        return longest * (0.5 + self._chance() / 2)


class ObjectFeed(Feed):
    """A feed that keeps a copy of the objects themselves, for a reader of all objects of a kind. Every change
    wakes its followers.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance, expected=False)
        self.objects: dict[tuple[str, str], Json] = {}
        """(namespace, name) -> object."""

    def add_list(self, rows: Iterable[Mapping[str, Any]], version: str) -> None:
        self.objects = {_place(body): dict(body) for body in rows}
        self._version, self._listed = version, True
        self._well()
        self._wake_all()

    def add_event(self, kind: str, body: Json) -> None:
        self._version = version_of(body) or self._version
        self._progress = True
        self._well()
        if kind == "BOOKMARK":
            return
        if kind == "DELETED":
            self.objects.pop(_place(body), None)
        else:
            self.objects[_place(body)] = body
        self._wake_all()


class NameFeed(Feed):
    """A feed that keeps the names of all objects. A name that comes or goes wakes its followers; the first
    list wakes none.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance, expected=False)
        self.names: frozenset[str] = frozenset()

    def add_list(self, rows: Iterable[Mapping[str, Any]], version: str) -> None:
        names, before = frozenset(map(_name, rows)), self.names if self._listed else None
        self.names = names
        self._version, self._listed = version, True
        self._well()
        if before is not None and before != names:
            self._wake_all()

    def add_event(self, kind: str, body: Json) -> None:
        self._version = version_of(body) or self._version
        self._progress = True
        self._well()
        if kind == "BOOKMARK":
            return
        of_event, before = frozenset(map(_name, body["rows"])), self.names
        self.names = before - of_event if kind == "DELETED" else before | of_event
        if self.names != before:
            self._wake_all()


def _place(body: Mapping[str, Any]) -> tuple[str, str]:
    return str(body["metadata"].get("namespace") or ""), str(body["metadata"]["name"])


def _runs(name: str) -> Iterable[str]:
    """The name and every beginning of it up to a dash."""
    yield name
    end = name.rfind("-")
    while end > 0:
        yield name[:end]
        end = name.rfind("-", 0, end)


def _name(row: Mapping[str, Any]) -> str:
    return str(row.get("Name", ""))


_AILING = frozenset(
    (
        "Error", "OOMKilled", "CrashLoopBackOff", "Failed", "Evicted", "StartError", "ContainerCannotRun",
        "ContainerStatusUnknown", "DeadlineExceeded", "NodeLost", "NodeShutdown", "Terminated", "Preempting",
    )
)  # fmt: skip
_AILING_IN = (
    "Init:Error",
    "Init:CrashLoop",
    "Init:OOM",
    "Init:ExitCode",
    "Init:Signal",
    "ExitCode:",
    "Signal:",
)


def _indicates_failure(row: Mapping[str, Any]) -> bool:
    """True when a pod's row shows a failure (the printed Status: pkg/printers/internalversion)."""
    status = str(row.get("Status", ""))
    return status in _AILING or status.startswith(_AILING_IN)


_AGES = ("Name", "Age", "AGE", "Created At", "Duration")


def _row_signature(row: Mapping[str, Any]) -> str | int | None:
    """The cells of a row as one value, without ages; None when it has no others."""
    cells = [str(cell).partition(" (")[0] for column, cell in row.items() if column not in _AGES]
    if not cells:
        return None
    # States are few and shared; other cells are kept as one number.
    return sys.intern(cells[0]) if len(cells) == 1 else hash(tuple(cells))


BURST = 4
EVERY = 1.0


def space_wakes(due: float, now: float) -> tuple[float, float]:
    """Space the wakes of a run: `BURST` at once, then one every `EVERY` seconds. ``due``: the first result of
    the last call, 0 at first. Returns the next ``due``, and the seconds for which this wake is held back.
    """
    due = max(due, now) + EVERY
    return due, max(0.0, due - now - BURST * EVERY)

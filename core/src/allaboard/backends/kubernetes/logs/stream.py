"""The logs of a run: all members merged by time, from a cursor on, to the present or for as long as the run
goes on (core/docs/contract.md, Logs).

Each try of each container is in one of these states. `ReadPositions` holds them, and a cursor carries them:

                  begins                   a pass has read what there is
    (not met) ──────────────▶ unread ─────────────────────────────────────▶ open: a stream follows it
        │                      ▲  │ ▲                                          │
        │ gone before anybody  │  │ └────── stream cut, or silent ─────────────┤
        │ could read it        │  │                                            │ stream ended by the kubelet
        │                doubted  │ the container has ended                    ▼
        │                         ▼                                          closed
        │                       done ◀──────── read to its last line ──────────┤
        ▼                         ▲                                            │ its pod is gone: all is read
    gap: one marked line ─────────┴────────────────────────────────────────────┘

*Doubted*: the answer lacks the line of the position. Either the node rotated the log, or the answer is that
of the next container; another look at the pod decides. *Gap*: the node rotated the log, two restarts went by,
or the pod is gone; the line says the member and the times between which the lost lines were written.

`ReadPositions`, `ReadPass` and `Following` decide the next requests, the new lines of an answer, the lost
lines, and the order in which lines leave. They touch nothing. `read_logs` and `follow_logs` fetch. The rules:

- Each try is read from its first line to its last. No line comes twice.
- Lines leave in the order of their times. To the present: exactly. While the run goes on, each line is held
  back 2 s for those that come late. The clocks of nodes are believed.
- The part of an answer that is held is bounded: a log of any size passes through. The logs of a few pods are
  read as they come, in pieces; those of many in bounded requests, because an open answer keeps a connection.
- Lines that were read survive their pod, with the follower that read them (`cache`).

A cursor holds a position for each try: its container's id, the time of the last line, and the number of lines
since that second began.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from allaboard.backends.base import Cursor, Gap, LogLine, Selection
from allaboard.backends.kubernetes.client.errors import Invalid, Missing
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.logs.cache import AttemptLogs, KeptTry
from allaboard.backends.kubernetes.logs.parsing import (
    HOLD,
    SECOND,
    START,
    LogGap,
    LogParser,
    Merge,
    Position,
    Stamped,
    stamp,
)
from allaboard.backends.kubernetes.observe.containers import (
    ContainerRun,
    is_selected,
    is_still_there,
    select_runs,
)
from allaboard.errors import AllaboardError, BackendUnreachable

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

AT_ONCE = 8 << 20
"""Bytes of all answers that are held at one time; those of one request are its share, within these bounds."""
SMALLEST, LARGEST = 64 << 10, 512 << 10
MOST_GROWN = 64 << 20
"""A request grows up to this where a single second of a log is larger than it."""
SIDE_BY_SIDE = 8
"""Requests that are made at the same time, and answers that are read as they come."""
MOST_HELD = 16 << 20
"""Characters that are held of the last lines that are asked for; of longer lines the rest is left out."""
LOOK_EVERY = 2.0
"""Seconds after which a follower looks for pods that came or went."""
REST = 1.0
"""Seconds until the status of a pod shows an event of its node."""
SILENCE = 50.0
"""Seconds without a line after which a stream is opened anew; load balancers cut it sooner or later."""
QUEUED = 64
"""Lines of streams, of a MiB at most, that wait to be merged."""
PAUSE = 0.2
"""Seconds after which a cursor follows lines behind which there is nothing more at the moment."""
_VERSION = 1


class Fetch(NamedTuple):
    """A request for lines of one try. ``since``: a whole second of the epoch. ``chain``: the index of its
    pod in the pass. ``proves``: no line of the answer is known, so only another look at the pod proves which
    try wrote it: a container may be replaced between the look at its pod and the request for its log.
    ``piece``: the answer is read as it comes, so many bytes at a time.
    """

    instance: ContainerRun
    chain: int = 0
    since: int | None = None
    tail: int | None = None
    limit: int | None = None
    follow: bool = False
    proves: bool = True
    piece: int | None = None

    def must_prove(self, data: bytes) -> bool:
        """True when the pod must prove that this is its own log. An empty answer of a running container needs
        no proof.
        """
        return self.proves and (bool(data) or not self.instance.running)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `Api.log`."""
        return {
            "container": self.instance.container,
            "since": None if self.since is None else stamp(self.since * SECOND),
            "tail": self.tail,
            "limit_bytes": self.limit,
            "previous": self.instance.previous,
            "follow": self.follow,
        }


class Entry(NamedTuple):
    """A line on its way out. ``key``: its place in time, never before an earlier line of its pod; ``line``:
    None only marks that its try was read to the end (``done``); ``position``: the position of the reader
    once it has left. ``gone``: its try can no longer be read.
    """

    key: int
    instance: ContainerRun
    line: LogLine | None
    stamped: Stamped | None = None
    position: Position | None = None
    done: bool = False
    gone: bool = False

    @property
    def size(self) -> int:
        return 300 + (len(self.line.text) if self.line else 0)


def _log_line(instance: ContainerRun, stamped: Stamped) -> LogLine:
    container = instance.container if instance.init else ""
    at = stamped.at / SECOND
    return LogLine(
        instance.member, instance.rank, instance.restart, at, stamped.text, container, more=stamped.more
    )


def _gap_mark(instance: ContainerRun, since: float | None, until: float | None, text: str) -> Entry:
    """One line for all the lines that are lost between two times."""
    at = since if since is not None else until
    container = instance.container if instance.init else ""
    line = LogLine(instance.member, instance.rank, instance.restart, at, text, container, Gap(since, until))
    return Entry(int((at or 0.0) * SECOND), instance, line)


# --- what has been read -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Known:
    """A try that was met. ``read``: the position of the reader; ``given``: that of the lines that have left.
    ``done``: it was read to its end. ``closed``: the kubelet ended its stream; if the pod is gone now, no
    line is missing. ``said_unreadable``: a line has said that it cannot be read now. ``doubted``: the kind of
    request whose answer lacked the line of the position.
    """

    instance: ContainerRun
    read: Position = START
    given: Position = START
    done: bool = False
    closed: bool = False
    said_unreadable: bool = False
    doubted: str = ""

    @classmethod
    def from_list(cls, id: str, data: Sequence[Any]) -> _Known:
        uid, container, member, rank, restart, at, lines, counted, done, unreadable, doubted = data
        instance = ContainerRun(id, "", uid, container, False, member, rank, restart, True, False, True)
        position = Position(at, lines, counted)
        return cls(instance, position, position, done, said_unreadable=unreadable, doubted=doubted)

    def to_list(self) -> list[Any]:
        instance, given = self.instance, self.given
        who = [instance.uid, instance.container, instance.member, instance.rank, instance.restart]
        return [*who, given.at, given.lines, given.counted, self.done, self.said_unreadable, self.doubted]


class ReadPositions:
    """Position of the reader in every try. `cursor` stands behind the lines that were given out, not behind
    those that are still on their way.
    """

    def __init__(self, cursor: Cursor | None = None, logs: AttemptLogs | None = None) -> None:
        self.logs = logs
        tries = (cursor or {}).get("tries", {})
        self._known = {id: _Known.from_list(id, data) for id, data in tries.items()}

    def cursor(self) -> Cursor:
        return {"v": _VERSION, "tries": {id: known.to_list() for id, known in self._known.items()}}

    def known(self, instance: ContainerRun) -> _Known:
        return self._known.setdefault(instance.id, _Known(instance))

    def is_done(self, instance: ContainerRun) -> bool:
        known = self._known.get(instance.id)
        return known is not None and known.done

    def meet(self, tries: Sequence[ContainerRun], selection: Selection) -> list[list[Entry]]:
        """The last entries of tries that can no longer be read: the lines that were kept of them, and a mark
        where lines are lost. Each comes once. ``tries`` are all tries that can be read now.
        """
        here = {instance.id for instance in tries}
        for known in [*self._known.values()]:
            other = None if known.done else self.next_writer(known, tries, surely=known.instance.id in here)
            if other is not None:
                self.move(known.instance, other)
        gone = [known for id, known in self._known.items() if id not in here and not known.done]
        kept = {} if self.logs is None else {k.instance.id: k for k in self.logs.tries()}
        gone += [_Known(k.instance) for id, k in kept.items() if id not in self._known and id not in here]
        leaving = [list(_last_entries(known, kept.get(known.instance.id), tries)) for known in gone]
        leaving += [[mark] for mark in self._skipped_tries(tries, [k.instance for k in kept.values()])]
        self._known |= {known.instance.id: known for known in gone}
        self._known = {id: known for id, known in self._known.items() if id in here or id in kept}
        for instance in tries:
            self.known(instance).instance = instance
        return [
            entries
            for entries in leaving
            if entries
            and is_selected(
                entries[0].instance.member, entries[0].instance.rank, entries[0].instance.restart, selection
            )
        ]

    def _skipped_tries(self, tries: Sequence[ContainerRun], kept: Sequence[ContainerRun]) -> Iterator[Entry]:
        """Tries that this reader has not met and no node has any more."""
        ours = [*kept, *(known.instance for known in self._known.values())]
        groups: dict[tuple[str, str], list[ContainerRun]] = {}
        for instance in tries:
            groups.setdefault((instance.uid, instance.container), []).append(instance)
        for group, readable in groups.items():
            fresh = [instance for instance in readable if instance.id not in self._known]
            met = {instance.restart for instance in ours if (instance.uid, instance.container) == group}
            if fresh:
                first, last = max(met, default=-1) + 1, min(instance.restart for instance in readable) - 1
                if first <= last:
                    text = f"{_restarts(first, last)} lost: a node keeps two tries"
                    yield _gap_mark(
                        min(readable, key=lambda instance: instance.restart), None, readable[0].begun, text
                    )

    def next_writer(
        self, known: _Known, tries: Iterable[ContainerRun], *, surely: bool
    ) -> ContainerRun | None:
        """The later try that wrote the lines read under this one, if any: a container may restart between the
        look at its pod and the request for its log. The later try had begun by the time of the last line;
        its beginning is known in whole seconds. ``surely``: it began more than a second before.
        """
        at = known.read.at // SECOND - (1 if surely else 0)
        later = [
            other
            for other in tries
            if (other.uid, other.container) == (known.instance.uid, known.instance.container)
            and other.restart > known.instance.restart
            and other.begun is not None
            and int(other.begun) <= at
        ]
        last = max(later, key=lambda other: other.restart, default=None)
        return last if known.read.at and last is not None and not self.known(last).read.at else None

    def move(self, instance: ContainerRun, other: ContainerRun) -> None:
        """Move the lines that were read under the name of one try to the try that wrote them."""
        known = self.known(instance)
        self._known[other.id] = _Known(other, known.read, known.given)
        self._known[instance.id] = _Known(instance)
        if self.logs is not None:
            self.logs.move(instance, other)

    def give_out(self, entry: Entry) -> LogLine | None:
        """The line of an entry that leaves now; None where it has none."""
        if entry.position is not None:
            known = self.known(entry.instance)
            known.given = entry.position
            known.done = known.done or entry.done
            known.said_unreadable = False
        if self.logs is not None and not entry.gone and (entry.stamped is not None or entry.done):
            self.logs.add(entry.instance, [entry.stamped] if entry.stamped else [], whole=entry.done)
        return entry.line


def _last_entries(known: _Known, kept: KeptTry | None, tries: Sequence[ContainerRun]) -> Iterator[Entry]:
    """The last of a try that can no longer be read: lines that were kept, a mark for those that were not."""
    instance, at = known.instance, known.read.at
    ends = kept is not None and (kept.whole or (kept.from_status and not at))
    if kept is not None:
        rest = [line for line in kept.lines if line.at > at and not (kept.from_status and known.read.at)]
        if kept.cut and rest and not at:
            text = f"its log before {stamp(rest[0].at)} is lost: its pod is gone"
            yield _gap_mark(instance, instance.begun, rest[0].at / SECOND, text)
        for line in rest:
            at = line.at
            yield Entry(at, instance, _log_line(instance, line), None, Position(at, 0, counted=False))
    if not known.closed and not ends:
        later = [t for t in tries if (t.uid, t.container) == (instance.uid, instance.container)]
        until = min((t.begun for t in later if t.begun is not None), default=None)
        gone = "its pod is gone" if instance.uid else "its pod was gone before anybody looked at it"
        reason = "a node keeps two tries" if later else gone
        written = f"after {stamp(at)}, if any, is" if at else "is"
        yield _gap_mark(
            instance, at / SECOND if at else instance.begun, until, f"its log {written} lost: {reason}"
        )
    yield Entry(at, instance, None, None, Position(at, 0, counted=False), done=True, gone=True)


def _restarts(first: int, last: int) -> str:
    return f"restart {first} is" if first == last else f"restarts {first} to {last} are"


# --- one pass, to the present -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Chain:
    """The tries of one pod that are to be read, in order, and the entries of the first that have not left.
    ``comes``: its answers are read as they come; ``parser``: that of an answer of which more is to be read.
    """

    tries: deque[ContainerRun]
    buffer: deque[Entry] = field(default_factory=deque)
    limit: int = LARGEST
    key: int = 0
    comes: bool = False
    parser: LogParser | None = None
    broke: Position | None = None


class ReadPass:
    """One pass over tries, to the present. `wants` gives the requests; `feed` and `fail` take the answers;
    `ready` gives the entries that may leave, in the order of time: a line leaves once every pod has shown a
    line that is not earlier.

    ``tail``: the number of last lines that are read of each try. ``doubtful``: tries that the next look must
    decide. ``stuck``: a node did not answer, and may do so later. ``unfinished``: try -> the time and text of
    a line that goes on, as a bar does that is redrawn.
    """

    def __init__(
        self,
        positions: ReadPositions,
        unread: Iterable[ContainerRun],
        leaving: Iterable[Sequence[Entry]] = (),
        *,
        tail: int | None = None,
        since: float | None = None,
        comes: bool = False,
    ) -> None:
        """``comes``: the caller can read an answer as it comes."""
        self.positions, self.tail, self.since, self.comes = positions, tail, since, comes
        pods: dict[str, deque[ContainerRun]] = {}
        for instance in unread:
            if not positions.is_done(instance):
                pods.setdefault(instance.uid, deque()).append(instance)
        limit = min(LARGEST, max(SMALLEST, AT_ONCE // max(1, len(pods))))
        # Marks first: at equal times they go before what follows them.
        self._chains = [_Chain(deque(), deque(entries)) for entries in leaving]
        few = comes and len(pods) <= SIDE_BY_SIDE
        self._chains += [_Chain(tries, limit=limit, comes=few) for tries in pods.values()]
        self.doubtful: list[ContainerRun] = []
        self.unfinished: dict[str, tuple[int, str]] = {}
        self.stuck = False
        self._heap: list[tuple[int, int]] = []
        self._waiting = {n for n, chain in enumerate(self._chains) if chain.tries}
        for n, chain in enumerate(self._chains):
            self._update_turn(n, chain)

    def wants(self) -> list[Fetch]:
        """Requests that must be made before more can leave; none: the pass is over."""
        return [self._fetch(n, self._chains[n]) for n in sorted(self._waiting)]

    def _fetch(self, n: int, chain: _Chain) -> Fetch:
        fetch = self._bounded_fetch(n, chain)
        return fetch._replace(limit=None, piece=chain.limit) if chain.comes else fetch

    def reads_on(self, fetch: Fetch) -> bool:
        """True when the next read continues the open answer of this request's try."""
        chain = self._chains[fetch.chain]
        return chain.parser is not None and bool(chain.tries) and chain.tries[0].id == fetch.instance.id

    def break_off(self, fetch: Fetch) -> bool:
        """Note that an answer was cut before its end. True when the rest is to be asked for anew: lines were
        read since the last cut.
        """
        chain = self._chains[fetch.chain]
        chain.parser, before, chain.broke = None, chain.broke, self.positions.known(fetch.instance).read
        return before != chain.broke

    def _bounded_fetch(self, n: int, chain: _Chain) -> Fetch:
        instance = chain.tries[0]
        known = self.positions.known(instance)
        if known.read.at:
            proves = bool(known.doubted) and not instance.final
            return Fetch(instance, n, since=known.read.second, limit=chain.limit, proves=proves)
        if self.tail is not None:
            return Fetch(instance, n, tail=self.tail, proves=not instance.final)
        since = None if self.since is None else int(self.since)
        return Fetch(instance, n, since=since, limit=chain.limit, proves=not instance.final)

    def feed(self, fetch: Fetch, data: bytes, *, goes_on: bool = False) -> None:
        """Take the answer to a request; ``goes_on``: a piece of it, and not the last."""
        n, chain = fetch.chain, self._chains[fetch.chain]
        instance = fetch.instance
        known = self.positions.known(instance)
        more = goes_on or (fetch.limit is not None and len(data) >= fetch.limit)
        parser = chain.parser or LogParser(known.read, whole=fetch.tail is None)
        chain.parser = None
        items = parser.feed(data)
        if not more and not instance.running:
            items += parser.close()
        if parser.refused is not None:
            self.fail(fetch, parser.refused, lost=not instance.running)
            return
        missing = isinstance(items[0], LogGap) if items else not (more or parser.is_anchored)
        known.said_unreadable = False
        if missing:
            if self._doubt(n, chain, known):
                return
            if (other := self.positions.next_writer(known, chain.tries, surely=False)) is not None:
                self.positions.move(instance, other)
                return
        if missing and not items:
            text = f"its log{_after(known)}, if any, is lost: the node rotated the log"
            self._put(chain, _gap_mark(instance, known.read.at / SECOND, None, text))
        known.doubted = ""
        self._take(chain, instance, known, items)
        if goes_on:
            chain.parser = parser
        elif more and not items and self.comes:  # one second holds more than a request does
            chain.comes = True
        elif more and not items:
            chain.limit = min(MOST_GROWN, chain.limit * 2)
        if not more and (rest := parser.unfinished()) is not None:
            self.unfinished[instance.id] = rest
        if not more or (not items and fetch.limit == MOST_GROWN):
            self._end_try(chain, instance, done=not instance.running)
        self._update_turn(n, chain)

    def _doubt(self, n: int, chain: _Chain, known: _Known) -> bool:
        """Leave the try to another look at the pod; False when that look has been taken."""
        instance = known.instance
        if instance.final or known.doubted == _log_kind(instance):
            return False
        known.doubted = _log_kind(instance)
        self.doubtful.append(instance)
        chain.tries.clear()
        self._update_turn(n, chain)
        return True

    def drop(self, fetch: Fetch) -> None:
        """Note that the answer was that of another container, and dropped: the next look shows which."""
        chain = self._chains[fetch.chain]
        self.doubtful.append(fetch.instance)
        chain.tries.clear()
        self._update_turn(fetch.chain, chain)

    def _take(
        self, chain: _Chain, instance: ContainerRun, known: _Known, items: Sequence[Stamped | LogGap]
    ) -> None:
        for item in items:
            if isinstance(item, LogGap):
                self._put(chain, _rotation_mark(instance, item))
                continue
            known.read = item.position
            chain.key = max(chain.key, item.at)
            if self.since is None or item.at >= self.since * SECOND:
                chain.buffer.append(
                    Entry(chain.key, instance, _log_line(instance, item), item, item.position)
                )

    def _put(self, chain: _Chain, mark: Entry) -> None:
        chain.key = max(chain.key, mark.key)
        chain.buffer.append(mark._replace(key=chain.key))

    def _end_try(self, chain: _Chain, instance: ContainerRun, *, done: bool) -> None:
        """End the reading of this try for now; ``done``: for good."""
        chain.tries.popleft()
        if done:
            chain.buffer.append(
                Entry(chain.key, instance, None, None, self.positions.known(instance).read, done=True)
            )

    def fail(self, fetch: Fetch, reason: str, *, lost: bool = False, gone: bool = False) -> None:
        """Note that there is no answer. ``lost``: the node will never have one; ``gone``: the pod is deleted,
        which the next look will show; else the node does not answer now.
        """
        n, chain = fetch.chain, self._chains[fetch.chain]
        instance = fetch.instance
        known = self.positions.known(instance)
        since = known.read.at / SECOND if known.read.at else instance.begun
        if gone:
            chain.tries.clear()
        elif lost:
            if self._doubt(n, chain, known):
                return
            self._put(chain, _gap_mark(instance, since, None, f"its log{_after(known)} is lost: {reason}"))
            self._end_try(chain, instance, done=True)
        else:
            self.stuck = True
            if not known.said_unreadable:
                known.said_unreadable = True
                text = f"its log{_after(known)} cannot be read now: {reason}"
                self._put(chain, _gap_mark(instance, since, None, text))
            chain.tries.clear()
        self._update_turn(n, chain)

    def skip(self, fetch: Fetch) -> None:
        """Pass over a container that has not started, or is just being replaced."""
        n, chain = fetch.chain, self._chains[fetch.chain]
        chain.tries.popleft()
        self._update_turn(n, chain)

    def _update_turn(self, n: int, chain: _Chain) -> None:
        if chain.buffer:
            heapq.heappush(self._heap, (chain.buffer[0].key, n))
            self._waiting.discard(n)
        elif not chain.tries:
            self._waiting.discard(n)
        else:
            self._waiting.add(n)

    def ready(self) -> Iterator[Entry]:
        """Entries that may leave now."""
        while self._heap and not self._waiting:
            _, n = heapq.heappop(self._heap)
            chain = self._chains[n]
            entry = chain.buffer.popleft()
            self._update_turn(n, chain)
            yield entry


def _log_kind(instance: ContainerRun) -> str:
    return "previous" if instance.previous else "current"


def _rotation_mark(instance: ContainerRun, lost: LogGap) -> Entry:
    text = f"lines from {stamp(lost.since)} to {stamp(lost.until)} are lost: the node rotated the log"
    return _gap_mark(instance, lost.since / SECOND, lost.until / SECOND, text)


def _after(known: _Known) -> str:
    return f" after {stamp(known.read.at)}" if known.read.at else ""


# --- for as long as it runs ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stream:
    instance: ContainerRun
    parser: LogParser
    key: int


class Following:
    """Streams of running containers, merged. `streams_to_open` gives the requests for new ones. `feed` and
    `end_stream` take their data, `put` the entries that passes have read in between. `take` gives the lines
    that may leave at ``now``, by any clock that does not go back.
    """

    def __init__(self, positions: ReadPositions, hold: float = HOLD) -> None:
        self.positions = positions
        self.merge: Merge[Entry] = Merge(hold)
        self._streams: dict[str, _Stream] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        self._ended: set[str] = set()

    def streaming(self) -> list[ContainerRun]:
        return [stream.instance for stream in self._streams.values()]

    def unread(self, tries: Iterable[ContainerRun], now: float) -> list[ContainerRun]:
        """Tries that a pass must read before a stream is opened: all tries of the pods without a stream."""
        busy = {stream.instance.uid for stream in self._streams.values()}
        return [
            instance for instance in tries if instance.uid not in busy and not self._is_paused(instance, now)
        ]

    def streams_to_open(self, tries: Iterable[ContainerRun], now: float) -> list[Fetch]:
        """Requests for the streams to open, now that a pass has read everything before."""
        fetches = []
        for instance in self.unread(tries, now):
            if instance.running:
                known = self.positions.known(instance)
                known.closed, position = False, known.read
                self._streams[instance.id] = _Stream(instance, LogParser(position), position.at)
                fetches.append(Fetch(instance, since=position.second, follow=True, proves=not position.at))
        return fetches

    def feed(self, id: str, data: bytes, now: float) -> bool:
        """Take data of a stream; False: it is to be closed."""
        stream = self._streams[id]
        known = self.positions.known(stream.instance)
        items = stream.parser.feed(data)
        if items:
            if isinstance(items[0], LogGap) and not known.doubted:
                known.doubted = _log_kind(stream.instance)
                self.pause([stream.instance], now)
                return False
            known.doubted = ""
            self._pauses.pop(id, None)
        for item in items:
            if isinstance(item, LogGap):
                mark = _rotation_mark(stream.instance, item)
                self._hold(mark._replace(key=max(stream.key, mark.key)), now)
                continue
            known.read = item.position
            stream.key = max(stream.key, item.at)
            self._hold(
                Entry(stream.key, stream.instance, _log_line(stream.instance, item), item, item.position), now
            )
        return True

    def pause(self, tries: Iterable[ContainerRun], now: float) -> None:
        """Leave these tries alone until another look at their pods shows their state."""
        for instance in tries:
            self._pauses[instance.id] = (now + REST, REST)

    def stale_streams(self, tries: Iterable[ContainerRun]) -> list[str]:
        """Streams whose container had ended by this look and the one before: either they end by themselves
        in a moment, or they are the next container's, which was there by the time they were opened.
        """
        ended = {instance.id for instance in tries if not instance.running} & {*self._streams}
        again, self._ended = [*(ended & self._ended)], ended
        return again

    def end_stream(self, id: str, now: float, *, whole: bool) -> None:
        """End a stream. ``whole``: the kubelet ended it, as it does when the container has ended, and nothing
        is missing if the pod is gone by the next look; else the stream was cut.
        """
        instance = self._streams.pop(id).instance
        pause = min(10.0, 2 * self._pauses.get(id, (0.0, 0.1))[1])
        self._pauses[id] = (now + pause, pause)
        self.positions.known(instance).closed = whole

    def _is_paused(self, instance: ContainerRun, now: float) -> bool:
        """True for a running try that is left alone for a moment, because its streams end as soon as they
        begin.
        """
        return instance.running and self._pauses.get(instance.id, (0.0, 0.0))[0] > now

    def put(self, entries: Iterable[Entry], now: float) -> None:
        for entry in entries:
            self._hold(entry, now)

    def _hold(self, entry: Entry, now: float) -> None:
        self.merge.put(entry.key, entry, entry.size, now)

    def take(self, now: float, *, everything: bool = False) -> Iterator[LogLine]:
        for entry in self.merge.take(now, everything=everything):
            line = self.positions.give_out(entry)
            if line is not None:
                yield line


# --- fetching -----------------------------------------------------------------------------------------------


def feed_answer(
    read_pass: ReadPass, fetch: Fetch, answer: bytes | AllaboardError | None, *, always: bool = False
) -> None:
    """Give a pass the answer to a request. Raises an error that concerns more than this log, unless
    ``always``.
    """
    match answer:
        case None:
            read_pass.drop(fetch)
        case bytes():
            read_pass.feed(fetch, answer)
        case Missing():
            read_pass.fail(fetch, "", gone=True)
        case Invalid() if not fetch.instance.running:
            read_pass.fail(fetch, answer.message, lost=True)
        case Invalid():
            read_pass.skip(fetch)
        case BackendUnreachable() if _of_node(answer):
            read_pass.fail(fetch, "its node does not answer")
        case _ if always:
            read_pass.fail(fetch, str(answer))
        case _:
            raise answer


def _of_node(error: AllaboardError) -> bool:
    """True when the kubelet did not answer the API server: other pods have other nodes."""
    return "containerLogs" in str(error) or ":10250" in str(error)


def read_logs(
    api: Api,
    namespace: str | None,
    tries: Sequence[ContainerRun],
    selection: Selection,
    cursor: Cursor | None = None,
    logs: AttemptLogs | None = None,
) -> Iterator[LogLine | Cursor]:
    """The lines selected after the cursor, up to the present, merged by time; the last item is the new
    cursor.

    ``tries``: every try of the attempt that can be read now (`containers`). Raises BackendUnreachable.
    """
    positions = ReadPositions(cursor, logs)
    read_pass = _begin_pass(positions, tries, selection, first=cursor is None)
    yield from _give_lines(
        positions, _read_entries(api, namespace, read_pass), selection, first=cursor is None
    )
    yield positions.cursor()


def _begin_pass(
    positions: ReadPositions, tries: Sequence[ContainerRun], selection: Selection, *, first: bool
) -> ReadPass:
    leaving = positions.meet(tries, selection)
    tail = selection.tail if first else None
    return ReadPass(
        positions, select_runs(tries, selection), leaving, tail=tail, since=selection.since, comes=True
    )


def _give_lines(
    positions: ReadPositions, entries: Iterable[Entry], selection: Selection, *, first: bool
) -> Iterator[LogLine]:
    """The lines of entries as they leave; at first the last ``selection.tail`` of them alone."""
    lines = (line for entry in entries if (line := positions.give_out(entry)) is not None)
    if first and selection.tail is not None:
        last = _Last(selection.tail)
        for line in lines:
            last.add(line)
        yield from last.lines
    else:
        yield from lines


class _Last:
    """The last ``most`` lines of many. A long one may come in pieces; of all `MOST_HELD` is held."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lines: deque[LogLine] = deque()
        self._count = self._size = 0

    def add(self, line: LogLine) -> None:
        self.lines.append(line)
        self._size += len(line.text)
        self._count += not line.more
        while self.lines and (self._count > self.most or (self._size > MOST_HELD and len(self.lines) > 1)):
            gone = self.lines.popleft()
            self._size -= len(gone.text)
            self._count -= not gone.more


def _feed_answers(
    read_pass: ReadPass, answers: Iterable[tuple[Fetch, bytes | _Piece | AllaboardError | None]]
) -> None:
    for fetch, answer in answers:
        if not isinstance(answer, _Piece):
            feed_answer(read_pass, fetch, answer)
        elif answer.data or not answer.goes_on:
            read_pass.feed(fetch, answer.data, goes_on=answer.goes_on)


def _read_entries(api: Api, namespace: str | None, read_pass: ReadPass) -> Iterator[Entry]:
    yield from read_pass.ready()
    with _Answers(api, namespace, read_pass) as answers:
        while wants := read_pass.wants():
            _feed_answers(read_pass, answers.fetch(wants))
            yield from read_pass.ready()


def fetch_answer(api: Api, namespace: str | None, fetch: Fetch) -> bytes | None:
    """The answer to a bounded request; None: it is that of another container."""
    with api.log(fetch.instance.pod, namespace, **fetch.options) as stream:
        data = b"".join(stream)
    if fetch.must_prove(data) and not is_still_there(
        api.get(PODS, fetch.instance.pod, namespace), fetch.instance
    ):
        return None
    return data


class _Piece(NamedTuple):
    """A piece of an answer. ``goes_on``: it is not the last; with no bytes the answer was cut."""

    data: bytes
    goes_on: bool


class _Answers:
    """Answers to the requests of a pass. Those that come in pieces stay open from one to the next."""

    def __init__(self, api: Api, namespace: str | None, read_pass: ReadPass) -> None:
        self.api, self.namespace, self.read_pass = api, namespace, read_pass
        self.open: dict[int, Any] = {}

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, *exc: object) -> None:
        for n in [*self.open]:
            self._close(n)

    def fetch(self, wants: Sequence[Fetch]) -> Iterable[tuple[Fetch, bytes | _Piece | AllaboardError | None]]:
        if len(wants) == 1:
            return [(wants[0], self._fetch_one(wants[0]))]
        with ThreadPoolExecutor(min(SIDE_BY_SIDE, len(wants)), "allaboard-logs") as pool:
            # With the deadline of who asks.
            answers = [pool.submit(copy_context().run, self._fetch_one, fetch) for fetch in wants]
            return [(fetch, answer.result()) for fetch, answer in zip(wants, answers, strict=True)]

    def _fetch_one(self, fetch: Fetch) -> bytes | _Piece | AllaboardError | None:
        reads_on = fetch.chain in self.open and self.read_pass.reads_on(fetch)
        try:
            if fetch.piece is None:
                return fetch_answer(self.api, self.namespace, fetch)
            if not reads_on:
                self._close(fetch.chain)
                self.open[fetch.chain] = self.api.log(fetch.instance.pod, self.namespace, **fetch.options)
            data, goes_on = _read_piece(self.open[fetch.chain], fetch.piece)
            if not reads_on and fetch.must_prove(data):
                pod = self.api.get(PODS, fetch.instance.pod, self.namespace)
                if not is_still_there(pod, fetch.instance):
                    self._close(fetch.chain)
                    return None
        except AllaboardError as error:
            self._close(fetch.chain)
            if not reads_on or not self.read_pass.break_off(fetch):
                return error
            return _Piece(b"", goes_on=True)
        if not goes_on:
            self._close(fetch.chain)
        return _Piece(data, goes_on)

    def _close(self, n: int) -> None:
        if (body := self.open.pop(n, None)) is not None:
            body.close()


def _read_piece(body: Iterator[bytes], most: int) -> tuple[bytes, bool]:
    """``most`` bytes of an answer, or a little more, and True where more may follow."""
    pieces, size = [], 0
    for data in body:
        pieces.append(data)
        size += len(data)
        if size >= most:
            return b"".join(pieces), True
    return b"".join(pieces), False


class LogSources(NamedTuple):
    """``tries``: all that can be read now. ``over``: the run has ended and starts no member anew."""

    tries: Sequence[ContainerRun]
    over: bool


@dataclass(slots=True)
class _CursorPace:
    """A cursor follows lines that have left, `PAUSE` after the last cursor. ``given``: lines have left
    since.
    """

    last: float
    given: bool = False

    def next_at(self, until: float, due: float | None) -> float:
        """The time until which a follower may wait for an event; ``due``: the time at which a line that is
        held back may leave.
        """
        return min(until, due or until, self.last + PAUSE if self.given else until)


def _take_due(following: Following, pace: _CursorPace) -> Iterator[LogLine | Cursor]:
    """The lines that may leave now, and a cursor where one is due."""
    for line in following.take(time.monotonic()):
        pace.given = True
        yield line
    if pace.given and time.monotonic() >= pace.last + PAUSE:
        pace.last, pace.given = time.monotonic(), False
        yield following.positions.cursor()


def follow_logs(
    api: Api,
    namespace: str | None,
    find_sources: Callable[[], LogSources],
    selection: Selection,
    cursor: Cursor | None = None,
    logs: AttemptLogs | None = None,
) -> Iterator[LogLine | Cursor]:
    """The lines of `read_logs`, and then lines as they come, until the run is over and everything was read. A
    cursor comes where there are no more lines at the moment, and as the last item. ``find_sources`` is called
    every two seconds and whenever a stream has ended.
    """
    positions = ReadPositions(cursor, logs)
    following = Following(positions, hold=0.0 if _is_single(selection) else HOLD)
    events: queue.Queue[tuple[str, bytes | _End]] = queue.Queue(maxsize=QUEUED)
    pumps: dict[str, _Pump] = {}
    first, pace = cursor is None, _CursorPace(time.monotonic())
    try:
        while True:
            sources = find_sources()
            for id in following.stale_streams(sources.tries):
                following.end_stream(id, time.monotonic(), whole=False)
                pumps.pop(id).stop()
            read_pass = _next_pass(following, sources, selection, first=first)
            entries = _read_entries(api, namespace, read_pass)
            if pumps:
                following.put(entries, time.monotonic())
            else:
                yield from following.take(0.0, everything=True)
                yield from _give_lines(positions, entries, selection, first=first)
            first, pace.given = False, pace.given or not pumps
            following.pause(read_pass.doubtful, time.monotonic())
            tries = select_runs(sources.tries, selection)
            for fetch in following.streams_to_open(tries, time.monotonic()):
                pumps[fetch.instance.id] = _Pump(api, namespace, fetch, events)
            if sources.over and not pumps and not any(instance.running for instance in tries):
                break
            until = time.monotonic() + LOOK_EVERY
            while (now := time.monotonic()) < until:
                due = following.merge.due()
                with suppress(queue.Empty):
                    next_at = pace.next_at(until, due)
                    id, data = events.get(timeout=max(0.0, next_at - now))
                    if id in pumps and _handle_event(following, id, data):
                        pumps.pop(id).stop()
                        until = min(until, now + 0.1)
                yield from _take_due(following, pace)
        yield from following.take(0.0, everything=True)
        yield positions.cursor()
    finally:
        for pump in pumps.values():
            pump.stop()


def _is_single(selection: Selection) -> bool:
    """True when a single member is asked for: there is nothing to merge, and no line need wait."""
    return len(selection.members or selection.ranks or ()) == 1


def _next_pass(following: Following, sources: LogSources, selection: Selection, *, first: bool) -> ReadPass:
    """The pass that must end before streams are opened."""
    positions, now = following.positions, time.monotonic()
    streaming = following.streaming()
    here = {instance.id for instance in sources.tries}
    # Lines that still come from a deleted pod are not lost.
    still_open = [instance for instance in streaming if instance.id not in here]
    leaving = positions.meet([*sources.tries, *still_open], selection)
    tail = selection.tail if first else None
    unread = following.unread(select_runs(sources.tries, selection), now)
    return ReadPass(positions, unread, leaving, tail=tail, since=selection.since, comes=True)


def _handle_event(following: Following, id: str, data: bytes | _End) -> bool:
    """Take data of a stream; True when it is over now. Raises an error that concerns more than this log."""
    now = time.monotonic()
    if isinstance(data, bytes):
        if following.feed(id, data, now):
            return False
        data = _End(whole=False)
    following.end_stream(id, now, whole=data.whole)
    error = data.error
    if error is not None and not isinstance(error, (Missing, Invalid, BackendUnreachable)):
        raise error
    return True


class _End(NamedTuple):
    """The end of a stream. ``whole``: the kubelet ended it."""

    whole: bool
    error: AllaboardError | None = None


class _Pump:
    """Reads one stream into a queue, in a thread of its own."""

    def __init__(
        self, api: Api, namespace: str | None, fetch: Fetch, events: queue.Queue[tuple[str, bytes | _End]]
    ) -> None:
        self.api, self.namespace, self.fetch, self.events = api, namespace, fetch, events
        self.stream: Any = None
        self.stopped = False
        threading.Thread(target=self._run, name=f"log of {fetch.instance.pod}", daemon=True).start()

    def stop(self) -> None:
        self.stopped = True
        if self.stream is not None:
            self.stream.close()

    def _run(self) -> None:
        last_at, error, whole = time.monotonic(), None, False
        try:
            options = {**self.fetch.options, "silence": SILENCE}
            with self.api.log(self.fetch.instance.pod, self.namespace, **options) as self.stream:
                proven = not self.fetch.proves
                for data in self.stream:
                    last_at = time.monotonic()
                    proven = proven or self._is_its_own()
                    if not proven or not self._put(data):
                        break
            # A stream that fell silent, or whose connection did, ends without an error too.
            whole = proven and time.monotonic() - last_at < SILENCE - 2
        except AllaboardError as caught:
            error = caught
        self._put(_End(whole, error))

    def _is_its_own(self) -> bool:
        return is_still_there(
            self.api.get(PODS, self.fetch.instance.pod, self.namespace), self.fetch.instance
        )

    def _put(self, data: bytes | _End) -> bool:
        while not self.stopped:
            with suppress(queue.Full):
                self.events.put((self.fetch.instance.id, data), timeout=0.5)
                return True
        return False

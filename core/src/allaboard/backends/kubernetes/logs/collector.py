"""Evidence that a follower reads from the logs of a run while it watches: the ends of the logs of failed
members, before their pods are deleted, and the report lines of rank 0 (core/docs/contract.md, Evidence).

- When a member fails, the end of its log and of the try before are read at once, and those of rank 0 and
  two peers beside them: 32 requests and 10 s at most, 64 KiB kept of each. Clean-up, a TTL or a new pod may
  take the logs a second later.
- A watch event of a failed pod sets off `capture_pod` at once, before the run is looked at.
- By the time that the log of a try is asked for, the answer may be that of the next try. It is kept where its
  first line was written before the try ended, or where the pod, looked at again, still has the try.
- The log of rank 0 is read on every ``progress_every`` seconds, in bounded requests, for the progress in it.
  Runs that start together do not ask together.

`EvidenceCollector` decides what to read and keeps the answers; `collect` reads. One collector
belongs to one attempt of one run, in one follower.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from allaboard.backends.base import Selection
from allaboard.backends.kubernetes.client.deadline import ends_at
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.logs.cache import AttemptLogs, LogCache
from allaboard.backends.kubernetes.logs.capture import (
    LARGEST_TAIL,
    SECONDS,
    TAIL,
    PodCapture,
    is_before,
    parse_tail,
    run_within,
    writer_of,
)
from allaboard.backends.kubernetes.logs.parsing import SECOND, LogGap, LogParser, Stamped
from allaboard.backends.kubernetes.logs.stream import (
    Fetch,
    ReadPass,
    ReadPositions,
    feed_answer,
    fetch_answer,
)
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole, is_still_there
from allaboard.backends.kubernetes.observe.observation import ProgressState, apply_reports
from allaboard.diagnosis.excerpt import Excerpt
from allaboard.errors import AllaboardError
from allaboard.follow.printed import OFF, ProgressReader
from allaboard.follow.stall import Movement
from allaboard.text.reportline import is_answer

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

Json = dict[str, Any]
PROGRESS_EVERY = 60.0
CALLS = 32
PEERS = 2
AGAIN = 10.0
"""Seconds after which the members that have not failed are read again when more of them fail."""
TAILS = (TAIL, 20, 1)
"""Lines that are asked for; fewer where so many are more than `LARGEST_TAIL` bytes."""
READS = 8
"""Requests for one look at rank 0's log; the rest is read at the next look. The last look makes as many as go
into `SECONDS`.
"""
ENOUGH = 0.8
"""The part of `SECONDS` after which no further request is made."""
TIMES = 3
"""Requests for the end of a try before it is given up: its node may be busy."""
_NOTHING: Mapping[str, int] = {}


class _OpenLine(NamedTuple):
    """A line that goes on: its time in nanoseconds, how much of it was read, and when that was seen first."""

    at: int
    length: int
    seen: float


_NO_LINES: Mapping[str, _OpenLine] = {}
_NO_READERS: Mapping[str, ProgressReader] = {}
READERS = 3
"""Tries of rank 0 whose format is remembered beside the newest."""
EXCERPTS = 4
"""Members of a run whose logs are read whole, in one pass, where they failed."""
MIDDLE_OF_LOG = 32 << 20
"""Bytes of a log that are read for the lines before its end; a kubelet keeps 10 MiB."""
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\S+ ")


class EvidenceCollector:
    """Reads of one attempt, decided and kept. ``progress_every``: seconds; 0 reads no report lines. ``logs``:
    the lines that were read, which the printer of the logs may share. ``cache``: the budget of logs that are
    made here. ``report``: the reports of rank 0 so far, None when they are not read; ``movement``: the times
    of its lines. ``own``: the folder of the run's checkpoints. ``now`` is any clock that does not go back.
    """

    __slots__ = (
        "_asked", "_before_last_words", "_behind", "_cache", "_excerpts", "_last_words", "_logs",
        "_open_lines", "_peers_at", "_positions", "_progress_at", "_readers", "_reading", "chance",
        "movement", "own", "progress_every", "report",
    )  # fmt: skip

    def __init__(
        self,
        logs: AttemptLogs | None = None,
        progress_every: float = PROGRESS_EVERY,
        chance: Callable[[], float] = random.random,
        own: str | None = None,
        cache: LogCache | None = None,
    ) -> None:
        self.progress_every, self.chance, self.own = progress_every, chance, own
        self._readers: Mapping[str, ProgressReader] = _NO_READERS
        self._open_lines: Mapping[str, _OpenLine] = _NO_LINES
        self.report: ProgressState | None = ProgressState() if progress_every > 0 else None
        self.movement = Movement(0.0)
        # Made when something is read: most runs of a busy process never need it.
        self._cache = cache
        self._logs, self._positions = logs, None if logs is None else ReadPositions(logs=logs)
        self._asked: Mapping[str, int] = _NOTHING  # try -> how often its end was asked for, once it was final
        # Lines before the ends of the first tries that failed; "" while they are read.
        self._excerpts: dict[str, str] = {}
        self._last_words: ContainerRun | None = None
        # The report without the last words: its log may be read after them all the same.
        self._before_last_words: ProgressState | None = None
        self._peers_at: float | None = None
        self._progress_at = 0.0
        self._reading = False
        self._behind = False

    @property
    def is_behind(self) -> bool:
        """True when lines of rank 0 could not be read yet, and may be later."""
        return self._behind or self._reading

    @property
    def logs(self) -> AttemptLogs:
        if self._logs is None:
            self._logs = AttemptLogs(cache=self._cache)
        return self._logs

    @property
    def positions(self) -> ReadPositions:
        if self._positions is None:
            self._positions = ReadPositions(logs=self.logs)
        return self._positions

    def tails(self) -> dict[str, str]:
        """Member -> the end of its log, as far as it was read. A member that has been started again since it
        failed has both tries.
        """
        if self._logs is None:
            return {}
        members = {kept.instance.member for kept in self._logs.tries()}
        return {member: text for member in sorted(members) if (text := self._tail(member))}

    def wrote(self) -> dict[str, float]:
        """Member -> the time of its last line that was read, epoch seconds of its node."""
        times: dict[str, float] = {}
        for kept in self._logs.tries() if self._logs is not None else ():
            if kept.lines and not kept.from_status:
                at = kept.lines[-1].at / SECOND
                times[kept.instance.member] = max(at, times.get(kept.instance.member, at))
        return times

    def _tail(self, member: str) -> str:
        tries = [t for t in self.logs.tries() if t.instance.member == member and t.lines]
        tries.sort(key=lambda t: (t.instance.begun or 0.0, t.instance.restart))
        shown = (
            tries[-1:]
            if tries and not tries[-1].instance.init
            else [t for t in tries if t.instance.failed][-1:]
        )
        if shown and shown[0].instance.code is None:
            shown = [t for t in tries[:-1] if t.instance.failed][-1:] + shown
        before = [self._excerpts.get(t.instance.id, "") for t in shown]
        ends = ["\n".join(line.text for line in t.lines) for t in shown]
        return "\n".join(text for pair in zip(before, ends, strict=True) for text in pair if text)

    # Requests.

    def tails_to_read(self, tries: Sequence[ContainerRun], now: float, *, asked: bool = False) -> list[Fetch]:
        """Requests that are due now for the ends of logs: of tries that failed since the last call, in the
        order in which they failed, and of rank 0 and peers. ``asked``: the ends are wanted even without a
        failure.
        """
        if self._logs is not None:
            self._logs.update(tries)
        self._note_last_words(tries)
        fresh = [
            instance
            for instance in tries
            if (instance.failed or instance.leaving)
            and self._asked.get(instance.id, 0) < TIMES
            and not self._is_whole(instance)
        ]
        if not fresh and not asked:
            return []
        fresh.sort(key=lambda instance: (instance.finished is None, instance.finished or 0.0, instance.rank))
        wanted = [instance for victim in fresh for instance in (victim, *_neighbours(victim, tries))]
        if asked or self._peers_at is None or now - self._peers_at >= AGAIN:
            self._peers_at = now
            wanted += self._beside(fresh, tries)
        for instance in wanted:
            if instance.message and instance.failed:
                self.logs.add_status(instance)
        chosen = _within_budget(
            {instance.id: instance for instance in wanted if not self._is_whole(instance)}.values()
        )
        last = [instance.id for instance in chosen if instance.final or instance.previous or instance.leaving]
        if last:
            self._asked = {**self._asked, **{id: self._asked.get(id, 0) + 1 for id in last}}
        return [Fetch(instance, tail=TAILS[0], proves=not instance.final) for instance in chosen]

    def _is_whole(self, instance: ContainerRun) -> bool:
        return self._logs is not None and any(
            kept.instance.id == instance.id and kept.whole for kept in self.logs.tries()
        )

    def _beside(self, victims: Sequence[ContainerRun], tries: Sequence[ContainerRun]) -> list[ContainerRun]:
        """Rank 0 and two peers, each with its last two tries."""
        hurt = {instance.member for instance in victims}
        others = list(dict.fromkeys(instance.member for instance in tries if instance.rank == 0))
        peers = [instance.member for instance in tries if instance.rank != 0 and instance.member not in hurt]
        others += list(dict.fromkeys(peers))[:PEERS]
        return [
            instance
            for member in others
            for instance in tries
            if instance.member == member and not instance.init
        ]

    def progress_to_read(
        self, tries: Sequence[ContainerRun], now: float, *, over: bool = False
    ) -> ReadPass | None:
        """The pass over rank 0's log that is due now, or None. It is due when its time has come, when the try
        that was being read has ended, and when the run is ``over``.
        """
        if self.report is None or self._reading:
            return None
        first = [instance for instance in tries if instance.rank == 0 and not instance.init]
        unread = [instance for instance in first if not self.positions.is_done(instance)]
        ended = any(not instance.running for instance in unread)
        if not (over or (unread and (ended or now >= self._progress_at))):
            return None
        self._progress_at = now + self.progress_every * (0.8 + 0.4 * self.chance())
        # Lines that were saved of deleted pods count too.
        gone = self.positions.meet(first, Selection(ranks=(0,)))
        if not unread and not gone:
            return None
        self._reading = True
        return ReadPass(self.positions, unread, gone)

    # Answers.

    def add_tail(self, fetch: Fetch, data: bytes) -> bool:
        """Add the end of a try's log, which is proven to be its own; False when it is too large and fewer
        lines must be asked for.
        """
        if len(data) >= LARGEST_TAIL and fetch.tail != TAILS[-1]:
            return False
        over = not fetch.instance.running
        parser = LogParser(whole=False)
        lines = parser.feed(data) + (parser.close() if over else [])
        stamped = [line for line in lines if not isinstance(line, LogGap)]
        whole = over and parser.refused is None
        self.logs.add(fetch.instance, stamped, cut=len(stamped) >= (fetch.tail or 0), whole=whole)
        return True

    def excerpt_to_read(self, fetch: Fetch) -> Fetch | None:
        """The request for the whole log of a failed try that is longer than its end; None: it is not read. Of
        a gang that fails together, the first members suffice.
        """
        instance = fetch.instance
        kept = next((t for t in self.logs.tries() if t.instance.id == instance.id), None)
        known = instance.id in self._excerpts or len(self._excerpts) >= EXCERPTS
        if known or kept is None or not kept.cut or not instance.failed:
            return None
        self._excerpts[instance.id] = ""
        return fetch._replace(tail=None)

    def add_excerpt(self, fetch: Fetch, excerpt: Excerpt) -> None:
        """Add the excerpt of the whole log of a try."""
        lines = excerpt.text().split("\n")
        self._excerpts[fetch.instance.id] = "\n".join(_STAMP.sub("", line) for line in lines)

    def add_capture(self, capture: PodCapture, role: PodRole) -> None:
        """Add the capture of a member's pod."""
        own = capture.tries(role)
        self._note_last_words(own)
        for ended in own:
            if ended.failed:
                self.logs.add_status(ended)
        lines = None if capture.data is None else parse_tail(capture.data)
        if lines is None:
            return  # it can still be asked for
        instance = writer_of(lines, own, settled=capture.settled)
        if (
            instance is None
            and capture.over
            and lines
            and all(is_before(lines[0].at, instance.begun) for instance in own)
        ):
            # The pod was gone before it could be looked at; its watch event said that it had failed.
            id, begun = f"{capture.pod}@{lines[0].at}", lines[0].at / SECOND
            who = (role.container, False, role.member, role.rank)
            instance = ContainerRun(id, capture.pod, "", *who, 0, False, False, True, begun, code=1)
        if instance is not None:
            whole = capture.over and instance.code is not None
            self.logs.add(instance, lines, cut=len(lines) >= TAILS[0], whole=whole)

    def add_progress(self, read_pass: ReadPass, now: float) -> None:
        """Add the lines of rank 0 that this pass has read. The rest of the pass is read soon."""
        entries = [*read_pass.ready()]
        if read_pass.wants():
            self._progress_at = now
        given = [(entry, line) for entry in entries if (line := self.positions.give_out(entry)) is not None]
        written = [
            (entry.instance.id, line.time or 0.0, self._rest_of(entry.instance.id, entry.stamped, line.text))
            for entry, line in given
            if line.gap is None and not is_answer(line.text)
        ]
        for id, (at, text) in read_pass.unfinished.items():
            if (more := self._goes_on(id, at, text, now)) is not None:
                written.append((id, *more))
        for id, group in groupby(written, key=itemgetter(0)):
            self._add_lines(id, [(at, text) for _, at, text in group])

    def _add_lines(self, id: str, lines: Sequence[tuple[float, str]]) -> None:
        """Lines of a try of rank 0, each with its time."""
        for at, _ in lines:
            if at > self.movement.since:
                self.movement = self.movement.moved(at)
        before, self._before_last_words = self._before_last_words, None
        if self.report is not None:
            self.report = apply_reports(
                before or self.report, lines, lines[-1][0], self.own, self._reader(id)
            )
        if before is not None:
            self.add_last_words()

    def _goes_on(self, id: str, at: int, text: str, now: float) -> tuple[float, str] | None:
        """The new part of a line without an end, as far as it is redrawn (``\\r``), with its time: that of
        its beginning, and what went by since that was seen. None: nothing new.
        """
        known = self._open_lines.get(id)
        if known is None or known.at != at:
            known = _OpenLine(at, 0, now)
        end = text.rfind("\r") + 1
        if end <= known.length:
            return None
        self._open_lines = {id: known._replace(length=end)}
        return at / SECOND + max(0.0, now - known.seen), text[known.length : end]

    def _rest_of(self, id: str, stamped: Stamped | None, text: str) -> str:
        """A line without what was read of it before it had an end."""
        known = self._open_lines.get(id)
        if known is None or stamped is None or stamped.at != known.at:
            return text
        left = max(0, known.length - len(text))
        self._open_lines = {id: known._replace(length=left)} if stamped.more else {}
        return text[known.length :]

    def _reader(self, id: str) -> ProgressReader:
        """The reader of what a try prints; of the newest few."""
        if id not in self._readers:
            spec = self.report.progress.expression if self.report is not None else OFF
            self._readers = {**dict([*self._readers.items()][-READERS:]), id: ProgressReader(spec)}
        return self._readers[id]

    def _note_last_words(self, tries: Iterable[ContainerRun]) -> None:
        for instance in tries:
            if instance.rank == 0 and not instance.init and instance.code == 0 and instance.message:
                self._last_words = instance

    def add_last_words(self) -> None:
        """Take the result from the status of rank 0's pod where its log could not be read to its end; the
        status has it if the script used `allaboard.inside`.
        """
        instance = self._last_words
        if instance is not None and self.report is not None and self.report.progress.result is None:
            at = instance.finished or 0.0
            lines = [(at, text) for text in instance.message.splitlines()]
            self._before_last_words = self.report
            self.report = apply_reports(self.report, lines, at, self.own, ProgressReader(OFF))

    def finish(self, read_pass: ReadPass) -> None:
        """End this pass over rank 0's log for now."""
        self._reading, self._behind = False, read_pass.stuck or bool(read_pass.wants())


def _neighbours(victim: ContainerRun, tries: Iterable[ContainerRun]) -> list[ContainerRun]:
    """The tries before and after this one, where a node still has them."""
    return [
        instance
        for instance in tries
        if (instance.uid, instance.container) == (victim.uid, victim.container)
        and abs(instance.restart - victim.restart) == 1
    ]


def _within_budget(wanted: Iterable[ContainerRun]) -> list[ContainerRun]:
    """The first tries whose reading and proof take `CALLS` requests at most."""
    chosen: list[ContainerRun] = []
    left = CALLS
    for instance in wanted:
        left -= 1 if instance.final else 2
        if left < 0:
            break
        chosen.append(instance)
    return chosen


def _must_prove(fetch: Fetch, data: bytes) -> bool:
    """True when the pod must be looked at again, to prove whose log the data are."""
    if not fetch.must_prove(data):
        return False
    first = parse_tail(data.partition(b"\n")[0])
    return not (first and is_before(first[0].at, fetch.instance.finished))


def _with_fewer_lines(fetch: Fetch) -> Fetch:
    """The same request for fewer lines."""
    return fetch._replace(tail=TAILS[TAILS.index(fetch.tail or TAILS[0]) + 1])


# --- reading ------------------------------------------------------------------------------------------------


def collect(
    api: Api,
    namespace: str | None,
    collector: EvidenceCollector,
    tries: Sequence[ContainerRun],
    *,
    over: bool = False,
    asked: bool = False,
) -> None:
    """Make the reads that are due now; returns within some 10 s, however slow the nodes are. ``over``: the
    run has ended; ``asked``: the ends are wanted even without a failure. Logs that cannot be read are left
    out.
    """
    now = time.monotonic()
    fetches = collector.tails_to_read(tries, now, asked=asked)
    if fetches:
        run_within(SECONDS, [partial(_read_end, api, namespace, collector, fetch) for fetch in fetches])
    due = collector.progress_to_read(tries, now, over=over)
    if due is not None:
        with ends_at(time.monotonic() + SECONDS):
            _read_on(api, namespace, collector, due, whole=over or asked)


def _read_end(api: Api, namespace: str | None, collector: EvidenceCollector, fetch: Fetch) -> None:
    while True:
        try:
            with api.log(fetch.instance.pod, namespace, **fetch.options) as stream:
                data = _read_tail(stream)
            if _must_prove(fetch, data) and not is_still_there(
                api.get(PODS, fetch.instance.pod, namespace), fetch.instance
            ):
                return
        except AllaboardError:
            return
        if collector.add_tail(fetch, data):
            break
        fetch = _with_fewer_lines(fetch)
    whole = collector.excerpt_to_read(fetch)
    if whole is None:
        return
    excerpt = Excerpt(tail=SHORT)
    with suppress(AllaboardError), api.log(whole.instance.pod, namespace, **whole.options) as stream:
        left = MIDDLE_OF_LOG
        for piece in stream:
            excerpt.feed(piece)
            left -= len(piece)
            if left <= 0:
                break
    collector.add_excerpt(whole, excerpt)


SHORT = 16 << 10
"""Bytes of the end of a log that is read whole: its last lines are known."""


def _read_tail(stream: Iterable[bytes]) -> bytes:
    data = bytearray()
    for piece in stream:
        data += piece
        if len(data) >= LARGEST_TAIL:
            break
    return bytes(data)


def _rounds(read_pass: ReadPass, *, whole: bool) -> Iterator[list[Fetch]]:
    """Requests of a pass, round after round. The first round may have none: then the pass gives the lines
    that are known already. ``whole``: as many rounds as there is time for.
    """
    until = time.monotonic() + ENOUGH * SECONDS
    yield read_pass.wants()
    for n in count(1):
        fetches = read_pass.wants() if whole or n < READS else []
        if not fetches or time.monotonic() > until:
            return
        yield fetches


def _read_on(
    api: Api, namespace: str | None, collector: EvidenceCollector, read_pass: ReadPass, *, whole: bool
) -> None:
    try:
        for fetches in _rounds(read_pass, whole=whole):
            for fetch in fetches:
                try:
                    reply: bytes | AllaboardError | None = fetch_answer(api, namespace, fetch)
                except AllaboardError as error:
                    reply = error
                feed_answer(read_pass, fetch, reply, always=True)
            collector.add_progress(read_pass, time.monotonic())
    finally:
        collector.finish(read_pass)

"""What a follower reads of the logs of a run while it watches: the ends of what fails, before its pods are
taken away, and the report lines of rank 0 (core/docs/contract.md, Evidence).

- When a member fails, the end of its log and of the try before are read at once, and those of rank 0 and
  two peers beside them: 32 requests and 10 s at most, 64 KiB kept of each. Clean-up, a TTL or a new pod may
  take the logs a second later.
- A row of the watch that tells of a failed pod sets off `capture_pod` at once, before the run is looked at.
- By the time that a try is asked for, the answer may be that of the next one. It is kept where its first line
  was written before the try ended, or where the pod, looked at again, still has the try in that place.
- The log of rank 0 is read on every ``progress_every`` seconds, in bounded requests, for what its report
  lines say. Runs that start together do not ask together.

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
from itertools import count
from typing import TYPE_CHECKING, Any

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
from allaboard.backends.kubernetes.logs.parsing import SECOND, LogGap, LogParser
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
"""Requests for one look at rank 0's log; what is left is read at the next. Where there may be none, as many
as go into `SECONDS`.
"""
ENOUGH = 0.8
"""The part of `SECONDS` after which no further request is made."""
TIMES = 3
"""How often the end of a try is asked for before it is given up: its node may be busy."""
_NOTHING: Mapping[str, int] = {}
EXCERPTS = 4
"""Members of a run whose logs are read whole, in one pass, where they failed."""
MIDDLE_OF_LOG = 32 << 20
"""Bytes of a log that are read for what stands before its end; a kubelet keeps 10 MiB."""
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\S+ ")


class EvidenceCollector:
    """``progress_every``: 0 reads no report lines. ``logs``: where what was read is kept; whoever prints the
    logs may share it. ``cache``: the budget of logs that are made here. ``report``: what rank 0 reported so
    far, None when its reports are not read; ``movement``: when it wrote. ``own``: the folder of the run's
    checkpoints. ``now`` is any clock that does not go back.
    """

    __slots__ = (
        "_asked", "_behind", "_cache", "_excerpts", "_last_words", "_logs", "_peers_at", "_positions",
        "_progress_at", "_reading", "chance", "movement", "own", "progress_every", "report",
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
        self.report: ProgressState | None = ProgressState() if progress_every > 0 else None
        self.movement = Movement(0.0)
        # Made when something is read: of most runs of a busy process nothing ever is.
        self._cache = cache
        self._logs, self._positions = logs, None if logs is None else ReadPositions(logs=logs)
        self._asked: Mapping[str, int] = _NOTHING  # try -> how often its end was asked for, once it was final
        # What stands before the ends of the first tries that failed; "" while it is read.
        self._excerpts: dict[str, str] = {}
        self._last_words: ContainerRun | None = None
        self._peers_at: float | None = None
        self._progress_at = 0.0
        self._reading = False
        self._behind = False

    @property
    def is_behind(self) -> bool:
        """Whether rank 0 has written what could not be read yet, and may be later."""
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
        """The end of what each member wrote that was read. Where a member has been started again since it
        failed, both tries.
        """
        if self._logs is None:
            return {}
        members = {kept.one.member for kept in self._logs.tries()}
        return {member: text for member in sorted(members) if (text := self._tail(member))}

    def wrote(self) -> dict[str, float]:
        """Member -> the time of its last line that was read, epoch seconds of its node."""
        times: dict[str, float] = {}
        for kept in self._logs.tries() if self._logs is not None else ():
            if kept.lines and not kept.from_status:
                at = kept.lines[-1].at / 1e9
                times[kept.one.member] = max(at, times.get(kept.one.member, at))
        return times

    def _tail(self, member: str) -> str:
        tries = [t for t in self.logs.tries() if t.one.member == member and t.lines]
        tries.sort(key=lambda t: (t.one.begun or 0.0, t.one.restart))
        shown = tries[-1:] if tries and not tries[-1].one.init else [t for t in tries if t.one.failed][-1:]
        if shown and shown[0].one.code is None:
            shown = [t for t in tries[:-1] if t.one.failed][-1:] + shown
        before = [self._excerpts.get(t.one.id, "") for t in shown]
        ends = ["\n".join(line.text for line in t.lines) for t in shown]
        return "\n".join(text for pair in zip(before, ends, strict=True) for text in pair if text)

    # What to read.

    def tails_to_read(self, tries: Sequence[ContainerRun], now: float, *, asked: bool = False) -> list[Fetch]:
        """The ends that must be read now: of tries that failed since the last time, in the order in which
        they did, and of those beside them. ``asked``: they are wanted in any case, failed or not.
        """
        if self._logs is not None:
            self._logs.update(tries)
        self._note_last_words(tries)
        fresh = [
            one
            for one in tries
            if (one.failed or one.leaving) and self._asked.get(one.id, 0) < TIMES and not self._is_whole(one)
        ]
        if not fresh and not asked:
            return []
        fresh.sort(key=lambda one: (one.finished is None, one.finished or 0.0, one.rank))
        wanted = [one for victim in fresh for one in (victim, *_neighbours(victim, tries))]
        if asked or self._peers_at is None or now - self._peers_at >= AGAIN:
            self._peers_at = now
            wanted += self._beside(fresh, tries)
        for one in wanted:
            if one.words and one.failed:
                self.logs.add_status(one)
        chosen = _within_budget({one.id: one for one in wanted if not self._is_whole(one)}.values())
        last = [one.id for one in chosen if one.final or one.previous or one.leaving]
        if last:
            self._asked = {**self._asked, **{id: self._asked.get(id, 0) + 1 for id in last}}
        return [Fetch(one, tail=TAILS[0], proves=not one.final) for one in chosen]

    def _is_whole(self, one: ContainerRun) -> bool:
        return self._logs is not None and any(
            kept.one.id == one.id and kept.whole for kept in self.logs.tries()
        )

    def _beside(self, victims: Sequence[ContainerRun], tries: Sequence[ContainerRun]) -> list[ContainerRun]:
        """Rank 0 and two peers, each with its last two tries."""
        hurt = {one.member for one in victims}
        others = list(dict.fromkeys(one.member for one in tries if one.rank == 0))
        peers = [one.member for one in tries if one.rank != 0 and one.member not in hurt]
        others += list(dict.fromkeys(peers))[:PEERS]
        return [one for member in others for one in tries if one.member == member and not one.init]

    def progress_to_read(
        self, tries: Sequence[ContainerRun], now: float, *, over: bool = False
    ) -> ReadPass | None:
        """The pass over rank 0's log that is due now, if one is: when its time has come, when the try that
        was being read has ended, and when the run is ``over``.
        """
        if self.report is None or self._reading:
            return None
        first = [one for one in tries if one.rank == 0 and not one.init]
        unread = [one for one in first if not self.positions.is_done(one)]
        ended = any(not one.running for one in unread)
        if not (over or (unread and (ended or now >= self._progress_at))):
            return None
        self._progress_at = now + self.progress_every * (0.8 + 0.4 * self.chance())
        # What was saved of its pods that are gone counts too.
        gone = self.positions.meet(first, Selection(ranks=(0,)))
        if not unread and not gone:
            return None
        self._reading = True
        return ReadPass(self.positions, unread, gone)

    # What came of it.

    def add_tail(self, fetch: Fetch, data: bytes) -> bool:
        """The end of a try, which surely is its own; False when it is too large and fewer lines must be asked
        for.
        """
        if len(data) >= LARGEST_TAIL and fetch.tail != TAILS[-1]:
            return False
        over = not fetch.one.running
        parser = LogParser(whole=False)
        lines = parser.feed(data) + (parser.close() if over else [])
        stamped = [line for line in lines if not isinstance(line, LogGap)]
        whole = over and parser.refused is None
        self.logs.add(fetch.one, stamped, cut=len(stamped) >= (fetch.tail or 0), whole=whole)
        return True

    def excerpt_to_read(self, fetch: Fetch) -> Fetch | None:
        """The whole log of a try that failed, of which more was written than its end; None: it is not read.
        Of a gang that fails together the first members tell.
        """
        one = fetch.one
        kept = next((t for t in self.logs.tries() if t.one.id == one.id), None)
        known = one.id in self._excerpts or len(self._excerpts) >= EXCERPTS
        if known or kept is None or not kept.cut or not one.failed:
            return None
        self._excerpts[one.id] = ""
        return fetch._replace(tail=None)

    def add_excerpt(self, fetch: Fetch, excerpt: Excerpt) -> None:
        """What is kept of the whole log of a try."""
        lines = excerpt.text().split("\n")
        self._excerpts[fetch.one.id] = "\n".join(_STAMP.sub("", line) for line in lines)

    def add_capture(self, capture: PodCapture, role: PodRole) -> None:
        """What was captured of a member's pod."""
        own = capture.tries(role)
        self._note_last_words(own)
        for ended in own:
            if ended.failed:
                self.logs.add_status(ended)
        lines = None if capture.data is None else parse_tail(capture.data)
        if lines is None:
            return  # it can still be asked for
        one = writer_of(lines, own, settled=capture.settled)
        if one is None and capture.over and lines and all(is_before(lines[0].at, one.begun) for one in own):
            # Gone before it could be looked at; that it failed is what its row said.
            id, begun = f"{capture.pod}@{lines[0].at}", lines[0].at / SECOND
            who = (role.container, False, role.member, role.rank)
            one = ContainerRun(id, capture.pod, "", *who, 0, False, False, True, begun, code=1)
        if one is not None:
            whole = capture.over and one.code is not None
            self.logs.add(one, lines, cut=len(lines) >= TAILS[0], whole=whole)

    def add_progress(self, read_pass: ReadPass, now: float) -> None:
        """Lines of rank 0 that this pass has read. What it wants besides is read soon."""
        entries = [*read_pass.ready()]
        if read_pass.wants():
            self._progress_at = now
        lines = [line for entry in entries if (line := self.positions.give_out(entry)) is not None]
        written = [(line.time, line.text) for line in lines if line.gap is None and not is_answer(line.text)]
        for at, _ in written:
            if at is not None and at > self.movement.since:
                self.movement = self.movement.moved(at)
        if self.report is not None and written:
            self.report = apply_reports(self.report, written, written[-1][0] or 0.0, self.own)

    def _note_last_words(self, tries: Iterable[ContainerRun]) -> None:
        for one in tries:
            if one.rank == 0 and not one.init and one.code == 0 and one.words:
                self._last_words = one

    def add_last_words(self) -> None:
        """Where rank 0's log could not be read to its end, the result stands in the status of its pod, if its
        script used `allaboard.inside`.
        """
        one = self._last_words
        if one is not None and self.report is not None and self.report.progress.result is None:
            at = one.finished or 0.0
            lines = [(at, text) for text in one.words.splitlines()]
            self.report = apply_reports(self.report, lines, at, self.own)

    def finish(self, read_pass: ReadPass) -> None:
        """This pass over rank 0's log is over for now."""
        self._reading, self._behind = False, read_pass.stuck or bool(read_pass.wants())


def _neighbours(victim: ContainerRun, tries: Iterable[ContainerRun]) -> list[ContainerRun]:
    """The tries before and after this one, where a node still has them."""
    return [
        one
        for one in tries
        if (one.uid, one.container) == (victim.uid, victim.container)
        and abs(one.restart - victim.restart) == 1
    ]


def _within_budget(wanted: Iterable[ContainerRun]) -> list[ContainerRun]:
    """So many of these that reading and proving takes `CALLS` requests at most."""
    chosen: list[ContainerRun] = []
    left = CALLS
    for one in wanted:
        left -= 1 if one.final else 2
        if left < 0:
            break
        chosen.append(one)
    return chosen


def _must_prove(fetch: Fetch, data: bytes) -> bool:
    """Whether its pod must be looked at again."""
    if not fetch.must_prove(data):
        return False
    first = parse_tail(data.partition(b"\n")[0])
    return not (first and is_before(first[0].at, fetch.one.finished))


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
    """Read what must be read now; returns within some 10 s, whatever the nodes do. ``over``: the run has
    ended; ``asked``: the ends are wanted in any case. What cannot be read is left out.
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
            with api.log(fetch.one.pod, namespace, **fetch.options) as stream:
                data = _read_tail(stream)
            if _must_prove(fetch, data) and not is_still_there(
                api.get(PODS, fetch.one.pod, namespace), fetch.one
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
    with suppress(AllaboardError), api.log(whole.one.pod, namespace, **whole.options) as stream:
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
    """What a pass wants, time after time; at first maybe nothing, for what is known already is said then.
    ``whole``: as often as there is time for.
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

"""Reads from a run's backend what its page shows.

A page names what could not be read. Rank 0's output is read once, from the first line to the last, and a page
that is shown again reads on from there; only its reports and its last lines are kept in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from allaboard.backends.base import Backend, Cursor, LogLine, Selection
from allaboard.errors import AllaboardError
from allaboard.follow.loop import Outcome
from allaboard.job.training_job import TrainingJob
from allaboard.report import words
from allaboard.report.history import History
from allaboard.report.page_data import LAST_LINES, LinesOfTry, Readings, Try
from allaboard.runs.observation import MemberSeen
from allaboard.text.printable import last_state
from allaboard.text.reportline import PREFIX, decode

T = TypeVar("T")
_LONGEST = 64 << 10
"""Characters of a line of output that are held."""
MOST_TRIES = 1000
MOST_TRIES_TOLD = 4
"""The newest tries of rank 0 whose last lines are kept."""


def read_run(
    backend: Backend, outcome: Outcome, secrets: Sequence[str] = (), rank0: Rank0Output | None = None
) -> Readings:
    """What a page shows of a run, over all attempts. ``secrets``: values that the page must not show.
    ``rank0``: its output where it was read already; else it is read here. Raises no AllaboardError: what
    cannot be read is a gap.
    """
    lines: dict[str, Sequence[str]] = {}
    seen = outcome.seen
    if rank0 is None:
        rank0 = Rank0Output()
        rank0.read(backend, seen.run, seen.attempt)
    gaps = rank0.gaps
    first = next((m for m in seen.members if m.rank == 0), None)
    if first is not None and rank0.last_lines:
        lines[first.name] = [*rank0.last_lines]
    earlier = {} if first is None else {first.name: rank0.earlier_lines}
    failing = words.first_failing(outcome) if not outcome.ok else None
    if failing is not None and failing.name not in lines:
        lines[failing.name] = _last_lines_of(backend, outcome, failing, gaps)
    events = _read_or_note_gap(lambda: tuple(backend.events(seen.run)), "its events", gaps, seen.events)
    for member in seen.members:
        if member.name not in lines and (kept := words.tail(outcome, member, LAST_LINES)):
            lines[member.name] = [last_state(line) for line in kept]
    return Readings(rank0.history, lines, events, secrets, gaps, rank0.tries, earlier)


def job_of(backend: Backend, run: str) -> TrainingJob | None:
    """The job as its author set it; None for a job of others, and where it cannot be read any more."""
    try:
        spec = backend.started_with(run).spec
        return TrainingJob(**spec) if spec else None
    except (AllaboardError, TypeError):  # TypeError: a field of a newer release
        return None


class Rank0Output:
    """What rank 0 wrote over all attempts, as far as it was read: its reports as a history, when each of its
    tries wrote, and the last lines of each that are no reports. What it is asked for again, it reads from
    where it stopped; memory is bounded.
    """

    def __init__(self) -> None:
        self.history = History()
        self._lines: dict[tuple[int, int], deque[str]] = {}
        self._tries: dict[tuple[int, int], Try] = {}
        self._cursors: dict[int, Cursor] = {}
        self._gaps: dict[int, str] = {}
        self._left_out: list[str] = []
        self._newest = 0

    @property
    def tries(self) -> list[Try]:
        return [*self._tries.values()]

    @property
    def last_lines(self) -> list[str]:
        """Those of the newest try of the newest attempt; empty where that wrote none, whatever others did."""
        return [*self._lines.get(self._newest_try, ())]

    @property
    def earlier_lines(self) -> list[LinesOfTry]:
        """Those of the tries before, the newest first."""
        before = sorted(
            (of for of, kept in self._lines.items() if kept and of < self._newest_try), reverse=True
        )
        return [LinesOfTry(*of, [*self._lines[of]]) for of in before]

    @property
    def _newest_try(self) -> tuple[int, int]:
        return max((of for of in self._lines if of[0] == self._newest), default=(self._newest, 0))

    @property
    def gaps(self) -> list[str]:
        return [*self._left_out, *self._gaps.values()]

    @property
    def can_go_on(self) -> bool:
        """Whether `read` may be called again: what broke off may have been taken in part."""
        return not self._gaps

    def read(self, backend: Backend, run: str, attempt: int, tail: int | None = None) -> None:
        """Read what came since, up to this attempt. ``tail``: at first, read no more than so many of the last
        lines of this attempt. An attempt that cannot be read is a gap.
        """
        if tail is not None:
            self._newest = attempt
            words = f"only the last {tail:,} lines that rank 0 wrote in attempt {attempt} were read"
            self._left_out = [f"{words}; `allaboard report` on the command line reads all"]
        for each in range(max(1, self._newest), attempt + 1):
            self._newest = each
            try:
                self._read_attempt(backend, run, each, tail)
            except AllaboardError as error:  # an attempt whose logs are gone
                self._gaps[each] = f"what rank 0 wrote in attempt {each} cannot be read: {error}"

    def _read_attempt(self, backend: Backend, run: str, attempt: int, tail: int | None) -> None:
        selection = Selection(ranks=(0,), attempt=attempt, tail=tail)
        items = backend.logs(run, selection, self._cursors.get(attempt))
        for line in _whole_lines(self._noting_cursor(items, attempt)):
            self._take(line, attempt)

    def _noting_cursor(self, items: Iterator[LogLine | Cursor], attempt: int) -> Iterator[LogLine]:
        for item in items:
            if isinstance(item, LogLine):
                yield item
            else:
                self._cursors[attempt] = item

    def _take(self, line: LogLine, attempt: int) -> None:
        of_try = attempt, line.restart
        if line.time is not None:
            if of_try not in self._tries and len(self._tries) < MOST_TRIES:
                self._tries[of_try] = Try(*of_try, line.time, line.time)
            if of_try in self._tries:
                self._tries[of_try].ended = line.time
        if of_try not in self._lines:
            self._lines[of_try] = deque(maxlen=LAST_LINES)
            for old in sorted(self._lines)[:-MOST_TRIES_TOLD]:
                del self._lines[old]
        report = decode(line.text) if PREFIX in line.text else None
        if report is not None:
            self.history.add(report, line.time)
        else:
            kept = self._lines.get(of_try)
            if kept is not None:  # an older try than those that are told
                kept.append(last_state(line.text)[:_LONGEST])


def _whole_lines(items: Iterable[LogLine | Cursor]) -> Iterator[LogLine]:
    """The lines, each in one piece as far as a report may be long; init containers' are left out."""
    pending, last = "", None
    for item in items:
        if not isinstance(item, LogLine) or item.container:
            continue
        if not item.more and not pending and len(item.text) <= 2 * _LONGEST:
            yield item
            continue
        last = item
        pending += item.text[: max(0, 2 * _LONGEST - len(pending))]
        if not item.more:
            yield item._replace(text=pending)
            pending = ""
    if pending and last is not None:
        yield last._replace(text=pending)


def _last_lines_of(backend: Backend, outcome: Outcome, member: MemberSeen, gaps: list[str]) -> list[str]:
    """The last lines of a member: from the stored evidence, else read now."""
    last_lines = words.tail(outcome, member, LAST_LINES)
    if last_lines:
        return [last_state(line) for line in last_lines]
    selection = Selection(members=(member.name,), attempt=outcome.seen.attempt, tail=LAST_LINES)
    read = _read_or_note_gap(
        lambda: [line.text for line in _whole_lines(backend.logs(outcome.run, selection))],
        f"what {member.name} wrote",
        gaps,
        [""],
    )
    return [last_state(line) for line in read if line]


def _read_or_note_gap(ask: Callable[[], T], what: str, gaps: list[str], otherwise: T) -> T:
    try:
        return ask()
    except AllaboardError as error:
        gaps.append(f"{what} cannot be read: {error}")
        return otherwise

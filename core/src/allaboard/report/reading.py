"""Reads from a run's backend what its page shows.

A page names what could not be read. Rank 0's output is read once, from the first line to the last; only its
reports and its last lines are kept in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from allaboard.backends.base import Backend, LogLine, Selection
from allaboard.errors import AllaboardError
from allaboard.follow.loop import Outcome
from allaboard.observation import MemberSeen
from allaboard.printable import last_state
from allaboard.report import words
from allaboard.report.history import History
from allaboard.report.page_data import LAST_LINES, Readings, Try
from allaboard.reportline import PREFIX, decode
from allaboard.spec.job import TrainingJob

T = TypeVar("T")
_LONGEST = 64 << 10
"""Characters of a line of output that are held."""
MOST_TRIES = 1000


def read_run(backend: Backend, outcome: Outcome, secrets: Sequence[str] = ()) -> Readings:
    """What a page shows of a run, over all attempts. ``secrets``: values that the page must not show. Raises
    no AllaboardError: what cannot be read is a gap.
    """
    gaps: list[str] = []
    lines: dict[str, Sequence[str]] = {}
    seen = outcome.seen
    history, tries, ends = _read_rank0(backend, outcome, gaps)
    first = next((m for m in seen.members if m.rank == 0), None)
    if first is not None and ends:
        lines[first.name] = ends
    failing = words.first_failing(outcome) if not outcome.ok else None
    if failing is not None and failing.name not in lines:
        lines[failing.name] = _last_lines_of(backend, outcome, failing, gaps)
    events = _read_or_note_gap(lambda: tuple(backend.events(seen.run)), "its events", gaps, seen.events)
    for member in seen.members:
        if member.name not in lines and (kept := words.tail(outcome, member, LAST_LINES)):
            lines[member.name] = [last_state(line) for line in kept]
    return Readings(history, lines, events, secrets, gaps, tries)


def job_of(backend: Backend, run: str) -> TrainingJob | None:
    """The job as its author set it; None for a job of others, and where it cannot be read any more."""
    try:
        spec = backend.started_with(run).spec
        return TrainingJob(**spec) if spec else None
    except (AllaboardError, TypeError):  # TypeError: a field of a newer release
        return None


def _read_rank0(backend: Backend, outcome: Outcome, gaps: list[str]) -> tuple[History, list[Try], list[str]]:
    """The reports of rank 0 over all attempts, when each of its tries wrote, and its last lines that are no
    reports.
    """
    seen, history = outcome.seen, History()
    tries: dict[tuple[int, int], Try] = {}
    ends: deque[str] = deque(maxlen=LAST_LINES)
    for attempt in range(1, seen.attempt + 1):
        try:
            for line in _whole_lines(backend, seen.run, Selection(ranks=(0,), attempt=attempt)):
                if line.time is not None and (attempt, line.restart) not in tries and len(tries) < MOST_TRIES:
                    tries[attempt, line.restart] = Try(attempt, line.restart, line.time, line.time)
                if line.time is not None and (attempt, line.restart) in tries:
                    tries[attempt, line.restart].ended = line.time
                report = decode(line.text) if PREFIX in line.text else None
                if report is not None:
                    history.add(report, line.time)
                else:
                    ends.append(last_state(line.text)[:_LONGEST])
        except AllaboardError as error:  # an attempt whose logs are gone
            gaps.append(f"what rank 0 wrote in attempt {attempt} cannot be read: {error}")
    return history, [*tries.values()], [*ends]


def _whole_lines(backend: Backend, run: str, selection: Selection) -> Iterator[LogLine]:
    """The lines, each in one piece as far as a report may be long; init containers' are left out."""
    pending, last = "", None
    for item in backend.logs(run, selection):
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
        lambda: [line.text for line in _whole_lines(backend, outcome.run, selection)],
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

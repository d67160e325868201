"""Reads from a run's backend what its page shows.

A page names what could not be read. Rank 0's output is read by `allaboard.report.output` once, from the first
line to the last, and a page that is shown again reads on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from allaboard.backends.base import Backend, Selection
from allaboard.checkpoints import list_checkpoints
from allaboard.checkpoints.foreign.adopting import report_fields
from allaboard.errors import AllaboardError
from allaboard.follow.loop import Outcome
from allaboard.job.training_job import TrainingJob
from allaboard.report import phrases
from allaboard.report.output import OutputReader, last_lines_of
from allaboard.report.page_data import LAST_LINES, Readings
from allaboard.runs.observation import MemberSeen
from allaboard.storage import open_store
from allaboard.text.printable import last_state
from allaboard.text.reportline import Report
from allaboard.text.units import from_rfc3339

T = TypeVar("T")
Adopted = tuple[Report, float | None]
"""A checkpoint as a report, and when it was written."""


def read_run(
    backend: Backend, outcome: Outcome, secrets: Sequence[str] = (), rank0: OutputReader | None = None
) -> Readings:
    """The readings that a page shows of a run, over all attempts. ``secrets``: values that the page must not
    show. ``rank0``: its output if it was read already; else it is read here. Raises no AllaboardError: a part
    that cannot be read is a gap.
    """
    lines: dict[str, Sequence[str]] = {}
    seen = outcome.seen
    if rank0 is None:
        rank0 = OutputReader(progress=seen.progress.expression)
        rank0.read_all(backend, seen.run, seen.attempt)
    gaps = rank0.gaps
    first = next((m for m in seen.members if m.rank == 0), None)
    if first is not None and rank0.last_lines:
        lines[first.name] = [*rank0.last_lines]
    earlier = {} if first is None else {first.name: rank0.earlier_lines}
    failing = phrases.first_failing(outcome) if not outcome.ok else None
    if failing is not None and failing.name not in lines:
        lines[failing.name] = _last_lines_of(backend, outcome, failing, gaps)
    events = _read_or_note_gap(lambda: tuple(backend.events(seen.run)), "its events", gaps, seen.events)
    adopted: list[Adopted] = []
    for report, time in _read_or_note_gap(
        lambda: _adopted(backend, seen.run), "its checkpoints", gaps, adopted
    ):
        rank0.history.add(report, time)
    for member in seen.members:
        if member.name not in lines and (kept := phrases.tail(outcome, member, LAST_LINES)):
            lines[member.name] = [last_state(line) for line in kept]
    return Readings(rank0.history, lines, events, secrets, gaps, rank0.tries, earlier)


def _adopted(backend: Backend, run: str) -> list[Adopted]:
    """The checkpoints of other libraries as a script would have reported them, with times. One that knows
    nothing of allaboard reports none.
    """
    job = job_of(backend, run)
    saving = (job.get("checkpoints") if job is not None else None) or {}
    uri = backend.saving(run) if saving.keys() & {"format", "folder"} else None
    if uri is None:
        return []
    return [
        (Report("checkpoint", report_fields(item)), from_rfc3339(item.manifest.created))
        for item in list_checkpoints(open_store(uri))
        if item.manifest.format is not None
    ]


def job_of(backend: Backend, run: str) -> TrainingJob | None:
    """The job as its author set it; None for a job of others, and where it cannot be read any more."""
    try:
        spec = backend.started_with(run).spec
        return TrainingJob(**spec) if spec else None
    except (AllaboardError, TypeError):  # TypeError: a field of a newer release
        return None


def _last_lines_of(backend: Backend, outcome: Outcome, member: MemberSeen, gaps: list[str]) -> list[str]:
    """The last lines of a member: from the stored evidence, else read now."""
    last_lines = phrases.tail(outcome, member, LAST_LINES)
    if last_lines:
        return [last_state(line) for line in last_lines]
    whose = Selection(members=(member.name,))
    return _read_or_note_gap(
        lambda: last_lines_of(backend, outcome.run, whose, outcome.seen.attempt),
        f"what {member.name} wrote",
        gaps,
        [],
    )


def _read_or_note_gap(ask: Callable[[], T], part: str, gaps: list[str], otherwise: T) -> T:
    try:
        return ask()
    except AllaboardError as error:
        gaps.append(f"{part} cannot be read: {error}")
        return otherwise

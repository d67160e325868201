"""Looks up the last run of the same job that succeeded, for what is different since then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from allaboard.backends.base import Backend, LogLine, Selection
from allaboard.diagnosis.last_good import RanWith, SinceLastGood, changes_since, images_of, new_lines
from allaboard.errors import AllaboardError
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of

MOST_LOG_LINES = 20_000
"""Last lines of the good run that are compared."""
_BAD = (State.FAILED, State.LOST, State.TIMED_OUT)


def since_last_good(
    backend: Backend, seen: Observation, among: Callable[[Observation], bool] = lambda run: True
) -> SinceLastGood | None:
    """The differences from the last run of the same job that succeeded; None: this run does well, there is no
    such run, or it cannot be read any more. ``among``: the runs that may be compared with, for readers who
    may not see all.
    """
    since = changes_since_last_good(backend, seen, among)
    if since is None:
        return None
    with suppress(AllaboardError):  # its logs may be gone
        logs = backend.logs(since.run, Selection(tail=MOST_LOG_LINES))
        known = [line.text for line in logs if isinstance(line, LogLine)]
        lines = new_lines(known, {name: tail.split("\n") for name, tail in seen.tails.items()})
        return replace(since, lines=lines)
    return since


def changes_since_last_good(
    backend: Backend, seen: Observation, among: Callable[[Observation], bool] = lambda run: True
) -> SinceLastGood | None:
    """The same without the lines: no log is read."""
    if not seen.job or state_of(seen) not in _BAD:
        return None
    begun = seen.created or 0.0
    try:
        runs = [r for r in backend.list() if r.job == seen.job and state_of(r) is State.SUCCEEDED]
        others = [r for r in runs if r.run != seen.run and among(r)]
        earlier = [r for r in others if (r.finished or r.created or 0.0) <= begun]
        if not earlier:
            return None
        good = max(earlier, key=lambda r: r.finished or r.created or 0.0)
        changes = changes_since(_ran_with(backend, good), _ran_with(backend, seen))
    except AllaboardError:
        return None
    return SinceLastGood(good.run, good.finished, changes)


def last_good_line(backend: Backend, seen: Observation) -> str:
    """One line on the changes since the last good run, for below the reason of a failure; empty: nothing
    changed, or nothing is known.
    """
    since = changes_since_last_good(backend, seen)
    return "" if since is None else since.headline


def _ran_with(backend: Backend, seen: Observation) -> RanWith:
    started = backend.started_with(seen.run)
    return RanWith(started.spec, started.code, seen.progress.inputs, images_of(seen.members))

"""The run that a sensor waits for: looked up by name or by key, and told apart from an earlier one."""

from __future__ import annotations

from typing import Any

from allaboard.errors import UnknownRun
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of


def find_run(backend: Any, run: str | None, key: str | None) -> Any:
    """The observation of a run, by ``key`` if there is one, else by name. None when there is no such run yet.
    Raises UnknownRun for a prefix of several runs.
    """
    if key:
        return next((seen for seen in backend.list() if seen.key == key), None)
    try:
        return backend.observe(run)
    except UnknownRun:
        if any(seen.run.startswith(run) for seen in backend.list() if run):
            raise  # waiting does not make the prefix unique
        return None


async def afind_run(backend: Any, run: str | None, key: str | None) -> Any:
    """As `find_run`, with an async backend."""
    if key:
        return next((seen for seen in await backend.list() if seen.key == key), None)
    try:
        return await backend.observe(run)
    except UnknownRun:
        if any(seen.run.startswith(run) for seen in await backend.list() if run):
            raise
        return None


def since_of(seen: Observation, run: str | None, since: float | None, of_ids: bool) -> float | None:
    """The moment before which an end does not count, for a run that was looked up as ``run``. A run's own id
    means that very run, whenever it ended, unless ``of_ids``.
    """
    by_id = bool(run) and run != seen.job
    return None if by_id and not of_ids else since


def ended_before(seen: Observation, since: float | None) -> bool:
    """Return whether the run ended before that moment. A run without a known end counts from its creation."""
    ended = seen.finished or seen.created
    return since is not None and state_of(seen).is_final and ended is not None and ended < since

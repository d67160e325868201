"""Stopping a deferred run that is still ours.

Three processes may come to stop the run of a deferred task that a person ended: the trigger's ``on_kill``,
the listener in the API server (when no triggerer watched yet), and a new try of the task. The first one to
change the owner, by compare-and-swap, stops the run; the others see another owner and leave it alone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from allaboard.backends.base import Backend, Handle
from allaboard.errors import OwnershipConflict, UnknownRun
from allaboard.runs.observation import Observation
from allaboard_provider.identity import in_triggerer, stopping

if TYPE_CHECKING:
    from allaboard_provider.triggers.backends import TriggerBackend

BY = "airflow"


def stop_deferred(backend: Backend, handle: Handle, ti_id: str, reason: str) -> bool:
    """Stop this attempt if it still runs and belongs to this try in its deferred phase. True if it did. One
    that has ended by itself is left to the worker, which may be about to take it back.
    """
    return backend.stop_from(handle, in_triggerer(ti_id), stopping(ti_id), BY, reason)


def expect_no_further_try(backend: Backend, seen: Observation) -> None:
    """Mark a run that a worker follows, or followed until it was killed, as one without a further try: it
    counts as attached, and is stopped when nobody follows it for some minutes. A worker that still follows
    notices no change.
    """
    owner = seen.owner
    if owner is None or (owner.phase, owner.kind) != ("worker", "orchestrated") or seen.uid is None:
        return
    with suppress(OwnershipConflict, UnknownRun):
        handle = Handle(seen.run, seen.attempt, seen.generation, seen.uid)
        backend.adopt(handle, owner, replace(owner, kind="attached"))


async def astop_deferred(backend: TriggerBackend, handle: Handle, ti_id: str, reason: str) -> bool:
    """As `stop_deferred`, of a backend that is awaited."""
    return await backend.stop_from(handle, in_triggerer(ti_id), stopping(ti_id), BY, reason)

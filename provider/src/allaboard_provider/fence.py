"""Stopping a deferred run, and nobody else's.

Three can come to stop the run of a deferred task that a person ended: the trigger's ``on_kill``, the listener
in the API server (no triggerer had begun to watch), and a new try of the task. Whoever changes the owner
first, by compare-and-swap, does it; the others see another owner and leave it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allaboard.backends.base import Backend, Handle, Stopped
from allaboard.errors import Conflict, UnknownRun
from allaboard_provider.identity import in_triggerer, stopping

if TYPE_CHECKING:
    from allaboard_provider.triggers.watching import Watched

BY = "airflow"


def stop_deferred(backend: Backend, handle: Handle, ti_id: str, reason: str) -> bool:
    """Stop this attempt if it still belongs to this try in its deferred phase. True when it did."""
    ended = stopping(ti_id)
    try:
        backend.adopt(handle, in_triggerer(ti_id), ended)
    except (Conflict, UnknownRun):
        return False
    return isinstance(backend.stop(handle, ended, BY, reason), Stopped)


async def astop_deferred(backend: Watched, handle: Handle, ti_id: str, reason: str) -> bool:
    """The same, awaited."""
    ended = stopping(ti_id)
    try:
        await backend.adopt(handle, in_triggerer(ti_id), ended)
    except (Conflict, UnknownRun):
        return False
    return isinstance(await backend.stop(handle, ended, BY, reason), Stopped)

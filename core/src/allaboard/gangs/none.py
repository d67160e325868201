"""No gang scheduler: the default scheduler places pods one by one.

The trap: a gang too large for what is free starts in part. Members that found a place hold it and idle in the
rendezvous, the others wait, and two such gangs can wait for each other for ever. So the module reports it as
soon as it is visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allaboard.gangs import placement
from allaboard.gangs.base import GangPlan, GangView

NAME = "none"
TITLE = "the default scheduler"
KINDS: tuple[str, ...] = ()
COMPOSITE: tuple[str, ...] = ()
NAMED_BY: str | None = None
SCHEDULER: str | None = None
AUTO: int | None = 1000  # when there is nothing else
POD_FIELD: str | None = None
UNDERSTANDS: frozenset[str] = frozenset()
REFUSES: Mapping[str, str] = {}
REFUSES_DOMAIN: str | None = None


def marks(plan: GangPlan, role: str) -> Mapping[str, Any]:
    return {}


def objects(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    return ()


def read(view: GangView) -> str | None:
    """Return why members have no place. A gang that started in part is reported as such."""
    at = placement.gang_places(view)
    if at.placed >= view.needed:
        return None
    if sentence := placement.gated_reason(view, at) or placement.unnoticed_reason(view, at):
        return sentence
    reason = placement.scheduler_message(view)
    if not at.waiting:
        return None
    if at.held:
        rest = f"{len(at.waiting)} {'has' if len(at.waiting) == 1 else 'have'} none"
        suffix = f" ({reason})" if reason else ""
        idle = f"{len(at.held)} of {view.total} members hold places and idle, because {rest}{suffix}; "
        if rivals := placement.stuck_rivals(view):
            return f"{idle}{_names(rivals)} the same way, and they wait for each other for ever"
        return f"{idle}without a gang scheduler these places are not taken back"
    total = placement.count_members(view.total)
    return f"{len(at.waiting)} of {total} wait for a place: {reason or 'no node fits'}"


def _names(runs: Sequence[str]) -> str:
    """``digits-1 is stuck``, ``a, b and 3 more are stuck``."""
    if len(runs) == 1:
        return f"{runs[0]} is stuck"
    shown = ", ".join(runs[:2])
    return f"{shown} and {len(runs) - 2} more are stuck" if len(runs) > 2 else f"{shown} are stuck"

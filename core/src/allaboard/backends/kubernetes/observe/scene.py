"""What is looked at to tell what keeps members from starting. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.runs.observation import EventSeen, PodSeen

Json = Mapping[str, Any]
PATIENCE = 600.0
"""Seconds for which a run that can never start is left alone where its job has no clock for the phase."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is looked at. ``container``: the one that trains; ``pods``: of each member that has one, in rank
    order; ``events``: of the job and these pods; ``nodes``: None when they are not known; ``specs``: of the
    pods, with which nodes that are known are compared; ``total``: members in all.
    """

    job: Json
    container: str
    pods: Mapping[str, PodSeen]
    now: float
    total: int
    needed: int
    events: Sequence[EventSeen] = ()
    nodes: Sequence[Node] | None = None
    has_status: bool = True
    suspended: bool = False
    specs: Mapping[str, Json] = field(default_factory=dict)


def refusal(events: Sequence[EventSeen]) -> str | None:
    """What the API server said last when the operator made a pod."""
    refusals = [e for e in events if e.reason in ("FailedCreatePod", "FailedCreate")]
    made = [e for e in events if e.reason in ("SuccessfulCreatePod", "SuccessfulCreate")]
    newest = max(refusals, key=lambda e: e.time or 0.0, default=None)
    if newest is None or any((e.time or 0.0) > (newest.time or 0.0) for e in made):
        return None
    return newest.message.strip()

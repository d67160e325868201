"""Input of the search for obstacles to a start. Values only."""

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
    """Objects of a run that does not start. ``container``: the name of the container that trains; ``pods``:
    member -> its pod, in rank order; ``events``: those of the job and these pods; ``nodes``: None when they
    are not known; ``specs``: those of the pods, which are compared with the nodes; ``total``: the number of
    all members.
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
    """The last refusal of a pod by the API server; None where a later pod was made."""
    refusals = [e for e in events if e.reason in ("FailedCreatePod", "FailedCreate")]
    made = [e for e in events if e.reason in ("SuccessfulCreatePod", "SuccessfulCreate")]
    newest = max(refusals, key=lambda e: e.time or 0.0, default=None)
    if newest is None or any((e.time or 0.0) > (newest.time or 0.0) for e in made):
        return None
    return newest.message.strip()

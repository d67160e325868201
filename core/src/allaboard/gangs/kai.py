"""KAI Scheduler: its pod-grouper makes the PodGroup of a job, by the kind of the job, and names it on every
member.

Read from KAI 0.13: pkg/podgrouper/podgrouper/hub and plugins (kubeflow, jobset, skiptopowner),
pkg/apis/scheduling/v2alpha2/podgroup_types.go, pkg/scheduler/cache/status_updater.

- A kind that the pod-grouper does not know is no gang: each of its pods is a group of its own.
- All members that a job asks for must have a place. Of an elastic PyTorchJob the least number is enough.
- Members of a JobSet are one gang only where its ``startupPolicy`` is AnyOrder; otherwise each replicated job
  is one, and one could have its place without the other.
- A queue is a leaf of its tree of queues. A job that names none is in ``default-queue``, which may not be
  there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allaboard.gangs import placement
from allaboard.gangs.base import GangPlan, GangView

NAME = "kai"
TITLE = "KAI Scheduler"
KINDS: tuple[str, ...] = ("scheduling.run.ai/v2alpha2/PodGroup",)
COMPOSITE: tuple[str, ...] = ()
NAMED_BY: str | None = "pod-group-name"
SCHEDULER: str | None = "kai-scheduler"
AUTO: int | None = 25
POD_FIELD: str | None = None
UNDERSTANDS = frozenset({"queue"})
_UNKNOWN = "KAI's pod-grouper knows no {}: each member would be a gang of its own"
REFUSES: Mapping[str, str] = {
    "paddlejob": _UNKNOWN.format("PaddleJob"),
    "mxjob": _UNKNOWN.format("MXJob"),
}
REFUSES_DOMAIN: str | None = None
QUEUE = "kai.scheduler/queue"
"""Label of a member that names its queue."""
DEFAULT_QUEUE = "default-queue"
_OF_QUEUE = frozenset({"NonPreemptibleOverQuota", "OverLimit", "QueueDoesNotExist"})
"""Reasons that are its queue's, and not those of nodes."""
_LONGEST = 300


def marks(plan: GangPlan, role: str) -> Mapping[str, Any]:
    labels = {"metadata": {"labels": {QUEUE: plan.queue}}} if plan.queue is not None else {}
    return {**labels, "spec": {"schedulerName": plan.scheduler}}


def objects(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    """None: the pod-grouper makes the PodGroup."""
    return ()


def read(view: GangView) -> str | None:
    at = placement.gang_places(view)
    if words := placement.cannot_rejoin_reason(view, at, TITLE):
        return words
    if at.placed >= view.needed:
        return None
    if words := placement.gated_reason(view, at) or _by_queue(view):
        return words
    if at.silent and not at.waiting and not at.placed:
        return placement.unnoticed_reason(view, at)
    if not at.waiting:
        return None
    reason = placement.scheduler_message(view) or "no node fits"
    half = f"; {len(at.held)} hold places already" if at.held else ""
    return f"KAI Scheduler finds no {view.needed} places together{_in_queue(view)}: {reason}{half}"


def _by_queue(view: GangView) -> str | None:
    """Why its queue does not let it in, by the condition of its PodGroup."""
    status = (view.groups[0].get("status") or {}) if view.groups else {}
    said = [
        reason
        for condition in status.get("schedulingConditions") or ()
        if condition.get("status") != "False"
        for reason in condition.get("reasons") or ()
        if reason.get("reason") in _OF_QUEUE
    ]
    if not said:
        return None
    if said[0]["reason"] == "QueueDoesNotExist":
        return f"KAI Scheduler does not let the gang in: there is no queue {_queue(view)}"
    words = " ".join(str(said[0].get("message") or said[0]["reason"]).split()).rstrip(".")
    return f"KAI Scheduler does not let the gang into queue {_queue(view)}: {words[:_LONGEST]}"


def _queue(view: GangView) -> str:
    spec = (view.groups[0].get("spec") or {}) if view.groups else {}
    return str(spec.get("queue") or DEFAULT_QUEUE)


def _in_queue(view: GangView) -> str:
    """`` in queue research``; nothing where the PodGroup is not known."""
    return f" in queue {_queue(view)}" if view.groups else ""

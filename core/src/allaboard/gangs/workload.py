"""kube-scheduler's own gang scheduling (KEP 4671): a PodGroup of ours, which every member names in its spec.

Read from Kubernetes 1.36 and 1.37: api/scheduling/v1alpha2 and v1beta1 (types.go),
pkg/scheduler/schedule_one_podgroup.go, plugins/gangscheduling. It is there when the API server was started
with the gate GenericWorkload, and in 1.36 with GangScheduling; whether the scheduler was too cannot be asked.

In v1beta1 a PodGroup has a priority of its own, by which gangs take places from each other, and says that its
pods lose their places together: a gang that lost one member would hold the other places for nothing. In
v1alpha2 both have gates of their own, and its priority is that of its pods.

The PodGroup stands alone. One that refers to a Workload is refused until that exists, also in a dry run, and
the scheduler reads nothing from it. Pods wait without an event or a condition until the PodGroup and minCount
of them exist; then all are tried in one cycle, and those that fit are told that they wait for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allaboard.gangs import placement
from allaboard.gangs.base import GangPlan, GangView

NAME = "workload"
TITLE = "kube-scheduler's own gang scheduling"
BETA = "scheduling.k8s.io/v1beta1/PodGroup"
KINDS: tuple[str, ...] = (BETA, "scheduling.k8s.io/v1alpha2/PodGroup")
NAMED_BY: str | None = None
SCHEDULER: str | None = None
AUTO: int | None = 30
POD_FIELD: str | None = "schedulingGroup"
UNDERSTANDS: frozenset[str] = frozenset()
REFUSES: Mapping[str, str] = {}


def marks(plan: GangPlan, role: str) -> Mapping[str, Any]:
    return {"spec": {"schedulingGroup": {"podGroupName": plan.name}}}


def objects(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    """One PodGroup."""
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": plan.members}}}
    if plan.kind == BETA and plan.members == plan.total:
        spec["disruptionMode"] = {"all": {}}
    if plan.kind == BETA and plan.priority is not None:
        spec["priorityClassName"] = plan.priority
    return (
        {
            "apiVersion": plan.kind.rpartition("/")[0],
            "kind": "PodGroup",
            "metadata": {"name": plan.name, "namespace": plan.namespace},
            "spec": spec,
        },
    )


def read(view: GangView) -> str | None:
    at = placement.gang_places(view)
    if words := placement.cannot_rejoin_reason(view, at, "kube-scheduler"):
        return words
    if at.placed >= view.needed:
        return None
    if words := placement.gated_reason(view, at):
        return words
    if at.silent and not at.waiting and not at.placed:
        return _silent_reason(view) or placement.unnoticed_reason(view, at)
    if not at.waiting:
        return None
    reason = placement.scheduler_message(view) or "no node fits"
    half = f"; {len(at.held)} hold places already" if at.held else ""
    return f"kube-scheduler finds no {view.needed} places together: {reason}{half}"


def _silent_reason(view: GangView) -> str | None:
    """Why the scheduler has not begun: it says nothing about that itself."""
    if not view.groups:
        return "the PodGroup of this gang is not there, and kube-scheduler waits for it; was it deleted?"
    if len(view.pods) < view.needed:
        return f"kube-scheduler waits until {view.needed} members exist; so far {len(view.pods)}"
    return None

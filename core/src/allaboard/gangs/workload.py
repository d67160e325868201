"""kube-scheduler's own gang scheduling (KEP 4671): a PodGroup of ours, which every member names in its spec.

Read from Kubernetes 1.36 and 1.37: api/scheduling/v1alpha2 and v1beta1 (types.go),
pkg/scheduler/schedule_one_podgroup.go, plugins/gangscheduling. It is there when the API server was started
with the gate GenericWorkload, and in 1.36 with GangScheduling; whether the scheduler was too cannot be asked.

In v1beta1 a PodGroup has a priority of its own, by which gangs take places from each other, and says that its
pods lose their places together: a gang that lost one member would hold the other places for nothing. In
v1alpha2 both have gates of their own, and its priority is that of its pods.

The PodGroup stands alone. One that refers to a Workload is refused by 1.36 until that exists, also in a dry
run, and the scheduler reads nothing from it. Pods wait without an event or a condition until the PodGroup and
minCount of them exist; then all are tried in one cycle, and those that fit are told that they wait for the
rest.

CompositePodGroup (api/scheduling/v1alpha3, served by 1.37 behind a gate of its own) is taken where one
PodGroup cannot say it: of an elastic job of several roles minCount of all members may be met without the
master. Each role is then a PodGroup with a least number of its own, and all of them are one gang. These refer
to a Workload, which holds the templates of which they are copies. Its gate needs the gate
TopologyAwareWorkloadScheduling: where the kind is served, a PodGroup may name the domain that is required,
and the scheduler tries one domain after the other, which affinity between pods does not do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allaboard.gangs import placement
from allaboard.gangs.base import GangPlan, GangView
from allaboard.gangs.topology import label_of

NAME = "workload"
TITLE = "kube-scheduler's own gang scheduling"
BETA = "scheduling.k8s.io/v1beta1/PodGroup"
KINDS: tuple[str, ...] = (BETA, "scheduling.k8s.io/v1alpha2/PodGroup")
WHOLE = "scheduling.k8s.io/v1alpha3/CompositePodGroup"
WORKLOAD = "scheduling.k8s.io/v1beta1/Workload"
COMPOSITE: tuple[str, ...] = (WHOLE, WORKLOAD)
_WHOLE = "members"
"""The template of the gang of gangs."""
NAMED_BY: str | None = None
SCHEDULER: str | None = None
AUTO: int | None = 30
POD_FIELD: str | None = "schedulingGroup"
UNDERSTANDS: frozenset[str] = frozenset()
REFUSES: Mapping[str, str] = {}
REFUSES_DOMAIN: str | None = None


def marks(plan: GangPlan, role: str) -> Mapping[str, Any]:
    group = _group_of_role(plan, role) if plan.kind == WHOLE else plan.name
    return {"spec": {"schedulingGroup": {"podGroupName": group}}}


def objects(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    """One PodGroup, or one for each role below a CompositePodGroup."""
    if plan.kind == WHOLE:
        return _composite(plan)
    spec: dict[str, Any] = {"schedulingPolicy": _gang_of(plan.members)}
    if plan.kind == BETA and plan.members == plan.total:
        spec["disruptionMode"] = {"all": {}}
    if plan.kind == BETA:
        spec |= {**_priority(plan), **_constraints(plan)}
    return (_object(plan, plan.kind, plan.name, spec),)


def _composite(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    """The Workload, the gang of gangs, and the gang of each role."""
    whole = {
        "schedulingPolicy": {"gang": {"minGroupCount": len(plan.groups)}},
        **_priority(plan),
        **_constraints(plan),
    }
    roles = {
        role: {"schedulingPolicy": _gang_of(least), **_priority(plan)} for role, least in plan.least.items()
    }
    templates = [{"name": role.lower(), **spec} for role, spec in roles.items()]
    workload = {"compositePodGroupTemplates": [{"name": _WHOLE, **whole, "podGroupTemplates": templates}]}
    groups = (
        _object(
            plan,
            BETA,
            _group_of_role(plan, role),
            {"parentCompositePodGroupName": plan.name, **_of_template(plan, role.lower()), **spec},
        )
        for role, spec in roles.items()
    )
    return (
        _object(plan, WORKLOAD, plan.name, workload),
        _object(plan, plan.kind, plan.name, {**_of_template(plan, _WHOLE), **whole}),
        *groups,
    )


def _object(plan: GangPlan, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    api_version, _, word = kind.rpartition("/")
    metadata = {"name": name, "namespace": plan.namespace}
    return {"apiVersion": api_version, "kind": word, "metadata": metadata, "spec": dict(spec)}


def _group_of_role(plan: GangPlan, role: str) -> str:
    return f"{plan.name}-{role.lower()}"


def _of_template(plan: GangPlan, template: str) -> dict[str, Any]:
    return {"workloadRef": {"workloadName": plan.name, "templateName": template}}


def _gang_of(members: int) -> dict[str, Any]:
    return {"gang": {"minCount": members}}


def _priority(plan: GangPlan) -> dict[str, Any]:
    return {} if plan.priority is None else {"priorityClassName": plan.priority}


def _constraints(plan: GangPlan) -> dict[str, Any]:
    """The required domain, beside the affinity of the pods: whether the scheduler has the gate, too, cannot
    be asked.
    """
    domain = label_of(plan.require) if plan.require is not None and plan.constrained else None
    return {} if domain is None else {"schedulingConstraints": {"topology": [{"key": domain}]}}


def read(view: GangView) -> str | None:
    at = placement.gang_places(view)
    if sentence := placement.cannot_rejoin_reason(view, at, "kube-scheduler"):
        return sentence
    if at.placed >= view.needed:
        return None
    if sentence := placement.gated_reason(view, at):
        return sentence
    if at.silent and not at.waiting and not at.placed:
        return _silent_reason(view) or placement.unnoticed_reason(view, at)
    if not at.waiting:
        return None
    reason = placement.scheduler_message(view) or "no node fits"
    half = f"; {len(at.held)} hold places already" if at.held else ""
    return f"kube-scheduler finds no {view.needed} places together: {reason}{half}"


def _silent_reason(view: GangView) -> str | None:
    """Return why the scheduler has not begun: it says nothing about that itself."""
    if not view.groups:
        return "the PodGroup of this gang is not there, and kube-scheduler waits for it; was it deleted?"
    if len(view.pods) < view.needed:
        return f"kube-scheduler waits until {view.needed} members exist; so far {len(view.pods)}"
    return None

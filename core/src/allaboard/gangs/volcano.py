"""Volcano: a PodGroup in a queue, and an annotation on every member.

Read from Volcano 1.15: staging/src/volcano.sh/apis/pkg/apis/scheduling/v1beta1/types.go, pkg/scheduler
(framework/session.go, api/job_info.go, plugins/gang, plugins/overcommit, plugins/proportion).

- A PodGroup is let in first (its phase becomes Inqueue), when its queue and the whole cluster have room for
  minResources; ours names none and is let in at once. One that the Training Operator makes has them, and the
  operator makes no pod before: there a full queue shows as a job without members, and its events say why.
- A condition of the PodGroup stays as it was; of those that are true the newest counts. The pods say it, too:
  a pod that fits and waits for the rest has the reason Schedulable.
- A PodGroup whose queue does not exist, and pods that name no PodGroup of their namespace, are passed over in
  silence.
- The default queue has no limit; jobs that name none are in it.
- A topology is the name or the number of a tier of its HyperNodes; of a node label the pods' affinity takes
  care.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from allaboard.gangs import placement
from allaboard.gangs.base import GangPlan, GangView
from allaboard.gangs.requests import amount
from allaboard.text.units import from_rfc3339, show_bytes
from allaboard.text.untrusted import show

NAME = "volcano"
TITLE = "Volcano"
KINDS: tuple[str, ...] = ("scheduling.volcano.sh/v1beta1/PodGroup",)
COMPOSITE: tuple[str, ...] = ()
NAMED_BY: str | None = None
SCHEDULER: str | None = "volcano"
AUTO: int | None = 10
POD_FIELD: str | None = None
UNDERSTANDS = frozenset({"queue", "topology"})
REFUSES: Mapping[str, str] = {}
REFUSES_DOMAIN: str | None = None
GROUP = "scheduling.k8s.io/group-name"
"""The scheduler reads this annotation alone, not its namesake under scheduling.volcano.sh."""
TASK = "volcano.sh/task-spec"
DEFAULT_QUEUE = "default"
OWN = "volcano.sh/"
"""Annotations of a job under this prefix are those of its PodGroup, too, as the Training Operator does it:
``volcano.sh/sla-waiting-time``, ``volcano.sh/preemptable``.
"""
_LACKS = re.compile(r"(?:overused|insufficient) ([\w./-]+)")
_ORIGIN = re.compile(r"Origin reason is [^:]+: (.*)", re.DOTALL)
_MOST = 3
"""Resources of a queue that are told."""
_QUOTA = "resource quota insufficient, requested"


def marks(plan: GangPlan, role: str) -> Mapping[str, Any]:
    metadata = {"annotations": {GROUP: plan.name, TASK: role}}
    return {"metadata": metadata, "spec": {"schedulerName": plan.scheduler}}


def objects(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    """One PodGroup. ``minTaskMember`` says of each role how many of it start: all; of an elastic gang the
    master is among the least number.

    Without minResources, by which a group is let in or not: Volcano counts them of every group that is let in
    and whose members are not there, also of a run that has ended or is suspended, and lets nobody else in for
    them (pkg/scheduler/plugins/overcommit, framework/session.go). The Training Operator deletes its PodGroups
    then. The limits of the queue are kept when members are placed.
    """
    spec: dict[str, Any] = {"minMember": plan.members, "queue": plan.queue or DEFAULT_QUEUE}
    least = plan.least
    if plan.members == plan.total or (len(least) > 1 and sum(least.values()) == plan.members):
        spec["minTaskMember"] = least
    if plan.priority is not None:
        spec["priorityClassName"] = plan.priority
    for mode, tier in (("soft", plan.prefer), ("hard", plan.require)):
        if tier is not None and "/" not in tier:
            named = {"highestTierAllowed": int(tier)} if tier.isdecimal() else {"highestTierName": tier}
            spec["networkTopology"] = {"mode": mode, **named}
    own = {name: value for name, value in plan.annotations.items() if name.startswith(OWN)}
    metadata = {"name": plan.name, "namespace": plan.namespace, **({"annotations": own} if own else {})}
    return (
        {
            "apiVersion": plan.kind.rpartition("/")[0],
            "kind": "PodGroup",
            "metadata": metadata,
            "spec": spec,
        },
    )


def read(view: GangView) -> str | None:
    at = placement.gang_places(view)
    if sentence := placement.cannot_rejoin_reason(view, at, TITLE):
        return sentence
    if at.placed >= view.needed:
        return None
    if sentence := placement.gated_reason(view, at) or _not_let_in(view) or _unseen(view, at):
        return sentence
    if not at.waiting:
        return None
    half = f"; {len(at.held)} hold places already" if at.held else ""
    reason = _scheduler_reason(view) or "no node fits"
    return f"Volcano finds no {view.needed} places together{_in_queue(view)}: {reason}{half}"


def _spec_of_group(view: GangView) -> Mapping[str, Any]:
    return (view.groups[0].get("spec") or {}) if view.groups else {}


def _in_queue(view: GangView) -> str:
    """`` in queue research``; nothing of the default one, which has no limit."""
    queue = _spec_of_group(view).get("queue")
    return f" in queue {queue}{_share(view)}" if queue and queue != DEFAULT_QUEUE else ""


def _share(view: GangView) -> str:
    """`` (it has 6 of 8 nvidia.com/gpu in use)``, of what the queue has a limit or a share of; nothing where
    that is not known.
    """
    spec, status = (((view.queue or {}).get(name) or {}) for name in ("spec", "status"))
    limits = spec.get("capability") or spec.get("deserved") or {}
    used = status.get("allocated") or {}
    amounts = [
        f"{_amount(name, used.get(name, 0))} of {_amount(name, most)} {show(name, quote=False)}"
        for name, most in sorted(limits.items())[:_MOST]
    ]
    return f" (it has {', '.join(amounts)} in use)" if amounts else ""


def _amount(resource: str, quantity: Any) -> str:
    """Of a quantity that somebody else wrote."""
    try:
        value = float(amount(quantity))
    except (ValueError, ArithmeticError):
        return show(str(quantity), quote=False)
    return show_bytes(value) if resource in ("memory", "ephemeral-storage") else f"{value:g}"


def _phase(view: GangView) -> str:
    return str((view.groups[0].get("status") or {}).get("phase") or "") if view.groups else ""


def _not_let_in(view: GangView) -> str | None:
    """Return why a PodGroup is not admitted yet, by its newest event."""
    if not view.groups or _phase(view) not in ("", "Pending"):
        return None
    queue = _spec_of_group(view).get("queue") or DEFAULT_QUEUE
    for message in _of_group(view):
        lacks = ", ".join(dict.fromkeys(_LACKS.findall(message)))
        if message.startswith("resource in cluster is overused"):
            return f"Volcano does not let the gang in: the cluster is short of {lacks}"
        if message.startswith("queue resource quota insufficient"):
            sentence = f"Volcano does not let the gang in: queue {queue} is short of {lacks}"
            return f"{sentence}{_share(view)}"
        if message.startswith(_QUOTA):
            return f"Volcano does not let the gang in: the quota of the namespace is used up ({message})"
    if _phase(view) == "Pending" and not view.pods:
        return f"Volcano has not let the gang into queue {queue} yet"
    return None


def _of_group(view: GangView) -> Iterator[str]:
    """Messages about the PodGroup, the latest first."""
    for event in reversed(view.events):
        if event.kind == "PodGroup" and event.message:
            yield event.message


def _unseen(view: GangView, at: placement.Places) -> str | None:
    """The sentence where Volcano passes it over."""
    if view.pods and not view.groups and (at.silent or at.waiting):
        return "the PodGroup of this gang is not there, and Volcano passes its members over; was it deleted?"
    if not view.groups or _phase(view) or at.waiting:
        return placement.unnoticed_reason(view, at)
    made = (view.groups[0].get("metadata") or {}).get("creationTimestamp")
    age = placement.age(from_rfc3339(made), view.now)
    if age < placement.SILENT:
        return None
    queue = _spec_of_group(view).get("queue") or DEFAULT_QUEUE
    return (
        f"Volcano has not looked at the gang for {int(age)} s: is there a queue {queue}, and is it running?"
    )


def _scheduler_reason(view: GangView) -> str | None:
    """Message of the pods; if they only say that they wait for each other, that of their PodGroup."""
    message = placement.scheduler_message(view)
    if message is not None and not placement.are_only_echoes(view.pods.values()):
        return message
    status = (view.groups[0].get("status") or {}) if view.groups else {}
    conditions = [c for c in status.get("conditions") or () if c.get("status") == "True"]
    newest: Mapping[str, Any] = max(
        conditions, key=lambda c: str(c.get("lastTransitionTime") or ""), default={}
    )
    origin = (
        _ORIGIN.search(str(newest.get("message") or "")) if newest.get("type") == "Unschedulable" else None
    )
    return placement.shortened(origin[1]) if origin else message

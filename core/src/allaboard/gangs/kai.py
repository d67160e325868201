"""KAI Scheduler: its pod-grouper makes the PodGroup of a job, by the kind of the job, and names it on every
member.

Read from KAI 0.17.0, and run with it (tests/cluster/test_kai.py); compared with 0.13 to 0.16:
pkg/podgrouper/podgrouper/hub and plugins (defaultgrouper, kubeflow, jobset, skiptopowner),
pkg/apis/scheduling/v2alpha2/podgroup_types.go, pkg/scheduler/cache/status_updater and plugins/topology. (The
tags v0.20.0 and v0.20.1 were made by mistake and retracted; they are older than 0.13.)

- A kind that the pod-grouper does not know is no gang: each of its pods is a group of its own.
- All members that a job asks for must have a place. Of an elastic PyTorchJob the least number is enough.
- A JobSet is a gang by other words in each release. Until 0.15 its members are one gang only where its
  ``startupPolicy`` is AnyOrder; otherwise each replicated job is one, and one could have its place without
  the other. In 0.15 an annotation must say how many they are, or each is placed alone; since 0.16 that can
  only lower the number of its replicated jobs that are needed. A TrainJob hands its annotations on.
- A queue is a leaf of its tree of queues: a gang in another one is passed over without a reason. A job that
  names none is in ``default-queue``, which may not be there.
- A gang of a PriorityClass of 100 or more is never preempted, and may use no more than its queue's quota.
- The domain of its members is a level of a Topology, an object of the cluster that the job object names; all
  members are counted before a domain is chosen. Affinity between pods it knows, too, and fills the fullest
  node first: where that one's domain is too small, it tries the same again in each cycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from allaboard.gangs import placement
from allaboard.gangs.base import GangPlan, GangView
from allaboard.text.units import from_rfc3339
from allaboard.text.untrusted import show

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
COUNTED = frozenset({"jobset", "trainjob"})
"""Engines whose job object says how many members it has."""
MEMBERS = "kai.scheduler/batch-min-member"
TOPOLOGY = "kai.scheduler/topology"
REQUIRED, PREFERRED = f"{TOPOLOGY}-required-placement", f"{TOPOLOGY}-preferred-placement"
"""Annotations of the job object."""
DEFAULT_QUEUE = "default-queue"
_OF_QUEUE = frozenset({"NonPreemptibleOverQuota", "OverLimit", "QueueDoesNotExist"})
"""Reasons that are its queue's, and not those of nodes."""
_LONGEST = 300
_ABOUT = re.compile(
    r"PodSchedulingErrors: |Resources were not found for pod \S+ due to: |(?<=satisfied) for job <[^>]*>"
)
"""Part of a message that names its subject, which the sentence names already."""
_NO_REASON = "Unable to schedule pod"
_BY_WHOM = re.compile(r"was preempted by (?:higher priority )?workload (?:\S+/)?pg-(\S+?)-[0-9a-f-]{36}\b")
_STARTED, _EVICTED = (f"kai.scheduler/last-{event}-timestamp" for event in ("start", "eviction"))
"""Annotations of a PodGroup."""


def marks(plan: GangPlan, role: str) -> Mapping[str, Any]:
    labels = {"metadata": {"labels": {QUEUE: plan.queue}}} if plan.queue is not None else {}
    return {**labels, "spec": {"schedulerName": plan.scheduler}}


def objects(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    """None: the pod-grouper makes the PodGroup."""
    return ()


def counted(total: int) -> Mapping[str, str]:
    """The annotation of a job object that says how many members are placed together."""
    return {MEMBERS: str(total)}


def topology_request(
    require: str | None, prefer: str | None, known: Mapping[str, tuple[str, ...]], named: str | None = None
) -> Mapping[str, str]:
    """The annotations of a job object by which its members are placed within a domain. ``require`` and
    ``prefer``: node labels; ``known``: the labels of each Topology; ``named``: the one that the job names
    itself. Empty where no Topology is known to have these labels: the affinity of the pods is left.
    """
    asked = {REQUIRED: require, PREFERRED: prefer}
    labels = {name: label for name, label in asked.items() if label is not None}
    fits = (name for name in sorted(known) if {*labels.values()} <= {*known[name]})
    name = next(fits, None) if named is None else named
    return {TOPOLOGY: name, **labels} if labels and name is not None else {}


def read(view: GangView) -> str | None:
    at = placement.gang_places(view)
    if reason := placement.cannot_rejoin_reason(view, at, TITLE):
        return reason
    if at.placed >= view.needed:
        return None
    if reason := placement.gated_reason(view, at) or _by_queue(view):
        return reason
    if at.silent and not at.waiting and not at.placed:
        return placement.unnoticed_reason(view, at)
    if not at.waiting:
        return None
    half = f"; {len(at.held)} hold places already" if at.held else ""
    more = f"{half}{_preempted(view)}"
    return f"KAI Scheduler finds no {view.needed} places together{_in_queue(view)}: {_reason(view)}{more}"


def _reason(view: GangView) -> str:
    """Message of KAI Scheduler about the nodes. It says nothing about a gang that it has not looked at."""
    message = " ".join(_ABOUT.sub("", placement.scheduler_message(view) or "no node fits").split()).rstrip(
        "."
    )
    if message != _NO_REASON:
        return message
    asks = f"; has queue {_queue(view)} others below it? such a queue takes no jobs" if view.groups else ""
    return f"it gives no reason{asks}"


def _preempted(view: GangView) -> str:
    """`` (preempted by digits-00000000)``, where it has not run since."""
    notes = ((view.groups[0].get("metadata") or {}).get("annotations") or {}) if view.groups else {}
    evicted, started = _time(notes.get(_EVICTED)), _time(notes.get(_STARTED))
    if evicted is None or (started is not None and started > evicted):
        return ""
    messages = (e.message for e in reversed(view.events) if e.reason == "Evict")
    by = next((match[1] for message in messages if (match := _BY_WHOM.search(message))), None)
    return f" (it was preempted by {show(by, quote=False)})" if by else " (it was preempted)"


def _time(text: Any) -> float | None:
    """Of an annotation, which anybody may write."""
    try:
        return from_rfc3339(text)
    except ValueError:
        return None


def _by_queue(view: GangView) -> str | None:
    """Return why the queue does not admit the gang, by the condition of its PodGroup."""
    status = (view.groups[0].get("status") or {}) if view.groups else {}
    conditions = [
        reason
        for condition in status.get("schedulingConditions") or ()
        if condition.get("status") != "False"
        for reason in condition.get("reasons") or ()
        if reason.get("reason") in _OF_QUEUE
    ]
    if not conditions:
        return None
    if conditions[0]["reason"] == "QueueDoesNotExist":
        return f"KAI Scheduler does not let the gang in: there is no queue {_queue(view)}"
    message = " ".join(str(conditions[0].get("message") or conditions[0]["reason"]).split()).rstrip(".")
    return f"KAI Scheduler does not let the gang into queue {_queue(view)}: {message[:_LONGEST]}"


def _queue(view: GangView) -> str:
    spec = (view.groups[0].get("spec") or {}) if view.groups else {}
    return str(spec.get("queue") or DEFAULT_QUEUE)


def _in_queue(view: GangView) -> str:
    """`` in queue research``; nothing where the PodGroup is not known."""
    return f" in queue {_queue(view)}" if view.groups else ""

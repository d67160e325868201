"""YuniKorn: an application whose task groups are reserved by placeholder pods, by labels and annotations of
every member; there is no object of it.

Read from yunikorn-k8shim: pkg/common/utils/gang_utils.go, pkg/cache (application.go, placeholder.go).

- Its scheduler makes ``minMember`` placeholders of each task group, and runs members when all placeholders
  have a place. A member takes the place of a placeholder only where it asks for no more, so that a task group
  asks for what its pods ask for, with the init containers that the job's operator may add.
- By itself it places members one by one when the placeholders time out (Soft). With Hard, as here, it fails
  those members that have no place.
- The task groups of an application are those of its first pod: an application is one attempt of one run. A
  member that is made anew later is placed by itself.
- Placeholders know no affinity to pods: that of `gang.topology` would place members elsewhere than what was
  reserved for them.
- There is no kind by which it could be seen in a cluster: a job has to name it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from allaboard.gangs import placement
from allaboard.gangs.base import GangPlan, GangView
from allaboard.gangs.requests import quantity, requested

NAME = "yunikorn"
TITLE = "YuniKorn"
KINDS: tuple[str, ...] = ()
COMPOSITE: tuple[str, ...] = ()
NAMED_BY: str | None = None
SCHEDULER: str | None = "yunikorn"
AUTO: int | None = None
POD_FIELD: str | None = None
UNDERSTANDS = frozenset({"queue", "timeout"})
REFUSES: Mapping[str, str] = {}
REFUSES_DOMAIN: str | None = (
    "YuniKorn reserves places with pods of its own, which know no affinity to others: members might have "
    "none where they must be; take it out, or take another gang scheduler"
)
PREFIX = "yunikorn.apache.org/"


def marks(plan: GangPlan, role: str) -> Mapping[str, Any]:
    labels = {f"{PREFIX}app-id": plan.name}
    if plan.queue is not None:
        labels[f"{PREFIX}queue"] = plan.queue
    parameters = ["gangSchedulingStyle=Hard"]
    if plan.timeout is not None:
        parameters.insert(0, f"placeholderTimeoutInSeconds={math.ceil(plan.timeout)}")
    groups = [_task_group(name, members, plan.pods[name]) for name, members in plan.least.items()]
    annotations = {
        f"{PREFIX}task-group-name": role.lower(),
        f"{PREFIX}task-groups": json.dumps(groups, separators=(",", ":")),
        f"{PREFIX}schedulingPolicyParameters": " ".join(parameters),
    }
    metadata = {"labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"schedulerName": plan.scheduler}}


def _task_group(role: str, members: int, pod: Mapping[str, Any]) -> dict[str, Any]:
    """``pod``: the spec of the members of this role."""
    named = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")
    where = {name: pod[name] for name in named if pod.get(name)}
    asks = {name: quantity(value) for name, value in sorted(requested(pod).items())}
    return {"name": role.lower(), "minMember": members, "minResource": asks, **where}


def objects(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    """None: all of it is on the pods."""
    return ()


def read(view: GangView) -> str | None:
    at = placement.gang_places(view)
    if at.placed >= view.needed:
        return None
    if sentence := placement.gated_reason(view, at):
        return sentence
    if not at.waiting:
        quiet = [placement.age(view.pods[name].created, view.now) for name in at.silent]
        if at.placed or max(quiet, default=0.0) < placement.SILENT:
            return None
        return (
            f"YuniKorn has not placed the gang for {int(max(quiet))} s: its placeholders have no "
            f"{view.needed} places together, or it is not running"
        )
    reason = placement.scheduler_message(view) or "no node fits"
    half = f"; {len(at.held)} hold places already" if at.held else ""
    return f"YuniKorn finds no {view.needed} places together: {reason}{half}"

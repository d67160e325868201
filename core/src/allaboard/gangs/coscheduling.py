"""Coscheduling, of kubernetes-sigs/scheduler-plugins: a PodGroup of ours, and a label on every member.

Read from apis/scheduling/v1alpha1/types.go, pkg/coscheduling, pkg/controllers/podgroup_controller.go. The
PodGroup has no conditions, and its phase comes from the phases of pods whichever scheduler placed them, so it
proves nothing: why a gang waits is in the conditions of its pods. The controller counts pods of equal
PodGroup names across all namespaces; ours carry the hash of the run's key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from allaboard.gangs import placement
from allaboard.gangs.base import GangPlan, GangView
from allaboard.text.units import show_bytes

NAME = "coscheduling"
TITLE = "coscheduling"
KINDS: tuple[str, ...] = ("scheduling.x-k8s.io/v1alpha1/PodGroup",)
COMPOSITE: tuple[str, ...] = ()
NAMED_BY: str | None = None
SCHEDULER: str | None = "scheduler-plugins-scheduler"  # the name in the profile of its chart
AUTO: int | None = 20
POD_FIELD: str | None = None
UNDERSTANDS = frozenset({"timeout"})
REFUSES: Mapping[str, str] = {}
REFUSES_DOMAIN: str | None = None
LABEL = "scheduling.x-k8s.io/pod-group"
_SIBLINGS = re.compile(r"current pods number: (\d+), minMember of group: (\d+)")
_GAP = re.compile(r"resource gap: (.*)")
_BYTES = frozenset({"memory", "ephemeral-storage"})
_QUANTITY = re.compile(r"([\w./-]+):\{\{(\d+) (-?\d+)\}")


def marks(plan: GangPlan, role: str) -> Mapping[str, Any]:
    return {"metadata": {"labels": {LABEL: plan.name}}, "spec": {"schedulerName": plan.scheduler}}


def objects(plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
    """One PodGroup. Without minResources: it would be compared with the free sum of the whole cluster,
    tainted nodes included, and so refuse nothing that matters.
    """
    spec: dict[str, Any] = {"minMember": plan.members}
    if plan.timeout is not None:
        spec["scheduleTimeoutSeconds"] = math.ceil(plan.timeout)
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
    if sentence := placement.cannot_rejoin_reason(view, at, "coscheduling"):
        return sentence
    if at.placed >= view.needed:
        return None
    if sentence := placement.gated_reason(view, at) or placement.unnoticed_reason(view, at):
        return sentence
    if not at.waiting:
        return None
    reason = placement.scheduler_message(view) or "no node fits"
    if "PodGroup not found" in reason:
        return "coscheduling does not find the PodGroup of this gang; was it deleted?"
    if few := _SIBLINGS.search(reason):
        return f"coscheduling waits until {few[2]} members exist; so far {few[1]}"
    if gap := _GAP.search(reason):
        reason = f"the cluster lacks {_quantities(gap[1])}"
    half = f"; {len(at.held)} hold places already" if at.held else ""
    return f"coscheduling finds no {view.needed} places together: {reason}{half}"


def _quantities(printed: str) -> str:
    """``map[cpu:{{5 0} {<nil>}  DecimalSI}]``, a Go map as it prints itself -> ``5 cpu``."""
    amounts = [(name, int(value) * 10.0 ** int(scale)) for name, value, scale in _QUANTITY.findall(printed)]
    quantities = [f"{show_bytes(n) if name in _BYTES else f'{n:g}'} {name}" for name, n in amounts]
    return ", ".join(quantities) or printed

"""Capacity that may be taken away: the taints that keep pods off it, and the labels by which its nodes are
known. Values in, values out.

Sources: GKE, Spot VMs and preemptible VMs; AKS, spot node pools; EKS, managed node groups; Karpenter,
well-known labels. GKE and AKS taint such nodes themselves; the taints of EKS and Karpenter are customary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_KARPENTER = "karpenter.sh/capacity-type"
TAINTS: tuple[tuple[str, str], ...] = (
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    (_KARPENTER, "spot"),
)
"""Their effect is NoSchedule."""
LABELS: tuple[tuple[str, str], ...] = (
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("cloud.google.com/gke-provisioning", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    (_KARPENTER, "spot"),
)
_MOST = 100
"""The largest weight of a preference."""


def may_be_taken(spot: Mapping[str, Any]) -> bool:
    """True if members may run on such capacity. ``spot``: the field of a job."""
    return bool(spot.get("tolerate") or spot.get("prefer"))


def tolerates(tolerations: Sequence[Mapping[str, Any]]) -> bool:
    """True if tolerations of a pod name the taint of such capacity."""
    keys = {key for key, _ in TAINTS}
    return any(item.get("key") in keys for item in tolerations)


def tolerations(spot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tolerations of members; none where they may not be taken away."""
    if not may_be_taken(spot):
        return []
    return [
        {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"} for key, value in TAINTS
    ]


def preferences(spot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The preferred terms of a node affinity, one for each label; none where the job prefers nothing."""
    if not spot.get("prefer"):
        return []
    rules = ({"key": key, "operator": "In", "values": [value]} for key, value in LABELS)
    return [{"weight": _MOST, "preference": {"matchExpressions": [rule]}} for rule in rules]

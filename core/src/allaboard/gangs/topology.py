"""Placement of a gang's members close together, if their scheduler has no field of its own for it: by
affinity between the pods, which every scheduler knows.

The first member that is placed chooses the domain, which may have too few free places for all. A gang
scheduler takes the places back then and tries again; without one the rest waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LABELS: Mapping[str, str] = {
    "host": "kubernetes.io/hostname",
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
    "nvlink": "nvidia.com/gpu.clique",
}
"""Word -> the node label that every cluster has for it; of ``nvlink`` that of NVIDIA's GPU feature discovery,
equal on all nodes of one NVLink domain. Racks and blocks have another label in each cluster.
"""


def label_of(domain: str) -> str | None:
    """The node label whose equal values make a domain; None: the word names none that is known."""
    return domain if "/" in domain else LABELS.get(domain)


def affinity(require: str | None, prefer: str | None, members: Mapping[str, str]) -> Mapping[str, Any]:
    """A pod template to merge. ``require`` and ``prefer``: node labels; ``members``: labels that all members
    have and no other pod.
    """
    terms: dict[str, Any] = {}
    selector = {"matchLabels": dict(members)}
    if require is not None:
        terms["requiredDuringSchedulingIgnoredDuringExecution"] = [
            {"labelSelector": selector, "topologyKey": require}
        ]
    if prefer is not None:
        term = {"labelSelector": selector, "topologyKey": prefer}
        terms["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 100, "podAffinityTerm": term}]
    return {"spec": {"affinity": {"podAffinity": terms}}} if terms else {}

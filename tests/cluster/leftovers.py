"""What a module of tests leaves on a cluster that the next ones use, too.

Objects outside of every namespace that were made by ``cluster.api.create`` and are not on their way out (a
namespace is one of them), nodes whose kubelet this process started, components that were stopped.
"""

from __future__ import annotations

import os
from contextlib import suppress

from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.cluster.kubelet.handle import STARTED_BY
from tests.cluster.plane import ControlPlane


def leftovers(cluster: Cluster) -> list[str]:
    """One line for each; none when all is well."""
    made = [(kind, cluster.api.get(version, kind, name)) for version, kind, name in cluster.api.made]
    found = {f"{kind} {of['metadata']['name']}": of for kind, of in made if of is not None}
    found |= {f"Node {node['metadata']['name']}": node for node in _nodes(cluster)}
    left = [name + _ready(of) for name, of in found.items() if "deletionTimestamp" not in of["metadata"]]
    if isinstance(cluster, ControlPlane):
        left += [f"{part.name}, stopped" for part in cluster.parts if not cluster.runs(part.name)]
    return left


def clear(cluster: Cluster) -> None:
    """Removes it, that the next module is not blamed; what was stopped stays so."""
    nodes = [("v1", "Node", node["metadata"]["name"]) for node in _nodes(cluster)]
    for version, kind, name in [*cluster.api.made, *nodes]:
        cluster.api.delete(version, kind, name)
    cluster.api.made.clear()


def _nodes(cluster: Cluster) -> list[Object]:
    with suppress(ApiError):  # whoever may not see nodes has made none
        return cluster.api.list("v1", "Node", labelSelector=f"{STARTED_BY}={os.getpid()}")
    return []


def _ready(of: Object) -> str:
    conditions = (of.get("status") or {}).get("conditions") or []
    words = [f" (Ready: {each['status']})" for each in conditions if each["type"] == "Ready"]
    return "".join(words)

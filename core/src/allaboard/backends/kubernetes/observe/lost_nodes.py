"""Members whose node does not answer, as their pods tell it. Values in, values out.

Kubernetes marks the pods of such a node: first it sets their condition Ready to False, while the containers
stay ready, as the kubelet told them last; later it deletes them, and they stay until the node comes back, or
somebody says that it will not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from allaboard.backends.kubernetes.client.values import at, dicts, mapping, moment, text
from allaboard.runs.observation import Stall
from allaboard.text.units import rfc3339

Json = Mapping[str, Any]
_BY_TAINT = "DeletionByTaintManager"
_SHOWN = 5


def stall_of_lost_node(pods: Iterable[Json], member_of: Callable[[Json], str | None]) -> Stall | None:
    """The node that does not answer, and the members on it; None: there is none. Of several nodes the one
    that went first. ``member_of``: the member whose pod this is.
    """
    lost: dict[str, list[str]] = {}
    begun: dict[str, float] = {}
    for pod in pods:
        since, node = _silent_since(pod), text(at(pod, "spec", "nodeName"))
        if since is not None and node:
            lost.setdefault(node, []).append(member_of(pod) or text(at(pod, "metadata", "name")))
            begun[node] = min(since, begun.get(node, since))
    if not lost:
        return None
    node = min(begun, key=lambda name: begun[name])
    members = sorted(lost[node])
    more = f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else ""
    who = f"{', '.join(members[:_SHOWN])}{more} {'are' if len(members) > 1 else 'is'}"
    when = rfc3339(begun[node])
    sentence = f"node {node} does not answer since {when}; {who} lost with it, unless it comes back"
    return Stall("node_lost", sentence, begun[node], f"node {node}", members[0])


def _silent_since(pod: Json) -> float | None:
    """The time since which the node of a pod that runs does not answer; None: it does."""
    status = mapping(pod.get("status"))
    if status.get("phase") != "Running":
        return None
    conditions = {text(each.get("type")): each for each in dicts(status.get("conditions"))}
    taken = conditions.get("DisruptionTarget", {})
    ready = conditions.get("Ready", {})
    containers = dicts(status.get("containerStatuses"))
    is_stale = bool(containers) and all(each.get("ready") is True for each in containers)
    if ready.get("status") != "False" or not is_stale or at(pod, "spec", "readinessGates"):
        return None
    times = [moment(ready.get("lastTransitionTime"))]
    if taken.get("reason") == _BY_TAINT:
        times.append(moment(taken.get("lastTransitionTime")))
    return min((each for each in times if each is not None), default=None)

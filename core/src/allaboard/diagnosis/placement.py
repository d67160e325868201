"""Verdicts of a scheduler on a pod for which it finds no node, and whether they may pass. Values in, values
out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from allaboard.diagnosis.case import Case
from allaboard.gangs import requests
from allaboard.runs.observation import NodeSeen, Observation, PodSeen

_HEAD = re.compile(r"\d+/(\d+) nodes are (?:un)?available\b:?\s*(.*)", re.DOTALL)
_REASON = re.compile(r"(\d+) (.*?)(?=, \d+ |$)", re.DOTALL)


def reasons_of(text: str) -> dict[str, int]:
    """``0/12 nodes are available: 4 node(s) had taint, 8 Insufficient cpu.`` -> each reason with its
    count."""
    match = _HEAD.search(text)
    if match is None:
        return {}
    body = re.split(r"\.(?=\s|$)|preemption:|no new claims to deallocate", match[2], maxsplit=1)[0]
    return {reason.strip(): int(count[:9]) for count, reason in _REASON.findall(body)}


_PASSING_TAINT = re.compile(
    r"taint\S* \{(node\.kubernetes\.io/|node\.cloudprovider\.kubernetes\.io/uninitialized|"
    r"ToBeDeletedByClusterAutoscaler|DeletionCandidateOfClusterAutoscaler|karpenter\.sh/(disrupted|unregistered))"
)
"""Taints that a cluster sets by itself, and takes away again: a node that is not ready, or full."""
_ROOM = re.compile(
    r"^Insufficient |too many pods|free ports|max volume count|were unschedulable", re.IGNORECASE
)
"""Reasons that pass when others end, or when a node is opened again."""
_CLOSES = re.compile(
    r"taint|didn't match Pod's node affinity|node selector|volume node affinity|PersistentVolume's node "
    r"affinity|available volume zone|pod affinity rules",
    re.IGNORECASE,
)
"""Reasons for which somebody has to change the job or the nodes."""
_OF_PODS = re.compile(r"anti-affinity|topology spread", re.IGNORECASE)
"""Reasons that pass when other pods end; not where the pods are members of the same job."""


@dataclass(frozen=True, slots=True)
class _Reason:
    """The reason why a number of nodes do not take a pod. ``kind``: pods, room, passing, closed, or unknown;
    ``lacked``: the resources of which they have too little; ``cordoned``: they are not open.
    """

    kind: str
    count: int
    lacked: tuple[str, ...] = ()
    cordoned: bool = False


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[_Reason, ...]:
    """Each reason of a message: of many pods that wait a scheduler says the same."""
    return tuple(_Reason(_kind(r), n, _lacked(r), "unschedulable" in r) for r, n in reasons_of(text).items())


def _kind(reason: str) -> str:
    if _OF_PODS.search(reason):
        return "pods"
    if _PASSING_TAINT.search(reason):
        return "passing"
    if _ROOM.search(reason):
        return "room"
    return "closed" if _CLOSES.search(reason) else "unknown"


def may_pass(case: Case, pod: PodSeen, text: str) -> bool:
    """True if a pod for which a scheduler finds no node may get one by itself."""
    return any(_has_hope(case, pod, reason) for reason in _read(text))


def is_closed(case: Case, pod: PodSeen, text: str) -> bool:
    """True if the scheduler's message alone says that no node will ever take a pod. Where the nodes are
    known, they tell more, but for where volumes lie.
    """
    reasons = _read(text)
    if not reasons or (case.nodes and "volume" not in text.lower()):
        return False
    return not may_pass(case, pod, text)


def _has_hope(case: Case, pod: PodSeen, reason: _Reason) -> bool:
    if reason.kind == "pods":
        # Those of its own job stay where they are.
        return not any(
            p.node and p.phase in ("Running", "Pending") for p in case.objects.pods if p is not pod
        )
    if reason.kind != "room" or not case.nodes:
        return reason.kind != "closed"
    if reason.cordoned:
        return any(node.cordoned and _takes(pod, node) for node in case.nodes.values())
    small = [
        node
        for node in case.nodes.values()
        if any(has(node, r) < max(asks(pod, r), Decimal(1)) for r in reason.lacked)
    ]
    return reason.count > len(small) if reason.lacked else True


def _takes(pod: PodSeen, node: NodeSeen) -> bool:
    """True if an open node takes the pod, by its labels and lasting taints."""
    lasting = [t for t in node.taints if not t.startswith("node.kubernetes.io/")]
    return selected(pod, node.labels) and all(tolerates(pod, taint) for taint in lasting)


def passes_by_words(text: str) -> bool:
    return may_pass(Case(Observation("")), PodSeen(""), text)


def lacking(text: str) -> list[str]:
    """The resources of which a scheduler says that nodes have too little."""
    return [resource for reason in _read(text) for resource in reason.lacked]


def _lacked(reason: str) -> tuple[str, ...]:
    match = re.fullmatch(r"Insufficient (\S+)", reason)
    return (match[1].rstrip(".,"),) if match is not None else ()


def asks(pod: PodSeen, resource: str) -> Decimal:
    """The amount of a resource that its containers ask for."""
    for kind in ("limits", "requests") if "/" in resource else ("requests", "limits"):
        ends = f".resources.{kind}.{resource}"
        stated = [v for k, v in pod.facts.items() if k.startswith("containers[") and k.endswith(ends)]
        if total := sum((amount(value) or Decimal(0) for value in stated), Decimal(0)):
            return total
    return Decimal(0)


def has(node: NodeSeen, resource: str) -> Decimal:
    return amount(node.allocatable.get(resource, "0")) or Decimal(0)


def tolerates(pod: PodSeen, taint: str) -> bool:
    key, _, rest = taint.partition("=")
    value, _, effect = rest.rpartition(":")
    if effect == "PreferNoSchedule":
        return True
    tolerations: dict[str, dict[str, str]] = {}
    for path, fact in pod.facts.items():
        match = re.fullmatch(r"tolerations\[(\d+)\]\.(\w+)", path)
        if match is not None:
            tolerations.setdefault(match[1], {})[match[2]] = fact
    for toleration in tolerations.values():
        if toleration.get("effect") not in (None, effect):
            continue
        if toleration.get("operator") == "Exists" and toleration.get("key") in (None, "", key):
            return True
        if toleration.get("key") == key and toleration.get("value", "") == value:
            return True
    return False


def selected(pod: PodSeen, labels: Mapping[str, str]) -> bool:
    wanted = {
        k.removeprefix("nodeSelector."): v for k, v in pod.facts.items() if k.startswith("nodeSelector.")
    }
    return all(labels.get(k) == v for k, v in wanted.items())


def amount(text: str) -> Decimal | None:
    """A quantity of Kubernetes; None: it is none."""
    try:
        return requests.amount(text) if len(text) < 64 else None
    except (ValueError, ArithmeticError):
        return None

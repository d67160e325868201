"""Demands of the objects of a job on their cluster: pods, resources, and other objects by name. Values in,
values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from allaboard.backends.kubernetes.client.values import Json, at, dicts, text, texts
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.discovery.pod_specs import PodSpec, Rule, Term, Toleration, pod_spec
from allaboard.engines import engine_of_object
from allaboard.gangs.requests import FACTORS, amount


def show(resource: str, value: Decimal) -> str:
    """For people: ``1.5``, ``64Gi``."""
    if "memory" in resource or "storage" in resource:
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if value >= FACTORS[suffix]:
                return f"{(value / FACTORS[suffix]).quantize(Decimal('0.1')).normalize():f}{suffix}"
    return f"{value.normalize():f}"


@dataclass(frozen=True, slots=True)
class Pods:
    """Equal pods of one role. ``spec``: as their operator will make them; ``pod``: read from it."""

    role: str
    replicas: int
    spec: Json
    labels: Mapping[str, str]
    pod: PodSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pod", pod_spec(self.spec))


def pods_of(manifests: Sequence[Json]) -> list[Pods]:
    """The pods that a job object asks for, those containers included that its operator adds. ``manifests``:
    the objects that it needs, and the job object last.
    """
    *extras, job = manifests
    engine = engine_of_object(job)
    assert engine is not None, "jobs are rendered by our engines alone"
    pods = []
    for role, replicas, template in engine.templates(job, extras):
        spec = dict(template["spec"])
        own = engine.added(job, role)
        if own:
            # Operators give them no securityContext.
            added = [
                {"name": container.name, "resources": {"requests": dict(container.requests)}}
                for container in own
            ]
            spec["initContainers"] = [*dicts(spec.get("initContainers")), *added]
        pods.append(Pods(role, replicas, spec, texts(at(template, "metadata", "labels"))))
    return pods


# Other objects that the pods name.


def claims(pods: Iterable[Pods]) -> dict[str, tuple[int, bool]]:
    """PersistentVolumeClaim -> (pods that mount it, True if one of them writes)."""
    claims: dict[str, tuple[int, bool]] = {}
    for group in pods:
        for name, writes in group.pod.claims:
            count, before = claims.get(name, (0, False))
            claims[name] = (count + group.replicas, before or writes)
    return claims


def secrets(pods: Iterable[Pods], own: Iterable[str] = ()) -> set[str]:
    """Secrets without which a member does not start; not those that are made with the job (``own``)."""
    return {name for group in pods for name in group.pod.secrets} - {*own}


def config_maps(pods: Iterable[Pods], own: Iterable[str] = ()) -> set[str]:
    """ConfigMaps without which a member does not start; not those that the job brings."""
    return {name for group in pods for name in group.pod.config_maps} - {*own}


def accounts(pods: Iterable[Pods]) -> set[str]:
    return {group.pod.account for group in pods}


def priorities(pods: Iterable[Pods]) -> set[str]:
    return {group.pod.priority_class for group in pods if group.pod.priority_class}


# Nodes.


def misfit(pod: PodSpec, node: Node) -> str | None:
    """The reason for which such pods never run on this node, however empty it is; None: they may."""
    if not node.ready:
        return "is not ready"
    if node.cordoned and not _tolerated({"key": "node.kubernetes.io/unschedulable"}, pod.tolerations):
        return "is cordoned"
    for taint in node.taints:
        if taint.get("effect") != "PreferNoSchedule" and not _tolerated(taint, pod.tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"has a taint that is not tolerated: {taint.get('key')}{value}:{taint.get('effect')}"
    for label, wanted in pod.node_selector.items():
        if node.labels.get(label) != wanted:
            return f"is not labelled {label}={wanted}"
    if pod.terms and not any(_matches(term, node) for term in pod.terms):
        return "does not match the required affinity"
    return None


def _tolerated(taint: Json, tolerations: Iterable[Toleration]) -> bool:
    for t in tolerations:
        if t.effect not in ("", taint.get("effect")) or t.key not in ("", taint.get("key")):
            continue
        if t.operator == "Exists" or (t.key and t.value == text(taint.get("value"))):
            return True
    return False


def _matches(term: Term, node: Node) -> bool:
    """True if a node matches a term of a node affinity; an empty term matches nothing."""
    return bool(term.labels or term.fields) and all(
        [_holds(rule, node.labels.get(rule.key)) for rule in term.labels]
        + [_holds(rule, node.name if rule.key == "metadata.name" else None) for rule in term.fields]
    )


def _holds(rule: Rule, value: str | None) -> bool:
    match rule.operator:
        case "In":
            return value in rule.values
        case "NotIn":
            return value not in rule.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            least = next(iter(rule.values), "")
            if value is None or not _is_whole(value) or not _is_whole(least):
                return False
            return int(value) > int(least) if operator == "Gt" else int(value) < int(least)
    return False


def _is_whole(value: str) -> bool:
    return value.removeprefix("-").isdecimal()


def lacking(pod: PodSpec, node: Node) -> list[str]:
    """Each resource of which one pod asks for more than the whole node has, as text."""
    return [
        f"{show(name, value)} {name} (it has {show(name, amount(node.allocatable.get(name, 0)))})"
        for name, value in pod.requests.items()
        if value > 0 and value > amount(node.allocatable.get(name, 0))
    ]


def room(pods: Sequence[Pods], nodes: Sequence[Node]) -> int:
    """The number of these pods that have a place at once when the nodes are empty, largest first."""
    free = {node.name: {k: amount(v) for k, v in node.allocatable.items()} for node in nodes}
    by_name = {node.name: node for node in nodes}
    placed = 0
    for group in sorted(pods, key=lambda g: -max(g.pod.requests.values(), default=Decimal(0))):
        need = {name: value for name, value in group.pod.requests.items() if value > 0}
        need["pods"] = Decimal(1)
        left = group.replicas
        for name, has in free.items():
            if misfit(group.pod, by_name[name]) is not None:
                continue
            there = {r: has.get(r, Decimal(110 if r == "pods" else 0)) for r in need}
            fits = min((int(there[r] // v) for r, v in need.items()), default=0)
            taken = min(left, max(0, fits))
            for resource, value in need.items():
                has[resource] = there[resource] - value * taken
            left -= taken
            placed += taken
    return placed

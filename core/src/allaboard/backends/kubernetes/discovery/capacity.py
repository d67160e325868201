"""Demands of the objects of a job on their cluster: pods, resources, and other objects by name. Values in,
values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.engines import engine_of_object
from allaboard.gangs.requests import FACTORS, amount, requested

Json = Mapping[str, Any]


def show(resource: str, value: Decimal) -> str:
    """For people: ``1.5``, ``64Gi``."""
    if "memory" in resource or "storage" in resource:
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if value >= FACTORS[suffix]:
                return f"{(value / FACTORS[suffix]).quantize(Decimal('0.1')).normalize():f}{suffix}"
    return f"{value.normalize():f}"


@dataclass(frozen=True, slots=True)
class Pods:
    """Equal pods of one role. ``spec``: as their operator will make them."""

    role: str
    replicas: int
    spec: Json
    labels: Mapping[str, str]


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
            spec["initContainers"] = [*(spec.get("initContainers") or ()), *added]
        labels = (template.get("metadata") or {}).get("labels") or {}
        pods.append(Pods(role, replicas, spec, labels))
    return pods


# Other objects that the pods name.


def claims(pods: Iterable[Pods]) -> dict[str, tuple[int, bool]]:
    """PersistentVolumeClaim -> (pods that mount it, whether one of them writes)."""
    claims: dict[str, tuple[int, bool]] = {}
    for group in pods:
        mounts = [m for c in group.spec.get("containers") or () for m in c.get("volumeMounts") or ()]
        for volume in group.spec.get("volumes") or ():
            claim = volume.get("persistentVolumeClaim")
            if claim:
                own = [m for m in mounts if m["name"] == volume["name"]]
                writes = not claim.get("readOnly") and not (own and all(m.get("readOnly") for m in own))
                count, before = claims.get(claim["claimName"], (0, False))
                claims[claim["claimName"]] = (count + group.replicas, before or writes)
    return claims


def secrets(pods: Iterable[Pods], own: Iterable[str] = ()) -> set[str]:
    """Secrets without which a member does not start; not those that are made with the job (``own``)."""
    named = {*_sources(pods, "secret", "secretName", "secretRef", "secretKeyRef")} | {
        secret["name"] for group in pods for secret in group.spec.get("imagePullSecrets") or ()
    }
    return named - {*own}


def config_maps(pods: Iterable[Pods], own: Iterable[str] = ()) -> set[str]:
    """ConfigMaps without which a member does not start; not those that the job brings."""
    return {*_sources(pods, "configMap", "name", "configMapRef", "configMapKeyRef")} - {*own}


def _sources(pods: Iterable[Pods], kind: str, field: str, whole: str, key: str) -> Iterator[str]:
    for group in pods:
        for volume in group.spec.get("volumes") or ():
            projected = (volume.get("projected") or {}).get("sources") or ()
            for source in (volume.get(kind), *(s.get(kind) for s in projected)):
                if source and not source.get("optional"):
                    yield source.get(field) or source["name"]
        for container in (*(group.spec.get("initContainers") or ()), *(group.spec.get("containers") or ())):
            one_by_one = [(e.get("valueFrom") or {}).get(key) for e in container.get("env") or ()]
            for source in (*(e.get(whole) for e in container.get("envFrom") or ()), *one_by_one):
                if source and not source.get("optional"):
                    yield source["name"]


def accounts(pods: Iterable[Pods]) -> set[str]:
    return {group.spec.get("serviceAccountName") or "default" for group in pods}


def priorities(pods: Iterable[Pods]) -> set[str]:
    return {group.spec["priorityClassName"] for group in pods if group.spec.get("priorityClassName")}


# Nodes.


def why_not(spec: Json, node: Node) -> str | None:
    """The reason for which pods of this spec never run on this node, however empty it is; None: they may."""
    if not node.ready:
        return "is not ready"
    tolerations = spec.get("tolerations") or ()
    if node.cordoned and not _tolerated({"key": "node.kubernetes.io/unschedulable"}, tolerations):
        return "is cordoned"
    for taint in node.taints:
        if taint.get("effect") != "PreferNoSchedule" and not _tolerated(taint, tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"has a taint that is not tolerated: {taint.get('key')}{value}:{taint.get('effect')}"
    for label, wanted in (spec.get("nodeSelector") or {}).items():
        if node.labels.get(label) != wanted:
            return f"is not labelled {label}={wanted}"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms and not any(_matches(term, node) for term in terms):
        return "does not match the required affinity"
    return None


def _tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    for t in tolerations:
        effect = t.get("effect") in (None, "", taint.get("effect"))
        if not effect or t.get("key") not in (None, "", taint.get("key")):
            continue
        if t.get("operator") == "Exists" or (t.get("key") and t.get("value", "") == taint.get("value", "")):
            return True
    return False


def _matches(term: Json, node: Node) -> bool:
    """One term of a node affinity; an empty one matches nothing."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    return bool(expressions or fields) and all(
        [_holds(e, node.labels.get(e["key"])) for e in expressions]
        + [_holds(e, node.name if e["key"] == "metadata.name" else None) for e in fields]
    )


def _holds(expression: Json, value: str | None) -> bool:
    wanted = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not value.lstrip("-").isdecimal() or not wanted:
                return False
            return int(value) > int(wanted[0]) if operator == "Gt" else int(value) < int(wanted[0])
    return False


def lacking(spec: Json, node: Node) -> list[str]:
    """Each resource of which one pod asks for more than the whole node has, as text."""
    return [
        f"{show(name, value)} {name} (it has {show(name, amount(node.allocatable.get(name, 0)))})"
        for name, value in requested(spec).items()
        if value > 0 and value > amount(node.allocatable.get(name, 0))
    ]


def room(pods: Sequence[Pods], nodes: Sequence[Node]) -> int:
    """The number of these pods that have a place at once when the nodes are empty, largest first."""
    free = {node.name: {k: amount(v) for k, v in node.allocatable.items()} for node in nodes}
    by_name = {node.name: node for node in nodes}
    placed = 0
    for group in sorted(pods, key=lambda g: -max(requested(g.spec).values(), default=Decimal(0))):
        need = {name: value for name, value in requested(group.spec).items() if value > 0}
        need["pods"] = Decimal(1)
        left = group.replicas
        for name, has in free.items():
            if why_not(group.spec, by_name[name]) is not None:
                continue
            there = {r: has.get(r, Decimal(110 if r == "pods" else 0)) for r in need}
            fits = min((int(there[r] // v) for r, v in need.items()), default=0)
            taken = min(left, max(0, fits))
            for resource, value in need.items():
                has[resource] = there[resource] - value * taken
            left -= taken
            placed += taken
    return placed

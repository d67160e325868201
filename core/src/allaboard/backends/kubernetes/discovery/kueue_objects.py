"""Queues and flavors of Kueue as values. Fields that are missing or of the wrong kind are left out: nothing
here raises. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from allaboard.backends.kubernetes.client.values import (
    Json,
    at,
    dicts,
    mapping,
    quantity,
    scalars,
    text,
    texts,
    whole,
)
from allaboard.backends.kubernetes.discovery.pod_specs import Toleration, tolerations

Amounts = Mapping[tuple[str, str], Decimal]
"""(flavor, resource) -> amount."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """A ResourceFlavor: the labels and taints of its nodes, and the tolerations that it gives to pods."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that a ClusterQueue covers, and the names of their flavors in order."""

    covered: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """``quotas``: the nominal ones; ``lent``: the most that it may borrow, without an entry: no known limit;
    ``reserved``: held by jobs; ``checks``: names of AdmissionChecks, of every flavor or of some.
    """

    cohort: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    quotas: Amounts = field(default_factory=dict)
    lent: Amounts = field(default_factory=dict)
    reserved: Amounts = field(default_factory=dict)
    checks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """``parent``: its ClusterQueue; ``running``, ``waiting``: numbers of jobs, None: not known; ``closed``:
    the reason for which it admits nothing, None: it admits.
    """

    name: str
    parent: str = ""
    reserved: Amounts = field(default_factory=dict)
    running: int | None = None
    waiting: int | None = None
    closed: str | None = None


def flavor(body: Json) -> Flavor:
    spec = mapping(body.get("spec"))
    return Flavor(
        texts(spec.get("nodeLabels")),
        tuple(dicts(spec.get("nodeTaints"))),
        tolerations(spec.get("tolerations")),
    )


def cluster_queue(body: Json) -> ClusterQueue:
    spec = mapping(body.get("spec"))
    groups = dicts(spec.get("resourceGroups"))
    strategy = dicts(at(spec, "admissionChecksStrategy", "admissionChecks"))
    always = scalars(spec.get("admissionChecks"))
    flavors = [of_flavor for group in groups for of_flavor in dicts(group.get("flavors"))]
    return ClusterQueue(
        cohort=text(spec.get("cohortName")) or text(spec.get("cohort")),
        groups=tuple(map(_group, groups)),
        quotas=dict(_amounts(flavors, "nominalQuota")),
        lent=dict(_amounts(flavors, "borrowingLimit")),
        reserved=_reserved(body),
        checks=frozenset(filter(None, (*always, *(text(rule.get("name")) for rule in strategy)))),
    )


def local_queue(body: Json) -> LocalQueue:
    status = mapping(body.get("status"))
    active = next((c for c in dicts(status.get("conditions")) if c.get("type") == "Active"), {})
    reason = text(active.get("message")) or text(active.get("reason")) or "it admits nothing"
    return LocalQueue(
        name=text(at(body, "metadata", "name")),
        parent=text(at(body, "spec", "clusterQueue")),
        reserved=_reserved(body),
        running=whole(status.get("reservingWorkloads")),
        waiting=whole(status.get("pendingWorkloads")),
        closed=reason if active.get("status") == "False" else None,
    )


def _group(group: Json) -> ResourceGroup:
    flavors = (text(of_flavor.get("name")) for of_flavor in dicts(group.get("flavors")))
    return ResourceGroup(scalars(group.get("coveredResources")), tuple(flavors))


def _reserved(body: Json) -> Amounts:
    """The amounts that jobs hold, those included that are not admitted yet."""
    return dict(_amounts(dicts(at(body, "status", "flavorsReservation")), "total"))


def _amounts(flavors: list[Json], part: str) -> Iterator[tuple[tuple[str, str], Decimal]]:
    for of_flavor in flavors:
        for resource in dicts(of_flavor.get("resources")):
            if (value := quantity(resource.get(part))) is not None:
                yield (text(of_flavor.get("name")), text(resource.get("name"))), value

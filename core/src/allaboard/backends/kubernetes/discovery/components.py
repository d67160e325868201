"""Components for training that a cluster may have: operators, gang schedulers, queues; and the kinds by which
each shows itself. The engines name their operators; the others are a table. The ways to install them are in
`guides`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from allaboard.backends.kubernetes.client.resources import (
    PODGROUPS,
    PODGROUPS_ALPHA,
    PODGROUPS_COSCHEDULING,
    PODGROUPS_KAI,
    PODGROUPS_VOLCANO,
    Resource,
    resource_for,
)
from allaboard.backends.kubernetes.discovery.guides import Guide, guide_of
from allaboard.engines import ENGINES, Engine

LOCALQUEUES = Resource("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue")
CLUSTERQUEUES = Resource("kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
TOPOLOGIES = Resource("kueue.x-k8s.io", "v1beta2", "topologies", "Topology", namespaced=False)
KUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
WORKLOAD_PRIORITIES = Resource(
    "kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False
)
ADMISSION_CHECKS = Resource(
    "kueue.x-k8s.io", "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False
)
MULTIKUEUE_CONFIGS = Resource(
    "kueue.x-k8s.io", "v1beta2", "multikueueconfigs", "MultiKueueConfig", namespaced=False
)
KAI_TOPOLOGIES = Resource("kai.scheduler", "v1alpha1", "topologies", "Topology", namespaced=False)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)


@dataclass(frozen=True, slots=True)
class Component:
    """``kinds``: each of them shows that it is installed; ``home``: the namespace where it lives when it was
    installed as its guide says; ``install``: as of `Operator`; ``gang``: the name by which a job asks for it,
    when it makes members start together. ``exact``: other versions of these kinds are another's;
    ``makes_gangs``: whether it is an operator that may make members start together by itself. ``probes``: by
    kind, an object that its own webhook refuses and nothing else does: a dry run of one tells whether it is
    alive.
    """

    id: str
    title: str
    kinds: tuple[Resource, ...]
    home: str
    install: tuple[str, ...] = ()
    gang: str | None = None
    exact: bool = False
    makes_gangs: bool = False
    probes: Mapping[Resource, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def group(self) -> str:
        """The API group of its kinds."""
        return self.kinds[0].group

    @property
    def guide(self) -> Guide | None:
        """The way to install it; None: nobody has written it down here."""
        return guide_of(self.id) or (Guide({"commands": self.install}) if self.install else None)


def _probe(resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "allaboard-probe"},
        "spec": spec,
    }


def operators(engines: Iterable[Engine]) -> Iterator[Component]:
    """The operator of each engine, once."""
    by_id: dict[str, list[Engine]] = {}
    for engine in engines:
        by_id.setdefault(engine.OPERATOR.id, []).append(engine)
    for of_it in by_id.values():
        operator = of_it[0].OPERATOR
        yield Component(
            operator.id,
            operator.title,
            tuple(resource_for(engine) for engine in of_it),
            operator.home,
            operator.install,
            exact=operator.exact,
            makes_gangs=any(engine.NATIVELY for engine in of_it),
            probes={
                resource_for(engine): _probe(resource_for(engine), engine.PROBE)
                for engine in of_it
                if engine.PROBE is not None
            },
        )


_OTHERS: tuple[Component, ...] = (
    Component(
        "coscheduling",
        "coscheduling (scheduler-plugins)",
        (PODGROUPS_COSCHEDULING,),
        "scheduler-plugins",
        gang="coscheduling",
    ),
    Component(
        "workload",
        "kube-scheduler's own gang scheduling",
        (PODGROUPS, PODGROUPS_ALPHA),
        "kube-system",
        gang="workload",
    ),
    Component(
        "volcano",
        "Volcano",
        (PODGROUPS_VOLCANO,),
        "volcano-system",
        gang="volcano",
    ),
    Component(
        "kai",
        "KAI Scheduler",
        (PODGROUPS_KAI,),
        "kai-scheduler",
        gang="kai",
    ),
    Component(
        "kueue",
        "Kueue",
        (LOCALQUEUES,),
        "kueue-system",
        gang="kueue",
    ),
)
_OURS = tuple(operators(ENGINES.values()))
PARTS: tuple[Component, ...] = (
    *_OURS,
    *(part for part in _OTHERS if part.id not in {operator.id for operator in _OURS}),
)
BY_GANG: Mapping[str, Component] = {part.gang: part for part in PARTS if part.gang}


def part_of(resource: Resource) -> Component | None:
    """The part that serves a kind, by its version before any other; None: it is not known."""
    same = [part for part in PARTS if resource in part.kinds]
    like = [p for p in PARTS for k in p.kinds if (k.group, k.kind) == (resource.group, resource.kind)]
    return next(iter(same + like), None)


def guide_for(resource: Resource) -> Guide | None:
    """The way to install the part that serves a kind; None: nobody has written it down here. For kinds of
    ours it is the guide of their engine, since an operator may have known some in old releases alone.
    """
    for engine in ENGINES.values():
        if resource_for(engine) == resource and engine.OPERATOR.guide:
            return guide_of(engine.OPERATOR.guide)
    part = part_of(resource)
    return part.guide if part is not None else None

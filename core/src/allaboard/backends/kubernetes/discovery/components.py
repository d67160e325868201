"""What a cluster may have installed for training: operators, gang schedulers, queues; how each shows itself,
and the commands that install it. The operators of our engines are told by these; the others are a table.
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
from allaboard.engines import ENGINES, Engine

LOCALQUEUES = Resource("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue")
CLUSTERQUEUES = Resource("kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
TOPOLOGIES = Resource("kueue.x-k8s.io", "v1beta2", "topologies", "Topology", namespaced=False)
KUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
WORKLOAD_PRIORITIES = Resource(
    "kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False
)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)


@dataclass(frozen=True, slots=True)
class Component:
    """``kinds``: each of them shows that it is installed; ``home``: the namespace where it lives when it was
    installed as its guide says; ``gang``: the name by which a job asks for it, when it makes members start
    together. ``exact``: other versions of these kinds are another's; ``makes_gangs``: whether it is an
    operator that may make members start together by itself. ``probes``: by kind, an object that its own
    webhook refuses and nothing else does: a dry run of one tells whether it is alive.
    """

    id: str
    title: str
    kinds: tuple[Resource, ...]
    home: str
    install: tuple[str, ...]
    gang: str | None = None
    exact: bool = False
    makes_gangs: bool = False
    probes: Mapping[Resource, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def group(self) -> str:
        """The API group of its kinds."""
        return self.kinds[0].group


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
        (
            "helm install --repo https://scheduler-plugins.sigs.k8s.io scheduler-plugins scheduler-plugins "
            "--namespace scheduler-plugins --create-namespace",
        ),
        gang="coscheduling",
    ),
    Component(
        "workload",
        "kube-scheduler's own gang scheduling",
        (PODGROUPS, PODGROUPS_ALPHA),
        "kube-system",
        (
            "# Kubernetes 1.37, on kube-apiserver and on kube-scheduler:",
            "--feature-gates=GenericWorkload=true",
            "# and on kube-apiserver:",
            "--runtime-config=scheduling.k8s.io/v1beta1=true",
            "# (1.36: GenericWorkload=true,GangScheduling=true, and scheduling.k8s.io/v1alpha2=true)",
        ),
        gang="workload",
    ),
    Component(
        "volcano",
        "Volcano",
        (PODGROUPS_VOLCANO,),
        "volcano-system",
        (
            "helm install --repo https://volcano-sh.github.io/helm-charts volcano volcano "
            "--namespace volcano-system --create-namespace",
        ),
        gang="volcano",
    ),
    Component(
        "kai",
        "KAI Scheduler",
        (PODGROUPS_KAI,),
        "kai-scheduler",
        (
            "helm upgrade --install kai-scheduler oci://ghcr.io/nvidia/kai-scheduler/kai-scheduler "
            "--version v0.13.0 --namespace kai-scheduler --create-namespace",
        ),
        gang="kai",
    ),
    Component(
        "kueue",
        "Kueue",
        (LOCALQUEUES,),
        "kueue-system",
        (
            "kubectl apply --server-side -f "
            "https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml",
        ),
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

"""What a cluster may have installed for training: operators, gang schedulers, queues. A table: how each
shows itself, and the commands that install it. Adding one is adding a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allaboard.backends.kubernetes.client.resources import (
    JOBSETS,
    MPIJOBS,
    PODGROUPS,
    PODGROUPS_COSCHEDULING,
    PODGROUPS_VOLCANO,
    PYTORCHJOBS,
    TRAINJOBS,
    Resource,
)

LOCALQUEUES = Resource("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue")
KUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)


@dataclass(frozen=True, slots=True)
class Component:
    """``kind``: the kind that shows that it is installed; ``home``: the namespace where it lives when it
    was installed as its guide says; ``gang``: the name by which a job asks for it, when it makes members
    start together. ``exact``: other versions of that kind are another's. ``probe``: an object that its own
    webhook refuses and nobody else does: a dry run of it tells whether it is alive.
    """

    id: str
    title: str
    kind: Resource
    home: str
    install: tuple[str, ...]
    gang: str | None = None
    exact: bool = False
    probe: Mapping[str, Any] | None = field(default=None, repr=False)


def _job(resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "allaboard-probe"},
        "spec": spec,
    }


# A PyTorchJob whose container has another name than the operator asks for; a TrainJob of a runtime that is
# not there.
_WRONG_PYTORCHJOB = _job(
    PYTORCHJOBS,
    {
        "pytorchReplicaSpecs": {
            "Worker": {
                "replicas": 1,
                "template": {"spec": {"containers": [{"name": "probe", "image": "probe"}]}},
            }
        }
    },
)
# And a JobSet whose success depends on a job that it does not have.
_WRONG_JOBSET = _job(
    JOBSETS,
    {"replicatedJobs": [], "successPolicy": {"operator": "All", "targetReplicatedJobs": ["not-there"]}},
)
_WRONG_TRAINJOB = _job(TRAINJOBS, {"runtimeRef": {"name": "allaboard-probe-is-not-there"}})

PARTS: tuple[Component, ...] = (
    Component(
        "training-operator",
        "Training Operator v1",
        PYTORCHJOBS,
        "kubeflow",
        (
            "kubectl apply --server-side -k "
            '"https://github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.4"',
        ),
        probe=_WRONG_PYTORCHJOB,
    ),
    Component(
        "trainer",
        "Trainer v2",
        TRAINJOBS,
        "kubeflow-system",
        (
            "kubectl apply --server-side -k "
            '"https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"',
            "kubectl apply --server-side -k "
            '"https://github.com/kubeflow/trainer.git/manifests/overlays/runtimes?ref=v2.3.0"',
        ),
        probe=_WRONG_TRAINJOB,
    ),
    Component(
        "jobset",
        "JobSet",
        JOBSETS,
        "jobset-system",
        (
            "kubectl apply --server-side -f "
            "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml",
        ),
        probe=_WRONG_JOBSET,
    ),
    Component(
        "mpi-operator",
        "MPI Operator",
        MPIJOBS,  # MPIJob v1 is the Training Operator's
        "mpi-operator",
        (
            "kubectl apply --server-side -f "
            "https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.7.0/deploy/v2beta1/mpi-operator.yaml",
        ),
        exact=True,
    ),
    Component(
        "coscheduling",
        "coscheduling (scheduler-plugins)",
        PODGROUPS_COSCHEDULING,
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
        PODGROUPS,
        "kube-system",
        (
            "# Kubernetes 1.36, on kube-apiserver and on kube-scheduler:",
            "--feature-gates=GenericWorkload=true,GangScheduling=true",
            "# and on kube-apiserver:",
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        ),
        gang="workload",
    ),
    Component(
        "volcano",
        "Volcano",
        PODGROUPS_VOLCANO,
        "volcano-system",
        (
            "helm install --repo https://volcano-sh.github.io/helm-charts volcano volcano "
            "--namespace volcano-system --create-namespace",
        ),
        gang="volcano",
    ),
    Component(
        "kueue",
        "Kueue",
        LOCALQUEUES,
        "kueue-system",
        (
            "kubectl apply --server-side -f "
            "https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml",
        ),
        gang="kueue",
    ),
)
BY_GANG: Mapping[str, Component] = {part.gang: part for part in PARTS if part.gang}
BY_KIND: Mapping[tuple[str, str], Component] = {(part.kind.group, part.kind.kind): part for part in PARTS}

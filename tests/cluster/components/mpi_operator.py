"""MPI Operator: MPIJob v2beta1.

Its definition has the name of the Training Operator's MPIJob v1, and takes its place.
"""

from __future__ import annotations

from functools import partial

from tests.cluster.api import Object, until
from tests.cluster.build import Build
from tests.cluster.components import Component
from tests.cluster.manifests import namespace, only, placed
from tests.cluster.plane import ControlPlane

MPIJOBS = "mpijobs.kubeflow.org"
NAMESPACE = "mpi-operator"
HEALTH = 8080
"""Its port for health checks, fixed at compile time: one MPI Operator at a time on a machine."""
FILES = "manifests/base"
MPI_OPERATOR = Build(
    "mpi-operator",
    "github.com/kubeflow/mpi-operator",
    (("mpi-operator", "github.com/kubeflow/mpi-operator/cmd/mpi-operator"),),
    files=tuple(
        f"{FILES}/{name}.yaml"
        for name in ("kubeflow.org_mpijobs", "cluster-role", "cluster-role-binding", "service-account")
    ),
    minutes=1.9,
)


def objects(plane: ControlPlane) -> list[Object]:
    _take_over(plane)
    published = MPI_OPERATOR.objects(*MPI_OPERATOR.files)
    return [
        *only(published, "CustomResourceDefinition"),
        namespace(NAMESPACE),
        *placed(only(published, "ServiceAccount", "ClusterRole", "ClusterRoleBinding"), NAMESPACE),
    ]


def _take_over(plane: ControlPlane) -> None:
    """On a plane that ran without it, MPIJob is the Training Operator's, which must let go of it first."""
    definition = plane.api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", MPIJOBS)
    if definition is None or any(each["name"] == "v2beta1" for each in definition["spec"]["versions"]):
        return
    if plane.runs("training-operator"):
        plane.restart("training-operator")
    plane.api.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", MPIJOBS)
    look = partial(plane.api.get, "apiextensions.k8s.io/v1", "CustomResourceDefinition", MPIJOBS)
    until("the definition of MPIJob v1 to be gone", lambda: look() is None)


def command(plane: ControlPlane) -> list[str]:
    return [
        MPI_OPERATOR.binary("mpi-operator"),
        f"--kubeConfig={plane.kubeconfig_of_operator(NAMESPACE, 'mpi-operator')}",
        f"--lock-namespace={NAMESPACE}",
        "-alsologtostderr",
    ]


def ready(plane: ControlPlane) -> bool:
    """It leads: its lease names an owner that is alive."""
    return plane.healthy("mpi-operator", "/healthz", tls=False) and _leads(plane)


def _leads(plane: ControlPlane) -> bool:
    lease = plane.api.get("coordination.k8s.io/v1", "Lease", "mpi-operator", NAMESPACE)
    return bool(lease and lease["spec"].get("holderIdentity"))


COMPONENTS = (
    Component(
        "mpi-operator",
        "MPIJob v2beta1",
        MPI_OPERATOR,
        command,
        ready,
        needs=("kube-apiserver",),
        fixed_port=HEALTH,
        objects=objects,
        serves=("kubeflow.org/v2beta1", "MPIJob"),
    ),
)

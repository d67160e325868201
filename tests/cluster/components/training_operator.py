"""Training Operator v1: PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob, MPIJob v1.

Gang scheduling is a flag of the whole operator: ``flags={"training-operator":
["--gang-scheduler-name=..."]}`` when the plane is made, or the same with ``plane.restart``.
"""

from __future__ import annotations

from tests.cluster.api import Object
from tests.cluster.build import Build
from tests.cluster.components import Component
from tests.cluster.manifests import namespace, only, patched, placed
from tests.cluster.plane import ControlPlane
from tests.cluster.webhooks import Webhook

NAMESPACE = "kubeflow"
KUBECTL = ["--mpi-kubectl-delivery-image=alpine:3.10"]
"""The flag by which launchers of MPIJob v1 get an image that is known here and brings no kubectl."""
FILES = "manifests/base"
TRAINING_OPERATOR = Build(
    "training-operator",
    "github.com/kubeflow/training-operator",
    (("training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1"),),
    files=(f"{FILES}/crds/kubeflow.org_*.yaml", f"{FILES}/rbac/*.yaml", f"{FILES}/webhook/*.yaml"),
    minutes=1.2,
)
WEBHOOK = Webhook(
    "training-operator",
    NAMESPACE,
    service="training-operator",
    secret="training-operator-webhook-cert",
    authority="training-operator-ca",
)
SCHEMES = ("tfjob", "pytorchjob", "xgboostjob", "paddlejob", "jaxjob", "mpijob")


def objects(plane: ControlPlane) -> list[Object]:
    crds = TRAINING_OPERATOR.objects(f"{FILES}/crds/kubeflow.org_*.yaml")
    # The MPI Operator's MPIJob is a definition of the same name: as its guide says, it takes the place of
    # this one.
    crds = [crd for crd in crds if crd["spec"]["names"]["kind"] != "MPIJob" or not _mpi_operator(plane)]
    rbac = TRAINING_OPERATOR.objects(f"{FILES}/rbac/*.yaml")
    return [
        *crds,
        namespace(NAMESPACE),
        *placed(only(rbac, "ServiceAccount", "ClusterRole", "ClusterRoleBinding"), NAMESPACE),
        *WEBHOOK.objects(plane, configurations()),
    ]


def configurations() -> list[Object]:
    [published] = TRAINING_OPERATOR.objects(f"{FILES}/webhook/manifests.yaml")
    [patch] = TRAINING_OPERATOR.objects(f"{FILES}/webhook/patch.yaml")
    return [patched(published, patch)]


def command(plane: ControlPlane) -> list[str]:
    schemes = [scheme for scheme in SCHEMES if scheme != "mpijob" or not _mpi_operator(plane)]
    return [
        TRAINING_OPERATOR.binary("training-operator"),
        f"--kubeconfig={plane.kubeconfig_of_operator(NAMESPACE, 'training-operator')}",
        f"--webhook-server-port={plane.port('training-operator', 'webhook')}",
        f"--health-probe-bind-address=127.0.0.1:{plane.port('training-operator', 'health')}",
        "--metrics-bind-address=0",
        *(f"--enable-scheme={scheme}" for scheme in schemes),
    ]


def _mpi_operator(plane: ControlPlane) -> bool:
    return any(part.name == "mpi-operator" for part in plane.parts)


COMPONENTS = (
    Component(
        "training-operator",
        "PyTorchJob and its kin, with the validating webhook",
        TRAINING_OPERATOR,
        command,
        ready=lambda plane: WEBHOOK.ready(plane, configurations()),
        needs=("kube-apiserver",),
        ports=("webhook", "health"),
        prepare=WEBHOOK.prepare,
        objects=objects,
        environ=lambda plane: {"MY_POD_NAMESPACE": NAMESPACE},
        serves=("kubeflow.org/v1", "PyTorchJob"),
    ),
)

"""Trainer v2: TrainJob over JobSet, with the runtimes that the project publishes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import yaml

from tests.cluster.api import Object
from tests.cluster.build import Build
from tests.cluster.components import Component
from tests.cluster.manifests import namespace, only, patched, placed
from tests.cluster.plane import ControlPlane
from tests.cluster.webhooks import MOUNT, Webhook

NAMESPACE = "kubeflow-system"
NAME = "kubeflow-trainer-controller-manager"
FILES = "manifests/base"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
STATUS_SERVER = "--feature-gates=TrainJobStatus=true"
"""The flag by which it serves what a TrainJob tells of its progress (KEP-2779)."""
TRAINER = Build(
    "trainer",
    "github.com/kubeflow/trainer/v2",
    (("trainer", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"),),
    files=(
        f"{FILES}/crds/trainer.kubeflow.org_*.yaml",
        f"{FILES}/rbac/*.yaml",
        f"{FILES}/webhook/*.yaml",
        f"{FILES}/runtimes/*_distributed.yaml",
    ),
    minutes=1.2,
)
WEBHOOK = Webhook(
    "trainer",
    NAMESPACE,
    service=NAME,
    secret="kubeflow-trainer-webhook-cert",
    authority="kubeflow-trainer-ca",
)


def objects(plane: ControlPlane) -> list[Object]:
    rbac = TRAINER.objects(f"{FILES}/rbac/*.yaml")
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    return [
        *TRAINER.objects(f"{FILES}/crds/trainer.kubeflow.org_*.yaml"),
        namespace(NAMESPACE),
        *placed(only(rbac, *kinds), NAMESPACE),
        *WEBHOOK.objects(plane, configurations()),
    ]


def configurations() -> list[Object]:
    mutating, validating = TRAINER.objects(f"{FILES}/webhook/manifests.yaml")
    [to_mutating] = TRAINER.objects(f"{FILES}/webhook/patch_mutating.yaml")
    [to_validating] = TRAINER.objects(f"{FILES}/webhook/patch_validating.yaml")
    return [patched(mutating, to_mutating), patched(validating, to_validating)]


def prepare(plane: ControlPlane) -> None:
    WEBHOOK.prepare(plane)
    config = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{plane.port('trainer', 'health')}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": plane.port("trainer", "webhook")},
        "statusServer": {"port": plane.port("trainer", "status")},
        "leaderElection": {"leaderElect": False},
        "certManagement": {
            "enable": True,
            "webhookServiceName": WEBHOOK.service,
            "webhookSecretName": WEBHOOK.secret,
        },
    }
    (plane.folder("trainer") / "config.json").write_text(json.dumps(config, indent=2))


def command(plane: ControlPlane) -> list[str]:
    kubeconfig = plane.kubeconfig_of_operator(NAMESPACE, NAME)
    config = plane.folder("trainer") / "config.json"
    program = [TRAINER.binary("trainer"), f"--kubeconfig={kubeconfig}", f"--config={config}"]
    has_server = STATUS_SERVER in plane.flags("trainer")
    return [*_as_in_a_pod(plane, kubeconfig), *program] if has_server else program


def _as_in_a_pod(plane: ControlPlane, kubeconfig: Path) -> list[str]:
    """What runs a program where token and certificate lie as in a pod. The status server reads there who
    issues tokens, and what it shows who it is.
    """
    token = plane.folder("trainer") / "token"
    token.write_text(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])
    put = (
        f"mount --bind {shlex.quote(str(WEBHOOK.folder(plane)))} {MOUNT} && mount -t tmpfs none /run && "
        f'mkdir -p {ACCOUNT} && cp {shlex.quote(str(token))} {ACCOUNT}/token && exec "$@"'
    )
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", put, "sh"]


def settle(plane: ControlPlane) -> None:
    # These pass the webhook, so they wait for it.
    plane.api.apply(only(TRAINER.objects(f"{FILES}/runtimes/*_distributed.yaml"), "ClusterTrainingRuntime"))


COMPONENTS = (
    Component(
        "trainer",
        "TrainJob and its runtimes",
        TRAINER,
        command,
        ready=lambda plane: WEBHOOK.ready(plane, configurations()),
        needs=("jobset",),
        ports=("webhook", "health", "status"),
        prepare=prepare,
        objects=objects,
        settle=settle,
        serves=("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    ),
)

"""JobSet, of which Trainer v2 makes its pods; also an engine of its own."""

from __future__ import annotations

import json

from tests.cluster.api import Object
from tests.cluster.build import Build
from tests.cluster.components import Component
from tests.cluster.manifests import namespace, only, patched, placed
from tests.cluster.plane import ControlPlane
from tests.cluster.webhooks import Webhook

NAMESPACE = "jobset-system"
FILES = "config/components"
JOBSET = Build(
    "jobset",
    "sigs.k8s.io/jobset",
    (("jobset", "sigs.k8s.io/jobset"),),
    files=(
        f"{FILES}/crd/bases/*.yaml",
        f"{FILES}/rbac/*.yaml",
        f"{FILES}/webhook/manifests.yaml",
        f"{FILES}/webhook/patches/*.yaml",
    ),
    minutes=1.2,
)
WEBHOOK = Webhook(
    "jobset",
    NAMESPACE,
    service="jobset-webhook-service",
    secret="jobset-webhook-server-cert",
    authority="jobset-ca",
)


def objects(plane: ControlPlane) -> list[Object]:
    rbac = JOBSET.objects(f"{FILES}/rbac/*.yaml")
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    return [
        *JOBSET.objects(f"{FILES}/crd/bases/*.yaml"),
        namespace(NAMESPACE),
        *placed(only(rbac, *kinds), NAMESPACE, prefix="jobset-"),
        *WEBHOOK.objects(plane, configurations()),
    ]


def configurations() -> list[Object]:
    mutating, validating = JOBSET.objects(f"{FILES}/webhook/manifests.yaml")
    # Without these, every pod of the cluster would have to pass JobSet's webhook, not only those of JobSets.
    [to_mutating] = JOBSET.objects(f"{FILES}/webhook/patches/mutating-patch.yaml")
    [to_validating] = JOBSET.objects(f"{FILES}/webhook/patches/validating-patch.yaml")
    both = [patched(mutating, to_mutating), patched(validating, to_validating)]
    return placed(both, NAMESPACE, prefix="jobset-")


def prepare(plane: ControlPlane) -> None:
    WEBHOOK.prepare(plane)
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{plane.port('jobset', 'health')}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": plane.port("jobset", "webhook")},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": WEBHOOK.service,
            "webhookSecretName": WEBHOOK.secret,
        },
    }
    (plane.folder("jobset") / "config.json").write_text(json.dumps(config, indent=2))


def command(plane: ControlPlane) -> list[str]:
    return [
        JOBSET.binary("jobset"),
        f"--kubeconfig={plane.kubeconfig_of_operator(NAMESPACE, 'jobset-controller-manager')}",
        f"--config={plane.folder('jobset') / 'config.json'}",
    ]


COMPONENTS = (
    Component(
        "jobset",
        "JobSet",
        JOBSET,
        command,
        ready=lambda plane: WEBHOOK.ready(plane, configurations()),
        needs=("kube-apiserver",),
        ports=("webhook", "health"),
        prepare=prepare,
        objects=objects,
        serves=("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ),
)

"""Kueue: queues with quotas. It admits whole jobs, by lifting their suspension; it places no pods.

It is built by hand: ``KUEUE_TREE``. The kinds of kubeflow.org/v1, which its published configuration leaves
out, are on. Its server of queue positions (an aggregated API) is off.
"""

from __future__ import annotations

import copy
import json

import yaml

from tests.cluster.api import Object
from tests.cluster.components import Component
from tests.cluster.manifests import namespace, only, placed
from tests.cluster.plane import ControlPlane
from tests.cluster.trees import Tree
from tests.cluster.webhooks import Webhook

NAMESPACE = "kueue-system"
FILES = "config/components"
CONFIG = f"{FILES}/manager/controller_manager_config.yaml"
PROGRAM = "bin/manager"
KUEUE = Tree(
    "Kueue",
    "KUEUE_TREE",
    programs=(PROGRAM,),
    files=(f"{FILES}/crd/kustomization.yaml", f"{FILES}/rbac", f"{FILES}/webhook/manifests.yaml", CONFIG),
)
WEBHOOK = Webhook(
    "kueue",
    NAMESPACE,
    service="kueue-webhook-service",
    secret="kueue-webhook-server-cert",
    authority="kueue-ca",
)
KUBEFLOW = tuple(f"kubeflow.org/{kind}job" for kind in ("pytorch", "tf", "xgboost", "paddle", "jax"))
OWN = ("kube-system", NAMESPACE)
"""Namespaces whose pods need no leave of Kueue: those of the control plane, and Kueue's."""


def objects(plane: ControlPlane) -> list[Object]:
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    rbac = placed(only(KUEUE.objects(f"{FILES}/rbac/*.yaml"), *kinds), NAMESPACE, prefix="kueue-")
    return [
        *definitions(plane),
        namespace(NAMESPACE),
        *(_renamed(each) for each in rbac),
        *WEBHOOK.objects(plane, configurations()),
    ]


def definitions(plane: ControlPlane) -> list[Object]:
    """The kinds, some with the way to their conversion. Kueue adds the certificate to it."""
    [published] = KUEUE.objects(f"{FILES}/crd/kustomization.yaml")
    patches = [KUEUE.objects(f"{FILES}/crd/{patch['path']}")[0] for patch in published["patches"]]
    ways = {patch["metadata"]["name"]: patch["spec"]["conversion"] for patch in patches}
    found = KUEUE.objects(f"{FILES}/crd/bases/*.yaml")
    for crd in found:
        if way := ways.get(crd["metadata"]["name"]):
            way["webhook"]["clientConfig"]["service"] |= {
                "name": WEBHOOK.service,
                "namespace": NAMESPACE,
                "port": plane.port("kueue", "webhook"),
            }
            crd["spec"]["conversion"] = way
    return found


def configurations() -> list[Object]:
    both = placed(KUEUE.objects(f"{FILES}/webhook/manifests.yaml"), NAMESPACE, prefix="kueue-")
    elsewhere = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(OWN)}
    for webhook in (each for configuration in both for each in configuration["webhooks"]):
        groups = {group for rule in webhook["rules"] for group in rule["apiGroups"]}
        if "kueue.x-k8s.io" not in groups:
            webhook["namespaceSelector"] = {"matchExpressions": [copy.deepcopy(elsewhere)]}
    return both


def _renamed(obj: Object) -> Object:
    """Rules that name the webhook configurations name them with their prefix."""
    for rule in obj.get("rules", ()):
        names = rule.get("resourceNames", ())
        rule |= {"resourceNames": [_prefixed(each) for each in names]} if names else {}
    return obj


def _prefixed(name: str) -> str:
    return f"kueue-{name}" if name.endswith("-webhook-configuration") else name


def prepare(plane: ControlPlane) -> None:
    WEBHOOK.prepare(plane)
    config = yaml.safe_load(KUEUE.path(CONFIG).read_text())
    frameworks = config["integrations"]["frameworks"]
    config["integrations"]["frameworks"] = list(dict.fromkeys([*frameworks, *KUBEFLOW]))
    config |= {
        "health": {"healthProbeBindAddress": f"127.0.0.1:{plane.port('kueue', 'health')}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": plane.port("kueue", "webhook"), "certDir": str(WEBHOOK.folder(plane))},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": WEBHOOK.service,
            "webhookSecretName": WEBHOOK.secret,
        },
    }
    (plane.folder("kueue") / "config.json").write_text(json.dumps(config, indent=2))


def command(plane: ControlPlane) -> list[str]:
    return [
        str(KUEUE.path(PROGRAM)),
        f"--kubeconfig={plane.kubeconfig_of_operator(NAMESPACE, 'kueue-controller-manager')}",
        f"--config={plane.folder('kueue') / 'config.json'}",
        "--feature-gates=VisibilityOnDemand=false",
        "--zap-log-level=2",
    ]


COMPONENTS = (
    Component(
        "kueue",
        "queues with quotas, by which jobs are suspended until there is room",
        None,
        command,
        ready=lambda plane: WEBHOOK.ready(plane, configurations()),
        # Kinds that come later than it does, it notices late.
        needs=("training-operator",),
        ports=("webhook", "health"),
        obstacle=KUEUE.obstacle,
        prepare=prepare,
        objects=objects,
        serves=("kueue.x-k8s.io/v1beta2", "ClusterQueue"),
    ),
)

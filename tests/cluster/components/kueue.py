"""Kueue: queues with quotas. It admits whole jobs, by lifting their suspension; it places no pods.

It is built by hand: ``KUEUE_TREE``. The kinds of kubeflow.org/v1, which its published configuration leaves
out, are on. So is its server of queue positions, an API of its own behind the API server, where this user may
write to the root folder: it keeps its certificate in ``/visibility``, which no setting changes.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
POSITIONS = f"{FILES}/visibility"
SERVER = "visibility-server"
TELLS_POSITIONS = os.access("/", os.W_OK)
CERTIFICATES = Path("/visibility")
PROGRAM = "bin/manager"
KUEUE = Tree(
    "Kueue",
    "KUEUE_TREE",
    programs=(PROGRAM,),
    files=(
        f"{POSITIONS}/service.yaml",
        f"{FILES}/crd/kustomization.yaml",
        f"{FILES}/rbac",
        f"{FILES}/webhook/manifests.yaml",
        CONFIG,
    ),
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


@contextmanager
def without_certificates() -> Iterator[None]:
    """Its certificates go at the end, if they were not there before."""
    was_there = CERTIFICATES.exists()
    try:
        yield
    finally:
        if not was_there:
            shutil.rmtree(CERTIFICATES, ignore_errors=True)


def objects(plane: ControlPlane) -> list[Object]:
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    rbac = placed(only(KUEUE.objects(f"{FILES}/rbac/*.yaml"), *kinds), NAMESPACE, prefix="kueue-")
    return [
        *definitions(plane),
        namespace(NAMESPACE),
        *(_renamed(each) for each in rbac),
        *WEBHOOK.objects(plane, configurations()),
        *(positions(plane) if TELLS_POSITIONS else ()),
    ]


def positions(plane: ControlPlane) -> list[Object]:
    """The way to its server of positions, and the right to read whom the API server speaks for."""
    [binding] = placed(KUEUE.objects(f"{POSITIONS}/role_binding.yaml"), NAMESPACE, prefix="kueue-")
    binding["metadata"]["namespace"] = "kube-system"
    binding["subjects"] = [
        {"kind": "ServiceAccount", "name": "kueue-controller-manager", "namespace": NAMESPACE}
    ]
    binding["roleRef"]["name"] = "extension-apiserver-authentication-reader"
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVER, "namespace": NAMESPACE}}
    found = [binding, {**service, "spec": {"type": "ExternalName", "externalName": "localhost"}}]
    for api in KUEUE.objects(f"{POSITIONS}/apiservice_*.yaml"):
        way = {"name": SERVER, "namespace": NAMESPACE, "port": plane.port("kueue", "positions")}
        found.append({**api, "spec": {**api["spec"], "service": way}})
    return found


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
        "visibilityServer": {"bindAddress": "127.0.0.1", "bindPort": plane.port("kueue", "positions")},
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
        f"--feature-gates=VisibilityOnDemand={str(TELLS_POSITIONS).lower()}",
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
        ports=("webhook", "health", "positions"),
        obstacle=KUEUE.obstacle,
        prepare=prepare,
        objects=objects,
        serves=("kueue.x-k8s.io/v1beta2", "ClusterQueue"),
        tidied=without_certificates,
    ),
)

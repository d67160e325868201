"""Volcano: a scheduler of gangs by PodGroups and queues, for pods whose schedulerName is ``volcano``, and the
controllers beside it. Its admission webhooks, which default and check PodGroups and queues, are left out.

It is built by hand: ``VOLCANO_TREE``. The Training Operator makes its PodGroups when it is started with
``--gang-scheduler-name=volcano``.
"""

from __future__ import annotations

from tests.cluster.api import Object
from tests.cluster.components import Component
from tests.cluster.manifests import only
from tests.cluster.plane import ControlPlane
from tests.cluster.trees import Tree

SCHEDULER = "volcano"
NAMESPACE = "volcano-system"
PROGRAMS = "_output/bin"
INSTALLER = "installer/volcano-development.yaml"
VOLCANO = Tree(
    "Volcano",
    "VOLCANO_TREE",
    programs=(f"{PROGRAMS}/vc-scheduler", f"{PROGRAMS}/vc-controller-manager"),
    files=(INSTALLER,),
)


def objects(plane: ControlPlane) -> list[Object]:
    published = VOLCANO.objects(INSTALLER)
    kinds = ("CustomResourceDefinition", "Namespace", "ServiceAccount", "ConfigMap", "ClusterRole")
    rest = only(published, *kinds, "ClusterRoleBinding")
    # Custom resources and namespaces first: the rest lies in them.
    return [*only(rest, *kinds[:2]), *(each for each in rest if each["kind"] not in kinds[:2])]


def prepare(plane: ControlPlane) -> None:
    [config] = [
        each
        for each in only(VOLCANO.objects(INSTALLER), "ConfigMap")
        if each["metadata"]["name"] == "volcano-scheduler-configmap"
    ]
    [(name, text)] = config["data"].items()
    (plane.folder("volcano") / name).write_text(text)


def scheduler(plane: ControlPlane) -> list[str]:
    return [
        str(VOLCANO.path(f"{PROGRAMS}/vc-scheduler")),
        f"--kubeconfig={plane.kubeconfig_of_operator(NAMESPACE, 'volcano-scheduler')}",
        f"--scheduler-conf={plane.folder('volcano') / 'volcano-scheduler.conf'}",
        "--disable-default-scheduler-config",
        "--leader-elect=false",
        "--enable-healthz",
        f"--healthz-address=127.0.0.1:{plane.port('volcano', 'health')}",
        "--cache-dumper=false",
        "-v=3",
    ]


def controllers(plane: ControlPlane) -> list[str]:
    return [
        str(VOLCANO.path(f"{PROGRAMS}/vc-controller-manager")),
        f"--kubeconfig={plane.kubeconfig_of_operator(NAMESPACE, 'volcano-controllers')}",
        "--leader-elect=false",
        "--enable-healthz",
        f"--healthz-address=127.0.0.1:{plane.port('volcano-controllers', 'health')}",
    ]


def scheduler_ready(plane: ControlPlane) -> bool:
    # Its health says nothing about its cache: it makes the default queue when it starts to fill it, and a
    # PodGroup without a queue that is open is ignored.
    queue = plane.api.get("scheduling.volcano.sh/v1beta1", "Queue", "default") or {}
    healthy = plane.healthy("volcano", "/healthz", "health", tls=False)
    return healthy and (queue.get("status") or {}).get("state") == "Open"


COMPONENTS = (
    Component(
        "volcano-controllers",
        "queues, PodGroups of single pods, Volcano's own jobs",
        None,
        controllers,
        ready=lambda plane: plane.healthy("volcano-controllers", "/healthz", "health", tls=False),
        needs=("kube-apiserver",),
        ports=("health",),
        obstacle=VOLCANO.obstacle,
        objects=objects,
        environ=lambda plane: {"KUBE_POD_NAMESPACE": NAMESPACE, "HELM_RELEASE_NAME": "volcano"},
    ),
    Component(
        "volcano",
        f"gang scheduling by PodGroups and queues, for pods whose schedulerName is {SCHEDULER}",
        None,
        scheduler,
        ready=scheduler_ready,
        needs=("volcano-controllers",),
        ports=("health",),
        obstacle=VOLCANO.obstacle,
        prepare=prepare,
        environ=lambda plane: {"DEBUG_SOCKET_DIR": str(plane.folder("volcano"))},
        serves=("scheduling.volcano.sh/v1beta1", "PodGroup"),
    ),
)

"""KAI Scheduler: gangs by PodGroups and queues, for pods whose schedulerName is ``kai-scheduler``. Its
pod-grouper makes the PodGroups, its scheduler chooses the nodes, its binder binds.

It is built by hand: ``KAI_TREE``. Its operator, which starts these three as deployments, is left out; so are
its admission webhooks, and the controllers that keep counts in the status of PodGroups (one of which takes
port 8080 whatever it is told) and of queues. The scheduler has its own defaults, which the operator writes,
too.
"""

from __future__ import annotations

import yaml

from tests.cluster.api import Object
from tests.cluster.components import Component
from tests.cluster.manifests import namespace, only
from tests.cluster.plane import ControlPlane
from tests.cluster.trees import Tree

SCHEDULER = "kai-scheduler"
NAMESPACE = "kai-scheduler"
CHART = "deployments/kai-scheduler"
ROLES = ("scheduler", "podgrouper", "binder")
"""Programs, and files of the chart that say what they may do."""
KAI = Tree(
    "KAI Scheduler",
    "KAI_TREE",
    programs=tuple(f"bin/{role}" for role in ROLES),
    files=(
        f"{CHART}/crds/scheduling.run.ai_podgroups.yaml",
        *(f"{CHART}/templates/rbac/{role}{end}.yaml" for role in ROLES for end in ("", "-binding")),
    ),
)
ROOT_QUEUE = "default-parent-queue"
DEFAULT_QUEUE = "default-queue"


def queue(name: str, parent: str | None = None, **limits: int) -> Object:
    """A queue that may use what is free, up to these limits: ``cpu`` in thousandths of a core, ``gpu``,
    ``memory`` in MB.
    """
    resources = {
        each: {"quota": 0, "limit": limits.get(each, -1), "overQuotaWeight": 1}
        for each in ("cpu", "gpu", "memory")
    }
    above = {} if parent is None else {"parentQueue": parent}
    body = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}}
    return {**body, "spec": {**above, "resources": resources}}


def objects(plane: ControlPlane) -> list[Object]:
    granted = [each for role in ROLES for each in _granted(role)]
    accounts = [subject for each in only(granted, "ClusterRoleBinding") for subject in each["subjects"]]
    return [
        *KAI.objects(f"{CHART}/crds/*.yaml"),
        namespace(NAMESPACE),
        *({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _place(each)} for each in accounts),
        *granted,
    ]


def _place(subject: Object) -> Object:
    return {"name": subject["name"], "namespace": subject["namespace"]}


def _granted(role: str) -> list[Object]:
    """The role of a program and to whom it is given: of the language of charts they have one word alone."""
    texts = [KAI.path(f"{CHART}/templates/rbac/{role}{end}.yaml").read_text() for end in ("", "-binding")]
    plain = "\n---\n".join(texts).replace("{{ .Release.Namespace }}", NAMESPACE)
    return [each for each in yaml.safe_load_all(plain) if each]


def _environ(plane: ControlPlane, role: str) -> dict[str, str]:
    """Not all of the programs have a flag for it."""
    [binding] = only(_granted(role), "ClusterRoleBinding")
    account = binding["subjects"][0]["name"]
    return {"KUBECONFIG": str(plane.kubeconfig_of_operator(NAMESPACE, account)), "NAMESPACE": NAMESPACE}


def podgrouper(plane: ControlPlane) -> list[str]:
    return [
        str(KAI.path("bin/podgrouper")),
        f"--health-probe-bind-address=127.0.0.1:{plane.port('kai-podgrouper', 'health')}",
        "--metrics-bind-address=0",
        "--zap-log-level=info",
    ]


def binder(plane: ControlPlane) -> list[str]:
    return [
        str(KAI.path("bin/binder")),
        # It has no check of its health; what it serves its figures at is there when it is.
        f"--metrics-bind-address=127.0.0.1:{plane.port('kai-binder', 'metrics')}",
        "--health-probe-bind-address=0",
        "--zap-log-level=info",
    ]


def scheduler(plane: ControlPlane) -> list[str]:
    return [
        str(KAI.path("bin/scheduler")),
        f"--listen-address=127.0.0.1:{plane.port('kai', 'metrics')}",
        f"--plugin-server-port={plane.port('kai', 'plugins')}",
        "--log-json",
        "--v=2",
    ]


def add_queues(plane: ControlPlane) -> None:
    """Those of an ordinary installation: without a queue nothing is placed."""
    plane.api.apply([queue(ROOT_QUEUE), queue(DEFAULT_QUEUE, ROOT_QUEUE)])


COMPONENTS = (
    Component(
        "kai-podgrouper",
        "PodGroups of KAI for pods, by the kind of their job",
        None,
        podgrouper,
        ready=lambda plane: plane.healthy("kai-podgrouper", "/readyz", "health", tls=False),
        needs=("kube-apiserver",),
        ports=("health",),
        obstacle=KAI.obstacle,
        objects=objects,
        environ=lambda plane: _environ(plane, "podgrouper"),
    ),
    Component(
        "kai-binder",
        "binds the pods for which KAI's scheduler has found a node",
        None,
        binder,
        ready=lambda plane: plane.healthy("kai-binder", "/metrics", "metrics", tls=False),
        needs=("kai-podgrouper",),
        ports=("metrics",),
        obstacle=KAI.obstacle,
        environ=lambda plane: _environ(plane, "binder"),
    ),
    Component(
        "kai",
        f"gang scheduling by PodGroups and queues, for pods whose schedulerName is {SCHEDULER}",
        None,
        scheduler,
        ready=lambda plane: plane.healthy("kai", "/metrics", "metrics", tls=False),
        needs=("kai-binder",),
        ports=("metrics", "plugins"),
        obstacle=KAI.obstacle,
        environ=lambda plane: _environ(plane, "scheduler"),
        serves=("scheduling.run.ai/v2alpha2", "PodGroup"),
        settle=add_queues,
    ),
)

"""scheduler-plugins: a second scheduler, with coscheduling, and the controller of PodGroup status."""

from __future__ import annotations

import json

from tests.cluster.api import Object
from tests.cluster.build import Build
from tests.cluster.components import Component
from tests.cluster.manifests import only
from tests.cluster.plane import ControlPlane

SCHEDULER = "scheduler-plugins-scheduler"
"""The name that pods give as their scheduler: that of the project's chart."""
NAMESPACE = "scheduler-plugins"
SCHEDULER_PLUGINS = Build(
    "scheduler-plugins",
    "sigs.k8s.io/scheduler-plugins",
    (
        ("coscheduling", "sigs.k8s.io/scheduler-plugins/cmd/scheduler"),
        ("coscheduling-controller", "sigs.k8s.io/scheduler-plugins/cmd/controller"),
    ),
    files=("config/crd/bases/*.yaml", "manifests/install/all-in-one.yaml"),
    minutes=2.6,
)


def rbac(plane: ControlPlane) -> list[Object]:
    published = SCHEDULER_PLUGINS.objects("manifests/install/all-in-one.yaml")
    crds = SCHEDULER_PLUGINS.objects("config/crd/bases/*.yaml")
    # The published bindings make it the one scheduler, system:kube-scheduler; ours runs as that user, too.
    kinds = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    return [*only(crds, "CustomResourceDefinition"), *only(published, *kinds)]


def prepare(plane: ControlPlane) -> None:
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(plane.kubeconfig_of("system:kube-scheduler"))},
        "profiles": [
            {
                "schedulerName": SCHEDULER,
                "plugins": {
                    "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                    "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
                },
                # As in the chart; the plugin's own default is 60.
                "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
            }
        ],
    }
    (plane.folder("coscheduling") / "config.json").write_text(json.dumps(config, indent=2))


def scheduler(plane: ControlPlane) -> list[str]:
    own = plane.kubeconfig_of("system:kube-scheduler")
    return [
        SCHEDULER_PLUGINS.binary("coscheduling"),
        f"--config={plane.folder('coscheduling') / 'config.json'}",
        f"--authentication-kubeconfig={own}",
        f"--authorization-kubeconfig={own}",
        "--authentication-skip-lookup",
        "--bind-address=127.0.0.1",
        f"--secure-port={plane.port('coscheduling')}",
        f"--tls-cert-file={plane.pki / 'local.crt'}",
        f"--tls-private-key-file={plane.pki / 'local.key'}",
    ]


def controller(plane: ControlPlane) -> list[str]:
    return [
        SCHEDULER_PLUGINS.binary("coscheduling-controller"),
        f"--kubeconfig={plane.kubeconfig_of_operator(NAMESPACE, 'scheduler-plugins-controller')}",
        f"--probeAddr=127.0.0.1:{plane.port('coscheduling-controller', 'health')}",
        "--metricsAddr=0",
    ]


COMPONENTS = (
    Component(
        "coscheduling-controller",
        "the status of PodGroups",
        SCHEDULER_PLUGINS,
        controller,
        ready=lambda plane: plane.healthy("coscheduling-controller", "/readyz", "health", tls=False),
        needs=("kube-apiserver",),
        ports=("health",),
        objects=rbac,
    ),
    Component(
        "coscheduling",
        f"gang scheduling by PodGroups, for pods whose schedulerName is {SCHEDULER}",
        SCHEDULER_PLUGINS,
        scheduler,
        ready=lambda plane: plane.healthy("coscheduling", "/readyz"),
        needs=("coscheduling-controller",),
        prepare=prepare,
        serves=("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    ),
)

"""kwok: nodes and pods that only pretend to run, for tests of scale. It leaves real nodes alone.

``fake_node`` is such a node; pods that are bound to it run at once, and end when a test says so.
"""

from __future__ import annotations

import json

from tests.cluster.api import Object
from tests.cluster.build import Build
from tests.cluster.components import Component
from tests.cluster.plane import ControlPlane

STAGES = tuple(
    f"kustomize/stage/{name}.yaml"
    for name in (
        "node/fast/node-initialize",
        "node/heartbeat-with-lease/node-heartbeat-with-lease",
        # Pods run as soon as they are bound, and do not end by themselves: a test says when, in their status.
        "pod/fast/pod-ready",
        "pod/fast/pod-delete",
    )
)
KWOK = Build("kwok", "sigs.k8s.io/kwok", (("kwok", "sigs.k8s.io/kwok/cmd/kwok"),), files=STAGES, minutes=1.1)
MARK = "kwok.x-k8s.io/node"


def fake_node(name: str, cpu: str = "32", memory: str = "256Gi", pods: str = "110", **more: str) -> Object:
    """A node with this allocatable; underscores for what a name cannot have: ``nvidia_com_gpu="8"``."""
    resources = {"cpu": cpu, "memory": memory, "pods": pods}
    resources |= {key.replace("nvidia_com_", "nvidia.com/"): value for key, value in more.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {MARK: "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"},
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


def prepare(plane: ControlPlane) -> None:
    stages = "\n---\n".join(json.dumps(stage) for stage in KWOK.objects(*STAGES))
    (plane.folder("kwok") / "stages.yaml").write_text(stages)


def command(plane: ControlPlane) -> list[str]:
    return [
        KWOK.binary("kwok"),
        f"--kubeconfig={plane.kubeconfig}",
        f"--config={plane.folder('kwok') / 'stages.yaml'}",
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        f"--server-address=127.0.0.1:{plane.port('kwok')}",
        "--node-lease-duration-seconds=40",
    ]


COMPONENTS = (
    Component(
        "kwok",
        "nodes and pods that only pretend",
        KWOK,
        command,
        ready=lambda plane: plane.healthy("kwok", "/readyz", tls=False),
        needs=("kube-apiserver",),
        prepare=prepare,
    ),
)

"""Nodes on which pods really run, as processes of this machine: the process kubelet (tests/cluster/kubelet).

For people: tests bring nodes of their own, which they may cut off, fill or lose.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from tests.cluster.components import Component
from tests.cluster.kubelet.obstacles import obstacle
from tests.cluster.plane import ROOT, ControlPlane

NODES = (
    *(f"node-{number}:cpu=8,memory=16Gi,nvidia.com/gpu=2" for number in (1, 2, 3)),
    "node-4:cpu=8,memory=16Gi",
)
CODE = {"allaboard": "core/src"}
"""What images of Python hold beside the environment that this runs in."""


def control(plane: ControlPlane) -> Path:
    """The socket at which it takes orders; see ``tests.cluster.kubelet.handle``."""
    return plane.sockets / "nodes"


def command(plane: ControlPlane) -> list[str]:
    # Left by one that was killed.
    control(plane).unlink(missing_ok=True)
    return [
        sys.executable,
        "-m",
        "tests.cluster.kubelet",
        f"--kubeconfig={plane.kubeconfig}",
        f"--control={control(plane)}",
        f"--claims={plane.folder('nodes') / 'claims'}",
        f"--buckets={plane.folder('s3') / 'buckets'}",
        *(f"--node={node}" for node in NODES),
        *(f"--code={name}={ROOT / folder}" for name, folder in CODE.items()),
    ]


def environ(plane: ControlPlane) -> dict[str, str]:
    # `ip` is not for everybody, and not on everybody's path.
    return {"PYTHONPATH": str(ROOT), "PATH": f"{os.defpath}:/usr/sbin:/sbin"}


def ready(plane: ControlPlane) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(control(plane)))
    return True


COMPONENTS = (
    Component(
        "nodes",
        "nodes whose pods are processes of this machine",
        None,
        command,
        ready,
        needs=("kube-controller-manager",),
        ports=(),
        environ=environ,
        obstacle=obstacle,
    ),
)

"""The store of the API server.

Version 3.7 on purpose: older ones report no watch progress, and controllers then run minutes late.
"""

from __future__ import annotations

from tests.cluster.build import Build
from tests.cluster.components import Component
from tests.cluster.plane import ControlPlane

ETCD = Build("etcd", "go.etcd.io/etcd/server/v3", (("etcd", "go.etcd.io/etcd/server/v3"),), minutes=0.3)


def command(plane: ControlPlane) -> list[str]:
    peers = f"https://127.0.0.1:{plane.port('etcd', 'peers')}"
    pki = plane.pki
    return [
        ETCD.binary("etcd"),
        "--name=allaboard",
        f"--data-dir={plane.folder('etcd') / 'data'}",
        f"--listen-client-urls={plane.etcd}",
        f"--advertise-client-urls={plane.etcd}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=allaboard={peers}",
        # Other users of the machine can reach 127.0.0.1, too.
        *(f"--{prefix}client-cert-auth" for prefix in ("", "peer-")),
        *(f"--{prefix}trusted-ca-file={pki / 'etcd-ca.crt'}" for prefix in ("", "peer-")),
        *(f"--{prefix}cert-file={pki / 'etcd.crt'}" for prefix in ("", "peer-")),
        *(f"--{prefix}key-file={pki / 'etcd.key'}" for prefix in ("", "peer-")),
        # Nothing of a test has to outlive a power cut, and a busy disk would make every write slow.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def ready(plane: ControlPlane) -> bool:
    return plane.ask_etcd("/v3/maintenance/status", {})["header"]["revision"] is not None


COMPONENTS = (Component("etcd", "the store of the API server", ETCD, command, ready, ports=("", "peers")),)

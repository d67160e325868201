"""Kubernetes itself: API server, controllers, scheduler; its own gang scheduling (Workload API) is on.
``K8S`` in the environment says which release: 1.37, or 1.36, in which that API is alpha.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tests.cluster.build import Build
from tests.cluster.components import Component
from tests.cluster.plane import SERVICES, ControlPlane

BINARIES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


@dataclass(frozen=True, slots=True)
class Release:
    """``folder``: of its go.mod; ``gates``: for its own gang scheduling; ``workloads``: that API;
    ``composites``: that of its gangs of gangs, if it has them.
    """

    folder: str
    gates: str
    workloads: str
    composites: str | None = None

    @property
    def served(self) -> str:
        """What the API server is told to serve of it."""
        return ",".join(f"{api}=true" for api in (self.workloads, self.composites) if api)


RELEASES = {
    "1.37": Release(
        "kubernetes",
        "GenericWorkload=true,TopologyAwareWorkloadScheduling=true,CompositePodGroup=true",
        "scheduling.k8s.io/v1beta1",
        "scheduling.k8s.io/v1alpha3",
    ),
    "1.36": Release(
        "kubernetes-1.36", "GenericWorkload=true,GangScheduling=true", "scheduling.k8s.io/v1alpha2"
    ),
}
K8S = os.environ.get("K8S") or "1.37"
if K8S not in RELEASES:
    raise SystemExit(f"K8S={K8S}: no such release of Kubernetes here; there are {', '.join(RELEASES)}")
RELEASE = RELEASES[K8S]
KUBERNETES = Build(
    RELEASE.folder,
    "k8s.io/kubernetes",
    tuple((name, f"k8s.io/kubernetes/cmd/{name}") for name in BINARIES),
    stamped=("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
    minutes=4.5,
)
KUBECTL = Build(
    "kubectl",
    "k8s.io/kubernetes",
    (("kubectl", "k8s.io/kubernetes/cmd/kubectl"),),
    stamped=KUBERNETES.stamped,
    minutes=1.0,
)
"""For tests that type what documents show; no component needs it."""
GATES = f"--feature-gates={RELEASE.gates}"


def api_server(plane: ControlPlane) -> list[str]:
    pki = plane.pki
    return [
        KUBERNETES.binary("kube-apiserver"),
        f"--etcd-servers={plane.etcd}",
        f"--etcd-cafile={pki / 'etcd-ca.crt'}",
        f"--etcd-certfile={pki / 'etcd.crt'}",
        f"--etcd-keyfile={pki / 'etcd.key'}",
        f"--bind-address={plane.listen}",
        f"--secure-port={plane.port('kube-apiserver')}",
        # Never used, as its endpoints are not published; without it, it looks for a default route.
        "--advertise-address=192.0.2.1",
        "--endpoint-reconciler-type=none",
        f"--cert-dir={pki}",
        f"--tls-cert-file={pki / 'kube-apiserver.crt'}",
        f"--tls-private-key-file={pki / 'kube-apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        # To the servers of further APIs, and what these are told to believe.
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        # Whoever checks a token of an account finds the keys there.
        f"--service-account-issuer={plane.api.server}",
        f"--service-account-jwks-uri={plane.api.server}/openid/v1/jwks",
        f"--service-account-key-file={pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        f"--service-cluster-ip-range={SERVICES}",
        f"--kubelet-client-certificate={pki / 'kube-apiserver.crt'}",
        f"--kubelet-client-key={pki / 'kube-apiserver.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged",
        GATES,
        f"--runtime-config={RELEASE.served}",
        "--profiling=false",
    ]


def api_server_ready(plane: ControlPlane) -> bool:
    plane.api.request("GET", "/readyz")
    return True


def _client(plane: ControlPlane, name: str) -> list[str]:
    own = plane.kubeconfig_of(f"system:{name}")
    return [
        KUBERNETES.binary(name),
        f"--kubeconfig={own}",
        f"--authentication-kubeconfig={own}",
        f"--authorization-kubeconfig={own}",
        "--authentication-skip-lookup",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={plane.port(name)}",
        f"--tls-cert-file={plane.pki / 'local.crt'}",
        f"--tls-private-key-file={plane.pki / 'local.key'}",
        "--profiling=false",
        GATES,
    ]


def controller_manager(plane: ControlPlane) -> list[str]:
    return [
        *_client(plane, "kube-controller-manager"),
        f"--service-account-private-key-file={plane.pki / 'service-accounts.key'}",
        f"--root-ca-file={plane.pki / 'ca.crt'}",
        "--use-service-account-credentials",
    ]


def scheduler(plane: ControlPlane) -> list[str]:
    return _client(plane, "kube-scheduler")


def controller_manager_ready(plane: ControlPlane) -> bool:
    # Its health says nothing about its controllers: a namespace without this account takes no pods.
    return (
        plane.healthy("kube-controller-manager", "/healthz")
        and plane.api.get("v1", "ServiceAccount", "default", "default") is not None
    )


def scheduler_ready(plane: ControlPlane) -> bool:
    return plane.healthy("kube-scheduler", "/readyz")


COMPONENTS = (
    Component("kube-apiserver", "the API", KUBERNETES, api_server, api_server_ready, needs=("etcd",)),
    Component(
        "kube-controller-manager",
        "namespaces, service accounts, garbage collection, node life cycle, Jobs",
        KUBERNETES,
        controller_manager,
        controller_manager_ready,
        needs=("kube-apiserver",),
    ),
    Component(
        "kube-scheduler",
        "the default scheduler, with the Workload API",
        KUBERNETES,
        scheduler,
        scheduler_ready,
        serves=(RELEASE.workloads, "Workload"),
        needs=("kube-apiserver",),
    ),
)

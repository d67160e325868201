"""Defaults of the members' pods: fields of Kubernetes that rendering writes and conversion takes for granted.
Values only.

A service mesh keeps its hands off members. They talk to each other with what is no HTTP and bears no proxy
between, and a proxy beside the container that trains goes on when that has ended, so that the job never does.
Where members have to be in a mesh, the ``pod.metadata`` of their job says another value, or null.

The level restricted is written without a user and a group: OpenShift's SCC restricted-v2 gives each namespace
a range of its own and refuses others, and elsewhere the image says its user.

Sources: Istio, sidecar injection and ambient mode (labels of a pod win over those of its namespace); Linkerd,
proxy configuration; Cluster Autoscaler, FAQ; Karpenter, disruption; Kubernetes, Pod Security Standards, and
DNS for pods; Linux, mlock, and NVIDIA Network Operator, RDMA shared device plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MESH_LABELS: Mapping[str, str] = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
MESH_ANNOTATIONS: Mapping[str, str] = {"linkerd.io/inject": "disabled"}
KEPT: Mapping[str, str] = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations of members that may not be taken away: autoscalers that empty a node to save it begin the
training anew.
"""
RESTRICTED_POD: Mapping[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
PINS: Mapping[str, Any] = {"capabilities": {"add": ["IPC_LOCK"]}}
"""Of the container that trains with RDMA, whose buffers are pinned: without it the limit of locked memory is
that of the container runtime.
"""
HOST_NETWORK: Mapping[str, Any] = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
"""With the dnsPolicy by which members in the network of their nodes find each other's Services."""
PULL_POLICIES: Mapping[str, str] = {"always": "Always", "if_not_present": "IfNotPresent", "never": "Never"}


def is_for_rdma(device: str) -> bool:
    """True if a device is for RDMA, by its name: ``rdma/hca_shared_devices_a``."""
    return "rdma" in device.lower()

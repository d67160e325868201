"""Rules about how members meet."""

from __future__ import annotations

from collections.abc import Iterator

from allaboard.job.pod_defaults import is_for_rdma
from allaboard.lint.rule import Hit, rule
from allaboard.lint.view import View, items, mapping
from allaboard.text.untrusted import show

_WHOLE_NODE = 4
"""GPUs of a member beside which a node mostly has no place for another."""
_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@rule(
    "interface_not_chosen",
    "advice",
    "members on the host's network name no interface",
    "A host has several interfaces (docker0, bridges, one per network card). NCCL and Gloo may take one over "
    "which the others cannot be reached: the job hangs in its first collective.",
    "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the interface that the nodes share",
)
def interface_not_chosen(view: View) -> Iterator[Hit]:
    """NCCL, environment variables: without NCCL_SOCKET_IFNAME it takes ib*, then any but docker* and lo.
    mpirun may hand it on (-x).
    """
    if view.total < 2:
        return
    lines = " ".join(word for _, trainer in view.trainers for word in trainer.line)
    if "SOCKET_IFNAME" in lines or "tcp_if_include" in lines:
        return
    for group, trainer in view.trainers:
        if group.pod.get("hostNetwork") is True and not any(trainer.variable(n) is not None for n in _NAMES):
            yield Hit(view.container(group, trainer, "env"))


@rule(
    "interface_is_loopback",
    "error",
    "the interface is the loopback",
    "Nothing on another host can be reached over lo: members in pods of their own never meet.",
    "name the interface of the pod's network (eth0), or leave it out",
)
def interface_is_loopback(view: View) -> Iterator[Hit]:
    """NCCL and Gloo, environment variables. On one machine allaboard sets the loopback itself."""
    if view.total < 2:
        return
    for group, trainer in view.trainers:
        for n, name, value in trainer.environment:
            if name in _NAMES and isinstance(value, str) and _is_loopback(value):
                yield Hit(view.variable(group, trainer, n, name), f"{name}={show(value, quote=False)}")


def _is_loopback(value: str) -> bool:
    """``^lo`` means: any but lo."""
    return not value.startswith("^") and "lo" in value.removeprefix("=").split(",")


@rule(
    "host_network_without_names",
    "error",
    "members on the host's network ask the host's name server",
    "It does not know the Services of the cluster, so that the name of the master, or of any member, is not "
    "found.",
    "set dnsPolicy to ClusterFirstWithHostNet",
)
def host_network_without_names(view: View) -> Iterator[Hit]:
    """Kubernetes, DNS for Services and Pods: under hostNetwork, ClusterFirst behaves as Default."""
    for group in view.groups:
        is_on_host = group.pod.get("hostNetwork") is True and view.total > 1
        if is_on_host and group.pod.get("dnsPolicy") in (None, "ClusterFirst"):
            yield Hit(view.in_pod(group, "dnsPolicy"))


@rule(
    "host_ports_shared",
    "warning",
    "members on the host's network share the ports of their nodes",
    "Two members that come to one node listen on the same ports, that of the rendezvous or of sshd among "
    "them: one fails with `Address already in use`, or waits for ever for a node with free ports.",
    "keep members apart (podAntiAffinity by kubernetes.io/hostname), or ask for all GPUs of a node",
)
def host_ports_shared(view: View) -> Iterator[Hit]:
    """Kubernetes, hostNetwork: the ports of a container are those of its node (NodePorts of kube-scheduler).
    A member with 4 GPUs or more mostly has its node alone.
    """
    for group in view.groups:
        affinity = mapping(group.pod.get("affinity"))
        apart = "podAntiAffinity" in affinity or items(group.pod.get("topologySpreadConstraints"))
        alone = any(trainer.gpus >= _WHOLE_NODE for trainer in group.trainers)
        if group.pod.get("hostNetwork") is True and view.total > 1 and not apart and not alone:
            yield Hit(view.in_pod(group, "hostNetwork"))


@rule(
    "rdma_without_pinned_memory",
    "warning",
    "members with RDMA may not pin memory",
    "The buffers of RDMA are pinned. Without the capability IPC_LOCK the limit of the container runtime "
    "holds, often 8 MiB: NCCL fails with `ibv_reg_mr failed`, or goes over TCP.",
    "add the capability IPC_LOCK, or have the runtime not limit locked memory (ulimit -l unlimited)",
)
def rdma_without_pinned_memory(view: View) -> Iterator[Hit]:
    """Linux, mlock and RLIMIT_MEMLOCK; NVIDIA Network Operator, pods with RDMA. Jobs add it themselves where
    they are not restricted.
    """
    for group, trainer in view.trainers:
        limits = mapping(mapping(trainer.fields.get("resources")).get("limits"))
        context = mapping(trainer.fields.get("securityContext"))
        added = {str(word) for word in items(mapping(context.get("capabilities")).get("add"))}
        may = context.get("privileged") is True or added & {"IPC_LOCK", "ALL", "CAP_IPC_LOCK"}
        if any(is_for_rdma(str(name)) for name in limits) and not may:
            yield Hit(view.container(group, trainer, "resources"))

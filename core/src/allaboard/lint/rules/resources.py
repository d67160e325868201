"""Rules about what members ask for."""

from __future__ import annotations

from collections.abc import Iterator

from allaboard.job.gpus import profile_of
from allaboard.lint.rule import Hit, rule
from allaboard.lint.view import MANIFEST, Container, View, items, mapping
from allaboard.text.untrusted import show


@rule(
    "resources_missing",
    "warning",
    "nothing says what a member needs",
    "A pod without requests is placed anywhere, gets what others leave, and is the first to be evicted when "
    "a node runs out of memory.",
    "state requests for cpu and memory, and a limit for memory",
    reads=(MANIFEST,),
)
def resources_missing(view: View) -> Iterator[Hit]:
    """Kubernetes, quality of service: BestEffort pods are evicted first. Of a job only what it states counts
    (on one machine it takes no slot); those of a runtime say it themselves.
    """
    for group, trainer in () if view.is_runtime else view.trainers:
        resources = mapping(trainer.fields.get("resources"))
        if not mapping(resources.get("requests")) and not mapping(resources.get("limits")):
            yield Hit(view.container(group, trainer, "resources"))


@rule(
    "cpu_limit",
    "advice",
    "a limit on CPUs throttles the data loaders",
    "Beyond the limit all threads of the container stand still for the rest of each 100 ms, also while the "
    "node is idle; the GPU waits for them.",
    "take the limit out and keep the request",
)
def cpu_limit(view: View) -> Iterator[Hit]:
    """Linux, CFS bandwidth control (cpu.max): a quota for each period of 100 ms, shared by all threads."""
    for group, trainer in view.trainers:
        limit = trainer.amount("limits", "cpu")
        if limit is not None:
            yield Hit(view.container(group, trainer, "resources.limits.cpu"), show(limit))


@rule(
    "memory_may_be_taken",
    "warning",
    "the request for memory is below its limit",
    "The scheduler counts the request alone. When a node runs out of memory, who uses more than it requested "
    "is killed first, and takes the gang with it.",
    "let the request and the limit of memory be equal",
)
def memory_may_be_taken(view: View) -> Iterator[Hit]:
    """Kubernetes, node-pressure eviction and oom_score_adj: Burstable pods above their requests go first.
    An absent request is the limit.
    """
    for group, trainer in view.trainers:
        request, limit = trainer.amount("requests", "memory"), trainer.amount("limits", "memory")
        if request != limit and request is not None:
            detail = "no limit" if limit is None else f"the limit is {show(limit)}"
            yield Hit(view.container(group, trainer, "resources"), f"{show(request)}, {detail}")


@rule(
    "one_gpu_per_member",
    "advice",
    "every member has one GPU, and there are several",
    "GPUs of one node talk over NVLink or PCIe, those of two nodes over the network. Members with one GPU "
    "each may be spread over as many nodes as there are members.",
    "ask for all GPUs of a node per member and start that many processes in it",
)
def one_gpu_per_member(view: View) -> Iterator[Hit]:
    """NCCL: transports within a node (P2P, SHM) before those between nodes (NET). A job that says
    gang.topology has thought of it.
    """
    if mapping(mapping(view.fields.get("gang")).get("topology")):
        return
    ours = [(group, trainer) for group, trainer in view.trainers if group.count]
    # A slice of a GPU is less than one, and its members share the node anyway.
    slices = [trainer for _, trainer in ours if _slices(trainer)]
    members = sum(group.count for group, trainer in ours if trainer.gpus)
    if members < 2 or slices or any(trainer.gpus > 1 for _, trainer in ours):
        return
    for group, trainer in ours:
        if trainer.gpus:
            yield Hit(view.container(group, trainer, "resources"))


@rule(
    "slices_are_no_gpu",
    "warning",
    "members train together on slices of GPUs",
    "Slices of a GPU do not make a bigger GPU: a process uses one of them, and none reaches the memory of "
    "another. NCCL between MIG instances is not supported: a gang on them fails when it meets, or hangs.",
    "ask for one slice and one member, for a larger profile, or for whole GPUs",
)
def slices_are_no_gpu(view: View) -> Iterator[Hit]:
    """NVIDIA MIG User Guide, application considerations: no peer-to-peer between GPU instances, and a CUDA
    process sees one of them.
    """
    sliced = [
        (group, trainer, _slices(trainer))
        for group, trainer in view.trainers
        if group.count and _slices(trainer)
    ]
    if sum(group.count * each for group, _, each in sliced) < 2:
        return
    for group, trainer, each in sliced:
        detail = f"{each} slices per member" if each > 1 else "one slice per member"
        yield Hit(view.container(group, trainer, "resources"), detail)


def _slices(container: Container) -> int:
    """Slices of GPUs that one member asks for."""
    names = {str(name) for name in _stated(container.fields) if profile_of(str(name)) is not None}
    amounts = [container.amount("limits", name) or container.amount("requests", name) or "" for name in names]
    return sum(int(text) for text in amounts if len(text) < 6 and text.isdecimal())


def _stated(fields: object) -> Iterator[object]:
    resources = mapping(mapping(fields).get("resources"))
    for kind in ("requests", "limits"):
        yield from mapping(resources.get(kind))


@rule(
    "gpu_taint_not_tolerated",
    "advice",
    "members ask for GPUs and tolerate no taint of GPU nodes",
    "Nodes with GPUs often carry the taint nvidia.com/gpu to keep other work off. Where no admission plugin "
    "adds the toleration, the members stay Pending.",
    "add {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}",
    reads=(MANIFEST,),
)
def gpu_taint_not_tolerated(view: View) -> Iterator[Hit]:
    """Kubernetes, taints of nodes with special hardware; the admission plugin ExtendedResourceToleration adds
    it where it is on. Jobs are rendered with it.
    """
    for group in view.groups:
        if not any(container.gpus for container in group.containers):
            continue
        tolerations = [mapping(t) for t in items(group.pod.get("tolerations"))]
        if not any(t.get("key") in (None, "nvidia.com/gpu") for t in tolerations):
            yield Hit(view.in_pod(group, "tolerations"))

"""Labels in which nodes describe their GPUs, and their meaning for a job. Values in, values out.

NVIDIA's gpu-feature-discovery writes ``gpu.product``, ``mig.strategy`` and ``gpu.sharing-strategy``, its
mig-manager ``mig.config.state``. Of nodes without them nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from allaboard.backends.check import WARNING, Check
from allaboard.backends.kubernetes.discovery.capacity import Pods, misfit
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.diagnosis import Evidence
from allaboard.gangs.requests import amount
from allaboard.job import gpus
from allaboard.text.names import one_of

SHARING = "nvidia.com/gpu.sharing-strategy"
STRATEGY = "nvidia.com/mig.strategy"
STATE = "nvidia.com/mig.config.state"
_MEANS: Mapping[str, str] = {
    "time-slicing": "pods take turns on a GPU, and nothing keeps them apart: they share memory and faults",
    "mps": "pods use a GPU at the same time, each within a limit of memory and threads",
}
"""Sharing strategy -> what keeps pods on one GPU apart (NVIDIA k8s-device-plugin, shared access to GPUs)."""
_SHOWN = 8
"""Nodes that are quoted."""


def slice_not_offered(resource: str, role: str, nodes: Sequence[Node], severity: str) -> Check | None:
    """The reason for which no node offers the slices of a GPU that members of ``role`` ask for. None: another
    resource, or the nodes do not tell. ``severity``: of what fails because of the nodes that are there.
    """
    profile = gpus.profile_of(resource)
    with_gpus = [node for node in nodes if _has_gpus(node)]
    if profile is None or not with_gpus:
        return None
    cards = {node.name: gpus.card_of(node.labels.get(gpus.PRODUCT, "")) for node in with_gpus}
    here = {card.name: card for card in cards.values() if card is not None}
    lack = f"no node offers {resource}, which {role} asks for"
    if None not in cards.values() and not any(gpus.fits(profile, card) for card in here.values()):
        evidence = tuple(
            Evidence("nodes", gpus.PRODUCT, f"{card.name} has {', '.join(card.profiles)}")
            for card in here.values()
        )
        have = one_of(gpus.cards_with(profile))
        fix = f"say a profile that the cards here have in resources.mig; {profile} is of {have}"
        return Check("nodes", False, f"{lack}: no card here has this profile", evidence, fix, severity)
    able = [node for node in with_gpus if (card := cards[node.name]) is None or gpus.fits(profile, card)]
    if changing := [*_recarved(able)]:
        summary = f"{lack}, while nodes are being carved into slices"
        return Check("nodes", False, summary, _quoted(changing, STATE), _WAIT, WARNING)
    if all(node.labels.get(STRATEGY) == "single" for node in able):
        summary = f"{lack}: the MIG strategy of the nodes is single, which calls every slice nvidia.com/gpu"
        return Check("nodes", False, summary, _quoted(able, STRATEGY), _of_single(profile, able), severity)
    return None


def _of_single(profile: str, nodes: Sequence[Node]) -> str:
    """The resources to ask for where slices are called GPUs."""
    products = sorted({node.labels.get(gpus.PRODUCT, "") for node in nodes})
    ending = "-MIG-" + profile.replace("+", ".")
    sliced = [product for product in products if product.endswith(ending)]
    if sliced:
        return f"say gpu: 1 and gpu_type: {sliced[0]} in resources instead of mig"
    return "say gpu: 1 in resources instead of mig, or ask who runs the nodes for the MIG strategy mixed"


def _has_gpus(node: Node) -> bool:
    return gpus.PRODUCT in node.labels or any(
        name.startswith("nvidia.com/") and amount(value) > 0 for name, value in node.allocatable.items()
    )


_WAIT = "wait until the state is success; where it is failed, ask who runs the nodes"


def recarving(pods: Sequence[Pods], nodes: Sequence[Node]) -> Iterator[Check]:
    """Nodes that are being carved into slices offer none meanwhile, and those that are there may change."""
    asked = [name for group in pods for name in group.pod.requests if gpus.profile_of(name) is not None]
    changing = [*_recarved(nodes)]
    # Of nodes that offer nothing yet `nodes` says it.
    if changing and any(amount(node.allocatable.get(name, 0)) > 0 for name in asked for node in nodes):
        names = ", ".join(node.name for node in changing[:_SHOWN])
        summary = f"slices of GPUs may change: of {names} the MIG configuration is not in place"
        yield Check("mig", False, summary, _quoted(changing, STATE), _WAIT, WARNING)


def _recarved(nodes: Sequence[Node]) -> Iterator[Node]:
    return (node for node in nodes if node.labels.get(STATE, "success") != "success")


def sharing(pods: Sequence[Pods], nodes: Sequence[Node]) -> Iterator[Check]:
    """The separation of members and other pods on shared GPUs, where members may run on such."""
    for strategy, meaning in _MEANS.items():
        shared = [
            node
            for node in nodes
            if node.labels.get(SHARING) == strategy
            and any(_asks_for_gpus(group) and misfit(group.pod, node) is None for group in pods)
        ]
        if not shared:
            continue
        evidence, summary = _quoted(shared, SHARING), f"members may run on GPUs under {strategy}: {meaning}"
        if strategy == "mps":
            yield Check("gpu_sharing", True, summary, evidence)
        else:
            fix = "leave shared out of resources for a GPU of its own, or ask for a slice of one (mig)"
            yield Check("gpu_sharing", False, summary, evidence, fix, WARNING)


def _asks_for_gpus(group: Pods) -> bool:
    return any(name.startswith("nvidia.com/") and value > 0 for name, value in group.pod.requests.items())


def _quoted(nodes: Sequence[Node], label: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(f"node/{n.name}", label, n.labels.get(label, "")) for n in nodes[:_SHOWN])

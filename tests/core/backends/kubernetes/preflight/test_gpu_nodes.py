"""What the labels of GPU nodes mean for a job."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.check import Check
from allaboard.backends.kubernetes.discovery.capacity import Pods
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.preflight.gpu_nodes import recarving, sharing, slice_not_offered

MIG = "nvidia.com/mig-1g.10gb"
H100 = "NVIDIA-H100-80GB-HBM3"


def a_node(product: str | None = H100, name: str = "n1", offers: Any = None, **labels: str) -> Node:
    """Labels are given without ``nvidia.com/``, with ``_`` for what a keyword cannot hold."""
    said = {"gpu.product": product} if product else {}
    said |= {f"{k.replace('__', '-').replace('_', '.')}": v for k, v in labels.items()}
    return Node(name, offers or {}, {f"nvidia.com/{key}": value for key, value in said.items()})


def pods(resource: str = MIG, shared: bool = True) -> list[Pods]:
    rule = {"key": "nvidia.com/gpu.sharing-strategy", "operator": "NotIn", "values": ["time-slicing", "mps"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    alone = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    spec = {"containers": [{"name": "c", "resources": {"limits": {resource: "1"}}}]}
    return [Pods("worker", 2, spec if shared else {**spec, "affinity": alone}, {})]


def why(*nodes: Node, resource: str = MIG) -> Check | None:
    return slice_not_offered(resource, "worker", nodes, "error")


def test_a_profile_that_no_card_there_has() -> None:
    check = why(a_node("NVIDIA-H200"), a_node("NVIDIA-A30", "n2"), Node("cpu", {"cpu": "8"}))
    assert check is not None and check.stops
    assert check.summary == f"no node offers {MIG}, which worker asks for: no card here has this profile"
    assert [e.text.partition(", ")[0] for e in check.evidence] == ["H200 has 1g.18gb", "A30 has 1g.6gb"]
    assert check.fix is not None and "1g.10gb is of A100 40GB or A100 80GB, H100 80GB" in check.fix


@pytest.mark.parametrize(
    "nodes",
    [
        [a_node()],
        [a_node("NVIDIA-H200"), a_node(name="n2")],
        [a_node("NVIDIA-H200"), a_node("NVIDIA-Next", "n2")],
        [a_node("NVIDIA-H200"), a_node(None, "n2", offers={"nvidia.com/gpu": "8"})],
        [Node("cpu", {"cpu": "8"})],
        [],
    ],
    ids=["it has", "one has", "unknown card", "no label", "no GPUs", "no nodes"],
)
def test_where_a_card_may_have_the_profile_nothing_is_concluded(nodes: list[Node]) -> None:
    assert why(*nodes) is None


def test_other_resources_are_not_looked_at() -> None:
    assert why(a_node("NVIDIA-H200"), resource="nvidia.com/gpu") is None


def test_under_the_strategy_single_a_slice_is_called_a_gpu() -> None:
    sliced = f"{H100}-MIG-1g.10gb"
    check = why(a_node(sliced, mig_strategy="single"))
    assert check is not None and check.stops and "the MIG strategy of the nodes is single" in check.summary
    assert check.fix == f"say gpu: 1 and gpu_type: {sliced} in resources instead of mig"
    whole = why(a_node(mig_strategy="single"))
    assert whole is not None and whole.fix is not None and "the MIG strategy mixed" in whole.fix
    assert why(a_node(mig_strategy="single"), a_node(name="n2", mig_strategy="mixed")) is None


@pytest.mark.parametrize("state", ["pending", "rebooting", "failed"])
def test_nodes_that_are_being_carved_may_offer_it_later(state: str) -> None:
    check = why(a_node(mig_strategy="mixed", mig_config_state=state))
    assert check is not None and not check.ok and not check.stops
    assert check.evidence[0].text == state and check.fix is not None and "wait" in check.fix
    assert why(a_node(mig_config_state="success")) is None


def test_slices_that_are_there_may_change_while_a_node_is_carved() -> None:
    there = a_node(offers={MIG: "7"})
    [check] = recarving(pods(), [there, a_node(name="n2", mig_config_state="pending")])
    assert (check.id, check.stops) == ("mig", False) and "n2" in check.summary
    assert [*recarving(pods(), [there, a_node(name="n2", mig_config_state="success")])] == []
    assert [*recarving(pods("nvidia.com/gpu"), [there, a_node(name="n2", mig_config_state="pending")])] == []


@pytest.mark.parametrize(
    ("strategy", "ok", "words"),
    [
        ("time-slicing", False, "nothing keeps them apart: they share memory and faults"),
        ("mps", True, "each within a limit of memory and threads"),
    ],
)
def test_how_a_shared_gpu_keeps_pods_apart(strategy: str, ok: bool, words: str) -> None:
    node = a_node(gpu_sharing__strategy=strategy)
    [check] = sharing(pods("nvidia.com/gpu"), [node, a_node(name="n2")])
    assert check.ok is ok and not check.stops and words in check.summary
    assert [e.object for e in check.evidence] == ["node/n1"]
    assert (check.fix is None) is ok
    assert [*sharing(pods("nvidia.com/gpu", shared=False), [node])] == [], "members never run there"
    assert [*sharing(pods("cpu"), [node])] == []


def test_gpus_that_nobody_shares_need_no_word() -> None:
    assert [*sharing(pods("nvidia.com/gpu"), [a_node(gpu_sharing__strategy="none"), a_node()])] == []

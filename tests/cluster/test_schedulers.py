"""The gang schedulers of the plane act: a gang is bound as a whole or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.objects import event_seen, pod_seen
from allaboard.gangs import GANGS
from allaboard.gangs.base import GangView
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.render.manifests import Rendered
from allaboard.testing import a_job
from tests.cluster.api import Object, until
from tests.cluster.components.coscheduling import SCHEDULER
from tests.cluster.components.kubernetes import RELEASE
from tests.cluster.jobs import a_node, a_pod
from tests.cluster.plane import ControlPlane
from tests.core.backends.kubernetes.golden import made

SETTLED = 5.0
"""Seconds in which a scheduler would have placed what it places: that it does not is seen in no other way."""
RACK = "tests.allaboard.io/rack"
MARK = "tests.allaboard.io/node"


@pytest.fixture
def small_node(plane: ControlPlane, namespace: str) -> Iterator[Object]:
    """A node with one CPU where nothing runs, for this test's pods alone; what makes a pod go there."""
    node = a_node(namespace, {"cpu": "1", "memory": "1Gi", "pods": "20"}, {MARK: namespace})
    taint = {"key": MARK, "value": namespace, "effect": "NoSchedule"}
    plane.api.create({**node, "spec": {"taints": [taint]}})
    plane.api.patch(node, {"status": node["status"]}, sub="status")
    yield {
        "nodeSelector": {MARK: namespace},
        "tolerations": [{"key": MARK, "operator": "Equal", "value": namespace, "effect": "NoSchedule"}],
    }
    plane.api.delete("v1", "Node", namespace)


def coscheduled(namespace: str, gang: str, size: int) -> tuple[Object, Callable[[Object], Object]]:
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": gang, "namespace": namespace},
        "spec": {"minMember": size},
    }

    def member(pod: Object) -> Object:
        pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = gang
        pod["spec"]["schedulerName"] = SCHEDULER
        return pod

    return group, member


def native(namespace: str, gang: str, size: int) -> tuple[Object, Callable[[Object], Object]]:
    group = {
        "apiVersion": RELEASE.workloads,
        "kind": "PodGroup",
        "metadata": {"name": gang, "namespace": namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }

    def member(pod: Object) -> Object:
        pod["spec"]["schedulingGroup"] = {"podGroupName": gang}
        return pod

    return group, member


@pytest.mark.parametrize(
    "a_gang",
    [
        pytest.param(coscheduled, marks=pytest.mark.needs("coscheduling")),
        pytest.param(native, marks=pytest.mark.needs("kube-scheduler")),
    ],
)
def test_a_gang_is_bound_as_a_whole_or_not_at_all(
    plane: ControlPlane, namespace: str, small_node: Object, a_gang: Callable[..., Any]
) -> None:
    def submit(gang: str) -> None:
        group, member = a_gang(namespace, gang, 3)
        plane.api.create(group)
        for index in range(3):
            pod = a_pod(namespace, f"{gang}-{index}", cpu="250m", **small_node)
            plane.api.create(member(pod))

    def bound(gang: str) -> list[str]:
        pods = plane.api.list("v1", "Pod", namespace)
        return [
            name
            for pod in pods
            if (name := pod["metadata"]["name"]).startswith(gang) and pod["spec"].get("nodeName")
        ]

    submit("first")
    until("all of the first gang to be bound", lambda: len(bound("first")) == 3, 20)
    # One of its three would still fit.
    submit("second")
    until("the scheduler to say why the second waits", lambda: _says_why(plane, namespace, "second"), 20)
    assert bound("second") == []
    for index in range(3):
        # No kubelet will say that it has ended.
        plane.api.delete("v1", "Pod", f"first-{index}", namespace, grace=0)
    until("all of the second gang to be bound", lambda: len(bound("second")) == 3, 30)


def _says_why(plane: ControlPlane, namespace: str, gang: str) -> bool:
    """Whether one of its pods says more than that it was turned away with the others."""
    reasons = [
        condition["message"]
        for pod in plane.api.list("v1", "Pod", namespace)
        if pod["metadata"]["name"].startswith(gang)
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    return any("Insufficient cpu" in reason or "rejected" in reason for reason in reasons)


# An elastic job with a master, as it is rendered: a gang of gangs.


@pytest.fixture
def racks(plane: ControlPlane, namespace: str) -> Iterator[Object]:
    """Two racks: one node with two places, and one with four; what makes a pod go there."""
    taint = {"key": MARK, "value": namespace, "effect": "NoSchedule"}
    names = [f"{namespace}-small", f"{namespace}-large"]
    for name, cores in zip(names, ("2", "4"), strict=True):
        node = a_node(name, {"cpu": cores, "memory": "1Gi", "pods": "20"}, {MARK: namespace, RACK: name})
        plane.api.create({**node, "spec": {"taints": [taint]}})
        plane.api.patch(node, {"status": node["status"]}, sub="status")
    yield {
        "nodeSelector": {MARK: namespace},
        "tolerations": [{"key": MARK, "operator": "Equal", "value": namespace, "effect": "NoSchedule"}],
    }
    for name in names:
        plane.api.delete("v1", "Node", name)


@pytest.fixture
def composites(plane: ControlPlane) -> ClusterFacts:
    """What is known of a cluster that serves gangs of gangs."""
    if RELEASE.composites is None or plane.lacks("kube-scheduler"):
        pytest.skip("this release of Kubernetes has no CompositePodGroup")
    native = GANGS["workload"]
    return ClusterFacts(kinds=frozenset({"kubeflow.org/v1/PyTorchJob", *native.KINDS, *native.COMPOSITE}))


def placed(plane: ControlPlane, namespace: str) -> dict[str, str]:
    """Pod -> its node, of those that have one."""
    pods = plane.api.list("v1", "Pod", namespace)
    return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods if p["spec"].get("nodeName")}


def submit(
    plane: ControlPlane, namespace: str, facts: ClusterFacts, where: Object, only: str = "", **fields: Any
) -> Rendered:
    """What is rendered of a job of a master and three workers, and its pods as an operator makes them;
    ``only``: those of one role.
    """
    groups = {"master": 1, "worker": 3}
    job = a_job(**{"image": "x", "workers": None, "groups": groups, "resources": {"cpu": 1}, **fields})
    found = made(job, replace(facts, namespace=namespace))
    for extra in found.extras:
        plane.api.create(dict(extra))
    specs = found.job["spec"]["pytorchReplicaSpecs"]
    for role, replicas in specs.items():
        for index in range(replicas["replicas"]) if only in ("", role.lower()) else ():
            template = replicas["template"]
            pod = a_pod(namespace, f"{role.lower()}-{index}", cpu="1", **where)
            own = {
                name: template["spec"][name]
                for name in ("schedulingGroup", "affinity", "schedulerName")
                if name in template["spec"]
            }
            pod["metadata"]["labels"] |= template["metadata"]["labels"]
            plane.api.create({**pod, "spec": {**pod["spec"], **own}})
    return found


ELASTIC: dict[str, Any] = {
    "command": ["torchrun", "train.py"],
    "elastic": {"min": 3, "max": 4},
    "gang": {"scheduler": "workload"},
}


@pytest.mark.needs("kube-scheduler")
def test_an_elastic_gang_starts_with_its_master_or_not_at_all(
    plane: ControlPlane, namespace: str, racks: Object, composites: ClusterFacts
) -> None:
    """Three workers alone are the least number of members, and no gang."""
    found = submit(plane, namespace, composites, racks, only="worker", **ELASTIC)
    kinds = ["Workload", "CompositePodGroup", "PodGroup", "PodGroup"]
    assert [extra["kind"] for extra in found.extras] == kinds
    time.sleep(SETTLED)
    assert placed(plane, namespace) == {}
    [master] = [e for e in found.extras if e["metadata"]["name"].endswith("-master")]
    pod = a_pod(namespace, "master-0", cpu="1", **racks)
    pod["spec"]["schedulingGroup"] = {"podGroupName": master["metadata"]["name"]}
    plane.api.create(pod)
    until("master and workers to be bound", lambda: len(placed(plane, namespace)) == 4, 30)
    whole = plane.api.get(found.gang.kind.rpartition("/")[0], "CompositePodGroup", found.gang.name, namespace)
    assert whole is not None


@pytest.mark.needs("kube-scheduler")
@pytest.mark.parametrize("elastic", [True, False], ids=["gang of gangs", "one gang"])
def test_a_required_domain_is_sought_where_all_members_fit(
    plane: ControlPlane, namespace: str, racks: Object, composites: ClusterFacts, elastic: bool
) -> None:
    """The first member would fit into the small rack, too."""
    gang = {"scheduler": "workload", "topology": {"require": RACK}}
    submit(plane, namespace, composites, racks, **{**(ELASTIC if elastic else {}), "gang": gang})
    nodes = until("all to be bound", lambda: len(found := placed(plane, namespace)) == 4 and found, 30)
    assert {*nodes.values()} == {f"{namespace}-large"}


# The affinity of the pods alone, as every scheduler of pods knows it.

GANG_SCHEDULERS = [pytest.param("coscheduling", marks=pytest.mark.needs("coscheduling")), "workload"]


def in_a_rack(
    plane: ControlPlane, namespace: str, racks: Object, gang: str, workers: int
) -> dict[str, Object]:
    """Submits a master and this many workers that must be in one rack; their pods by name."""
    asked = {"scheduler": gang, "topology": {"require": RACK}}
    submit(plane, namespace, ClusterFacts(), racks, groups={"master": 1, "worker": workers}, gang=asked)
    return {pod["metadata"]["name"]: pod for pod in plane.api.list("v1", "Pod", namespace)}


@pytest.mark.needs("kube-scheduler")
@pytest.mark.parametrize("gang", GANG_SCHEDULERS)
def test_members_that_must_be_in_one_rack_are(
    plane: ControlPlane, namespace: str, racks: Object, gang: str
) -> None:
    in_a_rack(plane, namespace, racks, gang, 3)
    nodes = until("all to be bound", lambda: len(found := placed(plane, namespace)) == 4 and found, 60)
    assert {*nodes.values()} == {f"{namespace}-large"}


@pytest.mark.needs("kube-scheduler")
@pytest.mark.parametrize("gang", [*GANG_SCHEDULERS, "none"])
def test_members_that_must_be_in_one_rack_wait_where_none_has_room(
    plane: ControlPlane, namespace: str, racks: Object, gang: str
) -> None:
    """Both racks together have six places, and five are needed. Without a gang scheduler those that fit stay
    in the rack that the first of them has chosen.
    """
    in_a_rack(plane, namespace, racks, gang, 4)

    def told() -> bool:
        pods = plane.api.list("v1", "Pod", namespace)
        members = {pod["metadata"]["name"]: pod_seen(pod) for pod in pods}
        events = [*map(event_seen, plane.api.list("v1", "Event", namespace))]
        groups = [{"kind": "PodGroup"}]
        view = GangView(5, 5, time.time(), members, groups=groups, events=events)
        said = GANGS[gang].read(view) or ""
        head = "of 5 members hold places and idle" if gang == "none" else "finds no 5 places together"
        return head in said and "Insufficient cpu" in said and "affinity" in said

    until("the reason", told, 60)
    assert len({*placed(plane, namespace).values()}) == (1 if gang == "none" else 0)

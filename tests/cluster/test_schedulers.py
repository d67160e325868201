"""The gang schedulers of the plane act: a gang is bound as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.api import Object, until
from tests.cluster.components.coscheduling import SCHEDULER
from tests.cluster.components.kubernetes import RELEASE
from tests.cluster.jobs import a_node, a_pod
from tests.cluster.plane import ControlPlane

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
    reasons = until(
        "the scheduler to say why the second waits", lambda: _reasons(plane, namespace, "second"), 20
    )
    assert any("Insufficient cpu" in reason or "rejected" in reason for reason in reasons), reasons
    assert bound("second") == []
    for index in range(3):
        # No kubelet will say that it has ended.
        plane.api.delete("v1", "Pod", f"first-{index}", namespace, grace=0)
    until("all of the second gang to be bound", lambda: len(bound("second")) == 3, 30)


def _reasons(plane: ControlPlane, namespace: str, gang: str) -> list[str]:
    return [
        condition["message"]
        for pod in plane.api.list("v1", "Pod", namespace)
        if pod["metadata"]["name"].startswith(gang)
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]

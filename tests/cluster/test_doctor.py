"""Real clusters that break: which cause the doctor tells first, whom it blames, and whether another try may
succeed. Images, quotas, webhooks and what else keeps members from starting are in test_starting.py, queues in
test_queues.py.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import Object, until
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, LONG, Terminal

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(400),
]
SLEEPS = ["sh", "-c", "echo trains; sleep 600"]
NEVER: dict[str, Any] = {"policy": {"restart": "never"}}


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane) -> Iterator[OwnNodes]:
    size = {"cpu": "2", "memory": "4Gi"}
    with own_nodes(plane_of_nodes, size, size, code=CODE) as nodes:
        yield nodes


class Shell(Terminal):
    """A terminal that submits jobs and asks for their cause."""

    def job(self, **fields: Any) -> str:
        body = {"name": "digits", "command": SLEEPS, "workers": 2, "gang": {"scheduler": "none"}, **fields}
        file = self.folder / f"{body['name']}.yaml"
        file.write_text(yaml.safe_dump(body))
        return str(file)

    def submit(self, **fields: Any) -> str:
        said = self("run", self.job(**fields), "--detach", "--json").json
        return str(said["run"])

    def running(self, run: str) -> None:
        def trains() -> bool:
            return self("logs", run, code=None).out.count("trains") >= 1

        until(f"{run} to train", trains, LONG)

    def cause(self, run: str, code: str, patience: float = 60) -> Object:
        """The first diagnosis, once it has this code; otherwise the test fails with the last one."""
        last: list[Object] = []

        def look() -> Object | None:
            said = self("doctor", run, "--json").json["diagnoses"]
            last[:] = said[:1]
            return said[0] if said and said[0]["code"] == code else None

        try:
            return until(f"the cause {code}", look, timeout=patience)
        except TimeoutError as error:
            raise AssertionError(f"{error}; the first cause was {json.dumps(last)}") from None


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path) -> Shell:
    nodes.serve(namespace)
    return Shell.on(plane.kubeconfig, namespace, tmp_path)


def test_an_operator_whose_webhook_went_with_it(ab: Shell, plane: ControlPlane) -> None:
    file = ab.job(engine="pytorchjob")
    plane.halt("training-operator", signal.SIGKILL)
    try:
        said = ab("run", file, "--key", "nightly", "--detach", code=5)
    finally:
        plane.launch("training-operator")
    assert "failed calling webhook" in said.err and "--key nightly" in said.err, said
    ab("run", file, "--key", "nightly", "--detach")
    ab.running(ab.run_of())


@pytest.mark.needs("mpi-operator")
def test_an_operator_that_is_away(ab: Shell, plane: ControlPlane) -> None:
    """That of MPIJobs has no webhook: the job is taken, and nobody takes it up."""
    plane.halt("mpi-operator", signal.SIGKILL)
    try:
        run = ab.submit(framework="mpi", engine="mpijob")
        found = ab.cause(run, "operator_not_running", 120)
        assert "no operator has taken up the MPIJob" in found["summary"], found
    finally:
        plane.launch("mpi-operator")


def test_a_member_that_is_drained_from_its_node(ab: Shell, nodes: OwnNodes) -> None:
    run = ab.submit(**NEVER)
    ab.running(run)
    node = next(iter(_nodes_of(ab, run)))
    nodes.kubelet.drain_node(node)
    try:
        found = ab.cause(run, "drained_by_eviction_api")
        assert found["retryable"] and node in json.dumps(found), found
    finally:
        nodes.kubelet.uncordon_node(node)


def test_a_member_that_its_node_evicts_for_memory(ab: Shell, nodes: OwnNodes, namespace: str) -> None:
    run = ab.submit(**NEVER)
    ab.running(run)
    message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi."
    nodes.kubelet.evict(namespace, f"{run}-worker-0", message)
    found = ab.cause(run, "evicted_node_pressure")
    assert found["retryable"] and "worker-0" in found["summary"], found


def test_a_member_that_takes_too_much_memory(ab: Shell, nodes: OwnNodes, namespace: str) -> None:
    run = ab.submit(resources={"cpu": 0.1, "memory": "256Mi"}, **NEVER)
    ab.running(run)
    nodes.kubelet.kill_for_memory(namespace, f"{run}-worker-0")
    found = ab.cause(run, "oom_killed")
    assert not found["retryable"] and "worker-0" in json.dumps(found), found


def test_a_node_that_is_lost(ab: Shell, nodes: OwnNodes) -> None:
    run = ab.submit(workers=1)
    ab.running(run)
    [node] = _nodes_of(ab, run)
    nodes.kubelet.lose_node(node, "run")
    try:
        found = ab.cause(run, "node_lost", 200)
        assert node in json.dumps(found), found
    finally:
        nodes.kubelet.find_node(node)


def test_a_member_that_gives_way_to_a_more_urgent_one(
    ab: Shell, plane: ControlPlane, namespace: str, priorities: Callable[[int], str]
) -> None:
    low, high = priorities(1), priorities(100)
    size = {"cpu": 1.5}
    run = ab.submit(resources=size, gang={"scheduler": "none", "priority": low}, **NEVER)
    ab.running(run)
    urgent = ab.submit(name="urgent", resources=size, gang={"scheduler": "none", "priority": high}, **NEVER)
    found = ab.cause(run, "preempted_by_priority")
    assert found["retryable"], found
    ab("stop", urgent)


@pytest.fixture
def priorities(plane: ControlPlane, namespace: str) -> Iterator[Callable[[int], str]]:
    """``priorities(value)``: a PriorityClass of this test's own."""
    made: list[str] = []

    def make(value: int) -> str:
        name = f"{namespace[-20:].strip('-')}-{value}"
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        plane.api.create({**kind, "metadata": {"name": name}, "value": value})
        made.append(name)
        return name

    yield make
    for name in made:
        plane.api.delete("scheduling.k8s.io/v1", "PriorityClass", name)


def test_a_limit_range_that_allows_less(ab: Shell, plane: ControlPlane, namespace: str) -> None:
    limits = [{"type": "Container", "max": {"cpu": "100m"}}]
    metadata = {"name": "small", "namespace": namespace}
    limit = {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}
    plane.api.create(limit)
    run = ab.submit(resources={"cpu": 1})
    found = ab.cause(run, "limitrange_denied")
    assert not found["retryable"] and "100m" in json.dumps(found), found


def test_a_run_that_somebody_suspended(ab: Shell) -> None:
    run = ab.submit()
    ab.running(run)
    ab("suspend", run)
    found = ab.cause(run, "job_suspended")
    assert "allaboard resume" in found["fix"], found


def test_a_scheduler_that_is_not_there(ab: Shell) -> None:
    run = ab.submit(pod={"spec": {"schedulerName": "nobody"}})
    found = ab.cause(run, "gang_scheduler_missing", 120)
    assert "nobody" in found["summary"] and not found["retryable"], found


@pytest.mark.needs("trainer", "jobset")
def test_a_runtime_that_is_not_there(ab: Shell, plane: ControlPlane, namespace: str) -> None:
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "theirs", "namespace": namespace},
        "spec": {"runtimeRef": {"name": "nonesuch"}},
    }
    try:
        plane.api.create(job)
    except Exception as error:
        assert "nonesuch" in str(error)
        return
    found = ab.cause("trainjob/theirs", "runtime_ref_not_found")
    assert "nonesuch" in found["summary"], found


def _nodes_of(ab: Shell, run: str) -> set[str]:
    pods = json.loads(ab("snapshot", run, "-o", "-").out)["pods"]
    return {str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")}

"""Gangs on a cluster that has no room for two of them at once: four cores, two jobs of three members.

With a gang scheduler one runs whole while the other waits whole. Without one both may start in part and wait
for each other for ever, and people are told so. Members are real processes, on nodes of these tests' own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.gangs.placement import STUCK
from allaboard.render import labels
from tests.cluster.api import Object, until
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, Terminal

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(300),
]

UNTIL_TOLD = ["sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"]
"""A member that works until a test asks it to finish."""
NODES = r"0/\d+ nodes are available: .*2 Insufficient cpu.*"


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane) -> Iterator[OwnNodes]:
    with own_nodes(plane_of_nodes, {"cpu": "2"}, {"cpu": "2"}, code=CODE) as nodes:
        yield nodes


class Place:
    """A namespace on the small cluster."""

    def __init__(self, nodes: OwnNodes, namespace: str, terminal: Terminal) -> None:
        self.nodes, self.namespace, self.ab = nodes, namespace, terminal
        self.api = nodes.plane.api

    def job(self, name: str, **fields: Any) -> str:
        """A job file: three members that need a core each."""
        body = {
            "name": name,
            "groups": {"master": 1, "worker": 2},
            "resources": {"cpu": 1},
            "command": UNTIL_TOLD,
            "pod": {"spec": {"terminationGracePeriodSeconds": 2}},
            **fields,
        }
        file = self.ab.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(body))
        return str(file)

    def submit(self, *names: str, **fields: Any) -> list[str]:
        """The runs of these jobs, all of them submitted at once."""
        jobs = [self.job(name, **fields) for name in names]
        started = [self.ab.start("run", job, "--key", "k", "--detach") for job in jobs]
        for process in started:
            out, err = process.communicate()
            assert process.returncode == 0, out + err
        runs = {r["name"]: r["run"] for r in self.ab("list", "--json").json["runs"]}
        return [runs[name] for name in names]

    def pods(self, run: str) -> list[Object]:
        return self.api.list("v1", "Pod", self.namespace, labelSelector=labels.selector(run))

    def placed(self, run: str) -> int:
        return sum(
            bool(pod["spec"].get("nodeName")) and pod["status"]["phase"] in ("Pending", "Running")
            for pod in self.pods(run)
        )

    def running(self, run: str) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.pods(run))

    def phases(self, run: str) -> list[str]:
        """Of its pods, by rank."""
        pods = sorted(self.pods(run), key=lambda pod: str(pod["metadata"]["name"]))
        return [pod["status"]["phase"] for pod in pods]

    def begun(self, run: str) -> int:
        """Pods of which a container runs: workers wait for their master in one that prepares."""
        statuses = [pod["status"] for pod in self.pods(run)]
        every = [[*s.get("initContainerStatuses", []), *s.get("containerStatuses", [])] for s in statuses]
        return sum(any("running" in container["state"] for container in each) for each in every)

    def finish(self, run: str) -> None:
        """The training of this run is over, whichever member one asks."""
        for pod in self.pods(run):
            if pod["status"]["phase"] == "Running":
                self.nodes.kubelet.kill_container(self.namespace, pod["metadata"]["name"], signal=15)

    def diagnoses(self, run: str) -> dict[str, Any]:
        return {d["code"]: d for d in self.ab.seen(run)["diagnoses"]}


@pytest.fixture
def place(plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path) -> Iterator[Place]:
    nodes.serve(namespace)
    yield Place(nodes, namespace, Terminal.on(plane.kubeconfig, namespace, tmp_path))
    plane.remove_namespace(namespace, wait=60)


@pytest.mark.parametrize(
    "gang", [pytest.param("coscheduling", marks=pytest.mark.needs("coscheduling")), "workload"]
)
def test_of_two_gangs_one_runs_whole_and_the_other_waits_whole(place: Place, gang: str) -> None:
    place.ab.environ["ALLABOARD_GANG"] = gang
    runs = place.submit("one", "two")

    def whole() -> str | None:
        counts = {run: place.placed(run) for run in runs}
        return next((run for run in runs if counts[run] == 3 and place.running(run) == 3), None)

    first = until("one of them to run", whole, 60)
    (second,) = (run for run in runs if run != first)
    assert place.ab.state(first) == "running"
    who = {"coscheduling": "coscheduling", "workload": "kube-scheduler"}[gang]
    sentence = rf"{who} finds no 3 places together: {NODES}"

    def reason() -> Any:
        # Now and then a scheduler only says that a sibling was turned away.
        found = place.diagnoses(second).get("gang_unschedulable")
        return found if found and re.fullmatch(sentence, found["summary"]) else None

    found = until("the reason", reason, 60)
    assert found["evidence"] and found["fix"] and found["retryable"]
    told = place.ab("status", second).out
    assert told.count(f"{who} finds no 3 places together") == 1 and "queued" in told
    assert place.placed(second) == 0, "it waits whole"
    place.finish(first)
    until("the second to run whole", lambda: place.running(second) == 3, 60)
    assert place.ab.state(first) == "succeeded" and place.ab.state(second) == "running"
    assert place.diagnoses(second) == {}


@pytest.fixture
def limited(place: Place) -> Iterator[Place]:
    """Where each of two priority classes may have two pods, for as long as there is the quota of its name."""
    classes = {letter: f"{place.nodes.mark}-{letter}" for letter in "ab"}
    for letter, name in classes.items():
        place.api.create(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": 10,
                "preemptionPolicy": "Never",
            }
        )
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": [name]}
        place.api.create(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": letter, "namespace": place.namespace},
                "spec": {"hard": {"pods": "2"}, "scopeSelector": {"matchExpressions": [scope]}},
            }
        )
    yield place
    for name in classes.values():
        place.api.delete("scheduling.k8s.io/v1", "PriorityClass", name)


def test_the_trap_is_told_in_one_sentence(limited: Place) -> None:
    """How far each of two gangs gets before the other is chance; here quotas see to it, and are lifted."""
    place, runs = limited, {}
    for letter in "ab":
        gang = {"scheduler": "none", "priority": f"{place.nodes.mark}-{letter}"}
        (runs[letter],) = place.submit(f"gang-{letter}", gang=gang)
    first, second = runs.values()
    for run in (first, second):
        until("two of three to hold places", lambda run=run: place.placed(run) == 2, 60)
        until("both to have begun", lambda run=run: place.begun(run) == 2, 60)
    found = until("the quota", lambda: place.diagnoses(first).get("resource_quota_exceeded"), 60)
    assert "exceeded quota: a" in found["summary"] and found["evidence"] and found["fix"]
    for quota in "ab":
        place.api.delete("v1", "ResourceQuota", quota, place.namespace)
    for run, other in ((first, second), (second, first)):
        sentence = (
            rf"2 of 3 members hold places and idle, because 1 has none \({NODES}\); "
            rf"{other} is stuck the same way, and they wait for each other for ever"
        )
        told = rf"waits +{sentence}"
        until("the trap to be told", lambda r=run, t=told: re.search(t, place.ab("status", r).out), 60)
        assert place.diagnoses(run) == {}, "it may be a moment of a start"
        stood_still(place, run)
        page, found = place.ab("status", run).out, place.diagnoses(run)["gang_partial_scheduling"]
        assert re.fullmatch(sentence, found["summary"]) and page.count(found["summary"]) == 1
        assert found["evidence"] and "gang scheduler" in found["fix"] and run in found["fix"]
    place.ab("stop", second)
    until("the first to run whole", lambda: place.running(first) == 3, 60)
    assert place.ab.state(first) == "running" and place.diagnoses(first) == {}


def stood_still(place: Place, run: str) -> None:
    """No pod of the run has got or lost a place for long enough: time cannot be made to pass on a real
    cluster.
    """
    for pod in place.pods(run):
        conditions = pod["status"]["conditions"]
        for condition in conditions:
            if condition["type"] == "PodScheduled":
                at = time.time() - STUCK - 5
                condition["lastTransitionTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        place.api.patch(
            {"apiVersion": "v1", "kind": "Pod", **pod}, {"status": {"conditions": conditions}}, "status"
        )


def test_a_start_that_takes_a_while_is_no_trap(place: Place) -> None:
    """Every member has its place, and its image comes slowly."""
    place.ab.environ["ALLABOARD_GANG"] = "none"
    place.nodes.kubelet.slow_pull("harness/slow*", 1000)
    try:
        (run,) = place.submit("slow", image="harness/slow:1")
        until("all to have a place", lambda: place.placed(run) == 3, 60)
        stood_still(place, run)
        assert place.ab.state(run) == "starting" and place.diagnoses(run) == {}
        assert "wait for each other" not in place.ab("status", run).out
    finally:
        place.nodes.kubelet.mend_pulls()


def test_a_gang_of_which_no_member_fits_is_in_no_trap(place: Place) -> None:
    place.ab.environ["ALLABOARD_GANG"] = "none"
    (run,) = place.submit("large", resources={"cpu": 3})
    found = until("the reason", lambda: place.diagnoses(run).get("unschedulable_constraints"), 60)
    assert re.search(r"asks for 3 cpu, and the largest node has 2", found["summary"])
    stood_still(place, run)
    assert place.ab.state(run) == "queued" and {*place.diagnoses(run)} == {"unschedulable_constraints"}


@pytest.mark.parametrize(
    "gang", [pytest.param("coscheduling", marks=pytest.mark.needs("coscheduling")), "workload"]
)
def test_a_member_made_anew_joins_its_gang_unless_others_have_ended(place: Place, gang: str) -> None:
    """Gang schedulers do not count members that have ended, and say so in no way that people would see."""
    place.ab.environ["ALLABOARD_GANG"] = gang
    (run,) = place.submit("one")
    until("all to run", lambda: place.running(run) == 3, 60)
    worker = f"{run}-worker-0"

    def anew() -> Object:
        """The pod that the operator makes in the place of this one."""
        old = place.api.get("v1", "Pod", worker, place.namespace)
        assert old is not None
        place.api.delete("v1", "Pod", worker, place.namespace)

        def other() -> Object | None:
            pod = place.api.get("v1", "Pod", worker, place.namespace)
            return pod if pod is not None and pod["metadata"]["uid"] != old["metadata"]["uid"] else None

        return until("another pod of its name", other, 60)

    anew()
    until("all to run again", lambda: place.running(run) == 3, 60)
    assert place.ab.state(run) == "running" and place.diagnoses(run) == {}
    place.nodes.kubelet.kill_container(place.namespace, f"{run}-worker-1", signal=15)
    until("worker-1 to have ended", lambda: place.phases(run).count("Succeeded") == 1, 60)
    anew()
    who = {"coscheduling": "coscheduling", "workload": "kube-scheduler"}[gang]
    words = f"worker-0 can join no more: {who} places 3 members together or none, and 1 has ended already"
    found = until("it to be told", lambda: place.diagnoses(run).get("gang_unschedulable"), 60)
    assert found["summary"] == words and not found["retryable"] and f"allaboard stop {run}" in found["fix"]
    assert place.ab.state(run) == "queued" and place.ab("status", run).out.count(words) == 1
    assert place.phases(run) == ["Running", "Pending", "Succeeded"]

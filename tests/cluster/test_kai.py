"""KAI Scheduler, which is built by hand (README.md): two gangs at once where one has room, of which one runs,
all of it, while the other waits, all of it, and says why. KAI's pod-grouper makes the PodGroups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cluster.api import Object, until
from tests.cluster.components.kai import ROOT_QUEUE, SCHEDULER, queue
from tests.cluster.jobs import a_pod
from tests.cluster.plane import ControlPlane
from tests.cluster.test_queues import Place

NewPlane = Callable[..., AbstractContextManager[ControlPlane]]
LONG = 60.0
JOBSET = "jobset.sigs.k8s.io/jobset-name"
GROUP = ("scheduling.run.ai/v2alpha2", "PodGroup")
NAMED_BY = "pod-group-name"
FEW = r"KAI Scheduler finds no 2 places together in queue default-queue: "
ROOM = rf"{FEW}no nodes with enough resources were found: 3 node\(s\) didn't have enough resources: CPU cores"
RACK = "topology.example.com/rack"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def with_kai(tmp_path_factory: pytest.TempPathFactory, new_plane_in: NewPlane) -> Iterator[ControlPlane]:
    parts = ("training-operator", "jobset", "trainer", "kai", "kwok")
    with new_plane_in(tmp_path_factory.mktemp("kai"), *parts) as plane:
        yield plane


class Sets(Place):
    """Of JobSets, which a TrainJob is, too."""

    def jobs(self) -> list[str]:
        jobs = self.plane.api.list("jobset.x-k8s.io/v1alpha2", "JobSet", self.namespace)
        return [job["metadata"]["name"] for job in jobs]

    def pods(self, job: str) -> list[Object]:
        return self.plane.api.list("v1", "Pod", self.namespace, labelSelector=f"{JOBSET}={job}")

    def holds(self, job: str, condition: str) -> bool:
        return condition == "Succeeded" and self.state(job) == "succeeded"


def groups_of(place: Place) -> dict[str, Object]:
    """The PodGroups of KAI there, by the name of their job."""
    found = place.plane.api.list(*GROUP, place.namespace)
    return {group["metadata"]["ownerReferences"][0]["name"]: group for group in found}


def says(place: Place, run: str, sentence: str) -> None:
    """Waits until ``status`` gives this reason."""
    pattern, shown = rf"^ *(waits|why) +{sentence}$", [""]

    def said() -> bool:
        shown[0] = place("status", run)
        return re.search(pattern, shown[0], re.MULTILINE) is not None

    try:
        until(sentence, said, LONG)
    except TimeoutError:
        pytest.fail(f"{sentence} is not in:\n{shown[0]}")


def test_kai_is_taken_by_itself_and_runs_one_gang_whole_and_then_the_other(
    with_kai: ControlPlane, tmp_path: Path
) -> None:
    """Three places for two gangs of two."""
    with Place(with_kai, "whole", tmp_path, *["6"] * 3) as kai:
        runs = [kai.launch(key, 2, 4) for key in ("one", "other")]
        first, second = kai.first_of(*runs, 2)
        says(kai, second, ROOM)
        assert (kai.placed(first), kai.placed(second)) == (2, 0)
        assert (kai.state(first), kai.state(second)) == ("running", "queued")
        groups = groups_of(kai)
        assert {run: groups[run]["spec"]["minMember"] for run in runs} == dict.fromkeys(runs, 2)
        for run in runs:
            named = {pod["metadata"]["annotations"][NAMED_BY] for pod in kai.pods(run)}
            assert named == {groups[run]["metadata"]["name"]}
            assert {pod["spec"]["schedulerName"] for pod in kai.pods(run)} == {SCHEDULER}
        kai.end(first)
        until("all of the second to run", lambda: kai.run(second) == 2, LONG)
        kai.end(second)
        assert [kai.state(run) for run in runs] == ["succeeded", "succeeded"]


def test_a_queue_of_kai_that_is_full_or_not_there_or_no_leaf_is_told(
    with_kai: ControlPlane, tmp_path: Path
) -> None:
    with_kai.api.create(queue("research", ROOT_QUEUE, cpu=2000))
    with Place(with_kai, "full", tmp_path, "16") as kai:
        first = kai.launch("one", 2, gang={"queue": "research"})
        until("the first to run", lambda: kai.run(first) == 2, LONG)
        second = kai.launch("other", 2, gang={"queue": "research"})
        full = "research quota has reached the allowable limit of CPU cores"
        says(kai, second, f"KAI Scheduler does not let the gang into queue research: {full}.*")
        lost = kai.launch("lost", 2, gang={"queue": "reserch"})
        says(kai, lost, "KAI Scheduler does not let the gang in: there is no queue reserch")
        above = kai.launch("above", 2, gang={"queue": ROOT_QUEUE})
        asks = f"it gives no reason; has queue {ROOT_QUEUE} others below it\\? such a queue takes no jobs"
        says(kai, above, f"KAI Scheduler finds no 2 places together in queue {ROOT_QUEUE}: {asks}")
        assert [kai.placed(run) for run in (second, lost, above)] == [0, 0, 0]
        kai.end(first)
        until("the second to run", lambda: kai.run(second) == 2, LONG)
        kai.end(second)


@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_kai_places_all_members_of_a_jobset_together(
    with_kai: ControlPlane, tmp_path: Path, engine: str
) -> None:
    with Sets(with_kai, engine, tmp_path, *["6"] * 3) as kai:
        roles = {"master": 1, "worker": {"replicas": 1, "image": "lab/other:1"}}
        runs = [
            kai.launch(key, None, 4, engine=engine, groups=roles, gang={"scheduler": "kai"})
            for key in ("one", "other")
        ]
        first, second = kai.first_of(*runs, 2)
        says(kai, second, ROOM)
        assert (kai.placed(first), kai.placed(second)) == (2, 0)
        groups = groups_of(kai)
        assert {run: groups[run]["spec"]["minSubGroup"] for run in runs} == dict.fromkeys(runs, 2)
        kai.end(first)
        until("all of the second to run", lambda: kai.run(second) == 2, LONG)
        kai.end(second)


def test_a_gang_that_a_more_urgent_one_displaces_says_so_and_runs_again_after_it(
    with_kai: ControlPlane, tmp_path: Path
) -> None:
    urgent = {"kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 90}
    with_kai.api.create({"apiVersion": "scheduling.k8s.io/v1", **urgent})
    with Place(with_kai, "displaced", tmp_path, "2500m", "2500m", "1") as kai:
        first = kai.launch("first", 2, 2)
        until("the first to run", lambda: kai.run(first) == 2, LONG)
        second = kai.launch("second", 2, 2, gang={"priority": "urgent"})
        until("the urgent one to run", lambda: kai.run(second) == 2, LONG)
        says(kai, first, rf"{ROOM} \(it was preempted by {second}\)")
        kai.end(second)
        until("the first to run again", lambda: kai.run(first) == 2, LONG)
        kai.end(first)
        assert [kai.state(run) for run in (first, second)] == ["succeeded", "succeeded"]


def test_kai_places_the_members_within_one_rack_and_says_when_no_rack_has_room(
    with_kai: ControlPlane, tmp_path: Path
) -> None:
    """Rack a has two nodes with room for a member each; rack b has one, which is the fullest."""
    api = with_kai.api
    topology = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "racks"}}
    levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
    with Place(with_kai, "racked", tmp_path, "2500m", "2500m", "2500m") as kai:
        for node, rack in zip(kai.nodes, "aab", strict=True):
            api.patch(node, {"metadata": {"labels": {RACK: rack}}})
        full = a_pod(kai.namespace, "full", cpu="400m", nodeName=kai.nodes[2]["metadata"]["name"])
        api.create(full)
        gang = {"topology": {"require": RACK}}
        lost = kai.launch("lost", 2, 2, gang=gang)
        says(kai, lost, rf"{FEW}.*2 node\(s\) didn't match pod affinity rules.*")
        kai("stop", lost)
        until("it to be gone", lambda: not kai.pods(lost), LONG)
        api.create({**topology, "spec": {"levels": levels}})
        first = kai.launch("first", 2, 2, gang=gang)
        until("the first to run", lambda: kai.run(first) == 2, LONG)
        in_rack_a = {node["metadata"]["name"] for node in kai.nodes[:2]}
        assert {pod["spec"]["nodeName"] for pod in kai.pods(first)} == in_rack_a
        second = kai.launch("second", 2, 2, gang=gang)
        says(kai, second, f"{FEW}topology racks, requirement {RACK} couldn't be satisfied: not enough .*")
        kai.end(first)
        until("the second to run", lambda: kai.run(second) == 2, LONG)
        assert {pod["spec"]["nodeName"] for pod in kai.pods(second)} == in_rack_a
        kai.end(second)

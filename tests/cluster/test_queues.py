"""Two gangs at once where one has room, by those that are built by hand (README.md): Volcano, whose PodGroups
the Training Operator makes, and Kueue, which holds whole jobs back. One of the two runs, all of it; the other
waits, all of it, and follows.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import Api, Object, until
from tests.cluster.components.kueue import TELLS_POSITIONS
from tests.cluster.components.kwok import fake_node
from tests.cluster.jobs import a_pytorchjob
from tests.cluster.plane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
NewPlane = Callable[..., AbstractContextManager[ControlPlane]]
JOB = "training.kubeflow.org/job-name"
PYTORCHJOB = ("kubeflow.org/v1", "PyTorchJob")
QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE = "kueue.x-k8s.io/v1beta2"
LONG = 60.0
LINE = "(, next in line|, [0-9]+ before it)?"
"""Its place in the queue, where Kueue tells it."""

pytestmark = pytest.mark.timeout(300)


class Place:
    """A namespace of a plane, and nodes with these cores, whose pods only pretend to run: what is in it, and
    ``allaboard`` there.
    """

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path, *cores: str) -> None:
        self.plane, self.namespace, self.folder = plane, plane.make_namespace(namespace), folder
        self.nodes = [fake_node(f"{namespace}-{n}", cpu=each) for n, each in enumerate(cores)]
        for node in self.nodes:
            plane.api.create(node)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.plane.remove_namespace(self.namespace, wait=LONG)
        for node in self.nodes:
            self.plane.api.delete("v1", "Node", node["metadata"]["name"])

    def __call__(self, *words: str, code: int = 0) -> str:
        """What it prints, on stderr where it ends with another code than 0."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("ALLABOARD_")}
        place = {
            "KUBECONFIG": str(self.plane.kubeconfig),
            "ALLABOARD_BACKEND": "kubernetes",
            "ALLABOARD_NAMESPACE": self.namespace,
            "ALLABOARD_HOME": str(self.folder / "home"),
            "PYTHONPATH": str(ROOT / "core" / "src"),
        }
        command = [sys.executable, "-m", "allaboard", *words]
        done = subprocess.run(command, env=own | place, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr if code else done.stdout

    def launch(self, key: str, workers: int | None, cores: int = 1, **fields: Any) -> str:
        """A run of ``allaboard``, each member of which needs these cores; its name."""
        file = self.folder / f"{key}.yaml"
        job: Object = {"name": key, "image": "lab/train:1", "command": ["train"]}
        job |= {} if workers is None else {"workers": workers}
        file.write_text(yaml.safe_dump({**job, "resources": {"cpu": cores}, **fields}))
        self("run", str(file), "--key", key, "--detach")
        return next(n for n in self.jobs() if n.startswith(f"{key}-"))

    def state(self, run: str) -> str:
        return str(json.loads(self("status", run, "--json"))["state"])

    def jobs(self) -> list[str]:
        return [job["metadata"]["name"] for job in self.plane.api.list(*PYTORCHJOB, self.namespace)]

    def job(self, name: str) -> Object:
        found = self.plane.api.get(*PYTORCHJOB, name, self.namespace)
        assert found is not None
        return found

    def pods(self, job: str) -> list[Object]:
        return self.plane.api.list("v1", "Pod", self.namespace, labelSelector=f"{JOB}={job}")

    def placed(self, job: str) -> int:
        """How many members have a node."""
        return sum("nodeName" in pod["spec"] for pod in self.pods(job))

    def run(self, job: str) -> int:
        """How many members run."""
        return sum(pod["status"].get("phase") == "Running" for pod in self.pods(job))

    def end(self, job: str) -> None:
        """Its members end well, as no kubelet would say it."""
        over = {"status": {"phase": "Succeeded"}}
        # The master last: its end is the job's, after which the operator removes whoever runs.
        for pod in sorted(self.pods(job), key=lambda pod: str(pod["metadata"]["name"]), reverse=True):
            self.plane.api.patch({"apiVersion": "v1", "kind": "Pod", **pod}, over, sub="status")
        until(f"{job} to succeed", lambda: self.holds(job, "Succeeded"), LONG)

    def holds(self, job: str, condition: str) -> bool:
        conditions = self.job(job).get("status", {}).get("conditions", [])
        return any((c["type"], c["status"]) == (condition, "True") for c in conditions)

    def first_of(self, one: str, other: str, members: int) -> tuple[str, str]:
        """Which of two runs whole, and which one waits."""
        look = {one: other, other: one}
        first = until(
            "one of two to run", lambda: next((j for j in look if self.run(j) == members), ""), LONG
        )
        return first, look[first]


# Volcano.


ROOM = r"Volcano finds no 2 places together: .*Insufficient cpu.*"


@pytest.fixture(scope="module")
def with_volcano(tmp_path_factory: pytest.TempPathFactory, new_plane_in: NewPlane) -> Iterator[ControlPlane]:
    flags = {"training-operator": ["--gang-scheduler-name=volcano"]}
    folder = tmp_path_factory.mktemp("volcano")
    with new_plane_in(folder, "training-operator", "volcano", "kwok", flags=flags) as plane:
        yield plane


@pytest.mark.parametrize(
    ("nodes", "members", "cores", "sentence"),
    [
        # What the cores of all nodes together do not allow is kept out, and the operator makes no pod of it.
        pytest.param(
            ["4500m"],
            3,
            1,
            "Volcano does not let the gang in: the cluster is short of cpu",
            id="kept out",
        ),
        # They allow four members, but there are only three places: one of the second gang's two would fit.
        pytest.param(["6"] * 3, 2, 4, ROOM, id="let in"),
    ],
)
def test_volcano_runs_one_gang_whole_and_then_the_other(
    with_volcano: ControlPlane, tmp_path: Path, nodes: list[str], members: int, cores: int, sentence: str
) -> None:
    """The operator makes the PodGroups."""
    with Place(with_volcano, f"gangs-of-{members}", tmp_path, *nodes) as volcano:
        # Somebody's job; it shows what the operator was started with.
        volcano.plane.api.create(a_pytorchjob(volcano.namespace, "small", workers=0))
        until("the small job to run", lambda: volcano.run("small") == 1, LONG)
        runs = [volcano.launch(key, members, cores) for key in ("one", "other")]
        first, second = volcano.first_of(*runs, members)

        def waits() -> bool:
            shown = volcano("status", second)
            return re.search(rf"^ *(waits|why) +{sentence}$", shown, re.MULTILINE) is not None

        until(f"the reason {sentence}", waits, LONG)
        assert (volcano.placed(first), volcano.placed(second)) == (members, 0)
        assert (volcano.state(first), volcano.state(second)) == ("running", "queued")
        [group] = [
            g
            for g in volcano.plane.api.list("scheduling.volcano.sh/v1beta1", "PodGroup", volcano.namespace)
            if g["metadata"]["name"] == second
        ]
        assert group["spec"]["minMember"] == members
        volcano.end(first)
        until("all of the second to run", lambda: volcano.run(second) == members, LONG)
        volcano.end(second)
        assert [volcano.state(run) for run in runs] == ["succeeded", "succeeded"]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory, new_plane_in: NewPlane) -> Iterator[ControlPlane]:
    """Its operators make no gangs: the PodGroups are ours."""
    folder = tmp_path_factory.mktemp("marked")
    with new_plane_in(folder, "training-operator", "volcano", "kwok") as plane:
        yield plane


def test_volcano_is_taken_by_itself_and_places_the_gangs_of_our_podgroups(
    marked: ControlPlane, tmp_path: Path
) -> None:
    with Place(marked, "marked", tmp_path, *["6"] * 3) as volcano:
        runs = [volcano.launch(key, 2, 4) for key in ("one", "other")]
        first, second = volcano.first_of(*runs, 2)
        until("the reason", lambda: re.search(f"why +{ROOM}", volcano("status", second)), LONG)
        assert (volcano.placed(first), volcano.placed(second)) == (2, 0)
        groups = volcano.plane.api.list("scheduling.volcano.sh/v1beta1", "PodGroup", volcano.namespace)
        assert {g["metadata"]["name"] for g in groups} == {f"{run}-gang" for run in runs}
        assert {str(g["spec"]["minTaskMember"]) for g in groups} == {"{'master': 1, 'worker': 1}"}
        volcano.end(first)
        until("all of the second to run", lambda: volcano.run(second) == 2, LONG)
        volcano.end(second)
        assert [volcano.state(run) for run in runs] == ["succeeded", "succeeded"]


def test_a_queue_of_volcano_that_is_full_or_not_there_is_told(marked: ControlPlane, tmp_path: Path) -> None:
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "research"}}
    marked.api.create({**queue, "spec": {"weight": 1, "capability": {"cpu": "2"}}})
    with Place(marked, "full", tmp_path, "16") as volcano:
        first = volcano.launch("one", 2, gang={"queue": "research"})
        until("the first to run", lambda: volcano.run(first) == 2, LONG)
        second = volcano.launch("other", 2, gang={"queue": "research"})
        share = r"in queue research \(it has 2 of 2 cpu in use\)"
        sentence = f"why +Volcano finds no 2 places together {share}: "
        until("the reason", lambda: re.search(sentence, volcano("status", second)), LONG)
        assert volcano.placed(second) == 0
        lost = volcano.launch("lost", 2, gang={"queue": "reserch"})
        sentence = "(waits|why) +Volcano has not looked at the gang for [0-9]+ s: is there a queue reserch"
        until("the reason", lambda: re.search(sentence, volcano("status", lost)), 2 * LONG)


VOLCANO = "scheduling.volcano.sh/v1beta1"


@pytest.fixture(scope="module")
def volcano_alone(tmp_path_factory: pytest.TempPathFactory, new_plane_in: NewPlane) -> Iterator[ControlPlane]:
    """A node of four cores, and no operator: the PodGroups are ours."""
    with new_plane_in(tmp_path_factory.mktemp("alone"), "volcano") as plane:
        node = fake_node("alone", cpu="4")
        plane.api.create(node)
        plane.api.patch(node, {"status": node["status"]}, sub="status")
        yield plane


def phase_of(plane: ControlPlane, namespace: str, group: str) -> str:
    found = plane.api.get(VOLCANO, "PodGroup", group, namespace) or {}
    return str((found.get("status") or {}).get("phase"))


@pytest.mark.parametrize("least", [{"minResources": {"cpu": "4"}}, {}], ids=["with", "without"])
def test_a_podgroup_with_minresources_and_no_members_keeps_others_out(
    volcano_alone: ControlPlane, least: Object
) -> None:
    """Why ours have none: it would be that of every run that is suspended, or has ended."""
    plane = volcano_alone
    namespace = plane.make_namespace(f"least-{len(least)}")

    def group(name: str, **spec: Any) -> None:
        body = {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": {"name": name, "namespace": namespace}}
        plane.api.create({**body, "spec": {"minMember": 2, "queue": "default", **spec}})
        until(f"Volcano to look at {name}", lambda: phase_of(plane, namespace, name) != "None", LONG)

    group("ended", **least)
    until("it to be let in", lambda: phase_of(plane, namespace, "ended") == "Inqueue", LONG)
    group("next", minResources={"cpu": "2"})
    if not least:
        until("the next to be let in", lambda: phase_of(plane, namespace, "next") == "Inqueue", LONG)
    else:
        said = "resource in cluster is overused: overused cpu"

        def kept_out() -> bool:
            events = plane.api.list("v1", "Event", namespace)
            about = [e["message"] for e in events if e["involvedObject"]["name"] == "next"]
            return said in about

        until("the next to be kept out of an empty cluster", kept_out, LONG)
        assert phase_of(plane, namespace, "next") == "Pending"
    plane.remove_namespace(namespace, wait=LONG)


# Kueue.


@pytest.fixture(scope="module")
def with_kueue(tmp_path_factory: pytest.TempPathFactory, new_plane_in: NewPlane) -> Iterator[ControlPlane]:
    """A queue of the cluster has a quota of four cores."""
    folder = tmp_path_factory.mktemp("kueue")
    with new_plane_in(folder, "training-operator", "kueue", "kwok") as plane:
        plane.api.create({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "any"}})
        a_cluster_queue(plane.api, "cores", "any", "4")
        yield plane


@pytest.fixture
def kueue(with_kueue: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A namespace on a node that has a little more than the quota."""
    with Place(with_kueue, f"queued-{request.node.name.split('_')[2]}", tmp_path, "4500m") as place:
        yield place


def a_local_queue(place: Place, name: str, above: str = "cores") -> None:
    place.plane.api.create(
        {
            "apiVersion": KUEUE,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": place.namespace},
            "spec": {"clusterQueue": above},
        }
    )


def a_cluster_queue(api: Api, name: str, flavor: str, cores: str, **spec: Any) -> None:
    """A queue of the cluster with a quota of cores of one flavor."""
    quota = {"name": flavor, "resources": [{"name": "cpu", "nominalQuota": cores}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [quota]}]
    api.create(
        {
            "apiVersion": KUEUE,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups, **spec},
        }
    )


def suspended(place: Place, job: str) -> bool:
    return bool(place.job(job)["spec"].get("runPolicy", {}).get("suspend"))


def one_after_the_other(kueue: Place, one: str, other: str, members: int) -> Iterator[tuple[str, str]]:
    """Yields what runs and what waits, when that is so; then ends both, the second having run whole."""
    first, second = kueue.first_of(one, other, members)
    [workload] = [
        w
        for w in kueue.plane.api.list(KUEUE, "Workload", kueue.namespace)
        if w["metadata"]["ownerReferences"][0]["name"] == second
    ]

    def reason() -> str:
        found = kueue.plane.api.get(KUEUE, "Workload", workload["metadata"]["name"], kueue.namespace) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((c["message"] for c in conditions if c["type"] == "QuotaReserved"), "")

    until("Kueue to say why the second waits", lambda: "insufficient unused quota for cpu" in reason(), LONG)
    assert suspended(kueue, second) and not suspended(kueue, first)
    assert (kueue.placed(first), kueue.pods(second)) == (members, [])
    yield first, second
    kueue.end(first)
    until("all of the second to run", lambda: kueue.run(second) == members, LONG)
    kueue.end(second)


def test_kueue_admits_one_job_whole_and_then_the_other(kueue: Place) -> None:
    a_local_queue(kueue, "team")
    for name in ("one", "other"):
        job = a_pytorchjob(kueue.namespace, name, workers=2)
        for replicas in job["spec"]["pytorchReplicaSpecs"].values():
            replicas["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        job["metadata"]["labels"] = {QUEUE: "team"}
        kueue.plane.api.create(job)
    for _ in one_after_the_other(kueue, "one", "other", 3):
        pass


def test_kueue_takes_the_jobs_of_a_namespace_that_has_a_default_queue(kueue: Place) -> None:
    """Runs of ``allaboard`` say nothing of Kueue there; one that waits is queued, and says for what."""
    a_local_queue(kueue, "default")
    runs = [kueue.launch(key, 3, gang={"scheduler": "none"}) for key in ("one", "other")]
    for first, second in one_after_the_other(kueue, *runs, 3):
        assert (kueue.state(first), kueue.state(second)) == ("running", "queued")
        lacks = "it needs [12] more cpu in flavor any, which others use"
        words = rf"Kueue holds it back in queue default{LINE}: {lacks}"
        assert re.search(rf"^ *(waits|why) +{words}$", kueue("status", second), re.MULTILINE)
        assert "is admitted by Kueue" in kueue("suspend", second, code=2)
    assert [kueue.state(run) for run in runs] == ["succeeded", "succeeded"]


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
    assert place.state(run) == "queued" and place.pods(run) == []


def test_kueue_is_asked_by_the_queue_of_the_gang_and_its_reasons_are_told(kueue: Place) -> None:
    a_local_queue(kueue, "team")
    gang = {"scheduler": "none", "queue": "team"}
    never = r"it asks for more than its queue can ever have of cpu \(3 and 6 asked, at most 4 in flavor any\)"
    says(kueue, kueue.launch("big", 3, 3, gang=gang), f"Kueue holds it back in queue team: {never}")
    lost = kueue.launch("lost", 2, gang={**gang, "queue": "teem"})
    says(kueue, lost, "Kueue holds it back in queue teem: LocalQueue teem doesn't exist")


def test_a_job_that_kueue_takes_back_is_queued_says_why_and_runs_again(kueue: Place) -> None:
    a_local_queue(kueue, "team")
    run = kueue.launch("one", 2, gang={"scheduler": "none", "queue": "team"})
    until("it to run", lambda: kueue.run(run) == 2 and kueue.state(run) == "running", LONG)
    queue = {"apiVersion": KUEUE, "kind": "LocalQueue"}
    queue["metadata"] = {"name": "team", "namespace": kueue.namespace}  # type: ignore[assignment]
    kueue.plane.api.patch(queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
    closed = r"LocalQueue team is (stopped|inactive) \(its queue was stopped\)"
    why = rf"Kueue holds it back in queue team{LINE}: {closed}"
    says(kueue, run, why)
    kueue.plane.api.patch(queue, {"spec": {"stopPolicy": "None"}})
    until("it to run again", lambda: kueue.run(run) == 2 and kueue.state(run) == "running", LONG)
    kueue.end(run)
    assert kueue.state(run) == "succeeded"


def the_workload(place: Place, job: str) -> Object:
    return next(
        w
        for w in place.plane.api.list(KUEUE, "Workload", place.namespace)
        if w["metadata"]["ownerReferences"][0]["name"] == job
    )


def test_a_job_that_a_more_urgent_one_displaces_says_so_and_runs_again_after_it(kueue: Place) -> None:
    api = kueue.plane.api
    api.create(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        }
    )
    preemption = {"withinClusterQueue": "LowerPriority"}
    a_cluster_queue(api, "urgent", "any", "4", preemption=preemption)
    a_local_queue(kueue, "team", "urgent")
    gang = {"scheduler": "none", "queue": "team"}
    first = kueue.launch("first", 3, gang=gang)
    until("the first to run", lambda: kueue.run(first) == 3, LONG)
    urgent = kueue.launch("urgent", 3, gang={**gang, "priority": "urgent"})
    until("the urgent one to run", lambda: kueue.run(urgent) == 3, LONG)
    next_in_line = ", next in line" if TELLS_POSITIONS else ""
    short = "it needs [12] more cpu in flavor any, which others use"
    who = "it was preempted by one of higher priority in the same queue"
    says(kueue, first, rf"Kueue holds it back in queue team{next_in_line}: {short} \({who}\)")
    shown = json.loads(kueue("queues", "--json"))["queues"]
    [team] = [queue for queue in shown if queue["name"] == "team"]
    assert [(w["name"], w["position"]) for w in team["waiters"]] == [(first, 1 if TELLS_POSITIONS else None)]
    [cpu] = team["resources"]
    assert (cpu["resource"], cpu["flavor"], cpu["used"], cpu["quota"], cpu["free"]) == ("cpu", "any", 3, 4, 1)
    kueue.end(urgent)
    until("the first to run again", lambda: kueue.run(first) == 3, LONG)
    kueue.end(first)
    assert [kueue.state(run) for run in (first, urgent)] == ["succeeded", "succeeded"]


def test_a_job_that_a_person_takes_out_of_its_queue_says_so_and_comes_back(kueue: Place) -> None:
    a_local_queue(kueue, "team")
    run = kueue.launch("one", 2, gang={"scheduler": "none", "queue": "team"})
    until("it to run", lambda: kueue.run(run) == 2, LONG)
    workload = {"apiVersion": KUEUE, "kind": "Workload", "metadata": the_workload(kueue, run)["metadata"]}
    kueue.plane.api.patch(workload, {"spec": {"active": False}})
    says(kueue, run, "Kueue has taken it out of queue team: it was deactivated")
    kueue.plane.api.patch(workload, {"spec": {"active": True}})
    until("it to run again", lambda: kueue.run(run) == 2 and kueue.state(run) == "running", LONG)
    kueue.end(run)


RACK = "topology.example.com/rack"


def test_kueue_places_the_members_within_one_rack_and_says_when_no_rack_has_room(
    with_kueue: ControlPlane, tmp_path: Path
) -> None:
    """Rack a has two nodes with room for a member each, rack b one."""
    api = with_kueue.api
    levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = {"apiVersion": KUEUE, "kind": "Topology", "metadata": {"name": "racks"}}
    api.create({**topology, "spec": {"levels": levels}})
    flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "racked"}}
    api.create({**flavor, "spec": {"nodeLabels": {"lab": "racked"}, "topologyName": "racks"}})
    a_cluster_queue(api, "racked", "racked", "100")
    with Place(with_kueue, "racked", tmp_path, "2500m", "2500m", "2500m") as place:
        for node, rack in zip(place.nodes, "aab", strict=True):
            labels = {RACK: rack, "lab": "racked", "kubernetes.io/hostname": node["metadata"]["name"]}
            api.patch(node, {"metadata": {"labels": labels}})
        a_local_queue(place, "team", "racked")
        gang = {"scheduler": "none", "queue": "team", "topology": {"require": RACK}}
        first = place.launch("first", 2, 2, gang=gang)
        until("the first to run", lambda: place.run(first) == 2, LONG)
        in_rack_a = {node["metadata"]["name"] for node in place.nodes[:2]}
        assert {pod["spec"]["nodeName"] for pod in place.pods(first)} == in_rack_a
        second = place.launch("second", 2, 2, gang=gang)
        words = (
            r"no domain of topology racks has room for all of its members \(of 3 nodes it leaves out, .*\)"
        )
        says(place, second, f"Kueue holds it back in queue team{LINE}: {words}")
        place.end(first)
        until("the second to run", lambda: place.run(second) == 2, LONG)
        assert {pod["spec"]["nodeName"] for pod in place.pods(second)} == in_rack_a
        place.end(second)

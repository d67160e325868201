"""What Kueue does with a job, story by story: what its Workload, the job and its pods say on the way is
recorded, read, and kept in tests/core/gangs/recorded, where it is played again without a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from allaboard.engines import ENGINES
from tests.cluster.api import Object, until
from tests.cluster.plane import ControlPlane
from tests.cluster.recording import WRITES, Recorder, keep
from tests.cluster.test_queues import (
    KUEUE,
    LONG,
    RACK,
    Place,
    a_cluster_queue,
    a_local_queue,
    with_kueue,
)
from tests.core.engines.replay import Story, read
from tests.core.gangs.test_recorded import FILE, STORIES, troubles

__all__ = ["with_kueue"]
ENGINE = ENGINES["pytorchjob"]
TEAM = "team"

pytestmark = pytest.mark.timeout(300)


@dataclass
class Lab:
    """A namespace with a LocalQueue ``team`` of a ClusterQueue of its own, and the job of a story in it."""

    place: Place
    queue: str
    instead: Mapping[str, str]
    recorder: Recorder | None = None
    run: str = ""
    job: dict[str, Any] = field(default_factory=dict)

    def begin(self, workers: int = 2, cores: int = 1, queue: str = TEAM, **fields: Any) -> None:
        """The job of the story, recorded from here on."""
        place = self.place
        gang = {"scheduler": "none", "queue": queue, **fields.pop("gang", {})}
        api, where = place.plane.api, place.namespace
        self.recorder = Recorder(api, ENGINE, where, "", queue=True, instead=self.instead)
        self.run = self.recorder.job = place.launch("job", workers, cores, gang=gang, **fields)
        own = {"name": "job", "image": "lab/train:1", "command": ["train"], "workers": workers}
        self.job = {**own, "resources": {"cpu": cores}, "gang": gang, **fields}

    def other(self, workers: int, cores: int = 1, **gang: Any) -> str:
        """A job of somebody else."""
        return self.place.launch("other", workers, cores, gang={"scheduler": "none", "queue": TEAM, **gang})

    def runs(self, run: str = "", members: int = 2) -> None:
        run = run or self.run
        until(
            f"{run} to run",
            lambda: self.place.run(run) == members and self.place.holds(run, "Running"),
            LONG,
        )

    def ends(self) -> None:
        self.place.end(self.run)

    def workload(self) -> Object:
        every = self.place.plane.api.list(KUEUE, "Workload", self.place.namespace)
        mine = (w for w in every if w["metadata"]["ownerReferences"][0]["name"] == self.run)
        return {"apiVersion": KUEUE, "kind": "Workload", **next(mine, {})}

    def says(self, kind: str, words: str, status: str = "True") -> None:
        """Waits until its Workload has this condition, with these words in its reason or message: which
        reason a wait has depends on a feature gate.
        """

        def there() -> bool:
            conditions = self.workload().get("status", {}).get("conditions", [])
            return any(
                (c["type"], c["status"]) == (kind, status) and words in f"{c['reason']}: {c['message']}"
                for c in conditions
            )

        until(f"{kind}={status}: {words}", there, LONG)

    def waits(self, words: str) -> None:
        """Waits until it is held back for this."""
        self.says("QuotaReserved", words, "False")

    def is_back(self) -> None:
        """Waits until nothing of it is left but its place in the queue."""
        until(
            "it to be suspended, without pods",
            lambda: self.place.holds(self.run, "Suspended") and not self.place.pods(self.run),
            LONG,
        )

    def patch(self, change: Object, sub: str = "") -> None:
        self.place.plane.api.patch(self.workload(), change, sub=sub)

    def stop_policy(self, policy: str, kind: str = "LocalQueue") -> None:
        name = {"name": TEAM, "namespace": self.place.namespace}
        metadata = name if kind == "LocalQueue" else {"name": self.queue}
        self.place.plane.api.patch(
            {"apiVersion": KUEUE, "kind": kind, "metadata": metadata}, {"spec": {"stopPolicy": policy}}
        )

    def check(self, state: str, message: str) -> None:
        """The admission check says this of the job, as its controller would."""
        [before] = self.workload()["status"]["admissionChecks"]
        self.patch(
            {"status": {"admissionChecks": [{**before, "state": state, "message": message}]}}, "status"
        )


def admitted(lab: Lab) -> None:
    lab.begin()
    lab.runs()
    lab.ends()


def waits(lab: Lab) -> None:
    other = lab.other(3)
    lab.runs(other, 3)
    lab.begin()
    lab.waits("1 more needed")
    lab.place.end(other)
    lab.runs()
    lab.ends()


def preempted(lab: Lab) -> None:
    lab.begin(3)
    lab.runs(members=3)
    other = lab.other(3, priority="recording")
    lab.runs(other, 3)
    lab.is_back()
    lab.waits("more needed")
    lab.place.end(other)
    lab.runs(members=3)
    lab.ends()


def deactivated(lab: Lab) -> None:
    lab.begin()
    lab.runs()
    lab.patch({"spec": {"active": False}})
    lab.is_back()
    lab.patch({"spec": {"active": True}})
    lab.runs()
    lab.ends()


def _stopped(lab: Lab, kind: str) -> None:
    lab.stop_policy("Hold", kind)
    lab.begin()
    lab.waits("Queue ")
    lab.stop_policy("None", kind)
    lab.runs()
    lab.stop_policy("HoldAndDrain", kind)
    lab.is_back()
    lab.waits("Queue ")
    lab.stop_policy("None", kind)
    lab.runs()
    lab.ends()


def stopped(lab: Lab) -> None:
    _stopped(lab, "LocalQueue")


def cluster_queue_stopped(lab: Lab) -> None:
    _stopped(lab, "ClusterQueue")


def impossible(lab: Lab) -> None:
    """Until its quota is raised."""
    lab.begin(2, 3)
    lab.waits("maximum capacity")
    queue = {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": lab.queue}}
    found = lab.place.plane.api.get(KUEUE, "ClusterQueue", lab.queue)
    assert found is not None
    groups = found["spec"]["resourceGroups"]
    groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = "6"
    lab.place.plane.api.patch(queue, {"spec": {"resourceGroups": groups}})
    lab.runs()
    lab.ends()


def lost(lab: Lab) -> None:
    """Until somebody makes its queue."""
    lab.begin(queue="teem")
    lab.waits("doesn't exist")
    a_local_queue(lab.place, "teem", lab.queue)
    lab.runs()
    lab.ends()


def no_rack(lab: Lab) -> None:
    """Rack a has two nodes with room for a member each, rack b one; another job is in rack a."""
    gang = {"topology": {"require": RACK}}
    other = lab.other(2, 2, **gang)
    lab.runs(other)
    lab.begin(2, 2, gang=gang)
    lab.waits("topology")
    lab.place.end(other)
    lab.runs()
    lab.ends()


def checked(lab: Lab) -> None:
    lab.begin()
    lab.says("QuotaReserved", "")
    until("its check", lambda: lab.workload()["status"].get("admissionChecks"), LONG)
    lab.check("Pending", "the budget is counted")
    lab.check("Retry", "no budget before noon")
    lab.says("Evicted", "AdmissionCheck")
    lab.says("QuotaReserved", "")
    lab.check("Ready", "paid")
    lab.runs()
    lab.ends()


def rejected(lab: Lab) -> None:
    lab.begin()
    lab.says("QuotaReserved", "")
    until("its check", lambda: lab.workload()["status"].get("admissionChecks"), LONG)
    lab.check("Rejected", "over the budget of research")
    lab.says("Evicted", "DeactivatedDueToAdmissionCheck")
    until("its quota to be given back", lambda: not lab.workload()["spec"].get("active", True), LONG)


def overtime(lab: Lab) -> None:
    lab.begin(metadata={"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "4"}})
    lab.runs()
    lab.says("Evicted", "DeactivatedDueToMaximumExecutionTimeExceeded")
    lab.is_back()


WAYS: Mapping[str, Callable[[Lab], None]] = {
    way.__name__: way
    for way in (
        admitted,
        waits,
        preempted,
        deactivated,
        stopped,
        cluster_queue_stopped,
        impossible,
        lost,
        no_rack,
        checked,
        rejected,
        overtime,
    )
}
"""The stories, which tests/core/gangs/test_recorded.py tells, by name."""


@pytest.fixture(scope="module")
def priorities(with_kueue: ControlPlane) -> None:
    urgent = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "recording"},
    }
    with_kueue.api.create({**urgent, "value": 1000})


@contextmanager
def a_lab(plane: ControlPlane, name: str, folder: Path) -> Iterator[Lab]:
    """What a story needs."""
    short, racked = name.replace("_", "-"), name == "no_rack"
    mark, api = f"recording-{short}", plane.api
    own = {word: f"{word}-{short}" for word in ("cores", "any", "racks", "budget")}
    flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": own["any"]}}
    if racked:
        levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
        topology = {"apiVersion": KUEUE, "kind": "Topology", "metadata": {"name": own["racks"]}}
        api.create({**topology, "spec": {"levels": levels}})
        flavor |= {"spec": {"nodeLabels": {"lab": mark}, "topologyName": own["racks"]}}
    api.create(flavor)
    spec: dict[str, Any] = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    if name in ("checked", "rejected"):
        check = {"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": own["budget"]}}
        api.create({**check, "spec": {"controllerName": "example.com/budget"}})
        active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
        active["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        api.patch(check, {"status": {"conditions": [active]}}, sub="status")
        spec |= {"admissionChecksStrategy": {"admissionChecks": [{"name": own["budget"]}]}}
    a_cluster_queue(api, own["cores"], own["any"], "100" if racked else "4", **spec)
    nodes = ["2500m"] * 3 if racked else ["6500m"]
    with Place(plane, mark, folder, *nodes) as place:
        for node, rack in zip(place.nodes, "aab", strict=False):
            labels = {RACK: rack, "lab": mark, "kubernetes.io/hostname": node["metadata"]["name"]}
            api.patch(node, {"metadata": {"labels": labels if racked else {}}})
        a_local_queue(place, TEAM, own["cores"])
        yield Lab(place, own["cores"], {there: here for here, there in own.items()})


@pytest.fixture(scope="module")
def stories(with_kueue: ControlPlane, priorities: None) -> Iterator[dict[str, Story]]:
    """What was recorded, kept at the end where that is asked for."""
    found: dict[str, Story] = {}
    yield found
    if os.environ.get(WRITES):
        kept = {**(read(FILE) if FILE.exists() else {}), **found}
        keep(
            FILE, "Kueue 0.19 with Training Operator 1.9", {name: kept[name] for name in WAYS if name in kept}
        )


@pytest.mark.parametrize("name", WAYS)
def test_every_step_with_kueue_is_read_as_it_is(
    with_kueue: ControlPlane, stories: dict[str, Story], tmp_path: Path, name: str
) -> None:
    with a_lab(with_kueue, name, tmp_path) as lab:
        WAYS[name](lab)
        assert lab.recorder is not None
        story = {"job": lab.job, "run": lab.run, "written": lab.recorder.written()}
    stories[name] = story
    assert [*troubles(story, STORIES[name])] == []

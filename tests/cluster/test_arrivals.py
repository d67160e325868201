"""Gangs of random sizes come to a cluster that has room for two or three of them, faster than they end. With
a gang scheduler each starts whole and all of them end. Without one they start in part and wait for each other
for ever; how far they come is printed beside.

Members only pretend to run (kwok): a gang ends when all of its members have run for its time. ``ARRIVALS``
says how many come (200).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.checking.job import require_valid
from allaboard.follow.run_record import Owner
from allaboard.job.site import Site
from allaboard.testing import a_job
from tests.cluster.api import Api, Object, until
from tests.cluster.components.kwok import fake_node
from tests.cluster.plane import ControlPlane
from tests.cluster.test_queues import KUEUE, a_cluster_queue

NewPlane = Callable[..., AbstractContextManager[ControlPlane]]
JOB = "training.kubeflow.org/job-name"
COUNT = int(os.environ.get("ARRIVALS", "200"))
SEED = 12
NODES = ("4500m", "4500m")
PLACES = 8
"""Members at once."""
WHOLE_WITHIN = 20.0
"""Seconds between the first and the last member of a gang that gets its place: a scheduler that places all of
them together needs a moment for each, and a busy machine more.
"""
STILL = 45.0
"""Seconds without any change after which nothing will come any more, where some are placed in part."""
TRIED_AGAIN = 330.0
"""The same where none is. kube-scheduler, and coscheduling with it, tries again after 5 minutes at the latest
(podMaxInUnschedulablePodsDuration) what no event has told it to try.
"""

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3000)]


@dataclass(frozen=True)
class Arrival:
    """A gang: when it comes, how many members it has, and for how long it runs, in seconds."""

    name: str
    at: float
    members: int
    runs: float


def arrivals(count: int, chance: random.Random) -> list[Arrival]:
    """Gangs of two to six members, each a little after the one before."""
    at, found = 0.0, []
    for number in range(count):
        at += chance.uniform(0.0, 0.6)
        found.append(Arrival(f"g{number:03}", at, chance.randint(2, 6), chance.uniform(0.5, 2.0)))
    return found


@dataclass
class Gang:
    """What is seen of a gang. ``part``: since when it has been placed in part; ``whole``: since when all of
    its members run.
    """

    arrival: Arrival
    job: str
    placed: int = 0
    part: float | None = None
    whole: float | None = None
    ended: bool = False


@dataclass
class Day:
    """A cluster to which these gangs come, and how it goes."""

    plane: ControlPlane
    namespace: str
    backend: KubernetesBackend
    scheduler: str
    gang: Object
    coming: Sequence[Arrival]
    gangs: dict[str, Gang] = field(default_factory=dict)
    longest_part: float = 0.0

    def come(self, arrival: Arrival) -> None:
        """It is launched as everybody's job is."""
        job = a_job(
            name=arrival.name,
            image="lab/train:1",
            workers=arrival.members,
            resources={"cpu": 1},
            gang=self.gang,
        )
        handle = self.backend.launch(
            Plan(require_valid(job), arrival.name), Owner("day", "detached", "detached")
        )
        self.gangs[handle.run] = Gang(arrival, handle.run)

    def look(self, now: float) -> bool:
        """Notes how each gang stands, and ends those that have run for their time. Whether anything has
        changed.
        """
        pods: dict[str, list[Object]] = {}
        for pod in self.plane.api.list("v1", "Pod", self.namespace):
            pods.setdefault(pod["metadata"]["labels"].get(JOB, ""), []).append(pod)
        changed = False
        for job, gang in self.gangs.items():
            if not gang.ended:
                changed |= self._look_at(gang, pods.get(job, []), now)
        return changed

    def _look_at(self, gang: Gang, pods: list[Object], now: float) -> bool:
        before = (gang.placed, gang.whole)
        gang.placed = sum("nodeName" in pod["spec"] for pod in pods)
        is_part = 0 < gang.placed < gang.arrival.members
        gang.part = (gang.part if gang.part is not None else now) if is_part else None
        if gang.part is not None:
            self.longest_part = max(self.longest_part, now - gang.part)
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        if running == gang.arrival.members and gang.whole is None:
            gang.whole = now
        if gang.whole is not None and now - gang.whole >= gang.arrival.runs:
            self._end(pods)
            gang.ended = True
        return gang.ended or before != (gang.placed, gang.whole)

    def _end(self, pods: list[Object]) -> None:
        """The master last: its end is the job's, after which the operator removes whoever runs."""
        over = {"status": {"phase": "Succeeded"}}
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]), reverse=True):
            self.plane.api.patch({"apiVersion": "v1", "kind": "Pod", **pod}, over, sub="status")

    @property
    def ended(self) -> int:
        return sum(gang.ended for gang in self.gangs.values())

    @property
    def parts(self) -> int:
        return sum(gang.part is not None for gang in self.gangs.values())

    def lead(self) -> float | None:
        """Lets them come, and drains them. Seconds until the last has ended; None: they are stuck."""
        begun = moved = said = time.monotonic()
        coming = list(self.coming)
        while coming or self.ended < len(self.gangs):
            now = time.monotonic()
            if coming and coming[0].at <= now - begun:
                self.come(coming.pop(0))
                moved = now
            if self.look(now):
                moved = now
            if now - moved > (STILL if self.parts else TRIED_AGAIN):
                return None
            if now - said > 15:
                said = now
                print(f"{self.scheduler}: {now - begun:.0f} s, {self}", flush=True)
        return time.monotonic() - begun

    def succeeded(self) -> int:
        """How many jobs the operator calls succeeded."""
        jobs = self.plane.api.list("kubeflow.org/v1", "PyTorchJob", self.namespace)
        conditions = [job.get("status", {}).get("conditions", []) for job in jobs]
        return sum(
            any((c["type"], c["status"]) == ("Succeeded", "True") for c in each) for each in conditions
        )

    def summary(self, took: float | None) -> str:
        """Of a day that is over: how long it took, or that they are stuck."""
        return f"{self.scheduler}: {'stuck' if took is None else f'drained in {took:.0f} s'}; {self}"

    def __str__(self) -> str:
        waiting = sum(not gang.placed and not gang.ended for gang in self.gangs.values())
        words = f"{self.ended} of {len(self.coming)} ended, {waiting} wait, {self.parts} are placed in part"
        return f"{words}; placed in part for {self.longest_part:.1f} s at most"


def a_queue(api: Api, namespace: str) -> None:
    """The queue ``team`` of Kueue, which admits as many members as the nodes have room for."""
    api.create({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "any"}})
    a_cluster_queue(api, "cores", "any", str(PLACES))
    local: Object = {"name": "team", "namespace": namespace}
    queue: Object = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": local}
    api.create({**queue, "spec": {"clusterQueue": "cores"}})


@pytest.fixture
def day(
    request: pytest.FixtureRequest, tmp_path: Path, new_plane_in: NewPlane, capsys: pytest.CaptureFixture[str]
) -> Iterator[Day]:
    scheduler: str = request.param
    parts = ["kube-scheduler"] if scheduler in ("workload", "none") else [scheduler]
    gang: Object = {"scheduler": scheduler}
    with ExitStack() as ended:
        plane = ended.enter_context(new_plane_in(tmp_path, "training-operator", "kwok", *parts))
        ended.enter_context(capsys.disabled())
        namespace = plane.make_namespace("arrivals")
        if scheduler == "kueue":
            gang = {"scheduler": "none", "queue": "team"}
            a_queue(plane.api, namespace)
        for number, cores in enumerate(NODES):
            plane.api.create(fake_node(f"arrivals-{number}", cpu=cores))
        with Access(str(plane.kubeconfig), namespace=namespace, environ={}).api() as api:
            backend = KubernetesBackend(api, site=Site("s3://bucket"), environ={})
            print(f"\n{scheduler}: {COUNT} arrivals of seed {SEED}", flush=True)
            yield Day(plane, namespace, backend, scheduler, gang, arrivals(COUNT, random.Random(SEED)))


@pytest.mark.parametrize("day", ["coscheduling", "workload", "volcano", "kai", "kueue"], indirect=True)
def test_every_gang_starts_whole_and_ends(day: Day) -> None:
    took = day.lead()
    print(day.summary(took), flush=True)
    assert took is not None, f"stuck: {day}"
    assert day.longest_part < WHOLE_WITHIN
    assert all(gang.whole is not None for gang in day.gangs.values())
    until("every job to succeed", lambda: day.succeeded() == COUNT)


@pytest.mark.parametrize("day", ["none"], indirect=True)
def test_without_a_gang_scheduler_they_wait_for_each_other(day: Day) -> None:
    took = day.lead()
    print(day.summary(took), flush=True)
    # Chance may spare a few of them; with 200 it does not.
    assert took is None or COUNT < 100
    assert took is not None or day.parts >= 2

"""Client after client is killed in the midst of something, on a cluster in memory: whatever they were at, the
next one finds one run, and leaves nothing behind.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from allaboard.backends.base import Handle, Plan
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODGROUPS_COSCHEDULING, PODS
from allaboard.backends.kubernetes.state import records
from allaboard.checking import require_valid
from allaboard.follow.run_record import RunRecord
from allaboard.observation import Owner
from allaboard.render import labels
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.spec.job import TrainingJob
from allaboard.testing import a_job
from allaboard.testing.cluster import Died, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS

OFF = {"training-operator": "off"}
FACTS = ClusterFacts(kinds=frozenset({"scheduling.x-k8s.io/v1alpha1/PodGroup"}), operator_gangs=OFF)
OWNERS = [Owner("me"), Owner("you"), Owner("me", "deferred", "orchestrated")]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """With code and a PodGroup."""
    (tmp_path / "train.py").write_text("print('up')\n")
    job = require_valid(a_job(image="lab/train:1", code=["train.py"]))
    return Plan(TrainingJob(folder=str(tmp_path), **job.as_mapping()), "k")


def record_of(cluster: FakeCluster, run: str) -> RunRecord | None:
    body = cluster.one(CONFIGMAPS, labels.record_name(run))
    return None if body is None else records.parse(body).record


def an_act(cluster: FakeCluster, plan: Plan, chance: random.Random) -> str:
    """One client's, which may die at any of its requests; what it was."""
    verb = chance.choice(["launch", "launch", "launch", "stop", "delete"])
    at, moment = chance.randint(1, 16), chance.choice(["die", "die-after"])
    backend = cluster.backend({at: moment}, facts=FACTS)
    record = record_of(cluster, plan.run)
    with suppress(Died):
        if verb == "launch":
            backend.launch(plan, chance.choice(OWNERS))
        elif record is not None and verb == "delete":
            backend.delete(plan.run)
        elif record is not None:
            handle = Handle(plan.run, record.attempt, record.generation, record.uid)
            backend.stop(handle, record.owner, "me", "because")
    cluster.tick(chance.choice([0.1, 2.0]))
    return f"{verb}, {moment} {at}"


@pytest.mark.parametrize("seed", range(80))
def test_whatever_they_were_at(plan: Plan, seed: int) -> None:
    chance, cluster = random.Random(seed), FakeCluster()
    story = [an_act(cluster, plan, chance) for _ in range(7)]
    cluster.backend(facts=FACTS).launch(plan, Owner("the last"))
    cluster.tick(3)
    record = record_of(cluster, plan.run)
    assert record is not None and record.owner == Owner("the last")
    jobs = {j["metadata"]["uid"] for j in cluster.all(PYTORCHJOBS)}
    assert jobs == {record.object_uid}, story
    left = [*cluster.all(CONFIGMAPS), *cluster.all(PODGROUPS_COSCHEDULING), *cluster.all(PODS)]
    for thing in left:
        metadata = thing["metadata"]
        if metadata["name"] != labels.record_name(plan.run):
            owners = {ref["uid"] for ref in metadata.get("ownerReferences", ())}
            assert owners == jobs, (metadata["name"], story)

"""Client after client is killed in the midst of something, on a cluster in memory: whatever they were at, the
next one finds one run, and leaves nothing behind.
"""

from __future__ import annotations

import base64
import random
from contextlib import suppress
from pathlib import Path

import pytest

from allaboard.backends.base import Handle, Plan
from allaboard.backends.kubernetes.client.resources import (
    CONFIGMAPS,
    PODGROUPS_COSCHEDULING,
    PODS,
    SECRETS,
    resource_for,
)
from allaboard.backends.kubernetes.state import records
from allaboard.checking.job import require_valid
from allaboard.engines import ENGINES
from allaboard.follow.run_record import RunRecord
from allaboard.job.training_job import TrainingJob
from allaboard.render import labels
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.runs.observation import Owner
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


@pytest.fixture
def with_keys() -> Plan:
    """Members that reach each other by SSH."""
    fields = {"framework": "mpi", "engine": "jobset", "command": ["mpirun", "x"]}
    return Plan(require_valid(a_job(image="lab/train:1", **fields)), "k")


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


@pytest.mark.parametrize("seed", range(40))
def test_an_attempt_has_one_key_pair_which_goes_with_its_job(with_keys: Plan, seed: int) -> None:
    chance, cluster, plan = random.Random(seed), FakeCluster(), with_keys
    story = [an_act(cluster, plan, chance) for _ in range(7)]
    last = cluster.backend(facts=FACTS)
    handle = last.launch(plan, Owner("the last"))
    cluster.tick(3)
    (job,) = cluster.all(resource_for(ENGINES["jobset"]))
    (secret,) = cluster.all(SECRETS)
    assert secret["metadata"]["name"] == f"{job['metadata']['name']}-mpi-ssh-auth", story
    assert [ref["uid"] for ref in secret["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]], story
    last.stop(handle, Owner("the last"), "me", "enough", kill=True)
    cluster.tick(40)
    last.delete(plan.run)
    cluster.tick(3)
    assert cluster.all(SECRETS) == []


@pytest.mark.parametrize("at", range(1, 12))
def test_the_next_client_takes_the_key_pair_that_it_finds_and_tells_nobody(with_keys: Plan, at: int) -> None:
    cluster, plan = FakeCluster(), with_keys
    with suppress(Died):
        cluster.backend({at: "die-after"}, facts=FACTS).launch(plan, Owner("me"))
    before = cluster.all(SECRETS)
    cluster.tick(0.1)
    cluster.backend(facts=FACTS).launch(plan, Owner("you"))
    (secret,) = cluster.all(SECRETS)
    assert [s["data"] for s in before] in ([], [secret["data"]])
    key = base64.b64decode(secret["data"]["ssh-privatekey"]).decode()
    assert key.startswith("-----BEGIN EC PRIVATE KEY-----")
    others = [*cluster.all(CONFIGMAPS), *cluster.all(resource_for(ENGINES["jobset"])), *cluster.all(PODS)]
    assert secret["data"]["ssh-privatekey"] not in str(others) and key not in str(others)


def test_a_key_pair_without_keys_is_made_anew(with_keys: Plan) -> None:
    """As somebody made it who applied what was rendered."""
    cluster, plan = FakeCluster(), with_keys
    with suppress(Died):
        cluster.backend({6: "die-after"}, facts=FACTS).launch(plan, Owner("me"))
    (secret,) = cluster.all(SECRETS)
    cluster.client().patch(SECRETS, secret["metadata"]["name"], {"data": None})
    cluster.backend(facts=FACTS).launch(plan, Owner("you"))
    (anew,) = cluster.all(SECRETS)
    assert {*anew["data"]} == {"ssh-privatekey", "ssh-publickey"}

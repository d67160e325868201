"""A success on a cluster that its end contradicts: the first look at the end writes the doubt down, and every
later look reads it.
"""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.checking.job import require_valid
from allaboard.diagnosis import diagnose
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import DOUBTFUL, state_of, summary
from allaboard.testing import a_job
from allaboard.testing.cluster import FakeCluster
from allaboard.text.reportline import encode

KILLED = [*(encode("progress", step=n, total=100) for n in range(1, 41)), "Received SIGTERM: 15"]
DONE = [*(encode("progress", step=n, total=100) for n in range(1, 101)), "Received SIGTERM: 15"]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def ended(cluster: FakeCluster, lines: list[str], **fields: Any) -> str:
    """A run whose rank 0 has written these lines, and whose members have ended with 0."""
    backend = cluster.backend()
    run = backend.launch(Plan(require_valid(a_job(image="lab/train:1", **fields)), "k"), Owner("me")).run
    cluster.tick(3)
    backend.observe(run)
    for line in lines:
        cluster.say(f"{run}-master-0", line)
    cluster.end_members(run)
    cluster.tick(2)
    return run


def told(seen: Observation) -> tuple[list[str], list[str]]:
    """(flags, sentences of the doubts) of a run that succeeded."""
    assert state_of(seen) is State.SUCCEEDED
    diagnoses = diagnose(seen)
    flags = summary(seen, diagnoses)["flags"]
    return flags, [d.summary for d in diagnoses if d.code == DOUBTFUL]


@pytest.mark.parametrize("evidence", [False, True])
def test_a_signal_before_the_last_step_is_kept_in_the_record(cluster: FakeCluster, evidence: bool) -> None:
    run = ended(cluster, KILLED)
    for _ in range(2):
        seen = cluster.backend().observe(run, evidence=evidence)
        assert told(seen) == ([DOUBTFUL], ["master-0 exited with 0 after a signal at step 40 of 100"])
    cluster.logs.clear()
    assert told(cluster.backend().observe(run))[0] == [DOUBTFUL]


def test_a_signal_after_the_last_step_is_none(cluster: FakeCluster) -> None:
    run = ended(cluster, DONE)
    assert told(cluster.backend().observe(run)) == ([], [])
    assert told(cluster.backend().observe(run, evidence=True)) == ([], [])


def test_a_pod_that_is_taken_away_and_exits_with_0_is_doubted(cluster: FakeCluster) -> None:
    run = ended(cluster, ["step 40"])
    pod = cluster.one(PODS, f"{run}-master-0")
    assert pod is not None
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": ""}
    pod["status"]["conditions"] = [*pod["status"].get("conditions", []), target]
    cluster._put(PODS, pod, "MODIFIED")
    flags, [sentence] = told(cluster.backend().observe(run))
    assert flags == [DOUBTFUL]
    assert sentence == "master-0 exited with 0 while it was taken away (EvictionByEvictionAPI) at step 40"

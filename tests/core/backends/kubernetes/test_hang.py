"""A run on a cluster that makes no progress: which ranks are silent since when, what its follower does."""

from __future__ import annotations

import asyncio

import pytest

from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.logs import silence
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.backends.kubernetes.operations.observe import HANG_EVERY
from allaboard.diagnosis import diagnose
from allaboard.follow.restart import Restart, may_restart
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from allaboard.testing import FakeCluster
from tests.core.backends.kubernetes.test_backend import ME, a_plan
from tests.core.backends.kubernetes.test_backend import cluster as cluster_of

cluster = cluster_of


def stands(cluster: FakeCluster, backend: KubernetesBackend, **hang: object) -> str:
    """A run both of whose members have written a line, and were read."""
    handle = backend.launch(a_plan(policy={"hang": hang} if hang else {}), ME)
    cluster.tick(3)
    for member in ("master-0", "worker-0"):
        cluster.say(f"{handle.run}-{member}", "step 1")
        cluster.tick(1)
    assert state_of(backend.observe(handle.run)) is State.RUNNING
    return handle.run


def later(cluster: FakeCluster, backend: KubernetesBackend, run: str, seconds: float) -> Observation:
    cluster.tick(seconds)
    return backend.observe(run)


def test_it_says_which_rank_is_silent_since_when_and_takes_it_back(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m")
    assert later(cluster, backend, run, 200).stall is None
    seen = later(cluster, backend, run, 200)
    assert seen.stall is not None and state_of(seen) is State.RUNNING and "rank_stalled" in seen.flags
    assert "no member has written for long: rank 0 since " in seen.stall.text
    assert seen.held_by == seen.stall.text == diagnose(seen)[0].summary
    assert seen.limit is None, "telling ends nothing"
    cluster.say(f"{run}-worker-0", "step 2")
    assert later(cluster, backend, run, HANG_EVERY + 1).stall is None


def test_a_follower_in_a_loop_says_the_same(cluster: FakeCluster) -> None:
    run = stands(cluster, cluster.backend(), after="5m", then="fail")
    cluster.tick(400)
    told = cluster.backend().observe(run).stall

    async def look() -> Observation:
        return await cluster.async_backend().observe(run)

    seen = asyncio.run(look())
    assert seen.stall == told is not None and seen.limit is not None and seen.limit.left <= 0


def test_where_a_node_does_not_answer_nothing_is_said(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m", then="fail")
    whole = silence.read_last_times
    monkeypatch.setattr(silence, "read_last_times", lambda api, tries, **how: whole(api, tries[:1], **how))
    assert later(cluster, backend, run, 400).stall is None
    monkeypatch.undo()
    assert later(cluster, backend, run, HANG_EVERY + 1).stall is not None


def test_the_last_line_of_each_is_asked_for_and_errors_are_left_out(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend)
    cluster.say(f"{run}-master-0", "x" * 10_000)
    tries = [
        ContainerRun(pod, pod, pod, "pytorch", False, pod, rank, 0, False, True, False, begun=5.0)
        for rank, pod in enumerate((f"{run}-master-0", "gone"))
    ]
    assert silence.read_last_times(backend.api, tries) == {0: pytest.approx(cluster.now, abs=1.0)}


def test_any_member_that_writes_is_progress(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m", then="fail")
    for _ in range(10):
        cluster.say(f"{run}-worker-0", "step")
        seen = later(cluster, backend, run, 200)
        assert seen.stall is None and seen.limit is None


def test_by_its_own_history_ten_minutes_of_silence_are_none(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend)
    assert later(cluster, backend, run, 590).stall is None
    assert later(cluster, backend, run, 60).stall is not None


def test_what_the_last_good_run_of_the_job_was_silent_for_is_no_stall(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    good = backend.launch(a_plan("monday"), ME).run
    cluster.tick(3)
    for _ in range(2):
        cluster.say(f"{good}-master-0", "step")
        assert later(cluster, backend, good, 500).stall is None
    cluster.end_members(good)
    assert state_of(later(cluster, backend, good, 3)) is State.SUCCEEDED
    backend.delete(good)
    run = stands(cluster, backend)
    sent = backend.api.sent
    assert later(cluster, backend, run, 900).stall is None, "three times as long as the last good run"
    asked = backend.api.sent - sent
    sent = backend.api.sent
    assert later(cluster, backend, run, 100).stall is None and backend.api.sent - sent < asked
    assert later(cluster, backend, run, 1000).stall is not None


def test_off_never_looks_and_before_the_first_line_nothing_counts(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    off = stands(cluster, backend, after="off")
    handle = backend.launch(a_plan(key="mute", policy={"hang": {"after": 60, "then": "fail"}}), ME)
    cluster.tick(3)
    assert later(cluster, backend, off, 5000).stall is None
    assert backend.observe(handle.run).stall is None


@pytest.mark.parametrize("then", ["restart", "fail"])
@pytest.mark.parametrize("another", [False, True])
def test_its_follower_ends_the_attempt_with_the_reason_and_the_next_may_start(
    cluster: FakeCluster, then: str, another: bool
) -> None:
    """``another``: who acts is another process than who saw it, as under Airflow."""
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m", then=then)
    seen = later(cluster, backend, run, 400)
    assert seen.limit is not None and seen.limit.left <= 0 and seen.limit.code == "rank_stalled"
    (cluster.backend() if another else backend).enforce(run, ME)
    cluster.tick(3)
    last = backend.observe(run)
    assert state_of(last) is State.FAILED
    first = diagnose(last)[0]
    assert first.code == "rank_stalled" and "rank 0 since " in first.summary and first.retryable
    decision = may_restart(2, 1, state_of(last), [first])
    assert isinstance(decision, Restart) and decision.attempt == 2


def test_a_healthy_run_costs_no_request() -> None:
    sent = []
    for after in ("5m", "off"):
        cluster = FakeCluster()
        backend = cluster.backend()
        run = stands(cluster, backend, after=after)
        backend.observe(run)
        sent.append(backend.api.sent)
    assert sent[0] == sent[1]

"""Steps whose members are pods of their own, on a cluster in memory: which backend is meant, whose the run
is, and what becomes of it when the step's pod is told to end, or goes without a word.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from kfp import dsl

from allaboard import running
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS
from allaboard.backends.kubernetes.state import records
from allaboard.cli import place as cli
from allaboard.errors import BadInput
from allaboard.runs.observation import Owner
from allaboard.runs.status import state_of
from allaboard.testing.cluster import FakeChanges, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from allaboard_kfp import evaluate, step, train
from allaboard_kfp.step import Place
from tests.core.cli.typed import Typist, commands_in
from tests.kfp.conftest import PIPELINE_RUN, Artifacts

Of = Callable[..., Artifacts]
JOB = {"name": "quick", "command": ["python", "quick.py"], "workers": 2, "policy": {"restart": "never"}}


def trained(of: Of, **more: Any) -> tuple[Any, dict[str, Any]]:
    place = of("train")
    outputs = {"model": place[dsl.Model], "metrics": place[dsl.Metrics], "report": place[dsl.HTML]}
    outputs["summary"] = place[dsl.Markdown]
    return train.python_func(**{"job": JOB, **more}, **outputs), outputs


def record(cluster: FakeCluster) -> Any:
    (body,) = [c for c in cluster.all(CONFIGMAPS) if records.RECORD in c["metadata"].get("labels", {})]
    return records.parse(body).record


def test_members_are_pods_of_their_own_and_the_result_is_handed_over(
    cluster: FakeCluster, artifacts: Of, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.operator.trains_for = 30
    made, _ = trained(artifacts)
    assert made.run == record(cluster).run
    assert json.loads(record(cluster).key) == ["kfp", PIPELINE_RUN, "retrain.root.train.executor"]
    assert record(cluster).owner == Owner("kfp:pod-1", "worker", "orchestrated")
    assert record(cluster).outcome.state == "succeeded" and record(cluster).handed_over
    assert f"{made.run} is on its way" in capsys.readouterr().out


QUEUED = {**JOB, "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}


@pytest.mark.thorough
def test_no_clock_and_no_deadline_of_a_step_counts_what_a_queue_takes(
    cluster: FakeCluster, artifacts: Of, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a phase that an earlier one holds. The queue takes longer than the deadline."""
    cluster.operator.queued_for, cluster.operator.trains_for = 100.0, 30
    policy = {"restart": "never", "clocks": {"scheduled": "10s", "image": "10s"}, "deadline": "1m"}
    trained(artifacts, job={**QUEUED, "policy": policy})
    assert record(cluster).outcome.state == "succeeded"
    output = capsys.readouterr().out
    assert "queued: Kueue holds it back in queue team: it needs 2 more cpu" in output


def test_the_clock_of_the_queue_itself_ends_a_step(cluster: FakeCluster, artifacts: Of) -> None:
    cluster.operator.queued_for = 100.0
    with pytest.raises(SystemExit) as ended:
        trained(artifacts, job={**QUEUED, "name": "late", "policy": {"clocks": {"admitted": "30s"}}})
    assert ended.value.code == 4


def test_what_rank_0_writes_is_in_the_log_of_the_step(
    cluster: FakeCluster, artifacts: Of, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.operator.trains_for = 30
    wait = FakeChanges.wait

    def talk(changes: FakeChanges, seconds: float) -> bool:
        for pod in cluster.all(PODS):
            if (pod.get("status") or {}).get("phase") == "Running":
                cluster.say(pod["metadata"]["name"], f"{pod['metadata']['name']} at {cluster.now}")
        return wait(changes, seconds)

    monkeypatch.setattr(FakeChanges, "wait", talk)
    trained(artifacts)
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if "-master-0 at" in line]
    assert len(lines) > 10 and len(lines) == len(set(lines)) and "-worker-0 at" not in output


def test_a_failed_training_fails_the_step_with_its_exit_code(
    cluster: FakeCluster, artifacts: Of, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = FakeChanges.wait

    def end(changes: FakeChanges, seconds: float) -> bool:
        cluster.end_members(record(cluster).run, 7)
        return wait(changes, seconds)

    monkeypatch.setattr(FakeChanges, "wait", end)
    with pytest.raises(SystemExit) as ended:
        trained(artifacts)
    assert ended.value.code == 1 and record(cluster).outcome.state == "failed"


def test_a_step_that_may_not_look_any_more_has_not_failed(
    cluster: FakeCluster, artifacts: Of, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_more(changes: FakeChanges, seconds: float) -> bool:
        raise Forbidden("configmaps is forbidden", status=403)

    monkeypatch.setattr(FakeChanges, "wait", no_more)
    with pytest.raises(SystemExit) as ended:
        trained(artifacts)
    assert ended.value.code == 5 and record(cluster).outcome is None
    output = capsys.readouterr().err
    assert "configmaps is forbidden" in output and "is untouched" in output


def test_a_pod_that_is_told_to_end_stops_the_run(
    cluster: FakeCluster, artifacts: Of, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = FakeChanges.wait

    def interrupt(changes: FakeChanges, seconds: float) -> bool:
        if record(cluster).stop is None:
            os.kill(os.getpid(), signal.SIGTERM)
        return wait(changes, seconds)

    monkeypatch.setattr(FakeChanges, "wait", interrupt)
    with pytest.raises(SystemExit) as ended:
        trained(artifacts)
    assert ended.value.code == 3
    assert record(cluster).outcome.state == "stopped" and "SIGTERM" in record(cluster).stop.reason
    cluster.tick(60)
    assert cluster.all(PYTORCHJOBS) == [] and cluster.all(PODS) == []


@pytest.mark.parametrize("node", ["train(0).executor(1)", "train(1).executor(0)"])
def test_the_next_pod_adopts_what_the_one_before_has_started(
    cluster: FakeCluster, artifacts: Of, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the step is out of tries, and Argo begins anew with what holds it."""

    class Evicted(BaseException):
        pass

    def evict(hub: FakeChanges, seconds: float) -> bool:
        raise Evicted

    with monkeypatch.context() as first:
        first.setattr(FakeChanges, "wait", evict)
        with pytest.raises(Evicted):
            trained(artifacts)
    uid = record(cluster).uid
    cluster.operator.trains_for = 30
    monkeypatch.setenv("KFP_POD_UID", "pod-2")
    monkeypatch.setenv("ARGO_NODE_NAME", f"retrain(0).root(0).{node}")
    made, _ = trained(artifacts)
    assert (made.run, record(cluster).uid, record(cluster).attempt) == (record(cluster).run, uid, 1)
    assert record(cluster).owner.id == "kfp:pod-2" and len(cluster.all(PYTORCHJOBS)) == 1


@pytest.mark.parametrize("gone", [False, True], ids=["the job is still there", "its TTL took the job away"])
def test_a_pod_that_is_lost_after_the_hand_over_trains_nothing_again(
    cluster: FakeCluster, artifacts: Of, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(BaseException):
        pass

    hand_over = KubernetesBackend.hand_over

    def lost(backend: KubernetesBackend, handle: Any) -> None:
        hand_over(backend, handle)
        raise Lost

    cluster.operator.trains_for = 30
    with monkeypatch.context() as first:
        first.setattr(KubernetesBackend, "hand_over", lost)
        with pytest.raises(Lost):
            trained(artifacts)
    before = record(cluster)
    assert before.handed_over
    (job,) = cluster.all(PYTORCHJOBS)
    if gone:
        cluster.delete(PYTORCHJOBS, job["metadata"]["name"], "default")
    for pod in ("pod-2", "pod-3"):
        monkeypatch.setenv("KFP_POD_UID", pod)
        made, _ = trained(artifacts)
        assert made == (before.run, "", "", made.value)
    after = record(cluster)
    assert (after.uid, after.attempt, after.generation) == (before.uid, 1, 1)
    assert len(cluster.all(PYTORCHJOBS)) == (0 if gone else 1)


def test_an_evaluation_is_pods_of_its_own_too(
    cluster: FakeCluster, artifacts: Of, here: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says no metrics, as nothing runs in these pods; but it has run."""
    from allaboard.checkpoints import Manifest, save
    from allaboard.storage import open_store

    save(open_store(here.store), Manifest(step=5), {"state": b"five"})
    cluster.operator.trains_for = 5
    place = artifacts("evaluate")
    with pytest.raises(SystemExit) as ended:
        evaluate.python_func(
            job=JOB, checkpoint=str(here.store / "step-000000000005"),
            metrics=place[dsl.Metrics], report=place[dsl.HTML], summary=place[dsl.Markdown],
            classification=place[dsl.ClassificationMetrics],
        )  # fmt: skip
    assert (
        ended.value.code == 2
        and "reported no metrics; call allaboard.inside.result" in capsys.readouterr().err
    )
    assert state_of(cluster.backend().observe(record(cluster).run)).value == "succeeded"


def test_which_backend_is_meant(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Any]] = []

    def backend_of(name: Any, *, site: Any, namespace: str | None) -> Any:
        asked.append((name, namespace))

    monkeypatch.setattr(step, "backend_of", backend_of)
    out = str(here.out / "train" / "report")
    assert Place.of(out).open_backend().name == "local"
    Place.of(out, backend="kubernetes", namespace="team").open_backend()
    monkeypatch.setenv("ALLABOARD_BACKEND", "kubernetes")
    Place.of(out).open_backend()
    assert asked == [("kubernetes", "team"), ("kubernetes", None)]
    assert Place.of(out, backend="local").open_backend().name == "local"
    with pytest.raises(BadInput, match="namespace: only the backend kubernetes has one; leave it out"):
        Place.of(out, backend="local", namespace="team").open_backend()


def test_a_backend_that_nobody_knows_is_said(here: Any, artifacts: Of, capsys: Any) -> None:
    assert running.backend_of  # the real one says it
    with pytest.raises(SystemExit) as ended:
        trained(artifacts, backend="kubernets")
    assert ended.value.code == 2 and "did you mean 'kubernetes'" in capsys.readouterr().err


@pytest.mark.parametrize("ends", [0, 7])
def test_whoever_reads_the_log_of_a_step_elsewhere_can_type_its_commands(
    cluster: FakeCluster,
    artifacts: Of,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ends: int,
) -> None:
    wait = FakeChanges.wait

    def end(changes: FakeChanges, seconds: float) -> bool:
        cluster.end_members(record(cluster).run, ends)
        return wait(changes, seconds)

    monkeypatch.setattr(FakeChanges, "wait", end)
    with suppress(SystemExit):
        trained(artifacts, job={**JOB, "policy": {"restart": "never", "attempts": 1}})
    said = "".join(capsys.readouterr())
    for name in ("ALLABOARD_BACKEND", "KFP_POD_NAME"):
        monkeypatch.delenv(name)
    typist = Typist(cluster, capsys)
    monkeypatch.setattr(cli.Place, "open", lambda at, *rest: typist.open(at, *rest))
    for words in commands_in(said):
        typist(words)
    assert [words[0] for words in typist.typed][:1] == ["logs"] and len(typist.typed) > (2 if ends else 1)

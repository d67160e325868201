"""What a pipeline run has left behind is stopped, and nothing else is: on a cluster in memory, and here."""

# kfp reads the annotations of a pipeline: no `from __future__ import annotations` here.

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS
from allaboard.backends.kubernetes.state import records
from allaboard.backends.local.backend import LocalBackend
from allaboard.job.identity import kfp_key
from allaboard.running import new_owner
from allaboard.runs.status import state_of
from allaboard.testing.cluster import FakeChanges, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from allaboard_kfp import clean_up, start_local, train
from allaboard_kfp.identity import NODE, RUN_LABEL, key_of
from allaboard_kfp.inputs import job_of
from tests.kfp.conftest import PIPELINE_RUN, Artifacts, Here
from tests.kfp.waiting import until

Of = Callable[..., Artifacts]
JOB = {"name": "quick", "command": ["python", "quick.py"], "workers": 2, "policy": {"restart": "never"}}


class Killed(BaseException):
    """What ends a step without a word."""


def step_pod(cluster: FakeCluster, name: str, node: str, run: str = PIPELINE_RUN) -> str:
    """A pod of a step; its uid."""
    metadata = {"name": name, "labels": {RUN_LABEL: run}, "annotations": {NODE: node}}
    spec = {"containers": [{"name": "main", "image": "lab/step:1"}], "restartPolicy": "Never"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return str(cluster.create(PODS, body, "default")["metadata"]["uid"])


@pytest.fixture
def left(cluster: FakeCluster, artifacts: Of, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Begins a training whose step is killed; the run. Its pod stays as it is."""

    def begin(task: str = "train", pipeline_run: str = PIPELINE_RUN, pod: bool = True) -> str:
        node = f"retrain(0).root(0).{task}(0).executor(0)"
        uid = step_pod(cluster, f"{task}-{pipeline_run[:4]}", node, pipeline_run) if pod else "gone"

        def kill(changes: FakeChanges, seconds: float) -> bool:
            raise Killed

        before = known(cluster)
        with monkeypatch.context() as step:
            step.setattr(FakeChanges, "wait", kill)
            for name, value in {
                "KFP_POD_UID": uid, "ARGO_NODE_NAME": node, "KFP_RUN_ID": pipeline_run
            }.items():  # fmt: skip
                step.setenv(name, value)
            place = artifacts(task)
            with pytest.raises(Killed):
                train.python_func(
                    job=JOB, model=place[dsl.Model], metrics=place[dsl.Metrics], report=place[dsl.HTML],
                    summary=place[dsl.Markdown],
                )  # fmt: skip
        (run,) = known(cluster) - before
        return run

    return begin


def known(cluster: FakeCluster) -> set[str]:
    return {record.run for record in all_records(cluster)}


def all_records(cluster: FakeCluster) -> list[Any]:
    bodies = [one for one in cluster.all(CONFIGMAPS) if records.RECORD in one["metadata"].get("labels", {})]
    return [records.parse(body).record for body in bodies]


def stopped(cluster: FakeCluster) -> set[str]:
    return {record.run for record in all_records(cluster) if record.stop is not None}


def cleaned(of: Of, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    place = of("clean-up")
    with monkeypatch.context() as step:
        step.setenv("KFP_POD_NAME", "clean-up-pod")
        step.setenv("KFP_POD_UID", "clean-up-uid")
        step.setenv("ARGO_NODE_NAME", "retrain(0).root(0).exit-handler-1(0).executor(0)")
        names: list[str] = clean_up.python_func(summary=place[dsl.Markdown])
    return names


def test_a_training_whose_step_is_gone_is_stopped_and_gives_its_gpus_back(
    cluster: FakeCluster, artifacts: Of, left: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = left(pod=False)
    assert cleaned(artifacts, monkeypatch) == [run]
    (record,) = all_records(cluster)
    assert (record.stop.by, record.stop.reason) == (
        "clean_up", "its pipeline run has ended, and no step follows it"
    )  # fmt: skip
    cluster.tick(60)
    assert cluster.all(PYTORCHJOBS) == []
    assert cleaned(artifacts, monkeypatch) == []  # again
    page = Path(artifacts("clean-up")[dsl.Markdown].path).read_text()
    assert page == "- nothing is left of this pipeline run\n"


TERMINATED = [{"name": "wait", "state": {"running": {}}}, {"name": "main", "state": {"terminated": {}}}]


@pytest.mark.parametrize("ending", ["deleted", "Failed", "Succeeded", "main"])
def test_a_pod_that_has_ended_follows_nothing(
    cluster: FakeCluster,
    artifacts: Of,
    left: Callable[..., str],
    ending: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = left()
    assert cleaned(artifacts, monkeypatch) == []  # its pod is there
    if ending == "deleted":
        cluster.delete(PODS, f"train-{PIPELINE_RUN[:4]}", "default")
    else:
        status = {"containerStatuses": TERMINATED} if ending == "main" else {"phase": ending}
        cluster.patch(PODS, f"train-{PIPELINE_RUN[:4]}", {"status": status}, "default", "status")
    if ending != "main":  # the kubelet in memory knows one container
        cluster.tick(60)
    assert cleaned(artifacts, monkeypatch) == [run]


def test_the_next_pod_of_the_same_step_keeps_its_training(
    cluster: FakeCluster, artifacts: Of, left: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left(pod=False)
    step_pod(cluster, "next", "retrain(0).root(0).train(1).executor(0)")
    assert cleaned(artifacts, monkeypatch) == []


def test_only_the_trainings_of_this_pipeline_run_are_stopped(
    cluster: FakeCluster, artifacts: Of, left: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "ffffffff-1111-2222-3333-444455556666"
    mine, followed = left("train-2", pod=False), left("train-3")
    theirs = left("train", other, pod=False)
    assert cleaned(artifacts, monkeypatch) == [mine]
    assert stopped(cluster) == {mine} and {followed, theirs} < known(cluster)


def test_a_training_that_another_client_took_over_is_left_alone(
    cluster: FakeCluster, artifacts: Of, left: Callable[..., str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from allaboard.backends.base import NotYours
    from allaboard.backends.kubernetes.backend import KubernetesBackend

    left(pod=False)
    monkeypatch.setattr(KubernetesBackend, "stop", lambda *_, **__: NotYours("somebody"))
    assert cleaned(artifacts, monkeypatch) == []
    assert "another client has taken it over" in capsys.readouterr().out


def test_on_one_machine_a_training_of_this_pipeline_run_is_stopped(
    here: Here, artifacts: Of, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step is gone, and its supervisor would wait for another one."""
    runs = LocalBackend()
    task = artifacts("train").task
    job = job_of({"name": "quick", "command": ["sleep", "600"], "workers": 1}, "", "")
    mine = runs.launch(Plan(job, key_of(str(task / "report"))), new_owner())
    other = runs.launch(Plan(job, kfp_key("another pipeline run", "train")), new_owner())
    for expected in ([mine.run], []):
        assert clean_up.python_func(summary=artifacts("clean-up")[dsl.Markdown]) == expected
    until(lambda: state_of(runs.observe(mine.run)).value == "stopped")
    assert not state_of(runs.observe(other.run)).is_final


def test_an_exit_handler_cleans_up_after_a_failure_under_kfp_local(
    here: Here, capfd: pytest.CaptureFixture[str]
) -> None:
    job = {"name": "quick", "command": ["false"], "workers": 1, "policy": {"restart": "never"}}

    @dsl.pipeline(name="handled")
    def handled():  # type: ignore[no-untyped-def]
        with dsl.ExitHandler(clean_up()):
            train(job=job)

    start_local(here.out)
    with pytest.raises(RuntimeError):
        handled()
    assert "nothing is left of this pipeline run" in capfd.readouterr().out

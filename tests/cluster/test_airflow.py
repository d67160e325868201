"""A whole Airflow whose connection names a real cluster: the retraining DAG of the examples, unchanged, and
what becomes of a training when people and signals interfere.

The cluster is a plane of this module's own, with an S3 store that pods reach.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, LEASES
from allaboard.backends.kubernetes.state import records
from allaboard.promotion.champion import history
from allaboard.render import labels
from allaboard.testing.objects import PYTORCHJOBS
from tests.cluster.on_airflow import STORE, TEAM, OnCluster, airflow_on, prepare
from tests.cluster.plane import ControlPlane
from tests.provider.live import Run, until
from tests.provider.ui.test_in_a_browser import ask

pytest.importorskip("boto3")
pytest.importorskip("airflow")

pytestmark = [pytest.mark.airflow_live, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def plane(
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("plane")
    parts = ("training-operator", "jobset", "trainer", "s3", "nodes")
    with new_plane_in(folder, *parts, optional=["mpi-operator"]) as plane:
        prepare(plane)
        yield plane


@pytest.fixture(scope="module")
def live(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCluster]:
    with airflow_on(plane, tmp_path_factory.mktemp("airflow")) as found:
        yield found


def tasks(run: Run) -> dict[str, str]:
    return {task["task_id"]: task["state"] for task in run.tasks()}


def test_the_retraining_dag_of_the_examples_unchanged_but_for_its_connection(live: OnCluster) -> None:
    run = live.start("retrain_digits", epochs=2)
    state = until(
        "the DAG run has ended",
        lambda: (
            (s := live.airflow.api("GET", f"/dags/retrain_digits/dagRuns/{run.name}")["state"])
            in ("success", "failed")
            and s
        ),
        600,
    )
    assert state == "success", (tasks(run), run.log())
    assert set(tasks(run).values()) == {"success"}
    by_job = {record.job: record for record in run.records()}
    assert {job: record.outcome and record.outcome.state for job, record in by_job.items()} == {
        "digits": "succeeded",
        "digits-evaluate": "succeeded",
    }
    assert all(record.handed_over and record.attempt == 1 for record in by_job.values())
    jobs, _ = live.backend.api.list(PYTORCHJOBS, labels=labels.selector(by_job["digits"].run))
    statuses = jobs[0]["status"]["replicaStatuses"]
    assert statuses["Master"]["succeeded"] == 1 and statuses["Worker"]["succeeded"] == 1
    # Trained on the cluster, and every place hangs off the connection's store.
    result = run.xcom()
    assert result["checkpoints"]["best"].startswith(f"{STORE}/digits/checkpoints/{by_job['digits'].run}/")
    assert result["progress"]["step"] == result["progress"]["total"] > 0
    log = run.log()
    assert "succeeded" in log and "step" in log
    account = live.account.read_text()
    for secret in (live.store_environ["AWS_SECRET_ACCESS_KEY"], account[account.index("token:") + 7 :][:60]):
        assert secret not in log and secret not in json.dumps(result)
    champion = history(live.open("digits")).champion
    gate = live.airflow.api(
        "GET",
        f"/dags/retrain_digits/dagRuns/{run.name}/taskInstances/promote/xcomEntries/return_value",
    )["value"]
    assert (champion is not None) == ("'promoted': True" in str(gate) or '"promoted": true' in str(gate))


@pytest.mark.thorough
def test_a_success_that_its_end_contradicts_is_told_in_the_task_log_and_not_promoted(live: OnCluster) -> None:
    run = live.start("doubted")
    state = until(
        "the DAG run has ended",
        lambda: (
            (s := live.airflow.api("GET", f"/dags/doubted/dagRuns/{run.name}")["state"])
            in ("success", "failed")
            and s
        ),
        240,
    )
    assert tasks(run)["train"] == "success", (state, run.log())
    log, result = run.log(), run.xcom()
    sentence = "master-0 exited with 0, and its last words are a traceback"
    assert "which is doubtful" in log and sentence in log
    assert result["flags"] == ["success_doubtful"]
    assert any(sentence in diagnosis["summary"] for diagnosis in result["diagnoses"])
    path = f"/dags/doubted/dagRuns/{run.name}/taskInstances/promote/xcomEntries/return_value"
    gate = str(live.airflow.api("GET", path)["value"])
    assert "success_doubtful" in gate and history(live.open("champions")).champion is None


@pytest.mark.thorough
def test_what_rank_0_writes_is_in_the_task_log_while_deferred_and_once(live: OnCluster) -> None:
    run = live.start("held")
    run.wait_watched()
    assert run.task()["state"] == "deferred"
    run.finish()
    run.wait_task("success")
    lines = run.log().splitlines()
    told = [line for line in lines if "rank 0 works at step" in line]
    assert len(told) == len(set(told)) and not [line for line in lines if "rank 1 works" in line]
    assert run.xcom()["metrics"]["steps"] >= len(told)


@pytest.mark.thorough
def test_the_tab_and_the_card_read_a_run_from_the_cluster(live: OnCluster) -> None:
    """By the API server of Airflow, with the rights of the connection; the quota of the namespace, too."""
    about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": TEAM}}
    live.plane.api.create({**about, "spec": {"hard": {"pods": "40"}}})
    run = live.start("held")
    run.wait_watched()
    tab = f"{live.airflow.url}/allaboard/api/page/held/{run.name}/train/-1"

    def told() -> Any:
        status, found = ask(tab)
        assert status == 200, found
        return found if found["title"].endswith(": running") else None

    found = until("the tab shows it", told)
    assert found["every"] == 4.0 and 'class="live"' in found["main"]
    assert found["main"].count('<span class="calm">running</span>') == 2 and "<th>node</th>" in found["main"]
    told_now = ask(f"{live.airflow.url}/allaboard/api/now")[1]
    rows = [(row["dag_id"], row["state"]) for row in told_now["runs"] if row["dag_id"] == "held"]
    assert rows == [("held", "running")]
    [quota] = told_now["queues"]
    assert (quota["name"], quota["kind"], quota["where"]) == ("team", "ResourceQuota", f"namespace {TEAM}")
    assert [(a["resource"], a["words"]) for a in quota["amounts"]] == [("pods", "2 of 40")]
    live.plane.api.delete("v1", "ResourceQuota", "team", TEAM)
    run.finish()
    run.wait_task("success")
    ended = ask(tab)[1]
    assert ended["title"].endswith(": succeeded") and ended["every"] is None
    assert "works at step" in ended["main"]


OTHERS = ("trainjob", "jobset", "mpijob")


def missing(live: OnCluster, dag: str) -> str | None:
    """Why this DAG cannot run here."""
    return live.plane.lacks("mpi-operator") if dag == "held_mpijob" else None


@pytest.mark.parametrize(
    "dag", ["held_trainjob", "held_mpijob", pytest.param("held_jobset", marks=pytest.mark.thorough)]
)
def test_other_engines_train_and_end_with_their_tasks(live: OnCluster, dag: str) -> None:
    if reason := missing(live, dag):
        pytest.skip(reason)
    run = live.start(dag)
    run.wait_watched()
    assert len(run.pods()) == 2
    run.finish()
    run.wait_task("success")
    result = run.xcom()
    assert result["state"] == "succeeded" and result["metrics"]["steps"] > 0
    log = run.log()
    assert "rank 0 works" in log and "rank 1 works" not in log
    marked = live.start(dag)
    marked.wait_watched()
    marked.mark("failed")
    marked.wait_gone()
    marked.wait_training("stopped")


def test_marking_a_deferred_task_failed_ends_the_training_and_frees_its_nodes(live: OnCluster) -> None:
    run = live.start("held")
    run.wait_watched()
    run.mark("failed")
    run.wait_gone()
    run.wait_training("stopped")
    stop = run.record().stop
    # Whoever comes first says it: the one who marks the task, or the scheduler, as its DAG run fails with it.
    with_its_run = "the DAG run was failed while the task was deferred"
    assert stop is not None and ("marked failed" in stop.reason or stop.reason == with_its_run)
    until("the job object is gone", lambda: run.jobs() == [])


@pytest.mark.thorough
def test_clearing_a_deferred_task_stops_the_training_and_a_new_attempt_resumes(live: OnCluster) -> None:
    run = live.start("held")
    run.wait_watched()
    run.wait_saved()
    run.clear()
    again = until("it starts again", lambda: (s := [s for s in run.starts() if s.attempt == 2])[1:] and s)
    assert all(start.step > 0 for start in again)
    assert run.jobs() == [f"{run.record().run}-2"], "two trainings at once"
    run.finish()
    run.wait_task("success")
    assert run.record().attempt == 2


@pytest.mark.thorough
def test_marking_a_task_that_no_triggerer_watches_yet_ends_the_training(live: OnCluster) -> None:
    with live.frozen_triggerer():
        run = live.start("held")
        run.wait_task("deferred")
        run.wait_started()
        run.mark("failed")
        run.wait_gone()
    run.wait_training("stopped")


@pytest.mark.thorough
def test_marking_a_synchronous_task_failed_ends_the_training(live: OnCluster) -> None:
    run = live.start("held_sync")
    run.wait_started()
    run.mark("failed")
    run.wait_gone()
    run.wait_training("stopped")


@pytest.mark.parametrize(
    "dag", ["held", *(pytest.param(f"held_{name}", marks=pytest.mark.thorough) for name in OTHERS)]
)
def test_a_triggerer_that_is_killed_leaves_the_training_alone_and_the_next_one_follows(
    live: OnCluster, dag: str
) -> None:
    if reason := missing(live, dag):
        pytest.skip(reason)
    run = live.start(dag)
    run.wait_watched()
    record = run.record()
    lease = lease_of(live, record.run)
    live.replace_triggerer(signal.SIGKILL)
    until("the new triggerer follows it", lambda: lease_of(live, record.run) not in ("", lease))
    step = run.observe().progress.step or 0
    run.finish()
    run.wait_task("success")
    after = run.record()
    assert (after.uid, after.attempt, after.stop) == (record.uid, 1, None)
    assert run.xcom()["metrics"]["steps"] >= step
    told = [line for line in run.log().splitlines() if "rank 0 works at step" in line]
    assert len(told) == len(set(told)), "a line appears twice"


def lease_of(live: OnCluster, run: str) -> str:
    body = live.backend.api.get(CONFIGMAPS, labels.record_name(run))
    return str(labels.annotation_of(body, records.LEASE) or "")


@pytest.mark.thorough
def test_all_triggers_of_a_triggerer_follow_by_one_lease(live: OnCluster) -> None:
    runs = [live.start("held") for _ in range(3)]
    for run in runs:
        run.wait_watched()
    leases = {lease_of(live, run.record().run) for run in runs}
    assert len(leases) == 1
    held, _ = live.backend.api.list(LEASES, labels=labels.selector())
    assert leases <= {lease["metadata"]["name"] for lease in held}
    for run in runs:
        run.finish()
    for run in runs:
        run.wait_task("success")


def test_sensors_in_other_dags_are_told_when_the_training_is_over(live: OnCluster) -> None:
    """One waits for the run, one for its job object, and one for a job that never comes."""
    run = live.start("held")
    run.wait_watched()
    (job,) = run.jobs()
    waiting: list[Any] = [live.start("waits", run=run.record().run), live.start("waits_for_job", job=job)]
    other: Any = live.start("waits_for_job", job="another")
    for one in (*waiting, other):
        until("the sensor is deferred", lambda one=one: tasks(one).get("wait") == "deferred")
    run.finish()
    for one in waiting:
        until("the sensor succeeded", lambda one=one: tasks(one)["wait"] == "success")
        path = f"/dags/{one.dag}/dagRuns/{one.name}/taskInstances/wait"
        found = str(live.airflow.api("GET", f"{path}/xcomEntries/return_value")["value"])
        assert "succeeded" in found and run.record().run in found
    run.wait_task("success")
    assert tasks(other)["wait"] == "deferred", "it is waited for still"
    path = f"/dags/{other.dag}/dagRuns/{other.name}/taskInstances/wait"
    live.airflow.api("PATCH", path, {"new_state": "failed"})


def test_an_api_server_that_is_away_for_a_while_ends_nothing(live: OnCluster, plane: ControlPlane) -> None:
    run = live.start("held")
    run.wait_watched()
    uid = run.record().uid
    plane.halt("kube-apiserver", signal.SIGKILL)
    try:
        run.finish()
        with pytest.raises(AssertionError):
            until("the task is over", lambda: run.task()["state"] != "deferred", 20)
    finally:
        plane.launch("kube-apiserver")
    run.wait_task("success")
    assert run.record().uid == uid and run.record().stop is None and run.record().attempt == 1

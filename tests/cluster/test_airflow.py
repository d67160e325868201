"""A whole Airflow whose connection names a real cluster: the retraining DAG of the examples, unchanged, and
what becomes of a training when people and signals interfere.

The cluster is a plane of this module's own, with an S3 store that pods reach. Airflow may do there what the
Role of submitters allows, and its connections are in its database, as people make them.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, LEASES, PODS
from allaboard.backends.kubernetes.discovery import rbac
from allaboard.backends.kubernetes.state import records
from allaboard.follow.run_record import RunRecord
from allaboard.promotion.champion import history
from allaboard.render import labels
from allaboard.storage import Store, open_store
from allaboard.testing.objects import PYTORCHJOBS
from tests.cluster.components import s3
from tests.cluster.plane import ControlPlane
from tests.provider.live import Live, Run, Start, until
from tests.provider.ui.test_in_a_browser import ask

pytest.importorskip("boto3")
pytest.importorskip("airflow")

pytestmark = [pytest.mark.airflow_live, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).resolve().parent
TEAM, STORE = "team", "s3://lab/team"


class OnCluster(Live):
    """An Airflow of one's own, which trains on a plane."""

    def __init__(self, folder: Path, dags: Path, plane: ControlPlane) -> None:
        self.plane = plane
        self.account = plane.kubeconfig_for_account(TEAM, "allaboard-submitter")
        self.store_environ = s3.variables(plane)
        super().__init__(folder, dags, **self.store_environ)
        self._backend = KubernetesBackend(
            Access(kubeconfig=str(plane.kubeconfig), namespace=TEAM).api(), environ=self.store_environ
        )

    @property
    def backend(self) -> KubernetesBackend:
        return self._backend

    def records(self) -> list[RunRecord]:
        found, _ = self.backend.api.list(CONFIGMAPS, labels=records.selector())
        return [records.parse(body).record for body in found]

    def connect(self) -> None:
        """Make the connections, as an administrator does."""
        place = {
            "backend": "kubernetes", "kubernetes_conn_id": "lab", "namespace": TEAM,
            "store": STORE, "image": "harness/python:3.12", "secrets": "store",
        }  # fmt: skip
        cluster = {"kube_config": self.account.read_text()}
        for conn_id, conn_type, extra in (
            ("allaboard_default", "allaboard", place),
            ("lab", "kubernetes", cluster),
        ):
            body = {"connection_id": conn_id, "conn_type": conn_type, "extra": json.dumps(extra)}
            self.airflow.api("POST", "/connections", body)

    def run(self, dag: str, name: str) -> HeldRun:
        return HeldRun(self, dag, name)

    def open(self, place: str) -> Store:
        return open_store(f"{STORE}/{place}", environ=self.store_environ)


class HeldRun(Run):
    """A DAG run and its training, which share no disk with us."""

    live: OnCluster

    def starts(self, gate: str = "") -> list[Start]:
        store = self.live.open(f"gates/{self.name}")
        found = [entry.key for entry in store.entries() if entry.key.startswith("start-")]
        return [Start(**json.loads(store.read(key))) for key in found]

    def finish(self, gate: str = "") -> None:
        self.live.open(f"gates/{self.name}").write("finish", b"")

    def wait_gone(self) -> None:
        until("no member lives", lambda: not self.pods())

    def pods(self) -> list[str]:
        """Of its members that may still write something."""
        api = self.live.backend.api
        found, _ = api.list(PODS, labels=labels.selector(self.record().run))
        return [pod["metadata"]["name"] for pod in found if pod["status"]["phase"] in ("Pending", "Running")]

    def jobs(self) -> list[str]:
        found, _ = self.live.backend.api.list(PYTORCHJOBS, labels=labels.selector(self.record().run))
        return [job["metadata"]["name"] for job in found]

    def wait_watched(self) -> None:
        """Deferred, and the triggerer says what rank 0 does."""
        self.wait_task("deferred")
        until("the trigger has told something", lambda: "rank 0 works at step" in self.log())


@pytest.fixture(scope="module")
def plane(
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("plane")
    parts = ("training-operator", "jobset", "trainer", "s3", "nodes")
    with new_plane_in(folder, *parts, optional=["mpi-operator"]) as plane:
        plane.make_namespace(TEAM)
        for thing in rbac.objects("submitter"):
            thing["metadata"]["namespace"] = TEAM
            for subject in thing.get("subjects", ()):
                subject["namespace"] = TEAM
            plane.api.apply(thing)
        plane.api.create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "store", "namespace": TEAM},
                "stringData": s3.variables(plane, "host.internal"),
            }
        )
        s3.client(plane).create_bucket(Bucket="lab")
        yield plane


@pytest.fixture(scope="module")
def live(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[OnCluster]:
    folder = tmp_path_factory.mktemp("airflow")
    dags = folder / "dags"
    dags.mkdir()
    for source in (root / "dags_examples" / "retrain_digits.py", root / "dags_examples" / "digits"):
        (dags / source.name).symlink_to(source)
    for source in (HERE / "dags").glob("*.py"):
        (dags / source.name).symlink_to(source)
    (dags / ".airflowignore").write_text("digits/\ngated.*\n")
    found = OnCluster(folder, dags, plane)
    with pytest.MonkeyPatch.context() as patch:
        # No other connection of whoever runs the tests.
        for name in [n for n in os.environ if n.startswith("AIRFLOW_CONN_")]:
            patch.delenv(name)
        try:
            with found.airflow:
                found.connect()
                yield found
        finally:
            found.stop()


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
    """By the API server of Airflow, with the rights of the connection."""
    run = live.start("held")
    run.wait_watched()
    tab = f"{live.airflow.url}/allaboard/api/task/held/{run.name}/train/-1"

    def told() -> Any:
        status, found = ask(tab)
        assert status == 200, found
        return found if found["run"] and found["run"]["state"] == "running" else None

    found = until("the tab shows it", told)
    assert found["source"] == "live"
    assert {member["phase"] for member in found["run"]["members"]} == {"running"}
    assert all(member["node"] for member in found["run"]["members"])
    rows = ask(f"{live.airflow.url}/allaboard/api/now")[1]["runs"]
    assert [(row["dag_id"], row["state"]) for row in rows if row["dag_id"] == "held"] == [("held", "running")]
    run.finish()
    run.wait_task("success")
    ended = ask(tab)[1]["run"]
    assert (ended["state"], ended["is_final"]) == ("succeeded", True)
    assert any("works at step" in line for member in ended["members"] for line in member["lines"])


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
    assert len(told) == len(set(told)), "a line stands twice"


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

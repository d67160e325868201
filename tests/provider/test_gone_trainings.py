"""The example DAG that stops trainings whose tasks are gone, against a REST API that tests write and a
cluster in memory.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from allaboard.backends.base import Plan
from allaboard.checking.job import require_valid
from allaboard.job.identity import airflow_key
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job
from allaboard.testing.cluster import FakeCluster

TASK = Owner("try 1", kind="orchestrated")


def load(examples: Path) -> Any:
    spec = importlib.util.spec_from_file_location("stop_gone", examples / "stop_gone_trainings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example(examples: Path) -> Any:
    return load(examples)


class FakeRest:
    """``states``: path below ``/api/v2/dags/`` -> state; ``breaks``: the status of every answer."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, ...], str | None] = {}
        self.breaks: int | None = None
        self.logins: list[Any] = []
        self.asked: list[str] = []
        self.turn = lambda: None
        self.url = ""

    def dag_run(self, dag: str, run: str, state: str, **tasks: str | None) -> None:
        self.states[dag, "dagRuns", run] = state
        for task, of_task in tasks.items():
            self.states[dag, "dagRuns", run, "taskInstances", *task.split("__")] = of_task

    def answer(self, handler: BaseHTTPRequestHandler, body: Any) -> tuple[int, Any]:
        path = handler.path
        if path == "/auth/token":
            self.logins.append(body)
            return 200, {"access_token": "t"}
        self.asked.append(path)
        self.turn()
        if self.breaks is not None:
            return self.breaks, {"detail": "no"}
        if handler.headers["Authorization"] != "Bearer t":
            return 401, {}
        words = tuple(map(unquote, path.removeprefix("/api/v2/dags/").split("/")))
        return (
            (200, {"state": self.states[words]}) if words in self.states else (404, {"detail": "not found"})
        )


@pytest.fixture
def rest() -> Iterator[FakeRest]:
    fake = FakeRest()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def _do(self, body: Any = None) -> None:
            status, answer = fake.answer(self, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._do()

        def do_POST(self) -> None:
            self._do(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()


def train(
    cluster: FakeCluster, run: str, task: str = "train", index: int = -1, owner: Owner = TASK, by: str = "lab"
) -> str:
    key = airflow_key(by, "retrain", run, task, index)
    plan = Plan(require_valid(a_job(image="lab/train:1")), key)
    return cluster.backend().launch(plan, owner).run


def test_trainings_whose_tasks_are_gone_are_stopped_and_no_others(example: Any, rest: FakeRest) -> None:
    cluster = FakeCluster()
    rest.dag_run("retrain", "runs", "running", train="running", train__3="deferred", mapped__1="failed")
    rest.dag_run("retrain", "queued", "queued", train=None)
    rest.dag_run("retrain", "again", "running", train="up_for_retry")
    rest.dag_run("retrain", "failed", "failed", train="failed")
    rest.dag_run("retrain", "manual__2026-01-01T00:00:00+00:00", "running", train="success")
    stays = [
        train(cluster, "runs"),
        train(cluster, "runs", index=3),
        train(cluster, "queued"),
        train(cluster, "again"),
        train(cluster, "deleted", by="another Airflow"),
        train(cluster, "deleted", task="left alone", owner=Owner("me", "detached", "detached")),
        cluster.backend().launch(Plan(require_valid(a_job(image="lab/train:1")), "by hand"), TASK).run,
    ]
    goes = {
        train(cluster, "deleted"): "its DAG run was deleted",
        train(cluster, "failed"): "its DAG run is over: failed",
        train(cluster, "manual__2026-01-01T00:00:00+00:00"): "its task is over: success",
        train(cluster, "runs", "mapped", 1): "its task is over: failed",
    }
    cluster.tick(3)
    api = example.Rest(rest.url, "ann", "secret")
    assert example.stop_gone(cluster.backend(), api, "lab") == goes
    assert rest.logins == [{"username": "ann", "password": "secret"}]
    cluster.tick(60)
    backend = cluster.backend()
    assert {state_of(backend.observe(run)) for run in goes} == {State.STOPPED}
    assert {state_of(backend.observe(run)) for run in stays} == {State.RUNNING}
    assert example.stop_gone(backend, api, "lab") == {}


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_api_that_does_not_answer_proves_nothing(example: Any, rest: FakeRest, status: int) -> None:
    cluster = FakeCluster()
    run = train(cluster, "deleted")
    cluster.tick(3)
    api = example.Rest(rest.url)
    rest.breaks = status
    with pytest.raises(urllib.error.HTTPError):
        example.stop_gone(cluster.backend(), api, "lab")
    assert state_of(cluster.backend().observe(run)) is State.RUNNING


def test_a_try_that_begins_while_airflow_is_asked_keeps_its_training(example: Any, rest: FakeRest) -> None:
    cluster = FakeCluster()
    run = train(cluster, "failed")
    rest.dag_run("retrain", "failed", "failed", train="failed")
    cluster.tick(3)
    rest.turn = lambda: (train(cluster, "failed", owner=Owner("try 2", kind="orchestrated")), None)[1]
    assert example.stop_gone(cluster.backend(), example.Rest(rest.url), "lab") == {}
    assert state_of(cluster.backend().observe(run)) is State.RUNNING


# In a real Airflow. Its runs are on this machine: what is stopped where is the hook's.


@pytest.mark.airflow_live
@pytest.mark.timeout(900)
def test_the_dag_stops_what_a_real_airflow_does_not_know(
    tmp_path_factory: pytest.TempPathFactory, examples: Path
) -> None:
    from tests.provider.live import Live, until

    live = Live(tmp_path_factory.mktemp("live"), examples, AIRFLOW__ALLABOARD__INSTANCE="lab")
    live.airflow.environ["AIRFLOW_CONN_AIRFLOW_REST"] = json.dumps(
        {"conn_type": "http", "host": live.airflow.url}
    )
    try:
        live.airflow.start()
        live.airflow.wait_until_ready(400)
        known = live.start("retrain_digits")
        job = require_valid(a_job(command=["sleep", "600"], workers=1))

        def trains(by: str, run: str) -> str:
            key = airflow_key(by, "retrain_digits", run, "train", -1)
            return live.backend.launch(Plan(job, key), TASK).run

        gone, kept = trains("lab", "deleted"), trains("another Airflow", "deleted")
        rest = load(examples).Rest(live.airflow.url)
        dag_run = ("dags", "retrain_digits", "dagRuns")
        assert rest.state(*dag_run, known.name) in ("queued", "running", "success", "failed")
        assert rest.state(*dag_run, known.name, "taskInstances", "train") is not None
        assert rest.state(*dag_run, known.name, "taskInstances", "train", "7") is None
        assert rest.state(*dag_run, "deleted") is rest.state("dags", "no such DAG", "dagRuns", "x") is None
        assert load(examples).stop_gone(live.backend, rest, "lab") == {gone: "its DAG run was deleted"}
        again = trains("lab", "gone")
        live.airflow.api("PATCH", "/dags/stop_gone_trainings", {"is_paused": False})
        live.start("stop_gone_trainings")
        until("it is stopped", lambda: state_of(live.backend.observe(again)) is State.STOPPED)
        assert state_of(live.backend.observe(kept)) is State.RUNNING
    finally:
        live.stop()

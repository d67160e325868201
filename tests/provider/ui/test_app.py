"""The app behind the tabs, without a server: who may ask, what is told of a run and of one that cannot be
read, and what becomes of hostile ids and XComs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred
from airflow.sdk.execution_time.xcom import XCom
from fastapi.testclient import TestClient

from allaboard import TrainingJob
from allaboard.backends.base import LogLine, Plan, Selection
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import RESOURCEQUOTAS
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.machine import cpus
from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.report.output import OutputReader
from allaboard.report.page_data import PAGE, SNAPSHOT, Readings, page_data
from allaboard.runs.observation import Observation, Owner, Progress, State
from allaboard.runs.queues import Amount, Queue
from allaboard.runs.status import state_of
from allaboard.testing import seen as a_seen
from allaboard.testing.cluster import FakeCluster
from allaboard.text.reportline import encode
from allaboard_provider import pages, plugin
from allaboard_provider.identity import key_of
from allaboard_provider.links import tab_of
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    PromoteOperator,
    TrainingJobOperator,
)
from allaboard_provider.pages import PROMOTION_KEY, RUN_KEY, SNAPSHOT_KEY, Snapshots, pack, unpack
from allaboard_provider.ui import reading
from allaboard_provider.ui.app import build
from allaboard_provider.ui.card import queues_shown
from allaboard_provider.ui.database import Database, Task, Where
from allaboard_provider.ui.models import models_of
from allaboard_provider.ui.reading import Cache, page_of
from tests.core.backends.kubernetes.operations.test_queues import put
from tests.core.report import one_output
from tests.provider.building import TaskInstance, a_context
from tests.provider.test_cluster import an_operator, deferred, running
from tests.provider.test_triggers import HANGS, a_run, a_trigger
from tests.waiting import wait_for

SCRIPT = """
from allaboard.inside import report, result
from allaboard.inside import Checkpointer
saves = Checkpointer(every=10)
for step in range(1, 31):
    report(step, 30, loss=1 / step)
    saves.step(step, lambda: b"x", metrics={"val_loss": 1 / step})
print("api_key=hush-hush-hush")
result(accuracy=0.9)
"""


class Rows(Database):
    """Task instances in memory."""

    def __init__(self, *tasks: Task) -> None:
        self.tasks = {task.where: task for task in tasks}

    def task(self, where: Where) -> Task | None:
        return self.tasks.get(where)

    def tasks_of(self, dag_id: str) -> tuple[list[Task], int]:
        found = [task for task in self.tasks.values() if task.where.dag_id == dag_id]
        return found, len(found)

    def unfinished(self, dag_ids: Collection[str]) -> list[Task]:
        return [task for task in self.tasks.values() if task.where.dag_id in dag_ids]


@pytest.fixture(autouse=True)
def auth(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Airflow's own guard, and the simple manager of users; no DAG has a team."""
    monkeypatch.setattr(DagModel, "get_team_name", staticmethod(lambda dag_id, **_: None))
    manager = create_auth_manager()
    monkeypatch.setattr(type(manager), "get_authorized_dag_ids", lambda *_, **__: {"nightly"})
    yield manager
    purge_cached_app()


def client(*tasks: Task, role: str | None = "VIEWER", signed_in: bool = True) -> TestClient:
    app = build(Rows(*tasks))
    if signed_in:
        app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role=role)
    return TestClient(app, raise_server_exceptions=True)


def trained(ti: TaskInstance | None = None, **fields: Any) -> tuple[Task, dict[str, Any]]:
    """A task that has trained on this machine, as Airflow's database has it; and what it returned."""
    context = a_context(ti or TaskInstance())
    job = {"name": "small", "command": ["python", "-c", SCRIPT], "policy": {"restart": "never"},
           "checkpoints": {"uri": "store://small", "best": {"metric": "val_loss", "mode": "min"}},
           **fields}  # fmt: skip
    operator = TrainingJobOperator(task_id="train", job=job, allaboard_conn_id=None, deferrable=False)
    result = operator.execute(context)
    return a_task(context["ti"], state="success", result=result), result


def a_task(ti: TaskInstance, **fields: Any) -> Task:
    left = {"named": ti.xcoms.get(RUN_KEY), "left": ti.xcoms.get(SNAPSHOT_KEY)}
    where = Where(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
    return Task(
        where, operator="TrainingJobOperator", try_number=1, **{"state": "deferred", **left, **fields}
    )


def path_of(task: Task, kind: str = "api/page") -> str:
    where = task.where
    return f"/{kind}/{where.dag_id}/{where.run_id}/{where.task_id}/{where.map_index}"


def data_of(task: Task) -> dict[str, Any]:
    """What the page of this task is drawn from."""
    return page_of(task, time.time(), Cache(), Cache(8))


OTHERS = ("/api/now", "/api/dag/nightly/models", "/page/nightly/manual__1/train/-1")


# --- who may ask


@pytest.mark.parametrize("path", ["/api/page/nightly/manual__1/train/-1", *OTHERS])
def test_nobody_is_told_anything_without_a_token_or_with_a_wrong_one(path: str) -> None:
    task = Task(Where("nightly", "manual__1", "train"))
    asks = client(task, signed_in=False)
    assert asks.get(path).status_code == 401
    assert asks.get(path, headers={"Authorization": "Bearer nonsense"}).status_code in (401, 403)


@pytest.mark.parametrize("path", ["/api/page/nightly/manual__1/train/-1", *OTHERS[1:]])
def test_a_user_who_may_not_see_the_dag_is_told_nothing(path: str) -> None:
    asks = client(Task(Where("nightly", "manual__1", "train")), role=None)
    assert asks.get(path).status_code == 403


def test_the_card_holds_the_dags_alone_that_the_user_may_see() -> None:
    mine, _ = trained()
    others = replace(mine, where=replace(mine.where, dag_id="secret"))
    told = client(mine, others).get("/api/now").json()
    assert [row["dag_id"] for row in told["runs"]] == ["nightly"]
    assert client(mine, role=None).get("/api/now").json()["runs"] == []


def test_the_code_of_the_browser_is_for_everybody_and_asked_for_anew_only_if_it_changed() -> None:
    asks = client(signed_in=False)
    answer = asks.get("/bundle.js")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/javascript")
    again = asks.get("/bundle.js", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


# --- a run


def test_a_run_of_this_machine_is_read_where_it_lives() -> None:
    task, result = trained()
    told = data_of(task)
    assert (told["source"], told["run"]["run"], told["run"]["state"]) == ("live", result["run"], "succeeded")
    assert {curve["name"] for curve in told["run"]["curves"]} >= {"loss", "val_loss"}
    assert (told["run"]["best"]["step"], len(told["run"]["checkpoints"])) == (30, 3)
    answer = client(task).get(path_of(task))
    assert answer.headers["cache-control"] == "private, no-cache"
    assert "api_key=***" in answer.json()["main"] and "hush-hush-hush" not in answer.text


def test_a_failed_run_is_compared_with_the_last_good_one_of_its_own_dag_alone() -> None:
    trained(TaskInstance(dag_id="others"))
    bad = TaskInstance(run_id="manual__2")
    with pytest.raises(AirflowException):
        trained(bad, environment={"LR": "3"}, command=["python", "-c", "raise SystemExit(3)"])
    task = a_task(bad, state="failed")
    assert data_of(task)["run"]["since_last_good"] is None
    _, good = trained()
    worse = TaskInstance(run_id="manual__3")
    with pytest.raises(AirflowException):
        trained(worse, environment={"LR": "3"}, command=["python", "-c", "raise SystemExit(3)"])
    task = a_task(worse, state="failed")
    since = data_of(task)["run"]["since_last_good"]
    assert since["run"] == good["run"] and 'environment: absent -> {"LR": "3"}' in since["changes"]


def test_a_run_that_is_gone_from_here_is_told_from_the_snapshot_its_task_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task, result = trained()
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "another machine"))
    told = data_of(task)
    assert (told["source"], told["run"]["run"], told["run"]["is_final"]) == ("snapshot", result["run"], True)
    assert "cannot be read from here now" in told["note"]
    assert told["run"]["curves"] and "hush-hush-hush" not in json.dumps(task.left)
    empty = data_of(replace(task, left=None))
    assert (empty["source"], empty["run"]) == ("none", None) and "cannot be shown" in empty["empty"]


def left_elsewhere(
    found: Observation, state: str, *, task_id: str = "train", host: str = "gpu-7", **fields: Any
) -> Task:
    """A task whose run is on another host, as its follower left it when it began."""
    page = page_data(Outcome(found), Readings(), 2.1, at=HERE, bounds=SNAPSHOT) | fields
    named = {"run": page["run"], "host": host}
    where = Where("nightly", "manual__1", task_id)
    return Task(where, state, "TrainingJobOperator", 1, named=named, left=pack(page))


def test_the_card_tells_a_run_of_another_host_as_it_was_seen() -> None:
    """On main it has no state, although the database has its snapshot."""
    found = a_seen(State.RUNNING, progress=Progress(step=30, total=120))
    waits = a_seen(State.QUEUED, run="waits-00000000")
    told = client(left_elsewhere(found, "deferred"), left_elsewhere(waits, "running", task_id="other"))
    rows = {row["task_id"]: row for row in told.get("/api/now").json()["runs"]}
    row = rows["train"]
    assert (row["state"], row["job"], row["share"]) == ("running", "digits", 0.25)
    assert row["note"] == "step 30/120, as seen at 1970-01-01T00:00:02Z from gpu-7"
    assert (rows["other"]["state"], rows["other"]["held_by"]) == ("queued", "waits for 2 CPUs")


@pytest.mark.parametrize("state", ["up_for_retry", "scheduled", "queued"])
def test_the_card_says_no_state_of_a_run_elsewhere_that_nobody_follows(state: str) -> None:
    [row] = client(left_elsewhere(a_seen(State.RUNNING), state)).get("/api/now").json()["runs"]
    assert row["state"] is None and row["note"].startswith("last running, as seen at 1970-01-01T00:00:02Z")


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_a_run_whose_task_has_ended_is_not_said_to_go_on(state: str) -> None:
    """On main the tab says for ever that it is running for 2.1 s."""
    task = left_elsewhere(a_seen(State.RUNNING), state)
    run = data_of(task)["run"]
    assert (run["state"], run["is_final"], run["ok"]) == ("unknown", True, state == "success")
    assert run["headline"] == (
        f"digits-00000000 was running as seen at 1970-01-01T00:00:02Z from gpu-7; its task is {state} since"
    )
    goes_on = replace(task, state="deferred")
    run = data_of(goes_on)["run"]
    assert (run["state"], run["is_final"]) == ("running", False)
    assert run["headline"] == "digits-00000000 was running as seen at 1970-01-01T00:00:02Z from gpu-7"


def test_a_worker_leaves_a_snapshot_before_anybody_else_follows() -> None:
    """On main the tab has nothing until the trigger does, on whatever host."""
    context = a_context()
    operator = TrainingJobOperator(
        task_id="train", job={"name": "small", "command": ["sleep", "300"]}, allaboard_conn_id=None
    )
    with pytest.raises(TaskDeferred):
        operator.execute(context)
    left = unpack(context["ti"].xcoms[SNAPSHOT_KEY])
    assert left is not None and left["state"] in ("starting", "running") and not left["is_final"]


def test_a_trigger_leaves_a_snapshot_while_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ti = TaskInstance()
    left: list[tuple[str, Any, dict[str, Any]]] = []

    async def aset(key: str, value: Any, **whose: Any) -> None:
        left.append((key, value, whose))

    monkeypatch.setattr(XCom, "aset", aset, raising=False)
    trigger = a_trigger(ti, a_run(ti, HANGS))

    async def watch() -> None:
        waiting = asyncio.create_task(anext(trigger.run()))  # type: ignore[arg-type]
        while not left:
            assert not waiting.done()
            await asyncio.sleep(0.05)
        waiting.cancel()

    asyncio.run(asyncio.wait_for(watch(), 60))
    key, value, whose = left[0]
    page = unpack(value)
    assert key == SNAPSHOT_KEY and page is not None and not page["is_final"]
    assert page["run"] == trigger.run_name
    assert (whose["dag_id"], whose["task_id"], whose["map_index"]) == (ti.dag_id, ti.task_id, -1)


def test_a_trigger_outlives_an_airflow_that_takes_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    async def aset(*_: Any, **__: Any) -> None:
        raise RuntimeError("the API server is away")

    monkeypatch.setattr(XCom, "aset", aset, raising=False)
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti))

    async def ended() -> Any:
        return [event.payload["status"] async for event in trigger.run()]

    assert asyncio.run(ended()) == ["ended"]


def test_a_run_on_a_cluster_is_read_with_the_connection_and_else_from_the_snapshot(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = a_context()
    deferred(an_operator(), context)
    run = running(cluster)
    task = a_task(context["ti"])
    told = data_of(task)
    assert (told["source"], told["run"]["run"], told["run"]["state"]) == ("live", run, "running")
    assert len(told["run"]["members"]) == 2
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", '{"conn_type": "allaboard", "extra": {"backend": "nowhere"}}')
    told = data_of(task)
    assert (told["source"], told["run"]["run"]) == ("snapshot", run)
    assert "nowhere" in told["note"]


def test_a_task_sees_no_run_of_another_task_whatever_its_xcom_names() -> None:
    task, _ = trained()
    thief = Task(Where("nightly", "manual__1", "peek"), "success", named=task.named, left=None)
    told = data_of(thief)
    assert (told["source"], told["run"]) == ("none", None)
    row = client(thief).get("/api/now").json()["runs"][0]
    assert (row["state"], row["job"]) == (None, None)


HOSTILE: tuple[Any, ...] = (
    {"run": "../../../etc/passwd"}, {"run": ""}, {"run": "x" * 5000}, {"run": "a\x00b"}, {"run": 7}, {}, [],
    "run", None, 3.5, {"run": "small", "cluster": "https://x", "connection": "no_such_connection"},
    {"run": "small", "cluster": {"a": 1}, "connection": None},
    {"run": "small", "cluster": True, "connection": {"a": []}}, {"run": "small", "uid": [{}], "host": {}},
)  # fmt: skip


@pytest.mark.parametrize("named", HOSTILE, ids=lambda named: repr(named)[:40])
def test_an_xcom_that_names_nonsense_names_no_run(named: Any) -> None:
    task = Task(Where("nightly", "manual__1", "train"), "success", "TrainingJobOperator", named=named)
    asks = client(task)
    assert data_of(task)["run"] is None and data_of(task)["empty"]
    assert "nothing" in asks.get(path_of(task)).json()["main"]
    assert asks.get(path_of(task, "page")).status_code == 200
    assert asks.get("/api/now").status_code == 200
    assert asks.get("/api/dag/nightly/models").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/page/nightly/manual__1/train/x", "/api/page/nightly/manual__1/train/-2",
        "/api/page/nightly/manual__1/other/-1", "/api/page/~/~/~/-1",
        "/api/page/nightly/%2e%2e%2f%2e%2e/train/-1", f"/api/page/nightly/{'r' * 300}/train/-1",
        "/api/page/nightly/%3Cscript%3E/train/-1", "/page/nightly/%00/train/-1", "/api/dag/%2F/models",
    ],
)  # fmt: skip
def test_an_address_that_means_no_task_is_refused_and_not_repeated(path: str) -> None:
    answer = client(Task(Where("nightly", "manual__1", "train"))).get(path)
    assert answer.status_code in (404, 422) or (path.endswith("models") and answer.status_code == 200)
    assert "<script>" not in answer.text or answer.headers["content-type"] == "application/json"


def test_a_task_of_others_has_a_polite_nothing() -> None:
    task = Task(Where("nightly", "manual__1", "greet"), "success", "PythonOperator")
    asks = client(task)
    assert "started no run of allaboard" in data_of(task)["empty"]
    page = asks.get(path_of(task, "page"))
    # The address of a frame for a task that is not mapped, as Airflow writes it.
    assert asks.get("/page/nightly/manual__1/greet/%7BMAP_INDEX%7D").text == page.text
    assert page.status_code == 200 and "started no run of allaboard" in page.text
    assert 'data-every="0"' in page.text, "it is over"
    early = replace(task, state="queued", operator="TrainingJobOperator")
    assert "has not begun" in data_of(early)["empty"]


def test_the_page_of_a_frame_is_that_of_the_command_line_and_asks_again_while_the_run_goes_on() -> None:
    task, result = trained(TaskInstance(run_id="scheduled__2026-11-27T08:00:00+00:00"))
    asks = client(task)
    page, again = asks.get(path_of(task, "page")), asks.get(path_of(task)).json()
    assert result["run"] in page.text and 'class="plot"' in page.text
    assert again["main"] in page.text and again["title"] == "small: succeeded" and again["every"] is None
    assert 'data-every="0"' in page.text and "refresh" not in page.headers
    waiting = Task(task.where, "running", "TrainingJobOperator")
    page = client(waiting).get(path_of(waiting, "page"))
    live = re.search(r'data-live="([^"]+)" data-every="10"', page.text)
    assert live is not None and "T08%3A00%3A00%2B00%3A00" in live[1]
    whole = urljoin(str(page.url), live[1])
    assert client(waiting).get(whole).json()["every"] == 10.0, "below whatever path Airflow lives"


def test_a_browser_runs_one_script_in_the_frame_and_asks_this_server_alone() -> None:
    task, _ = trained()
    page = client(task).get(path_of(task, "page"))
    assert page.headers["content-security-policy"] == "frame-ancestors 'self'"
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page.text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#x27;", "'").split(";"))
    script = rules.pop("script-src")
    assert rules == {
        "default-src": "'none'", "style-src": "'unsafe-inline'", "connect-src": "'self'",
        "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    assert re.fullmatch(r"'sha256-[\w+/=]+'", script) and page.text.count("<script>") == 1


def test_the_same_answer_is_not_sent_twice() -> None:
    task, _ = trained()
    asks = client(task)
    tag = asks.get(path_of(task)).headers["etag"]
    assert asks.get(path_of(task), headers={"If-None-Match": tag}).status_code == 304


# --- snapshots


def a_page(**fields: Any) -> dict[str, Any]:
    return {**page_data(Outcome(a_seen(State.RUNNING)), Readings(), 10.0, at=HERE, bounds=SNAPSHOT), **fields}


def test_a_snapshot_comes_back_as_it_was() -> None:
    assert unpack(pack(a_page())) == json.loads(json.dumps(a_page()))


BOMB = base64.b64encode(zlib.compress(b" " * (64 << 20))).decode()


@pytest.mark.parametrize(
    "value",
    [
        None, "text", {"version": 2}, {"version": 1, "data": "%%%"}, {"version": 1, "data": "AAAA"},
        {"version": 1, "run": "x", "data": BOMB}, {**pack(a_page()), "run": "another"},
        pack(a_page(version=99)), {**pack(a_page()), "data": pack(a_page())["data"][:-40]},
        pack({"version": 1, "run": "x", "state": "running"}),
    ],
)  # fmt: skip
def test_a_snapshot_that_is_damaged_or_of_another_release_is_none(value: Any) -> None:
    assert unpack(value) is None


@pytest.mark.parametrize("zero", [1e300, float("nan"), -1e18])
def test_a_snapshot_of_no_time_takes_no_other_run_from_the_card(zero: float) -> None:
    made_up = left_elsewhere(a_seen(State.RUNNING), "deferred", zero=zero)
    sound = left_elsewhere(a_seen(State.RUNNING), "deferred", task_id="sound")
    told = client(made_up, sound).get("/api/now").json()
    assert {row["task_id"]: row["state"] for row in told["runs"]}["sound"] == "running"
    assert client(made_up).get(path_of(made_up)).json()["main"]


@pytest.mark.parametrize("field", ["curves", "members", "checkpoints", "diagnoses", "metrics"])
def test_a_snapshot_that_a_task_made_up_ends_in_no_traceback(field: str) -> None:
    page = a_page(**{field: [7, {"name": None}, None, "text"]})
    named = {"run": page["run"], "host": "elsewhere"}
    task = Task(Where("nightly", "manual__1", "train"), "failed", named=named, left=pack(page))
    asks = client(task)
    for path in (path_of(task), path_of(task, "page"), "/api/dag/nightly/models", "/api/now"):
        assert asks.get(path).status_code == 200


def test_snapshots_are_as_rare_as_they_are_dear() -> None:
    now = [0.0]
    snapshots = Snapshots(lambda: now[0])
    assert snapshots.is_due("running")
    snapshots.left("running", took=2.0)
    now[0] = 199.0
    assert not snapshots.is_due("running")
    now[0] = 200.0
    assert snapshots.is_due("running")
    snapshots.left("running", took=0.0)
    now[0] += pages.EVERY / 2
    assert snapshots.is_due("restarting") and not snapshots.is_due("running")


def test_after_three_failures_no_snapshot_is_tried() -> None:
    now = [0.0]
    snapshots = Snapshots(lambda: now[0])
    for _ in range(3):
        assert snapshots.is_due("running")
        snapshots.failed()
        now[0] += 1000
    assert not snapshots.is_due("running")


# --- the card and the models


def test_the_card_says_what_trains_and_what_waits_and_why() -> None:
    ti = TaskInstance()
    backend = LocalBackend()
    tasks = []
    for name in ("first", "second"):
        each = replace(ti, task_id=name, xcoms={})
        job = TrainingJob(name=name, command=["python", "-c", HANGS], resources={"cpu": int(cpus())})
        handle = backend.launch(Plan(job, key_of(a_context(each))), Owner(str(ti.id), "worker", "attached"))
        each.xcom_push(RUN_KEY, {"run": handle.run, "uid": handle.uid, "host": "here"})
        tasks.append(a_task(each))
        wait_for(lambda run=handle.run, word="running" if name == "first" else "queued": _state(run) == word)  # type: ignore[misc]
    told = client(*tasks).get("/api/now").json()
    assert [(row["task_id"], row["state"]) for row in told["runs"]] == [
        ("second", "queued"),
        ("first", "running"),
    ]
    assert told["runs"][0]["held_by"]
    [queue] = told["queues"]
    cpu = next(a for a in queue["amounts"] if a["resource"] == "cpu")
    assert (cpu["used"], queue["waiting"]) == (cpu["limit"], 1)
    assert (queue["kind"], queue["where"]) == ("machine", "this machine")


def test_the_card_shows_how_full_the_queues_of_a_namespace_are_and_not_who_waits_there(
    cluster: FakeCluster,
) -> None:
    context = a_context()
    deferred(an_operator(), context)
    running(cluster)
    quota = {
        "hard": {"cpu": "8", "pods": "4", "nvidia.com/gpu": "2"},
        "used": {"cpu": "6", "nvidia.com/gpu": "2"},
    }
    put(cluster, RESOURCEQUOTAS, "team", status=quota)
    put(cluster, RESOURCEQUOTAS, "unused", status={"hard": {"cpu": "8"}, "used": {"cpu": "0"}})
    browser = client(a_task(context["ti"]))
    [queue] = browser.get("/api/now").json()["queues"]
    assert (queue["name"], queue["kind"], queue["where"]) == ("team", "ResourceQuota", "namespace default")
    assert [(a["resource"], a["words"]) for a in queue["amounts"]] == [
        ("nvidia.com/gpu", "2 of 2"),
        ("cpu", "6 of 8"),
    ]
    assert "waiters" not in queue
    asked = len(cluster.requests)
    browser.get("/api/now")
    again = cluster.requests[asked:]
    assert not [each for each in again if "resourcequotas" in str(each)], "it was asked a moment ago"


def test_queues_that_may_not_be_read_take_nothing_else_from_the_card(cluster: FakeCluster) -> None:
    context = a_context()
    deferred(an_operator(), context)
    running(cluster)
    cluster.refuse(RESOURCEQUOTAS, Forbidden("no quotas for you"))
    told = client(a_task(context["ti"])).get("/api/now").json()
    assert [row["state"] for row in told["runs"]] == ["running"] and told["queues"] == []


def test_queues_are_told_only_to_those_who_see_a_run_there(cluster: FakeCluster) -> None:
    context = a_context()
    deferred(an_operator(), context)
    running(cluster)
    put(cluster, RESOURCEQUOTAS, "team", status={"hard": {"cpu": "8"}, "used": {"cpu": "6"}})
    named = context["ti"].xcoms[RUN_KEY]
    thief = Task(Where("nightly", "manual__1", "peek"), "running", named=named)
    told = client(thief).get("/api/now").json()
    assert [row["state"] for row in told["runs"]] == [None] and told["queues"] == []


def test_the_fullest_queues_come_first_and_no_more_than_fit_a_card() -> None:
    queues = [Queue(f"q{n}", "Queue", (Amount("cpu", n, 10.0),), running=1, waiting=0) for n in range(7)]
    queues.append(Queue("held", "LocalQueue", parent="gpus", running=0, waiting=3, closed="it is stopped"))
    told = queues_shown(queues, "namespace team", "https://x")
    assert [queue["name"] for queue in told] == ["held", "q6", "q5", "q4", "q3"]
    assert (told[0]["closed"], told[0]["amounts"]) == ("it is stopped", [])


def _state(run: str) -> str:
    return state_of(LocalBackend().observe(run)).value


def test_the_models_of_a_dag_are_the_metrics_of_its_runs_and_what_was_promoted(tmp_path: Path) -> None:
    task, result = trained()
    collected = CollectCheckpointOperator(
        task_id="collect", source=result, into="store://models", allaboard_conn_id=None
    ).execute(a_context())
    promoter = TaskInstance(task_id="promote")
    PromoteOperator(
        task_id="promote", checkpoint=collected, metrics={"accuracy": 0.9}, metric="accuracy",
        store="store://champions", allaboard_conn_id=None,
    ).execute(a_context(promoter))  # fmt: skip
    promoted = Task(Where("nightly", "manual__1", "promote"), "success", "PromoteOperator",
                    promotion=promoter.xcoms[PROMOTION_KEY])  # fmt: skip
    told = client(task, promoted).get("/api/dag/nightly/models").json()
    (run,) = told["runs"]
    assert (run["run"], run["metrics"]["accuracy"], run["promotion"]) == (result["run"], 0.9, 1)
    (champion,) = told["champions"]
    assert (champion["run"], champion["number"], champion["metric"]) == (result["run"], 1, 0.9)
    assert any("when a task of this DAG last promoted there" in note for note in told["notes"])


def a_promotion(number: int, run: str, restores: int | None = None) -> dict[str, Any]:
    return {"number": number, "run": run, "step": 1, "checkpoint": "c", "at": None, "by": "ann",
            "restores": restores, "metric": 0.5}  # fmt: skip


def test_the_newest_reading_of_a_store_tells_its_promotions_and_rollbacks() -> None:
    def told(at: float, *rows: dict[str, Any]) -> dict[str, Any]:
        return {"version": 1, "store": "s3://m", "read_at": at, "metric": "a", "promotions": list(rows)}

    first, second = a_promotion(1, "r1"), a_promotion(2, "r2")
    tasks = [
        Task(Where("d", "1", "p"), promotion=told(1.0, first)),
        Task(Where("d", "2", "p"), promotion=told(2.0, a_promotion(3, "r1", restores=1), second, first)),
    ]
    found = models_of("d", tasks, 2, 3.0)
    assert [(one["number"], one["restores"]) for one in found["promotions"]] == [(3, 1), (2, None), (1, None)]
    assert found["champions"][0]["number"] == 3


@pytest.mark.parametrize(
    "promotion",
    [
        None,
        3,
        {"version": 9},
        {"version": 1},
        {"version": 1, "read_at": 1, "promotions": [3, {}, {"number": "x"}]},
    ],
)
def test_a_promotion_that_is_none_of_ours_is_passed_over(promotion: Any) -> None:
    assert models_of("d", [Task(Where("d", "1", "p"), promotion=promotion)], 1, 3.0)["promotions"] == []


# --- how it is registered


def test_the_tab_of_a_task_is_a_frame_and_the_others_are_parts_of_airflows_pages() -> None:
    (view,) = plugin.WEB_PAGES["external_views"]
    assert view["destination"] == "task_instance" and view["href"].startswith("allaboard/page/{DAG_ID}/")
    parts = [(part["name"], part["destination"]) for part in plugin.WEB_PAGES["react_apps"]]
    assert parts == [("Models", "dag"), ("Trainings", "dashboard")]


@pytest.mark.parametrize("configured", ["", "Tabs", " page ", "off", "OFF ", "none", "o\nff"])
def test_an_option_of_an_older_release_is_no_trouble(
    configured: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    word = configured.strip().lower()
    assert plugin.shows_pages(configured) == (word != "off")
    told = [line for line in caplog.messages if "is not an option any more" in line]
    assert len(told) == (word not in ("", "off"))


@pytest.mark.thorough
def test_the_plugin_imports_nothing_of_a_web_server_before_the_first_request() -> None:
    heavy = ("fastapi", "starlette", "airflow.api_fastapi")
    code = f"import sys, allaboard_provider.plugin; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_the_link_of_a_task_leads_to_its_tab() -> None:
    assert tab_of("a b", "manual__2026-01-01T00:00:00+00:00", "x.y") == (
        "/dags/a%20b/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/x.y/plugin/allaboard"
    )
    assert tab_of("d", "r", "t", 3).endswith("/tasks/t/mapped/3/plugin/allaboard")


def test_a_value_is_made_once_for_all_who_ask_meanwhile_and_again_when_it_is_old() -> None:
    now = [0.0]
    cache = reading.Cache(2, lambda: now[0])
    made: list[int] = []

    def make() -> tuple[int, float]:
        made.append(1)
        return len(made), 5.0

    assert [cache.get("a", make), cache.get("a", make)] == [1, 1]
    now[0] = 6.0
    assert cache.get("a", make) == 2
    assert [cache.get(key, make) for key in "bca"] == [3, 4, 5]  # the oldest had to go


def test_reading_a_long_output_ends_in_time_and_says_so() -> None:
    class Endless:
        def logs(self, *_: Any, **__: Any) -> Iterator[int]:
            yield from iter(int, 1)

    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    with pytest.raises(Exception, match="took more than 5 s"):
        list(pages._Hurried(Endless(), 5.0, clock).logs())  # type: ignore[arg-type]


class Growing:
    """A run of one attempt whose output grows. ``late``: the number of lines after which time is up."""

    def __init__(self, clock: list[float], late: int | None = None) -> None:
        self.texts: list[str] = []
        self.clock, self.late = clock, late
        self.given = 0

    def write(self, *steps: int) -> None:
        for step in steps:
            self.texts += [encode("progress", step=step, loss=1.0 / step), f"step {step}"]

    def logs(self, run: str, selection: Selection, cursor: Any = None) -> Iterator[Any]:
        begin = 0 if cursor is None else cursor["at"]
        if selection.tail is not None:
            begin = max(0, len(self.texts) - selection.tail)
        for number, text in enumerate(self.texts[begin:]):
            self.given += 1
            yield LogLine("master-0", 0, 0, None, text)
            if selection.tail is None and number + 1 == self.late:
                self.clock[0] += 100.0
        yield {"at": len(self.texts)}


def read(output: pages.Output, run: Growing) -> OutputReader:
    hurried = pages._Hurried(run, 5.0, lambda: run.clock[0])  # type: ignore[arg-type]
    return output.read(hurried, "digits-1", 1)


def test_a_page_that_is_shown_again_reads_only_what_came_since() -> None:
    run, output = Growing([0.0]), pages.Output()
    run.write(1, 2, 3)
    assert read(output, run).history.curves["loss"][-1] == (3, 1 / 3)
    run.write(4)
    run.given = 0
    found = read(output, run)
    assert run.given == 2 and [step for step, _ in found.history.curves["loss"]] == [1, 2, 3, 4]
    assert [*found.last_lines] == ["step 1", "step 2", "step 3", "step 4"] and found.gaps == []


def test_of_an_output_that_is_too_long_the_end_is_told_and_from_then_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "_LAST_LINES", 4)
    run, output = Growing([0.0], late=3), pages.Output()
    run.write(1, 2, 3, 4, 5)
    found = read(output, run)
    assert [step for step, _ in found.history.curves["loss"]] == [4, 5]
    assert [*found.last_lines] == ["step 4", "step 5"]
    [gap] = found.gaps
    assert gap.startswith(
        "only the last 4 lines that rank 0 wrote in attempt 1 were read; `allaboard report digits-1`"
    )
    run.write(6)
    found = read(output, run)
    assert [step for step, _ in found.history.curves["loss"]] == [4, 5, 6] and found.gaps == [gap]


def test_the_tab_says_the_same_of_an_output_as_all_others() -> None:
    backend: Any = one_output.Wrote()
    page = pages.page_value(backend, one_output.FAILED, 10.0, at=HERE, bounds=PAGE)
    first, rank0 = sorted((m for m in page["members"] if m["lines"]), key=lambda m: m["order"])
    assert (first["name"], first["lines"]) == (one_output.FAILING, [one_output.TAIL])
    lines = [line.replace("\x1b", "\\x1b") for line in rank0["lines"]]
    assert lines == one_output.LINES

"""What the pages read in Airflow's database, whose XComs lie in other tables in other versions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from airflow.models.xcom import XComModel

from allaboard_provider.pages import PROMOTION_KEY, RUN_KEY, SNAPSHOT_KEY
from allaboard_provider.ui import database
from allaboard_provider.ui.database import Database, Where
from tests.provider.building import TaskInstance
from tests.provider.databases import AirflowDatabase

NAMED = {"run": "digits-1", "attempt": 1, "uid": "u"}


class Rows(AirflowDatabase):
    """A database whose tasks push XComs."""

    def push(self, ti: TaskInstance, key: str, value: Any) -> None:
        as_a_worker = mock.patch.object(XComModel, "serialize_value", lambda value, **_: value)
        with self.session() as session, as_a_worker:
            XComModel.set(
                key=key, value=value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id,
                map_index=ti.map_index, session=session,
            )  # fmt: skip


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows(tmp_path / "airflow.db", TaskInstance(try_number=2))
    monkeypatch.setattr(database, "create_session", rows.session)
    return rows


def where(ti: TaskInstance) -> Where:
    return Where(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)


def test_a_task_is_read_with_what_it_left(rows: Rows) -> None:
    rows.push(rows.ti, RUN_KEY, NAMED)
    rows.push(rows.ti, SNAPSHOT_KEY, "packed")
    rows.push(rows.ti, "of another operator", 1)
    found = Database().task(where(rows.ti))
    assert found is not None
    assert (found.state, found.try_number, found.named, found.left) == ("deferred", 2, NAMED, "packed")
    assert Database().task(Where("nightly", rows.ti.run_id, "no such task")) is None


def test_the_value_that_was_pushed_last_is_read(rows: Rows) -> None:
    rows.push(rows.ti, SNAPSHOT_KEY, "old")
    rows.push(rows.ti, SNAPSHOT_KEY, "new")
    found = Database().task(where(rows.ti))
    assert found is not None and found.left == "new"


def test_a_mapped_task_is_told_from_its_siblings(rows: Rows) -> None:
    mapped = [TaskInstance(task_id="each", map_index=n) for n in range(3)]
    with rows.session() as session:
        for ti in mapped:
            rows.add_task(session, ti)
    for ti in mapped:
        rows.push(ti, RUN_KEY, {**NAMED, "run": f"digits-{ti.map_index}"})
    found = [Database().task(where(ti)) for ti in mapped]
    assert [task.named["run"] for task in found if task] == ["digits-0", "digits-1", "digits-2"]


def test_the_tasks_of_a_dag_come_in_the_order_of_their_dag_runs(rows: Rows) -> None:
    later, promoting = TaskInstance(run_id="manual__2"), TaskInstance(run_id="manual__2", task_id="promote")
    other = TaskInstance(run_id="manual__2", task_id="prepare")
    with rows.session() as session:
        rows.add_dag_run(session, later.run_id)
        for ti in (later, promoting, other):
            rows.add_task(session, ti, state="success")
    rows.push(rows.ti, RUN_KEY, NAMED)
    rows.push(later, RUN_KEY, NAMED)
    rows.push(later, "return_value", {"state": "succeeded"})
    rows.push(promoting, PROMOTION_KEY, {"promoted": True})
    rows.push(other, "return_value", "shards")
    tasks, count = Database().tasks_of("nightly")
    assert count == 2
    assert [(task.where.run_id, task.where.task_id) for task in tasks] == [
        ("manual__1", "train"), ("manual__2", "promote"), ("manual__2", "train")
    ]  # fmt: skip
    assert tasks[2].result == {"state": "succeeded"} and tasks[1].promotion == {"promoted": True}
    assert all(task.after is not None for task in tasks)


def test_the_tasks_that_follow_a_run_now_are_found_newest_first(rows: Rows) -> None:
    now = datetime.now(UTC)
    ended, silent = TaskInstance(task_id="ended"), TaskInstance(task_id="silent")
    newer = TaskInstance(task_id="newer")
    with rows.session() as session:
        rows.add_task(session, ended, state="success", start_date=now)
        rows.add_task(session, silent, state="running", start_date=now)
        rows.add_task(session, newer, state="running", start_date=now)
    for ti in (rows.ti, ended, newer):
        rows.push(ti, RUN_KEY, NAMED)
    rows.push(newer, SNAPSHOT_KEY, "packed")
    found = Database().unfinished({"nightly"})
    assert [(task.where.task_id, task.left) for task in found] == [("newer", "packed"), ("train", None)]
    assert Database().unfinished({"another"}) == [] and Database().unfinished(()) == []

"""The reconciler of a triggerer, on a real database (SQLite): which orders there reach a local run that
nobody follows, and what it tells a next try on another host.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.jobs.job import Job
from airflow.models.taskinstance import TaskInstance as Row
from airflow.models.variable import Variable
from sqlalchemy import create_engine, insert, update

from allaboard import TrainingJob
from allaboard.backends.base import Handle, Plan
from allaboard.backends.local.backend import LocalBackend
from allaboard.job.identity import airflow_key
from allaboard.runs.status import state_of
from allaboard_provider import compat, homes, reconciler
from allaboard_provider.identity import in_triggerer, on_worker
from allaboard_provider.reconciler import Reconciler
from allaboard_provider.triggerers import present
from tests.provider.building import TaskInstance
from tests.provider.databases import AirflowDatabase, as_stored
from tests.provider.runs import only_run
from tests.provider.versioned import needs_task_state
from tests.waiting import wait_for

pytestmark = pytest.mark.thorough


class Airflow(AirflowDatabase):
    """A database with one task instance, ``train`` of ``nightly``."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, TaskInstance(max_tries=1))

    def keep(self, key: str, value: Any) -> None:
        with self.session() as session:
            compat.write_task_state(session, self.place, key, json.dumps(value))

    def kept(self, key: str) -> Any:
        with self.session() as session:
            return json.loads(compat.read_task_state(session, self.place, key) or "null")

    @property
    def place(self) -> tuple[Any, ...]:
        return self.ti.dag_id, self.ti.run_id, "train", -1

    def a_run(self, command: str = "sleep 300", instance: str = "tests") -> Handle:
        """A run that a worker of this task launched and left to a triggerer."""
        key = airflow_key(instance, self.ti.dag_id, self.ti.run_id, "train")
        job = TrainingJob(name="small", command=["sh", "-c", command], policy={"restart": "never"})
        handle = LocalBackend().launch(Plan(job, key), on_worker(self.ti))
        return LocalBackend().adopt(handle, on_worker(self.ti), in_triggerer(self.ti.id))


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    airflow = Airflow(tmp_path / "airflow.db")
    monkeypatch.setattr(reconciler, "_session", airflow.session)
    return airflow


@pytest.fixture
def minds(airflow: Airflow) -> Iterator[Reconciler]:
    minds = Reconciler(os.environ, None)
    yield minds
    minds.presence.close()


@pytest.mark.parametrize(
    ("state", "dag_run"),
    [("failed", "running"), ("success", "running"), ("skipped", "failed"), ("queued", "failed"),
     ("scheduled", "success"), ("up_for_retry", "running"), ("restarting", "running")],
)  # fmt: skip
def test_an_order_that_only_the_database_has_reaches_the_run(
    airflow: Airflow, minds: Reconciler, state: str, dag_run: str
) -> None:
    """In the first seconds of a deferral, while its resume is queued, or by a marked DAG run. On main such a
    run trains on where the API server cannot see it.
    """
    airflow.a_run()
    airflow.say(state, dag_run)
    minds.look()
    wait_for(lambda: state_of(only_run()).value == "stopped")


@pytest.mark.parametrize("state", ["deferred", "scheduled", "queued", "running", None])
def test_a_hand_over_or_a_new_try_is_no_order(airflow: Airflow, minds: Reconciler, state: str | None) -> None:
    airflow.a_run()
    airflow.say(state)
    with airflow.session() as session:  # cleared: another try
        session.execute(update(Row.__table__).values(id=as_stored(uuid.uuid4())))
    minds.look()
    assert only_run().stop is None and only_run().owner == in_triggerer(airflow.ti.id)


@pytest.mark.parametrize("is_cleared", [False, True])
def test_a_run_whose_resume_waits_in_a_queue_is_looked_after_and_one_of_an_older_try_is_not(
    airflow: Airflow, minds: Reconciler, is_cleared: bool
) -> None:
    """Else it would end as one that nobody follows."""
    handle = airflow.a_run()
    airflow.say("queued")
    if is_cleared:
        with airflow.session() as session:
            session.execute(update(Row.__table__).values(id=as_stored(uuid.uuid4())))
    client = LocalBackend().find(handle.run).attempt(1, 1).client
    os.utime(client, (1, 1))
    minds.look()
    assert (client.stat().st_mtime == 1) is is_cleared


def test_a_run_of_another_airflow_is_none_of_its_business(airflow: Airflow, minds: Reconciler) -> None:
    airflow.a_run(instance="another")
    airflow.say("failed", "failed")
    minds.look()
    assert only_run().stop is None


def test_the_name_of_an_airflow_is_that_of_its_variable(
    airflow: Airflow, minds: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW__ALLABOARD__INSTANCE")
    airflow.a_run(instance="made-once")
    airflow.say("failed")
    minds.look()
    assert only_run().stop is None
    with airflow.session() as session:
        session.add(Variable("allaboard_instance", "made-once"))
    minds.look()
    assert only_run().stop is not None


def home_of(handle: Handle, uid: str | None = None) -> dict[str, Any]:
    place = LocalBackend().place()
    return homes.Home(handle.run, uid or handle.uid, 1, 1, "host-a", 60.0, place).as_json()


def asked(handle: Handle) -> dict[str, Any]:
    home = homes.read_home(home_of(handle))
    assert home is not None
    return homes.order(home, "host-b")


@needs_task_state
@pytest.mark.parametrize("phase", ["deferred", "worker"])
def test_a_next_try_elsewhere_has_the_run_stopped_and_is_told_its_end(
    airflow: Airflow, minds: Reconciler, phase: str
) -> None:
    handle = airflow.a_run()
    if phase == "worker":  # which was killed
        LocalBackend().adopt(handle, in_triggerer(airflow.ti.id), on_worker(airflow.ti))
    airflow.say("running")
    airflow.keep(homes.HOME, home_of(handle))
    airflow.keep(homes.STOP, asked(handle))
    minds.look()
    wait_for(lambda: state_of(only_run()).is_final)
    minds.look()
    assert homes.read_ended(airflow.kept(homes.ENDED)) == homes.Ended(handle.uid, "stopped")


@needs_task_state
def test_a_next_try_elsewhere_is_told_the_result_of_a_run_that_has_succeeded(
    airflow: Airflow, minds: Reconciler
) -> None:
    handle = airflow.a_run("true")
    wait_for(lambda: state_of(only_run()).is_final)
    airflow.say("running")
    airflow.keep(homes.HOME, home_of(handle))
    airflow.keep(homes.STOP, asked(handle))
    minds.look()
    ended = homes.read_ended(airflow.kept(homes.ENDED))
    assert ended is not None and ended.result is not None and not ended.accepted
    assert (ended.uid, ended.result["state"]) == (handle.uid, "succeeded")


@needs_task_state
def test_what_a_later_attempt_elsewhere_says_of_its_end_stays(airflow: Airflow, minds: Reconciler) -> None:
    handle = airflow.a_run("true")
    wait_for(lambda: state_of(only_run()).is_final)
    airflow.keep(homes.HOME, home_of(handle, "the next one"))
    airflow.keep(homes.STOP, asked(handle))
    later = homes.Ended("the next one", "succeeded", accepted=True)
    airflow.keep(homes.ENDED, later.as_json())
    minds.look()
    assert homes.read_ended(airflow.kept(homes.ENDED)) == later


def test_it_says_which_hosts_have_triggerers_that_live(
    airflow: Airflow, minds: Reconciler, tmp_path: Path, triggerer: Any
) -> None:
    triggerer.close()
    home = str(tmp_path / "home")
    minds.look()
    assert [one.others for one in present(home)] == [()]
    now = datetime.now(UTC)
    rows: list[dict[str, Any]] = [
        {"hostname": "lives", "latest_heartbeat": now},
        {"hostname": "silent", "latest_heartbeat": now - timedelta(seconds=90)},
        {"hostname": "ended", "latest_heartbeat": now, "end_date": now},
        {"hostname": "a-scheduler", "latest_heartbeat": now, "job_type": "SchedulerJob"},
    ]
    with airflow.session() as session:
        for row in rows:
            values = {"job_type": "TriggererJob", "state": "running", **row}
            session.execute(insert(Job.__table__).values(**values))
    minds.look()
    assert [one.others for one in present(home)] == [("lives",)]


def test_a_database_that_does_not_answer_ends_nothing(
    airflow: Airflow, minds: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.a_run()
    airflow.engine = create_engine("sqlite:////nowhere/at/all.db")
    with pytest.raises(Exception, match="unable to open"):
        minds.look()
    assert only_run().stop is None

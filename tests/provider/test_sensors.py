"""The sensors: waiting for runs and checkpoints of others, on a worker or in the triggerer, without touching
them.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

import allaboard
from allaboard import TrainingJob
from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.checkpoints import Manifest, save
from allaboard.runs.status import state_of
from allaboard.storage import open_store
from allaboard_provider.errors import TaskTimedOut
from allaboard_provider.sensors import CheckpointSensor, TrainingJobSensor
from allaboard_provider.sensors.train import moment_of
from allaboard_provider.triggers.checkpoints import CheckpointTrigger, fingerprint_of
from allaboard_provider.triggers.train import RunTrigger
from tests.provider.building import StateStore, TaskInstance, a_context
from tests.provider.runs import only_run
from tests.provider.test_triggers import fired
from tests.provider.versioned import AirflowRescheduleException, deserialize, serialize
from tests.waiting import wait_for


def a_job(code: str) -> TrainingJob:
    return TrainingJob(name="theirs", command=["python", "-c", code], policy={"restart": "never"})


def a_sensor(kind: type, **fields: Any) -> Any:
    defaults = {"deferrable": False, "poke_interval": 0.05, "timeout": 60, "allaboard_conn_id": None}
    return kind(task_id="wait", **{**defaults, **fields})


def test_a_run_of_others_is_waited_for_by_name_or_by_key() -> None:
    handle = allaboard.submit(a_job("from allaboard.inside import result; result(loss=1)"), key="nightly")
    for how in ({"run": handle.run}, {"run": "theirs"}, {"key": "nightly"}):
        result = a_sensor(TrainingJobSensor, **how).execute(a_context())
        assert result["state"] == "succeeded" and result["metrics"] == {"loss": 1} and "members" not in result
    owner = only_run().owner
    assert owner is not None and owner.kind == "detached" and not only_run().handed_over, (
        "it was only watched"
    )


def test_a_run_that_fails_fails_the_sensor_with_the_reason() -> None:
    allaboard.submit(a_job("raise ValueError('not right')"), key="nightly")
    with pytest.raises(AirflowException, match="not right"):
        a_sensor(TrainingJobSensor, key="nightly").execute(a_context())


def a_dag_run(began: datetime, store: StateStore | None = None) -> dict[str, Any]:
    """The context of a DAG run that began then."""
    return {**a_context(store=store), "dag_run": SimpleNamespace(start_date=began)}


def ended_run() -> tuple[str, datetime]:
    """A run that has ended, and when."""
    handle = allaboard.submit(a_job("pass"), key="nightly")
    wait_for(lambda: state_of(only_run()).is_final)
    return handle.run, datetime.fromtimestamp(only_run().finished or 0, UTC)


@pytest.mark.parametrize("how", [{"run": "theirs"}, {"key": "nightly"}], ids=str)
def test_last_nights_end_is_not_taken_for_tonights(how: dict[str, str]) -> None:
    run, end = ended_run()
    after, before = end + timedelta(milliseconds=1), end - timedelta(milliseconds=1)
    with pytest.raises(AirflowSensorTimeout):
        a_sensor(TrainingJobSensor, **how, timeout=0.2).execute(a_dag_run(after))
    for context, since in ((a_dag_run(before), {}), (a_dag_run(after), {"since": None})):
        assert a_sensor(TrainingJobSensor, **how, **since).execute(context)["run"] == run
    with pytest.raises(TaskDeferred) as deferral:
        a_sensor(TrainingJobSensor, **how, deferrable=True).execute(a_dag_run(after))
    trigger = RunTrigger(**deserialize(serialize(deferral.value.trigger.serialize()[1])))
    assert not trigger.is_there()
    LocalBackend().hand_over(Handle(run, 1, 1, str(only_run().uid)))
    allaboard.submit(a_job("pass"), key="nightly")  # tonight's
    until_tonight = a_sensor(TrainingJobSensor, **how).execute(a_dag_run(after))
    assert until_tonight["run"] == run and trigger.is_there()


def test_a_run_that_is_named_by_its_id_is_meant_whenever_it_ended() -> None:
    run, end = ended_run()
    late = end + timedelta(days=1)
    assert a_sensor(TrainingJobSensor, run=run).execute(a_dag_run(late))["run"] == run
    with pytest.raises(AirflowSensorTimeout):
        a_sensor(TrainingJobSensor, run=run, since=late, timeout=0.2).execute(a_dag_run(end))


def test_a_clear_in_the_morning_still_finds_the_nights_end() -> None:
    store = StateStore()
    night = datetime.now(UTC)
    with pytest.raises(AirflowSensorTimeout):
        a_sensor(TrainingJobSensor, run="theirs", timeout=0.1).execute(a_dag_run(night, store))
    run, end = ended_run()
    morning = a_dag_run(end + timedelta(hours=6), store)  # Airflow gives a cleared DAG run a new start
    assert a_sensor(TrainingJobSensor, run="theirs").execute(morning)["run"] == run


@pytest.mark.parametrize("since", ["2026-01-31", "yesterday", "2026-01-31T02:00:00", datetime(2026, 1, 31)])
def test_a_moment_without_a_time_zone_is_refused(since: Any) -> None:
    with pytest.raises(AirflowFailException, match="is no time with a time zone"):
        a_sensor(TrainingJobSensor, run="theirs", since=since).execute(a_context())


def test_a_moment_may_be_a_text_or_a_time_with_its_zone() -> None:
    zurich = pendulum.datetime(2026, 1, 31, 2, tz="Europe/Zurich")
    for since in (zurich, str(zurich), "2026-01-31T02:00:00+01:00", "2026-01-31T01:00:00Z"):
        assert moment_of(since) == zurich.timestamp()
    assert moment_of("None") is None


def test_a_run_that_is_not_there_yet_is_waited_for_until_the_timeout() -> None:
    with pytest.raises(AirflowSensorTimeout):
        a_sensor(TrainingJobSensor, key="nightly", timeout=0.2).execute(a_context())


@pytest.mark.parametrize("how", [{}, {"run": "a", "key": "b"}], ids=str)
def test_the_run_or_the_key_is_needed_and_not_both(how: dict[str, str]) -> None:
    with pytest.raises(AirflowFailException, match="one of them"):
        a_sensor(TrainingJobSensor, **how).execute(a_context())


def test_a_checkpoint_above_a_step_is_waited_for(tmp_path: Path) -> None:
    run = tmp_path / "home" / "store" / "checkpoints" / "theirs-1"
    save(open_store(run), Manifest(step=5, run="theirs-1"), {"state": b"five"})
    with pytest.raises(AirflowSensorTimeout):
        a_sensor(CheckpointSensor, uri="store://checkpoints/theirs-1", after="5", timeout=0.2).execute(
            a_context()
        )
    save(open_store(run), Manifest(step=6, run="theirs-1", metrics={"loss": 0.5}), {"state": b"six"})
    for uri in ("store://checkpoints/theirs-1", "store://checkpoints"):
        found = a_sensor(CheckpointSensor, uri=uri, after=5).execute(a_context())
        assert (found["step"], found["run"], found["metrics"]) == (6, "theirs-1", {"loss": 0.5})
        assert found["uri"] == str(run / "step-000000000006")


def test_a_step_that_is_none_is_refused() -> None:
    with pytest.raises(AirflowFailException, match="is no step"):
        a_sensor(CheckpointSensor, uri="store://a", after="the last").execute(a_context())


def test_what_is_there_is_not_waited_for_in_the_triggerer_and_the_rest_is(tmp_path: Path) -> None:
    sensor = a_sensor(CheckpointSensor, uri="store://checkpoints/theirs-1", deferrable=True)
    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(a_context())
    deadline = deferral.value.trigger.deadline
    assert deadline == pytest.approx(time.time() + 60, abs=5)
    # Airflow's own timer is for the case that no triggerer has the trigger.
    assert deferral.value.timeout is not None and 60 < deferral.value.timeout.total_seconds() <= 180
    assert not deferral.value.trigger.is_there()
    run = tmp_path / "home" / "store" / "checkpoints" / "theirs-1"
    save(open_store(run), Manifest(step=1), {"state": b"one"})
    assert deferral.value.trigger.is_here() and deferral.value.trigger.is_there()
    for event in ({"status": "there"}, {"status": "elsewhere"}, {"status": "error", "error": "a reason"}):
        assert sensor.execute_complete(a_context(), event)["step"] == 1
    assert sensor.execute(a_context())["step"] == 1


def test_a_look_that_is_asked_for_without_execute() -> None:
    """As tests of DAGs ask for it."""
    sensor = a_sensor(TrainingJobSensor, key="nightly", since=None)
    assert sensor.poke(a_context()).is_done is False
    allaboard.submit(a_job("from allaboard.inside import result; result(loss=1)"), key="nightly")
    wait_for(lambda: sensor.poke(a_context()).is_done)
    assert sensor.poke(a_context()).xcom_value["state"] == "succeeded"


# --- timeout and execution_timeout, in every mode
# --------------------------------------------------------------------------------------------------------

LIMITS = [
    ({"timeout": 30}, AirflowSensorTimeout),
    ({"timeout": 3600, "execution_timeout": timedelta(seconds=30)}, TaskTimedOut),
]


class RescheduledInstance(TaskInstance):
    """Of a sensor that was rescheduled first at that moment; every look has a start of its own."""

    first = datetime.now(UTC)

    def get_first_reschedule_date(self, context: Any) -> datetime | None:
        return self.first


def begun(seconds_ago: float, kind: type[TaskInstance] = TaskInstance) -> dict[str, Any]:
    moment = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    ti = kind() if kind is RescheduledInstance else kind(start_date=moment)
    if isinstance(ti, RescheduledInstance):
        ti.first = moment
    return a_context(ti)


@pytest.mark.parametrize(("limits", "error"), LIMITS, ids=["timeout", "execution_timeout"])
def test_a_limit_counts_from_the_start_of_the_try_on_a_worker_too(
    limits: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        a_sensor(TrainingJobSensor, key="never", poke_interval=3600, **limits).execute(begun(29.5))


@pytest.mark.parametrize(("limits", "error"), LIMITS, ids=["timeout", "execution_timeout"])
def test_a_limit_counts_between_rescheduled_looks(limits: dict[str, Any], error: type[Exception]) -> None:
    sensor = a_sensor(TrainingJobSensor, key="never", mode="reschedule", poke_interval=20, **limits)
    before = datetime.now(UTC)
    with pytest.raises(AirflowRescheduleException) as again:
        sensor.execute(begun(25, RescheduledInstance))
    assert 3 < (again.value.reschedule_date - before).total_seconds() < 7, "the last look is at the limit"
    with pytest.raises(error):
        sensor.execute(begun(31, RescheduledInstance))


@pytest.mark.parametrize("status", ["elsewhere", "error", "a word of a newer release"])
@pytest.mark.parametrize(("limits", "error"), LIMITS, ids=["timeout", "execution_timeout"])
@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_worker_that_looks_in_the_triggerers_place_has_what_is_left(
    limits: dict[str, Any], error: type[Exception], status: str, mode: str
) -> None:
    sensor = a_sensor(TrainingJobSensor, key="never", deferrable=True, mode=mode, **limits)
    started = time.monotonic()
    with pytest.raises(error):
        sensor.execute_complete(begun(29), {"version": 1, "status": status})
    assert 0.5 < time.monotonic() - started < 10


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("word", ["Trigger timeout", "Trigger failure", None])
@pytest.mark.parametrize(("limits", "error"), LIMITS, ids=["timeout", "execution_timeout"])
def test_a_trigger_that_airflow_ended_leaves_a_last_look_and_the_limit(
    limits: dict[str, Any], error: type[Exception], word: str | None, soft: bool
) -> None:
    sensor = a_sensor(CheckpointSensor, uri="store://a", deferrable=True, soft_fail=soft, **limits)
    resume = {"error": "Trigger timeout"} if word is None else {"error": word}
    with pytest.raises(AirflowSkipException if soft else error):
        sensor.resume_execution("__fail__", resume, begun(29.5))


def test_what_comes_at_the_last_moment_counts(tmp_path: Path) -> None:
    sensor = a_sensor(CheckpointSensor, uri="store://a", deferrable=True)
    save(open_store(tmp_path / "home" / "store" / "a" / "r-1"), Manifest(step=3), {"state": b"three"})
    event = {"version": 1, "status": "timeout"}
    assert sensor.execute_complete(begun(3600), event)["step"] == 3
    assert sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, begun(3600))["step"] == 3


def test_the_trigger_keeps_the_nearer_limit(tmp_path: Path) -> None:
    for limits, left in (
        ({"timeout": 100}, 60),
        ({"timeout": 100, "execution_timeout": timedelta(seconds=50)}, 10),
        ({"timeout": 50, "execution_timeout": timedelta(seconds=100)}, 10),
    ):
        sensor = a_sensor(CheckpointSensor, uri="store://a", deferrable=True, **limits)
        with pytest.raises(TaskDeferred) as deferral:
            sensor.execute(begun(40))
        assert deferral.value.trigger.deadline == pytest.approx(time.time() + left, abs=5)


def test_a_trigger_whose_time_is_up_says_so() -> None:
    fingerprint = fingerprint_of("/nowhere/at/all")
    trigger = CheckpointTrigger(
        "/nowhere/at/all", fingerprint=fingerprint, poll=0.05, deadline=time.time() + 0.3
    )
    again = CheckpointTrigger(**deserialize(serialize(trigger.serialize()[1])))
    assert fired(again) == {"version": 1, "status": "timeout"}


def test_a_look_that_times_out_by_itself_is_an_error_and_not_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stuck(_: CheckpointTrigger) -> bool:
        raise TimeoutError("the disk does not answer")

    monkeypatch.setattr(CheckpointTrigger, "is_there", stuck)
    event = fired(CheckpointTrigger("/nowhere", deadline=time.time() + 60))
    assert event["status"] == "error" and "the disk does not answer" in event["error"]

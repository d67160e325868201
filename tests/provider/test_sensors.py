"""The sensors: waiting for runs and checkpoints of others, on a worker or in the triggerer, without touching
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, TaskDeferred

import allaboard
from allaboard import TrainingJob
from allaboard.checkpoints import Manifest, save
from allaboard.storage import open_store
from allaboard_provider.sensors import CheckpointSensor, TrainingJobSensor
from tests.provider.building import a_context
from tests.provider.runs import only_run


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
    assert deferral.value.timeout is not None and deferral.value.timeout.total_seconds() == 60
    assert not deferral.value.trigger.is_there()
    run = tmp_path / "home" / "store" / "checkpoints" / "theirs-1"
    save(open_store(run), Manifest(step=1), {"state": b"one"})
    assert deferral.value.trigger.is_here() and deferral.value.trigger.is_there()
    for event in ({"status": "there"}, {"status": "elsewhere"}, {"status": "error", "error": "a reason"}):
        assert sensor.execute_complete(a_context(), event)["step"] == 1
    assert sensor.execute(a_context())["step"] == 1

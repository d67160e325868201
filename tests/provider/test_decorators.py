"""`@task.training`: a function of a DAG file as a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from allaboard.errors import BadInput
from allaboard_provider.decorators.training import TrainingDecoratedOperator, training_task
from allaboard_provider.operators.train import TrainingJobOperator
from tests.provider.building import a_context

MODEL = "a global name"


def trains(lr: float, day: str = "none", ds: str | None = None) -> dict[str, Any]:
    from allaboard.inside import report

    text = f"{{day}} $(X) {day}"  # what looks like a template stays
    report(step=1, total=1, loss=lr)
    return {"loss": lr, "day": text, "ds": ds}


def an_operator(*args: Any, kwargs: dict[str, Any] | None = None, **fields: Any) -> TrainingDecoratedOperator:
    with DAG("trains"):
        made = training_task(trains, allaboard_conn_id=None, deferrable=False, **fields)(
            *args, **(kwargs or {})
        )
    operator = made.operator
    assert isinstance(operator, TrainingDecoratedOperator)
    return operator


def given(operator: TrainingJobOperator) -> Any:
    return json.loads(operator.job["command"][-1])["arguments"]


def test_fields_of_the_job_and_of_the_task_are_arguments_of_the_decorator() -> None:
    operator = an_operator(0.5, workers=4, gpu=1, image="x", retries=2, resources={"cpu": 3}, name="digits")
    operator.render_template_fields({"ds": "2026-01-02"})
    read = operator.training_job()
    assert read.name == "digits" and read.get("workers") == 4 and operator.retries == 2
    assert read.get("resources") == {"cpu": 3, "gpu": 1} and read.get("image") == "x"
    assert operator.task_id == "trains" and operator.custom_operator_name == "@task.training"


def test_arguments_are_rendered_and_the_source_is_not() -> None:
    operator = an_operator(kwargs={"lr": 1, "day": "{{ params.day }}"})
    operator.render_template_fields({"params": {"day": 'mon"day'}, "ds": "2026-01-02"})
    assert given(operator) == {"lr": 1, "day": 'mon"day', "ds": "2026-01-02"}
    assert "'{day} $(X) {day}'" not in operator.job["command"][-1]
    again = operator.job
    operator.render_template_fields({"params": {}, "ds": "other"})
    assert operator.job == again, "a resumed task renders its fields again"


def test_a_function_that_cannot_run_elsewhere_fails_where_the_file_is_parsed() -> None:
    def closes() -> Any:
        return MODEL

    with DAG("trains"), pytest.raises(BadInput, match="closes uses `MODEL` from outside"):
        training_task(closes)()


def test_the_provider_registers_the_decorator() -> None:
    assert task.training.__name__ == "training_task"


def test_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    operator = an_operator(0.25, workers=2, policy={"restart": "never"})
    context = a_context()
    operator.render_template_fields({**context, "ds": "2026-01-02"})
    status = operator.execute(context)
    assert status["state"] == "succeeded"
    assert status["metrics"] == {"loss": 0.25, "day": "{day} $(X) none", "ds": "2026-01-02"}

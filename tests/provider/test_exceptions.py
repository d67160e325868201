"""What a task raises when it fails: enough to page somebody, and as the table of provider/README.md says."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.sdk import DAG
from airflow.sdk.execution_time.timeout import timeout

from allaboard import TrainingJob
from allaboard.backends.base import Plan
from allaboard.backends.local.backend import LocalBackend
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from allaboard_provider import errors
from allaboard_provider.operators import EvaluateOperator, TrainingJobOperator
from allaboard_provider.retries import TrainingRetryPolicy
from tests.provider.building import TaskInstance, a_context
from tests.provider.live import until
from tests.provider.runs import stop

ROOT = Path(__file__).resolve().parents[2]
HANGS = ["python", "-c", "import time; time.sleep(300)"]


def a_job(**fields: Any) -> dict[str, Any]:
    return {"name": "small", "command": HANGS, "policy": {"restart": "never"}, **fields}


def raised_by(job: Any, *, within: float | None = None, **fields: Any) -> errors.TrainingFailed:
    """What a task with this job raises, rendered and run as by a worker; ``within``: its time limit."""
    with DAG("nightly"):
        limit = timedelta(seconds=within) if within is not None else None
        task = TrainingJobOperator(
            task_id="train",
            job=job,
            deferrable=False,
            execution_timeout=limit,
            **{"allaboard_conn_id": None, **fields},
        )
    context = {**a_context(), "conf": {}, "conn": Missing()}

    def run() -> None:
        task.render_template_fields(context)
        task.execute(context)

    with pytest.raises((AirflowException, AirflowTaskTimeout)) as failure:
        if within is None:
            run()
        else:
            with timeout(within):
                run()
    assert isinstance(failure.value, errors.TrainingFailed)
    return failure.value


class Missing:
    """An Airflow that has no connection."""

    def __getattr__(self, name: str) -> Any:
        raise AirflowNotFoundException(f"The conn_id `{name}` isn't defined")


@contextmanager
def a_full_machine() -> Iterator[None]:
    """Another run has all cores."""
    backend = LocalBackend()
    job = TrainingJob(name="other", command=HANGS, resources={"cpu": 1000})
    handle = backend.launch(Plan(job, "k"), Owner("somebody"))
    until("it runs", lambda: state_of(backend.observe(handle.run)) is State.RUNNING)
    yield
    stop(backend.observe(handle.run))


def in_its_queue() -> errors.TrainingFailed:
    with a_full_machine():
        return raised_by(a_job(resources={"cpu": 1000}, policy={"clocks": {"admitted": "1s"}}))


def stopped_by_a_person() -> errors.TrainingFailed:
    def stops() -> None:
        seen = until("it runs", lambda: next(iter(LocalBackend().list()), None))
        until("it runs", lambda: state_of(LocalBackend().observe(seen.run)) is State.RUNNING)
        stop(LocalBackend().observe(seen.run), by="ann@lab")

    person = threading.Thread(target=stops)
    person.start()
    try:
        return raised_by(a_job())
    finally:
        person.join()


def a_worker_that_is_told_to_end() -> errors.TrainingFailed:
    task = TrainingJobOperator(task_id="train", job=a_job(), deferrable=False, allaboard_conn_id=None)
    task.on_kill()
    with pytest.raises(errors.TrainingFailed) as failure:
        task.execute(a_context(TaskInstance(state="running", max_tries=1)))
    return failure.value


def another_try_has_the_run() -> errors.TrainingFailed:
    def deferral() -> tuple[TrainingJobOperator, TaskDeferred]:
        task = TrainingJobOperator(task_id="train", job=a_job(), deferrable=True, allaboard_conn_id=None)
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(a_context(TaskInstance()))
        return task, deferred.value

    task, first = deferral()
    deferral()  # cleared meanwhile
    with pytest.raises(errors.TrainingFailed) as failure:
        task.execute_complete(a_context(), first.trigger._event("there"))  # type: ignore[attr-defined]
    return failure.value


FAILS: dict[str, tuple[Callable[[], errors.TrainingFailed], str]] = {
    "a job with a typo": (lambda: raised_by(a_job(wokers=2)), "wokers"),
    "a job file that is missing": (lambda: raised_by("nowhere/job.yaml"), "job"),
    "no code: the script is not there": (
        lambda: raised_by(a_job(command=["python", "trian.py"])),
        "command[1]",
    ),
    "no program: the command is not there": (lambda: raised_by(a_job(command=["trochrun"])), "command[0]"),
    "a template that uses an undefined name": (
        lambda: raised_by(a_job(environment={"LR": "{{ conf.lr }}"})),
        "job.environment.LR",
    ),
    "a template that cannot be rendered": (
        lambda: raised_by(a_job(args=["fast", "${#array[@]}"])),
        "job.args[1]",
    ),
    "a connection or Variable of a template that is missing": (
        lambda: raised_by(a_job(environment={"HF_TOKEN": "{{ conn.hub.password }}"})),
        "job.environment.HF_TOKEN",
    ),
    "a connection of the task that is missing": (
        lambda: raised_by(a_job(), allaboard_conn_id="gpu_cluster"),
        "",
    ),
    "the job's `policy.deadline` has passed": (
        lambda: raised_by(a_job(policy={"deadline": "1s", "restart": "never"})),
        "policy.deadline",
    ),
    "the job got no place in its queue in time": (in_its_queue, "policy.clocks.admitted"),
    "the task's `execution_timeout` has passed": (
        lambda: raised_by(a_job(), within=3.0),
        "execution_timeout",
    ),
    "the training raises an error": (
        lambda: raised_by(a_job(command=["python", "-c", "raise KeyError('label')"])),
        "",
    ),
    "a person stops it (`allaboard stop`)": (stopped_by_a_person, ""),
    "another try of the task has the run": (another_try_has_the_run, ""),
    "the worker is asked to end": (a_worker_that_is_told_to_end, ""),
}


def table() -> dict[str, list[str]]:
    """The rows of README: what happens -> exception, code, retries, policy."""
    text = (ROOT / "provider/README.md").read_text()
    lines = text.partition("| what happens |")[2].splitlines()[2:]
    rows = (re.split(r"\s*\|\s*", line.strip().strip("|")) for line in lines[: lines.index("")])
    return {row[0].strip(): [cell.strip().strip("`") for cell in row[1:]] for row in rows}


def test_the_table_has_every_failure() -> None:
    assert list(table()) == list(FAILS)


@pytest.mark.parametrize("what", FAILS)
def test_a_failure_raises_what_the_table_says(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow.sdk.BaseHook.get_connection", Missing().__getattr__)
    fails, field = FAILS[what]
    failed = fails()
    name, code, retries, policy = table()[what]
    assert type(failed).__name__ == name and failed.code == code, repr(failed)
    assert isinstance(failed, AirflowFailException) is (retries == "no")
    decision = TrainingRetryPolicy().evaluate(failed, try_number=1, max_tries=3)
    words = {"fail": "fails", "default": "leaves it to `retries`", "retry": "tries again"}
    assert words[decision.action.value] == policy.partition(",")[0] + ("`" * policy.endswith("retries"))
    assert (decision.retry_delay is not None) is policy.endswith("later")
    # Enough to page somebody.
    assert failed.run.startswith("small-") or failed.run == "nightly/manual__1/train"
    assert failed.run in str(failed) and failed.summary and failed.summary.count("\n") == 0
    assert failed.fix or isinstance(failed, errors.StoppedByPerson)
    assert (field in failed.fields) if field else failed.fields == []
    # Whatever copies it on the way to a callback.
    path, arguments, keywords = failed.serialize()
    again = getattr(import_module(path.rpartition(".")[0]), name)(
        *arguments, **json.loads(json.dumps(keywords))
    )
    assert again.__dict__ == failed.__dict__ and str(again) == str(failed)


def test_input_and_templates_that_are_wrong_say_what_to_do() -> None:
    typo = raised_by(a_job(wokers=2))
    assert "did you mean 'workers'" in typo.summary and "no such field" in str(typo)
    undefined = raised_by(a_job(environment={"LR": "{{ conf.lr }}"}))
    assert "job.environment.LR: its template uses an undefined name" in undefined.summary
    assert "params.x | default(1)" in undefined.fix and undefined.fix in str(undefined)
    broken = raised_by(a_job(args=["${#array[@]}"]))
    assert "{% raw %}" in broken.fix and "Missing end of comment tag" in broken.summary


@pytest.mark.parametrize("job", ['{"name": "small", "command": ["x", "{{ conf.lr }}"]}', "job.yaml"])
def test_texts_and_files_name_the_field_as_well(job: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: small\ncommand: [x, '{{ conf.lr }}']\n")
    with DAG("nightly") as dag:
        task = TrainingJobOperator(task_id="train", job=job, allaboard_conn_id=None)
    dag.fileloc = str(tmp_path / "dag.py")
    with pytest.raises(errors.SpecRejected) as failure:
        task.render_template_fields({**a_context(), "conf": {}})
    assert failure.value.fields == ["job.command[1]"]


def test_a_field_that_is_no_structure_is_named_too() -> None:
    with DAG("nightly"):
        task = EvaluateOperator(
            task_id="judge", job=a_job(), checkpoint="{{ conf.uri }}", allaboard_conn_id="{{ nope }}"
        )
    with pytest.raises(errors.SpecRejected) as failure:
        task.render_template_fields({**a_context(), "conf": {}})
    assert failure.value.fields == ["allaboard_conn_id"] and failure.value.run.startswith("small-")


def test_a_typo_in_a_dag_file_is_an_error_of_its_import() -> None:
    from allaboard.errors import BadInput

    with pytest.raises(BadInput, match=r"wokers: no such field .did you mean 'workers'"):
        TrainingJob(name="small", wokers=2)


def test_an_error_shows_no_secret_that_airflow_knows() -> None:
    from airflow.providers.common.compat.sdk import mask_secret

    mask_secret("a secret of Airflow's")
    failed = raised_by(a_job(workers="a secret of Airflow's"))
    assert "a secret of Airflow's" not in f"{failed} {failed.__dict__}" and "***" in failed.summary

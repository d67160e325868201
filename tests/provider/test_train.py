"""`TrainingJobOperator` without Airflow's database: real runs of small programs, in both modes, ended in
every way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferred,
    mask_secret,
)
from airflow.sdk import DAG

from allaboard import TrainingJob
from allaboard.backends.local.backend import LocalBackend
from allaboard.runs.observation import Owner
from allaboard.runs.status import state_of
from allaboard_provider import defaults, plugin
from allaboard_provider.errors import PlaceFailed, RunTakenOver, TaskTimedOut
from allaboard_provider.identity import on_worker
from allaboard_provider.operators._lifecycle import TaskTry
from allaboard_provider.operators.train import TrainingJobOperator
from allaboard_provider.pages import unpack
from allaboard_provider.triggers.polling import SETTLE
from tests.provider.building import StateStore, TaskInstance, a_context
from tests.provider.runs import only_run, stop
from tests.provider.versioned import TaskDeferralError, TaskDeferralTimeout, deserialize, serialize
from tests.waiting import wait_for

QUICK = [
    "python",
    "-c",
    "from allaboard.inside import report, result; report(3, 3, loss=0.5); result(loss=0.5)",
]
HANGS = ["python", "-c", "import time; print('hangs', flush=True); time.sleep(300)"]
RAISES = ["python", "-c", "print('before'); raise ValueError('the learning rate is not right')"]


def an_operator(command: list[str] = QUICK, **fields: Any) -> TrainingJobOperator:
    job = fields.pop("job", {"name": "small", "command": command, "policy": {"restart": "never"}})
    return TrainingJobOperator(
        task_id="train", job=job, allaboard_conn_id=None, **{"deferrable": False, **fields}
    )


def deferred(operator: TrainingJobOperator, context: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferral:
        operator.execute(context)
    return deferral.value


def event_of(deferral: TaskDeferred, status: str = "ended", **more: Any) -> dict[str, Any]:
    """What the trigger of a deferral would fire."""
    event: dict[str, Any] = deferral.trigger._event(status, **more)
    return event


# --- the job
# ----------------------------------------------------------------------------------------------------------


def test_a_job_becomes_its_plain_mapping_in_the_order_of_its_fields() -> None:
    expected = {"name": "a", "command": ["b"], "workers": 2}
    for job in (
        TrainingJob(workers=2, command=["b"], name="a"),
        {"workers": 2, "command": ["b"], "name": "a"},
    ):
        operator = an_operator(job=job)
        assert operator.job == expected and list(operator.job) == list(expected)
        assert json.loads(json.dumps(operator.job)) == expected


def test_every_text_in_a_job_is_a_template_and_numbers_may_be_text() -> None:
    job = TrainingJob(
        name="{{ params.name }}",
        command=["python", "train.py", "--epochs={{ params.epochs }}"],
        workers="{{ params.workers }}",
        policy={"backoff_limit": "{{ params.workers }}.0", "suspend": "{{ params.suspend }}"},
    )
    operator = an_operator(job=job)
    operator.render_template_fields({"params": {"name": "a", "epochs": 3, "workers": 4, "suspend": False}})
    read = operator.training_job()
    assert read.get("command") == ["python", "train.py", "--epochs=3"]
    assert (read.name, read.get("workers")) == ("a", 4)
    assert read.get("policy") == {"backoff_limit": 4, "suspend": False}


@pytest.mark.parametrize("name", ["job.yaml", "job.yml", "job.json", "{{ params.which }}.yaml"])
def test_a_whole_text_that_ends_like_a_job_file_is_one_relative_to_the_dag_file(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / name.replace("{{ params.which }}", "x")).write_text(
        '{"name": "a", "command": ["b"]}'
    )
    with DAG("files") as dag:
        operator = an_operator(job=f"jobs/{name}")
    dag.fileloc = str(tmp_path / "dag.py")
    operator.render_template_fields({"params": {"which": "x"}})
    read = operator.training_job()
    assert read.name == "a" and read.folder == str(tmp_path / "jobs")


def test_a_manifest_is_a_job_too(tmp_path: Path) -> None:
    trains = {"name": "jax", "image": "x", "command": QUICK[:2], "args": QUICK[2:]}
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "JAXJob",
        "metadata": {"name": "digits", "namespace": "team"},
        "spec": {"jaxReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [trains]}}}}},
    }
    assert an_operator(job=manifest).execute(a_context())["state"] == "succeeded"
    assert an_operator(job=manifest).training_job().source == "jaxjob"
    manifest["spec"]["nprocPerNode"] = 2  # type: ignore[index]
    with pytest.raises(AirflowFailException, match=r"spec\.nprocPerNode"):
        an_operator(job=manifest).execute(a_context())


def test_a_mapping_that_a_template_made_into_text_is_read() -> None:
    for text in ('{"name": "a", "command": ["b"]}', "{'name': 'a', 'command': ['b']}"):
        assert an_operator(job=text).training_job().as_mapping() == {"name": "a", "command": ["b"]}


def test_members_start_in_the_folder_of_the_dag_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from allaboard.inside import result; result(here=__file__)")
    with DAG("folders") as dag:
        operator = an_operator(["python", "train.py"])
    dag.fileloc = str(tmp_path / "dag.py")
    assert operator.execute(a_context())["state"] == "succeeded"


@pytest.mark.parametrize(
    "job",
    [
        {"nam": "a", "comand": ["b"], "workers": 0},
        "no such file.yaml",
        "not a mapping",
        {"name": "a", "command": ["no-such-program-at-all"]},
        {"name": "a", "command": ["python", "no_such_script.py"]},
    ],
    ids=["fields", "file", "text", "program", "script"],
)
def test_bad_input_is_never_retried_and_starts_nothing(job: Any) -> None:
    with pytest.raises(AirflowFailException) as failure:
        an_operator(job=job).execute(a_context())
    assert "Traceback" not in str(failure.value)
    assert LocalBackend().list() == []


def test_all_that_is_wrong_with_a_job_is_said_at_once() -> None:
    with pytest.raises(AirflowFailException) as failure:
        an_operator(job={"nme": "a", "comand": ["b"], "workers": 0}).execute(a_context())
    text = str(failure.value)
    assert (
        "did you mean 'name'" in text and "did you mean 'command'" in text and "workers: 0 is too few" in text
    )


# --- how it ends
# ------------------------------------------------------------------------------------------------------


def test_the_result_is_the_status_without_its_members() -> None:
    context = a_context()
    result = an_operator().execute(context)
    assert result["state"] == "succeeded" and result["metrics"] == {"loss": 0.5}
    assert result["progress"] == {"step": 3, "total": 3, "lost_steps": 0}
    assert "members" not in result and json.loads(json.dumps(result)) == result
    assert context["ti"].xcoms["allaboard_run"]["run"] == result["run"]


def test_a_failure_says_why_and_where_to_look() -> None:
    with pytest.raises(AirflowException) as failure:
        an_operator(RAISES).execute(a_context())
    assert not isinstance(failure.value, AirflowFailException)
    assert "ValueError: the learning rate is not right" in str(failure.value)
    assert f"allaboard logs {only_run().run}" in str(failure.value)


def test_the_last_fifty_lines_of_the_first_failing_member_are_logged() -> None:
    code = "import sys, time\nfor n in range(70): print('line', n, flush=True)\nsys.exit(3)"
    waits = "import time; time.sleep(300)"
    groups = {"master": {"command": ["python", "-c", waits]}, "worker": {"command": ["python", "-c", code]}}
    job = {"name": "two", "groups": groups, "policy": {"restart": "never"}}
    logged = lines_logged(an_operator(job=job, get_logs=False), AirflowException)
    assert "the last lines of worker-0, which failed first:" in logged
    assert "  line 69" in logged and "  line 20" in logged and "  line 19" not in logged


def test_a_restart_is_a_warning_with_the_traceback_of_the_try_that_failed(tmp_path: Path) -> None:
    mark = str(tmp_path / "once")
    code = f"import os, time\nif not os.path.exists({mark!r}):\n  open({mark!r}, 'x'); raise KeyError('x')"
    job = {
        "name": "small",
        "command": ["python", "-c", f"{code}\ntime.sleep(1)"],
        "policy": {"restart": "on_failure", "backoff_limit": 1},
    }
    logged = lines_logged(an_operator(job=job, get_logs=False), None, "warning")
    assert logged[0].endswith("master-0 exited with 1 and is started again, restart 1; its last lines:")
    assert logged[1] == "  Traceback (most recent call last):" and logged[-1] == "  KeyError: 'x'"


def test_what_an_attempt_before_reached_is_not_told_as_progress_of_the_next(tmp_path: Path) -> None:
    says = "from allaboard.inside import report; report(3, 9, loss=0.5); "
    ends = "import os, sys, time; time.sleep(1); sys.exit(os.environ['ALLABOARD_ATTEMPT'] == '1')"
    job = {"name": "small", "command": ["python", "-c", says + ends], "policy": {"restart": "never"}}
    ti = TaskInstance(max_tries=1)
    assert any("step 3/9" in line for line in lines_logged(an_operator(job=job), AirflowException, ti=ti))
    silent = {**job, "command": ["python", "-c", ends]}
    assert not any("step" in line for line in lines_logged(an_operator(job=silent), None, ti=TaskInstance()))


def lines_logged(
    operator: TrainingJobOperator,
    error: type[BaseException] | None,
    only: str | None = None,
    ti: TaskInstance | None = None,
) -> list[str]:
    """What the operator says in its log (at the level ``only``) until it raises ``error``, or has ended."""
    logged: list[str] = []

    class Log:
        def __getattr__(self, level: str) -> Callable[..., None]:
            def say(text: str, *arguments: Any, **_: Any) -> None:
                if only in (None, level):
                    logged.append(text % arguments if arguments else text)

            return say

    task_try = TaskTry(operator, a_context(ti))
    task_try.log = Log()  # type: ignore[assignment]
    with pytest.raises(error) if error is not None else nullcontext():
        task_try.begin()
    return logged


def test_a_program_that_a_retry_cannot_mend_is_not_retried() -> None:
    # Found before the start where it can be; here only the member itself finds out.
    with pytest.raises(AirflowFailException, match="exited with 127"):
        an_operator(["sh", "-c", "no-such-program-at-all"]).execute(a_context())


def test_a_run_that_a_person_stopped_is_not_started_again_by_a_retry() -> None:
    operator, context = an_operator(HANGS, deferrable=True), a_context()
    deferral = deferred(operator, context)
    stop(only_run(), by="ann@lab")
    with pytest.raises(AirflowFailException, match="by ann@lab: the test is over") as failure:
        operator.execute_complete(context, event_of(deferral))
    assert "exited" not in str(failure.value)


@pytest.mark.thorough
def test_attempts_of_the_policy_are_made_by_the_worker_in_both_modes() -> None:
    once = (
        "import os, time; os.environ['ALLABOARD_ATTEMPT'] == '1' and os.kill(os.getpid(), 9); time.sleep(3)"
    )
    # The second attempt lasts: a task finds one that has ended by then, and does not defer for it.
    job = {"name": "small", "command": ["python", "-c", once], "policy": {"restart": "never", "attempts": 2}}
    result = an_operator(job=job).execute(a_context())
    assert (result["state"], result["attempt"]) == ("succeeded", 2)

    operator, context = an_operator(job=job, deferrable=True), a_context(TaskInstance(task_id="other"))
    first = deferred(operator, context)
    run = first.trigger.run_name
    wait_for(lambda: state_of(LocalBackend().observe(run)).is_final)
    with pytest.raises(TaskDeferred) as second:
        operator.execute_complete(context, event_of(first))
    assert second.value.trigger.attempt == 2
    wait_for(lambda: state_of(LocalBackend().observe(run)).is_final)
    assert operator.execute_complete(context, event_of(second.value))["attempt"] == 2


# --- exactly once
# -----------------------------------------------------------------------------------------------------


def test_a_result_that_airflow_has_accepted_is_taken_and_a_clear_trains_from_scratch() -> None:
    store = StateStore()
    first = an_operator().execute(a_context(store=store))
    again = an_operator().execute(a_context(store=store))
    assert again["run"] == first["run"]
    assert only_run().generation == 2


def test_a_result_that_airflow_has_not_accepted_is_handed_over_by_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin.Listener, "active", True)
    lost, ti = TaskInstance(), TaskInstance()
    first = an_operator().execute(a_context(lost))
    assert an_operator().execute(a_context(ti)) == first  # its worker died with the result in hand
    assert only_run().generation == 1 and not only_run().handed_over
    plugin.Listener().on_task_instance_success("running", ti)
    assert only_run().handed_over


def test_a_next_try_adopts_what_a_dead_worker_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskTry, "_follow", lambda self: None)
    an_operator(HANGS).execute(a_context())
    uid = only_run().uid
    an_operator(HANGS).execute(a_context())
    assert only_run().uid == uid and only_run().attempt == 1


def test_a_next_try_with_another_job_is_refused_while_the_first_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TaskTry, "_follow", lambda self: None)
    an_operator(HANGS).execute(a_context())
    with pytest.raises(AirflowFailException, match="live with another job"):
        an_operator([*HANGS, "--more"]).execute(a_context())


def test_a_run_whose_worker_died_is_kept_while_a_try_is_left_and_given_up_with_the_last_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as dies:
        dies.setattr(TaskTry, "_follow", lambda self: None)
        an_operator(HANGS).execute(a_context(TaskInstance(try_number=1, max_tries=2)))
        assert only_run().owner.kind == "orchestrated"  # type: ignore[union-attr]
    with pytest.raises(AirflowFailException, match="live with another job"):
        an_operator([*HANGS, "--more"]).execute(a_context(TaskInstance(try_number=2, max_tries=2)))
    assert only_run().owner.kind == "attached"  # type: ignore[union-attr]
    assert on_worker(TaskInstance(try_number=3, max_tries=2)).kind == "attached"


def test_a_new_try_stops_what_was_deferred_before_and_starts_another_attempt() -> None:
    deferred(an_operator(HANGS, deferrable=True), a_context())
    uid = only_run().uid
    deferred(an_operator(HANGS, deferrable=True), a_context())
    assert only_run().attempt == 2 and only_run().uid != uid


def test_a_new_try_waits_for_the_end_of_a_run_that_is_being_stopped() -> None:
    stays = (
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: time.sleep(1)); "
        "print('up', flush=True); time.sleep(300)"
    )
    job = {
        "name": "small",
        "command": ["python", "-c", stays],
        "policy": {"restart": "never"},
        "spot": {"grace": "2s"},
    }
    told_to_end = an_operator(job=job)
    told_to_end.on_kill()
    with pytest.raises(AirflowException, match="stopped"):
        told_to_end.execute(a_context(TaskInstance(state="restarting")))
    deferred(an_operator(job=job, deferrable=True), a_context())
    assert only_run().attempt == 2


def test_the_key_is_the_same_for_all_tries_and_differs_by_installation_and_map_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from allaboard_provider.identity import key_of

    def key(**fields: Any) -> str:
        return key_of(a_context(TaskInstance(**fields)))

    assert key(try_number=1) == key(try_number=2)
    assert (
        len({key(), key(map_index=0), key(map_index=1), key(task_id="b"), key(run_id="b"), key(dag_id="b")})
        == 6
    )
    here = key()
    monkeypatch.setenv("AIRFLOW__ALLABOARD__INSTANCE", "another")
    assert key() != here


def test_the_installation_is_named_once_and_every_task_keeps_the_name_that_it_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from allaboard_provider import identity

    kept: dict[str, str] = {}

    class Variable:
        @staticmethod
        def get(key: str, default: Any = None) -> Any:
            return kept.get(key, default)

        @staticmethod
        def set(key: str, value: str, description: str) -> None:
            kept[key] = value

    monkeypatch.delenv("AIRFLOW__ALLABOARD__INSTANCE")
    monkeypatch.setattr(identity, "Variable", Variable)
    store = StateStore()
    first = identity.instance(a_context(store=store))
    assert kept == {"allaboard_instance": first}
    kept["allaboard_instance"] = "made at the same moment by another task"
    assert identity.instance(a_context(store=store)) == first
    assert identity.instance(a_context()) == kept["allaboard_instance"]


# --- deferring
# --------------------------------------------------------------------------------------------------------


def test_a_deferral_carries_plain_json_and_leaves_the_run_to_the_triggerer() -> None:
    context = a_context()
    deferral = deferred(an_operator(HANGS, deferrable=True), context)
    path, arguments = deferral.trigger.serialize()
    assert path == "allaboard_provider.triggers.train.TrainingJobTrigger"
    assert json.loads(json.dumps(arguments)) == arguments
    assert deserialize(serialize(arguments)) == arguments
    assert only_run().owner == Owner(str(context["ti"].id), "deferred", "orchestrated")


def test_a_resumed_worker_takes_the_run_back_and_finishes_as_if_it_had_never_left() -> None:
    operator, context = an_operator(deferrable=True), a_context()
    deferral = deferred(operator, context)
    wait_for(lambda: state_of(only_run()).is_final)
    result = operator.execute_complete(context, event_of(deferral))
    assert result["metrics"] == {"loss": 0.5}
    assert only_run().owner == Owner(str(context["ti"].id), "worker", "attached") and only_run().handed_over


def test_a_run_that_is_over_is_not_waited_for_in_the_triggerer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin.Listener, "active", True)  # the result is never taken
    first = an_operator().execute(a_context())
    assert an_operator(deferrable=True).execute(a_context()) == first


def test_a_deadline_that_passed_while_deferred_stops_the_run() -> None:
    operator = an_operator(HANGS, deferrable=True, execution_timeout=timedelta(minutes=5))
    context = a_context()
    deferral = deferred(operator, context)
    begun = context["ti"].start_date.timestamp()
    assert deferral.trigger.deadline == pytest.approx(begun + 300)
    assert deferral.timeout is not None and timedelta(minutes=5) < deferral.timeout
    with pytest.raises(AirflowTaskTimeout):
        operator.execute_complete(context, event_of(deferral, "timeout"))
    assert state_of(only_run()).value == "stopped"


@pytest.mark.parametrize(
    "error", [TaskDeferralTimeout("Trigger timeout"), TaskDeferralError("Trigger failure")]
)
def test_a_trigger_that_timed_out_or_died_leaves_no_run_behind(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, context = an_operator(HANGS, deferrable=True), a_context()
    deferred(operator, context)
    words = "Trigger timeout" if isinstance(error, TaskDeferralTimeout) else "Trigger failure"
    timed_out = isinstance(error, TaskDeferralTimeout)
    with pytest.raises(TaskTimedOut if timed_out else PlaceFailed) as failure:
        operator.resume_execution("__fail__", {"error": words}, context)
    assert failure.value.run == only_run().run and failure.value.retryable is not timed_out
    assert state_of(only_run()).value == "stopped"


def test_a_run_that_the_triggerer_cannot_see_is_followed_here() -> None:
    operator, context = an_operator(deferrable=True), a_context()
    event = event_of(deferred(operator, context), "elsewhere")
    assert operator.execute_complete(context, event)["state"] == "succeeded"


def test_a_word_of_a_newer_trigger_is_no_reason_to_fail() -> None:
    operator, context = an_operator(deferrable=True), a_context()
    deferral = deferred(operator, context)
    wait_for(lambda: state_of(only_run()).is_final)
    event = event_of(deferral) | {"version": 9, "status": "something new", "more": {"a": 1}}
    assert operator.execute_complete(context, event)["state"] == "succeeded"


def test_a_run_that_somebody_else_took_over_is_left_alone() -> None:
    operator, context = an_operator(HANGS, deferrable=True), a_context()
    deferral = deferred(operator, context)
    deferred(an_operator(HANGS, deferrable=True), a_context())  # cleared meanwhile: a new try
    with pytest.raises(RunTakenOver, match="on attempt 2") as failure:
        operator.execute_complete(context, event_of(deferral))
    assert (failure.value.code, failure.value.run) == ("taken_over", only_run().run)
    assert not state_of(only_run()).is_final


# --- the first seconds
# --------------------------------------------------------------------------------------------------------

SHORT = ["python", "-c", "import time; from allaboard.inside import result; time.sleep(1); result(loss=0.5)"]


def test_a_run_that_ends_within_the_first_seconds_is_spared_the_deferral(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__ALLABOARD__DEFER_AFTER", "60")
    begun = time.time()
    result = an_operator(SHORT, deferrable=True).execute(a_context())
    took, seen = time.time() - begun, only_run()
    assert result["metrics"] == {"loss": 0.5}
    assert seen.owner is not None and seen.owner.phase == "worker"
    # 0.1 s on a machine that has nothing else to do.
    assert seen.created and seen.finished and took - (seen.finished - seen.created) < SETTLE / 2


def test_a_run_that_takes_longer_is_deferred_after_them_and_once_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__ALLABOARD__DEFER_AFTER", "1.5")
    operator, context = an_operator(HANGS, deferrable=True), a_context()
    begun = time.monotonic()
    deferral = deferred(operator, context)
    assert time.monotonic() - begun >= 1.5
    monkeypatch.setenv("AIRFLOW__ALLABOARD__DEFER_AFTER", "3600")
    with pytest.raises(TaskDeferred):  # for the worker had something to do; the deferral was paid for
        operator.execute_complete(context, event_of(deferral, "act"))


@pytest.mark.parametrize("state", ["failed", "restarting"])
def test_a_task_that_is_ended_in_its_first_seconds_stops_its_run(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ALLABOARD__DEFER_AFTER", "3600")
    operator = an_operator(HANGS, deferrable=True)
    operator.on_kill()
    with pytest.raises(AirflowException, match="stopped"):
        operator.execute(a_context(TaskInstance(state=state, max_tries=1)))
    assert state_of(only_run()).value == "stopped"


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan", "5m"])
def test_seconds_that_are_no_number_are_refused_with_the_name_of_the_option(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ALLABOARD__DEFER_AFTER", text)
    with pytest.raises(PlaceFailed, match=r"\[allaboard\] defer_after is .*0 defers at once"):
        an_operator(deferrable=True).execute(a_context())
    assert LocalBackend().list() == []


def test_a_site_that_says_nothing_follows_for_as_long_as_a_deferral_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AIRFLOW__ALLABOARD__DEFER_AFTER")
    assert defaults.defer_after() == defaults.DEFER_AFTER == SETTLE


# --- workers that are told to end
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "tries_left", "ends"),
    [
        ("failed", 1, "stopped"),
        ("success", 1, "stopped"),
        ("restarting", 1, "stopped"),
        ("skipped", 1, "stopped"),
        ("running", 1, "goes on"),
        ("running", 0, "stopped"),
    ],
)
def test_a_worker_told_to_end_asks_why_before_it_stops_anything(
    state: str, tries_left: int, ends: str
) -> None:
    operator = an_operator(HANGS)
    operator.on_kill()
    with pytest.raises(AirflowException, match=ends):
        operator.execute(a_context(TaskInstance(state=state, max_tries=tries_left)))
    assert state_of(only_run()).value == ("stopped" if ends == "stopped" else "running") or ends == "goes on"
    assert state_of(only_run()).is_final == (ends == "stopped")


def test_nothing_that_a_task_leaves_holds_a_secret_that_airflow_knows() -> None:
    """Under names that say nothing, and in the name of a metric; the snapshot is compressed."""
    mask_secret("hunter2hunter2")
    says = "from allaboard.inside import result; print('got hunter2hunter2'); result(hunter2hunter2=1.0)"
    job = {"name": "small", "command": ["python", "-c", says], "environment": {"GREETING": "hunter2hunter2"}}
    ti = TaskInstance()
    result = an_operator(job=job).execute(a_context(ti))
    page = unpack(ti.xcoms["allaboard_page"])
    assert page is not None and "got ***" in json.dumps(page)
    assert "hunter2hunter2" not in json.dumps([result, page, ti.xcoms])

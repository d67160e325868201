"""What happens to a training when something happens to its task, under a real `airflow standalone`.

Each test is a row of "what fires": a person marks, clears or fails; a limit passes; a task dies; in
test_followers a worker or a triggerer is killed, told to end, or frozen. The promise is the same in all: what
a person or a limit ends is stopped, with every process of it; what only loses its follower goes on; there are
never two, and what is tried again resumes.
"""

from __future__ import annotations

import signal
from datetime import UTC, datetime

import pytest

from allaboard import State, TrainingJob
from allaboard.backends.base import Plan
from allaboard.runs.observation import Owner
from allaboard.runs.status import state_of
from dags_examples.own_airflow import ApiError, is_alive, send
from tests.provider.live import Live, Run, until
from tests.provider.versioned import needs_retry_policies

pytestmark = [
    pytest.mark.airflow_live,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]

PASSED_OVER = "it is not the one that is waited for"


def steps_of(run: Run, attempt: int) -> int:
    """The step from which an attempt began."""
    return max(start.step for start in run.starts() if start.attempt == attempt)


def resumed_elsewhere_than_zero(run: Run, attempt: int) -> None:
    until(
        "a further attempt has begun", lambda: any(s.attempt == attempt and s.rank == 0 for s in run.starts())
    )
    assert steps_of(run, attempt) > 0


def attempts(run: Run) -> set[int]:
    return {start.attempt for start in run.starts()}


# --- a run that goes well
# ---------------------------------------------------------------------------------------------


def test_a_deferred_training_succeeds_and_leaves_its_status_and_its_output(live: Live) -> None:
    run = live.start("held")
    run.wait_watched()
    until("rank 0's output is in the task log while deferred", lambda: "rank 0 works at step 10" in run.log())
    assert run.task()["state"] == "deferred"
    run.finish()
    run.wait_task("success")
    status = run.xcom()
    assert status["state"] == "succeeded" and status["metrics"]["steps"] > 0
    assert "members" not in status and status["checkpoints"]["latest"]
    assert run.xcom("allaboard_run")["run"] == status["run"]
    log = run.log()
    assert log.count("rank 0 works at step 10\n") == 1 and "rank 1" not in log
    assert run.record().handed_over
    run.wait_gone()


def test_a_synchronous_training_is_no_different(live: Live) -> None:
    run = live.start("held_sync")
    run.wait_started()
    until("rank 0's output is in the task log", lambda: "rank 0 works at step 10" in run.log())
    run.finish()
    run.wait_task("success")
    status = run.xcom()
    assert status["state"] == "succeeded" and status["checkpoints"]["latest"] and "members" not in status
    assert run.record().handed_over


def overhead(run: Run) -> float:
    """Seconds that a task took longer than its training."""
    task, seen = run.wait_task("success"), run.observe()
    begun, ended = (datetime.fromisoformat(task[name]) for name in ("start_date", "end_date"))
    assert seen.created is not None and seen.finished is not None
    return (ended - begun).total_seconds() - (seen.finished - seen.created)


def test_a_training_of_seconds_is_spared_the_deferral(live: Live) -> None:
    runs = [live.start(dag) for dag in ("short", "short_deferred")]
    followed, deferred = map(overhead, runs)
    print(f"a task takes longer than its training: {followed:.1f} s, and {deferred:.1f} s where it defers")
    assert "DEFERRED" not in runs[0].log() and "DEFERRED" in runs[1].log()
    # Beginning and end of a task are parts of both, and slow on a busy machine.
    assert followed + 5 < deferred


def test_a_training_that_takes_longer_is_deferred_after_its_first_seconds(live: Live) -> None:
    run = live.start("held_first")
    run.wait_started()
    run.wait_watched()
    begun, now = datetime.fromisoformat(run.task()["start_date"]), datetime.now(UTC)
    assert (now - begun).total_seconds() > 10
    run.finish()
    run.wait_task("success")


def test_a_worker_whose_pod_ends_with_it_does_not_defer_a_local_run(live: Live) -> None:
    """By another executor than the default one, in the pod that KubernetesExecutor would make for it."""
    run = live.start("in_a_pod")
    run.wait_started()
    until("the worker says why", lambda: "KubernetesExecutor runs this task in a pod of its own" in run.log())
    step = run.observe().progress.step or 0
    until("it goes on", lambda: (run.observe().progress.step or 0) > step + 20)
    assert run.task()["state"] == "running"
    run.finish()
    run.wait_task("success")
    assert run.record().attempt == 1 and len(run.starts()) == 2


def test_mapped_tasks_are_trainings_of_their_own(live: Live) -> None:
    run = live.start("mapped")
    for n in ("0", "1"):
        run.wait_started(gate=n)
    assert len({record.run for record in run.records()}) == 2
    run.finish("0")
    run.wait_task("success", map_index=0)
    assert run.task(1)["state"] in ("deferred", "running", "scheduled", "queued")
    live.airflow.api("PATCH", run.path(1), {"new_state": "failed"})
    until("the members of the other one are gone", lambda: not any(is_alive(s.pid) for s in run.starts("1")))
    assert run.xcom(map_index=0)["state"] == "succeeded"


def test_a_sweep_ends_with_the_first_that_is_good_enough(live: Live) -> None:
    run = live.start("sweep")
    for n in ("0", "2"):
        run.wait_started(gate=n, members=1)
    for n, state in enumerate(("skipped", "success", "skipped")):
        run.wait_task(state, map_index=n)
    best = run.at("best")
    best.wait_task("success")
    picked = best.xcom()
    assert picked["metrics"] == {"accuracy": 0.95} and picked["sweep"]["failed"] == 0
    assert len({record.job for record in run.records()}) == 3
    for n in ("0", "2"):
        until("its members are gone", lambda n=n: not any(is_alive(s.pid) for s in run.starts(n)))
    assert "has reached what the sweep is for: accuracy" in run.log(map_index=0)


def test_a_decorated_function_trains_with_the_results_of_other_tasks(live: Live) -> None:
    run = live.start("decorated")
    run.wait_task("success", map_index=0)
    run.wait_task("success", map_index=1)
    metrics = [run.xcom(map_index=n)["metrics"] for n in (0, 1)]
    assert metrics[0] == {"sum": 3, "world": 2, "run_id": run.name}
    assert metrics[1]["sum"] == 7


@pytest.mark.parametrize("dag", ["from_file", "from_text"])
def test_a_hostile_conf_stays_one_word_of_a_job_that_is_a_file_or_a_text(live: Live, dag: str) -> None:
    note = 'a", "command": ["touch", "owned"], "x": "{{ 7 * 7 }}'
    run = live.start(dag, note=note)
    run.wait_started(1)
    run.finish()
    run.wait_task("success")
    job = run.task()["rendered_fields"]["job"]
    assert job["command"] == ["python", "gated.py", run.name, note]
    assert run.record().spec["command"] == job["command"]


# --- a person acts
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_deferred_task_stops_the_training(live: Live, state: str) -> None:
    run = live.start("held")
    run.wait_watched()
    run.mark(state)
    run.wait_gone()
    run.wait_training("stopped")
    stop = run.observe().stop
    assert stop is not None and f"marked {state}" in stop.reason
    assert run.task()["state"] == state


def test_clearing_a_deferred_task_stops_the_training_and_a_new_attempt_resumes(live: Live) -> None:
    run = live.start("held")
    run.wait_watched()
    run.wait_saved()
    first = run.pids()
    run.clear()
    resumed_elsewhere_than_zero(run, 2)
    assert not any(is_alive(pid) for pid in first), "two trainings at once"
    run.finish()
    run.wait_task("success")
    assert run.record().attempt == 2 and attempts(run) == {1, 2}


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_task_that_no_triggerer_watches_yet_stops_the_training(live: Live, state: str) -> None:
    with live.frozen_triggerer():
        run = live.start("held")
        run.wait_task("deferred")
        run.wait_started()
        run.mark(state)
        run.wait_gone()
    run.wait_training("stopped")


def test_clearing_a_task_that_no_triggerer_watches_yet_resumes(live: Live) -> None:
    with live.frozen_triggerer():
        run = live.start("held")
        run.wait_task("deferred")
        run.wait_saved()
        first = run.pids()
        run.clear()
        resumed_elsewhere_than_zero(run, 2)
        assert not any(is_alive(pid) for pid in first)
    run.finish()
    run.wait_task("success")


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_the_dag_run_stops_the_training(live: Live, state: str) -> None:
    run = live.start("held")
    run.wait_watched()
    run.patch(state)
    run.wait_gone()
    run.wait_training("stopped")
    stop = run.observe().stop
    assert stop is not None and f"marked {state}" in stop.reason
    assert run.task()["state"] == state


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_the_dag_run_stops_a_training_that_no_triggerer_watches_yet(live: Live, state: str) -> None:
    with live.frozen_triggerer():
        run = live.start("held")
        run.wait_task("deferred")
        run.wait_started()
        run.patch(state)
        run.wait_gone()
    run.wait_training("stopped")


def test_marking_the_dag_run_of_a_synchronous_task_stops_the_training(live: Live) -> None:
    run = live.start("held_sync")
    run.wait_started()
    run.patch("success")
    run.wait_gone()
    run.wait_training("stopped")


def test_pausing_the_dag_or_deleting_its_run_leaves_the_training_alone(live: Live) -> None:
    run = live.start("held")
    run.wait_watched()
    live.airflow.api("PATCH", "/dags/held", {"is_paused": True})
    with pytest.raises(ApiError) as refusal:
        live.airflow.api("DELETE", f"/dags/held/dagRuns/{run.name}")
    assert refusal.value.status == 409
    step = run.observe().progress.step or 0
    until("it goes on", lambda: (run.observe().progress.step or 0) > step + 20)
    live.airflow.api("PATCH", "/dags/held", {"is_paused": False})
    run.finish()
    run.wait_task("success")


def test_marking_a_synchronous_task_failed_stops_the_training(live: Live) -> None:
    run = live.start("held_sync")
    run.wait_started()
    run.mark("failed")
    run.wait_gone()
    run.wait_training("stopped")
    assert run.task()["state"] == "failed"


def test_clearing_a_synchronous_task_stops_the_training_and_a_new_attempt_resumes(live: Live) -> None:
    run = live.start("held_sync")
    run.wait_started()
    run.wait_saved()
    first = run.pids()
    run.clear()
    resumed_elsewhere_than_zero(run, 2)
    assert not any(is_alive(pid) for pid in first), "two trainings at once"
    run.finish()
    run.wait_task("success")
    assert attempts(run) == {1, 2}


# --- limits
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dag", ["timed", "timed_sync"])
def test_execution_timeout_stops_the_training_in_both_modes(live: Live, dag: str) -> None:
    run = live.start(dag)
    run.wait_started()
    run.wait_task("failed")
    run.wait_gone()
    stop = run.observe().stop
    run.wait_training("stopped")
    assert stop is not None and "execution_timeout" in stop.reason
    assert "AirflowTaskTimeout" in run.log() or "execution_timeout" in run.log()


def test_dagrun_timeout_stops_the_training(live: Live) -> None:
    run = live.start("limited")
    run.wait_started()
    run.wait_gone()
    run.wait_training("stopped")
    assert run.task()["state"] in ("skipped", "failed")


def test_a_deferral_that_nobody_looks_after_ends_by_airflows_own_timer(live: Live) -> None:
    run = live.start("forgotten")
    run.wait_started()
    run.wait_task("failed")
    run.wait_gone()
    stop = run.observe().stop
    assert stop is not None and "nobody followed it" in stop.reason


# --- retries
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dag", ["retried", "retried_sync"])
def test_a_retry_is_a_new_attempt_that_resumes(live: Live, dag: str) -> None:
    run = live.start(dag)
    run.wait_saved()
    run.fail(1)
    resumed_elsewhere_than_zero(run, 2)
    first = run.log(1)
    assert "RuntimeError: this attempt was told to fail" in first
    assert "the last lines of" in first and "allaboard logs" in first
    run.finish()
    run.wait_task("success")
    assert run.record().attempt == 2 and run.xcom()["attempt"] == 2


@needs_retry_policies
def test_a_policy_retries_what_may_pass_and_never_a_bug(live: Live) -> None:
    run = live.start("judged")
    first = run.wait_started()
    run.wait_saved()
    send(first[0].pid, signal.SIGKILL)
    resumed_elsewhere_than_zero(run, 2)
    passing = run.log(1)
    assert "retried, because the failure may be temporary (killed_externally: " in passing
    run.fail(2)
    run.wait_task("failed")
    assert run.task()["try_number"] == 2, "a bug was tried again, though three retries are allowed"
    assert attempts(run) == {1, 2}
    last = run.log(2)
    assert "not retried, because another try would repeat the failure (python_exception: " in last
    assert "RuntimeError: this attempt was told to fail" in last
    run.wait_gone()


# --- tasks die
# --------------------------------------------------------------------------------------------------------


def test_a_worker_killed_between_launch_and_deferral_is_replaced_by_one_that_adopts(live: Live) -> None:
    run = live.start("dies_after_launch")
    run.wait_started()
    uid = run.record().uid
    until("the second try follows", lambda: run.task()["try_number"] == 2)
    run.wait_task("deferred")
    run.finish()
    run.wait_task("success")
    assert run.record().uid == uid and len(run.starts()) == 2, "it was started again"


def test_a_worker_killed_with_the_result_in_hand_is_replaced_by_one_that_hands_it_over(live: Live) -> None:
    run = live.start("dies_with_the_result")
    run.wait_started()
    run.finish()
    run.wait_task("success")
    assert run.task()["try_number"] == 2
    assert run.xcom()["state"] == "succeeded"
    assert len(run.starts()) == 2 and run.record().attempt == 1, "it trained again"
    assert run.record().handed_over


def test_a_synchronous_task_killed_is_replaced_by_one_that_adopts(live: Live) -> None:
    run = live.start("retried_sync")
    run.wait_started()
    uid = run.record().uid
    send(run.wait_task("running")["pid"], signal.SIGKILL)
    until(
        "the second try follows", lambda: run.task()["try_number"] == 2 and run.task()["state"] == "running"
    )
    until("the second try has adopted it", lambda: "adopted" in run.log(2))
    run.finish()
    run.wait_task("success")
    assert run.record().uid == uid and len(run.starts()) == 2, "it was started again"


# --- sensors
# ----------------------------------------------------------------------------------------------------------


def test_a_sensor_passes_over_what_ended_before_its_dag_run_and_takes_what_ends_during_it(live: Live) -> None:
    """Deferred or not. The same words with ``since=None`` mean the newest end, whenever it was."""

    def train(key: str) -> str:
        job = TrainingJob(name="nightly", command=["python", "-c", "pass"])
        name: str = live.backend.launch(Plan(job, key), Owner("tests", "worker", "orchestrated")).run
        until("it has ended", lambda: state_of(live.backend.observe(name)) is State.SUCCEEDED)
        return name

    old = train("last night")
    run = live.start("nightly")
    run.at("takes_any").wait_task("success")
    assert run.at("takes_any").xcom()["run"] == old
    for task in ("defers", "stays"):
        until(f"{task} has passed it over", lambda task=task: PASSED_OVER in run.at(task).log())  # type: ignore[misc]
    run.at("defers").wait_task("deferred")
    run.at("stays").wait_task("running")
    new = train("tonight")
    for task in ("defers", "stays"):
        run.at(task).wait_task("success")
        assert run.at(task).xcom()["run"] == new != old


def test_a_sensor_ends_at_its_limit_in_every_mode(live: Live) -> None:
    run = live.start("waits_in_vain")
    dag_run = live.airflow.api("GET", f"/dags/{run.dag}/dagRuns/{run.name}")
    begun = datetime.fromisoformat(dag_run["queued_at"])
    ends = {"timeout": "failed", "limit": "failed", "rescheduled": "failed", "poked": "failed"}
    for task, state in (ends | {"skipped": "skipped"}).items():
        ended = run.at(task).wait_task(state)
        took = datetime.fromisoformat(ended["end_date"]) - begun
        assert 18 < took.total_seconds() < 120, "and not the days of a sensor's own default"
        words = "timeout of 20 s has passed" if task in ("timeout", "skipped") else "0:00:20"
        assert words in run.at(task).log() or task == "poked"

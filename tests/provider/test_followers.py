"""What happens to a training when its follower is lost, under a real `airflow standalone`: a worker is killed
with its task or told to end; a trigger dies; a triggerer is killed, told to end, or frozen.

The promise is that of test_lifecycle: the training goes on, there are never two, and what nobody may follow
any more is stopped, with every process of it.
"""

from __future__ import annotations

import re
import signal

import pytest

from dags_examples.own_airflow import is_alive, parents, send, wait_gone
from tests.provider.live import Live, Run, until

pytestmark = [
    pytest.mark.airflow_live,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]


def kill_worker_and_task(run: Run) -> None:
    """With -9, so that Airflow finds out by its heartbeat time-out alone."""
    task = run.wait_task("running")["pid"]
    for pid in (parents()[task], task):
        send(pid, signal.SIGKILL)


def test_a_worker_killed_with_its_task_leaves_the_training_to_the_next_try(live: Live) -> None:
    """However long that takes: here many times as long as an attached run is kept."""
    run = live.start("left_alone")
    run.wait_saved()
    uid = run.record().uid
    kill_worker_and_task(run)
    until(
        "the second try follows", lambda: run.task()["try_number"] == 2 and run.task()["state"] == "running"
    )
    until("the second try has adopted it", lambda: "adopted" in run.log(2))
    run.finish()
    run.wait_task("success")
    assert run.record().uid == uid and run.record().stop is None
    assert len(run.starts()) == 2, "it was started again"


def test_the_last_try_killed_with_its_worker_leaves_nothing_running(live: Live) -> None:
    run = live.start("left_at_last")
    run.wait_started()
    kill_worker_and_task(run)
    run.wait_gone()
    run.wait_training("stopped")
    stop = run.observe().stop
    assert stop is not None and "no client followed" in stop.reason


@pytest.mark.parametrize(
    "what",
    [
        "the DAG run failed",
        pytest.param("the task failed", marks=pytest.mark.endurance),
        pytest.param("the DAG run success", marks=pytest.mark.endurance),
    ],
)
def test_a_next_try_that_a_person_forbids_leaves_nothing_running(live: Live, what: str) -> None:
    """By marking it while its killed first try has left the run to the second."""
    run = live.start("left_alone")
    run.wait_started()
    kill_worker_and_task(run)
    run.wait_task("up_for_retry")
    assert run.training_state() == "running"
    thing, state = what.rsplit(" ", 1)
    (run.mark if thing == "the task" else run.patch)(state)
    run.wait_gone()
    run.wait_training("stopped")


def test_a_drained_worker_leaves_its_training_to_the_next_try(live: Live) -> None:
    run = live.start("retried_sync")
    run.wait_started()
    uid = run.record().uid
    task = run.wait_task("running")["pid"]
    until("rank 0's output is in the task log", lambda: "rank 0 works" in run.log())
    send(parents()[task], signal.SIGTERM)
    until("the second try follows", lambda: run.task()["try_number"] == 2)
    assert "goes on" in run.log(1)
    run.finish()
    run.wait_task("success")
    assert run.record().uid == uid and len(run.starts()) == 2 and run.record().stop is None


# --- triggers and triggerers misbehave
# --------------------------------------------------------------------------------


def test_a_trigger_that_dies_takes_its_training_with_it(live: Live) -> None:
    run = live.start("raising")
    run.wait_started()
    run.wait_task("failed")
    run.wait_gone()
    stop = run.observe().stop
    # The scheduler, whose DAG run fails with the task, may come first; both are true.
    assert stop is not None and re.search("trigger failed|DAG run was failed", stop.reason)


def test_a_run_that_the_triggerer_cannot_see_is_followed_by_the_worker(live: Live) -> None:
    """And the trigger's on_kill, which Airflow calls after its word because it lingers, stops nothing."""
    run = live.start("elsewhere")
    run.wait_started()
    until("the worker follows", lambda: "follows it to its end" in run.log())
    step = run.observe().progress.step or 0
    until("it goes on", lambda: (run.observe().progress.step or 0) > step + 100)
    run.finish()
    run.wait_task("success")
    assert run.record().stop is None and len(run.starts()) == 2


@pytest.mark.parametrize("order", ["the task failed", "the task success", "the DAG run failed"])
def test_a_trigger_that_nobody_helps_hears_the_order(live: Live, order: str) -> None:
    """As on a cluster that the API server cannot reach. Before Airflow 3.3 nothing calls its on_kill."""
    run = live.start("alone")
    run.wait_started()
    run.wait_watched()
    thing, state = order.rsplit(" ", 1)
    (run.mark if thing == "the task" else run.patch)(state)
    assert wait_gone(run.pids(), 30), "members live on"
    until("the trigger says so", lambda: ": stopped, because " in run.log())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["told to end", "killed"])
def test_a_triggerer_that_ends_leaves_the_training_alone(live: Live, how: signal.Signals) -> None:
    run = live.start("held")
    run.wait_watched()
    uid = run.record().uid
    until("its first words are told", lambda: "rank 0 works at step 10\n" in run.log())
    live.replace_triggerer(how)
    step = run.observe().progress.step or 0
    until("the new triggerer tells", lambda: f"rank 0 works at step {(step // 10 + 3) * 10}" in run.log())
    run.finish()
    run.wait_task("success")
    assert run.record().uid == uid and len(run.starts()) == 2 and run.record().stop is None
    assert run.log().count("rank 0 works at step 10\n") == 1, "a line appears twice"


def test_a_frozen_triggerer_that_wakes_kills_nothing_that_another_one_watches(live: Live) -> None:
    run = live.start("held")
    run.wait_watched()
    owner = run.task()["triggerer_job"]["id"]
    first = live.triggerer()
    other = live.another_triggerer()
    with live.frozen_triggerer(first):
        until(
            "the other triggerer takes over",
            lambda: (run.task()["triggerer_job"] or {"id": owner})["id"] != owner,
        )

    def told() -> bool:
        """It asked Airflow; on a busy machine the answer may come after Airflow has lost its patience with
        it. From 3.4 on Airflow itself tells a trigger that another triggerer has from one that is over.
        """
        log = run.log() + live.airflow.log.read_text(errors="replace")
        words = ("which is no order to end it", "on_kill() timed out", "dropping it without on_kill")
        return any(word in log for word in words)

    until("the first one was told to kill, and did not", told)
    assert is_alive(other) and run.training_state() == "running"
    step = run.observe().progress.step or 0
    until("it goes on", lambda: (run.observe().progress.step or 0) > step + 50)
    run.finish()
    run.wait_task("success")
    assert len(run.starts()) == 2 and run.record().stop is None

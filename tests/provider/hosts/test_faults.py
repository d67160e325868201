"""One queue, several hosts, and what happens at night. In each: never two trainings of one run at once, none
stopped without an order, nothing left running, and the task ends as its run has ended.

What trained is told by the members' own files (`journal`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.provider.hosts.deployment import CONTROL, Deployment, HostRun
from tests.provider.hosts.faults import BOUND, goes_on, marks, times, wait_good_end, wait_settled, wait_taken
from tests.provider.live import until

pytestmark = marks

endurance = pytest.mark.endurance
THRESHOLD = 30.0
"""Seconds without a heartbeat after which another triggerer takes over: Airflow's default."""


def test_a_dag_run_trains_on_each_host(airflow: Deployment) -> None:
    print("ready after", airflow.took)
    airflow.triggerer(CONTROL)
    runs = {host: airflow.run_dag(f"on_{host}_sync") for host in airflow.workers}
    for host, run in runs.items():
        assert run.wait_training().host == host
        run.finish()
    for host, run in runs.items():
        assert run.wait_over() == "success", run.story()
        run.assert_trained_once()
        assert run.task()["hostname"] == host
        assert "succeeded" in run.log(), "the API server reads the log from the worker's host"


# Resumes elsewhere.


@times()
def test_with_the_defaults_a_task_ends_as_its_run(airflow: Deployment, again: int) -> None:
    """Two hosts on one queue, the triggerer on a third one, and the resume lands where the run is not."""
    triggerer = airflow.triggerer(CONTROL)
    triggerer.freeze()
    with airflow.only("east"):
        run = airflow.run_dag("anywhere")
        run.wait_training()
        state = wait_settled(run)
    if state == "deferred":
        with airflow.only("west"):
            triggerer.thaw()
            wait_taken(run)
    wait_good_end(run)
    run.assert_trained_once()


@endurance
@times()
def test_a_run_that_ended_at_home_is_handed_over_elsewhere(airflow: Deployment, again: int) -> None:
    """The triggerer of its host follows it to its end; then the resume lands on the other host."""
    airflow.triggerer("east")
    with airflow.only("east"):
        run = airflow.run_dag("anywhere")
        run.wait_training()
        state = wait_settled(run)
    if state == "deferred":
        until("a triggerer watches", lambda: run.task()["triggerer_job"])
        with airflow.only("west"):
            run.finish()
            wait_taken(run)
    wait_good_end(run)
    run.assert_trained_once()
    assert run.xcom()["state"] == "succeeded"


# A triggerer that freezes.


def of_trigger(logs: Path, run: str) -> list[Path]:
    """The files in which the triggerers of a host log about a DAG run."""
    return list(logs.glob(f"*/run_id={run}/**/*.trigger.*"))


@endurance
@times()
def test_a_triggerer_that_froze_and_wakes_stops_nothing(airflow: Deployment, again: int) -> None:
    """Another one has taken over and fired, for it cannot see the run, and the resume waits in the queue."""
    frozen = airflow.triggerer("east")
    run = airflow.run_dag("on_east")
    run.wait_training()
    assert wait_settled(run) == "deferred"
    until("the triggerer of its host watches", lambda: run.task()["triggerer_job"])
    airflow.triggerer(CONTROL)
    with airflow.only("west"):
        frozen.freeze()
        until("another one has fired", lambda: run.task()["state"] in ("scheduled", "queued"), 240)
        frozen.thaw()
        # The API server reads no longer what this one writes.
        logs = airflow.host("east").folder / "airflow" / "logs"
        taken = "invoking on_kill"
        until(
            "Airflow takes the trigger",
            lambda: any(taken in f.read_text() for f in of_trigger(logs, run.name)),
            300,
        )
        assert goes_on(run, 15), run.story()
    wait_good_end(run)
    run.assert_trained_once()


@endurance
@times()
def test_a_triggerer_that_froze_while_its_run_ended(airflow: Deployment, again: int) -> None:
    frozen = airflow.triggerer("east")
    run = airflow.run_dag("on_east")
    run.wait_training()
    assert wait_settled(run) == "deferred"
    until("a triggerer watches", lambda: run.task()["triggerer_job"])
    frozen.freeze()
    time.sleep(THRESHOLD + 10)
    run.finish()
    time.sleep(2)
    frozen.thaw()
    wait_good_end(run)
    run.assert_trained_once()


# The next try lands elsewhere.


@times()
def test_the_next_try_after_a_killed_worker(airflow: Deployment, again: int) -> None:
    """The worker is killed, its training goes on, and the next try begins on the other host."""
    airflow.triggerer("east")
    with airflow.only("east"):
        run = airflow.run_dag("anywhere_sync")
        run.wait_training(beyond=20)
    airflow.component("east", "worker").kill()
    assert airflow.training("east"), "the training lives on"
    second = run.wait_training(2)
    assert second.host == "west" and second.first_step > 0, run.story()
    wait_good_end(run)


@endurance
@times()
def test_the_next_try_after_a_host_was_lost(airflow: Deployment, again: int) -> None:
    with airflow.only("east"):
        run = airflow.run_dag("anywhere_sync")
        run.wait_training(beyond=20)
    airflow.host("east").crash()
    second = run.wait_training(2, seconds=2 * BOUND)
    assert second.host == "west" and second.first_step > 0, run.story()
    wait_good_end(run)


@endurance
@times()
def test_the_next_try_after_a_host_was_cut_off(airflow: Deployment, again: int) -> None:
    """Its worker and its training live, and see nothing of others but the folder that all hosts share."""
    with airflow.only("east"):
        run = airflow.run_dag("anywhere_sync")
        run.wait_training(beyond=20)
    airflow.host("east").cut()
    second = run.wait_training(2, seconds=2 * BOUND)
    assert second.host == "west" and second.first_step > 0, run.story()
    airflow.host("east").join()
    assert goes_on(run, 30), run.story()
    wait_good_end(run)


@times()
def test_a_cleared_task_goes_on_elsewhere(airflow: Deployment, again: int) -> None:
    """Cleared while deferred; its next try begins on the other host."""
    airflow.triggerer("east")
    with airflow.only("east"):
        run = airflow.run_dag("anywhere")
        run.wait_training(beyond=20)
        assert wait_settled(run) == "deferred"
        until("a triggerer watches", lambda: run.task()["triggerer_job"])
    with airflow.only("west"):
        run.clear()
        second = run.wait_training(2)
    assert second.host == "west" and second.first_step > 0, run.story()
    wait_good_end(run)


@endurance
@times()
def test_a_cleared_task_goes_on_elsewhere_also_from_a_worker(airflow: Deployment, again: int) -> None:
    """Cleared while a worker follows; the worker of that host is busy with other runs then."""
    others = [airflow.run_dag("on_east_sync")]
    with airflow.only("east"):
        run = airflow.run_dag("anywhere_sync")
        run.wait_training(beyond=20)
    others[0].wait_training()
    run.clear()
    run.wait_training(2)
    wait_good_end(run)
    wait_good_end(others[0])
    others[0].assert_trained_once()


# Orders of a person.

ORDERS: dict[str, Callable[[HostRun], None]] = {
    "success": lambda run: run.mark("success"),
    "failed": lambda run: run.mark("failed"),
    "cleared": lambda run: run.clear(),
    "dag_run_failed": lambda run: run.patch("failed"),
}
orders = pytest.mark.parametrize("order", ORDERS)


def obeys(run: HostRun, order: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The training ends within the bound; a clear begins another one."""
    first = run.trainings()[0]
    ORDERS[order](run)
    time.sleep(3)
    meanwhile()
    began = time.monotonic()

    def has_ended() -> bool:
        return all(time.time() - one.last > 2 for one in run.members() if one.training == first)

    until(f"{order}: the training has ended\n", has_ended, BOUND)
    print(f"{order}: ended after {time.monotonic() - began:.0f} s")
    if order == "cleared":
        run.wait_training(2)
        wait_good_end(run)
    else:
        run.wait_quiet(BOUND)
        assert len(run.trainings()) == 1, run.story()
        # Airflow skips what waits in a queue when its DAG run is failed.
        wanted = {"success": ("success",), "failed": ("failed",), "dag_run_failed": ("failed", "skipped")}
        assert run.task()["state"] in wanted[order], run.story()


@endurance
@orders
@times()
def test_an_order_in_the_first_seconds_of_a_deferral(airflow: Deployment, order: str, again: int) -> None:
    """No triggerer has begun the trigger yet."""
    triggerer = airflow.triggerer("east")
    # What a triggerer says of itself counts for a while.
    time.sleep(10)
    triggerer.freeze()
    run = airflow.run_dag("on_east")
    run.wait_training()
    if wait_settled(run) == "deferred":
        assert run.task()["triggerer_job"] is None
    obeys(run, order, meanwhile=triggerer.thaw)


@endurance
@orders
@times()
def test_an_order_while_the_resume_is_queued(airflow: Deployment, order: str, again: int) -> None:
    """A triggerer that cannot see the run has fired, and no worker of its host is free."""
    home = airflow.triggerer("east")
    run = airflow.run_dag("on_east")
    run.wait_training()
    assert wait_settled(run) == "deferred"
    until("a triggerer watches", lambda: run.task()["triggerer_job"])
    with airflow.only("west"):
        home.kill()
        airflow.triggerer(CONTROL)
        until("it has fired", lambda: run.task()["state"] in ("scheduled", "queued"), 240)
        airflow.triggerer("east")
        if order != "cleared":
            obeys(run, order)
            return
        run.clear()
    run.wait_training(2)
    wait_good_end(run)


# What goes on.

PARTS = ("redis", "postgres", "scheduler", "api-server", "dag-processor")


@endurance
@pytest.mark.parametrize("part", PARTS)
@times()
def test_a_part_of_airflow_is_killed_and_comes_back(airflow: Deployment, part: str, again: int) -> None:
    airflow.triggerer("east")
    run = airflow.run_dag("on_east")
    run.wait_training()
    wait_settled(run)
    airflow.component(CONTROL, part).kill()
    time.sleep(5)
    airflow.start_missing()
    assert goes_on(run, 5), run.story()
    wait_good_end(run)
    run.assert_trained_once()


@endurance
@times()
def test_a_triggerer_is_killed_and_comes_back(airflow: Deployment, again: int) -> None:
    triggerer = airflow.triggerer("east")
    run = airflow.run_dag("on_east")
    run.wait_training()
    wait_settled(run)
    triggerer.kill()
    assert goes_on(run, 10), run.story()
    airflow.spawn("east", "triggerer")
    wait_good_end(run)
    run.assert_trained_once()


@endurance
@times()
def test_a_worker_shuts_down_warmly(airflow: Deployment, again: int) -> None:
    """As in a deployment: SIGTERM, and a new worker beside the training, which goes on."""
    run = airflow.run_dag("on_east_sync")
    run.wait_training()
    airflow.component("east", "worker").signal(signal.SIGTERM)
    time.sleep(5)
    assert goes_on(run, 10), run.story()
    run.finish()
    until("the worker has ended", lambda: not airflow.component("east", "worker").runs, 120)
    airflow.start_missing()
    wait_good_end(run)
    run.assert_trained_once()


# What people see.


@endurance
def test_the_pages_tell_of_runs_on_other_hosts(airflow: Deployment) -> None:
    """The API server sees no run folder: the card and the tab read what followers left."""
    airflow.triggerer("east")
    run = airflow.run_dag("on_east")
    run.wait_training()
    wait_settled(run)

    def card() -> object:
        rows = [row for row in airflow.page("/now")["runs"] if row["run_id"] == run.name]
        return rows and rows[0]["state"] == "running" and rows[0]

    until("the card says that it runs", card, 60)
    tab = f"/task/{run.dag}/{run.name}/train/-1"
    until(
        "the tab has the run", lambda: (told := airflow.page(tab)["run"]) and told["state"] == "running", 60
    )
    wait_good_end(run)
    until("the tab has its end", lambda: airflow.page(tab)["run"]["state"] == "succeeded", 60)

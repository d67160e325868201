"""One queue, several hosts, and what happens at night. In each: never two trainings of one run at once, none
stopped without an order, nothing left running, and the task ends as its run has ended.

What trained is told by the members' own files (`journal`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.provider.hosts.deployment import CONTROL, Deployment, HostRun
from tests.provider.hosts.faults import (
    BOUND,
    RUNS,
    end_well,
    few,
    go_on,
    marks,
    train,
    wait_ended,
    wait_settled,
    wait_taken,
    wait_watched,
)
from tests.provider.hosts.namespaces import Component
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


@few
def test_with_the_defaults_a_task_ends_as_its_run(airflow: Deployment, count: int) -> None:
    """Two hosts on one queue, the triggerer on a third one, and the resume lands where the run is not."""
    triggerer = airflow.triggerer(CONTROL)
    triggerer.freeze()
    with airflow.only("east"):
        runs = train(airflow, "anywhere", count)
        states = [wait_settled(run) for run in runs]
    with airflow.only("west"):
        triggerer.thaw()
        for run in [run for run, state in zip(runs, states, strict=True) if state == "deferred"]:
            wait_taken(run)
    end_well(airflow, *runs)


@endurance
def test_a_run_that_ended_at_home_is_handed_over_elsewhere(airflow: Deployment) -> None:
    """The triggerer of its host follows it to its end; then the resume lands on the other host."""
    airflow.triggerer("east")
    # What a triggerer says of itself is known after a while.
    time.sleep(10)
    with airflow.only("east"):
        runs = train(airflow, "anywhere")
        wait_watched(*runs)
    with airflow.only("west"):
        for run in runs:
            run.finish()
        for run in runs:
            wait_taken(run)
    end_well(airflow, *runs)
    assert [run.xcom()["state"] for run in runs] == ["succeeded"] * len(runs)


# A triggerer that freezes.


def took_the_trigger(triggerer: Component, run: HostRun) -> bool:
    """Whether Airflow has taken the trigger of this run from a triggerer, which says so in its own log or in
    the task's. The API server reads no longer what one writes there that has lost its triggers.
    """
    logs = triggerer.host.folder / "airflow" / "logs"
    told = [file.read_text() for file in logs.glob(f"*/run_id={run.name}/**/*.trigger.*")]
    mine = [line for line in triggerer.words().splitlines() if run.name in line]
    return any("invoking on_kill" in text for text in (*told, *mine))


@endurance
def test_a_triggerer_that_froze_and_wakes_stops_nothing(airflow: Deployment) -> None:
    """Another one has taken over and fired, for it cannot see the runs, and the resumes wait in the queue."""
    frozen = airflow.triggerer("east")
    time.sleep(10)
    runs = train(airflow, "on_east")
    wait_watched(*runs)
    airflow.triggerer(CONTROL)
    with airflow.only("west"):
        frozen.freeze()
        for run in runs:
            until(
                "another one has fired", lambda run=run: run.task()["state"] in ("scheduled", "queued"), 240
            )
        frozen.thaw()
        for run in runs:
            until("Airflow takes the trigger", lambda run=run: took_the_trigger(frozen, run), 300)
        go_on(15, *runs)
    end_well(airflow, *runs)


@endurance
def test_a_triggerer_that_froze_while_its_run_ended(airflow: Deployment) -> None:
    frozen = airflow.triggerer("east")
    time.sleep(10)
    runs = train(airflow, "on_east")
    wait_watched(*runs)
    frozen.freeze()
    time.sleep(THRESHOLD + 10)
    for run in runs:
        run.finish()
    time.sleep(2)
    frozen.thaw()
    end_well(airflow, *runs)


# The next try lands elsewhere.


@few
def test_the_next_try_after_a_killed_worker(airflow: Deployment, count: int) -> None:
    """The worker is killed, its trainings go on, and the next tries begin on the other host."""
    airflow.triggerer("east")
    with airflow.only("east"):
        runs = train(airflow, "anywhere_sync", count, beyond=20)
    airflow.component("east", "worker").kill()
    assert airflow.training("east"), "the trainings live on"
    for run in runs:
        second = run.wait_training(2)
        assert second.host == "west" and second.first_step > 0, run.story()
    end_well(airflow, *runs, once=False)


@few
def test_a_cleared_task_goes_on_elsewhere(airflow: Deployment, count: int) -> None:
    """Cleared while deferred; its next try begins on the other host."""
    airflow.triggerer("east")
    time.sleep(10)
    with airflow.only("east"):
        runs = train(airflow, "anywhere", count, beyond=20)
        wait_watched(*runs)
    with airflow.only("west"):
        for run in runs:
            run.clear()
        for run in runs:
            second = run.wait_training(2)
            assert second.host == "west" and second.first_step > 0, run.story()
    end_well(airflow, *runs, once=False)


@endurance
def test_a_cleared_task_goes_on_elsewhere_also_from_a_worker(airflow: Deployment) -> None:
    """Cleared while a worker follows; any host may take the next try."""
    [other] = train(airflow, "on_east_sync", count=1)
    with airflow.only("east"):
        runs = train(airflow, "anywhere_sync", beyond=20)
    for run in runs:
        run.clear()
    for run in runs:
        run.wait_training(2)
    end_well(airflow, *runs, other, once=False)
    other.assert_trained_once()


# Orders of a person.

ORDERS: dict[str, Callable[[HostRun], None]] = {
    "success": lambda run: run.mark("success"),
    "failed": lambda run: run.mark("failed"),
    "cleared": lambda run: run.clear(),
    "dag_run_failed": lambda run: run.patch("failed"),
}


def train_for_orders(airflow: Deployment) -> list[tuple[str, HostRun]]:
    """Five runs for each order; the tests do it twice."""
    orders = [*ORDERS] * (RUNS // 2)
    return list(zip(orders, train(airflow, "on_east", count=len(orders)), strict=True))


def give(orders: list[tuple[str, HostRun]]) -> list[HostRun]:
    """Give each run its order. Those which end by it: a clear begins another training."""
    for order, run in orders:
        ORDERS[order](run)
    return [run for order, run in orders if order != "cleared"]


WANTED = {"success": ("success",), "failed": ("failed",), "dag_run_failed": ("failed", "skipped")}
"""Airflow skips what waits in a queue when its DAG run is failed."""


def all_obeyed(airflow: Deployment, orders: list[tuple[str, HostRun]]) -> None:
    """Each task is in the state of its order, and what was cleared trains again, by itself."""
    cleared = [run for order, run in orders if order == "cleared"]
    for run in cleared:
        run.wait_training(2)
    for order, run in orders:
        if order != "cleared":
            run.wait_quiet(BOUND)
            run.assert_never_two()
            assert len(run.trainings()) == 1, run.story()
            assert run.wait_over() in WANTED[order], run.story()
    end_well(airflow, *cleared, once=False)


@endurance
@pytest.mark.parametrize("again", [0, 1])
def test_orders_in_the_first_seconds_of_a_deferral(airflow: Deployment, again: int) -> None:
    """No triggerer has begun the triggers yet."""
    triggerer = airflow.triggerer("east")
    # What a triggerer says of itself counts for a while.
    time.sleep(10)
    triggerer.freeze()
    orders = train_for_orders(airflow)
    for _, run in orders:
        if wait_settled(run) == "deferred":
            assert run.task()["triggerer_job"] is None
    stopped = give(orders)
    time.sleep(3)
    triggerer.thaw()
    wait_ended("ordered at the beginning of a deferral", stopped)
    all_obeyed(airflow, orders)


@endurance
@pytest.mark.parametrize("again", [0, 1])
def test_orders_while_the_resume_is_queued(airflow: Deployment, again: int) -> None:
    """A triggerer that cannot see the runs has fired, and no worker of their host is free."""
    home = airflow.triggerer("east")
    time.sleep(10)
    orders = train_for_orders(airflow)
    wait_watched(*(run for _, run in orders))
    airflow.triggerer(CONTROL)
    with airflow.only("west"):
        home.kill()
        for _, run in orders:
            until("it has fired", lambda run=run: run.task()["state"] in ("scheduled", "queued"), 240)
        airflow.triggerer("east")
        wait_ended("ordered while queued", give(orders))
    all_obeyed(airflow, orders)


# What goes on.

PARTS = ("redis", "postgres", "scheduler", "api-server", "dag-processor")


@endurance
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_airflow_is_killed_and_comes_back(airflow: Deployment, part: str) -> None:
    airflow.triggerer("east")
    runs = train(airflow, "on_east")
    for run in runs:
        wait_settled(run)
    airflow.component(CONTROL, part).kill()
    time.sleep(5)
    airflow.start_missing()
    go_on(5, *runs)
    end_well(airflow, *runs)


@endurance
def test_a_triggerer_is_killed_and_comes_back(airflow: Deployment) -> None:
    triggerer = airflow.triggerer("east")
    time.sleep(10)
    runs = train(airflow, "on_east")
    wait_watched(*runs)
    triggerer.kill()
    go_on(10, *runs)
    airflow.spawn("east", "triggerer")
    end_well(airflow, *runs)


@endurance
def test_a_worker_shuts_down_warmly(airflow: Deployment) -> None:
    """As in a deployment: SIGTERM, and a new worker beside the trainings, which go on."""
    runs = train(airflow, "on_east_sync")
    airflow.component("east", "worker").signal(signal.SIGTERM)
    time.sleep(5)
    go_on(10, *runs)
    for run in runs:
        run.finish()
    until("the worker has ended", lambda: not airflow.component("east", "worker").runs, 120)
    airflow.start_missing()
    end_well(airflow, *runs)


@endurance
def test_dag_runs_side_by_side_on_two_hosts_keep_to_their_own_data(airflow: Deployment) -> None:
    """One DAG, and each DAG run brings data of its own; then a host loses its worker, and all of its tasks go
    on beside those of the other one.
    """
    airflow.triggerer("east")

    def side(host: str, number: int) -> HostRun:
        run = airflow.run_dag("sides", raw=str(airflow.raw(f"{host}-{number}")))
        run.data = f"{host}-{number}"
        return run

    sides: dict[str, list[HostRun]] = {}
    for host in airflow.workers:
        with airflow.only(host):
            sides[host] = [side(host, number) for number in range(RUNS // 2)]
            assert all(run.wait_training(beyond=20).host == host for run in sides[host])
    airflow.component("east", "worker").kill()
    for run in sides["east"]:
        second = run.wait_training(2)
        assert second.host == "west" and second.first_step > 0, run.story()
    go_on(10, *sides["west"])
    end_well(airflow, *sides["east"], *sides["west"], once=False)
    for run in sides["west"]:
        run.assert_trained_once()
    for run in (*sides["east"], *sides["west"]):
        assert {one.read for one in run.members()} == {(run.data,)}, run.story()


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
    end_well(airflow, run)
    until("the tab has its end", lambda: airflow.page(tab)["run"]["state"] == "succeeded", 60)

"""What the page recommends: for each host a queue, a worker and a triggerer. The settings and the commands
are those of the page.
"""

from __future__ import annotations

import signal
import time

import pytest

from tests.provider.hosts import page
from tests.provider.hosts.deployment import CONTROL, Deployment
from tests.provider.hosts.faults import goes_on, marks, times, wait_good_end, wait_settled
from tests.provider.live import until

pytestmark = [*marks, pytest.mark.endurance]

SETTINGS = page.configuration()


def start_triggerers(airflow: Deployment) -> None:
    """As on the page, where the hosts that train are called gpu-1 and so on."""
    for_others, of_a_host = page.commands("triggerer")
    airflow.triggerer(CONTROL, *for_others[1:])
    for host in airflow.workers:
        airflow.triggerer(host, *[word.replace("gpu-1", host) for word in of_a_host[1:]])
    # The triggerers learn of one another.
    time.sleep(10)


@times()
def test_each_task_defers_and_ends_as_its_run(airflow: Deployment, again: int) -> None:
    start_triggerers(airflow)
    runs = {host: airflow.run_dag(f"on_{host}") for host in airflow.workers}
    for host, run in runs.items():
        assert run.wait_training().host == host
        assert wait_settled(run) == "deferred", run.story()
    for run in runs.values():
        wait_good_end(run)
        run.assert_trained_once()


@times()
def test_a_triggerer_that_froze_and_wakes_stops_nothing(airflow: Deployment, again: int) -> None:
    """No other one takes its triggers: none serves its queue."""
    start_triggerers(airflow)
    run = airflow.run_dag("on_east")
    run.wait_training()
    assert wait_settled(run) == "deferred"
    until("a triggerer watches", lambda: run.task()["triggerer_job"])
    frozen = airflow.component("east", "triggerer")
    frozen.freeze()
    assert goes_on(run, 45), run.story()
    frozen.thaw()
    assert goes_on(run, 20), run.story()
    wait_good_end(run)
    run.assert_trained_once()


@times()
def test_a_worker_restarts_meanwhile(airflow: Deployment, again: int) -> None:
    start_triggerers(airflow)
    run = airflow.run_dag("on_west")
    run.wait_training()
    assert wait_settled(run) == "deferred"
    worker = airflow.component("west", "worker")
    worker.signal(signal.SIGTERM)
    until("the worker has ended", lambda: not worker.runs, 60)
    airflow.start_missing()
    assert goes_on(run, 5), run.story()
    wait_good_end(run)
    run.assert_trained_once()

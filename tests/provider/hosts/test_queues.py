"""What the page recommends: for each host a queue, a worker and a triggerer. The settings and the commands
are those of the page.
"""

from __future__ import annotations

import signal
import time

import pytest

from tests.provider.hosts import page
from tests.provider.hosts.deployment import CONTROL, Deployment
from tests.provider.hosts.faults import end_well, go_on, marks, train, wait_watched
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


def test_each_task_defers_and_ends_as_its_run(airflow: Deployment) -> None:
    start_triggerers(airflow)
    runs = [run for host in airflow.workers for run in train(airflow, f"on_{host}", 5)]
    wait_watched(*runs)
    assert all(f"on_{one.host}" == run.dag for run in runs for one in run.members())
    end_well(airflow, *runs)


def test_a_triggerer_that_froze_and_wakes_stops_nothing(airflow: Deployment) -> None:
    """No other one takes its triggers: none serves its queue."""
    start_triggerers(airflow)
    runs = train(airflow, "on_east")
    wait_watched(*runs)
    frozen = airflow.component("east", "triggerer")
    frozen.freeze()
    go_on(45, *runs)
    frozen.thaw()
    go_on(20, *runs)
    end_well(airflow, *runs)


def test_a_worker_restarts_meanwhile(airflow: Deployment) -> None:
    start_triggerers(airflow)
    runs = train(airflow, "on_west")
    wait_watched(*runs)
    worker = airflow.component("west", "worker")
    worker.signal(signal.SIGTERM)
    until("the worker has ended", lambda: not worker.runs, 60)
    airflow.start_missing()
    go_on(5, *runs)
    end_well(airflow, *runs)

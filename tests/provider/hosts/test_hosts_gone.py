"""A host is lost with its trainings, or cut off from the network, where they go on. The next tries begin on
the other host, from the newest checkpoints, and never beside a training that lives.
"""

from __future__ import annotations

import time

import pytest

from tests.provider.hosts.deployment import Deployment
from tests.provider.hosts.faults import (
    end_well,
    go_on,
    go_on_in_the_west,
    marks,
    on_east,
    stand_still_and_wake,
    wait_ended,
)
from tests.provider.live import until

pytestmark = [*marks, pytest.mark.endurance]

GOES_ON = 60.0
"""Seconds for which a run goes on that nobody follows. Here it is to end so, and the test waits for it."""
SETTINGS = {
    "ALLABOARD_ORCHESTRATED_PATIENCE": f"{GOES_ON:.0f}s",
    # A worker that is cut off gives up after some two minutes, as with Airflow's defaults.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "10",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "3",
}


def test_a_host_is_lost(airflow: Deployment) -> None:
    runs = on_east(airflow)
    airflow.host("east").crash()
    go_on_in_the_west(runs)
    end_well(airflow, *runs, once=False)


def test_a_host_is_cut_off_and_comes_back_late(airflow: Deployment) -> None:
    """Its worker and its trainings live, and see nothing of others but the folder that all hosts share."""
    runs = on_east(airflow)
    airflow.host("east").cut()
    go_on_in_the_west(runs)
    airflow.host("east").join()
    go_on(30, *runs)
    end_well(airflow, *runs, once=False)


def test_a_host_is_cut_off_and_comes_back_while_the_next_try_waits(airflow: Deployment) -> None:
    """It has its triggerer again, which stops the trainings for the next tries, so those wait no longer."""
    runs = on_east(airflow)
    airflow.host("east").cut()
    for run in runs:
        until(f"the next try of {run.name} waits", lambda run=run: "it is asked to stop there" in run.log())
    assert airflow.training("east"), "nobody has stopped the trainings yet"
    airflow.host("east").join()
    airflow.triggerer("east")
    wait_ended("asked for by the next try", runs)
    go_on_in_the_west(runs)
    end_well(airflow, *runs, once=False)


def test_a_host_is_cut_off_for_a_moment(airflow: Deployment) -> None:
    runs = on_east(airflow)
    airflow.host("east").cut()
    time.sleep(8)
    airflow.host("east").join()
    go_on(100, *runs)
    end_well(airflow, *runs)


def test_a_host_stands_still_and_wakes_late(airflow: Deployment) -> None:
    stand_still_and_wake(airflow)

"""Redis delivers a task again that a worker has held for longer than ``visibility_timeout``."""

from __future__ import annotations

import pytest

from tests.provider.hosts.deployment import Deployment
from tests.provider.hosts.faults import goes_on, marks, times, wait_good_end

pytestmark = [*marks, pytest.mark.endurance]

SETTINGS = {"AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "15"}


@times()
def test_a_task_that_is_delivered_twice_trains_once(airflow: Deployment, again: int) -> None:
    run = airflow.run_dag("anywhere_sync")
    run.wait_training()
    assert goes_on(run, 60), run.story()
    wait_good_end(run)
    run.assert_trained_once()

"""Redis delivers a task again that a worker has held for longer than ``visibility_timeout``."""

from __future__ import annotations

import pytest

from tests.provider.hosts.deployment import Deployment
from tests.provider.hosts.faults import end_well, go_on, marks, train

pytestmark = [*marks, pytest.mark.endurance]

SETTINGS = {"AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "15"}


def test_a_task_that_is_delivered_twice_trains_once(airflow: Deployment) -> None:
    runs = train(airflow, "anywhere_sync")
    go_on(60, *runs)
    end_well(airflow, *runs)

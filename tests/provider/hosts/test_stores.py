"""The store of the checkpoints is S3, on a host of its own. A run's folder there has one writer, by a
conditional create: a host that stands still for longer than its run is waited for wakes beside the next try,
and saves nothing more.
"""

from __future__ import annotations

import json
import sys

import pytest

from tests.core.s3server import environ_for
from tests.provider.hosts.deployment import CONTROL, Deployment
from tests.provider.hosts.faults import end_well, marks, stand_still_and_wake, train
from tests.provider.hosts.test_hosts_gone import SETTINGS as IMPATIENT
from tests.provider.live import until

pytestmark = [*marks, pytest.mark.endurance]

PORT = 9000
SETTINGS = {
    **IMPATIENT,
    **environ_for(f"http://{CONTROL}:{PORT}"),
    "NO_PROXY": "*",
    "AIRFLOW_CONN_ALLABOARD_DEFAULT": json.dumps(
        {"conn_type": "allaboard", "extra": {"store": "s3://runs/team-a"}}
    ),
}
BUCKET = "import boto3; boto3.client('s3').create_bucket(Bucket='runs')"


@pytest.fixture(scope="module")
def s3(deployment: Deployment) -> None:
    serves = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(PORT)]
    deployment.control.start("s3", serves, deployment.environ)

    def has_bucket() -> bool:
        try:
            deployment.control.run([sys.executable, "-c", BUCKET], deployment.environ)
        except RuntimeError:
            return False
        return True

    until("there is a bucket", has_bucket)


def test_the_next_tries_after_a_killed_worker_go_on_from_s3(airflow: Deployment, s3: None) -> None:
    airflow.triggerer("east")
    with airflow.only("east"):
        runs = train(airflow, "anywhere_sync", beyond=20)
    airflow.component("east", "worker").kill()
    for run in runs:
        second = run.wait_training(2)
        assert second.host == "west" and second.first_step > 0, run.story()
    end_well(airflow, *runs, once=False)


def test_a_host_that_stood_still_saves_nothing_more_into_s3(airflow: Deployment, s3: None) -> None:
    stand_still_and_wake(airflow)

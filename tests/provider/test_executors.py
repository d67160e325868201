"""A local run is never left to a triggerer by a worker whose container ends with its task."""

from __future__ import annotations

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard_provider.executors import why_run_ends_with_worker
from allaboard_provider.operators import _lifecycle
from allaboard_provider.operators.train import TrainingJobOperator
from tests.provider.building import TaskInstance, a_context

KUBERNETES = "airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor"

ECS = "airflow.providers.amazon.aws.executors.ecs.ecs_executor.AwsEcsExecutor"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
MARKED = {"AIRFLOW_IS_K8S_EXECUTOR_POD": "True"}


@pytest.mark.parametrize(
    ("executor", "configured", "environ", "first", "ends"),
    [
        (None, "LocalExecutor", {}, "/usr/lib/systemd/systemd", False),
        (None, "CeleryExecutor", {}, "dumb-init -- /entrypoint airflow celery worker", False),
        # Its pods say so themselves; where they do not, its name counts in a pod alone.
        (None, "KubernetesExecutor", {}, "", False),
        (None, "KubernetesExecutor", POD, "", True),
        (None, KUBERNETES, POD, "", True),
        (None, f"k8s:{KUBERNETES},LocalExecutor", POD, "", True),
        (None, "LocalExecutor,KubernetesExecutor", POD, "", False),
        ("KubernetesExecutor", "LocalExecutor,KubernetesExecutor", POD, "", True),
        (KUBERNETES, f"LocalExecutor,k8s:{KUBERNETES}", POD, "", True),
        ("k8s", f"LocalExecutor,k8s:{KUBERNETES}", POD, "", True),
        ("LocalExecutor", f"k8s:{KUBERNETES},LocalExecutor", POD, "", False),
        ("k8s", f"LocalExecutor;red=CeleryExecutor,k8s:{KUBERNETES}", POD, "", True),
        ("own", f"LocalExecutor;red=own:CeleryExecutor;blue=own:{KUBERNETES}", POD, "", True),
        (None, "LocalExecutor;red=KubernetesExecutor", POD, "", False),
        (None, f"ecs:{ECS},LocalExecutor", {}, "", True),
        ("LocalExecutor", f"ecs:{ECS},LocalExecutor", {}, "", False),
        # A team's pod: the configuration says nothing of teams.
        (None, "LocalExecutor;red=KubernetesExecutor", {**POD, **MARKED}, "", True),
        # As the Helm chart's pods have it: the configuration names another executor.
        (None, "LocalExecutor", MARKED, "", True),
        (None, "LocalExecutor", {}, "dumb-init -- python -m airflow.x.execute_workload y", True),
        (None, "", {}, "", False),
    ],
)  # fmt: skip
def test_which_workers_end_with_their_task(
    executor: str | None, configured: str, environ: dict[str, str], first: str, ends: bool
) -> None:
    assert (why_run_ends_with_worker(executor, configured, environ, first) is not None) is ends


def test_a_worker_in_a_pod_of_its_own_follows_a_local_run_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    monkeypatch.setattr(_lifecycle, "first_process", lambda: "")
    job = {"name": "small", "command": ["python", "-c", "print('hello')"]}
    operator = TrainingJobOperator(task_id="train", job=job, allaboard_conn_id=None, deferrable=True)
    assert operator.execute(a_context(TaskInstance()))["state"] == "succeeded"
    assert LocalBackend().list()[0].handed_over

"""A local run is never left to a triggerer by a worker whose container ends with its task."""

from __future__ import annotations

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard_provider import task
from allaboard_provider.executors import why_it_would_not_outlive
from allaboard_provider.operators.train import TrainingJobOperator
from tests.provider.building import TaskInstance, a_context

KUBERNETES = "airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor"


@pytest.mark.parametrize(
    ("executor", "configured", "environ", "first", "ends"),
    [
        (None, "LocalExecutor", {}, "/usr/lib/systemd/systemd", False),
        (None, "CeleryExecutor", {}, "dumb-init -- /entrypoint airflow celery worker", False),
        (None, "KubernetesExecutor", {}, "", True),
        (None, KUBERNETES, {}, "", True),
        (None, f"k8s:{KUBERNETES},LocalExecutor", {}, "", True),
        (None, "LocalExecutor,KubernetesExecutor", {}, "", False),
        ("KubernetesExecutor", "LocalExecutor,KubernetesExecutor", {}, "", True),
        (KUBERNETES, f"LocalExecutor,k8s:{KUBERNETES}", {}, "", True),
        ("k8s", f"LocalExecutor,k8s:{KUBERNETES}", {}, "", True),
        ("LocalExecutor", f"k8s:{KUBERNETES},LocalExecutor", {}, "", False),
        (None, "LocalExecutor;red=KubernetesExecutor", {}, "", False),
        # As the Helm chart's pods have it: the configuration names another executor.
        (None, "LocalExecutor", {"AIRFLOW_IS_K8S_EXECUTOR_POD": "True"}, "", True),
        (None, "LocalExecutor", {}, "dumb-init -- python -m airflow.x.execute_workload y", True),
        (None, "", {}, "", False),
    ],
)  # fmt: skip
def test_which_workers_end_with_their_task(
    executor: str | None, configured: str, environ: dict[str, str], first: str, ends: bool
) -> None:
    assert (why_it_would_not_outlive(executor, configured, environ, first) is not None) is ends


def test_a_worker_in_a_pod_of_its_own_follows_a_local_run_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    monkeypatch.setattr(task, "first_process", lambda: "")
    job = {"name": "small", "command": ["python", "-c", "print('hello')"]}
    operator = TrainingJobOperator(task_id="train", job=job, allaboard_conn_id=None, deferrable=True)
    assert operator.execute(a_context(TaskInstance()))["state"] == "succeeded"
    assert LocalBackend().list()[0].handed_over

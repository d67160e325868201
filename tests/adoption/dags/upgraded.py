"""Two tasks, by what every version has: one that defers, and one whose worker follows."""

from __future__ import annotations

from airflow.sdk import DAG

from allaboard_provider.operators import TrainingJobOperator


def job(name: str) -> dict[str, object]:
    """See tests/provider/lifecycle/gated.py."""
    return {
        "name": name,
        "command": ["python", "gated.py", "{{ run_id }}"],
        "workers": 2,
        "policy": {"restart": "never"},
        "checkpoints": {"uri": "store://upgraded", "keep": 2},
        "spot": {"grace": "2s"},
    }


with DAG("deferred", schedule=None):
    TrainingJobOperator(task_id="train", job=job("deferred"))
with DAG("followed", schedule=None):
    # A new Airflow may start a try before its API server listens.
    TrainingJobOperator(task_id="train", job=job("followed"), deferrable=False, retries=5, retry_delay=5.0)

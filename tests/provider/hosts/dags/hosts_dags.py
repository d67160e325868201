"""The DAGs of the tests with several hosts: a task that trains (`journaled.py`) until it is told to stop, and
in ``sides`` one before it that prepares the data which the DAG run brings along.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from allaboard import TrainingJob
from allaboard_provider.operators.shards import PrepareShardsOperator
from allaboard_provider.operators.train import TrainingJobOperator

SOON = timedelta(seconds=1)


def dag(name: str, *, members: int = 1, data: bool = False, **task: Any) -> None:
    shards = "store://hosts/shards"
    job = TrainingJob(
        name=name.replace("_", "-"),
        command=["python", "journaled.py", "{{ run_id }}", *(["DATA"] if data else [])],
        workers=members,
        data={"shards": shards} if data else {},
        policy={"restart": "never"},
        checkpoints={"uri": "store://hosts", "keep": 2},
        spot={"grace": "2s"},
    )
    again = {"retries": 2, "retry_delay": SOON}
    with DAG(name, schedule=None, default_args=again):
        train = TrainingJobOperator(task_id="train", job=job, **task)
        if data:
            raw = "{{ dag_run.conf['raw'] }}"
            PrepareShardsOperator(task_id="prepare", source=raw, into=shards, samples_per_shard=4) >> train


# Any worker takes it.
dag("anywhere")
dag("anywhere_once", retries=0)
dag("anywhere_sync", deferrable=False)
dag("gang", members=2)
dag("sides", data=True, deferrable=False)
# A queue of its own for each host.
for host in ("east", "west"):
    dag(f"on_{host}", queue=host)
    dag(f"on_{host}_sync", queue=host, deferrable=False)

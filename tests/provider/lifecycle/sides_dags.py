"""The DAGs of test_side_by_side: the whole chain, whose raw data each DAG run brings along in its conf."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseSensorOperator

from allaboard import TrainingJob
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    PrepareShardsOperator,
    PromoteOperator,
    TrainingJobOperator,
)


class Gate(BaseSensorOperator):
    """Passes once the test says so."""

    def poke(self, context: Any) -> bool:
        return (Path(os.environ["GATES"]) / context["run_id"] / "collect").exists()


def chain(name: str, shards: str, **how: Any) -> None:
    job = TrainingJob(
        name=name.replace("_", "-"),
        command=["python", "sided.py", "{{ run_id }}"],
        workers=2,
        policy={"restart": "never"},
        data={"shards": shards},
        checkpoints={"uri": f"store://{name}/checkpoints", "keep": 2},
        spot={"grace": "2s"},
    )
    # A worker that cannot start on a busy machine is no matter of these tests.
    again = {"retries": 3, "retry_delay": timedelta(seconds=1)}
    with DAG(name, schedule=None, max_active_runs=16, default_args=again):
        prepare = PrepareShardsOperator(
            task_id="prepare",
            source="{{ dag_run.conf['raw'] }}",
            into=f"store://{name}/shards",
            samples_per_shard=4,
        )
        train = TrainingJobOperator(task_id="train", job=job, pool="sides", **how)
        gate = Gate(task_id="gate", poke_interval=1)
        collect = CollectCheckpointOperator(
            task_id="collect", source=train.output, into=f"store://{name}/models"
        )
        promote = PromoteOperator(
            task_id="promote", checkpoint=collect.output, metric="score", store=f"store://{name}"
        )
        prepare >> train >> gate >> collect >> promote


chain("sides", "store://sides/shards")
chain("sides_sync", "{{ ti.xcom_pull('prepare')['uri'] }}", deferrable=False)

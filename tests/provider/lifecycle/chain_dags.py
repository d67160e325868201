"""The chain of the examples, by a script that needs nothing but allaboard."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset

from allaboard import TrainingJob
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PrepareShardsOperator,
    PromoteOperator,
    TrainingJobOperator,
)


def samples() -> Any:
    yield {"__key__": "0", "txt": "a"}


AGAIN = {"retries": 2, "retry_delay": timedelta(seconds=1)}  # a busy machine may lose a worker

with DAG("whole_chain", schedule=None, default_args=AGAIN):
    prepare = PrepareShardsOperator(task_id="prepare", source=samples, into="store://chain/shards")
    train = TrainingJobOperator(
        task_id="train",
        job=TrainingJob(
            name="chain",
            command=["python", "learn.py"],
            data={"shards": "store://chain/shards"},
            checkpoints={"uri": "store://chain/checkpoints", "best": {"metric": "loss", "mode": "min"}},
            policy={"restart": "never"},
        ),
    )
    collect = CollectCheckpointOperator(task_id="collect", source=train.output, into="store://chain/models")
    evaluate = EvaluateOperator(
        task_id="evaluate",
        job={"name": "judge", "command": ["python", "learn.py", "judge"], "workers": 1},
        checkpoint=collect.output,
    )
    promote = PromoteOperator(
        task_id="promote",
        checkpoint=collect.output,
        metrics=evaluate.output,
        metric="accuracy",
        store="store://chain",
        outlets=[Asset("chain_champion")],
    )
    prepare >> train >> collect >> evaluate >> promote

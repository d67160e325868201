"""Which learning rate, and for how many epochs? A sweep, and its best model.

Each combination is a training of its own, a mapped task: `grid` makes their jobs. The best by its metric is
collected, judged and promoted as in `retrain_digits`. Once a training is good enough the rest is stopped.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, Param

from allaboard import TrainingJob, grid
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PickBestOperator,
    PrepareShardsOperator,
    PromoteOperator,
    TrainingJobOperator,
)

training = TrainingJob(
    name="digits-sweep",
    command=["python", "digits/train.py"],
    workers=1,
    resources={"cpu": 1},
    policy={"restart": "on_failure", "backoff_limit": 2},
    data={"shards": "store://digits/shards"},
    checkpoints={
        "uri": "store://digits/sweep",
        "every": 50,
        "keep": 1,
        "best": {"metric": "val_loss", "mode": "min"},
    },
    code=["digits/train.py", "digits/prepare.py"],
)

with DAG(
    "sweep_digits",
    description="Train once for each learning rate, and promote the best if it is better",
    schedule=None,
    start_date=pendulum.datetime(2025, 1, 1, tz="Europe/Zurich"),
    catchup=False,
    params={"enough": Param("val_accuracy>=0.999", title="Stop the rest when", type="string")},
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    tags=["allaboard", "example"],
    doc_md=__doc__,
) as dag:
    prepare = PrepareShardsOperator(
        task_id="prepare",
        source="digits/prepare.py:samples",
        into="store://digits/shards",
        samples_per_shard=200,
    )
    train = TrainingJobOperator.partial(
        task_id="train",
        stop_rest_when="{{ params.enough }}",
        execution_timeout=timedelta(hours=1),
    ).expand(job=grid(training, {"environment.LEARNING_RATE": [1e-3, 3e-3], "environment.EPOCHS": [1, 2]}))
    best = PickBestOperator(
        task_id="best",
        results=train.output,
        metric="val_loss",
        mode="min",
        most_failed=1,
    )
    collect = CollectCheckpointOperator(
        task_id="collect",
        source=best.output,
        which="best",
        into="store://digits/models",
    )
    evaluate = EvaluateOperator(task_id="evaluate", job="digits/evaluate.yaml", checkpoint=collect.output)
    promote = PromoteOperator(
        task_id="promote",
        checkpoint=collect.output,
        metrics=evaluate.output,
        metric="accuracy",
        store="store://digits",
    )
    prepare >> train >> best >> collect >> evaluate >> promote

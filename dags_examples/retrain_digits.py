"""Is tonight's model better than the one in production?

    make demo                       runs this DAG on your machine, in an Airflow of its own

Shards are prepared, a small convolutional net is trained on them by two processes (DistributedDataParallel,
gloo), its best checkpoint is collected, judged on digits that it has never seen, and made the champion if it
beats the present one.

Nothing here says where: `store://` hangs off the connection `allaboard_default`. Without that connection
everything is on the worker's own machine, below ~/.allaboard/store; make it, and the same DAG runs elsewhere.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, Asset, Param

from allaboard import TrainingJob
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PrepareShardsOperator,
    PromoteOperator,
    TrainingJobOperator,
)

training = TrainingJob(
    name="digits",
    command=["python", "digits/train.py"],
    groups={"master": 1, "worker": 1},
    resources={"cpu": 1},  # of each member
    policy={"restart": "on_failure", "backoff_limit": 2},
    data={"shards": "store://digits/shards"},
    checkpoints={
        "uri": "store://digits/checkpoints",
        "every": 50,  # steps
        "keep": 3,
        "best": {"metric": "val_loss", "mode": "min"},
    },
    environment={"EPOCHS": "{{ params.epochs }}"},
    code=["digits/train.py", "digits/prepare.py"],
)

# Whose night it is. A cron expression follows the clock of this zone, in summer and in winter; without a zone
# it would be UTC's.
HERE = pendulum.timezone("Europe/Zurich")

with DAG(
    "retrain_digits",
    description="Prepare, train, collect, evaluate, promote if better",
    schedule=None,  # nightly at four in the morning: "0 4 * * *"
    start_date=pendulum.datetime(2025, 1, 1, tz=HERE),
    catchup=False,
    params={"epochs": Param(16, type="integer", minimum=1, title="Epochs")},
    # A retry resumes: of the training, from its newest checkpoint.
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
    train = TrainingJobOperator(
        task_id="train",
        job=training,
        execution_timeout=timedelta(hours=1),  # also counts while deferred; the training ends with it
    )
    collect = CollectCheckpointOperator(
        task_id="collect",
        source=train.output,
        which="best",
        into="store://digits/models",
    )
    evaluate = EvaluateOperator(
        task_id="evaluate",
        job="digits/evaluate.yaml",
        checkpoint=collect.output,
    )
    promote = PromoteOperator(
        task_id="promote",
        checkpoint=collect.output,
        metrics=evaluate.output,
        metric="accuracy",
        mode="max",
        thresholds=["accuracy>=0.97"],
        store="store://digits",
        outlets=[Asset("digits_champion")],  # has an event for each new champion: see on_new_champion.py
    )
    prepare >> train >> collect >> evaluate >> promote

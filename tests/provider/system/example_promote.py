"""Make a checkpoint the champion where it is good enough, and better than the champion."""

from airflow.sdk import DAG

from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PromoteOperator,
    TrainingJobOperator,
)

with DAG("example_promote", schedule=None, catchup=False, tags=["example"]) as dag:
    train = TrainingJobOperator(
        task_id="train",
        job={
            "name": "tiny",
            "command": ["python", "tiny/train.py"],
            "code": ["tiny/train.py"],
            "checkpoints": {"uri": "store://tiny/checkpoints"},
        },
    )
    collect = CollectCheckpointOperator(
        task_id="collect", source=train.output, which="best:val_loss:min", into="store://tiny/models"
    )
    evaluate = EvaluateOperator(
        task_id="evaluate",
        job={"name": "judge", "command": ["python", "tiny/judge.py"], "code": ["tiny/judge.py"]},
        checkpoint=collect.output,
    )
    PromoteOperator(
        task_id="promote",
        checkpoint=collect.output,
        metrics=evaluate.output,
        metric="accuracy",
        mode="max",
        thresholds=["accuracy>=0.9"],
        store="store://tiny",
    )

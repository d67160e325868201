"""Judge a checkpoint by a job of its own."""

from airflow.sdk import DAG

from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    TrainingJobOperator,
)

with DAG("example_evaluate", schedule=None, catchup=False, tags=["example"]) as dag:
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

"""Keep the best checkpoint of a training, where its retention removes nothing."""

from airflow.sdk import DAG

from allaboard_provider.operators import CollectCheckpointOperator, TrainingJobOperator

with DAG("example_collect_checkpoint", schedule=None, catchup=False, tags=["example"]) as dag:
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

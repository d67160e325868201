"""Train, and let a retry resume from the newest checkpoint."""

from airflow.sdk import DAG

from allaboard_provider.operators import TrainingJobOperator

with DAG("example_training_job", schedule=None, catchup=False, tags=["example"]) as dag:
    TrainingJobOperator(
        task_id="train",
        job={
            "name": "tiny",
            "command": ["python", "tiny/train.py"],
            "code": ["tiny/train.py"],
            "checkpoints": {"uri": "store://tiny/checkpoints"},
        },
        retries=2,
    )

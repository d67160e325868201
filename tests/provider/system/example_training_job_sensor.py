"""Wait for a training that somebody else has started under a key."""

from airflow.sdk import DAG

from allaboard_provider.operators import TrainingJobOperator
from allaboard_provider.sensors import TrainingJobSensor

with DAG("example_training_job_sensor", schedule=None, catchup=False, tags=["example"]) as dag:
    train = TrainingJobOperator(
        task_id="train",
        job={
            "name": "tiny",
            "command": ["python", "tiny/train.py"],
            "code": ["tiny/train.py"],
            "checkpoints": {"uri": "store://tiny/checkpoints"},
        },
    )
    wait = TrainingJobSensor(task_id="wait", run="tiny", timeout=600)
    train >> wait

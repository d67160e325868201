"""Wait for a checkpoint of any run of a job."""

from airflow.sdk import DAG

from allaboard_provider.operators import TrainingJobOperator
from allaboard_provider.sensors import CheckpointSensor

with DAG("example_checkpoint_sensor", schedule=None, catchup=False, tags=["example"]) as dag:
    train = TrainingJobOperator(
        task_id="train",
        job={
            "name": "tiny",
            "command": ["python", "tiny/train.py"],
            "code": ["tiny/train.py"],
            "checkpoints": {"uri": "store://tiny/checkpoints"},
        },
    )
    wait = CheckpointSensor(task_id="wait", uri="store://tiny/checkpoints", after=4, timeout=600)
    train >> wait

"""Train once for each learning rate, and take the best."""

from airflow.sdk import DAG

from allaboard import grid
from allaboard_provider.operators import PickBestOperator, TrainingJobOperator

REPORTS = "import os; from allaboard.inside import result; result(loss=abs(float(os.environ['RATE']) - 0.1))"

with DAG("example_pick_best", schedule=None, catchup=False, tags=["example"]) as dag:
    train = TrainingJobOperator.partial(task_id="train").expand(
        job=grid(
            {"name": "tiny", "command": ["python", "-c", REPORTS]}, {"environment.RATE": ["0.01", "0.1"]}
        )
    )
    PickBestOperator(task_id="pick", results=train.output, metric="loss", mode="min")

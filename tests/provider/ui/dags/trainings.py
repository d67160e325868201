"""The DAGs of the tests of the tabs: a training that ends well, evaluated and promoted; one that fails, one
that goes on, one that waits for slots; a task of somebody else.
"""

from __future__ import annotations

import os

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from allaboard import TrainingJob, grid
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PickBestOperator,
    PromoteOperator,
    TrainingJobOperator,
)

ALL_CORES = os.cpu_count() or 1


def job(name: str, how: str, workers: int = 2, **more: object) -> TrainingJob:
    return TrainingJob(
        name=name,
        command=["python", "curves.py", how],
        workers=workers,
        policy={"restart": "never"},
        checkpoints={"uri": "store://pictures", "keep": 3, "best": {"metric": "val_loss", "mode": "min"}},
        **more,
    )


with DAG("digits", schedule=None, params={"seed": 1}):
    train = TrainingJobOperator(task_id="train", job=job("digits", "well {{ params.seed }}"))
    model = CollectCheckpointOperator(task_id="collect", source=train.output, into="store://models")
    score = EvaluateOperator(
        task_id="evaluate",
        job={"name": "score", "command": ["python", "curves.py", "score {{ params.seed }}"]},
        checkpoint=model.output,
    )
    PromoteOperator(
        task_id="promote",
        checkpoint=model.output,
        metrics=score.output,
        store="store://digits",
        metric="accuracy",
    )

SAYS = "import os; from allaboard.inside import result; result(accuracy=float(os.environ['LR']))"
SWEPT = TrainingJob(name="swept", command=["python", "-c", SAYS])

with DAG("swept", schedule=None):
    swept = TrainingJobOperator.partial(task_id="train").expand(
        job=grid(SWEPT, {"environment.LR": [0.25, 0.5], "workers": [1]})
    )
    PickBestOperator(task_id="best", results=swept.output, metric="accuracy", mode="max")

with DAG("broken", schedule=None):
    TrainingJobOperator(task_id="train", job=job("broken", "badly"))

with DAG("long", schedule=None):
    TrainingJobOperator(task_id="train", job=job("long", "on", 1, resources={"cpu": ALL_CORES}))

with DAG("waiting", schedule=None):
    TrainingJobOperator(task_id="train", job=job("waiting", "on", 1, resources={"cpu": ALL_CORES}))

with DAG("foreign", schedule=None):
    PythonOperator(task_id="greet", python_callable=print)

with DAG("borrowed", schedule=None, params={"run": ""}):
    # A task that names a run of another DAG as if it were its own.
    PythonOperator(
        task_id="peek",
        python_callable=lambda params, ti: ti.xcom_push("allaboard_run", {"run": params["run"], "uid": "1"}),
    )

"""DAGs whose training on a cluster goes on until it is told to end (`gated.py`); two that wait for it, as a
run of ours and as a job object of anybody.
"""

from __future__ import annotations

from airflow.sdk import DAG

from allaboard import TrainingJob
from allaboard_provider.operators.train import TrainingJobOperator
from allaboard_provider.sensors import TrainingJobSensor

for name, deferrable, engine in (
    ("held", True, "auto"),
    ("held_sync", False, "auto"),
    ("held_trainjob", True, "trainjob"),
    ("held_jobset", True, "jobset"),
):
    with DAG(name, schedule=None):
        TrainingJobOperator(
            task_id="train",
            deferrable=deferrable,
            job=TrainingJob(
                name=name.replace("_", "-"),
                engine=engine,
                command=["python", "gated.py"],
                code=["gated.py"],
                workers=2,
                policy={"restart": "never"},
                checkpoints={"uri": "store://held", "keep": 2},
                environment={"GATE": "store://gates/{{ run_id }}"},
                spot={"grace": "2s"},
            ),
        )

with DAG("waits", schedule=None, params={"run": ""}):
    TrainingJobSensor(task_id="wait", run="{{ params.run }}")

with DAG("waits_for_job", schedule=None, params={"job": ""}):
    TrainingJobSensor(task_id="wait", kind="PyTorchJob", job_name="{{ params.job }}")

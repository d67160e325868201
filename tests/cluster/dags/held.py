"""DAGs whose training on a cluster goes on until it is told to end (`gated.py`), one of them from a queue of
Kueue; two that wait for it, as a run of ours and as a job object of anybody.
"""

from __future__ import annotations

from airflow.sdk import DAG

from allaboard import TrainingJob
from allaboard_provider.operators.train import TrainingJobOperator
from allaboard_provider.sensors import TrainingJobSensor

MEMBERS = {"workers": 2}
IN_QUEUE = {**MEMBERS, "resources": {"cpu": 1, "gpu": 1}, "gang": {"queue": "research"}}
# The launcher is what trains, as with one rank; the worker waits for mpirun.
MPI = {"framework": "mpi", "groups": {"launcher": 1, "worker": {"replicas": 1, "command": ["sleep", "600"]}}}
for name, deferrable, engine, members in (
    ("held", True, "auto", MEMBERS),
    ("held_sync", False, "auto", MEMBERS),
    ("held_trainjob", True, "trainjob", MEMBERS),
    ("held_jobset", True, "jobset", MEMBERS),
    ("held_mpijob", True, "mpijob", MPI),
    ("queued", True, "auto", IN_QUEUE),
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
                **members,
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

"""The DAGs of the tests with several hosts: one task each, which trains (`journaled.py`) until it is told to
stop.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from allaboard import TrainingJob
from allaboard_provider.operators.train import TrainingJobOperator

SOON = timedelta(seconds=1)


class Brief(TrainingJobOperator):
    """Its runs go on for so many seconds when nobody may follow them any more, in place of ten minutes."""

    def execute(self, context: Any) -> Any:
        from allaboard.backends.local import backend

        backend.ATTACHED_SECONDS = float(os.environ["PATIENCE"])
        return super().execute(context)


def dag(name: str, *, members: int = 1, **task: Any) -> None:
    job = TrainingJob(
        name=name.replace("_", "-"),
        command=["python", "journaled.py", "{{ run_id }}"],
        workers=members,
        policy={"restart": "never"},
        checkpoints={"uri": "store://hosts", "keep": 2},
        spot={"grace": "2s"},
    )
    with DAG(name, schedule=None):
        Brief(task_id="train", job=job, **{"retries": 2, "retry_delay": SOON, **task})


# Any worker takes it.
dag("anywhere")
dag("anywhere_once", retries=0)
dag("anywhere_sync", deferrable=False)
dag("gang", members=2)
# A queue of its own for each host.
for host in ("east", "west"):
    dag(f"on_{host}", queue=host)
    dag(f"on_{host}_sync", queue=host, deferrable=False)

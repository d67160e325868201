"""DAGs that give a training every secret which an Airflow keeps, under names that say nothing."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, task

from allaboard import TrainingJob
from allaboard_provider.operators import TrainingJobOperator

CONN = "conn.vault"
GIVEN = {
    "GIVEN_A": f"{{{{ {CONN}.password }}}}",
    "GIVEN_B": f"{{{{ {CONN}.extra_dejson.secret }}}}",
    "GIVEN_C": f"{{{{ {CONN}.extra_dejson.nested.sas_token }}}}",
    "GIVEN_D": f"{{{{ {CONN}.get_uri() }}}}",
    "GIVEN_E": "{{ var.value.hub_token }}",
    "GIVEN_F": "{{ var.json.hub_credentials.signing_key }}",
    "HF_TOKEN": "{{ var.value.hub }}",
    "INDEX_URL": "{{ var.value.index }}",
    "DATA_URL": "{{ var.value.data }}",
}


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "command": ["python", "says.py", "{{ run_id }}", f"{{{{ {CONN}.password }}}}"],
        "policy": {"restart": "never"},
        "checkpoints": {"uri": "store://planted"},
        "secrets": [{"name": "team", "env": True}, {"name": "mounted", "mount": "/mounted"}],
        "environment": {**GIVEN, "MOUNTED": "/mounted"},
        **fields,
    }


def page(context: Any) -> None:
    """Pages somebody: writes all that an exception says."""
    failed = context["exception"]
    told = {**failed.__dict__, "class": type(failed).__name__, "text": str(failed)}
    with (Path(os.environ["NOTES"]) / "pages").open("a") as file:
        file.write(json.dumps(told) + "\n")


ARGUMENTS: dict[str, Any] = {"allaboard_conn_id": "leaky", "on_failure_callback": page}
SOON = timedelta(seconds=1)

with DAG("planted", schedule=None):
    TrainingJobOperator(
        task_id="train",
        job=job("planted"),
        outlets=[Asset("weights")],
        retries=1,
        retry_delay=SOON,
        **ARGUMENTS,
    )

with DAG("planted_here", schedule=None):
    TrainingJobOperator(
        task_id="train", job=job("planted-here"), deferrable=False, retries=1, retry_delay=SOON, **ARGUMENTS
    )

with DAG("planted_fails", schedule=None):
    TrainingJobOperator(task_id="train", job=job("planted-fails"), **ARGUMENTS)

with DAG("planted_typo", schedule=None):
    TrainingJobOperator(
        task_id="train", job=job("planted-typo", workers=f"{{{{ {CONN}.password }}}}"), **ARGUMENTS
    )

with DAG("planted_template", schedule=None):
    TrainingJobOperator(
        task_id="train",
        job=job(
            "planted-template",
            args=[f"{{{{ {CONN}.extra_dejson.secret }}}}", f"{{{{ 1 + {CONN}.password }}}}"],
        ),
        **ARGUMENTS,
    )

with DAG("returns_a_job", schedule=None):

    @task
    def plan() -> TrainingJob:
        return TrainingJob(
            name="planned", command=["python", "-c", "print('trained')"], policy={"restart": "never"}
        )

    @task
    def by_hand(ti: Any = None) -> dict[str, str]:
        pulled = ti.xcom_pull("plan")
        assert isinstance(pulled, TrainingJob), type(pulled)
        return {"name": pulled.name}

    planned = plan()
    TrainingJobOperator(task_id="train", job=planned, **ARGUMENTS)
    planned >> TrainingJobOperator(task_id="pulls", job="{{ ti.xcom_pull('plan') }}", **ARGUMENTS)
    TrainingJobOperator.partial(task_id="each", **ARGUMENTS).expand(job=[planned])
    planned >> by_hand()

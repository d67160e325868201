"""DAGs whose tasks have outlets: trained, kept and promoted models, and who waits for them."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetAlias, AssetWatcher, Param, task

from allaboard import TrainingJob
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PrepareShardsOperator,
    PromoteOperator,
    TrainingJobOperator,
)
from allaboard_provider.triggers.assets import NewChampionTrigger

WEIGHTS, KEPT, CHAMPION = Asset("weights"), Asset("kept"), Asset("champion")
SHARDS, RUNS = Asset("shards"), AssetAlias("runs")


def job(name: str) -> TrainingJob:
    return TrainingJob(
        name=name,
        command=["python", "learn.py", "{{ params.accuracy }}"],
        data={"shards": "store://shards"},
        checkpoints={"uri": "store://checkpoints"},
        policy={"restart": "never"},
    )


def samples() -> Any:
    yield {"__key__": "0", "txt": "a"}


AGAIN = {"retries": 2, "retry_delay": timedelta(seconds=1)}  # a busy machine may lose a worker

with DAG("chain", schedule=None, params={"accuracy": Param(0.5, type="number")}, default_args=AGAIN):
    prepare = PrepareShardsOperator(
        task_id="prepare", source=samples, into="store://shards", outlets=[SHARDS]
    )
    train = TrainingJobOperator(task_id="train", job=job("chain"), outlets=[WEIGHTS, RUNS])
    collect = CollectCheckpointOperator(
        task_id="collect", source=train.output, into="store://models", outlets=[KEPT]
    )
    promote = PromoteOperator(
        task_id="promote",
        checkpoint=collect.output,
        metrics=train.output,
        metric="accuracy",
        store="store://champions",
        outlets=[CHAMPION],
    )
    prepare >> train >> collect >> promote

with DAG("waits_here", schedule=None, params={"accuracy": Param(0.5, type="number")}):
    TrainingJobOperator(task_id="train", job=job("waits-here"), deferrable=False, outlets=[WEIGHTS, RUNS])

with DAG("again", schedule=None, params={"checkpoint": "", "metrics": {}}):
    PromoteOperator(
        task_id="promote",
        checkpoint="{{ params.checkpoint }}",
        metrics="{{ params.metrics }}",
        store="store://champions",
        outlets=[CHAMPION],
    )


class DiesOnce(PromoteOperator):
    """Its worker is killed in the first try, with the champion made."""

    def post_execute(self, context: Any, result: Any = None) -> None:
        if context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)


with DAG("dies", schedule=None, params={"checkpoint": Param("", type="string")}):
    DiesOnce(
        task_id="promote",
        checkpoint="{{ params.checkpoint }}",
        store="store://others",
        outlets=[Asset("other")],
        retries=1,
        retry_delay=timedelta(seconds=1),
    )

with DAG("reacts", schedule=[CHAMPION]):

    @task(inlets=[CHAMPION])
    def notes(triggering_asset_events: Any = None, asset_state_store: Any = None) -> None:
        """Write down why this runs, and which champion the asset's state holds."""
        extras = [event.extra for events in triggering_asset_events.values() for event in events]
        found = {"extras": extras, "state": asset_state_store[CHAMPION].get("champion")}
        with (Path(os.environ["NOTES"]) / "reacts").open("a") as file:
            file.write(json.dumps(found) + "\n")

    told = "{{ (triggering_asset_events.values() | first | last).extra.uri }}"
    EvaluateOperator(
        task_id="judge",
        job={"name": "judge", "command": ["python", "judge.py"], "workers": 1},
        checkpoint=told,
        inlets=[CHAMPION],
    )
    notes()

WATCHED = Asset(
    "watched", watchers=[AssetWatcher(name="store", trigger=NewChampionTrigger("store://watched", poll=1.0))]
)

with DAG("deploys", schedule=[WATCHED]):

    @task
    def deploys(triggering_asset_events: Any = None) -> None:
        extras = [event.extra for events in triggering_asset_events.values() for event in events]
        with (Path(os.environ["NOTES"]) / "deploys").open("a") as file:
            file.write(json.dumps([extra["payload"]["promotion"] for extra in extras]) + "\n")

    deploys()

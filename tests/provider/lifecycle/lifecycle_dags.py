"""The DAGs of the lifecycle tests: one task each, which trains (`gated.py`) until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from allaboard import TrainingJob, grid
from allaboard.job.loader import parse
from allaboard_provider import compat
from allaboard_provider.operators import PickBestOperator
from allaboard_provider.operators.train import TrainingJobOperator
from allaboard_provider.sensors import CheckpointSensor, TrainingJobSensor

SOON = timedelta(seconds=1)
LIMIT = timedelta(seconds=45)
"""Long enough for the members to start on a busy machine."""
WRITTEN = parse((Path(__file__).parent / "written.yaml").read_text(), "written.yaml")


def gated(name: str, gate: str = "{{ run_id }}") -> TrainingJob:
    return TrainingJob(
        name=name,
        command=["python", "gated.py", gate],
        workers=2,
        policy={"restart": "never"},
        checkpoints={"uri": "store://lifecycle", "keep": 2},
        spot={"grace": "2s"},
    )


def dag(name: str, operator: type[TrainingJobOperator] = TrainingJobOperator, /, **task: Any) -> None:
    """A DAG of one task, called ``train``."""
    limit = task.pop("dagrun_timeout", None)
    with DAG(name, schedule=None, dagrun_timeout=limit):
        operator(task_id="train", **{"job": gated(name.replace("_", "-")), **task})


class WithTrigger(TrainingJobOperator):
    """Defers to one of `odd_triggers`."""

    odd = ""

    def defer(self, *, trigger: Any, **kwargs: Any) -> Any:
        import odd_triggers

        _, arguments = trigger.serialize()
        super().defer(trigger=getattr(odd_triggers, self.odd)(**arguments), **kwargs)


class Raising(WithTrigger):
    odd = "Raises"


class Elsewhere(WithTrigger):
    odd = "Blind"


class Alone(WithTrigger):
    """Its run has a home that neither the API server nor the reconciler of the triggerer looks into."""

    odd = "Alone"

    def execute(self, context: Any) -> Any:
        from allaboard_provider.operators._lifecycle import TaskTry

        os.environ["ALLABOARD_HOME"] = os.environ["ALONE"]
        TaskTry._would_be_left_alone = lambda _: False  # type: ignore[method-assign,assignment]
        return super().execute(context)


class Forgotten(WithTrigger):
    odd = "Sleeps"
    backstop = 1.0


class DiesOnce(TrainingJobOperator):
    """Its worker is killed in the first try, at the point that a subclass says."""

    def die_once(self, context: Any) -> None:
        if context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class DiesAfterLaunch(DiesOnce):
    """The run is there; the task has not deferred yet."""

    def execute(self, context: Any) -> Any:
        from allaboard_provider.operators._lifecycle import TaskTry

        defer = TaskTry._defer

        def die_first(task_try: TaskTry) -> None:
            self.die_once(context)
            defer(task_try)

        TaskTry._defer = die_first  # type: ignore[method-assign,assignment]
        return super().execute(context)


class DiesWithTheResult(DiesOnce):
    """The run has succeeded, the result is in hand, Airflow has not heard of it."""

    def post_execute(self, context: Any, result: Any = None) -> None:
        self.die_once(context)


class FollowedFirst(TrainingJobOperator):
    """Follows its run for the first ten seconds, as an installation that says nothing does."""

    def execute(self, context: Any) -> Any:
        os.environ["AIRFLOW__ALLABOARD__DEFER_AFTER"] = ""
        return super().execute(context)


class Impatient(TrainingJobOperator):
    """A run of it that counts as attached is stopped after some seconds in place of ten minutes."""

    def execute(self, context: Any) -> Any:
        from allaboard.backends.local import backend

        backend.ATTACHED_SECONDS = 8.0
        return super().execute(context)


SHORT = TrainingJob(name="short", command=["python", "-c", "import time; time.sleep(4)"])

dag("held")
dag("short", FollowedFirst, job=SHORT)
dag("short_deferred", job=SHORT)
dag("held_first", FollowedFirst)
dag("held_sync", deferrable=False)
dag("retried", retries=1, retry_delay=SOON)
dag("retried_sync", deferrable=False, retries=1, retry_delay=SOON)
if compat.has_retry_policies():
    from allaboard_provider.retries import TrainingRetryPolicy

    dag("judged", retries=3, retry_delay=SOON, retry_policy=TrainingRetryPolicy())
dag("timed", execution_timeout=LIMIT)
dag("timed_sync", deferrable=False, execution_timeout=LIMIT)
dag("limited", dagrun_timeout=LIMIT)
dag("raising", Raising)
dag("elsewhere", Elsewhere)
dag("alone", Alone)
dag("forgotten", Forgotten, execution_timeout=LIMIT)
dag("in_a_pod", executor="pods")
dag("from_file", job="written.yaml")
dag("from_text", job=json.dumps({**WRITTEN, "name": "from-text"}))
dag("left_alone", Impatient, deferrable=False, retries=1, retry_delay=timedelta(seconds=20))
dag("left_at_last", Impatient, deferrable=False)
dag("dies_after_launch", DiesAfterLaunch, retries=1, retry_delay=SOON)
dag("dies_with_the_result", DiesWithTheResult, retries=1, retry_delay=SOON)

with DAG("watching", schedule=None, params={"run": "", "saved": ""}):
    TrainingJobSensor(task_id="run", run="{{ params.run }}", poke_interval=1)
    CheckpointSensor(
        task_id="saved", uri="store://lifecycle/{{ params.run }}", after="{{ params.saved }}", poke_interval=1
    )

with DAG("nightly", schedule=None):
    TrainingJobSensor(task_id="defers", run="nightly", poke_interval=1)
    TrainingJobSensor(task_id="stays", run="nightly", poke_interval=1, deferrable=False)
    TrainingJobSensor(task_id="takes_any", run="nightly", poke_interval=1, since=None)

NEVER: dict[str, Any] = {"run": "never-there", "poke_interval": 2}
SHORTLY = timedelta(seconds=20)

with DAG("waits_in_vain", schedule=None):
    TrainingJobSensor(task_id="timeout", timeout=20, **NEVER)
    TrainingJobSensor(task_id="limit", execution_timeout=SHORTLY, **NEVER)
    TrainingJobSensor(
        task_id="rescheduled", execution_timeout=SHORTLY, mode="reschedule", deferrable=False, **NEVER
    )
    TrainingJobSensor(task_id="poked", execution_timeout=SHORTLY, deferrable=False, **NEVER)
    TrainingJobSensor(task_id="skipped", timeout=20, soft_fail=True, **NEVER)

with DAG("decorated", schedule=None):

    @task
    def number() -> int:
        return 2

    @task.training(workers=2, policy={"restart": "never"})
    def train(a: int, b: int, run_id: str | None = None) -> dict[str, Any]:
        import os

        return {"sum": a + b, "world": int(os.environ["WORLD_SIZE"]), "run_id": run_id}

    train.partial(b=number()).expand(a=[1, 5])

with DAG("mapped", schedule=None):
    TrainingJobOperator.partial(task_id="train").expand(
        job=[gated("mapped", f"{{{{ run_id }}}}/{n}").as_mapping() for n in range(2)]
    )

FAST = "import time; from allaboard.inside import result; time.sleep(8); result(accuracy=0.95)"

with DAG("sweep", schedule=None):
    swept = TrainingJobOperator.partial(task_id="train", stop_rest_when="accuracy>=0.9").expand(
        job=grid(
            TrainingJob(name="swept", policy={"restart": "never"}, checkpoints={"uri": "store://lifecycle"}),
            {"command": [["python", "gated.py", "{{ run_id }}/0"], ["python", "-c", FAST],
                         ["python", "gated.py", "{{ run_id }}/2"]]},
        )
    )  # fmt: skip
    PickBestOperator(task_id="best", results=swept.output, metric="accuracy", mode="max")

"""Sweeps without Airflow's database: the best of several trainings, and the early end of the rest."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG

from allaboard import grid
from allaboard.backends.local.backend import LocalBackend
from allaboard.checkpoints import Manifest, save
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from allaboard.storage import open_store
from allaboard_provider.errors import TrainingFailed
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PickBestOperator,
    TrainingJobOperator,
)
from allaboard_provider.pages import RUN_KEY
from allaboard_provider.ui.database import Task, Where
from allaboard_provider.ui.models import models_of
from tests.provider.building import StateStore, TaskInstance, a_context
from tests.provider.test_train import event_of
from tests.waiting import wait_for

SAYS = "import time; from allaboard.inside import result; time.sleep({}); result(accuracy={})"
HANGS = "import time; time.sleep(300)"


def result(run: str, **metrics: Any) -> dict[str, Any]:
    return {"run": run, "state": "succeeded", "metrics": metrics, "checkpoints": {}}


# --- the best
# --------------------------------------------------------------------------------------------------------


@dataclass
class Told(TaskInstance):
    """A task instance to which Airflow tells these states of the trainings upstream."""

    states: dict[str, str] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)

    def get_task_states(self, **how: Any) -> dict[str, dict[str, str]]:
        self.asked.append(how)
        return {self.run_id: self.states}


def picks(results: Any, states: list[str] | None = None, **fields: Any) -> Any:
    with DAG("nightly"):
        train = TrainingJobOperator(task_id="train", job={})
        EvaluateOperator(task_id="other", job={}, checkpoint="a")
        best = PickBestOperator(
            task_id="best", results=results, **{"metric": "loss", "mode": "min", **fields}
        )
        train >> best
    ti = Told(task_id="best", states={f"train_{n}": state for n, state in enumerate(states or ())})
    picked = best.execute(a_context(ti))
    assert all(how["task_ids"] == ["train"] and how["run_ids"] == [ti.run_id] for how in ti.asked)
    return picked


def test_the_result_of_the_best_is_returned_as_its_task_returned_it() -> None:
    results = [result("a", loss=0.3), result("b", loss=0.1), result("c", loss=0.1)]
    picked = picks(results)
    assert {name: picked[name] for name in results[1]} == results[1]
    assert [row["name"] for row in picked["sweep"]["standings"]] == ["b", "c", "a"]
    assert picked["sweep"]["failed"] == 0 and json.loads(json.dumps(picked)) == picked
    assert picks(results, mode="max")["run"] == "a"
    assert picks(result("only", loss=1))["run"] == "only"


@pytest.mark.parametrize(
    ("states", "most_failed", "passes"),
    [
        (["success", "failed"], 0, False),
        (["success", "failed"], "1", True),
        (["success", "upstream_failed", "failed"], 1, False),
        (["success", "skipped", "skipped"], 0, True),
    ],
)
def test_how_many_most_failed_is_said(states: list[str], most_failed: Any, passes: bool) -> None:
    if passes:
        assert picks([result("a", loss=1)], states, most_failed=most_failed)["run"] == "a"
        return
    with pytest.raises(TrainingFailed, match=f"failed, and {most_failed} may") as refused:
        picks([result("a", loss=1)], states, most_failed=most_failed)
    assert refused.value.code == "sweep_failed" and refused.value.fields == ["most_failed"]


def test_a_run_without_a_number_is_told_and_never_wins() -> None:
    results = [result("a", loss=None), result("b", loss=2), None]
    picked = picks(results)
    assert picked["run"] == "b" and picked["sweep"]["standings"][1]["name"] == "a"
    assert picked["sweep"]["standings"][1]["trouble"]
    with pytest.raises(TrainingFailed, match="none of 1 training has a finite loss"):
        picks([result("a", loss=float("nan"))])
    with pytest.raises(TrainingFailed, match="no training of the sweep is left"):
        picks([], ["skipped"])


def test_the_result_is_small_however_many_trainings_there_are() -> None:
    picked = picks([result(str(n), loss=n) for n in range(1000)])
    assert picked["run"] == "0" and len(picked["sweep"]["standings"]) == 50


@pytest.mark.parametrize("odd", ["train", 7, [7], [[1]], None], ids=str)
def test_what_holds_no_results_is_refused(odd: Any) -> None:
    with pytest.raises(AirflowFailException, match="results"):
        picks(odd)


@pytest.mark.parametrize("odd", [-1, "some", 1.5, True, None])
def test_a_number_that_is_no_count_is_refused(odd: Any) -> None:
    with pytest.raises(AirflowFailException, match="most_failed"):
        picks([result("a", loss=1)], most_failed=odd)


def test_it_runs_however_the_trainings_ended() -> None:
    assert PickBestOperator(task_id="b", results=[], metric="a", mode="min").trigger_rule == "all_done"


# --- the best checkpoint of all
# --------------------------------------------------------------------------------------------------------


def saved(folder: Path, run: str, **losses: float) -> dict[str, Any]:
    for step, loss in losses.items():
        number = int(step.removeprefix("s"))
        save(open_store(folder / run), Manifest(step=number, run=run, metrics={"loss": loss}), {"a": b"x"})
    newest = f"{folder / run}/step-{max(int(s[1:]) for s in losses):012d}" if losses else None
    return {**result(run), "checkpoints": {"latest": newest, "best": None}}


def collected(results: Any, into: Path, **fields: Any) -> Any:
    operator = CollectCheckpointOperator(
        task_id="collect", source=results, into=str(into), allaboard_conn_id=None, **fields
    )
    return operator.execute(a_context())


def test_of_several_results_the_best_checkpoint_of_all_is_collected(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    results = [
        saved(runs, "a-1", s1=0.9, s2=0.5),
        saved(runs, "b-1"),
        saved(runs, "c-1", s1=0.2, s2=0.7),
        saved(runs, "d-1", s3=0.2, s4=0.2),
    ]
    for how in ({"which": "best", "metric": "loss"}, {"which": "best:loss:min"}):
        copy = collected(results, tmp_path / "into", **how)
        assert (copy["run"], copy["step"]) == ("c-1", 1), "of equals the first"
    copy = collected(results, tmp_path / "into", which="best", metric="loss", mode="max")
    assert (copy["run"], copy["step"]) == ("a-1", 1)
    with pytest.raises(AirflowFailException, match="of a list of results the best is collected"):
        collected(results, tmp_path / "into")
    with pytest.raises(AirflowFailException, match="'accuracy'; the metrics there are: loss"):
        collected(results, tmp_path / "into", which="best", metric="accuracy")


# --- the early end of the rest
# --------------------------------------------------------------------------------------------------------


class Mapped(TaskInstance):
    """A mapped task instance that sees the XComs of the others of its task."""

    others: dict[int, dict[str, Any]]

    def xcom_push(self, key: str, value: Any) -> None:
        self.others.setdefault(self.map_index, {})[key] = json.loads(json.dumps(value))

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        assert task_ids == self.task_id
        found = [left[key] for _, left in sorted(self.others.items()) if key in left]
        # As Airflow does: one value as it is, none as None.
        return found[0] if len(found) == 1 else found or [None]


class Sweep:
    """A mapped task in one DAG run."""

    def __init__(self, *codes: str, when: Any = "accuracy>=0.9", **fields: Any) -> None:
        job = {"name": "net", "policy": {"restart": "never"}}
        commands = [["python", "-c", code, str(n)] for n, code in enumerate(codes)]
        self.jobs, self.when, self.fields = grid(job, {"command": commands}), when, fields
        self.xcoms: dict[int, dict[str, Any]] = {}
        self.stores = [StateStore() for _ in codes]
        self.contexts: dict[int, Any] = {}

    def task(self, n: int) -> tuple[Any, Any]:
        ti = Mapped(map_index=n)
        ti.others = self.xcoms
        operator = TrainingJobOperator(
            task_id="train",
            job=self.jobs[n],
            allaboard_conn_id=None,
            stop_rest_when=self.when,
            **{"deferrable": False, **self.fields},
        )
        return operator, a_context(ti, self.stores[n])

    def run(self, n: int) -> Any:
        operator, context = self.task(n)
        return operator.execute(context)

    def seen(self, n: int) -> Observation:
        (found,) = (each for each in LocalBackend().list() if each.job == self.jobs[n].get("name"))
        return found


def test_a_run_that_is_good_enough_stops_the_deferred_rest_whose_tasks_are_skipped() -> None:
    sweep = Sweep(SAYS.format(0, 0.95), HANGS, HANGS, deferrable=True)
    waiting = []
    for n in (1, 2):
        operator, context = sweep.task(n)
        with pytest.raises(TaskDeferred) as deferral:
            operator.execute(context)
        waiting.append((operator, context, deferral.value))
    sweep.fields = {"deferrable": False}
    done = sweep.run(0)
    assert done["metrics"] == {"accuracy": 0.95}
    for n, (operator, context, deferral) in enumerate(waiting, 1):
        wait_for(lambda n=n: state_of(sweep.seen(n)).is_final)
        stop = sweep.seen(n).stop
        assert stop is not None and f"run {done['run']} has reached" in stop.reason
        with pytest.raises(AirflowSkipException, match="accuracy"):
            operator.execute_complete(context, event_of(deferral))


def test_a_rest_that_a_worker_follows_is_stopped_and_what_has_not_begun_is_skipped() -> None:
    sweep = Sweep(SAYS.format(0, 0.95), HANGS, HANGS)
    ends: list[BaseException] = []

    def follows() -> None:
        try:
            sweep.run(1)
        except BaseException as error:
            ends.append(error)

    worker = threading.Thread(target=follows)
    worker.start()
    wait_for(lambda: any(state_of(each).value == "running" for each in LocalBackend().list()))
    sweep.run(0)
    worker.join(60)
    assert [type(end) for end in ends] == [AirflowSkipException]
    with pytest.raises(AirflowSkipException, match="has reached what the sweep is for"):
        sweep.run(2)
    assert len(LocalBackend().list()) == 2, "the third has never begun"


def test_a_run_that_begins_while_another_one_reaches_it_stops_itself() -> None:
    """The other one left its mark after the first look, and saw no run of this one."""
    sweep = Sweep(SAYS.format(0, 0.95), HANGS)
    operator, context = sweep.task(1)
    pull, looks = context["ti"].xcom_pull, [0]

    def later(**how: Any) -> Any:
        looks[0] += 1
        if looks[0] == 2:
            sweep.run(0)
        return pull(**how)

    context["ti"].xcom_pull = later
    with pytest.raises(AirflowSkipException):
        operator.execute(context)
    assert looks[0] == 2 and state_of(sweep.seen(1)).value == "stopped"


@pytest.mark.parametrize("value", ["0.89", "float('nan')", "None"])
def test_a_run_that_is_not_good_enough_stops_nothing(value: str) -> None:
    sweep = Sweep(SAYS.format(0, value), SAYS.format(0, 0.2), when=["accuracy>=0.9", "accuracy<=1"])
    assert sweep.run(0)["state"] == "succeeded" and sweep.run(1)["state"] == "succeeded"


def test_runs_of_another_task_or_dag_run_are_none_of_the_rest() -> None:
    sweep, other = Sweep(SAYS.format(0, 0.95), HANGS), Sweep(HANGS, HANGS, deferrable=True)
    for n, change in enumerate(({"task_id": "other"}, {"run_id": "another"})):
        operator, context = other.task(n)
        for name, value in change.items():
            setattr(context["ti"], name, value)
        with pytest.raises(TaskDeferred):
            operator.execute(context)
    sweep.run(0)
    assert [state_of(each).value for each in LocalBackend().list()].count("running") == 2


@pytest.mark.parametrize(("when", "words"), [("accuracy", "is not understood"), ("a>=b", "a>=b")])
def test_a_threshold_that_is_none_is_refused_before_anything_begins(when: str, words: str) -> None:
    with pytest.raises(AirflowFailException, match=words):
        Sweep(HANGS, when=when).run(0)
    assert LocalBackend().list() == []


def test_a_task_that_is_not_mapped_has_no_rest() -> None:
    operator = TrainingJobOperator(
        task_id="train", job={"name": "a", "command": ["true"]}, allaboard_conn_id=None, stop_rest_when="a>=1"
    )
    with pytest.raises(AirflowFailException, match="this task is not mapped"):
        operator.execute(a_context())


def test_the_next_try_of_a_stopped_one_is_skipped_too() -> None:
    """Unless the one that reached it was cleared, and its mark with it."""
    sweep = Sweep(SAYS.format(0, 0.95), SAYS.format(0, 0.1))
    sweep.run(0)
    with pytest.raises(AirflowSkipException):
        sweep.run(1)
    del sweep.xcoms[0]
    assert sweep.run(1)["state"] == "succeeded"


# --- the tab Models
# --------------------------------------------------------------------------------------------------------


def test_the_tab_models_has_the_values_of_each_run() -> None:
    sweep = Sweep(SAYS.format(0, 0.5), when=None)
    sweep.jobs = grid(sweep.jobs[0], {"environment.LR": [0.1], "resources.cpu": [1]})
    done = sweep.run(0)
    named = sweep.xcoms[0][RUN_KEY]
    assert named["point"] == {"environment.LR": "0.1", "resources.cpu": 1}
    odd = [{"a" * 999: "b" * 999}, "text", {"LR": "\x1b[31m"}, {str(n): n for n in range(99)}]
    tasks = [
        Task(Where("d", "r", "train", n), result=done, named={**named, "point": point})
        for n, point in enumerate([named["point"], *odd])
    ]
    rows = models_of("d", tasks, 1, 0.0)["runs"]
    assert [row["point"] for row in rows][::2][0] == "LR 0.1, cpu 1" and rows[2]["point"] == ""
    assert all(len(row["point"]) < 1500 and "\x1b" not in row["point"] for row in rows)


def test_a_training_that_fails_is_no_early_end() -> None:
    sweep = Sweep("raise ValueError('odd')", SAYS.format(0, 0.2))
    with pytest.raises(AirflowException, match="odd"):
        sweep.run(0)
    assert sweep.run(1)["state"] == "succeeded"

"""DAG runs of one DAG, each with data of its own, side by side and cleared in every state, under a real
Airflow: no training is lost, and no model has seen a sample of another's data.

What a model has seen is told by its checkpoint, into which the members wrote the names that they found in the
samples which they really read.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.shards import load_index
from dags_examples.own_airflow import is_alive
from tests.provider.live import Live, Run, until

pytestmark = [
    pytest.mark.airflow_live,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]

_times = itertools.count(1_700_000_000, 1000)


class Side(Run):
    """A DAG run, and the raw data that it brings along."""

    def __init__(self, live: Live, dag: str, name: str, raw: Path) -> None:
        super().__init__(live, dag, name)
        self.raw = raw

    def bring(self, data: str, samples: int = 12) -> None:
        """From now on this is its raw data: every sample has the name of the data set in it."""
        self.raw.mkdir(parents=True, exist_ok=True)
        when = next(_times)
        for number in range(samples):
            path = self.raw / f"{number:03d}.txt"
            path.write_text(data)
            os.utime(path, (when, when))

    def clear_tasks(self, *task_ids: str, downstream: bool = False) -> None:
        body = {
            "dry_run": False, "dag_run_id": self.name, "task_ids": [*task_ids], "only_failed": False,
            "only_running": False, "include_downstream": downstream, "reset_dag_runs": True,
        }  # fmt: skip
        self.live.airflow.api("POST", f"/dags/{self.dag}/clearTaskInstances", body)

    def version(self) -> str:
        """What its prepare task has told."""
        return str(self.at("prepare").xcom()["uri"])

    def wait_steps(self, generation: int = 1, attempt: int = 1) -> None:
        def trains() -> bool:
            record = self.record()
            same = (record.generation, record.attempt) == (generation, attempt)
            # The progress of a further attempt begins with the checkpoint of the one before.
            begun = any((s.generation, s.attempt) == (generation, attempt) for s in self.starts())
            return same and begun and self.observe().progress.checkpoint is not None

        until(f"{self.name} saves in attempt {attempt} of generation {generation}", trains)

    def end(self) -> None:
        """The training ends well, and its model goes down the rest of the chain."""
        self.finish()
        (self.gate / "collect").touch()
        self.at("promote").wait_task("success")

    def model(self) -> dict[str, Any]:
        """The state in the checkpoint that this DAG run has collected."""
        (state,) = (path for path in Path(self.at("collect").xcom()["uri"]).iterdir() if is_state(path))
        found: dict[str, Any] = json.loads(state.read_bytes())
        return found

    def check(self, *data: str) -> None:
        """Its model has read this data and no other, which is that of its own prepare task."""
        model = self.model()
        assert model["read"] == [*data], self.log()
        assert model["data"]["data"] == load_index(self.version()).content
        assert self.record().data is not None and self.record().data.uri == self.version()  # type: ignore[union-attr]
        promoted = self.at("promote").xcom()
        mine = self.at("collect").xcom()
        assert promoted["champion"] is not None and mine["run"] == self.record().run


def is_state(path: Path) -> bool:
    return path.is_file() and path.suffix != ".json"


@pytest.fixture(scope="module")
def pool(live: Live) -> Iterator[Callable[[int], None]]:
    """Sets the slots that trainings may take."""

    body = {"name": "sides", "slots": 16, "include_deferred": False}

    def set_slots(count: int) -> None:
        live.airflow.api(
            "PATCH", "/pools/sides", {"name": "sides", "slots": count, "include_deferred": False}
        )

    live.airflow.api("POST", "/pools", body)
    yield set_slots
    set_slots(16)


@pytest.fixture
def sides(live: Live, pool: Callable[[int], None], tmp_path: Path) -> Callable[[str, str], Side]:
    def start(dag: str, data: str) -> Side:
        until(f"DAG {dag} is known", lambda: live.known(dag))
        name = f"{dag}-{data}-{time.monotonic_ns()}"
        side = Side(live, dag, name, tmp_path / name)
        side.bring(data)
        body = {"dag_run_id": name, "logical_date": None, "conf": {"raw": str(side.raw)}}
        live.airflow.api("POST", f"/dags/{dag}/dagRuns", body)
        side.at("prepare").wait_task("success")
        return side

    return start


Start = Callable[[str, str], Side]


def test_cleared_while_deferred_it_resumes_on_its_own_data_though_another_has_prepared(sides: Start) -> None:
    mine = sides("sides", "mine")
    mine.wait_watched()
    mine.wait_steps()
    other = sides("sides", "other")
    other.wait_watched()
    other.wait_steps()
    assert mine.version() != other.version() and not mine.record().outcome, "the other one has ended it"
    first = mine.pids()
    mine.clear()
    mine.wait_steps(attempt=2)
    assert not any(is_alive(pid) for pid in first), "two trainings at once"
    assert max(start.step for start in mine.starts() if start.attempt == 2) > 0, "it began from scratch"
    for side in (mine, other):
        side.end()
    mine.check("mine")
    other.check("other")
    assert other.record().attempt == 1


def test_cleared_while_deferred_with_new_data_it_is_a_new_generation(sides: Start) -> None:
    mine, other = sides("sides", "mine"), sides("sides", "other")
    for side in (mine, other):
        side.wait_watched()
        side.wait_steps()
    first = mine.pids()
    mine.bring("new")
    mine.clear_tasks("prepare", "train")
    mine.wait_steps(generation=2)
    assert not any(is_alive(pid) for pid in first), "two trainings at once"
    assert "its data has changed (" in mine.log() and "it trains from scratch" in mine.log()
    for side in (mine, other):
        side.end()
    mine.check("new")
    other.check("other")
    assert (other.record().generation, other.record().attempt) == (1, 1)


@pytest.mark.parametrize("data", ["mine", "new"])
def test_cleared_while_a_worker_follows(sides: Start, data: str) -> None:
    mine, other = sides("sides_sync", "mine"), sides("sides_sync", "other")
    for side in (mine, other):
        side.wait_steps()
    first = mine.pids()
    if data == "new":
        mine.bring(data)
    mine.clear_tasks("prepare", "train")
    mine.wait_steps(**({"generation": 2} if data == "new" else {"attempt": 2}))
    assert not any(is_alive(pid) for pid in first), "two trainings at once"
    for side in (mine, other):
        side.end()
    mine.check(data)
    other.check("other")
    assert (other.record().generation, other.record().attempt) == (1, 1)


def test_cleared_while_it_waits_for_a_slot(sides: Start, pool: Callable[[int], None]) -> None:
    pool(0)
    mine, other = sides("sides", "mine"), sides("sides", "other")
    for side in (mine, other):
        side.wait_task("scheduled")
    tried = mine.at("prepare").task()["try_number"]
    mine.bring("new")
    mine.clear_tasks("prepare", "train")
    until("it has prepared again", lambda: mine.at("prepare").task()["try_number"] > tried)
    mine.at("prepare").wait_task("success")
    pool(16)
    for side in (mine, other):
        side.wait_steps()
        side.end()
    mine.check("new")
    other.check("other")


@pytest.mark.parametrize("data", ["mine", "new"])
def test_cleared_between_two_steps(sides: Start, data: str) -> None:
    """The training has succeeded and its result was taken; what follows has not begun."""
    mine, other = sides("sides", "mine"), sides("sides", "other")
    for side in (mine, other):
        side.wait_steps()
        side.finish()
        side.wait_task("success")
    if data == "new":
        mine.bring(data)
    mine.clear_tasks("prepare", downstream=True)
    (mine.gate / "finish").unlink()
    mine.wait_steps(generation=2)
    for side in (mine, other):
        side.end()
    mine.check(data)
    other.check("other")


def test_a_retry_goes_on_with_the_data_of_its_own_dag_run(sides: Start) -> None:
    mine = sides("sides", "mine")
    mine.wait_steps()
    other = sides("sides", "other")
    mine.fail(1)
    mine.wait_steps(attempt=2)
    for side in (mine, other):
        side.end()
    mine.check("mine")
    other.check("other")


def test_many_at_once_end_with_models_of_their_own_and_one_history_of_champions(sides: Start) -> None:
    """A backfill is this: DAG runs of one DAG at the same time."""
    every = {data: sides("sides", data) for data in ("one", "two", "three")}
    for side in every.values():
        side.wait_steps()
    for side in every.values():
        side.end()
    for data, side in every.items():
        side.check(data)
    decisions = [side.at("promote").xcom() for side in every.values()]
    numbers = [decision["promotion"]["number"] for decision in decisions if decision["promoted"]]
    assert len(numbers) == len(set(numbers)) and all(decision["champion"] for decision in decisions)

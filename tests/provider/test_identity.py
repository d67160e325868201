"""Who a task instance is to the core: one owner per try and phase."""

from __future__ import annotations

import pytest

from allaboard.job.identity import airflow_key
from allaboard.runs.observation import Owner
from allaboard_provider import identity
from allaboard_provider.identity import in_triggerer, is_of_task, on_worker, stopping
from tests.provider.building import TaskInstance


def test_a_task_without_a_store_reads_the_name_again_that_it_has_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before Airflow 3.3. Another task made one at the same moment, and theirs is the one that stays."""
    monkeypatch.delenv("AIRFLOW__ALLABOARD__INSTANCE")
    variables: dict[str, str] = {}
    monkeypatch.setattr(identity.Variable, "get", lambda name, default=None: variables.get(name, default))
    monkeypatch.setattr(identity.Variable, "set", lambda name, value, _: variables.update({name: value}))
    slept: list[float] = []

    def pause(seconds: float) -> None:
        slept.append(seconds)
        variables[identity.VARIABLE] = "theirs"

    assert identity.instance({}, pause) == identity.instance({}, pause) == "theirs"
    assert slept == [1.0]


def test_a_worker_that_is_gone_for_good_leaves_a_run_that_ends_by_itself() -> None:
    ti = TaskInstance()
    assert on_worker(ti) == Owner(str(ti.id), "worker", "attached")


def test_a_worker_that_is_killed_leaves_its_run_to_the_next_try_as_long_as_there_is_one() -> None:
    for tries, expected in ((1, "orchestrated"), (2, "orchestrated"), (3, "attached")):
        assert on_worker(TaskInstance(try_number=tries, max_tries=2)).kind == expected


def test_a_triggerer_that_is_away_stops_nothing() -> None:
    assert in_triggerer("try 1") == Owner("try 1", "deferred", "orchestrated")


def test_whoever_stops_a_run_owns_it_first_and_a_new_try_still_starts_anew() -> None:
    """Should it die before it has stopped the run, the run's own supervisor stops it: nobody follows an
    attached one.
    """
    owner = stopping("try 1")
    assert owner.id != "try 1" and owner.phase == "deferred" and owner.kind == "attached"


@pytest.mark.parametrize("key", ["nightly", "[" * 100_000, "3", '"airflow"', "[]", '["kfp", "a", "d", "r"]'])
def test_a_key_of_others_is_of_no_task(key: str) -> None:
    assert not is_of_task(key, "d", "r")


def test_a_key_is_of_its_task_and_of_its_dag_run() -> None:
    key = airflow_key("here", "d", "r", "t", 3)
    assert is_of_task(key, "d", "r") and is_of_task(key, "d", "r", "t", 3)
    assert not is_of_task(key, "d", "r", "t") and not is_of_task(key, "d", "another")

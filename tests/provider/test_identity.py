"""Who a task instance is to the core: one owner per try and phase."""

from __future__ import annotations

from allaboard.observation import Owner
from allaboard_provider.identity import in_triggerer, on_worker, stopping
from tests.provider.building import TaskInstance


def test_a_worker_that_is_gone_for_good_leaves_a_run_that_ends_by_itself() -> None:
    ti = TaskInstance()
    assert on_worker(ti) == Owner(str(ti.id), "worker", "attached")


def test_a_triggerer_that_is_away_stops_nothing() -> None:
    assert in_triggerer("try 1") == Owner("try 1", "deferred", "orchestrated")


def test_whoever_stops_a_run_owns_it_first_and_a_new_try_still_starts_anew() -> None:
    """Should it die before it has stopped the run, the run's own supervisor stops it: nobody follows an
    attached one.
    """
    owner = stopping("try 1")
    assert owner.id != "try 1" and owner.phase == "deferred" and owner.kind == "attached"

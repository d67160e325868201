"""What the tests of several hosts share: how many DAG runs meet a fault at once, how its moment is reached,
and what must hold afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from allaboard_provider.homes import MARGIN
from tests.provider.hosts.deployment import PATIENCE, Deployment, HostRun
from tests.provider.live import until

BOUND = PATIENCE + 60.0
"""Seconds within which a run has ended that nobody follows any more, its members' grace included."""
HELD = "follows the run to its end"
"""In the log of a worker that does not defer."""
EVERY = 10
"""Steps between two saves of a training (dags/journaled.py)."""
RUNS = 10
"""DAG runs that meet a fault at once: a worker has a place for each."""

marks = [pytest.mark.slow, pytest.mark.airflow_live, pytest.mark.thorough, pytest.mark.timeout(1800)]


few = pytest.mark.parametrize("count", [2, pytest.param(RUNS, marks=pytest.mark.endurance)])
"""So many DAG runs meet the fault at once; in the long form as many as elsewhere."""


def train(airflow: Deployment, dag: str, count: int = RUNS, beyond: int = 0) -> list[HostRun]:
    """Start so many DAG runs, and wait until each of them trains, ``beyond`` that step."""
    runs = [airflow.run_dag(dag) for _ in range(count)]
    for run in runs:
        run.wait_training(beyond=beyond)
    return runs


def wait_settled(run: HostRun) -> str:
    """Until the first worker has deferred, or follows the run itself; the task's state then."""

    def look() -> str | None:
        state: str = run.task()["state"]
        return state if state == "deferred" or (state == "running" and HELD in run.log()) else None

    return until(f"the worker of {run.name} has deferred, or says that it does not", look)


def wait_watched(*runs: HostRun) -> None:
    """Until each of them is deferred, and a triggerer has its trigger."""
    for run in runs:
        assert wait_settled(run) == "deferred", run.story()
        until(f"a triggerer watches {run.name}", lambda run=run: run.task()["triggerer_job"])


def wait_taken(run: HostRun) -> str:
    """Until a worker has taken the resume or the next try, or the task is over."""

    def look() -> str | None:
        state: str | None = run.task()["state"]
        return state if state not in (None, "deferred", "scheduled", "queued") else None

    return until(f"a worker takes the task of {run.name}", look)


def why_none_goes_on(runs: Sequence[HostRun], seconds: float) -> str | None:
    """What has ended or begun anew meanwhile, in words; None: all of them have trained for so long."""
    begun, end = [run.trainings() for run in runs], time.monotonic() + seconds
    while time.monotonic() < end:
        for run, before in zip(runs, begun, strict=True):
            if run.trainings() != before or time.time() - run.members()[-1].last > 10:
                return run.story()
        time.sleep(0.5)
    return None


def go_on(seconds: float, *runs: HostRun) -> None:
    """All of them train for so long, without a new start."""
    assert (why := why_none_goes_on(runs, seconds)) is None, why


def end_well(airflow: Deployment, *runs: HostRun, once: bool = True) -> None:
    """Let them end well: each task is a success then, no two trainings of it were on at once, and nothing is
    left: no training, no task that goes on. ``once``: each has had one training, which nobody stopped.
    """
    for run in runs:
        run.finish()
    for run in runs:
        assert run.wait_over() == "success", run.story()
    for run in runs:
        run.wait_quiet()
        run.assert_never_two()
        if once:
            run.assert_trained_once()
    nothing_is_left(airflow)
    print(f"{len(runs)} right ends")


def nothing_is_left(airflow: Deployment) -> None:
    """No host has a process of a training, and Airflow no task that has not ended."""

    def is_clean() -> bool:
        return not airflow.left_behind()

    try:
        until("nothing is left", is_clean, 60)
    except AssertionError:
        raise AssertionError("\n".join(["left behind:", *airflow.left_behind()])) from None


def wait_ended(what: str, runs: Sequence[HostRun]) -> None:
    """Until the first training of each has ended, within `BOUND`: no member of it writes any more."""
    began = time.monotonic()

    def has_ended(run: HostRun) -> bool:
        first = run.trainings()[0]
        return all(time.time() - one.last > 2 for one in run.members() if one.training == first)

    for run in runs:
        until(f"{what}: the training of {run.name} has ended", lambda run=run: has_ended(run), BOUND)
        print(f"{what}: {run.name} ended after {time.monotonic() - began:.0f} s")


def on_east(airflow: Deployment) -> list[HostRun]:
    """Runs that train in the east, each followed by its worker, though any host may take them."""
    with airflow.only("east"):
        return train(airflow, "anywhere_sync", beyond=20)


def go_on_in_the_west(runs: Sequence[HostRun]) -> None:
    """The next try of each resumes there, within what it takes at most: Airflow finds out, the run has surely
    ended, and members start.
    """
    for run in runs:
        second = run.wait_training(2, seconds=BOUND + MARGIN + 120.0)
        assert second.host == "west" and second.first_step > 0, run.story()


def stand_still_and_wake(airflow: Deployment) -> None:
    """The east stands still, as a paused machine does, until the next tries train in the west. It wakes then,
    saves nothing more, and its trainings end at their first save.
    """
    runs = on_east(airflow)
    airflow.host("east").freeze()
    before = [run.members()[-1].last_step for run in runs]
    go_on_in_the_west(runs)
    airflow.host("east").thaw()
    wait_ended("woke beside its next try", runs)
    for run, step in zip(runs, before, strict=True):
        [east] = [one for one in run.members() if one.host == "east"]
        assert east.last_step <= step + EVERY, run.story()
    go_on(20, *runs)
    for run in runs:
        run.finish()
    for run in runs:
        assert run.wait_over() == "success", run.story()
        run.wait_quiet()
        assert len(run.trainings()) == 2, run.story()
    nothing_is_left(airflow)
    print(f"{len(runs)} right ends")

"""What the tests of several hosts share: how often a fault is tried, and how its moment is reached."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.provider.hosts.deployment import PATIENCE, HostRun
from tests.provider.live import until

BOUND = PATIENCE + 60.0
"""Seconds within which a run has ended that nobody follows any more, its members' grace included."""
HELD = "follows the run to its end"
"""In the log of a worker that does not defer."""

marks = [pytest.mark.slow, pytest.mark.airflow_live, pytest.mark.timeout(900)]


def times(count: int = 10) -> pytest.MarkDecorator:
    """Once; as often as that in the long form."""
    more = (pytest.param(n, marks=pytest.mark.endurance) for n in range(1, count))
    return pytest.mark.parametrize("again", [0, *more])


def wait_settled(run: HostRun) -> str:
    """Until the first worker has deferred, or follows the run itself; the task's state then."""

    def look() -> str | None:
        state: str = run.task()["state"]
        return state if state == "deferred" or (state == "running" and HELD in run.log()) else None

    return until(f"the worker of {run.name} has deferred, or says that it does not", look)


def wait_taken(run: HostRun) -> str:
    """Until a worker has taken the resume or the next try, or the task is over."""

    def look() -> str | None:
        state: str | None = run.task()["state"]
        return state if state not in (None, "deferred", "scheduled", "queued") else None

    return until(f"a worker takes the task of {run.name}", look)


def goes_on(run: HostRun, seconds: float, so_far: Callable[[], bool] = lambda: True) -> bool:
    """Whether it trains for so long, without a new start."""
    begun, end = run.trainings(), time.monotonic() + seconds
    while time.monotonic() < end:
        last = run.members()[-1]
        if run.trainings() != begun or time.time() - last.last > 10 or not so_far():
            return False
        time.sleep(0.5)
    return True


def wait_good_end(run: HostRun) -> None:
    """Let it end well: the task is a success then, and nothing trains any more."""
    run.finish()
    assert run.wait_over() == "success", run.story()
    run.wait_quiet()
    run.assert_never_two()

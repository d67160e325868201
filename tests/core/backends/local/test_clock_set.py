"""Somebody sets the machine's clock while runs go on: deadlines, delays and ages are as if nobody had."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.clock import Moment
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended, supervisors_begin_with, wait_for

ME = Owner("me", kind="detached")
SLEEP = "import time; time.sleep(600)"
DAY = 86_400.0
CLOCK = """
import time
real = time.time
def wall():
    with open({file!r}) as file:
        return real() + float(file.read() or 0)
time.time = wall
"""


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock that supervisors and their keepers read, ahead by so many seconds."""
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    supervisors_begin_with(CLOCK.format(file=str(ahead)), tmp_path / "clock.py", monkeypatch)

    def set_ahead(seconds: float) -> None:
        made = tmp_path / "made"
        made.write_text(str(seconds))
        made.replace(ahead)

    return set_ahead


@pytest.mark.thorough
@pytest.mark.parametrize("by", [DAY, -DAY])
def test_a_deadline_is_kept_whoever_sets_the_clock(
    backend: LocalBackend, folder: Path, set_clock: Callable[[float], None], by: float
) -> None:
    late = a_plan(folder, SLEEP, key="late", workers=1, policy={"deadline": "1h"})
    soon = a_plan(folder, SLEEP, key="soon", workers=1, policy={"deadline": "8s"})
    runs = [backend.launch(plan, ME).run for plan in (late, soon)]
    for run in runs:
        wait_for(lambda run=run: state_of(backend.observe(run)) is State.RUNNING)  # type: ignore[misc]
    begun = time.monotonic()
    set_clock(by)
    seen = ended(backend, runs[1], seconds=40)
    assert state_of(seen) is State.TIMED_OUT
    assert time.monotonic() - begun < 30
    seen = backend.observe(runs[0])
    assert state_of(seen) is State.RUNNING
    assert seen.started is not None and abs(time.time() + by - seen.started) < 120, "by the clock as it is"
    assert 0 <= sum(seconds or 0 for seconds in seen.phases.values()) < 120


def test_a_ttl_and_old_records_count_what_has_passed(backend: LocalBackend, folder: Path) -> None:
    run = backend.launch(a_plan(folder, "pass", workers=1, policy={"ttl": "1h"}), ME).run
    ended(backend, run)
    now = Moment.now()
    backend.housekeep(now._replace(wall=now.wall + 1000 * DAY))
    assert backend.find(run).attempts(), "neither its logs nor its record have gone"
    backend.housekeep(now.later(3700)._replace(wall=now.wall - 1000 * DAY))
    assert not backend.find(run).attempts()


def test_a_look_at_a_run_does_not_count_it(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = backend.launch(a_plan(folder, SLEEP, workers=1), ME).run
    wait_for(lambda: state_of(backend.observe(run)) is State.RUNNING)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + DAY)
    assert sum(seconds or 0 for seconds in backend.observe(run).phases.values()) < 120


def test_an_age_of_another_boot_is_one_by_the_machines_clock(backend: LocalBackend, folder: Path) -> None:
    run = backend.launch(a_plan(folder, "pass", workers=1, policy={"ttl": "1h"}), ME).run
    ended(backend, run)
    state = backend.find(run).attempt(1, 1).state
    state.write_text(json.dumps({**json.loads(state.read_text()), "boot": "before"}))
    now = Moment.now()
    backend.housekeep(now._replace(wall=now.wall + 3000))
    assert backend.find(run).attempts()
    backend.housekeep(now._replace(wall=now.wall + 3700))
    assert not backend.find(run).attempts()

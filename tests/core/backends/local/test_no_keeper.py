"""A keeper that cannot be started fails its run with a sentence."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from allaboard import State
from allaboard.backends.local.backend import LocalBackend
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import (
    a_plan,
    ended,
    processes_of,
    supervisor_and_keeper,
    supervisors_begin_with,
)
from tests.core.backends.local.test_backend import ME, SLEEP, running

FAILS = """
import errno, os
from allaboard.backends.local.supervisor.reaper import Keeper
plain, begun = Keeper.start, []
def start(*words, **named):
    begun.append(1)
    if len(begun) > {first}:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return plain(*words, **named)
Keeper.start = start
"""


def test_the_first_one(
    backend: LocalBackend, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisors_begin_with(FAILS.format(first=0), tmp_path / "fails.py", monkeypatch)
    run = backend.launch(a_plan(folder, SLEEP, resources={"cpu": 0.5}), ME).run
    seen = ended(backend, run, 60)
    assert state_of(seen) is State.FAILED and processes_of(backend, run) == []
    assert (
        "no member can be started: no process could be made: the process limit" in seen.conditions[-1].message
    )


def test_the_one_after_a_keeper_that_was_killed(
    backend: LocalBackend, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisors_begin_with(FAILS.format(first=1), tmp_path / "fails.py", monkeypatch)
    run = backend.launch(a_plan(folder, SLEEP), ME).run
    running(backend, run)
    os.kill(supervisor_and_keeper(backend, run)[1], signal.SIGKILL)
    seen = ended(backend, run, 60)
    assert state_of(seen) is State.LOST and processes_of(backend, run) == []
    trouble = "its keeper was killed, and no process could be made: the process limit"
    assert seen.notes[-1].startswith(f"its supervisor ended with: error: {trouble}")

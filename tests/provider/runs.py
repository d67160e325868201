"""Looking at the runs of the home that each test has for itself (see conftest.py), and ending them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of


def stop(seen: Observation, by: str = "tests") -> None:
    """Kill a run, as ``by``, and wait until it has ended."""
    assert seen.owner is not None and seen.uid is not None
    handle = Handle(seen.run, seen.attempt, seen.generation, seen.uid)
    LocalBackend().stop(handle, seen.owner, by, "the test is over", kill=True)
    wait(lambda: state_of(LocalBackend().observe(seen.run)).is_final)


def wait(look: Callable[[], Any], seconds: float = 120) -> None:
    """Until ``look`` finds something true."""
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end
        time.sleep(0.02)


def only_run() -> Observation:
    """The one run of this test."""
    (seen,) = LocalBackend().list()
    return seen

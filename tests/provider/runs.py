"""Looking at the runs of the home that each test has for itself (see conftest.py), and ending them."""

from __future__ import annotations

from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from tests.waiting import wait_for


def stop(seen: Observation, by: str = "tests") -> None:
    """Kill a run, as ``by``, and wait until it has ended."""
    assert seen.owner is not None and seen.uid is not None
    handle = Handle(seen.run, seen.attempt, seen.generation, seen.uid)
    LocalBackend().stop(handle, seen.owner, by, "the test is over", kill=True)
    wait_for(lambda: state_of(LocalBackend().observe(seen.run)).is_final)


def only_run() -> Observation:
    """The one run of this test."""
    (seen,) = LocalBackend().list()
    return seen

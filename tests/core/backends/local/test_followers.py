"""A run that nobody follows ends by itself, after a bounded time that its kind of owner has; nothing else is
taken for that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from allaboard.backends.local.backend import ATTACHED_SECONDS, ORCHESTRATED_SECONDS, LocalBackend
from allaboard.errors import BadInput
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended, supervisor_and_keeper, wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
WORKER = Owner("me", kind="orchestrated")
TRIGGER = Owner("me", "deferred", "orchestrated")
FOLLOW = """
import sys
from allaboard.backends.local.backend import LocalBackend
backend = LocalBackend()
with backend.changes(sys.argv[1]) as changes:
    print("follows", flush=True)
    while True:
        changes.wait(0.5)
"""


@pytest.fixture
def patient(backend: LocalBackend) -> LocalBackend:
    """With a bound that a follower keeps who gets no turn for some seconds."""
    backend.patience = backend.orchestrated_patience = 8.0
    return backend


@pytest.fixture
def hasty(backend: LocalBackend) -> LocalBackend:
    """With a bound that nobody has to keep."""
    backend.patience = backend.orchestrated_patience = 1.0
    return backend


def is_live(backend: LocalBackend, run: str) -> bool:
    return not state_of(backend.observe(run)).is_final


def assert_abandoned(seen: Observation, bound: str = "8.0 s") -> None:
    assert state_of(seen) is State.STOPPED and seen.stop is not None and seen.stop.by == "allaboard"
    assert seen.stop.reason == (
        f"nobody followed this run for {bound}, neither a task nor a triggerer; "
        "the next try of its task resumes it"
    )


@contextmanager
def watched(backend: LocalBackend, run: str) -> Iterator[None]:
    """A trigger looks at it every half second."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            backend.watch_over(run)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_bounds_are_those_of_the_documents(backend: LocalBackend) -> None:
    assert (ATTACHED_SECONDS, ORCHESTRATED_SECONDS) == (600.0, 3600.0)
    assert backend.orchestrated_patience == 3600.0
    short = {**backend.environ, "ALLABOARD_ORCHESTRATED_PATIENCE": "90m"}
    assert LocalBackend(short).orchestrated_patience == 5400.0
    assert LocalBackend(short, orchestrated_patience=7.0).orchestrated_patience == 7.0
    with pytest.raises(BadInput, match=r"ALLABOARD_ORCHESTRATED_PATIENCE='soon': .* write it like 2h"):
        LocalBackend({**backend.environ, "ALLABOARD_ORCHESTRATED_PATIENCE": "soon"})


@pytest.mark.thorough(but=("deferred",))
@pytest.mark.parametrize("owner", [WORKER, TRIGGER], ids=["worker", "deferred"])
def test_an_orchestrated_run_that_nobody_follows_ends_and_its_next_try_resumes(
    hasty: LocalBackend, folder: Path, owner: Owner
) -> None:
    plan = a_plan(folder, SLEEP, workers=1)
    handle = hasty.launch(plan, owner)
    assert_abandoned(ended(hasty, handle.run), "1.0 s")
    again = hasty.launch(plan, Owner("the next try", kind="orchestrated"))
    assert (again.run, again.attempt, again.adopted) == (handle.run, 2, False)


@pytest.mark.thorough
def test_an_orchestrated_run_without_a_further_try_lives_no_longer_than_the_bound(
    backend: LocalBackend, folder: Path
) -> None:
    """It counts as attached then, whose time is longer here."""
    backend.patience, backend.orchestrated_patience = 600.0, 1.0
    handle = backend.launch(a_plan(folder, SLEEP, workers=1), WORKER)
    backend.adopt(handle, WORKER, replace(WORKER, kind="attached"))
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.STOPPED and seen.stop is not None and "for 1 s" in seen.stop.reason
    mine = backend.launch(a_plan(folder, "import time; time.sleep(3)", workers=1, key="mine"), Owner("me"))
    assert state_of(ended(backend, mine.run)) is State.SUCCEEDED


@pytest.mark.thorough
@pytest.mark.parametrize("times", [3.0])
def test_a_run_that_a_trigger_follows_lives_and_ends_once_the_trigger_is_gone(
    patient: LocalBackend, folder: Path, times: float
) -> None:
    handle = patient.launch(a_plan(folder, SLEEP, workers=1), TRIGGER)
    with watched(patient, handle.run):
        time.sleep(times * 8.0)
        assert is_live(patient, handle.run)
    assert_abandoned(ended(patient, handle.run))


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_follower_that_is_killed_or_frozen_follows_nothing(
    patient: LocalBackend, folder: Path, how: signal.Signals
) -> None:
    handle = patient.launch(a_plan(folder, SLEEP, workers=1), WORKER)
    follower = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, handle.run], env=patient.environ, stdout=subprocess.PIPE
    )
    try:
        assert follower.stdout is not None and follower.stdout.readline() == b"follows\n"
        time.sleep(2)
        assert is_live(patient, handle.run)
        follower.send_signal(how)
        assert_abandoned(ended(patient, handle.run))
    finally:
        follower.kill()
        follower.communicate()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["attached", "orchestrated"])
def test_a_supervisor_that_stood_still_gives_its_followers_their_time_anew(
    patient: LocalBackend, folder: Path, kind: str
) -> None:
    """A suspended container: supervisor and followers stand still, and the supervisor wakes first."""
    handle = patient.launch(a_plan(folder, SLEEP, workers=1), Owner("me", kind=kind))
    wait_for(lambda: state_of(patient.observe(handle.run)) is State.RUNNING)
    supervisor, _ = supervisor_and_keeper(patient, handle.run)
    patient.watch_over(handle.run)
    time.sleep(6.0)  # it has seen that; a sign that it finds when it wakes would be news
    os.kill(supervisor, signal.SIGSTOP)
    time.sleep(10.0)
    os.kill(supervisor, signal.SIGCONT)
    time.sleep(4.0)
    assert is_live(patient, handle.run), patient.observe(handle.run).stop
    with watched(patient, handle.run):
        time.sleep(8.0)
        assert is_live(patient, handle.run)
    assert state_of(ended(patient, handle.run)) is State.STOPPED


@pytest.mark.thorough
def test_a_queued_run_is_held_to_the_same_bound(patient: LocalBackend, folder: Path) -> None:
    from allaboard.backends.local.host.machine import cpus

    whole = {"cpu": cpus()}
    detached = Owner("other", "detached", "detached")
    holder = patient.launch(a_plan(folder, SLEEP, "holder", workers=1, resources=whole), detached)
    wait_for(lambda: state_of(patient.observe(holder.run)) is State.RUNNING)
    followed = patient.launch(a_plan(folder, SLEEP, "followed", workers=1, resources=whole), TRIGGER)
    left = patient.launch(a_plan(folder, SLEEP, "left", workers=1, resources=whole), TRIGGER)
    with watched(patient, followed.run):
        assert_abandoned(ended(patient, left.run))
        time.sleep(8.0)
        assert state_of(patient.observe(followed.run)) is State.QUEUED
    assert_abandoned(ended(patient, followed.run))
    assert is_live(patient, holder.run)

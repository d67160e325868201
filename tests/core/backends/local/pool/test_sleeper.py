"""A queued run is one small process that waits for ever, hears what is asked, and starts when it can."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host import shared_files as files
from allaboard.backends.local.host.machine import capacity, cpus
from allaboard.backends.local.pool.pool import Pool
from allaboard.backends.local.state.records import read_record
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended, processes_of, supervisor_and_keeper, wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
ME = Owner("me", kind="detached")
SLEEP, QUICK = "import time; time.sleep(600)", "pass"
WHOLE = {"cpu": cpus()}


def launch(
    backend: LocalBackend,
    folder: Path,
    key: str,
    script: str = QUICK,
    cpu: float | None = None,
    **more: object,
) -> Handle:
    resources = WHOLE if cpu is None else {"cpu": cpu}
    return backend.launch(a_plan(folder, script, key=key, workers=1, resources=resources, **more), ME)


def state(backend: LocalBackend, run: str) -> State:
    return state_of(backend.observe(run))


def holder(backend: LocalBackend, folder: Path) -> Handle:
    handle = launch(backend, folder, "holder", SLEEP)
    wait_for(lambda: state(backend, handle.run) is State.RUNNING)
    return handle


def stop(backend: LocalBackend, handle: Handle) -> None:
    backend.stop(handle, ME, "test", "enough")


def sleeper(backend: LocalBackend, run: str) -> int | None:
    """The process of a queued run, once it is the small one."""
    record = read_record(backend.find(run))
    assert record is not None
    attempt = backend.find(run).attempt(record.generation, record.attempt).path
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if os.fsencode(attempt) in words and any(word.endswith(b"/sleeper.py") for word in words):
                return int(process.name)
    return None


def resting(backend: LocalBackend, run: str) -> int:
    return wait_for(lambda: sleeper(backend, run))  # type: ignore[return-value]


def queued(backend: LocalBackend, folder: Path, key: str, script: str = QUICK, **more: object) -> Handle:
    handle = launch(backend, folder, key, script, **more)  # type: ignore[arg-type]
    assert resting(backend, handle.run)
    assert state(backend, handle.run) is State.QUEUED
    return handle


def lookout(backend: LocalBackend) -> int | None:
    """The pid of whoever holds the lock of the lookout."""
    ((_, home),) = files.user_folders(backend.environ["ALLABOARD_POOL"])
    try:
        inode = f":{Path(home, 'lookout').stat().st_ino} "
    except FileNotFoundError:
        return None
    for line in Path("/proc/locks").read_text().splitlines():
        if inode in line and "FLOCK" in line:
            return int(line.split()[4])
    return None


def test_a_queued_run_is_one_small_process_and_starts_when_it_can(
    backend: LocalBackend, folder: Path
) -> None:
    first = holder(backend, folder)
    second = queued(backend, folder, "second")
    pid = resting(backend, second.run)
    pages = (Path("/proc") / str(pid) / "statm").read_text().split()
    assert (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") < 6 << 20
    assert not (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text().split()
    stop(backend, first)
    assert state_of(ended(backend, second.run)) is State.SUCCEEDED


@pytest.mark.thorough
def test_the_reason_for_waiting_is_always_of_today(backend: LocalBackend, folder: Path) -> None:
    first = holder(backend, folder)
    second, third = queued(backend, folder, "second", SLEEP), queued(backend, folder, "third")
    written = backend.find(third.run).attempt(1, 1).state
    before = written.stat().st_mtime_ns
    why = backend.observe(third.run).waiting or ""
    assert ", 1 before it: it needs" in why and why.endswith(f"which run {first.run} uses")
    stop(backend, first)
    wait_for(lambda: state(backend, second.run) is State.RUNNING)
    wait_for(lambda: (backend.observe(third.run).waiting or "").endswith(f"which run {second.run} uses"))
    assert written.stat().st_mtime_ns == before, "nobody has written anything for it"
    (listed,) = [seen for seen in backend.list() if seen.run == third.run]
    assert listed.waiting == backend.observe(third.run).waiting
    stop(backend, second)
    ended(backend, third.run)


def test_a_queued_run_hears_stop_suspend_resume_and_delete(backend: LocalBackend, folder: Path) -> None:
    first = holder(backend, folder)
    stopped, paused, deleted = (queued(backend, folder, key) for key in ("stopped", "paused", "deleted"))
    stop(backend, stopped)
    assert state_of(ended(backend, stopped.run)) is State.STOPPED
    backend.suspend(paused.run)
    wait_for(lambda: state(backend, paused.run) is State.SUSPENDED)
    assert resting(backend, paused.run)
    backend.delete(deleted.run)
    assert backend.observe(deleted.run).deleted
    stop(backend, first)
    ended(backend, first.run)
    assert state(backend, paused.run) is State.SUSPENDED
    backend.resume(paused.run)
    seen = ended(backend, paused.run)
    assert state_of(seen) is State.SUCCEEDED
    reasons = [event.reason for event in backend.events(paused.run)]
    assert reasons.count("PyTorchJobCreated") == 1 and "PyTorchJobResumed" in reasons


@pytest.mark.thorough
def test_a_queued_run_can_be_adopted_and_an_abandoned_one_is_stopped(
    backend: LocalBackend, folder: Path
) -> None:
    backend.patience = 2.0
    first = holder(backend, folder)
    adopted = queued(backend, folder, "adopted")
    other = Owner("other", kind="attached")
    backend.adopt(adopted, ME, other)
    seen = ended(backend, adopted.run)
    assert state_of(seen) is State.STOPPED
    assert seen.stop is not None and "no client followed" in seen.stop.reason
    stop(backend, first)


def test_a_queued_run_that_is_told_to_end_is_stopped_and_not_lost(
    backend: LocalBackend, folder: Path
) -> None:
    first = holder(backend, folder)
    second = queued(backend, folder, "second")
    os.kill(resting(backend, second.run), signal.SIGTERM)
    seen = ended(backend, second.run)
    assert state_of(seen) is State.STOPPED and seen.stop is not None and seen.stop.by == "SIGTERM"
    stop(backend, first)


@pytest.mark.thorough
def test_the_clock_of_the_queue_runs_while_it_sleeps(backend: LocalBackend, folder: Path) -> None:
    first = holder(backend, folder)
    late = launch(backend, folder, "late", policy={"clocks": {"admitted": "3s"}})
    assert state_of(ended(backend, late.run)) is State.TIMED_OUT
    stop(backend, first)


@pytest.mark.thorough
def test_whoever_is_killed_in_the_queue_loses_only_his_own_run(backend: LocalBackend, folder: Path) -> None:
    first = holder(backend, folder)
    runs = [queued(backend, folder, f"k{n}") for n in range(4)]
    head, watching = resting(backend, runs[0].run), wait_for(lambda: lookout(backend))
    killed = [run.run for run in runs if resting(backend, run.run) in (head, watching)]
    for pid in {head, watching}:
        os.kill(pid, signal.SIGKILL)
    for run in killed:
        assert state_of(ended(backend, run)) is State.LOST
    stop(backend, first)
    for run in runs:
        if run.run not in killed:
            assert state_of(ended(backend, run.run)) is State.SUCCEEDED
    again = launch(backend, folder, "k0")
    assert state_of(ended(backend, again.run)) is State.SUCCEEDED


def test_a_gang_that_is_killed_outright_gives_way_to_the_next(backend: LocalBackend, folder: Path) -> None:
    first = holder(backend, folder)
    second = queued(backend, folder, "second")
    wait_for(lambda: lookout(backend))
    supervisor, keeper = supervisor_and_keeper(backend, first.run)
    for pid in (supervisor, keeper):
        os.kill(pid, signal.SIGKILL)
    assert state_of(ended(backend, second.run, 60)) is State.SUCCEEDED


@pytest.mark.thorough
def test_a_pool_that_cannot_be_used_is_waited_for(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    backend.environ["ALLABOARD_POOL"] = str(tmp_path / "not yet" / "pool")
    run = launch(backend, folder, "early").run

    def waits() -> Observation | None:
        seen = backend.observe(run)
        return seen if "No such file or directory" in (seen.waiting or "") else None

    seen = wait_for(waits)
    assert state_of(seen) is State.QUEUED and "tries again" in (seen.waiting or "")
    (tmp_path / "not yet").mkdir()
    assert state_of(ended(backend, run, 60)) is State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_a_hundred_detached_runs_behind_one_that_holds_the_pool_all_succeed(
    backend: LocalBackend, folder: Path
) -> None:
    """Each small, each says its place in the line, and each gets its turn."""
    alone = Owner("nobody", "detached", "detached")

    def start(key: str, script: str, cpu: float) -> str:
        plan = a_plan(folder, script, key=key, workers=1, resources={"cpu": cpu})
        return backend.launch(plan, alone).run

    first = start("first", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n", cpus())
    wait_for(lambda: state(backend, first) is State.RUNNING)
    runs = [first, *(start(f"k{n}", "pass", cpus() / 2) for n in range(100))]
    waiting = {State.RUNNING: 1, State.QUEUED: 100}
    wait_for(lambda: Counter(state_of(seen) for seen in backend.list()) == waiting)
    for run in runs[1:]:
        resting(backend, run)
    places = [seen.waiting or "" for seen in reversed(backend.list()) if seen.run != first]
    assert all(f"which run {first} uses" in why for why in places)
    assert ", next in line: " in places[0] and ", 99 before it: " in places[-1]
    (folder / "go").touch()
    wait_for(lambda: all(state_of(seen).is_final for seen in backend.list()), 500.0)
    assert Counter(state_of(seen) for seen in backend.list()) == {State.SUCCEEDED: 101}
    wait_for(lambda: not any(seen.alive for seen in backend.list()))
    assert [processes_of(backend, run) for run in runs] == [[]] * 101
    pool = Pool(backend.environ["ALLABOARD_POOL"], capacity(backend.environ, with_gpus=False))
    described = pool.describe()
    pool.close()
    assert described["gangs"] == [] and described["queue"] == []
    assert described["free"]["cpu"] == cpus()

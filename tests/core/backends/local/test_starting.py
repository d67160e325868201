"""The first moments of a run: a supervisor that is slow is waited for, one that never starts leaves nothing
behind, and a stop gets through while many members start."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from allaboard import State
from allaboard.backends.local import backend as local
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.supervisor import controller as op
from allaboard.errors import SiteError, UnknownRun
from allaboard.runs.observation import Stop
from allaboard.runs.status import state_of
from allaboard.testing import a_layout
from tests.core.backends.local.helpers import a_plan, ended, processes_of, wait_for
from tests.core.backends.local.test_backend import ME, QUICK, SLEEP

MANY = 300


def with_start(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    """Supervisors run ``code`` before anything else; members do not."""
    script = folder / "start.py"
    script.write_text(
        f"import runpy, sys\n{code}\ndel sys.argv[0]\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    monkeypatch.setattr(local, "isolated_command", lambda *words: [sys.executable, str(script), *words])


def started_by(folder: Path) -> list[int]:
    """Pids of processes that this script has started."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if os.fsencode(folder / "start.py") in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def test_a_supervisor_that_is_slow_is_waited_for_and_that_is_said_once(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "NOTICE_AFTER", 0.3)
    said: list[str] = []
    backend.on_silence = said.append
    with_start(monkeypatch, folder, "import time\ntime.sleep(1.5)")
    handle = backend.launch(a_plan(folder, QUICK), ME)
    assert state_of(ended(backend, handle.run)) is State.SUCCEEDED
    (words,) = said
    assert (
        f"waiting for the supervisor of {handle.run} to start, 300 s at most: the machine has a load of"
        in words
    )


def test_one_that_starts_at_once_is_not_spoken_of(backend: LocalBackend, folder: Path) -> None:
    said: list[str] = []
    backend.on_silence = said.append
    ended(backend, backend.launch(a_plan(folder, QUICK), ME).run)
    assert said == []


@pytest.mark.parametrize("before", [None, State.FAILED])
def test_one_that_never_starts_leaves_no_process_and_no_run(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, before: State | None
) -> None:
    plan = a_plan(folder, "raise SystemExit(3)", policy={"restart": "never"})
    if before is not None:
        ended(backend, backend.launch(plan, ME).run)
    monkeypatch.setattr(local, "START_LIMIT", 0.5)
    with_start(monkeypatch, folder, "import time\ntime.sleep(600)")
    with pytest.raises(
        SiteError, match=r"has not started within 0\.5 s \(.*\); nothing was started"
    ) as caught:
        backend.launch(plan, ME)
    assert caught.value.code == "no_supervisor"
    wait_for(lambda: not started_by(folder))
    if before is None:
        with pytest.raises(UnknownRun):
            backend.observe(plan.run)
        assert list(backend.runs.iterdir()) == []
    else:
        seen = backend.observe(plan.run)
        assert (state_of(seen), seen.attempt) == (before, 1)
        assert len(RunFolder(backend.runs / plan.run).attempts()) == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os\nos.write(2, b'no room for me')\nos._exit(3)", "no room for me"),
        ("import fcntl\ndef no(*_): raise OSError('no locks here')\nfcntl.flock = no", "no locks here"),
    ],
)
def test_one_that_ends_before_it_has_begun_is_told_at_once_with_its_words(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    plan = a_plan(folder, QUICK)
    with_start(monkeypatch, folder, code)
    begun = time.monotonic()
    with pytest.raises(SiteError, match=f"the supervisor ended at once.*{words}") as caught:
        backend.launch(plan, ME)
    assert time.monotonic() - begun < 20 and caught.value.code == "no_supervisor"
    assert list(backend.runs.iterdir()) == [] and not started_by(folder)


def test_whoever_interrupts_the_start_leaves_nothing(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local._StartTimer, "__call__", impatient)
    with_start(monkeypatch, folder, "import time\ntime.sleep(600)")
    with pytest.raises(KeyboardInterrupt):
        backend.launch(a_plan(folder, QUICK), ME)
    wait_for(lambda: not started_by(folder))
    assert list(backend.runs.iterdir()) == []


# Many members.


@pytest.mark.parametrize("kill", [False, True])
def test_a_stop_gets_through_while_many_members_start(
    backend: LocalBackend, folder: Path, kill: bool
) -> None:
    handle = backend.launch(a_plan(folder, SLEEP, workers=MANY), ME)
    backend.stop(handle, ME, "me", "a mistake", kill=kill)
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.STOPPED and len(seen.members) == MANY
    assert sum(m.started is not None for m in seen.members) < MANY, "the rest was never started"
    assert {m.phase for m in seen.members} == {"deleted"} and processes_of(backend, handle.run) == []
    assert all(m.exit_code is None for m in seen.members if m.started is None)


@pytest.mark.thorough
def test_a_suspend_gets_through_while_many_members_start_and_all_run_when_it_is_resumed(
    backend: LocalBackend, folder: Path
) -> None:
    handle = backend.launch(a_plan(folder, "import time; time.sleep(600)", workers=60), ME)
    backend.suspend(handle.run)
    wait_for(lambda: state_of(backend.observe(handle.run)) is State.SUSPENDED)
    wait_for(lambda: not processes_of(backend, handle.run))
    assert sum(m.started is not None for m in backend.observe(handle.run).members) < 60
    backend.resume(handle.run)
    wait_for(lambda: all(m.phase == "running" for m in backend.observe(handle.run).members))
    seen = backend.observe(handle.run)
    assert seen.restarts == 0 and len(processes_of(backend, handle.run)) == 60
    backend.stop(handle, ME, "me", "its end", kill=True)
    ended(backend, handle.run)


def test_a_suspend_and_a_resume_are_taken_in_the_order_in_which_they_were_asked(
    backend: LocalBackend, folder: Path
) -> None:
    """Also where nobody waits in between, and members are still starting or ending."""
    handle = backend.launch(a_plan(folder, "import time; time.sleep(600)", workers=8), ME)
    asked = backend.find(handle.run).attempt(1, 1).requests
    for _ in range(10):
        backend.suspend(handle.run)
        backend.resume(handle.run)
    wait_for(lambda: not [*asked.iterdir()])
    wait_for(lambda: len(processes_of(backend, handle.run)) == 8)
    wait_for(lambda: all(m.phase == "running" for m in backend.observe(handle.run).members))
    assert backend.observe(handle.run).restarts == 0
    backend.resume(handle.run)
    backend.suspend(handle.run)
    wait_for(lambda: not [*asked.iterdir()])
    wait_for(lambda: not processes_of(backend, handle.run))
    wait_for(lambda: state_of(backend.observe(handle.run)) is State.SUSPENDED)
    backend.stop(handle, ME, "me", "its end", kill=True)
    ended(backend, handle.run)


def test_a_member_that_is_called_off_has_never_run() -> None:
    operator = op.Operator(a_layout(workers=2), 0.0)
    operator.begin(0.0)
    first, second = operator.on_admitted(list(operator.members), 1.0)
    assert isinstance(first, op.Spawn) and isinstance(second, op.Spawn)
    operator.on_running(first.member.name, 2.0)
    asked = operator.ask_stop(Stop("me", "a mistake", 3.0), False, 3.0)
    assert asked == [op.Terminate(first.member), op.Terminate(second.member)]
    assert operator.on_called_off(second.member.name, 3.0) == [], "the other one still runs"
    done = operator.on_exited(first.member.name, -15, 4.0)
    assert done == [op.Release(), op.Finish()] and operator.stopped
    one = operator.members[second.member.name]
    assert (one.phase, one.started, one.exit_code, one.tries) == ("deleted", None, None, 0)

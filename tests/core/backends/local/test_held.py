"""A debugger holds a supervisor or a keeper that has to end: nobody waits for ever, and it is said why."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from allaboard import State
from allaboard.backends.local import backend as backend_module
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.processes import continue_stopped
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended, processes_of, supervisor_and_keeper, wait_for
from tests.core.backends.local.test_backend import ME, running

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs ptrace")
HOLDS = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
for pid in map(int, sys.argv[1:]):
    if libc.ptrace(16, pid, None, None):
        print(os.strerror(ctypes.get_errno()), flush=True)
        sys.exit(1)
    os.waitpid(pid, 0x40000000)
print("held", flush=True)
time.sleep(600)
"""
SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open("saved", "w").close(), sys.exit(143)))
time.sleep(600)
"""
Hold = Callable[[Sequence[int]], "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Hold processes as a debugger does. Its end lets them go on."""
    started: list[subprocess.Popen[str]] = []

    def begin(pids: Sequence[int]) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLDS, *map(str, pids)]
        debugger = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(debugger)
        assert debugger.stdout is not None
        if (said := debugger.stdout.readline()) != "held\n":
            pytest.skip(f"nobody may hold a process here: {said}")
        return debugger

    yield begin
    for debugger in started:
        debugger.kill()
        debugger.communicate()


@pytest.mark.parametrize(
    "which",
    [
        pytest.param((0,), marks=pytest.mark.thorough, id="supervisor"),
        pytest.param((1,), marks=pytest.mark.thorough, id="keeper"),
        pytest.param((0, 1), id="both"),
    ],
)
@pytest.mark.parametrize("how", ["stop", pytest.param("delete", marks=pytest.mark.thorough)])
def test_it_is_ended_in_bounded_time(
    backend: LocalBackend,
    folder: Path,
    hold: Hold,
    monkeypatch: pytest.MonkeyPatch,
    which: tuple[int, ...],
    how: str,
) -> None:
    monkeypatch.setattr(backend_module, "HELD_AT_MOST", 2.0, raising=False)
    handle = backend.launch(a_plan(folder, SAVES), ME)
    running(backend, handle.run)
    members, pids = processes_of(backend, handle.run), supervisor_and_keeper(backend, handle.run)
    said: list[str] = []
    backend.on_silence = said.append
    debugger = hold([pids[n] for n in which])
    begun = time.monotonic()
    if how == "delete":
        backend.delete(handle.run)
    else:
        backend.stop(handle, ME, "ann", "enough")
    assert state_of(ended(backend, handle.run, 40)) is State.STOPPED and time.monotonic() - begun < 40
    who = rf"process ({pids[0]}|{pids[1]}), which must end {handle.run}, "
    assert len(said) == 1 and re.match(rf"{who}is held by \S+ \(process {debugger.pid}\): ", said[0]), said
    assert said[0].endswith("let it continue within 2.0 s, or it is killed together with the members")
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in members), 20)


def test_one_that_is_let_go_in_time_ends_its_members_as_ever(
    backend: LocalBackend, folder: Path, hold: Hold
) -> None:
    handle = backend.launch(a_plan(folder, SAVES, workers=1), ME)
    running(backend, handle.run)
    debugger = hold([supervisor_and_keeper(backend, handle.run)[0]])
    backend.on_silence = lambda _: debugger.kill()
    backend.stop(handle, ME, "ann", "enough")
    assert state_of(ended(backend, handle.run, 40)) is State.STOPPED and (folder / "saved").exists()


def test_who_looks_kills_nobody(backend: LocalBackend, folder: Path, hold: Hold) -> None:
    handle = backend.launch(a_plan(folder, SAVES, workers=1), ME)
    running(backend, handle.run)
    supervisor, _ = supervisor_and_keeper(backend, handle.run)
    debugger = hold([supervisor])
    live = str(backend.find(handle.run).attempt(1, 1).live)
    assert [who.pid for who in continue_stopped(live)] == [supervisor]
    debugger.kill()
    debugger.wait()
    assert state_of(backend.observe(handle.run)) is State.RUNNING and continue_stopped(live) == []

"""Processes of a member that hide from whoever takes a run over: without an environment of ours, without
parents, in a session of their own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.backends.base import handle_of
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host import control_group
from allaboard.backends.local.host.machine import capacity
from allaboard.backends.local.host.processes import Identity, identity, is_alive, send_signal
from allaboard.backends.local.pool.pool import Need, Pool, Request
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import (
    a_plan,
    ended,
    supervisor_and_keeper,
    supervisors_begin_with,
    wait_for,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
ME = Owner("me", kind="detached")
ESCAPES = """
import subprocess, time
line = "echo $$ > made; mv made escaped; exec sleep 1000"
subprocess.Popen(
    ["sh", "-c", f"env -i /usr/bin/setsid sh -c '{line}' &"], close_fds=%r, stdout=-3, stderr=-3
).wait()
time.sleep(600)
"""
MAY_STILL_RUN = "cleared its environment and left its session may still run"


hidden: list[Identity] = []


@pytest.fixture(autouse=True)
def _leaves_none() -> Iterator[None]:
    yield
    while hidden:
        send_signal(hidden.pop(), signal.SIGKILL)


def has_groups() -> bool:
    folder = control_group.make_group("probe")
    control_group.remove_group("probe")
    return folder is not None


@pytest.fixture
def no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors can make no control group, as in most containers."""
    code = "from allaboard.backends.local.host import control_group\n"
    code += "control_group.make_group = lambda mark: None"
    supervisors_begin_with(code, tmp_path / "no_groups.py", monkeypatch)


def escaped(backend: LocalBackend, folder: Path, closed: bool, **fields: object) -> tuple[str, Identity]:
    """A run, and the process of its member that hides."""
    run = backend.launch(a_plan(folder, ESCAPES % closed, workers=1, **fields), ME).run
    at = folder / "escaped"
    wait_for(at.exists)
    who = identity(int(at.read_text()))
    assert who is not None and is_alive(who)
    hidden.append(who)
    wait_for(lambda: state_of(backend.observe(run)) is State.RUNNING)
    return run, who


def kill_both(backend: LocalBackend, run: str) -> None:
    """Neither sees the other's death."""
    pids = supervisor_and_keeper(backend, run)
    for sig in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, sig)


def test_the_keeper_of_a_supervisor_that_was_killed_ends_it(backend: LocalBackend, folder: Path) -> None:
    run, who = escaped(backend, folder, True)
    os.kill(supervisor_and_keeper(backend, run)[0], signal.SIGKILL)
    seen = ended(backend, run)
    assert state_of(seen) is State.LOST and not is_alive(who)
    assert seen.notes[-1] == "its supervisor was killed", "nothing may be left"


@pytest.mark.parametrize("takes_over", ["launch", "housekeep", "stop", "delete"])
def test_whoever_takes_over_ends_it_by_its_control_group(
    backend: LocalBackend, folder: Path, takes_over: str
) -> None:
    if not has_groups():
        pytest.skip("no control group can be made here")
    run, who = escaped(backend, folder, True)
    kill_both(backend, run)
    seen = ended(backend, run)
    assert state_of(seen) is State.LOST and is_alive(who) and seen.notes[-1] == "its supervisor was killed"
    if takes_over == "launch":
        (folder / "escaped").unlink()
        backend.launch(a_plan(folder, "pass", workers=1), ME)
    elif takes_over == "housekeep":
        backend.housekeep()
    elif takes_over == "stop":
        backend.stop(handle_of(seen), ME, "test", "it is over")
    else:
        backend.delete(run)
    wait_for(lambda: not is_alive(who), seconds=20)


def test_a_run_leaves_no_control_group(backend: LocalBackend, folder: Path) -> None:
    if not has_groups():
        pytest.skip("no control group can be made here")
    run = backend.launch(a_plan(folder, "pass", workers=2), ME).run
    uid = ended(backend, run).uid
    assert uid is not None
    own = next(control_group.cgroup_folders("/", ""))
    assert not Path(own, f"allaboard-{uid}").exists()


def test_without_a_group_its_slots_show_it(backend: LocalBackend, folder: Path, no_groups: None) -> None:
    run, who = escaped(backend, folder, False, resources={"cpu": 0.5})
    kill_both(backend, run)
    ended(backend, run)
    with Pool(backend.environ["ALLABOARD_POOL"], capacity()) as pool:
        grant = pool.try_admit(pool.request_slots(Request("mark", (Need(0.5),))))
        assert grant is not None and not is_alive(who)
        grant.release()


def test_where_nothing_shows_it_that_is_said(backend: LocalBackend, folder: Path, no_groups: None) -> None:
    run, who = escaped(backend, folder, True)
    kill_both(backend, run)
    seen = ended(backend, run)
    assert is_alive(who) and seen.notes[-1].startswith("its supervisor was killed, and so was its keeper")
    assert MAY_STILL_RUN in seen.notes[-1]

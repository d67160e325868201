"""Nothing that a plane started outlives it, however its end comes about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.api import until
from tests.cluster.keeper import Keeper, KeeperGone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the keeper needs Linux")

ENVIRON = {"PATH": os.environ["PATH"]}
# Two processes, of which the second would stay when only the first is killed.
FAMILY = ["sh", "-c", "sleep 1000 & echo $! > child; wait"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo > deaf; while :; do sleep 0.1; done"]


@pytest.fixture
def socket_path() -> Iterator[str]:
    # pytest's own folders have paths too long for a socket.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield f"{folder}/keeper"


@pytest.fixture
def keeper(socket_path: str, tmp_path: Path) -> Iterator[Keeper]:
    keeper = Keeper.launch(socket_path, tmp_path / "keeper.log")
    yield keeper
    keeper.end()


def start(keeper: Keeper, name: str, command: list[str], folder: Path) -> int:
    return keeper.start(name, command, ENVIRON, folder / f"{name}.log", folder)


def gone(*pids: int) -> None:
    until(f"{pids} to be gone", lambda: not any(psutil.pid_exists(pid) for pid in pids), 10)


def child_in(folder: Path) -> int:
    path = folder / "child"
    return int(until("the family's child", lambda: path.exists() and path.read_text()) or 0)


def test_it_tells_what_runs_and_how_the_rest_ended(keeper: Keeper, tmp_path: Path) -> None:
    pid = start(keeper, "long", ["sleep", "1000"], tmp_path)
    start(keeper, "short", ["sh", "-c", "echo said; exit 7"], tmp_path)
    until("the short one's end", lambda: not keeper.status()["short"]["running"])
    status = keeper.status()
    assert status["short"]["code"] == 7
    assert (tmp_path / "short.log").read_text() == "said\n"
    assert status["long"]["running"] and status["long"]["pid"] == pid


def test_a_name_runs_once_and_again_after_its_end(keeper: Keeper, tmp_path: Path) -> None:
    first = start(keeper, "one", ["sleep", "1000"], tmp_path)
    with pytest.raises(RuntimeError, match="runs already"):
        start(keeper, "one", ["sleep", "1000"], tmp_path)
    assert keeper.stop("one") == -signal.SIGTERM
    assert start(keeper, "one", ["sleep", "1000"], tmp_path) != first


def test_stopping_takes_what_the_process_started(keeper: Keeper, tmp_path: Path) -> None:
    pid = start(keeper, "family", FAMILY, tmp_path)
    child = child_in(tmp_path)
    keeper.stop("family", signal.SIGKILL)
    gone(pid, child)


def test_who_does_not_listen_is_killed(keeper: Keeper, tmp_path: Path) -> None:
    start(keeper, "deaf", STUBBORN, tmp_path)
    until("it to be deaf", (tmp_path / "deaf").exists)
    assert keeper.stop("deaf", grace=0.2) == -signal.SIGKILL


def test_its_end_is_the_end_of_all(keeper: Keeper, tmp_path: Path) -> None:
    pids = [
        start(keeper, "family", FAMILY, tmp_path),
        child_in(tmp_path),
        start(keeper, "b", ["sleep", "1000"], tmp_path),
    ]
    keeper.end()
    gone(*pids)
    with pytest.raises(KeeperGone):
        keeper.status()


def test_a_keeper_killed_takes_its_children_along(keeper: Keeper, tmp_path: Path) -> None:
    pid = start(keeper, "a", ["sleep", "1000"], tmp_path)
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    gone(pid)


OWNER = """
import os, sys, time
from pathlib import Path
from tests.cluster.keeper import Keeper
folder = Path(sys.argv[2])
keeper = Keeper.launch(sys.argv[1], folder / "keeper.log")
if sys.argv[3] == "detached":
    keeper.detach()
pid = keeper.start("a", ["sleep", "1000"], dict(os.environ), folder / "a.log", folder)
print(pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("life", ["owned", "detached"])
def test_a_killed_owner_leaves_nothing_unless_it_asked_to(
    life: str, socket_path: str, tmp_path: Path, root: Path
) -> None:
    command = [sys.executable, "-c", OWNER, socket_path, str(tmp_path), life]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    if life == "owned":
        gone(pid)
    else:
        keeper = Keeper(socket_path)
        parent = psutil.Process(psutil.Process(pid).ppid())
        until("the keeper to lose its parent", lambda: parent.ppid() != owner.pid)
        # It looks around after every answer.
        assert all(keeper.status()["a"]["running"] for _ in range(3))
        keeper.end()
        gone(pid)

"""Real processes for tests: a supervisor that can be killed, and members that are hard to kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import allaboard
from allaboard.backends.local.host import processes
from allaboard.backends.local.host.processes import Identity
from allaboard.backends.local.supervisor.reaper import Keeper

HERE = Path(__file__).parent
SOURCES = str(Path(allaboard.__file__).parents[1])
PYTHON = [sys.executable, "-I", "-S"]


def until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Wait for something to become true; the deadline only keeps a broken test from hanging."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)
    return found


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": SOURCES, "LANG": "C.UTF-8", **more}


def python(code: str) -> list[str]:
    return [*PYTHON, "-c", code]


def sleeper(mark: str = "", **options: Any) -> subprocess.Popen[bytes]:
    env = environment(**({processes.MARK: mark} if mark else {}))
    return subprocess.Popen(["sleep", "600"], env=env, **options)


def fresh_mark() -> str:
    return uuid.uuid4().hex


@contextlib.contextmanager
def keeper_here(**options: Any) -> Iterator[Keeper]:
    """A keeper of this very process, which goes back to being no subreaper: else daemons would come to us."""
    keeper = Keeper.start(fresh_mark(), **options)
    try:
        yield keeper
    finally:
        keeper.close(within=60)
        processes._prctl(processes._PR_SET_CHILD_SUBREAPER, 0)


class Family:
    """A member's main process and relatives that try to survive it; they write down their pids.

    ``child``: ignores SIGTERM and SIGHUP. ``grandchild``: below a child, in a session of its own. ``daemon``:
    double fork, own session. ``nameless``: the same and with an empty environment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def command(self, *who: str, then: str = "sleep") -> list[str]:
        return [*PYTHON, str(HERE / "a_family.py"), str(self.folder), then, *who]

    def born(self, *who: str) -> dict[str, Identity]:
        """Wait until these have written their pids."""
        names = ("main", *who)
        until(lambda: all((self.folder / name).exists() for name in names), f"{names} in {self.folder}")
        found = {name: processes.identity(int((self.folder / name).read_text())) for name in names}
        assert all(found.values()), found
        return {name: one for name, one in found.items() if one}

    def kill(self) -> None:
        for path in self.folder.iterdir():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)


class Supervisor:
    """A process of its own that runs a keeper as the test tells it, and tells what it hears."""

    def __init__(self, mark: str, env: Mapping[str, str] | None = None, **options: Any) -> None:
        command = [sys.executable, str(HERE / "a_supervisor.py"), mark]
        self.mark = mark
        self.process = subprocess.Popen(
            command,
            env={**environment(), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self.heard: list[dict[str, Any]] = []
        self.keeper = int(self.wait("ready")["keeper"])

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, do: str, **more: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.process.stdin.flush()

    def spawn(self, member: str, argv: list[str], folder: Path, **more: Any) -> None:
        log = str(folder / f"{member}.log")
        self.tell(
            "spawn",
            **{"member": member, "argv": argv, "env": environment(), "cwd": str(folder), "log": log, **more},
        )

    def wait(self, word: str, member: str | None = None) -> dict[str, Any]:
        """The next message of this kind; what came before it is in ``heard``."""
        assert self.process.stdout
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            self.heard.append(message)
            if message["word"] == word and member in (None, message.get("member")):
                return message
        raise AssertionError(f"the supervisor ended before it said {word!r}: {self.heard}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        everybody = [self.pid, self.keeper]
        below = {who for pid in everybody for who in processes.descendants(pid)}
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for who in below:
            processes.send_signal(who, signal.SIGKILL)
        self.process.wait()
        processes.kill_run(self.mark)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def supervisor(env: Mapping[str, str] | None = None, **options: Any) -> Iterator[Supervisor]:
    one = Supervisor(fresh_mark(), env, **options)
    try:
        yield one
    finally:
        one.close()

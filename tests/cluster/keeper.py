"""The parent of all processes of a plane: starts, stops and names them, and lets none outlive it.

    python keeper.py FOLDER/SOCKET PID

It knows nothing of Kubernetes. Clients send one JSON object per line to the socket and get one back
(``Keeper`` below is the client). It ends, with all its children, once PID is no longer its parent: a plane of
a test run that was killed leaves nothing behind, nor does a `make cluster-up` that was killed before it told
the keeper to detach. Should the keeper itself be killed, the
kernel kills its children. That needs Linux.

The folder of the socket is the keeper's, and goes when it ends.

Why a process of its own: children of `make cluster-up` must outlive the command, a component restarted by a
test must not become a child of that test, and "kill when the parent dies" is bound to the thread that forked.
This one has one.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""


class KeeperGone(Exception):
    """Nobody answers at the socket: the plane was taken down, or never came up."""


class Keeper:
    """Client of a running keeper; safe to use from several threads and processes."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def launch(cls, path: str, log: Path) -> Keeper:
        """A new keeper. It ends with this process, until it is told to ``detach``."""
        command = [sys.executable, "-I", str(Path(__file__).resolve()), path, str(os.getpid())]
        with log.open("ab") as output:
            # A session of its own: Ctrl-C in the terminal is for the caller, who takes the plane down.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
            )
        keeper = cls(path)
        keeper._process = process
        deadline = time.monotonic() + 10
        while not keeper.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise KeeperGone(f"the keeper of the processes did not start; see {log}")
            time.sleep(0.01)
        return keeper

    _process: subprocess.Popen[bytes] | None = None

    def start(
        self, name: str, command: Sequence[str], environ: dict[str, str], log: Path, folder: Path
    ) -> int:
        """The pid of the new process; one of that name must not be running."""
        return int(
            self._ask(
                do="start",
                name=name,
                command=list(command),
                environ=environ,
                log=str(log),
                folder=str(folder),
            )["pid"]
        )

    def stop(self, name: str, number: int = signal.SIGTERM, grace: float = GRACE) -> int | None:
        """Ends a process and all of its group, and returns when it is gone. Its exit code as Popen has it."""
        code: int | None = self._ask(do="stop", name=name, signal=int(number), grace=grace)["code"]
        return code

    def status(self) -> dict[str, dict[str, Any]]:
        """By name: pid, running, code, since (seconds since the epoch)."""
        processes: dict[str, dict[str, Any]] = self._ask(do="status")["processes"]
        return processes

    def detach(self) -> None:
        """From now on it outlives the process that launched it."""
        self._ask(do="detach")

    def end(self) -> None:
        """Stops everything and the keeper itself; returns when all are gone."""
        with suppress(KeeperGone):
            self._ask(do="end")
        if self._process is not None:
            self._process.wait()

    def answers(self) -> bool:
        try:
            self.status()
        except KeeperGone:
            return False
        return True

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(60)
                connection.connect(self._path)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile() as lines:
                    answer: dict[str, Any] = json.loads(lines.readline() or '{"gone": true}')
        except OSError as error:
            raise KeeperGone(f"no keeper at {self._path}: {error}") from error
        if "gone" in answer:
            raise KeeperGone(f"the keeper at {self._path} ended")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


# --- the process itself ------------------------------------------------------------------------------------


class _Server:
    def __init__(self, path: str, parent: int) -> None:
        self.path = path
        self.parent: int | None = parent
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.since: dict[str, float] = {}
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.ending = False

    def run(self) -> None:
        # What a component started and left behind comes to us, and ends with us.
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        Path(self.path).chmod(0o600)
        listener.listen(16)
        selector = selectors.DefaultSelector()
        selector.register(listener, selectors.EVENT_READ)
        try:
            while not self.ending:
                for _ in selector.select(timeout=0.25):
                    connection, _ = listener.accept()
                    with connection:
                        self._serve(connection)
                self._reap()
                if self.parent is not None and os.getppid() != self.parent:
                    break
        finally:
            self._end()
            Path(self.path).unlink(missing_ok=True)
            shutil.rmtree(Path(self.path).parent, ignore_errors=True)

    def _on_signal(self, *_: object) -> None:
        self.ending = True

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        with suppress(OSError, ValueError), connection.makefile("rw") as stream:
            request = json.loads(stream.readline())
            verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
                "start": self._start, "stop": self._stop, "status": self._status, "end": self._end,
                "detach": self._detach,
            }  # fmt: skip
            try:
                answer = verbs[request.pop("do")](request)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            stream.write(json.dumps(answer) + "\n")

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["name"]
        self._reap()
        if name in self.children and self.children[name].returncode is None:
            raise RuntimeError(f"{name} runs already")
        with Path(request["log"]).open("ab") as log:
            self.children[name] = subprocess.Popen(
                request["command"],
                env=request["environ"],
                cwd=request["folder"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self._die_with_me,
            )
        self.since[name] = time.time()
        return {"pid": self.children[name].pid}

    def _die_with_me(self) -> None:
        self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self.children[request["name"]]
        self._take_down([child], request["signal"], request["grace"])
        return {"code": child.returncode}

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        self._reap()
        return {
            "processes": {
                name: {
                    "pid": child.pid,
                    "running": child.returncode is None,
                    "code": child.returncode,
                    "since": self.since[name],
                }
                for name, child in self.children.items()
            }
        }

    def _detach(self, _: dict[str, Any]) -> dict[str, Any]:
        self.parent = None
        return {}

    def _end(self, _: dict[str, Any] | None = None) -> dict[str, Any]:
        self.ending = True
        # Later ones stand on earlier ones, and would wait for them in vain.
        for child in reversed(self.children.values()):
            self._take_down([child], signal.SIGTERM, GRACE)
        return {}

    def _take_down(self, children: list[subprocess.Popen[bytes]], number: int, grace: float) -> None:
        def left() -> list[subprocess.Popen[bytes]]:
            self._reap()
            return [child for child in children if child.returncode is None]

        for child in left():
            _signal_group(child.pid, number)
        deadline = time.monotonic() + grace
        while left() and time.monotonic() < deadline:
            time.sleep(0.01)
        for child in left():
            _signal_group(child.pid, signal.SIGKILL)
        while left():
            time.sleep(0.005)

    def _reap(self) -> None:
        """Ours, and the orphans that came to us. The only place that reaps: never by Popen's own ways."""
        ours = {child.pid: child for child in self.children.values() if child.returncode is None}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in ours:
                    # What it started goes with it. Now, while the dead leader still keeps the group's number.
                    _signal_group(ended.si_pid, signal.SIGKILL)
                _, status = os.waitpid(ended.si_pid, 0)
                if ended.si_pid in ours:
                    ours[ended.si_pid].returncode = os.waitstatus_to_exitcode(status)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


if __name__ == "__main__":
    _Server(sys.argv[1], int(sys.argv[2])).run()

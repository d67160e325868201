"""The kubelet's side of the spawner: ask for a sandbox, a container, an exec; hear of its start and its
end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.kubelet import spawner as spawner_script

START_LIMIT = 60.0
"""Seconds that a fork may take to report; far more than it needs on a loaded machine."""


class SpawnFailed(Exception):
    """What was asked for could not be started. ``missing``: because its program does not exist."""

    def __init__(self, message: str, *, missing: bool = False, detail: str = "") -> None:
        super().__init__(message)
        self.missing = missing
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as a container runtime tells it: ``code`` is 128 + n for signal n."""

    code: int
    signal: int = 0


class Spawned:
    """One child of the spawner. Closing it kills what it holds."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self._rest = b""
        self.pid = 0
        """Of the sandbox, or of the container's first process, in the kubelet's PID namespace."""
        self.fds: list[int] = []
        """What the child sent along with its first report."""

    async def report(self) -> dict[str, Any] | None:
        """The next report; None when the child is gone."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            await _readable(loop, self._channel)
            try:
                data, fds, _, _ = socket.recv_fds(self._channel, 65536, 16)
            except BlockingIOError:
                continue
            except ConnectionError:
                return None
            self.fds += fds
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    async def begun(self, word: str) -> None:
        """Until it reports this word, whose value is its pid. Raises SpawnFailed."""
        try:
            told = await asyncio.wait_for(self.report(), START_LIMIT)
        except TimeoutError:
            self.close()
            raise SpawnFailed("the spawner did not answer in time") from None
        except asyncio.CancelledError:
            self.close()
            raise
        if told is None or "error" in told:
            self.close()
            told = told or {"error": "it was killed before it ran"}
            raise SpawnFailed(
                told["error"], missing=told.get("missing", False), detail=told.get("detail", "")
            )
        self.pid = told[word]

    async def ended(self) -> Exit:
        """Until the process is over. Afterwards, and not before, its number may be another process's."""
        told = await self.report()
        self.close()
        if told is None:
            return Exit(137, signal.SIGKILL)  # whoever attends it was killed, and it with him
        if "signal" in told:
            return Exit(128 + told["signal"], told["signal"])
        return Exit(told["exit"])

    def send(self, number: int) -> None:
        """Pass a signal to the process; nothing when it is over."""
        with suppress(OSError):
            self._channel.send(b"%d " % number)

    def close(self) -> None:
        self._channel.close()


class Spawner:
    """The process that forks. One for a kubelet; ends with it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        os.set_inheritable(theirs.fileno(), True)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(spawner_script.__file__)), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> Spawned:
        """Have a child forked for this request. The caller's descriptors are copied; they stay the
        caller's.
        """
        memory = os.memfd_create("request")
        ours, theirs = socket.socketpair()
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(json.dumps(request).encode())
            os.lseek(memory, 0, os.SEEK_SET)
            socket.send_fds(self._channel, [b"1"], [memory, theirs.fileno(), *fds])
        except OSError as error:
            ours.close()
            raise SpawnFailed(f"the spawner is gone: {error}") from error
        finally:
            os.close(memory)
            theirs.close()
        return Spawned(ours)

    async def ip(self, batch: Sequence[str], *, pid: int = 0, force: bool = False) -> None:
        """Commands of `ip` in the network namespace of a process (0: the kubelet's own). Raises
        SpawnFailed.
        """
        asked = self.ask({"kind": "ip", "pid": pid, "batch": list(batch), "force": force})
        await asked.begun("done")
        asked.close()

    def close(self) -> None:
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)


async def _readable(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_reader(channel.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel.fileno())

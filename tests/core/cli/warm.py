"""A Python that has the command line loaded, and forks for each line that is typed: a process of its own, as
with ``python -m allaboard``, but without the two tenths of a second in which that loads.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

MOST = 60_000
"""Bytes of a line, and of what it reads, that buffers of a socket and a pipe take at once."""


class Warm:
    """The process that forks. It begins with the first line, and ends with this process."""

    def __init__(self) -> None:
        self._environ = {**os.environ}
        self._lock = threading.Lock()
        self._mine: socket.socket | None = None

    def takes(self, words: Sequence[str], environ: Mapping[str, str], stdin: str) -> bool:
        """Whether it can stand for a Python that starts with these variables."""
        long = max(len(_request(words, Path(), environ)), len(stdin.encode())) > MOST
        read_at_start = [
            name for name in {*environ, *self._environ} if name.startswith(("PYTHON", "LC_", "LANG", "LD_"))
        ]
        same = all(environ.get(name) == self._environ.get(name) for name in read_at_start)
        return sys.platform == "linux" and same and not long

    def run(
        self, words: Sequence[str], folder: Path, environ: Mapping[str, str], stdin: str, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        (in_, write_in), (out, write_out), (err, write_err), (end, write_end) = (os.pipe() for _ in range(4))
        os.write(write_in, stdin.encode())
        theirs = [in_, write_out, write_err, write_end]
        with self._lock:
            socket.send_fds(self._socket(), [_request(words, folder, environ)], theirs)
        for fd in (write_in, *theirs):
            os.close(fd)
        texts: list[list[bytes]] = [[], [], []]
        threads = [
            threading.Thread(target=_read, args=(fd, text), daemon=True)
            for fd, text in zip((out, err, end), texts, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds)
        told = b"".join(texts[2]).split()
        if any(thread.is_alive() for thread in threads):
            os.kill(int(told[0]), signal.SIGKILL)
            raise subprocess.TimeoutExpired([*words], seconds)
        whole = [b"".join(text).decode().replace("\r\n", "\n").replace("\r", "\n") for text in texts]
        return subprocess.CompletedProcess([*words], int(told[1]), *whole[:2])

    def _socket(self) -> socket.socket:
        if self._mine is None:
            self._mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                number = theirs.fileno()
                command = [sys.executable, "-P", __file__, str(number)]
                # Its streams are pipes, as those of its lines are.
                pipe = subprocess.PIPE
                process = subprocess.Popen(
                    command, pass_fds=[number], env=self._environ, stdin=pipe, stdout=pipe, stderr=pipe
                )
            atexit.register(process.communicate)
            atexit.register(self._mine.close)
        return self._mine


def _request(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> bytes:
    return json.dumps([[*words], str(folder), {**environ}]).encode()


def _read(fd: int, text: list[bytes]) -> None:
    while part := os.read(fd, 65536):
        text.append(part)
    os.close(fd)


# --- the process that forks


def serve(own: socket.socket) -> None:
    """Fork for each line, until nobody can type one any more. Comes back in the process of a line, too: its
    exit code.
    """
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(own, 2 * MOST, 4)
        _reap()
        if not request:
            return
        if os.fork() == 0:
            own.close()
            _wait_for(request, fds)
        for fd in fds:
            os.close(fd)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _wait_for(request: bytes, fds: Sequence[int]) -> None:
    """Start the line, and tell its process and its exit code."""
    *streams, end = fds
    pid = os.fork()
    if pid == 0:
        os.close(end)
        _type(request, streams)
    for fd in streams:
        os.close(fd)
    os.write(end, b"%d " % pid)
    _, status = os.waitpid(pid, 0)
    os.write(end, b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _type(request: bytes, streams: Sequence[int]) -> None:
    """Be the process that ``python -m allaboard`` would be in that folder."""
    from allaboard.cli import main

    words, folder, environ = json.loads(request)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path.insert(0, folder)
    sys.argv = ["allaboard", *words]
    sys.exit(main())


def _load() -> None:
    """All that a line may load, but not what is optional."""
    import click

    import allaboard.running  # noqa: F401
    from allaboard.cli import VERBS, app

    for verb in VERBS:
        app.get_command(click.Context(app), verb)


if __name__ == "__main__":
    _load()
    serve(socket.socket(fileno=int(sys.argv[1])))

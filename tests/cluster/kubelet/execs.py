"""Exec by WebSocket: the channel protocols v4 and v5 of Kubernetes on RFC 6455.

The first byte of a message is its channel: 0 stdin, 1 stdout, 2 stderr, 3 the result, 4 terminal sizes, and
in v5 255, whose next byte names a channel that the client closes.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import hashlib
import json
import os
import pty
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.cluster.kubelet.processes import Exit, Spawned, Spawner, SpawnFailed

if TYPE_CHECKING:
    from tests.cluster.kubelet.run import Run
    from tests.cluster.kubelet.server import Request

STDIN, STDOUT, STDERR, RESULT, SIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OP_TEXT, OP_BINARY, OP_CLOSE, OP_PING, OP_PONG = 1, 2, 8, 9, 10


async def serve_exec(request: Request, run: Run, spawner: Spawner) -> None:
    """Upgrade the connection and run the command that the request names."""
    offered = [p.strip() for p in request.headers.get("sec-websocket-protocol", "").split(",")]
    protocol = next((p for p in PROTOCOLS if p in offered), None)
    if protocol is None:
        await request.answer(400, b"none of the offered WebSocket protocols is known")
        return
    key = hashlib.sha1((request.headers.get("sec-websocket-key", "") + MAGIC).encode()).digest()
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {base64.b64encode(key).decode()}",
        f"Sec-WebSocket-Protocol: {protocol}",
    )
    request.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
    channel = _Channels(request.reader, request.writer)
    # The first message of each output channel is empty: it tells that the channel is there.
    for number, is_there in (
        (STDOUT, request.flag("output")),
        (STDERR, request.flag("error")),
        (RESULT, True),
    ):
        if is_there:
            await channel.send(number, b"")
    result = await _execute(request, run, spawner, channel)
    await channel.send(RESULT, json.dumps(result).encode())
    await channel.close()


async def _execute(request: Request, run: Run, spawner: Spawner, channel: _Channels) -> dict[str, Any]:
    argv = request.query.get("command", [])
    tty = request.flag("tty")
    ends = _terminal() if tty else _pipes()
    try:
        process = await run.execute(spawner, argv, ends.theirs, tty=tty)
    except SpawnFailed as error:
        ends.close_theirs()
        ends.close()
        text = f"OCI runtime exec failed: exec failed: unable to start container process: {error}"
        return _failure("InternalError", f"error executing command in container: {text}", 500)
    ends.close_theirs()
    writers = [asyncio.create_task(_pass_on(fd, number, channel)) for number, fd in ends.outputs]
    reading = asyncio.create_task(_take_input(channel, ends, process, wanted=request.flag("input")))
    ended = await process.ended()
    await asyncio.wait(writers, timeout=5)
    for task in (reading, *writers):
        task.cancel()
    ends.close()
    return _result(ended)


class _Ends:
    """The three descriptors of the process and our ends of them."""

    def __init__(self, theirs: list[int], stdin: int, outputs: list[tuple[int, int]]) -> None:
        self.theirs, self.stdin, self.outputs = theirs, stdin, outputs

    def close_theirs(self) -> None:
        for fd in set(self.theirs):
            os.close(fd)

    def close_stdin(self) -> None:
        # A terminal is one descriptor for both directions.
        if self.stdin >= 0 and self.stdin not in [fd for _, fd in self.outputs]:
            os.close(self.stdin)
        self.stdin = -1

    def close(self) -> None:
        self.close_stdin()
        for _, fd in self.outputs:
            os.close(fd)


def _pipes() -> _Ends:
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    return _Ends([stdin[0], stdout[1], stderr[1]], stdin[1], [(STDOUT, stdout[0]), (STDERR, stderr[0])])


def _terminal() -> _Ends:
    ours, theirs = pty.openpty()
    return _Ends([theirs, theirs, theirs], ours, [(STDOUT, ours)])


async def _pass_on(fd: int, number: int, channel: _Channels) -> None:
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    while True:
        ready = asyncio.Event()
        loop.add_reader(fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)
        try:
            data = os.read(fd, 32768)
        except BlockingIOError:
            continue
        except OSError:  # EIO: nobody has the terminal open any more
            return
        if not data:
            return
        await channel.send(number, data)


async def _take_input(channel: _Channels, ends: _Ends, process: Spawned, *, wanted: bool) -> None:
    """What the client sends; when it goes away, so does the command."""
    if not wanted:
        ends.close_stdin()
    async for number, data in channel.messages():
        if number == STDIN and ends.stdin >= 0:
            with suppress(OSError):
                await asyncio.to_thread(os.write, ends.stdin, data)
        elif number == CLOSE and data[:1] == bytes([STDIN]):
            ends.close_stdin()
        elif number == SIZE and ends.stdin >= 0:
            size = json.loads(data)
            packed = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
            with suppress(OSError):
                fcntl.ioctl(ends.stdin, termios.TIOCSWINSZ, packed)
    process.send(9)


def _result(ended: Exit) -> dict[str, Any]:
    """The Status that ends an exec."""
    if ended.code == 0:
        return {"metadata": {}, "status": "Success"}
    found = _failure(
        "NonZeroExitCode", f"command terminated with non-zero exit code: exit status {ended.code}", 0
    )
    found["details"] = {"causes": [{"reason": "ExitCode", "message": str(ended.code)}]}
    del found["code"]
    return found


def _failure(reason: str, message: str, code: int) -> dict[str, Any]:
    return {"metadata": {}, "status": "Failure", "reason": reason, "message": message, "code": code}


class _Channels:
    """Messages on an upgraded connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, channel: int, data: bytes) -> None:
        await self._frame(OP_BINARY, bytes([channel]) + data)

    async def close(self) -> None:
        with suppress(OSError):
            await self._frame(OP_CLOSE, struct.pack(">H", 1000))

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """Until the client closes or is gone."""
        with suppress(OSError, asyncio.IncompleteReadError):
            whole = b""
            while True:
                final, op, data = await self._read()
                if op == OP_CLOSE:
                    return
                if op == OP_PING:
                    await self._frame(OP_PONG, data)
                elif op != OP_PONG:
                    whole += data
                    if final and whole:
                        yield whole[0], whole[1:]
                    whole = b"" if final else whole

    async def _read(self) -> tuple[bool, int, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", await self._reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self._reader.readexactly(8))
        mask = await self._reader.readexactly(4) if second & 0x80 else b""
        data = await self._reader.readexactly(size)
        if mask:
            repeated = (mask * (size // 4 + 1))[:size]
            data = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
        return bool(first & 0x80), first & 0x0F, data

    async def _frame(self, op: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = struct.pack(">BB", 0x80 | op, size)
        elif size < 65536:
            head = struct.pack(">BBH", 0x80 | op, 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | op, 127, size)
        self._writer.write(head + data)
        await self._writer.drain()

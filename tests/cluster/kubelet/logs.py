"""A container's log: written in the runtimes' format, served as the kubelet does.

A line of the file is ``2026-11-21T15:36:00.123456789Z stdout F text``; P instead of F where the program's
line goes on in the next one. Never rotated.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

LONGEST = 16 * 1024
"""Bytes of a program's line that go into one line of the file."""
BLOCK = 64 * 1024


def stamp_nano(nanoseconds: int) -> str:
    """RFC 3339 with nanoseconds."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of a request for a log."""

    follow: bool = False
    tail: int | None = None
    since: str = ""
    """RFC 3339: lines at or after it."""
    timestamps: bool = False
    limit: int | None = None
    stream: str = ""
    """``stdout`` or ``stderr``; both when empty."""


class Log:
    """The log of one run of one container. Written by the kubelet's loop alone, read there too."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._partial: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self._more = asyncio.Event()
        self.over = False

    def write(self, stream: str, data: bytes) -> None:
        """Whatever came through the pipe; whole lines go to the file."""
        *whole, rest = (self._partial[stream] + data).split(b"\n")
        mark = f"{stamp_nano(time.time_ns())} {stream} ".encode()
        lines: list[bytes] = []
        for line in whole:
            lines += _pieces(mark, line)
        while len(rest) >= LONGEST:
            lines.append(mark + b"P " + rest[:LONGEST] + b"\n")
            rest = rest[LONGEST:]
        self._partial[stream] = rest
        self._put(b"".join(lines))

    def end(self) -> None:
        """Nothing more comes: a last line without an end is written as it is."""
        for stream, rest in self._partial.items():
            if rest:
                self._put(f"{stamp_nano(time.time_ns())} {stream} P ".encode() + rest + b"\n")
        self.over = True
        self._file.close()
        self._wake()

    def _put(self, data: bytes) -> None:
        if data:
            self._file.write(data)
            self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    async def read(self, wanted: Wanted) -> AsyncIterator[bytes]:
        """What the API server passes on, in pieces; with ``follow`` until the container is over."""
        left = wanted.limit
        with self.path.open("rb") as file:
            if wanted.tail is not None:
                file.seek(_tail(file, wanted.tail))
            while True:
                more = self._more
                over = self.over
                for piece in _shown(_whole_lines(file), wanted):
                    if left is not None:
                        piece = piece[:left]
                        left -= len(piece)
                    if piece:
                        yield piece
                    if left == 0:
                        return
                if over or not wanted.follow:
                    return
                await more.wait()

    def last(self, lines: int, size: int) -> str:
        """The end of the log as a termination message takes it: so many lines, so many bytes."""
        with self.path.open("rb") as file:
            file.seek(_tail(file, lines))
            text = b"".join(_shown(_whole_lines(file), Wanted()))
        return text[-size:].decode(errors="replace")


def _pieces(mark: bytes, line: bytes) -> Iterator[bytes]:
    while len(line) > LONGEST:
        yield mark + b"P " + line[:LONGEST] + b"\n"
        line = line[LONGEST:]
    yield mark + b"F " + line + b"\n"


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines from the file's position on; the position stays behind the last whole one."""
    while True:
        start = file.tell()
        lines = file.readlines(BLOCK)
        if not lines:
            return
        if not lines[-1].endswith(b"\n"):
            lines.pop()
            file.seek(start + sum(map(len, lines)))
        yield from lines
        if not lines:
            return


def _shown(lines: Iterator[bytes], wanted: Wanted) -> Iterator[bytes]:
    """Lines of the file as the reader gets them, joined to pieces of a decent size."""
    out: list[bytes] = []
    size = 0
    goes_on = False
    since = wanted.since.encode()
    for line in lines:
        mark, stream, flag, text = line.split(b" ", 3)
        if flag == b"P":
            text = text[:-1]
        if mark >= since and (not wanted.stream or stream == wanted.stream.encode()):
            piece = mark + b" " + text if wanted.timestamps and not goes_on else text
            out.append(piece)
            size += len(piece)
        goes_on = flag == b"P"
        if size > BLOCK:
            yield b"".join(out)
            out, size = [], 0
    if out:
        yield b"".join(out)


def _tail(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines of the file begin, found from its end."""
    end = position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    found = 0
    while position > 0:
        size = min(BLOCK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            # The end of the last line is no beginning of another.
            if position + at + 1 == end:
                continue
            found += 1
            if found == lines:
                return position + at + 1
    return 0

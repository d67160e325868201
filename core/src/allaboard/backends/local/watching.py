"""What can be seen of members from outside: the lines they write, and whether they met at the rendezvous."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allaboard.reportline import PREFIX, Report, decode

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 16
_STEP = 0.5
_NEEDLE = PREFIX.encode()


@dataclass(slots=True)
class LogWatch:
    """Reads one log as it grows: gives its report lines, and notes now and then which byte was there when.

    The notes (``<log>.times``: "offset epoch") are what `allaboard logs --since` and the merging of members
    go by; they are exact to half a second while the supervisor lives.
    """

    path: Path
    offset: int = 0
    rest: bytes = b""
    noted: float = 0.0

    def reports(self, now: float) -> Iterator[Report]:
        """Reports in what was written since the last call."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return
        if size <= self.offset:
            return
        if now - self.noted >= _STEP:
            self._note(now)
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while chunk := file.read(_CHUNK):
                self.offset += len(chunk)
                yield from self._lines(chunk)

    def _note(self, now: float) -> None:
        self.noted = now
        with self.path.with_suffix(".times").open("a") as notes:
            notes.write(f"{self.offset} {now:.3f}\n")

    def _lines(self, chunk: bytes) -> Iterator[Report]:
        *lines, rest = (self.rest + chunk).split(b"\n")
        self.rest = rest[-_LONGEST_LINE:]
        for line in lines:
            if _NEEDLE in line:
                report = decode(line.decode("utf-8", "replace"))
                if report is not None:
                    yield report


@dataclass(frozen=True, slots=True)
class Listening:
    """``heard``: somebody listens at the port; ``connected``: how many talk to it."""

    heard: bool
    connected: int


def listening(port: int) -> Listening | None:
    """Who is at a port of the loopback, from /proc/net/tcp; None where there is no such file."""
    suffix = f":{port:04X}".encode()
    heard, connected, readable = False, 0, False
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with Path(table).open("rb") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        readable = True
        for line in lines:
            fields = line.split(None, 4)
            if fields[1].endswith(suffix):
                heard = heard or fields[3] == b"0A"
                connected += fields[3] == b"01"
    return Listening(heard, connected) if readable else None


def tail(path: Path, lines: int, most: int = 1 << 16) -> str:
    """The last lines of a file, ``most`` bytes at most; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            data = file.read()
    except OSError:
        return ""
    return "\n".join(data.decode("utf-8", "replace").splitlines()[-lines:])

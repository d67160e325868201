"""Observes members from outside: the lines they write, and whether they met at the rendezvous."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from allaboard.backends.local.state.paths import open_plain, open_private
from allaboard.diagnosis.excerpt import TAIL, Excerpt
from allaboard.follow.printed import ProgressReader
from allaboard.follow.progress import is_below, place_of
from allaboard.text.reportline import LONGEST, Report

_CHUNK = 1 << 20
_AT_ONCE = 32
"""Chunks that one call reads; the next call continues."""
_MOST_REPORTS = 2000
"""The most reports of one call: the newest. A script that uses `allaboard.inside` writes ten a second, a bar
twenty."""
_LONGEST_LINE = LONGEST + 256
_STEP = 0.5
_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP, _DONE = 4, 20, 0x301, 3
"""Of sock_diag(7) and netlink(7): the protocol, the kind of the question, its flags, the end of an answer."""
_LISTENS = 1 << 10
_KERNEL_PATIENCE = 1.0


@dataclass(slots=True)
class LogWatch:
    """Reads one log as it grows: gives its reports, and notes now and then which byte was there when.

    The notes (``<log>.times``: "offset epoch") are what `allaboard logs --since` and the merging of members
    go by; they are exact to half a second while the supervisor lives. ``counts_reports``: whether its reports
    count; of the others only the times are noted. ``printed``: what reads them. ``has_more``: whether there
    is more to read at once.
    """

    path: Path
    counts_reports: bool = True
    printed: ProgressReader = field(default_factory=ProgressReader)
    offset: int = 0
    rest: bytes = b""
    noted_at: float = 0.0
    has_more: bool = False

    def reports(self, now: float, *, last: bool = False) -> list[Report]:
        """Reports in what was written since the last call. ``last``: to the end of the file, however long
        that takes. A file that cannot be read says nothing.
        """
        try:
            size = self.path.stat().st_size
        except OSError:
            return []
        if size <= self.offset and not (last and self.rest):
            return []
        if now - self.noted_at >= _STEP:
            self._note(now)
        if not self.counts_reports:
            self.offset = size
            return []
        reports: deque[Report] = deque(maxlen=_MOST_REPORTS)
        with suppress(OSError), open_plain(self.path) as file:
            file.seek(self.offset)
            # Up to the size at the beginning: a member that writes without end would keep this loop busy.
            remaining = size - self.offset if last else min(size - self.offset, _AT_ONCE * _CHUNK)
            while remaining > 0 and (chunk := file.read(min(remaining, _CHUNK))):
                self.offset += len(chunk)
                remaining -= len(chunk)
                reports.extend(self._read(chunk))
        if last:  # a bar ends without a line's end where its process does
            reports.extend(self._read(b"\n"))
        self.has_more = self.offset < size
        return [*reports]

    def _note(self, now: float) -> None:
        self.noted_at = now
        # A full disk only loses the times of some lines.
        with suppress(OSError), open_private(self.path.with_suffix(".times"), "a") as notes:
            notes.write(f"{self.offset} {now:.3f}\n")

    def _read(self, chunk: bytes) -> Iterator[Report]:
        """The reports in the lines that a piece makes whole."""
        text = self.rest + chunk
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self.rest = text[max(end, len(text) - _LONGEST_LINE) :]
        for _, line in self.printed.candidates(text[:end], _MOST_REPORTS):
            yield from self.printed.read(line.decode("utf-8", "replace"))


def resolve_checkpoint_link(report: Report, own: str | None) -> Report:
    """The report, with the real path of its checkpoint if a link leads out of the run's folder."""
    uri = report.fields.get("uri")
    if report.kind != "checkpoint" or own is None or not isinstance(uri, str) or not is_below(uri, own):
        return report
    place, folder = place_of(uri), place_of(own, trusted=True)
    if place is None or folder is None or place[0]:  # in a bucket there are no links
        return report
    real = os.path.realpath(place[1])
    if is_below(real, os.path.realpath(folder[1])):
        return report
    return replace(report, fields={**report.fields, "uri": real})


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """``heard``: somebody listens at the port; ``connected``: how many talk to it."""

    is_listening: bool
    connected: int


def probe_port(port: int) -> Rendezvous | None:
    """The state of a port of this host; None where the kernel does not tell.

    The tables of all connections are read once somebody listens. Each read walks through every slot that the
    kernel has for connections: some 10 ms of a CPU, where a question about one port takes 0.03.
    """
    if _is_listening(port) is False:
        return Rendezvous(False, 0)
    suffix = f":{port:04X}".encode()
    is_listening, connected, readable = False, 0, False
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
                is_listening = is_listening or fields[3] == b"0A"
                connected += fields[3] == b"01"
    return Rendezvous(is_listening, connected) if readable else None


def _is_listening(port: int) -> bool | None:
    """Return whether a socket listens at a port, on any address; None where the kernel does not tell."""
    if sys.platform != "linux":
        return None
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(_KERNEL_PATIENCE)
            return any(_has_listener(kernel, each, port) for each in (socket.AF_INET, socket.AF_INET6))
    except (OSError, struct.error):
        return None


def _has_listener(kernel: socket.socket, family: int, port: int) -> bool:
    """Ask by sock_diag(7). Raises OSError where the kernel refuses, struct.error for half an answer."""
    question = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _LISTENS) + struct.pack("!H46x", port)
    kernel.send(struct.pack("=IHHII", 16 + len(question), _BY_FAMILY, _REQUEST_DUMP, 0, 0) + question)
    is_there = False
    while True:
        answer = kernel.recv(1 << 16)
        while answer:
            length, kind = struct.unpack_from("=IH", answer)
            if kind == _DONE:
                return is_there
            if kind != _BY_FAMILY:
                raise OSError(f"the kernel answers with a message of kind {kind}")
            is_there = True
            answer = answer[max(16, (length + 3) & ~3) :]


def excerpt(path: Path, most: int = 256 << 20) -> str:
    """Excerpt of a log: its beginning, its end, and the lines between them that report trouble
    (`allaboard.diagnosis.excerpt`); empty if the log cannot be read. Of more than ``most`` bytes the first
    are read, and its end.
    """
    collected = Excerpt()
    try:
        with open_plain(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            left = size if size <= most else most
            while left > 0 and (data := file.read(min(left, PIECE))):
                collected.feed(data)
                left -= len(data)
            if size > most:
                file.seek(size - TAIL)
                collected.feed(b"\n" + file.read(TAIL))
    except OSError:
        return ""
    return collected.text()


def first_lines(path: Path) -> list[str]:
    """The lines at the beginning of a log; none if it cannot be read. More than so many hold a sign of
    progress.
    """
    try:
        with open_plain(path) as file:
            return file.read(_BEGINNING).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


_BEGINNING = 1 << 16
PIECE = 1 << 20
"""Bytes of a log that are read at a time."""


def tail(path: Path, lines: int, most: int = 1 << 16) -> str:
    """The last lines of a file, ``most`` bytes at most; empty when it cannot be read."""
    try:
        with open_plain(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            data = file.read()
    except OSError:
        return ""
    return "\n".join(data.decode("utf-8", "replace").splitlines()[-lines:])

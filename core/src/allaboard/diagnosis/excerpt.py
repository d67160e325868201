"""A log of any size in one pass and bounded memory: its beginning, its end, and of what lies between them the
lines that tell of trouble. Bytes in, text out; who reads the log feeds it.
"""

from __future__ import annotations

import re
from collections import deque

HEAD, MIDDLE, TAIL = 64 << 10, 128 << 10, 512 << 10
"""Bytes that are kept of the beginning, of the telling lines between, and of the end."""
LONGEST_LINE = 16 << 10
"""Bytes of a line between the two that are kept."""
ALIKE = 4
"""Telling lines that differ in numbers alone and are kept: what is printed by the thousand tells little."""
KINDS = 4096
"""Kinds of lines that are told apart; of further ones each is taken for new."""
AFTER = 3
"""Lines after a telling one that belong to it; of a traceback all that are indented, and one."""

_TELLS = re.compile(
    rb"error|exception|traceback|fatal|fail|killed|oom|out of memory|no space|quota|\bxid\b|\bnan\b|refused|"
    rb"denied|forbidden|timed? ?out|not found|no such|cannot|can't|unable|corrupt|abort|signal|segv|segfault|"
    rb"watchdog|mismatch|missing|insufficient|unreachable|reset by|broken pipe|panic|invalid|stall|evict|"
    rb"preempt|errno",
    re.IGNORECASE,
)
_DIGITS = b"0123456789."


class Excerpt:
    """``head``, ``middle``, ``tail``: bytes that are kept of each part. Of the telling lines the first are
    kept, because the first cause is looked for.
    """

    def __init__(self, head: int = HEAD, middle: int = MIDDLE, tail: int = TAIL) -> None:
        self.limits = (head, middle, tail)
        self._head, self._tail = bytearray(), bytearray()
        self._middle: deque[bytes] = deque()
        self._size = 0
        self._kinds: dict[bytes, int] = {}
        self._rest = b""
        self._more, self._in_traceback = 0, False
        self._is_cut = False

    def feed(self, data: bytes) -> None:
        head, _, tail = self.limits
        if len(self._head) < head:
            taken = data[: head - len(self._head)]
            self._head += taken
            data = data[len(taken) :]
        self._tail += data
        if len(self._tail) > 2 * tail:
            leaving = bytes(self._tail[:-tail])
            del self._tail[:-tail]
            self._is_cut = True
            self._look(leaving)

    def text(self) -> str:
        """The whole log where it is small, else its parts, each from a line's beginning."""
        tail = self.limits[2]
        if not self._is_cut and len(self._tail) <= tail:
            return (bytes(self._head) + bytes(self._tail)).decode("utf-8", "replace")
        end = bytes(self._tail)
        if len(end) > tail:
            self._look(end[:-tail])
            del self._tail[:-tail]
            self._is_cut, end = True, end[-tail:]
        parts = (bytes(self._head), *self._middle, end)
        return b"\n".join(parts).decode("utf-8", "replace")

    def _look(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-LONGEST_LINE:]
        if not lines or self._size >= self.limits[1]:
            return
        # Of lines that differ in their numbers alone, as a training prints them, one is searched.
        kinds = b"\n".join(lines).translate(None, _DIGITS).split(b"\n")
        for line, kind in zip(lines, kinds, strict=True):
            if self._belongs(line) or self._tells(line, kind[:200]):
                self._middle.append(line[:LONGEST_LINE])
                self._size += min(len(line), LONGEST_LINE) + 1
                if self._size >= self.limits[1]:
                    return

    def _belongs(self, line: bytes) -> bool:
        """True if it goes on with what the line before tells."""
        if self._in_traceback:
            self._in_traceback = line[:1].isspace() or b'File "' in line
            return True
        self._more -= 1
        return self._more >= 0

    def _tells(self, line: bytes, kind: bytes) -> bool:
        count = self._kinds.get(kind)
        if count is None:
            count = 0 if _TELLS.search(line[:LONGEST_LINE]) is not None else ALIKE
        if count or len(self._kinds) < KINDS:
            self._kinds[kind] = min(count + 1, ALIKE)
        if count >= ALIKE:
            return False
        self._in_traceback = b"Traceback (most recent call last)" in line
        self._more = 0 if self._in_traceback else AFTER
        return True

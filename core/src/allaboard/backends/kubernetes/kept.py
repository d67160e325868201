"""What a follower has read, kept for when its pod is gone: the end of every try, bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from allaboard.backends.kubernetes.lines import Stamped
from allaboard.backends.kubernetes.tries import Try

EACH = 64 << 10
"""Bytes that are kept of one try: its end."""
MOST = 32 << 20
"""Bytes in all; the tries that were read longest ago go first."""


@dataclass(slots=True)
class KeptTry:
    """``cut``: lines before the first one were not kept. ``whole``: it was read to its end."""

    one: Try
    lines: deque[Stamped] = field(default_factory=deque)
    size: int = 0
    cut: bool = False
    whole: bool = False


class Kept:
    """One for each run that is followed; several threads may use it."""

    def __init__(self, each: int = EACH, most: int = MOST) -> None:
        self.each, self.most = each, most
        self._size = 0
        self._tries: OrderedDict[str, KeptTry] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, one: Try, lines: Iterable[Stamped], *, cut: bool = False, whole: bool = False) -> None:
        """More lines, in order; those that are there already are passed over. ``cut``: lines before them were
        not read; ``whole``: it ends with them.
        """
        with self._lock:
            found = self._tries.get(one.id)
            if found is None:
                found = self._tries[one.id] = KeptTry(one, cut=cut)
            self._tries.move_to_end(one.id)
            found.whole = found.whole or whole
            for line in lines:
                if cut and found.lines and line.at > found.lines[-1].at:
                    # Between what was kept and this end of the log there may be lines that nobody read.
                    self._grow(found, -found.size)
                    found.lines.clear()
                    found.cut = True
                cut = False
                self._append(found, line)
            while self._size > self.most and len(self._tries) > 1:
                _, gone = self._tries.popitem(last=False)
                self._size -= gone.size

    def _append(self, found: KeptTry, line: Stamped) -> None:
        lines = found.lines
        if lines and line.at < lines[0].at:
            return
        if lines and line.at <= lines[-1].at and any((k.at, k.text) == line[:2] for k in lines):
            return
        found.lines.append(Stamped(line.at, line.text))
        self._grow(found, len(line.text) + 1)
        while found.size > self.each and len(found.lines) > 1:
            self._grow(found, -len(found.lines.popleft().text) - 1)
            found.cut = True

    def _grow(self, found: KeptTry, size: int) -> None:
        found.size += size
        self._size += size

    def tries(self) -> list[KeptTry]:
        """All of them as they are now, in the order in which they were read last."""
        with self._lock:
            return [replace(kept, lines=kept.lines.copy()) for kept in self._tries.values()]

    def tail(self, member: str, *, before: bool = False) -> str:
        """The end of what a member's training container wrote in its last try, or in the one ``before``."""
        tries = [t for t in self.tries() if t.one.member == member and not t.one.init and t.lines]
        tries.sort(key=lambda t: (t.one.begun or 0.0, t.one.restart))
        wanted = tries[:-1] if before else tries
        return "\n".join(line.text for line in wanted[-1].lines) if wanted else ""

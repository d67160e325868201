"""Bounds of one reading of metrics files: bytes, time, and a file in windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allaboard.storage import Store

MOST_ENTRIES = 20_000
"""Files of a place that are looked at."""
MOST_FILES = 100
MOST_OF_A_FILE = 64 << 20
MOST_BYTES = 256 << 20
"""Of all files of a place."""
SECONDS = 15.0
"""Time that the reading of a place takes; a page or a status waits for it."""
_WINDOW = 4 << 20


@dataclass(slots=True)
class Budget:
    """Bytes and time that are left. ``clock``: seconds that never go back; ``end``: the moment, by it, at
    which the reading stops.
    """

    clock: Callable[[], float]
    end: float
    bytes: int = MOST_BYTES

    @property
    def is_spent(self) -> bool:
        return self.bytes <= 0 or self.clock() >= self.end


class Window:
    """A file that is read piece by piece, forwards. ``size``: bytes of it that may be read."""

    def __init__(self, store: Store, key: str, size: int, budget: Budget) -> None:
        self.store, self.key, self.budget = store, key, budget
        self.size = min(size, MOST_OF_A_FILE)
        self._start, self._data = 0, b""

    def at(self, place: int, length: int) -> bytes:
        """The bytes from ``place`` on, fewer at the end of the file or of the budget."""
        if not self._start <= place <= place + length <= self._start + len(self._data):
            wanted = min(max(length, _WINDOW), self.size - place)
            if wanted <= 0 or self.budget.is_spent:
                return b""
            self._start, self._data = place, self.store.read(self.key, place, wanted)
            self.budget.bytes -= len(self._data)
        return self._data[place - self._start : place - self._start + length]

    def lines(self) -> list[bytes]:
        """The whole lines of the file. What follows the last line end is still being written."""
        kept, place = [], 0
        while piece := self.at(place, _WINDOW):
            kept.append(piece)
            place += len(piece)
        return b"".join(kept).split(b"\n")[:-1]

"""Time that nobody sets: seconds since the boot, which count waits, and a clock that goes by them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

_SET = 1.0
"""Seconds from which on the machine's clock was set; less is its slow correction, or a pause of this process
between two reads.
"""


def steady() -> float:
    """Seconds since the boot, the machine's sleep included where the system counts it. Two processes may
    compare them within one boot (`machine.boot_id`).
    """
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Moment(NamedTuple):
    """One moment by both clocks."""

    wall: float
    steady: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), steady())

    def later(self, seconds: float) -> Moment:
        return Moment(self.wall + seconds, self.steady + seconds)


class Clock:
    """Epoch seconds that go on evenly. The machine's clock may be set at any time; `follow` does it here,
    where the caller can move the times that it has counted from.
    """

    def __init__(
        self,
        offset: float | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady,
    ) -> None:
        self._wall, self._steady = wall, steady
        self.offset = wall() - steady() if offset is None else offset
        """Epoch seconds less seconds since the boot."""

    def now(self) -> float:
        return self.offset + self._steady()

    def at(self, steady: float) -> float:
        """The epoch seconds of a moment that was told in seconds since the boot."""
        return self.offset + steady

    def follow(self) -> float:
        """Set this clock as the machine's was; returns the seconds by which, mostly 0."""
        by = self._wall() - self.now()
        if abs(by) < _SET:
            return 0.0
        self.offset += by
        return by

"""By when an operation must be over, for the thread that does it: `Api` waits for no answer beyond that."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ENDS: ContextVar[float] = ContextVar("ends", default=math.inf)


@contextmanager
def ends_at(moment: float) -> Iterator[None]:
    """A block that must be over at this moment of `time.monotonic`, or at an earlier one that an outer block
    sets.
    """
    token = _ENDS.set(min(moment, _ENDS.get()))
    try:
        yield
    finally:
        _ENDS.reset(token)


def seconds_left() -> float:
    """Infinite where there is no deadline; 0 where it has passed."""
    return max(0.0, _ENDS.get() - time.monotonic())

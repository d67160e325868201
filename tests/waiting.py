"""Waiting for what must happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SHARE = 0.1
"""Of the time of a wait, looks take this much at most: they would take the CPU that they wait for."""
SHORTEST, LONGEST = 0.01, 0.5
"""Seconds between two looks."""


def wait_for(look: Callable[[], T], seconds: float = 120.0, what: str = "") -> T:
    """What ``look`` returns once it is true. Fails after so many seconds, and names ``what``."""
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if found := look():
            return found
        now = time.monotonic()
        assert now < end, f"waited {seconds:g} s for {what or look}"
        time.sleep(min(max(SHORTEST, (now - began) * (1 / SHARE - 1)), LONGEST))

"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What the condition says once it says something. The deadline only keeps a broken test from hanging."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)

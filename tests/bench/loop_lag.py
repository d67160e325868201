"""A trigger that measures the event loop of its triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

EVERY = 0.05
"""Seconds between two samples."""


class LoopLag(BaseTrigger):
    """Writes a line for each sample to the file ``path``: CLOCK_MONOTONIC, and by how many seconds the loop
    woke it too late. Never fires.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"path": self.path}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        with Path(self.path).open("w", buffering=1) as file:
            while True:
                due = time.monotonic() + EVERY
                await asyncio.sleep(EVERY)
                now = time.monotonic()
                file.write(f"{now} {now - due}\n")
        yield TriggerEvent(None)  # makes a generator of this function


def lags_since(path: Path, began: float) -> list[float]:
    """The samples after ``began`` (CLOCK_MONOTONIC), in seconds, ascending."""
    samples = (line.split() for line in path.read_text().splitlines())
    return sorted(float(lag) for at, lag in samples if float(at) > began)

"""The base of triggers that poll until something is there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from allaboard.text.redaction import redact_text

VERSION = 1
SETTLE = 10.0
"""Least seconds between the start of a trigger and its event. A task that resumes before the scheduler knows
of its deferral is failed as "killed externally" (apache/airflow#66374, #67287, #72716; seen with 3.3.2 and
two to seven seconds).
"""


class PollTrigger(BaseTrigger):
    """Fires ``{"version", "status"}`` once. ``status``: ``there``, ``timeout`` (``deadline``, epoch seconds,
    has passed), ``elsewhere`` (the files are on the disk of another machine) or ``error`` (with ``error``).

    ``fingerprint``: of the folder that a look needs; None for what can be seen from anywhere. ``newer``:
    arguments of a newer release, which are kept.
    """

    def __init__(
        self,
        fingerprint: Mapping[str, Any] | None = None,
        poll: float = 10.0,
        deadline: float | None = None,
        version: int = VERSION,
        **newer: Any,
    ) -> None:
        super().__init__()
        self.fingerprint = dict(fingerprint) if fingerprint is not None else None
        self.poll, self.deadline = poll, deadline
        self.version, self.newer = version, newer

    def arguments(self) -> dict[str, Any]:
        """The arguments of this kind of trigger, as plain JSON."""
        raise NotImplementedError

    def is_here(self) -> bool:
        """Return whether this process sees the folder that the worker saw. Blocks."""
        raise NotImplementedError

    def is_there(self) -> bool:
        """Return whether the trigger can fire. Blocks."""
        raise NotImplementedError

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "version": self.version,
            "fingerprint": self.fingerprint,
            "poll": self.poll,
            "deadline": self.deadline,
            **self.arguments(),
            **self.newer,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        begun = time.monotonic()
        try:
            event = await self._watch_in_time()
        except Exception as error:
            self.log.exception("the look failed")
            event = {
                "version": VERSION,
                "status": "error",
                "error": redact_text(f"{type(error).__name__}: {error}"),
            }
        await settle(begun)
        yield TriggerEvent(event)

    async def _watch_in_time(self) -> dict[str, Any]:
        left = None if self.deadline is None else max(0.0, self.deadline - time.time())
        try:
            async with asyncio.timeout(left) as limit:
                return await self._watch()
        except TimeoutError:
            if not limit.expired():  # of the look itself
                raise
            return {"version": VERSION, "status": "timeout"}

    async def _watch(self) -> dict[str, Any]:
        if self.fingerprint is not None and not await asyncio.to_thread(self.is_here):
            return {"version": VERSION, "status": "elsewhere"}
        while not await asyncio.to_thread(self.is_there):
            await asyncio.sleep(self.poll * random.uniform(0.9, 1.1))
        return {"version": VERSION, "status": "there"}


async def settle(begun: float) -> None:
    """Return no sooner than `SETTLE` seconds after ``begun`` (`time.monotonic`)."""
    await asyncio.sleep(max(0.0, begun + SETTLE - time.monotonic()))

"""Triggers that behave as badly as triggers do. The triggerer imports this module by name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from airflow.triggers.base import TriggerEvent

from allaboard.backends.local.backend import LocalBackend
from allaboard_provider.triggers.backends import LocalTriggerBackend
from allaboard_provider.triggers.train import TrainingJobTrigger


class Raises(TrainingJobTrigger):
    """Dies before it can tell anything."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(0)
        raise RuntimeError("this trigger was made to fail")
        yield


class Blind(TrainingJobTrigger):
    """Sits on a machine from which the run cannot be seen, and lingers after its word: Airflow then calls its
    `on_kill`.
    """

    def _open_backend(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async for event in super().run():
            yield event
        await asyncio.sleep(10)


class Alone(TrainingJobTrigger):
    """The one process that finds the run: the triggerer's main process and the API server have another
    home.
    """

    def _open_backend(self) -> AbstractAsyncContextManager[Any]:
        environ = {**os.environ, "ALLABOARD_HOME": os.environ["ALONE"]}
        return nullcontext(LocalTriggerBackend(LocalBackend(environ)))


class Sleeps(TrainingJobTrigger):
    """Never looks, not even at the clock."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(3600)
        yield TriggerEvent({})

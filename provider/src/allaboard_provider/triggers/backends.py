"""The backends of triggers: that of a run's cluster, or that of this machine in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any, Protocol

from allaboard.backends.base import Cursor, Handle, LogLine, Selection
from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import AllaboardError
from allaboard.runs.observation import Observation, Owner
from allaboard_provider.hooks.allaboard import AllaboardHook

_AT_ONCE = 1000
"""Lines that a thread reads at once."""


class TriggerBackend(Protocol):
    """The methods that triggers need of a backend. They raise as those of
    `allaboard.backends.base.Backend`.
    """

    name: str

    async def observe(self, run: str, evidence: bool = False) -> Observation: ...

    async def secrets_of(self, run: str) -> tuple[str, ...]: ...

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None
    ) -> AsyncIterator[LogLine | Cursor]: ...

    async def stop_from(self, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool: ...


class LocalTriggerBackend:
    """`LocalBackend` in threads."""

    name = "local"

    def __init__(self, backend: LocalBackend) -> None:
        self.backend = backend

    async def observe(self, run: str, evidence: bool = False) -> Observation:
        return await asyncio.to_thread(self.backend.observe, run, evidence)

    async def secrets_of(self, run: str) -> tuple[str, ...]:
        return await asyncio.to_thread(self.backend.secrets_of, run)

    async def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None
    ) -> AsyncIterator[LogLine | Cursor]:
        items = await asyncio.to_thread(self.backend.logs, run, selection, cursor)
        while some := await asyncio.to_thread(lambda: [*islice(items, _AT_ONCE)]):
            for item in some:
                yield item

    async def stop_from(self, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool:
        return await asyncio.to_thread(self.backend.stop_from, handle, old, new, by, reason)

    @asynccontextmanager
    async def changes(self, run: str) -> AsyncIterator[_Sleep]:
        yield _Sleep(self.backend, run)


class _Sleep:
    """Changes that never wake: a follower that looks every second needs no waking. Each wait shows the run
    that a trigger follows it: one that is frozen, or gone, shows nothing, and the run ends by itself.
    """

    def __init__(self, backend: LocalBackend, run: str) -> None:
        self._backend, self._run = backend, run

    async def wait(self, seconds: float) -> bool:
        with suppress(AllaboardError, OSError):  # the next look tells it
            await asyncio.to_thread(self._backend.watch_over, self._run)
        await asyncio.sleep(seconds)
        return False


@asynccontextmanager
async def local_backend(
    run: str, fingerprint: Mapping[str, Any]
) -> AsyncIterator[LocalTriggerBackend | None]:
    """The backend of this machine; None when the run lives on another machine, container or folder."""
    yield await asyncio.to_thread(_backend_of, run, fingerprint)


def _backend_of(run: str, fingerprint: Mapping[str, Any]) -> LocalTriggerBackend | None:
    try:
        backend = LocalBackend()
        return LocalTriggerBackend(backend) if backend.fingerprint(run) == fingerprint else None
    except (AllaboardError, OSError):
        return None


@asynccontextmanager
async def cluster_backend(connection: str | None) -> AsyncIterator[Any]:
    """The backend of the cluster that the connection names. Raises AllaboardError."""
    hook = await AllaboardHook.aread(connection)
    async with hook.awaited() as backend:
        yield backend

"""The state that all backends of one process share: one watch, one Lease, one set of credentials, one budget
of kept logs. It is the only state of the Kubernetes backend that no object holds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class ProcessScope:
    """Each thing is made when it is first asked for. Several threads may use it. What makes a thing may ask
    for another: a hub gets its credentials.
    """

    def __init__(self) -> None:
        # One per kind: a kind that takes long to make, or makes another one, holds up no other kind.
        self._locks: dict[type, threading.RLock] = {}
        self._things: dict[tuple[type, Hashable], Any] = {}
        self._in_loops: dict[tuple[type, int, Hashable], tuple[asyncio.AbstractEventLoop, Any]] = {}

    def get(self, kind: type[T], key: Hashable, make: Callable[[], T]) -> T:
        """The one thing of this kind under this key. Threads do not survive a fork: what has one puts the
        process id into its key.
        """
        with self._lock_of(kind):
            if (kind, key) not in self._things:
                self._things[kind, key] = make()
            value: T = self._things[kind, key]
            return value

    def get_in_loop(self, kind: type[T], key: Hashable, make: Callable[[], T]) -> T:
        """The same for the running event loop. Things of closed loops are dropped."""
        loop = asyncio.get_running_loop()
        with self._lock_of(kind):
            for closed in [k for k, (its, _) in [*self._in_loops.items()] if its.is_closed()]:
                self._in_loops.pop(closed, None)
            if (kind, id(loop), key) not in self._in_loops:
                self._in_loops[kind, id(loop), key] = (loop, make())
            value: T = self._in_loops[kind, id(loop), key][1]
            return value

    def _lock_of(self, kind: type) -> threading.RLock:
        return self._locks.setdefault(kind, threading.RLock())


PROCESS = ProcessScope()

"""Leases of followers: one for each process and namespace, renewed for as long as the process lives, however
many runs it follows. The record of a run names the Lease of the process that follows it
(core/docs/contract.md, Owners).

A process that ends releases its Lease; a killed process cannot, and its Lease runs out. The next process that
lists, launches or follows removes Leases that ran out long ago. A process that may not keep Leases follows
all the same; nobody can see that it lives, and its runs are never taken for orphans.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from allaboard.backends.kubernetes.client.errors import Conflict, Exists, Forbidden, Missing
from allaboard.backends.kubernetes.client.pool import ThreadPool
from allaboard.backends.kubernetes.client.process import PROCESS
from allaboard.backends.kubernetes.client.protocol import Json, Patience
from allaboard.backends.kubernetes.client.resources import LEASES
from allaboard.errors import AllaboardError, BackendUnreachable
from allaboard.job.training_job import ORPHAN_AFTER_MAX
from allaboard.render import labels
from allaboard.text.units import from_rfc3339, rfc3339

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

T = TypeVar("T")

SECONDS = 60
"""Seconds for which a Lease holds without being renewed; it is renewed three times as often."""
EVERY = SECONDS / 3
KEPT = ORPHAN_AFTER_MAX
"""Seconds for which a Lease that has run out is kept: it shows since when its runs have no follower, and so
whether their follower may still come back (`lifecycle.orphans`).
"""
AT_ONCE = 50
PATIENCE = Patience(budget=5.0)
"""Its next try comes soon anyway."""


def lease_body(holder: str, now: float) -> Json:
    """A Lease that holds from now on."""
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": labels.lease_name(holder), "labels": {labels.MANAGED_BY: "allaboard"}},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": SECONDS,
            "acquireTime": _micro(now),
            "renewTime": _micro(now),
        },
    }


def seen_at(lease: Json) -> float:
    """The time at which its holder was last seen, epoch seconds."""
    spec = lease.get("spec") or {}
    return from_rfc3339(spec.get("renewTime") or spec.get("acquireTime")) or 0.0


def is_held(lease: Json, now: float) -> bool:
    return now < seen_at(lease) + float((lease.get("spec") or {}).get("leaseDurationSeconds") or 0)


def read_leases(api: Api, name: str | None = None) -> dict[str, Json] | None:
    """The Leases of allaboard in a namespace, by name; only that of ``name``, if it is given. None: this user
    may not list Leases.
    """
    fields = None if name is None else f"metadata.name={name}"
    try:
        every = api.list(LEASES, labels=labels.selector(), fields=fields)[0]
    except Forbidden:
        return None
    return {lease["metadata"]["name"]: lease for lease in every}


def take_lease(api: Api, holder: str) -> str:
    """The name of a Lease that holds now; empty where this user may keep none."""
    now = api.server_time()
    try:
        api.create(LEASES, lease_body(holder, now))
    except Exists:
        renew_lease(api, holder)
    except (Forbidden, Missing):  # without its namespace there is nothing to follow either
        return ""
    return labels.lease_name(holder)


def renew_lease(api: Api, holder: str) -> None:
    """Renew the Lease: its holder lives now."""
    now = api.server_time()
    change = {"spec": {"renewTime": _micro(now), "leaseDurationSeconds": SECONDS}}
    try:
        api.patch(LEASES, labels.lease_name(holder), change)
    except Missing:  # another client tidied up too eagerly
        with suppress(Exists):
            api.create(LEASES, lease_body(holder, now))


def remove_dead(api: Api) -> None:
    """Remove the Leases of processes that died long ago; a few at a time, as far as this user may."""
    try:
        every = api.list(LEASES, labels=labels.selector())[0]
        now = api.server_time()
        dead = [lease for lease in every if not is_held(lease, now - KEPT)]
        for lease in dead[:AT_ONCE]:
            metadata = lease["metadata"]
            with suppress(Conflict, Missing):  # somebody else removes it, or its process has come back
                api.delete(
                    LEASES,
                    metadata["name"],
                    uid=metadata["uid"],
                    resource_version=metadata["resourceVersion"],
                )
    except (Forbidden, Missing):
        return


def release_lease(api: Api, holder: str) -> None:
    """Delete the Lease: the holder's runs have no follower from now on."""
    api.delete(LEASES, labels.lease_name(holder))


def holder_of_this_process(person: str) -> str:
    """``user@host:pid`` and a random suffix, because an earlier process may have had the same pid."""
    return f"{person}:{os.getpid()}:{secrets.token_hex(4)}"


class Keeper(Protocol):
    """Keeper of the Lease of this process in one namespace."""

    def hold(self) -> str:
        """The name of the Lease, which holds from now to the end of the process; empty: there is none."""

    def let_go(self) -> None:
        """Release the Lease: this process follows nothing here any more."""


class AsyncKeeper(Protocol):
    """A keeper for an event loop."""

    async def hold(self) -> str: ...

    async def let_go(self) -> None: ...


class ThreadKeeper:
    """Renews in a thread of its own: a follower that is busy lives, too."""

    def __init__(self, api: Api, holder: str) -> None:
        self.api, self.holder = api, holder
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._name: str | None = None

    def hold(self) -> str:
        with self._lock:
            if self._name is None:
                self._name = take_lease(self.api, self.holder)
                if self._name:
                    self._over = threading.Event()
                    threading.Thread(target=self._keep, args=(self._over,), daemon=True).start()
                    atexit.register(self.let_go)
            return self._name

    def let_go(self) -> None:
        with self._lock:
            if not self._name:
                return
            self._name = None
            self._over.set()
            atexit.unregister(self.let_go)
            with suppress(AllaboardError):  # it runs out by itself
                release_lease(self.api, self.holder)
            self.api.close()

    def _keep(self, over: threading.Event) -> None:
        has_tidied = False
        while not over.wait(EVERY):
            with suppress(AllaboardError):  # a cluster that does not answer counts no time against us either
                renew_lease(self.api, self.holder)
                if not has_tidied:
                    has_tidied = True
                    remove_dead(self.api)


class TaskKeeper:
    """Renews from a task of the running loop: a process whose loop stands still follows nothing. Its requests
    have a thread of their own, so that they wait for no operation. It holds the Lease to the end of the
    process and does not release it there: another triggerer takes up the runs that this one has left, and
    until then the Lease shows since when nobody follows them.
    """

    def __init__(self, api: Api, holder: str) -> None:
        self.api, self.holder = api, holder
        self._thread = ThreadPool("allaboard-lease", 1)
        self._lock = asyncio.Lock()
        self._name: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def hold(self) -> str:
        async with self._lock:
            if self._name is None:
                self._name = await self._do(take_lease, self.holder)
                if self._name:
                    # An empty context: it outlives the first follower.
                    loop = asyncio.get_running_loop()
                    self._task = loop.create_task(self._keep(), context=contextvars.Context())
            return self._name

    async def let_go(self) -> None:
        async with self._lock:
            if not self._name or self._task is None:
                return
            self._name = None
            self._task.cancel()
            with suppress(AllaboardError):
                await self._do(release_lease, self.holder)

    async def _keep(self) -> None:
        has_tidied = False
        while True:
            await asyncio.sleep(EVERY)
            with suppress(AllaboardError):
                await self._do(renew_lease, self.holder)
                if not has_tidied:
                    has_tidied = True
                    await self._do(remove_dead)

    async def _do(self, do: Callable[..., T], *given: str) -> T:
        try:
            return await self._thread.run(EVERY, partial(do, self.api, *given))
        except TimeoutError:
            raise BackendUnreachable(f"API server {self.api.server} did not renew a Lease in time") from None


def keeper_of(api: Api, person: str) -> ThreadKeeper:
    """The keeper of this process for this cluster, user and namespace."""
    # Threads do not survive a fork, and a child is a process that may end at another time.
    key = (os.getpid(), api.identity, api.namespace)
    return PROCESS.get(
        ThreadKeeper, key, lambda: ThreadKeeper(api.twin(PATIENCE), holder_of_this_process(person))
    )


def async_keeper_of(api: Api, person: str) -> TaskKeeper:
    """The keeper of the running loop for this cluster, user and namespace."""
    key = (api.identity, api.namespace)
    return PROCESS.get_in_loop(
        TaskKeeper, key, lambda: TaskKeeper(api.twin(PATIENCE), holder_of_this_process(person))
    )


def _micro(epoch: float) -> str:
    """The text of a MicroTime: six digits of a second."""
    text = rfc3339(epoch)
    assert text is not None
    return text.removesuffix("Z") + "000Z"

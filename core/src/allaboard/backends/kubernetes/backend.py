"""The Kubernetes backend: runs as job objects of the operators that the cluster has. `KubernetesBackend`
blocks, `AsyncKubernetesBackend` does not; what they do is `operations.runs`.

All state is on the cluster: the run record, the job with its labels, the pods. Either backend may be made
anew at any time, in any process that may speak to the cluster, and goes on.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from allaboard.backends.actor import user_at_host
from allaboard.backends.base import Cursor, Handle, LogLine, NotYours, Plan, Selection, Stopped
from allaboard.backends.kubernetes.client.effects import Operation, run_async, run_sync
from allaboard.backends.kubernetes.client.resources import resource_for, resource_of
from allaboard.backends.kubernetes.lifecycle import orphans
from allaboard.backends.kubernetes.lifecycle.orphans import Orphan, Tidied
from allaboard.backends.kubernetes.logs import stream
from allaboard.backends.kubernetes.logs.capture import SECONDS
from allaboard.backends.kubernetes.observe.lookup import takes_rank_0
from allaboard.backends.kubernetes.operations import foreign
from allaboard.backends.kubernetes.operations.foreign_job import OthersJob
from allaboard.backends.kubernetes.operations.runs import CachedObservation, Verbs
from allaboard.backends.kubernetes.preflight.at_launch import Asking
from allaboard.backends.kubernetes.state.leases import (
    AsyncKeeper,
    Keeper,
    async_keeper_of,
    keeper_of,
)
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.backends.kubernetes.watch.informer import (
    AsyncChanges,
    AsyncHub,
    Changes,
    Hub,
    async_hub_of,
    hub_of,
)
from allaboard.engines import engine_of_kind
from allaboard.errors import AllaboardError
from allaboard.follow.loop import FollowPolicy
from allaboard.observation import Event, Observation, Owner
from allaboard.render.cluster_facts import ClusterFacts, assumed_facts
from allaboard.spec.site import Site, site_of

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api, AsyncApi

T = TypeVar("T")

PACE = FollowPolicy(poll=30.0, unreachable=10)
"""Followers are woken; the look now and then is for what no wake tells. Each look is patient by itself."""


RESCUES, ALL_RESCUES = 8, 64
"""Pods of one run, and of all of them, from which evidence is being saved at one time. What others wrote is
read with the next look, if it is still there.
"""


def _alarm_of(
    stored: Stored, alarmed: Callable[[str, str, str | None], None]
) -> Callable[[str, str | None], None]:
    """What hears of pods of this run: of one that goes without having failed where it may be rank 0."""
    alarm = partial(alarmed, stored.record.run)
    return alarm if takes_rank_0(stored) else partial(_of_what_ails, alarm)


def _of_what_ails(alarm: Callable[[str, str | None], None], pod: str, version: str | None) -> None:
    if version is not None:
        alarm(pod, version)


class _ObservationCache:
    """The last look at each run that is followed here. It is as good as a new one while no row has told of a
    change; what this process does to a run itself makes it look anew.
    """

    def __init__(self) -> None:
        self._looks: dict[str, tuple[Changes | AsyncChanges, CachedObservation | None]] = {}

    @contextmanager
    def following(self, run: str, changes: Changes | AsyncChanges) -> Iterator[None]:
        self._looks[run] = (changes, None)
        try:
            yield
        finally:
            if run in self._looks and self._looks[run][0] is changes:
                del self._looks[run]

    def standing(self, run: str) -> CachedObservation | None:
        """The one that still stands."""
        changes, look = self._looks.get(run, (None, None))
        return look if changes is not None and changes.quiet else None

    def begin(self, run: str) -> CachedObservation | None:
        """The same for whoever looks now: what is told from here on comes after this look."""
        changes, look = self._looks.get(run, (None, None))
        if changes is None:
            return None
        self._looks[run] = (changes, None)  # until this look has succeeded
        return look if changes.settle() else None

    def end(self, run: str, look: CachedObservation | None) -> None:
        changes, _ = self._looks.get(run, (None, None))
        if changes is not None:
            self._looks[run] = (changes, look)

    def forget(self) -> None:
        for run, (changes, _) in list(self._looks.items()):
            self._looks[run] = (changes, None)


class KubernetesBackend:
    """`allaboard.backends.base.Backend` on a cluster. ``api``: a client; its namespace is where runs live.
    ``facts``: what is known of the cluster; it is asked when they are not given. ``environ``: the caller's
    environment. ``ask_first``: a launch says what will not work, as far as one request each tells. ``hub``,
    ``keeper``: who watches, and who keeps the Lease; those of this process where none
    is given. ``pause`` sleeps.
    """

    name = "kubernetes"
    pace = PACE

    def __init__(
        self,
        api: Api,
        *,
        site: Site | None = None,
        facts: ClusterFacts | None = None,
        environ: Mapping[str, str] | None = None,
        hub: Hub | None = None,
        keeper: Keeper | None = None,
        ask_first: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.api, self.pause, self.ask_first = api, pause, ask_first
        self.hub, self.keeper = hub or hub_of(api), keeper or keeper_of(api, user_at_host())
        self.verbs = _verbs(api.namespace, site, facts, environ)
        self._looks = _ObservationCache()
        self._rescues: dict[str, list[threading.Thread]] = {}
        self._room = threading.BoundedSemaphore(ALL_RESCUES)

    @property
    def where(self) -> str:
        return f"in namespace {self.api.namespace} of {self.api.server}"

    def _do(self, operation: Operation[T]) -> T:
        return run_sync(operation, self.api, self.pause)

    def _act(self, operation: Operation[T]) -> T:
        try:
            return self._do(operation)
        finally:
            self._looks.forget()

    def _lease(self, owner: Owner) -> str:
        """The Lease by which it is seen that this owner lives, if it is this process that follows."""
        return self.keeper.hold() if owner.phase == "worker" and owner.kind != "detached" else ""

    def launch(self, plan: Plan, owner: Owner) -> Handle:
        if not self.ask_first:
            return self._act(self.verbs.launch(plan, owner, self._lease(owner)))
        asking = Asking(self.api)
        handle = self._act(self.verbs.launch(plan, owner, self._lease(owner), asking.begin))
        return replace(handle, notes=(*handle.notes, *asking.notes()))

    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        return self._act(self.verbs.adopt(handle, old, new, self._lease(new)))

    def watch_over(self, run: str) -> None:
        """From now on this process follows the run for its owner: it is an orphan when this process dies."""
        self._act(self.verbs.watch_over(run, self.keeper.hold()))

    def observe(self, run: str, evidence: bool = False) -> Observation:
        if evidence:
            self._saved(run)
        seen, look = self._do(self.verbs.observe(run, evidence, self._looks.begin(run)))
        self._looks.end(run, look)
        return seen

    def observe_job(
        self, kind: str, name: str, evidence: bool = False, *, uid: str | None = None
    ) -> Observation:
        """What is seen now of a job that somebody else made, by its name. ``kind``: as `engine_of_kind` reads
        it; ``uid``: of the one that was seen there before; should it be gone, that is seen. Raises UnknownRun
        when none is there, and BadInput for a kind that is not known or not served.
        """
        return self._do(self.verbs.observe_job(kind, name, evidence, uid))

    def _saved(self, run: str) -> None:
        """Wait for what is just being saved of pods that may be gone."""
        for rescue in [*self._rescues.get(run, ())]:
            rescue.join(SECONDS)

    def _alarmed(self, run: str, pod: str, version: str | None) -> None:
        """Called by the thread that watches, which has no time."""
        rescues = self._rescues[run] = [one for one in self._rescues.get(run, ()) if one.is_alive()]
        if len(rescues) < RESCUES and self._room.acquire(blocking=False):
            rescue = threading.Thread(
                target=self._rescue, args=(run, pod, version), name=f"rescue-{pod}", daemon=True
            )
            try:
                rescue.start()
            except RuntimeError:  # no room for another thread
                self._room.release()
            else:
                rescues.append(rescue)

    def _rescue(self, run: str, pod: str, version: str | None) -> None:
        try:
            with suppress(AllaboardError):
                self._do(self.verbs.rescue(run, pod, version))
        finally:
            self._room.release()

    def events(self, run: str) -> list[Event]:
        return self._do(self.verbs.events(run))

    def saving(self, run: str) -> str | None:
        return self._do(self.verbs.saving(run))

    def secrets_of(self, run: str) -> tuple[str, ...]:
        return self._do(self.verbs.secrets_of(run))

    @contextmanager
    def changes(self, run: str) -> Iterator[Changes]:
        stored = self._do(self.verbs.find(run))
        name = stored.record.run
        with self.hub.changes(name, resource_of(stored.job)) as changes:
            changes.on_alarm = _alarm_of(stored, self._alarmed)
            try:
                with self._looks.following(name, changes):
                    yield changes
            finally:
                self._rescues.pop(name, None)

    def changes_of(self, kind: str, name: str) -> AbstractContextManager[Changes]:
        """Wake-ups for whoever waits for a job that somebody else made, also before it is there."""
        return self.hub.changes_of(resource_for(engine_of_kind(kind)), name, self.api.namespace)

    def others(self, name: str, *, adopt: bool = False) -> OthersJob:
        """A job that somebody else made here, by its name or as ``pytorchjob/name``, to be looked at as a run
        is; ``adopt``: and to be stopped, suspended, resumed, deleted. Raises UnknownRun.
        """
        kind, slash, job = name.partition("/")
        if slash:
            found = OthersJob(self, engine_of_kind(kind), job, adopt=adopt)
            found.observe(job)
            return found
        return OthersJob(self, self._do(foreign.engine_of(name)), name, adopt=adopt)

    def list_others(self) -> list[Observation]:
        """Every job that somebody else made here, newest first."""
        return self._do(foreign.every())

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> Iterator[LogLine | Cursor]:
        self._saved(run)
        first = self._do(self.verbs.readable(run, selection, self._looks.standing(run)))
        if not follow:
            return stream.read(self.api, None, first.found, selection, cursor, first.kept)
        chosen = replace(selection, attempt=first.attempt)

        def look() -> stream.LogSources:
            self._saved(run)
            now = self._do(self.verbs.readable(run, chosen))
            return stream.LogSources(now.found, now.over)

        return stream.follow(self.api, None, look, chosen, cursor, first.kept)

    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        return self._act(self.verbs.stop(handle, owner, by, reason, kill))

    def suspend(self, run: str) -> None:
        self._act(self.verbs.suspend(run, user_at_host()))

    def resume(self, run: str) -> None:
        self._act(self.verbs.resume(run, user_at_host()))

    def delete(self, run: str) -> None:
        self._act(self.verbs.delete(run))

    def hand_over(self, handle: Handle) -> None:
        self._act(self.verbs.hand_over(handle))

    def enforce(self, run: str, owner: Owner) -> None:
        self._act(self.verbs.enforce(run, owner))

    def orphans(self) -> list[Orphan]:
        """What is left of clients that died."""
        return self._do(orphans.orphans(self.api.namespace))

    def tidy_up(self) -> list[Tidied]:
        """End and remove what is left of clients that died, where they cannot come back; what was done about
        each.
        """
        return self._do(orphans.tidy_up(self.api.namespace))

    def list(self) -> list[Observation]:
        return self._do(self.verbs.runs())


class AsyncKubernetesBackend:
    """The same on an async client."""

    name = "kubernetes"
    pace = PACE

    def __init__(
        self,
        api: AsyncApi,
        *,
        site: Site | None = None,
        facts: ClusterFacts | None = None,
        environ: Mapping[str, str] | None = None,
        hub: AsyncHub | None = None,
        keeper: AsyncKeeper | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.api, self.hub, self.keeper, self.pause = api, hub, keeper, pause
        self.verbs = _verbs(api.namespace, site, facts, environ)
        self._looks = _ObservationCache()
        self._rescues: dict[str, list[asyncio.Future[None]]] = {}
        self._room = threading.BoundedSemaphore(ALL_RESCUES)

    @property
    def where(self) -> str:
        return f"in namespace {self.api.namespace} of {self.api.server}"

    async def _do(self, operation: Operation[T]) -> T:
        return await run_async(operation, self.api, self.pause)

    async def _act(self, operation: Operation[T]) -> T:
        try:
            return await self._do(operation)
        finally:
            self._looks.forget()

    async def _lease(self, owner: Owner) -> str:
        return await self._hold() if owner.phase == "worker" and owner.kind != "detached" else ""

    async def _hold(self) -> str:
        return await (self.keeper or async_keeper_of(self.api, user_at_host())).hold()

    async def launch(self, plan: Plan, owner: Owner) -> Handle:
        return await self._act(self.verbs.launch(plan, owner, await self._lease(owner)))

    async def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        return await self._act(self.verbs.adopt(handle, old, new, await self._lease(new)))

    async def watch_over(self, run: str) -> None:
        await self._act(self.verbs.watch_over(run, await self._hold()))

    async def observe(self, run: str, evidence: bool = False) -> Observation:
        if evidence:
            await self._saved(run)
        seen, look = await self._do(self.verbs.observe(run, evidence, self._looks.begin(run)))
        self._looks.end(run, look)
        return seen

    async def observe_job(
        self, kind: str, name: str, evidence: bool = False, *, uid: str | None = None
    ) -> Observation:
        return await self._do(self.verbs.observe_job(kind, name, evidence, uid))

    async def _saved(self, run: str) -> None:
        if rescues := [*self._rescues.get(run, ())]:
            await asyncio.wait(rescues, timeout=SECONDS)

    def _alarmed(self, run: str, pod: str, version: str | None) -> None:
        rescues = self._rescues[run] = [one for one in self._rescues.get(run, ()) if not one.done()]
        if len(rescues) < RESCUES and self._room.acquire(blocking=False):
            rescue = asyncio.ensure_future(self._rescue(run, pod, version))
            rescue.add_done_callback(lambda _: self._room.release())
            rescues.append(rescue)

    async def _rescue(self, run: str, pod: str, version: str | None) -> None:
        with suppress(AllaboardError, TimeoutError):
            await self._do(self.verbs.rescue(run, pod, version))

    async def events(self, run: str) -> list[Event]:
        return await self._do(self.verbs.events(run))

    async def saving(self, run: str) -> str | None:
        return await self._do(self.verbs.saving(run))

    async def secrets_of(self, run: str) -> tuple[str, ...]:
        return await self._do(self.verbs.secrets_of(run))

    @asynccontextmanager
    async def changes(self, run: str) -> AsyncIterator[AsyncChanges]:
        stored = await self._do(self.verbs.find(run))
        hub = self.hub or async_hub_of(self.api)
        name = stored.record.run
        async with hub.changes(name, resource_of(stored.job)) as changes:
            changes.on_alarm = _alarm_of(stored, self._alarmed)
            try:
                with self._looks.following(name, changes):
                    yield changes
            finally:
                for rescue in self._rescues.pop(name, ()):
                    rescue.cancel()

    def changes_of(self, kind: str, name: str) -> AbstractAsyncContextManager[AsyncChanges]:
        hub = self.hub or async_hub_of(self.api)
        return hub.changes_of(resource_for(engine_of_kind(kind)), name, self.api.namespace)

    async def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> AsyncIterator[LogLine | Cursor]:
        await self._saved(run)
        first = await self._do(self.verbs.readable(run, selection, self._looks.standing(run)))
        chosen = replace(selection, attempt=first.attempt)

        async def look() -> stream.LogSources:
            await self._saved(run)
            now = await self._do(self.verbs.readable(run, chosen))
            return stream.LogSources(now.found, now.over)

        lines = (
            stream.afollow(self.api, None, look, chosen, cursor, first.kept)
            if follow
            else stream.aread(self.api, None, first.found, selection, cursor, first.kept)
        )
        async for item in lines:
            yield item

    async def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        return await self._act(self.verbs.stop(handle, owner, by, reason, kill))

    async def suspend(self, run: str) -> None:
        await self._act(self.verbs.suspend(run, user_at_host()))

    async def resume(self, run: str) -> None:
        await self._act(self.verbs.resume(run, user_at_host()))

    async def delete(self, run: str) -> None:
        await self._act(self.verbs.delete(run))

    async def hand_over(self, handle: Handle) -> None:
        await self._act(self.verbs.hand_over(handle))

    async def enforce(self, run: str, owner: Owner) -> None:
        await self._act(self.verbs.enforce(run, owner))

    async def orphans(self) -> list[Orphan]:
        return await self._do(orphans.orphans(self.api.namespace))

    async def tidy_up(self) -> list[Tidied]:
        return await self._do(orphans.tidy_up(self.api.namespace))

    async def list(self) -> list[Observation]:
        return await self._do(self.verbs.runs())


def _verbs(
    namespace: str, site: Site | None, facts: ClusterFacts | None, environ: Mapping[str, str] | None
) -> Verbs:
    said = dict(os.environ if environ is None else environ)
    base = facts or assumed_facts(said, namespace)
    return Verbs(namespace, site or site_of(said), base, said, known=facts is not None)

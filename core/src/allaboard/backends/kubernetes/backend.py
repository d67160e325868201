"""The Kubernetes backend: runs as job objects of the operators that the cluster has. `KubernetesBackend`
blocks, `AsyncKubernetesBackend` does not; what they do is in `operations`.

All state is on the cluster: the run record, the job with its labels, the pods. Either backend may be made
anew at any time, in any process that may speak to the cluster, and goes on.
"""

from __future__ import annotations

import asyncio
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
from typing import TYPE_CHECKING, Any, TypeVar

from allaboard.backends.actor import user_at_host
from allaboard.backends.base import (
    Cursor,
    Handle,
    LogLine,
    NotYours,
    Plan,
    Selection,
    StartedWith,
    Stopped,
)
from allaboard.backends.kubernetes.client.effects import Json, Operation, run_async, run_sync
from allaboard.backends.kubernetes.client.resources import resource_for, resource_of
from allaboard.backends.kubernetes.lifecycle import orphans, stop
from allaboard.backends.kubernetes.lifecycle.orphans import Orphan, Tidied
from allaboard.backends.kubernetes.logs import stream
from allaboard.backends.kubernetes.observe.lookup import takes_rank_0
from allaboard.backends.kubernetes.operations import foreign, logs, observe, runs, snapshot
from allaboard.backends.kubernetes.operations.foreign_job import OthersJob
from allaboard.backends.kubernetes.operations.queues import read_queues
from allaboard.backends.kubernetes.operations.workspace import Workspace
from allaboard.backends.kubernetes.preflight.at_launch import Asking
from allaboard.backends.kubernetes.session import FollowSession
from allaboard.backends.kubernetes.stacks.asking import look_often
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
from allaboard.backends.kubernetes.watch.reflector import PodAlarm
from allaboard.diagnosis.stacks import ProcessLook, Standing
from allaboard.engines import engine_of_kind
from allaboard.errors import AllaboardError
from allaboard.follow.loop import FollowPolicy
from allaboard.job.site import Site
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.runs.observation import Event, Observation, Owner

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api, AsyncApi
    from allaboard.runs.queues import Queue

T = TypeVar("T")

PACE = FollowPolicy(poll=30.0, unreachable=10)
"""Followers are woken; they poll for what no wake tells. Each poll is patient by itself."""


def _alarm_for(stored: Stored, on_alarm: Callable[[PodAlarm], None]) -> Callable[[PodAlarm], None]:
    """What hears of pods of this run whose logs may be gone a moment later: of those that fail or are being
    deleted, and of those that are done where the operator deletes these, too.
    """
    return partial(_of_leaving, on_alarm, takes_rank_0(stored), bool(stored.layout.get("elastic")))


def _of_leaving(
    on_alarm: Callable[[PodAlarm], None], takes_done: bool, elastic: bool, alarm: PodAlarm
) -> None:
    """An elastic gang has succeeded with any one member: rank 0's pod is deleted next, and may be gone before
    its own row says so.
    """
    is_done = not alarm.failed and not alarm.goes
    if is_done and not takes_done:
        return
    if is_done and elastic and not alarm.pod.endswith("-0"):
        alarm = alarm._replace(pod=f"{alarm.pod.rpartition('-')[0]}-0")
    on_alarm(alarm)


class KubernetesBackend:
    """`allaboard.backends.base.Backend` on a cluster. ``api``: a client; its namespace is where runs live.
    ``facts``: what is known of the cluster; it is asked when they are not given. ``environ``: the caller's
    environment. ``ask_first``: a launch says what will not work, as far as one request each tells. ``hub``,
    ``keeper``: what watches, and what keeps the Lease; None: those of this process. ``pause`` sleeps.
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
        self.workspace = Workspace(api.namespace, site, facts, environ)

    @property
    def where(self) -> str:
        return f"in namespace {self.api.namespace} of {self.api.server}"

    def _do(self, operation: Operation[T]) -> T:
        return run_sync(operation, self.api, self.pause)

    def _act(self, operation: Operation[T]) -> T:
        try:
            return self._do(operation)
        finally:
            self.workspace.sessions.forget_looks()

    def _lease(self, owner: Owner) -> str:
        """The Lease by which it is seen that this owner lives, if it is this process that follows."""
        return self.keeper.hold() if owner.phase == "worker" and owner.kind != "detached" else ""

    def launch(self, plan: Plan, owner: Owner) -> Handle:
        if not self.ask_first:
            return self._act(runs.launch(self.workspace, plan, owner, self._lease(owner)))
        asking = Asking(self.api)
        handle = self._act(runs.launch(self.workspace, plan, owner, self._lease(owner), asking.begin))
        return replace(handle, notes=(*handle.notes, *asking.notes()))

    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        return self._act(runs.adopt(handle, old, new, self._lease(new)))

    def watch_over(self, run: str) -> None:
        """From now on this process follows the run for its owner: it is an orphan when this process dies."""
        self._act(runs.watch_over(run, self.keeper.hold()))

    def observe(self, run: str, evidence: bool = False) -> Observation:
        return self._do(observe.observe(self.workspace, run, evidence))

    def observe_job(
        self, kind: str, name: str, evidence: bool = False, *, uid: str | None = None
    ) -> Observation:
        """What is seen now of a job that another tool made, by its name. ``kind``: as `engine_of_kind` reads
        it; ``uid``: of the one that was seen there before; should it be gone, that is seen. Raises UnknownRun
        when none is there, and BadInput for a kind that is not known or not served.
        """
        return self._do(observe.observe_job(self.workspace, kind, name, evidence, uid))

    def _on_alarm(self, session: FollowSession, alarm: PodAlarm) -> None:
        """Called by the thread that watches, which must not be held up."""
        if self.workspace.sessions.begin_capture(session):
            thread = threading.Thread(
                target=self._capture, args=(session, alarm), name=f"capture-{alarm.pod}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no room for another thread
                self.workspace.sessions.end_capture(session)
            else:
                session.add_task(thread)

    def _capture(self, session: FollowSession, alarm: PodAlarm) -> None:
        try:
            with suppress(AllaboardError):
                self._do(observe.capture(self.workspace, session, alarm))
        finally:
            self.workspace.sessions.end_capture(session)

    def events(self, run: str) -> list[Event]:
        return self._do(runs.list_events(self.workspace, run))

    def snapshot(self, run: str) -> dict[str, Any]:
        """The objects of a run as the API server has them, its secrets included."""
        return self._do(snapshot.take(self.workspace, run))

    def standing(self, run: str, at_least: float = 0.0) -> Standing:
        """For how long no member of a run has written, and where its processes are, unless one has written in
        the last ``at_least`` seconds.
        """
        return self._do(observe.look_standing(self.workspace, run, at_least))

    def look_often(self, run: str, rounds: int) -> list[tuple[ProcessLook, ...]]:
        """So many looks at the processes of a run, a moment apart; none where they may not be asked so."""
        tries = self._do(observe.tries_to_ask(self.workspace, run))
        return look_often(self.api, tries, rounds)

    def saving(self, run: str) -> str | None:
        return self._do(runs.saving_uri(self.workspace, run))

    def secrets_of(self, run: str) -> tuple[str, ...]:
        return self._do(runs.secrets_of(self.workspace, run))

    def started_with(self, run: str) -> StartedWith:
        return self._do(runs.started_with(self.workspace, run))

    @contextmanager
    def changes(self, run: str) -> Iterator[Changes]:
        stored = self._do(observe.find_run(self.workspace, run))
        name = stored.record.run
        with self.hub.changes(name, resource_of(stored.job)) as changes:
            session = self.workspace.sessions.follow(name, changes)
            changes.on_alarm = _alarm_for(stored, partial(self._on_alarm, session))
            try:
                yield changes
            finally:
                self.workspace.sessions.unfollow(session, changes)

    def changes_of(self, kind: str, name: str) -> AbstractContextManager[Changes]:
        """Wake-ups for who waits for a job that another tool made, also before it is there."""
        return self.hub.changes_of(resource_for(engine_of_kind(kind)), name, self.api.namespace)

    def others(self, name: str, *, adopt: bool = False) -> OthersJob:
        """A job that another tool made here, by its name or as ``pytorchjob/name``, to be looked at as a run
        is; ``adopt``: and to be stopped, suspended, resumed, deleted. Raises UnknownRun.
        """
        kind, slash, job = name.partition("/")
        if slash:
            others_job = OthersJob(self, engine_of_kind(kind), job, adopt=adopt)
            others_job.observe(job)
            return others_job
        return OthersJob(self, self._do(foreign.find_engine(name)), name, adopt=adopt)

    def namespaces(self) -> list[str]:
        """The namespaces of the cluster in which there are runs."""
        return self._do(runs.list_namespaces())

    def list_others(self) -> list[Observation]:
        """Every job that another tool made here, newest first."""
        return self._do(foreign.list_jobs())

    def objects_of_others(self) -> list[Json]:
        """The job objects that other tools made here."""
        return self._do(foreign.job_objects())

    def queues(self) -> tuple[list[Queue], list[str]]:
        """The queues of the namespace, and what could not be read of them."""
        return self._do(read_queues(self.api.namespace))

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> Iterator[LogLine | Cursor]:
        first = self._do(logs.readable_logs(self.workspace, run, selection, cached=True))
        if not follow:
            return stream.read_logs(self.api, None, first.tries, selection, cursor, first.logs)
        chosen = replace(selection, attempt=first.attempt)

        def find_sources() -> stream.LogSources:
            now = self._do(logs.readable_logs(self.workspace, run, chosen))
            return stream.LogSources(now.tries, now.over)

        return stream.follow_logs(self.api, None, find_sources, chosen, cursor, first.logs)

    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        return self._act(stop.stop(handle, owner, by, reason, kill))

    def suspend(self, run: str) -> None:
        self._act(runs.suspend(self.workspace, run, True, user_at_host()))

    def resume(self, run: str) -> None:
        self._act(runs.suspend(self.workspace, run, False, user_at_host()))

    def delete(self, run: str) -> None:
        self._act(runs.delete(self.workspace, run))

    def hand_over(self, handle: Handle) -> None:
        self._act(stop.hand_over(handle))

    def enforce(self, run: str, owner: Owner) -> None:
        self._act(runs.enforce(self.workspace, run, owner))

    def orphans(self) -> list[Orphan]:
        """What is left of clients that died."""
        return self._do(orphans.orphans(self.api.namespace))

    def tidy_up(self) -> list[Tidied]:
        """End and remove what is left of clients that died, where they cannot come back; what was done about
        each.
        """
        return self._do(orphans.tidy_up(self.api.namespace))

    def list(self) -> list[Observation]:
        return self._do(runs.list_runs(self.workspace))


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
        self.workspace = Workspace(api.namespace, site, facts, environ)

    @property
    def where(self) -> str:
        return f"in namespace {self.api.namespace} of {self.api.server}"

    async def _do(self, operation: Operation[T]) -> T:
        return await run_async(operation, self.api, self.pause)

    async def _act(self, operation: Operation[T]) -> T:
        try:
            return await self._do(operation)
        finally:
            self.workspace.sessions.forget_looks()

    async def _lease(self, owner: Owner) -> str:
        return await self._hold() if owner.phase == "worker" and owner.kind != "detached" else ""

    async def _hold(self) -> str:
        return await (self.keeper or async_keeper_of(self.api, user_at_host())).hold()

    async def launch(self, plan: Plan, owner: Owner) -> Handle:
        return await self._act(runs.launch(self.workspace, plan, owner, await self._lease(owner)))

    async def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        return await self._act(runs.adopt(handle, old, new, await self._lease(new)))

    async def watch_over(self, run: str) -> None:
        await self._act(runs.watch_over(run, await self._hold()))

    async def observe(self, run: str, evidence: bool = False) -> Observation:
        return await self._do(observe.observe(self.workspace, run, evidence))

    async def observe_job(
        self, kind: str, name: str, evidence: bool = False, *, uid: str | None = None
    ) -> Observation:
        return await self._do(observe.observe_job(self.workspace, kind, name, evidence, uid))

    def _on_alarm(self, session: FollowSession, alarm: PodAlarm) -> None:
        if self.workspace.sessions.begin_capture(session):
            task = asyncio.ensure_future(self._capture(session, alarm))
            task.add_done_callback(lambda _: self.workspace.sessions.end_capture(session))
            session.add_task(task)

    async def _capture(self, session: FollowSession, alarm: PodAlarm) -> None:
        with suppress(AllaboardError, TimeoutError):
            await self._do(observe.capture(self.workspace, session, alarm))

    async def events(self, run: str) -> list[Event]:
        return await self._do(runs.list_events(self.workspace, run))

    async def saving(self, run: str) -> str | None:
        return await self._do(runs.saving_uri(self.workspace, run))

    async def secrets_of(self, run: str) -> tuple[str, ...]:
        return await self._do(runs.secrets_of(self.workspace, run))

    @asynccontextmanager
    async def changes(self, run: str) -> AsyncIterator[AsyncChanges]:
        stored = await self._do(observe.find_run(self.workspace, run))
        hub = self.hub or async_hub_of(self.api)
        name = stored.record.run
        async with hub.changes(name, resource_of(stored.job)) as changes:
            session = self.workspace.sessions.follow(name, changes)
            changes.on_alarm = _alarm_for(stored, partial(self._on_alarm, session))
            try:
                yield changes
            finally:
                for task in self.workspace.sessions.unfollow(session, changes):
                    if isinstance(task, asyncio.Future):
                        task.cancel()

    def changes_of(self, kind: str, name: str) -> AbstractAsyncContextManager[AsyncChanges]:
        hub = self.hub or async_hub_of(self.api)
        return hub.changes_of(resource_for(engine_of_kind(kind)), name, self.api.namespace)

    async def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> AsyncIterator[LogLine | Cursor]:
        first = await self._do(logs.readable_logs(self.workspace, run, selection, cached=True))
        chosen = replace(selection, attempt=first.attempt)

        async def find_sources() -> stream.LogSources:
            now = await self._do(logs.readable_logs(self.workspace, run, chosen))
            return stream.LogSources(now.tries, now.over)

        lines = (
            stream.afollow_logs(self.api, None, find_sources, chosen, cursor, first.logs)
            if follow
            else stream.aread_logs(self.api, None, first.tries, selection, cursor, first.logs)
        )
        async for item in lines:
            yield item

    async def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        return await self._act(stop.stop(handle, owner, by, reason, kill))

    async def suspend(self, run: str) -> None:
        await self._act(runs.suspend(self.workspace, run, True, user_at_host()))

    async def resume(self, run: str) -> None:
        await self._act(runs.suspend(self.workspace, run, False, user_at_host()))

    async def delete(self, run: str) -> None:
        await self._act(runs.delete(self.workspace, run))

    async def hand_over(self, handle: Handle) -> None:
        await self._act(stop.hand_over(handle))

    async def enforce(self, run: str, owner: Owner) -> None:
        await self._act(runs.enforce(self.workspace, run, owner))

    async def orphans(self) -> list[Orphan]:
        return await self._do(orphans.orphans(self.api.namespace))

    async def tidy_up(self) -> list[Tidied]:
        return await self._do(orphans.tidy_up(self.api.namespace))

    async def list(self) -> list[Observation]:
        return await self._do(runs.list_runs(self.workspace))

"""The Kubernetes backend: runs as job objects of the operators that the cluster has. The work of
`KubernetesBackend` is in `operations`; `AsyncKubernetesBackend` is the part of it that a triggerer awaits.

All state is on the cluster: the run record, the job with its labels, the pods. Either backend may be made
anew at any time, in any process with access to the cluster, and goes on.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import replace
from functools import partial
from itertools import islice
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
from allaboard.backends.kubernetes.client.pool import pool_of
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, resource_for, resource_of
from allaboard.backends.kubernetes.lifecycle import orphans, reaper, stop
from allaboard.backends.kubernetes.lifecycle.orphans import Orphan, Tidied
from allaboard.backends.kubernetes.logs import stream
from allaboard.backends.kubernetes.observe.lookup import takes_rank_0
from allaboard.backends.kubernetes.operations import foreign, logs, observe, runs, snapshot
from allaboard.backends.kubernetes.operations.foreign_job import OthersJob
from allaboard.backends.kubernetes.operations.queues import read_queues
from allaboard.backends.kubernetes.operations.workspace import Workspace
from allaboard.backends.kubernetes.preflight.at_launch import Asking, orphan_note
from allaboard.backends.kubernetes.session import FollowSession
from allaboard.backends.kubernetes.stacks.asking import look_often
from allaboard.backends.kubernetes.state import records
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
    AsyncNames,
    Changes,
    Hub,
    async_hub_of,
    hub_of,
)
from allaboard.backends.kubernetes.watch.reflector import PodAlarm
from allaboard.diagnosis.stacks import ProcessLook, Standing
from allaboard.engines import engine_of_kind
from allaboard.errors import AllaboardError, BackendUnreachable
from allaboard.follow.loop import FollowPolicy
from allaboard.job.site import Site
from allaboard.render import labels
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.runs.observation import Event, Observation, Owner
from allaboard.text.units import show_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api
    from allaboard.runs.queues import Queue

T = TypeVar("T")

THREADS = 16
"""Operations of a triggerer that are carried out at the same time on one cluster."""
IN_FLIGHT = 32
"""Requests of all these operations at the same time: some send several."""
SECONDS = 60.0
"""For one operation of a triggerer, from its call on."""
LINES = 1000
"""Lines of a log that are handed on at once."""
PACE = FollowPolicy(poll=30.0, unreachable=10)
"""Followers are woken; they poll for changes that bring no wake. Each poll is patient by itself."""


def _alarm_for(stored: Stored, on_alarm: Callable[[PodAlarm], None]) -> Callable[[PodAlarm], None]:
    """Filter in front of ``on_alarm``, for pods of this run whose logs may be gone a moment later: those that
    fail or are being deleted, and those that are done where the operator deletes these, too.
    """
    return partial(_of_leaving, on_alarm, takes_rank_0(stored), bool(stored.layout.get("elastic")))


def _of_leaving(
    on_alarm: Callable[[PodAlarm], None], takes_done: bool, elastic: bool, alarm: PodAlarm
) -> None:
    """Pass on the alarm of a pod that leaves. An elastic gang succeeds with any member: rank 0's pod is
    deleted next, and may be gone before its own row shows it.
    """
    is_done = not alarm.failed and not alarm.goes
    if is_done and not takes_done:
        return
    if is_done and elastic and not alarm.pod.endswith("-0"):
        alarm = alarm._replace(pod=f"{alarm.pod.rpartition('-')[0]}-0")
    on_alarm(alarm)


def _capture_beside(api: Api, workspace: Workspace, session: FollowSession, alarm: PodAlarm) -> None:
    """Capture a pod in a thread of its own, because it may be gone a moment later: the watch must not be held
    up, and other requests must not come first.
    """
    if workspace.sessions.begin_capture(session):
        thread = threading.Thread(
            target=_capture, args=(api, workspace, session, alarm), name=f"capture-{alarm.pod}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no room for another thread
            workspace.sessions.end_capture(session)
        else:
            session.add_thread(thread)


def _capture(api: Api, workspace: Workspace, session: FollowSession, alarm: PodAlarm) -> None:
    try:
        with suppress(AllaboardError):
            observe.capture(api, workspace, session, alarm)
    finally:
        workspace.sessions.end_capture(session)


class KubernetesBackend:
    """`allaboard.backends.base.Backend` on a cluster. ``api``: a client; its namespace is that of the runs.
    ``facts``: facts of the cluster; None: they are read from it. ``environ``: the caller's environment.
    ``ask_first``: a launch names obstacles in its notes, as far as a request for each shows them. ``hub``,
    ``keeper``: the hub of the watches, and the keeper of the Lease; None: those of this process. ``pause``:
    the client's sleep in an operation that waits.
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
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self.api, self.ask_first = api, ask_first
        if pause is not None:
            api.pause = pause
        self.hub, self.keeper = hub or hub_of(api), keeper or keeper_of(api, user_at_host())
        self.workspace = Workspace(api.namespace, site, facts, environ)

    @property
    def where(self) -> str:
        return f"in namespace {self.api.namespace} of {self.api.server}"

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Drop the cached looks afterwards, even after an error."""
        try:
            yield
        finally:
            self.workspace.sessions.forget_looks()

    def _lease(self, owner: Owner) -> str:
        """The Lease that shows that this owner lives, if this process is the one that follows."""
        return self.keeper.hold() if owner.phase == "worker" and owner.kind != "detached" else ""

    def launch(self, plan: Plan, owner: Owner) -> Handle:
        lease = partial(self._lease, owner)
        if not self.ask_first:
            with self._changing():
                return runs.launch(self.api, self.workspace, plan, owner, lease)
        asking = Asking(self.api)
        with self._changing():
            handle = runs.launch(self.api, self.workspace, plan, owner, lease, asking.begin)
        of_orphans = () if handle.hand_over else orphan_note(self.api, plan, owner)
        return replace(handle, notes=(*handle.notes, *asking.notes(), *of_orphans))

    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        with self._changing():
            return runs.adopt(self.api, handle, old, new, self._lease(new))

    def watch_over(self, run: str) -> None:
        """Let this process follow the run for its owner: the run is an orphan when this process dies."""
        with self._changing():
            runs.watch_over(self.api, run, self.keeper.hold())

    def observe(self, run: str, evidence: bool = False) -> Observation:
        return observe.observe(self.api, self.workspace, run, evidence)

    def observe_job(
        self, kind: str, name: str, evidence: bool = False, *, uid: str | None = None
    ) -> Observation:
        """Observe a job that another tool made, by its name. ``kind``: as `engine_of_kind` reads it; ``uid``:
        that of the job at an earlier look, whose end is observed if it is gone. Raises UnknownRun when there
        is no job, and BadInput for a kind that is not known or not served.
        """
        return observe.observe_job(self.api, self.workspace, kind, name, evidence, uid)

    def events(self, run: str) -> list[Event]:
        return runs.list_events(self.api, self.workspace, run)

    def snapshot(self, run: str) -> dict[str, Any]:
        """The objects of a run as the API server has them, its secrets included."""
        return snapshot.take(self.api, self.workspace, run)

    def standing(self, run: str, at_least: float = 0.0) -> Standing:
        """The silence of a run, and the stacks of its processes, unless a member has written in the last
        ``at_least`` seconds.
        """
        return observe.look_standing(self.api, self.workspace, run, at_least)

    def look_often(self, run: str, rounds: int) -> list[tuple[ProcessLook, ...]]:
        """``rounds`` looks at the processes of a run, a moment apart; none where exec is not allowed."""
        tries = observe.tries_to_ask(self.api, self.workspace, run)
        return look_often(self.api, tries, rounds)

    def saving(self, run: str) -> str | None:
        return runs.saving_uri(self.api, self.workspace, run)

    def secrets_of(self, run: str) -> tuple[str, ...]:
        return runs.secrets_of(self.api, self.workspace, run)

    def started_with(self, run: str) -> StartedWith:
        return runs.started_with(self.api, self.workspace, run)

    @contextmanager
    def changes(self, run: str) -> Iterator[Changes]:
        stored = observe.find_run(self.api, self.workspace, run)
        name = stored.record.run
        with self.hub.changes(name, resource_of(stored.job)) as changes:
            session = self.workspace.sessions.follow(name, changes)
            changes.on_alarm = _alarm_for(stored, partial(_capture_beside, self.api, self.workspace, session))
            try:
                yield changes
            finally:
                self.workspace.sessions.unfollow(session, changes)

    def changes_of(self, kind: str, name: str) -> AbstractContextManager[Changes]:
        """Wake-ups for a job that another tool made, also before it is there."""
        return self.hub.changes_of(resource_for(engine_of_kind(kind)), name, self.api.namespace)

    def others(self, name: str, *, adopt: bool = False) -> OthersJob:
        """A job that another tool made here, by its name or as ``pytorchjob/name``, which can be observed
        like a run; ``adopt``: and be stopped, suspended, resumed, deleted. Raises UnknownRun.
        """
        kind, slash, job = name.partition("/")
        if slash:
            others_job = OthersJob(self, engine_of_kind(kind), job, adopt=adopt)
            others_job.observe(job)
            return others_job
        return OthersJob(self, foreign.find_engine(self.api, name), name, adopt=adopt)

    def namespaces(self) -> list[str]:
        """The namespaces of the cluster in which there are runs."""
        return runs.list_namespaces(self.api)

    def list_others(self) -> list[Observation]:
        """Every job that another tool made here, newest first."""
        return foreign.list_jobs(self.api)

    def objects_of_others(self) -> list[Json]:
        """The job objects that other tools made here."""
        return foreign.job_objects(self.api)

    def queues(self) -> tuple[list[Queue], list[str]]:
        """The queues of the namespace, and sentences about data that could not be read."""
        return read_queues(self.api, self.api.namespace)

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> Iterator[LogLine | Cursor]:
        if not follow:
            return _read_logs(self.api, self.workspace, run, selection, cursor)
        first = logs.readable_logs(self.api, self.workspace, run, selection, cached=True)
        chosen = replace(selection, attempt=first.attempt)

        def find_sources() -> stream.LogSources:
            now = logs.readable_logs(self.api, self.workspace, run, chosen)
            return stream.LogSources(now.tries, now.over)

        return stream.follow_logs(self.api, None, find_sources, chosen, cursor, first.logs)

    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        with self._changing():
            return stop.stop(self.api, handle, owner, by, reason, kill)

    def stop_from(self, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool:
        with self._changing():
            return stop.stop_from(self.api, handle, old, new, by, reason)

    def suspend(self, run: str) -> None:
        with self._changing():
            runs.suspend(self.api, self.workspace, run, True, user_at_host())

    def resume(self, run: str) -> None:
        with self._changing():
            runs.suspend(self.api, self.workspace, run, False, user_at_host())

    def delete(self, run: str) -> None:
        with self._changing():
            runs.delete(self.api, self.workspace, run)

    def hand_over(self, handle: Handle) -> None:
        with self._changing():
            stop.hand_over(self.api, handle)

    def enforce(self, run: str, owner: Owner) -> None:
        with self._changing():
            runs.enforce(self.api, self.workspace, run, owner)

    def orphans(self) -> list[Orphan]:
        """Objects that clients left when they died."""
        return orphans.orphans(self.api, self.api.namespace)

    def tidy_up(self) -> list[Tidied]:
        """End and remove the objects that dead clients left, where they cannot come back; returns an account
        of each.
        """
        return orphans.tidy_up(self.api, self.api.namespace)

    def reap(self) -> reaper.Look:
        """Look once for runs whose clients do not come back, and end those whose time is up."""
        return reaper.look(self.api, user_at_host())

    def list(self) -> list[Observation]:
        return runs.list_runs(self.api, self.workspace)


class AsyncKubernetesBackend:
    """Operations of a triggerer, for an event loop. ``changes``, which wakes thousands of followers, is the
    loop's own. All others are those of `KubernetesBackend`, in one of the few threads that this process has
    for this cluster and user, and end after `SECONDS`: an operation that raises BackendUnreachable then may
    have been done, as after any lost answer. A cancelled caller returns at once.

    ``api``: shared by all backends of a loop; ``hub``, ``keeper``: as for `KubernetesBackend`.
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
        hub: AsyncHub | None = None,
        keeper: AsyncKeeper | None = None,
    ) -> None:
        self.api, self.hub, self.keeper = api, hub, keeper
        self.workspace = Workspace(api.namespace, site, facts, environ)
        self._pool = pool_of(api.identity, "allaboard-api", THREADS)

    @property
    def where(self) -> str:
        return f"in namespace {self.api.namespace} of {self.api.server}"

    async def _run(self, do: Callable[..., T], *given: Any) -> T:
        try:
            return await self._pool.run(SECONDS, partial(do, *given))
        except TimeoutError:
            raise BackendUnreachable(
                f"API server {self.api.server} did not answer within {show_seconds(SECONDS)}"
            ) from None

    async def _change(self, do: Callable[..., T], *given: Any) -> T:
        try:
            return await self._run(do, self.api, *given)
        finally:
            self.workspace.sessions.forget_looks()

    async def observe(self, run: str, evidence: bool = False) -> Observation:
        return await self._run(observe.observe, self.api, self.workspace, run, evidence)

    async def observe_job(
        self, kind: str, name: str, evidence: bool = False, *, uid: str | None = None
    ) -> Observation:
        return await self._run(observe.observe_job, self.api, self.workspace, kind, name, evidence, uid)

    async def secrets_of(self, run: str) -> tuple[str, ...]:
        return await self._run(runs.secrets_of, self.api, self.workspace, run)

    async def list(self) -> list[Observation]:
        return await self._run(runs.list_runs, self.api, self.workspace)

    async def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None
    ) -> AsyncIterator[LogLine | Cursor]:
        """Lines after the cursor, to the present."""
        lines = await self._run(_read_logs, self.api, self.workspace, run, selection, cursor)
        while some := await self._run(lambda: [*islice(lines, LINES)]):
            for line in some:
                yield line

    @asynccontextmanager
    async def changes(self, run: str) -> AsyncIterator[AsyncChanges]:
        stored = await self._run(observe.find_run, self.api, self.workspace, run)
        hub = self.hub or async_hub_of(self.api)
        name = stored.record.run
        async with hub.changes(name, resource_of(stored.job)) as changes:
            session = self.workspace.sessions.follow(name, changes)
            changes.on_alarm = _alarm_for(stored, partial(_capture_beside, self.api, self.workspace, session))
            try:
                yield changes
            finally:
                self.workspace.sessions.unfollow(session, changes)

    def changes_of(self, kind: str, name: str) -> AbstractAsyncContextManager[AsyncChanges]:
        hub = self.hub or async_hub_of(self.api)
        return hub.changes_of(resource_for(engine_of_kind(kind)), name, self.api.namespace)

    @asynccontextmanager
    async def names_of_runs(self) -> AsyncIterator[NamesOfRuns]:
        """The names of all runs, kept up to date by one watch of their records for all followers."""
        hub = self.hub or async_hub_of(self.api)
        async with hub.names_of(CONFIGMAPS, records.selector()) as names:
            yield NamesOfRuns(names)

    async def watch_over(self, run: str) -> None:
        lease = await (self.keeper or async_keeper_of(self.api, user_at_host())).hold()
        await self._change(runs.watch_over, run, lease)

    async def stop_from(self, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool:
        return await self._change(stop.stop_from, handle, old, new, by, reason)


class NamesOfRuns:
    """The names of the runs of a namespace, as a watch of their records keeps them up to date."""

    def __init__(self, names: AsyncNames) -> None:
        self._names = names

    def known(self) -> frozenset[str] | None:
        """The names; None: no watch works at present."""
        names = self._names.names
        return None if names is None else frozenset(map(labels.run_of_record, names))

    async def wait(self, seconds: float) -> bool:
        """As `Changes.wait`: a run has come or gone."""
        return await self._names.wait(seconds)


def _read_logs(
    api: Api, workspace: Workspace, run: str, selection: Selection, cursor: Cursor | None
) -> Iterator[LogLine | Cursor]:
    readable = logs.readable_logs(api, workspace, run, selection, cached=True)
    return stream.read_logs(api, None, readable.tries, selection, cursor, readable.logs)

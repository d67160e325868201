"""Waits for a run to end, in the triggerer. It observes and tells; it never launches, stops or changes
anything but in `on_kill`, when a person has ended the task.

Triggerers may be killed, frozen, doubled: the same trigger may run twice, may begin late, may never begin.
Nothing here is remembered between them but what the core's run record and the task log's teller keep.

Runs on a cluster are watched through one client and one hub for all triggers of a triggerer that go to the
same place: changes wake; while nothing changes, only what rank 0 wrote is read, ever more seldom, up to once
a minute. A cluster that does not answer is waited for, however long: the run is not there, and nothing better
could be done elsewhere.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import AllaboardError, BackendUnreachable
from allaboard.follow.loop import Enforce, FollowPolicy, Observe, Wait, follow, run_async
from allaboard.observation import Observation
from allaboard.redaction import redact_text
from allaboard.status import state_of
from allaboard_provider.ownership import astop_deferred
from allaboard_provider.runs import afind_run, ended_before, find_run, since_of
from allaboard_provider.task_log import TaskLog, anew_output, arestart_warnings, poll_delay, state_home
from allaboard_provider.triggers.backends import cluster_backend, local_backend
from allaboard_provider.triggers.polling import PollTrigger, settle

VERSION = 1
POLL = 1.0
POLL_CLUSTER = 60.0
RECONNECT_INTERVAL = 15.0
"""Seconds between two tries to reach a cluster. Each is patient by itself."""
UNLIMITED = 1 << 60
_STATE_ATTEMPTS = 3
_warm_up_tasks: list[asyncio.Task[None]] = []
"""What this triggerer's first trigger began, kept so that it is not collected. Empty before."""


class TrainingJobTrigger(BaseTrigger):
    """Fires once, with ``{"version", "status", "run", "attempt", "generation", "uid", "owner", "backend",
    "connection", "fingerprint", "host", "told", "again"}``.

    ``status``: ``ended`` (look at the run: it ended, or it is somebody else's now), ``timeout``
    (``deadline``, epoch seconds, has passed), ``elsewhere`` (this triggerer cannot see the run: another
    machine, container or folder), ``act`` (a limit has passed, and triggers only observe), ``error``
    (``error`` says what). ``connection``: the id of the one that names the run's cluster, for the backend
    ``kubernetes``; ``fingerprint`` and ``host`` are of local runs. ``told``: what the task log has already.
    All arguments are plain JSON without secrets; those of a newer release are kept and passed over.
    """

    def __init__(
        self,
        run: str,
        uid: str,
        owner: str,
        attempt: int = 1,
        generation: int = 1,
        fingerprint: Mapping[str, Any] | None = None,
        host: str = "",
        deadline: float | None = None,
        get_logs: bool = True,
        backend: str = "local",
        connection: str | None = None,
        told: Mapping[str, Any] | None = None,
        again: int = 0,
        version: int = VERSION,
        **newer: Any,
    ) -> None:
        super().__init__()
        self.run_name, self.uid, self.owner = run, uid, owner
        self.attempt, self.generation = attempt, generation
        self.fingerprint, self.host = dict(fingerprint or {}), host
        self.deadline, self.get_logs = deadline, get_logs
        self.backend, self.connection = backend, connection
        self.told, self.again = dict(told or {}), again
        self.version, self.newer = version, newer
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "version": self.version,
                **self._identity(),
                "deadline": self.deadline,
                "get_logs": self.get_logs,
                **self.newer,
            },
        )

    def _identity(self) -> dict[str, Any]:
        """What is in the arguments and in the event: all that the resume needs, for what defer() was given
        besides does not survive everywhere.
        """
        return {
            "run": self.run_name,
            "attempt": self.attempt,
            "generation": self.generation,
            "uid": self.uid,
            "owner": self.owner,
            "backend": self.backend,
            "connection": self.connection,
            "fingerprint": self.fingerprint,
            "host": self.host,
            "told": self.told,
            "again": self.again,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        begun = time.monotonic()
        self._warm_up()
        try:
            event = await self._watch()
        except Exception as error:  # whatever it is: a worker can still look after the run
            self.log.exception("the trigger of run %s cannot go on", self.run_name)
            event = self._event("error", error=redact_text(f"{type(error).__name__}: {error}"))
        await settle(begun)
        # Airflow calls on_kill even after the event when this generator is slow to end.
        self._fired = True
        yield TriggerEvent(event)

    def _event(self, status: str, **more: Any) -> dict[str, Any]:
        return {**self._identity(), "version": VERSION, "status": status, **more}

    # Watching.

    def _open_backend(self) -> AbstractAsyncContextManager[Any]:
        """The backend, None when the run cannot be followed from here."""
        if self.backend == "local":
            return local_backend(self.run_name, self.fingerprint)
        return cluster_backend(self.connection)

    async def _watch(self) -> dict[str, Any]:
        async with self._open_backend() as backend:
            if backend is None:
                self.log.info(
                    "run %s lives on %s, which this triggerer (%s) is not",
                    self.run_name, self.host, socket.gethostname(),
                )  # fmt: skip
                return self._event("elsewhere", triggerer=socket.gethostname())
            follower = _RunFollower(self, backend)
            try:
                status = await follower.to_the_end()
            finally:
                self.told = follower.task_log.saved_state
            return self._event(status)

    # A person ended the task.

    def _warm_up(self) -> None:
        """The first question to Airflow that a triggerer passes on takes many seconds: Airflow builds an API
        server inside it for that. It is asked by the first trigger that begins, not by the first person who
        waits for a run to stop. Nothing is waited for here.
        """
        if self.task_instance is not None and not _warm_up_tasks:
            _warm_up_tasks.append(asyncio.create_task(asyncio.to_thread(self._query_once)))

    def _query_once(self) -> None:
        try:
            RuntimeTaskInstance.get_task_states(**_state_query(self.task_instance))
        except Exception as error:  # on_kill asks again, and tells what is wrong
            self.log.debug("Airflow does not say the state of this task: %s", error)

    async def on_kill(self) -> None:
        """Stop the run, if Airflow says that the task is over and the run is still this try's.

        Airflow calls this also when a frozen triggerer wakes whose triggers another one has taken over, so
        the word is not enough: the task's state is asked first, and only then is the run looked at, whose
        owner may have changed during the question.
        """
        if self._fired or self.task_instance is None:
            return
        state = await self._task_state()
        if state == "deferred":
            self.log.info(
                "run %s goes on: its task is deferred still, and another triggerer follows it", self.run_name
            )
            return
        reason = f"the task was {_ENDINGS.get(state or '', f'ended (its state is {state})')} while deferred"
        handle = Handle(self.run_name, self.attempt, self.generation, self.uid)
        async with self._open_backend() as backend:
            if backend is not None and await astop_deferred(backend, handle, self.owner, reason):
                self.log.info("run %s: stopped, because %s", self.run_name, reason)

    async def _task_state(self) -> str | None:
        """The state of our task instance; None when it is gone. Raises when Airflow does not answer: then
        nothing is stopped, for a run too many can be stopped by hand, and a run killed wrongly cannot be
        brought back.
        """
        ti = self.task_instance
        assert ti is not None
        get_states = sync_to_async(RuntimeTaskInstance.get_task_states)
        for attempt in range(_STATE_ATTEMPTS):
            try:
                states = await get_states(**_state_query(ti))
                break
            except Exception:
                if attempt == _STATE_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(1)
        return task_state(states, ti)


def _state_query(ti: Any) -> dict[str, Any]:
    return {
        "dag_id": ti.dag_id,
        "task_ids": [ti.task_id],
        "run_ids": [ti.run_id],
        "map_index": ti.map_index,
    }


class _RunFollower:
    """The other side of `allaboard.follow.loop`, held by a trigger for one run: it looks, tells and waits."""

    def __init__(self, trigger: TrainingJobTrigger, backend: Any) -> None:
        self.trigger, self.backend = trigger, backend
        self.task_log = TaskLog(
            trigger.run_name,
            trigger.owner,
            state=trigger.told,
            home=state_home(),
            output=trigger.get_logs,
            secrets=None,
        )
        self.changes: Any = None
        self.seen: Observation | None = None

    async def to_the_end(self) -> str:
        """The status that the trigger fires."""
        poll = POLL if self.backend.name == "local" else POLL_CLUSTER
        async with self._woken() as self.changes:
            try:
                operation = follow(FollowPolicy(poll=poll, attempts=1, unreachable=UNLIMITED))
                outcome = await run_async(operation, self._perform)
            except _Fire as fire:
                return fire.status
        for line in self.task_log.failure_lines(outcome):
            self.trigger.log.error("%s", line)
        return "ended"

    def _woken(self) -> AbstractAsyncContextManager[Any]:
        if self.backend.name == "local":
            changes: AbstractAsyncContextManager[Any] = self.backend.changes(self.trigger.run_name)
            return changes
        return _ReconnectingChanges(self.trigger, self.backend)

    async def _perform(self, effect: Any) -> Any:
        match effect:
            case Observe(evidence):
                return await self._observe(evidence)
            case Enforce():
                raise _Fire("act")
            case Wait(seconds):
                await self._wait(seconds)
        return None

    async def _observe(self, evidence: bool) -> Any:
        trigger = self.trigger
        try:
            seen = await self.backend.observe(trigger.run_name, evidence)
            if self.task_log.secrets is None:
                self.task_log.secrets = await self.backend.secrets_of(trigger.run_name)
        except BackendUnreachable as error:
            self._refuse_late()
            return error
        if seen.uid != trigger.uid:
            raise _Fire("ended")  # another attempt is on
        self.seen = seen
        self.task_log.track(seen)
        for line in self.task_log.update(seen, time.time(), await anew_output(self.backend, self.task_log)):
            trigger.log.info("%s", line)
        for line in await arestart_warnings(self.backend, self.task_log, seen):
            trigger.log.warning("%s", line)
        if not state_of(seen).is_final:
            self._refuse_late()
        return seen

    def _refuse_late(self) -> None:
        deadline = self.trigger.deadline
        if deadline is not None and time.time() >= deadline:
            raise _Fire("timeout")

    async def _wait(self, seconds: float) -> None:
        now, deadline = time.time(), self.trigger.deadline
        rest = poll_delay(self.backend, self.seen, seconds, now)
        # Jittered, so that the triggers of one triggerer do not all look at once.
        rest *= random.uniform(0.9, 1.1)
        await self.changes.wait(max(0.05, rest if deadline is None else min(rest, deadline - now)))


class _ReconnectingChanges:
    """Wakes for a run on a cluster, as soon as that can be reached: whoever waits meanwhile looks again soon.
    From then on this process is the one that follows the run for its owner.
    """

    def __init__(self, trigger: TrainingJobTrigger, backend: Any) -> None:
        self.trigger, self.backend = trigger, backend
        self._changes: Any = None
        self._known = False  # that it is this process which follows
        self._open = AsyncExitStack()

    async def __aenter__(self) -> _ReconnectingChanges:
        await self._try()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()

    async def wait(self, seconds: float) -> bool:
        if self._changes is None:
            await asyncio.sleep(min(seconds, RECONNECT_INTERVAL) * random.uniform(0.9, 1.1))
            await self._try()
            return True
        if not self._known:
            await self._try()
        return bool(await self._changes.wait(seconds))

    async def _try(self) -> None:
        run = self.trigger.run_name
        try:
            if self._changes is None:
                self._changes = await self._open.enter_async_context(self.backend.changes(run))
            if not self._known:
                await self.backend.watch_over(run)
        except BackendUnreachable:
            return
        except AllaboardError as error:
            if self._changes is None:
                raise
            # Whoever may only look can follow all the same.
            self.trigger.log.info("nobody can see that run %s is followed here: %s", run, error)
        self._known = True


class _Fire(Exception):
    """It is for a worker to go on."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


def task_state(states: Mapping[str, Any], ti: Any) -> str | None:
    """The state of one task instance in the answer of ``get_task_states``."""
    mapped = ti.map_index is not None and ti.map_index >= 0
    state = states.get(ti.run_id, {}).get(f"{ti.task_id}_{ti.map_index}" if mapped else ti.task_id)
    return None if state is None else str(getattr(state, "value", state))


_ENDINGS = {"failed": "marked failed", "success": "marked success", "skipped": "skipped", "": "cleared"}


class RunTrigger(PollTrigger):
    """Fires when a run has ended: one named by ``run`` (id, prefix, job) or by ``key``. ``backend`` and
    ``connection``: where it is, as for a `TrainingJobTrigger`. ``since`` (epoch seconds): what ended before
    is passed over; with ``of_ids`` a run that is named by its id, too.
    """

    def __init__(
        self,
        run: str | None = None,
        key: str | None = None,
        backend: str = "local",
        connection: str | None = None,
        since: float | None = None,
        of_ids: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.run_name, self.key = run, key
        self.since, self.of_ids = since, of_ids
        self.backend, self.connection = backend, connection

    def arguments(self) -> dict[str, Any]:
        return {
            "run": self.run_name,
            "key": self.key,
            "backend": self.backend,
            "connection": self.connection,
            "since": self.since,
            "of_ids": self.of_ids,
        }

    def _is_meant(self, seen: Observation | None) -> bool:
        return seen is not None and not ended_before(
            seen, since_of(seen, self.run_name, self.since, self.of_ids)
        )

    def is_here(self) -> bool:
        return LocalBackend().place() == self.fingerprint

    def is_there(self) -> bool:
        seen = find_run(LocalBackend(), self.run_name, self.key)
        return self._is_meant(seen) and state_of(seen).is_final

    async def _watch(self) -> dict[str, Any]:
        if self.backend == "local":
            return await super()._watch()
        while True:
            try:
                await self._until_it_is_over()
                return {"version": VERSION, "status": "there"}
            except BackendUnreachable as error:
                self.log.info("%s", error)
                await asyncio.sleep(RECONNECT_INTERVAL * random.uniform(0.9, 1.1))

    async def _until_it_is_over(self) -> None:
        async with cluster_backend(self.connection) as backend:
            while not self._is_meant(seen := await afind_run(backend, self.run_name, self.key)):
                await asyncio.sleep(self.poll * random.uniform(0.9, 1.1))
            async with backend.changes(seen.run) as changes:
                while not state_of(await backend.observe(seen.run)).is_final:
                    await changes.wait(POLL_CLUSTER * random.uniform(0.9, 1.1))

"""The triggers that wait for a run to end. They observe and log; only `on_kill`, when a person has ended the
task, stops a run. An Airflow that calls no ``on_kill`` calls ``cleanup``, which looks for the same order.

Triggerers may be killed, frozen, doubled: the same trigger may run twice, begin late, or never begin. The
only memory between them is the core's run record and the state of the task log.

All triggers of a triggerer that watch the same cluster share one client and one watch. Changes wake them;
without changes they only read new output of rank 0, ever less often, down to once a minute. They wait for a
cluster that does not answer, however long: its runs are there, and nobody could do better elsewhere.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent

from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import AllaboardError, BackendUnreachable
from allaboard.follow.loop import Enforce, FollowPolicy, Observe, Outcome, Wait, follow, run_async
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from allaboard.text.names import key_hash
from allaboard.text.redaction import redact_text
from allaboard_provider import compat
from allaboard_provider.orders import proves_an_order, why_stop
from allaboard_provider.ownership import astop_deferred
from allaboard_provider.pages import SNAPSHOT_KEY, Snapshots, outcome_of, snapshot
from allaboard_provider.results import end_of
from allaboard_provider.runs import afind_run, ended_before, find_run, since_of
from allaboard_provider.task_log import TaskLog, arestart_warnings, poll_delay, state_home
from allaboard_provider.triggers.backends import cluster_backend, local_backend
from allaboard_provider.triggers.polling import PollTrigger, settle

VERSION = 1
POLL = 1.0
POLL_CLUSTER = 60.0
RECONNECT_INTERVAL = 15.0
"""Seconds between two tries to reach a cluster, each of which is patient by itself."""
ON_KILL_SECONDS = 30.0
"""Seconds that a stop may take a triggerer that calls no ``on_kill``: as many as others give it."""
UNLIMITED = 1 << 60
_STATE_ATTEMPTS = 3
_warm_up_tasks: list[asyncio.Task[None]] = []
"""The task that the first trigger of this triggerer has started, kept from garbage collection; empty
before.
"""


FORMER_NAMES = {"told": "log_state", "again": "deferrals"}
"""Names of arguments and of fields of events before 0.1.0 -> their names now."""


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments or the event of a trigger, of this release or of an older one, under the names of now."""
    return {FORMER_NAMES.get(name, name): value for name, value in fields.items()}


class TrainingJobTrigger(BaseTrigger):
    """Fires once, with ``{"version", "status", "run", "attempt", "generation", "uid", "owner", "backend",
    "connection", "fingerprint", "host", "log_state", "deferrals"}``, and mostly ``"end"``.

    ``status``: ``ended`` (the run ended, or belongs to somebody else now), ``timeout`` (``deadline``, epoch
    seconds, has passed), ``elsewhere`` (this triggerer cannot see the run: another machine, container or
    folder), ``act`` (a limit has passed, and triggers only observe), ``error`` (with ``error``).
    ``end``: of a local run that ended (`allaboard_provider.results.end_of`), else None. ``connection``: the
    id of the connection to the run's cluster, for the backend ``kubernetes``;
    ``fingerprint`` and ``host``: of local runs. ``log_state``: the state of the task log;
    ``deferrals``: how often a worker gave the run back. All arguments are plain JSON without secrets. Those
    of a newer release are kept and otherwise ignored; rows of an older one have `FORMER_NAMES`.
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
        log_state: Mapping[str, Any] | None = None,
        deferrals: int = 0,
        version: int = VERSION,
        **newer: Any,
    ) -> None:
        super().__init__()
        self.run_name, self.uid, self.owner = run, uid, owner
        self.attempt, self.generation = attempt, generation
        self.fingerprint, self.host = dict(fingerprint or {}), host
        self.deadline, self.get_logs = deadline, get_logs
        self.backend, self.connection = backend, connection
        former = renamed(newer)
        self.log_state = dict(log_state or former.get("log_state") or {})
        self.deferrals = deferrals or int(former.get("deferrals") or 0)
        self.version = version
        self.newer = {name: value for name, value in newer.items() if name not in FORMER_NAMES}
        self.secrets: tuple[str, ...] = ()
        """Those of the run's job, once its record was read."""
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
        """The fields that arguments and event share: all that the resume needs. Other arguments of defer() do
        not survive everywhere.
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
            "log_state": self.log_state,
            "deferrals": self.deferrals,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        begun = time.monotonic()
        self._warm_up()
        try:
            event = await self._watch()
        except Exception as error:  # whatever it is, a worker can still follow the run
            trace = redact_text(traceback.format_exc(), self.secrets)
            self.log.error("the trigger of run %s cannot go on\n%s", self.run_name, trace)
            event = self._event("error", error=redact_text(f"{type(error).__name__}: {error}", self.secrets))
        await settle(begun)
        # Airflow calls on_kill even after the event when this generator ends slowly.
        self._fired = True
        yield TriggerEvent(event)

    def _event(self, status: str, **more: Any) -> dict[str, Any]:
        return {**self._identity(), "version": VERSION, "status": status, **more}

    # Following.

    def _open_backend(self) -> AbstractAsyncContextManager[Any]:
        """The backend; None when the run cannot be followed from here."""
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
                self.log_state = follower.task_log.saved_state
            return self._event(status, end=follower.end)

    # A person ended the task.

    def _warm_up(self) -> None:
        """Ask Airflow once, in the background. The first question that a triggerer passes on takes many
        seconds, because Airflow builds an API server inside of it; so the first trigger asks, and not the
        first person who waits for a run to stop.
        """
        if self.task_instance is not None and not _warm_up_tasks:
            _warm_up_tasks.append(asyncio.create_task(self._query_once()))

    async def _query_once(self) -> None:
        try:
            await compat.ask(RuntimeTaskInstance.get_task_states, **_state_query(self.task_instance))
        except Exception as error:  # on_kill asks again, and raises
            self.log.debug("Airflow does not say the state of this task: %s", error)

    async def on_kill(self) -> None:
        """Stop the run, if Airflow says that the task is over and the run still belongs to this try.

        Airflow also calls this when a frozen triggerer wakes whose triggers another one has taken over, and
        may have fired. So this asks for evidence of an order first (`orders`), and then looks at the run,
        whose owner may have changed meanwhile.
        """
        if self._fired or self.task_instance is None:
            return
        state, dag_run_state = await self._states()
        reason = why_stop(state, dag_run_state)
        if reason is None:
            self.log.info(
                "run %s goes on: its task is %s, which is no order to end it; another triggerer or a worker "
                "follows it, or a new try decides",
                self.run_name,
                state or "about to begin anew",
            )
            return
        handle = Handle(self.run_name, self.attempt, self.generation, self.uid)
        async with self._open_backend() as backend:
            if backend is not None and await astop_deferred(backend, handle, self.owner, reason):
                self.log.info("run %s: stopped, because %s", self.run_name, reason)

    async def cleanup(self) -> None:
        """Do the work of `on_kill` where Airflow does not call it.

        Airflow drops a trigger that has fired, whose task is no longer deferred, that another triggerer has
        taken, or whose own triggerer ends, and says nothing about the reason. So the state of the task
        decides, as in `on_kill`; a triggerer that ends is not kept waiting for it.
        """
        if compat.calls_on_kill() or _loop_is_closing():
            return
        try:
            async with asyncio.timeout(ON_KILL_SECONDS):
                await self.on_kill()
        except Exception as error:  # Airflow would drop it without a word
            self.log.warning("run %s: it is not known whether it must stop: %s", self.run_name, error)

    async def _states(self) -> tuple[str | None, str | None]:
        """The state of our task instance, None when it has none; and that of its DAG run, where the first one
        does not suffice. Raises when Airflow does not answer, and then nothing is stopped: a person can stop
        a run too many, but nobody can bring back one that was stopped wrongly.
        """
        ti = self.task_instance
        assert ti is not None
        get_states = RuntimeTaskInstance.get_task_states
        state = task_state(await _asked(lambda: compat.ask(get_states, **_state_query(ti))), ti)
        if proves_an_order(state):
            return state, None
        get_dag_run_state = RuntimeTaskInstance.get_dagrun_state
        answer = await _asked(lambda: compat.ask(get_dag_run_state, ti.dag_id, ti.run_id))
        return state, str(getattr(answer, "value", answer))


async def _asked(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Answer of Airflow, which is asked some times."""
    for _ in range(_STATE_ATTEMPTS - 1):
        with suppress(Exception):
            return await ask()
        await asyncio.sleep(1)
    return await ask()


def _loop_is_closing() -> bool:
    """Return whether the process of this triggerer ends: asyncio then cancels every task there is. Airflow
    cancels a trigger alone.
    """
    return all(task.cancelling() for task in asyncio.all_tasks())


def _state_query(ti: Any) -> dict[str, Any]:
    return {
        "dag_id": ti.dag_id,
        "task_ids": [ti.task_id],
        "run_ids": [ti.run_id],
        "map_index": ti.map_index,
    }


class _RunFollower:
    """Carries out the effects of `allaboard.follow.loop` for one run of a trigger: it observes, logs and
    waits.
    """

    def __init__(self, trigger: TrainingJobTrigger, backend: Any) -> None:
        self.trigger, self.backend = trigger, backend
        self.task_log = TaskLog(
            trigger.run_name,
            trigger.owner,
            state=trigger.log_state,
            home=state_home(),
            output=trigger.get_logs,
            secrets=None,
        )
        self.changes: Any = None
        self.seen: Observation | None = None
        self.snapshots = Snapshots()
        self.end: Mapping[str, Any] | None = None
        """End of a local run: the next worker may be on another machine."""

    async def to_the_end(self) -> str:
        """Follow the run, and return the status that the trigger fires."""
        poll = POLL if self.backend.name == "local" else POLL_CLUSTER
        async with self._woken() as self.changes:
            try:
                operation = follow(FollowPolicy(poll=poll, attempts=1, unreachable=UNLIMITED))
                outcome = await run_async(operation, self._perform)
            except _Fire as fire:
                return fire.status
        for line in self.task_log.failure_lines(outcome):
            self.trigger.log.error("%s", line)
        if self.backend.name == "local" and outcome.state.is_final:
            self.end = end_of(outcome, self.task_log.at, self.task_log.secrets or ())
            await self._leave_snapshot(outcome)
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
                self.task_log.secrets = trigger.secrets = await self.backend.secrets_of(trigger.run_name)
        except BackendUnreachable as error:
            self._refuse_late()
            return error
        if seen.uid != trigger.uid:
            raise _Fire("ended")  # another attempt is on
        self.seen = seen
        await self.task_log.aread(self.backend, seen, time.monotonic())
        for line in self.task_log.update(seen, time.time()):
            trigger.log.info("%s", line)
        for line in await arestart_warnings(self.backend, self.task_log, seen):
            trigger.log.warning("%s", line)
        if not state_of(seen).is_final:
            self._refuse_late()
            if self.snapshots.is_due(str(state_of(seen))):
                await self._leave_snapshot(outcome_of(seen))
        return seen

    async def _leave_snapshot(self, outcome: Outcome) -> None:
        """Leave what the tab of the task tells where the API server is on another machine than this run. The
        API server reads runs on clusters by itself. A failure here fails nothing.
        """
        ti = self.trigger.task_instance
        if ti is None or self.backend.name != "local":
            return
        began = time.monotonic()
        try:
            left = await asyncio.to_thread(
                snapshot, self.backend.backend, outcome, time.time(), at=self.task_log.at
            )
            await compat.push_xcom(
                SNAPSHOT_KEY,
                left,
                dag_id=ti.dag_id,
                task_id=ti.task_id,
                run_id=ti.run_id,
                map_index=-1 if ti.map_index is None else ti.map_index,
            )
        except Exception as error:
            self.snapshots.failed()
            self.trigger.log.debug("no snapshot of run %s is left for the web page: %s", outcome.run, error)
        else:
            self.snapshots.left(str(outcome.state), time.monotonic() - began)

    def _refuse_late(self) -> None:
        deadline = self.trigger.deadline
        if deadline is not None and time.time() >= deadline:
            raise _Fire("timeout")

    async def _wait(self, seconds: float) -> None:
        now, deadline = time.time(), self.trigger.deadline
        rest = poll_delay(self.backend, self.seen, seconds, now)
        # Jitter spreads the requests of the triggers of one triggerer.
        rest *= random.uniform(0.9, 1.1)
        await self.changes.wait(max(0.05, rest if deadline is None else min(rest, deadline - now)))


class _ReconnectingChanges:
    """The changes of a run on a cluster, as soon as the cluster can be reached; until then each wait ends
    soon. From then on this process follows the run for its owner.
    """

    def __init__(self, trigger: TrainingJobTrigger, backend: Any) -> None:
        self.trigger, self.backend = trigger, backend
        self._changes: Any = None
        self._known = False  # whether the cluster knows that this process follows
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
            # A user who may only read can follow all the same.
            self.trigger.log.info("the cluster does not show that run %s is followed here: %s", run, error)
        self._known = True


class _Fire(Exception):
    """Ends the following; the trigger fires this status."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


def task_state(states: Mapping[str, Any], ti: Any) -> str | None:
    """The state of one task instance in the answer of ``get_task_states``."""
    mapped = ti.map_index is not None and ti.map_index >= 0
    state = states.get(ti.run_id, {}).get(f"{ti.task_id}_{ti.map_index}" if mapped else ti.task_id)
    return None if state is None else str(getattr(state, "value", state))


class RunTrigger(PollTrigger):
    """Fires when a run has ended: one named by ``run`` (id, prefix, job) or by ``key``. ``backend`` and
    ``connection``: as for a `TrainingJobTrigger`. ``since`` (epoch seconds): a run that ended before does not
    count; ``of_ids``: this applies to a run's own id, too.
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
            seen = await self._begun(backend)
            async with backend.changes(seen.run) as changes:
                while not state_of(await backend.observe(seen.run)).is_final:
                    await changes.wait(POLL_CLUSTER * random.uniform(0.9, 1.1))

    async def _begun(self, backend: Any) -> Observation:
        """The run, once it is there. Nothing is asked about a run whose name no run of the namespace has. One
        that is there and does not count may begin anew, which no name tells.
        """
        looked: frozenset[str] | None = frozenset()
        due, woken = 0.0, True
        async with backend.names_of_runs() as names:
            while True:
                known = names.known()
                named = None if known is None else frozenset(filter(self._may_name, known))
                is_due = not woken or time.monotonic() >= due
                if named is None or named != looked or (named and is_due):
                    seen: Observation = await afind_run(backend, self.run_name, self.key)
                    if self._is_meant(seen):
                        return seen
                    looked, due = named, time.monotonic() + POLL_CLUSTER
                woken = await names.wait(POLL_CLUSTER * random.uniform(0.9, 1.1))

    def _may_name(self, run: str) -> bool:
        """Return whether this run may be the one that is waited for."""
        if self.key:
            return run.endswith(f"-{key_hash(self.key)}")
        return bool(self.run_name) and run.startswith(str(self.run_name))

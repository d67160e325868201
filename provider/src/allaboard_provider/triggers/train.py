"""Waits for a run to end, in the triggerer. It observes and tells; it never launches, stops or changes
anything but in `on_kill`, when a person has ended the task.

Triggerers may be killed, frozen, doubled: the same trigger may run twice, may begin late, may never begin.
Nothing here is remembered between them but what the core's run record and the task log's teller keep on this
machine.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from allaboard_provider.triggers.looking import LookTrigger, settled

VERSION = 1
POLL = 1.0
_ASKS = 3


class TrainingJobTrigger(BaseTrigger):
    """Fires once, with ``{"version", "status", "run", "attempt", "generation", "uid", "owner", "fingerprint",
    "host"}``.

    ``status``: ``ended`` (look at the run: it ended, or it is somebody else's now), ``timeout``
    (``deadline``, epoch seconds, has passed), ``elsewhere`` (this triggerer cannot see the run: another
    machine, container or folder), ``act`` (a limit has passed, and triggers only observe), ``error``
    (``error`` says what). All arguments are plain JSON; those of a newer release are kept and passed over.
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
        version: int = VERSION,
        **newer: Any,
    ) -> None:
        super().__init__()
        self.run_name, self.uid, self.owner = run, uid, owner
        self.attempt, self.generation = attempt, generation
        self.fingerprint, self.host = dict(fingerprint or {}), host
        self.deadline, self.get_logs = deadline, get_logs
        self.version, self.newer = version, newer
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "version": self.version,
                "run": self.run_name,
                "uid": self.uid,
                "owner": self.owner,
                "attempt": self.attempt,
                "generation": self.generation,
                "fingerprint": self.fingerprint,
                "host": self.host,
                "deadline": self.deadline,
                "get_logs": self.get_logs,
                **self.newer,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        begun = time.monotonic()
        try:
            event = await self._watch()
        except Exception as error:  # whatever it is: a worker can still look after the run
            self.log.exception("the trigger of run %s cannot go on", self.run_name)
            event = self._event("error", error=f"{type(error).__name__}: {error}")
        await settled(begun)
        # Airflow calls on_kill even after the event when this generator is slow to end.
        self._fired = True
        yield TriggerEvent(event)

    def _event(self, status: str, **more: Any) -> dict[str, Any]:
        # Everything that the resume needs: what defer() was given besides does not survive everywhere.
        return {
            "version": VERSION,
            "status": status,
            "run": self.run_name,
            "attempt": self.attempt,
            "generation": self.generation,
            "uid": self.uid,
            "owner": self.owner,
            "fingerprint": self.fingerprint,
            "host": self.host,
            **more,
        }

    # Watching.

    async def _watch(self) -> dict[str, Any]:
        from allaboard.follow import FollowPolicy, adrive, follow
        from allaboard_provider.telling import Teller

        backend = await asyncio.to_thread(self._backend)
        if backend is None:
            self.log.info(
                "run %s lives on %s, which this triggerer (%s) is not",
                self.run_name,
                self.host,
                socket.gethostname(),
            )
            return self._event("elsewhere", triggerer=socket.gethostname())
        self._teller = await asyncio.to_thread(
            Teller, backend, self.run_name, self.owner, output=self.get_logs
        )
        self._client = backend
        try:
            await adrive(follow(FollowPolicy(poll=POLL, attempts=1)), self._answer)
        except _Deadline:
            return self._event("timeout")
        except _Overdue:
            return self._event("act")
        except _NotOurs:
            pass
        return self._event("ended")

    def _backend(self) -> Any:
        """The backend, None when the run cannot be followed from here."""
        from allaboard.backends.local.backend import LocalBackend
        from allaboard.errors import AllaboardError

        try:
            backend = LocalBackend()
            return backend if backend.fingerprint(self.run_name) == self.fingerprint else None
        except (AllaboardError, OSError):
            return None

    async def _answer(self, ask: Any) -> Any:
        from allaboard.follow import Enforce, Observe, Wait
        from allaboard.status import state_of

        match ask:
            case Observe():
                # The evidence of the end is for the worker, which looks again.
                seen, lines = await asyncio.to_thread(self._look)
                for line in lines:
                    self.log.info("%s", line)
                if getattr(seen, "uid", self.uid) != self.uid:
                    raise _NotOurs
                late = self.deadline is not None and time.time() >= self.deadline
                if late and not (hasattr(seen, "uid") and state_of(seen).is_final):
                    raise _Deadline
                return seen
            case Enforce():
                raise _Overdue
            case Wait(seconds):
                left = seconds if self.deadline is None else min(seconds, self.deadline - time.time())
                # Jittered, so that the triggers of one triggerer do not all look at once.
                await asyncio.sleep(max(0.05, left) * random.uniform(0.9, 1.1))
        return None

    def _look(self) -> tuple[Any, list[str]]:
        from allaboard.errors import BackendUnreachable

        try:
            seen = self._client.observe(self.run_name)
        except BackendUnreachable as error:
            return error, []
        return seen, self._teller.news(seen, time.time())

    # A person ended the task.

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
        if await asyncio.to_thread(self._stop, reason):
            self.log.info("run %s: stopped, because %s", self.run_name, reason)

    async def _task_state(self) -> str | None:
        """The state of our task instance; None when it is gone. Raises when Airflow does not answer: then
        nothing is stopped, for a run too many can be stopped by hand, and a run killed wrongly cannot be
        brought back.
        """
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        ti = self.task_instance
        assert ti is not None
        ask = sync_to_async(RuntimeTaskInstance.get_task_states)
        for asked in range(_ASKS):
            try:
                states = await ask(
                    dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
                )
                break
            except Exception:
                if asked == _ASKS - 1:
                    raise
                await asyncio.sleep(1)
        return task_state(states, ti)

    def _stop(self, reason: str) -> bool:
        from allaboard.backends.base import Handle
        from allaboard_provider.fence import stop_deferred

        backend = self._backend()
        handle = Handle(self.run_name, self.attempt, self.generation, self.uid)
        return backend is not None and stop_deferred(backend, handle, self.owner, reason)


def task_state(states: Mapping[str, Any], ti: Any) -> str | None:
    """The state of one task instance in the answer of ``get_task_states``."""
    mapped = ti.map_index is not None and ti.map_index >= 0
    found = states.get(ti.run_id, {}).get(f"{ti.task_id}_{ti.map_index}" if mapped else ti.task_id)
    return None if found is None else str(getattr(found, "value", found))


_ENDINGS = {"failed": "marked failed", "success": "marked success", "skipped": "skipped", "": "cleared"}


class RunTrigger(LookTrigger):
    """Fires when a run has ended: one named by ``run`` (id, prefix, job) or by ``key``."""

    def __init__(self, run: str | None = None, key: str | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.run_name, self.key = run, key

    def arguments(self) -> dict[str, Any]:
        return {"run": self.run_name, "key": self.key}

    def is_here(self) -> bool:
        from allaboard.backends.local.backend import LocalBackend
        from allaboard.backends.local.machine import fingerprint

        return fingerprint(str(LocalBackend().runs)) == self.fingerprint

    def is_there(self) -> bool:
        from allaboard.backends.local.backend import LocalBackend
        from allaboard.status import state_of

        seen = found_run(LocalBackend(), self.run_name, self.key)
        return seen is not None and state_of(seen).is_final


def found_run(backend: Any, run: str | None, key: str | None) -> Any:
    """The observation of a run by name or by key, None when there is no such run (yet)."""
    from allaboard.errors import UnknownRun

    if key:
        return next((seen for seen in backend.list() if seen.key == key), None)
    try:
        return backend.observe(run)
    except UnknownRun:
        if any(seen.run.startswith(run) for seen in backend.list() if run):
            raise  # it fits several: waiting would not make it clearer
        return None


class _Deadline(Exception):
    """The task's execution_timeout has passed."""


class _Overdue(Exception):
    """A limit of the run has passed, and a worker has to act."""


class _NotOurs(Exception):
    """Another attempt is on."""

"""The trigger that waits for a job of a cluster that somebody else made."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from allaboard.diagnosis import diagnose
from allaboard.engines import engine_of_kind
from allaboard.errors import BackendUnreachable, UnknownRun
from allaboard.follow.loop import Outcome
from allaboard.report.commands import Place
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from allaboard_provider.results import end_of, observation_text
from allaboard_provider.runs import ended_before
from allaboard_provider.triggers import train
from allaboard_provider.triggers.backends import cluster_backend
from allaboard_provider.triggers.polling import VERSION, PollTrigger


class JobTrigger(PollTrigger):
    """Fires when the job of this kind and name has ended: ``{"version", "status": "there", "uid", "state",
    "result", "error"}``. The event holds the ending, for a ttl may remove the job before a worker looks.

    ``since`` (epoch seconds): a job that ended before does not count. ``uid``: of a job that was seen
    already. The trigger waits for a job that does not exist yet; one that was seen and is gone has ended.
    """

    def __init__(
        self,
        kind: str,
        job_name: str,
        connection: str | None,
        uid: str | None = None,
        since: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.kind, self.job_name, self.connection, self.uid = kind, job_name, connection, uid
        self.since = since
        self._state: str | None = None

    def arguments(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "job_name": self.job_name,
            "connection": self.connection,
            "uid": self.uid,
            "since": self.since,
        }

    async def _watch(self) -> dict[str, Any]:
        while True:
            try:
                return {"version": VERSION, "status": "there", **await self._until_it_is_over()}
            except BackendUnreachable as error:
                self.log.info("%s", error)
                await asyncio.sleep(train.RECONNECT_INTERVAL * random.uniform(0.9, 1.1))

    async def _until_it_is_over(self) -> dict[str, Any]:
        async with (
            cluster_backend(self.connection) as backend,
            backend.changes_of(self.kind, self.job_name) as changes,
        ):
            while True:
                seen = await self._observe(backend)
                if seen is not None and state_of(seen).is_final:
                    seen = await self._observe(backend, evidence=True)
                    if seen is not None and state_of(seen).is_final:
                        return {"uid": seen.uid, **ending_of(seen, self.kind, backend.api.namespace)}
                await changes.wait(train.POLL_CLUSTER * random.uniform(0.9, 1.1))

    async def _observe(self, backend: Any, evidence: bool = False) -> Observation | None:
        """The job; None while there is none. Logs a new state."""
        try:
            seen: Observation = await backend.observe_job(self.kind, self.job_name, evidence, uid=self.uid)
        except UnknownRun:
            return None
        if ended_before(seen, self.since):
            return None
        self.uid = seen.uid
        if state_of(seen).value != self._state:
            self._state = state_of(seen).value
            self.log.info("%s", observation_text(seen))
        return seen


def ending_of(seen: Observation, kind: str, namespace: str) -> Mapping[str, Any]:
    """The `end_of` a job of others; its error says what happened, why, and where to look. Plain JSON."""
    outcome, engine = Outcome(seen, diagnose(seen)), engine_of_kind(kind)
    message = outcome.message.removeprefix("run ")
    at = Place("kubernetes", namespace=namespace)
    fix = f"; {at.in_text(outcome.diagnoses[0].fix, seen.run)}" if outcome.diagnoses else ""
    where = f"kubectl describe {engine.PLURAL} {seen.run} --namespace {namespace}"
    return end_of(outcome, at, text=f"{engine.KIND} {message}{fix}. To look at it: {where}")

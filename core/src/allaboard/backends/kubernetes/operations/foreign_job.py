"""A job that another tool made, to be looked at as a run is: followed, read and explained; and, where a
person has said so, ended or held back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from allaboard.backends.actor import user_at_host
from allaboard.backends.base import (
    Changes,
    Cursor,
    Handle,
    LogLine,
    Plan,
    Selection,
    StartedWith,
    Stopped,
)
from allaboard.backends.kubernetes.logs import stream
from allaboard.backends.kubernetes.operations import adoption, foreign, snapshot
from allaboard.errors import BadInput
from allaboard.runs.observation import Event, Observation, Owner, Stop

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api
    from allaboard.engines import Engine
    from allaboard.follow.loop import FollowPolicy


class ForeignJobs(Protocol):
    """The part of a cluster's backend that an `OthersJob` needs."""

    api: Api

    @property
    def pace(self) -> FollowPolicy: ...

    @property
    def where(self) -> str: ...

    def observe_job(
        self, kind: str, name: str, evidence: bool = False, *, uid: str | None = None
    ) -> Observation: ...

    def changes_of(self, kind: str, name: str) -> AbstractContextManager[Changes]: ...


class OthersJob:
    """A `Backend` of this one job, under its name. What would make it a run of ours raises BadInput; and
    unless ``adopt`` is said, so does what would change it. The job that was looked at first is changed, and
    no other.
    """

    name = "kubernetes"

    def __init__(self, backend: ForeignJobs, engine: Engine, name: str, *, adopt: bool = False) -> None:
        self.backend, self.engine, self.job, self.may_change = backend, engine, name, adopt
        self.pace, self.where = backend.pace, backend.where
        self.uid: str | None = None
        self._acted = False
        self._stop: Stop | None = None

    def observe(self, run: str, evidence: bool = False) -> Observation:
        if self._acted:  # what becomes of this very job is asked for, whatever has its name now
            seen = foreign.observe(
                self.backend.api, self.engine, self.job, evidence=evidence, uid=self.uid, only=True
            )
        else:
            seen = self.backend.observe_job(self.engine.KIND, self.job, evidence, uid=self.uid)
            self.uid = seen.uid
        if seen.deleted and self._stop is not None:  # the event of it may have been forbidden
            seen = replace(seen, stop=self._stop, stopped=True)
        only = "" if self.may_change else ", which is only looked at"
        return replace(seen, notes=(f"a {self.engine.KIND} of others{only}", *seen.notes))

    def snapshot(self, run: str) -> dict[str, Any]:
        """The job, its pods and what belongs to them as the API server has them."""
        return snapshot.take_job(self.backend.api, self.engine, self.job)

    def changes(self, run: str) -> AbstractContextManager[Changes]:
        return self.backend.changes_of(self.engine.KIND, self.job)

    def events(self, run: str) -> list[Event]:
        return foreign.list_job_events(self.backend.api, self.engine, self.job)

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> Iterator[LogLine | Cursor]:
        def find_sources() -> stream.LogSources:
            return stream.LogSources(
                *foreign.readable_job_logs(self.backend.api, self.engine, self.job, selection)
            )

        if follow:
            return stream.follow_logs(self.backend.api, None, find_sources, selection, cursor)
        return stream.read_logs(self.backend.api, None, find_sources().tries, selection, cursor)

    def list(self) -> list[Observation]:
        return [self.observe(self.job)]

    def saving(self, run: str) -> None:
        """None: the place of its checkpoints is not known."""

    def secrets_of(self, run: str) -> tuple[str, ...]:
        """None that can be told apart from the rest of its object."""
        return ()

    def started_with(self, run: str) -> StartedWith:
        """Nothing that allaboard knows."""
        return StartedWith({}, {})

    def refuse(self, verb: str) -> NoReturn:
        """Raises BadInput: this verb (stop, suspend, resume, delete) is only done to it when just that is
        asked for.
        """
        _, *notes = self.observe(self.job).notes
        refusal = "; ".join([f"{self.engine.KIND} {self.job!r} was not started by allaboard", *notes])
        raise BadInput(
            f"{refusal}; add --adopt to {verb} it all the same, or only look at it: status, follow, logs, "
            "events and report take its name"
        )

    def _change(self, verb: str, uid: str = "") -> str:
        """The uid of the job that is meant: this one, or that of the last look."""
        if not self.may_change:
            self.refuse(verb)
        meant = uid or self.uid or self.observe(self.job).uid
        assert meant is not None, "a job that is there has a uid"
        self.uid, self._acted = meant, True
        return meant

    def stop(self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False) -> Stopped:
        """Its object is deleted, as that of a run of ours is; there is no record that would stay."""
        uid = self._change("stop", handle.uid)
        answer = adoption.stop(self.backend.api, self.engine, self.job, uid, by, reason, kill)
        if not answer.already:
            self._stop = Stop(by, reason, self.backend.api.server_time())
        return answer

    def suspend(self, run: str) -> None:
        uid = self._change("suspend")
        adoption.suspend(self.backend.api, self.engine, self.job, uid, True, user_at_host())

    def resume(self, run: str) -> None:
        uid = self._change("resume")
        adoption.suspend(self.backend.api, self.engine, self.job, uid, False, user_at_host())

    def delete(self, run: str) -> None:
        """It is gone, with its pods, when this returns."""
        uid = self._change("delete")
        adoption.delete(self.backend.api, self.engine, self.job, uid, user_at_host())

    def _no_run(self, done: str) -> NoReturn:
        raise BadInput(f"{self.engine.KIND} {self.job!r} is not a run of allaboard, and is never {done}")

    def launch(self, plan: Plan, owner: Owner) -> Handle:
        self._no_run("launched")

    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        self._no_run("owned")

    def stop_from(self, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool:
        self._no_run("owned")

    def hand_over(self, handle: Handle) -> None:
        self._no_run("handed over")

    def enforce(self, run: str, owner: Owner) -> None:
        self._no_run("ended for a limit")

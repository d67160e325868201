"""A job that somebody else made, to be looked at as a run is: followed, read and explained, never changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from allaboard.backends.base import Changes, Cursor, Handle, LogLine, Plan, Selection
from allaboard.backends.kubernetes import logs, theirs
from allaboard.backends.kubernetes.talk import drive
from allaboard.errors import BadInput
from allaboard.observation import Event, Observation, Owner

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.engines import Engine


class OthersJob:
    """A `Backend` of this one job, under its name. What would change it raises BadInput."""

    name = "kubernetes"

    def __init__(self, backend: KubernetesBackend, engine: Engine, name: str) -> None:
        self.backend, self.engine, self.job = backend, engine, name
        self.pace, self.where = backend.pace, backend.where
        self.uid: str | None = None

    def observe(self, run: str, evidence: bool = False) -> Observation:
        seen = self.backend.observe_job(self.engine.KIND, self.job, evidence, uid=self.uid)
        self.uid = seen.uid
        return replace(seen, notes=(f"a {self.engine.KIND} of others, which is only looked at", *seen.notes))

    def changes(self, run: str) -> AbstractContextManager[Changes]:
        return self.backend.changes_of(self.engine.KIND, self.job)

    def events(self, run: str) -> list[Event]:
        return drive(theirs.events(self.engine, self.job), self.backend.api, self.backend.pause)

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> Iterator[LogLine | Cursor]:
        def look() -> logs.Looked:
            asked = theirs.readable(self.engine, self.job, selection)
            return logs.Looked(*drive(asked, self.backend.api, self.backend.pause))

        if follow:
            return logs.follow(self.backend.api, None, look, selection, cursor)
        return logs.read(self.backend.api, None, look().found, selection, cursor)

    def list(self) -> list[Observation]:
        return [self.observe(self.job)]

    def saving(self, run: str) -> None:
        """Where it keeps checkpoints is not known."""

    def secrets_of(self, run: str) -> tuple[str, ...]:
        """None that can be told apart from the rest of its object."""
        return ()

    def refuse(self, verb: str) -> NoReturn:
        """Raises BadInput: what this verb would do is not done to the jobs of others."""
        kind = self.engine.KIND
        raise BadInput(
            f"{kind} {self.job!r} was not made by allaboard, and what others made is never {verb}; status, "
            f"follow, logs and events show it, and whoever made it ends it: "
            f"kubectl -n {self.backend.api.namespace} delete {kind.lower()} {self.job}"
        )

    def launch(self, plan: Plan, owner: Owner) -> Handle:
        self.refuse("launched")

    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        self.refuse("owned")

    def stop(self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False) -> NoReturn:
        self.refuse("stopped")

    def suspend(self, run: str) -> None:
        self.refuse("suspended")

    def resume(self, run: str) -> None:
        self.refuse("resumed")

    def delete(self, run: str) -> None:
        self.refuse("deleted")

    def hand_over(self, handle: Handle) -> None:
        self.refuse("handed over")

    def enforce(self, run: str, owner: Owner) -> None:
        self.refuse("ended")

"""The interface of all backends (core/docs/contract.md, Backends).

`Backend` blocks; an async follower runs its methods in threads or has its own `AsyncBackend` of the same
names. Every method is safe to call again after its caller died in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from allaboard.follow.run_record import Data, Reached
from allaboard.job.identity import spec_hash, spec_of
from allaboard.job.training_job import TrainingJob
from allaboard.runs.observation import Event, Observation, Owner
from allaboard.text.names import run_name

if TYPE_CHECKING:  # `allaboard render` needs a plan, and follows nothing
    from allaboard.follow.loop import FollowPolicy


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked job and its key: everything that a backend needs to launch it. ``interrupted``: the attempt
    before was interrupted, so that it does not count. ``environment``: variables of every member beside the
    job's own, which go first; they are no part of the job, so other values make no other job. ``shards``:
    the version of the data set to train on, in place of the job's ``data.shards``. ``after``: the progress of
    the run on another machine. ``secrets``: values in the job that its caller knows to be secret, under any
    name; the run's record keeps them, so that no output about the run shows them.
    """

    job: TrainingJob
    key: str
    interrupted: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    shards: str | None = None
    after: Reached | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def run(self) -> str:
        """The run's name: the job's, and the hash of the key."""
        return run_name(self.job.name, self.key)

    @property
    def spec(self) -> dict[str, Any]:
        """The fields that make the run's spec, ready for JSON."""
        return spec_of(self.job)

    @property
    def spec_hash(self) -> str:
        """The hash of the spec, as the run's record keeps it."""
        return spec_hash(self.spec)


@dataclass(frozen=True, slots=True)
class Handle:
    """One attempt of one run. ``adopted``: it existed already. ``hand_over``: it had succeeded and its result
    was not taken yet. ``notes``: sentences for people about the launch (what changed, what it resumes);
    ``warnings``: those that nobody may overlook. ``data``: the data set of a local launch.
    """

    run: str
    attempt: int
    generation: int
    uid: str
    adopted: bool = False
    hand_over: bool = False
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    data: Data | None = None


def handle_of(seen: Observation) -> Handle:
    """The handle of an observed attempt."""
    return Handle(seen.run, seen.attempt, seen.generation, seen.uid or "")


@dataclass(frozen=True, slots=True)
class StartedWith:
    """Input of the newest attempt of a run: the job as its author set it, and the text of the files that it
    ships, as far as they can be read.
    """

    spec: Mapping[str, Any]
    code: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The stop was recorded, or the run had already ended."""

    already: bool = False


@dataclass(frozen=True, slots=True)
class NotYours:
    """Another owner has the run, or another attempt is current; nothing was done. ``owner`` is its id."""

    owner: str


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of logs. None: all members, the newest attempt, every try of each. ``since`` in epoch
    seconds.
    """

    members: tuple[str, ...] | None = None
    ranks: tuple[int, ...] | None = None
    attempt: int | None = None
    restart: int | None = None
    tail: int | None = None
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Output of a member between two times (epoch seconds; None: unknown) that can no longer be read."""

    since: float | None = None
    until: float | None = None


class LogLine(NamedTuple):
    """One line of one member's try. ``time`` in epoch seconds, as exact as the backend knows it; None when
    unknown. ``container``: the init container that wrote it, empty for the one that trains. ``gap``: a
    placeholder for lost lines; ``text`` says which and why. ``more``: the line continues in the next item of
    this try, because very long lines come in pieces.
    """

    member: str
    rank: int
    restart: int
    time: float | None
    text: str
    container: str = ""
    gap: Gap | None = None
    more: bool = False


Cursor = dict[str, Any]


class Changes(Protocol):
    """Wakes when something may have changed."""

    def wait(self, seconds: float) -> bool:
        """True when woken, False after ``seconds``. May wake without a change, and never sleeps longer than
        ``seconds``.
        """


class Backend(Protocol):
    """Backend: a place where runs live."""

    name: str
    pace: FollowPolicy
    """Pace at which a follower observes a run without wake-ups."""

    @property
    def where(self) -> str:
        """The place of its runs, for messages: ``on this machine``."""

    def launch(self, plan: Plan, owner: Owner) -> Handle:
        """Launch, adopt or hand over the run of this key, by the table of
        core/docs/contract.md, Launch under a key; returns its attempt.

        Raises BadInput (nothing was started; `SpecChanged` when it runs with another spec) or
        BackendUnreachable.
        """

    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        """Change the owner, if it is ``old`` and the attempt is still the handle's. Raises Conflict."""

    def observe(self, run: str, evidence: bool = False) -> Observation:
        """Observe the run now. ``evidence``: also events and log tails. Raises UnknownRun or
        BackendUnreachable.
        """

    def changes(self, run: str) -> AbstractContextManager[Changes]:
        """Wake-ups for a follower; waiting in it is what keeps an attached or an orchestrated run alive."""

    def events(self, run: str) -> Sequence[Event]:
        """The events of a run over all its attempts, oldest first, each once."""

    def saving(self, run: str) -> str | None:
        """The folder of a run's checkpoints; None if its job has none."""

    def secrets_of(self, run: str) -> tuple[str, ...]:
        """The secret values of the run's members, for `allaboard.text.redaction`, as far as this client
        may read them.
        """

    def started_with(self, run: str) -> StartedWith:
        """Input of its newest attempt. Raises UnknownRun."""

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> Iterator[LogLine | Cursor]:
        """Lines after the cursor, read lazily with bounded memory. The last item is the new cursor.
        ``follow``: also later lines until the attempt has ended, with cursors in between.
        """

    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        """Stop the attempt if it is still the handle's and the owner is still ``owner``. ``kill``: without
        grace.
        """

    def stop_from(self, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool:
        """Take the attempt from ``old`` for ``new`` and stop it. False: it is left alone, because it is
        another attempt, has another owner, or has ended by itself.
        """

    def suspend(self, run: str) -> None:
        """Take the members away and keep the run; `resume` starts them again."""

    def resume(self, run: str) -> None:
        """Start the members of a suspended run, from its newest checkpoint."""

    def delete(self, run: str) -> None:
        """Stop it if it runs, then remove the job, logs included. The record stays."""

    def hand_over(self, handle: Handle) -> None:
        """Record that the result of a succeeded run was taken."""

    def enforce(self, run: str, owner: Owner) -> None:
        """Enforce an `Observation.limit` that has passed, if ``owner`` still owns the run."""

    def list(self) -> list[Observation]:
        """Every run that has a record, newest first."""

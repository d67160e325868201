"""The run record (core/docs/contract.md, Run record), and what a launch does under a key that exists
(core/docs/contract.md, Launch under a key).

There is one record per run, which outlives the job. It is the only memory: a client may die at any
instruction, and the next one decides from the record and an observation of the run. `decide` makes this
decision; the backend carries it out under compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from allaboard.errors import BadInput
from allaboard.job.identity import differences, names_one_step, same_spec
from allaboard.runs.observation import Owner, State, Stop
from allaboard.text.redaction import secret_values
from allaboard.text.units import seconds
from allaboard.text.untrusted import read_value

VERSION = 1
KEEP = "30d"


def keep_seconds(environ: Mapping[str, str]) -> float:
    """Seconds for which the record of an ended run is kept: ``ALLABOARD_KEEP_RECORDS``, default 30 days.
    Raises BadInput.
    """
    text = environ.get("ALLABOARD_KEEP_RECORDS") or KEEP
    try:
        return seconds(text)
    except ValueError as error:
        raise BadInput(f"ALLABOARD_KEEP_RECORDS: {error}") from None


@dataclass(frozen=True, slots=True)
class Ended:
    """End of an attempt. ``why``: the reason in words, if no other data says it."""

    state: str
    at: float
    attempt: int
    generation: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """Data of an attempt: the uri of a data set, and the identity of its samples and their order; None if the
    launching client could not read it. ``fixed``: the uri names a version, which never changes.
    """

    uri: str
    content: str | None = None
    fixed: bool = False

    @property
    def short(self) -> str:
        """For a sentence."""
        known = (self.content or "").rpartition(":")[2][:12]
        return known or self.uri.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Reached:
    """Progress of a run on another machine, whose records this one does not have: the last attempt there, and
    its data.
    """

    generation: int
    attempt: int
    data: Data | None = None

    def is_as_far_as(self, record: RunRecord) -> bool:
        return (self.generation, self.attempt) >= (record.generation, record.attempt)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """``uid``: of the current attempt. ``object_uid``: of its job object on a cluster, once created.
    ``outcome``: of that attempt, once known. ``interruptions``: how many attempts of this generation were
    interrupted and do not count. ``data``: what that attempt trains on; None: unknown. ``secrets``: values in
    the spec that nothing there marks as secret (of `allaboard.backends.base.Plan`). ``unknown``: fields of a
    newer version, kept unchanged.
    """

    run: str
    key: str
    job: str
    spec: Mapping[str, Any]
    spec_hash: str
    owner: Owner
    uid: str
    created: float
    attempt: int = 1
    generation: int = 1
    outcome: Ended | None = None
    handed_over: bool = False
    stop: Stop | None = None
    deleted: bool = False
    object_uid: str | None = None
    history: tuple[Ended, ...] = ()
    interruptions: int = 0
    data: Data | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def generation_began(self) -> float:
        """The time at which this generation began, or the one before it ended. Epoch seconds."""
        before = [ended.at for ended in self.history if ended.generation < self.generation]
        return max((self.created, *before))

    @property
    def secret_values(self) -> tuple[str, ...]:
        """Every value of its job that is secret, for `allaboard.text.redaction`."""
        return (*secret_values(self.spec), *self.secrets)

    def to_dict(self) -> dict[str, Any]:
        known = asdict(self)
        return {"version": VERSION, **known.pop("unknown"), **known}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunRecord:
        """The inverse of `to_dict`. Raises `Unreadable`, a ValueError, when it is no record."""
        record = read_value(cls, {k: v for k, v in data.items() if k != "unknown"})
        rest = {k: v for k, v in data.items() if k not in cls.__dataclass_fields__}
        if rest.get("version", VERSION) <= VERSION:  # the version of a newer writer is kept
            rest.pop("version", None)
        return replace(record, unknown=rest)

    def ended(self, state: State, at: float, reason: str = "") -> RunRecord:
        """The record with the end of its attempt. An outcome that is already recorded stays."""
        if self.outcome is not None:
            return self
        ended = Ended(state.value, at, self.attempt, self.generation, reason)
        return replace(self, outcome=ended, history=(*self.history, ended))

    def next_attempt(
        self, uid: str, owner: Owner, spec: Mapping[str, Any], spec_hash: str, *, interrupted: bool = False
    ) -> RunRecord:
        """The record of attempt n+1 in the same generation: it resumes from the run's own checkpoints.
        ``interrupted``: this attempt was, and does not count.
        """
        return replace(
            self,
            uid=uid,
            owner=owner,
            spec=spec,
            spec_hash=spec_hash,
            attempt=self.attempt + 1,
            interruptions=self.interruptions + interrupted,
            outcome=None,
            handed_over=False,
            stop=None,
            deleted=False,
            object_uid=None,
        )

    def next_generation(self, uid: str, owner: Owner, spec: Mapping[str, Any], spec_hash: str) -> RunRecord:
        """The record of a run that trains again from scratch."""
        fresh = self.next_attempt(uid, owner, spec, spec_hash)
        return replace(fresh, attempt=1, interruptions=0, generation=self.generation + 1)

    def going_on_after(self, after: Reached | None, data: Data | None = None) -> RunRecord:
        """This record of a new attempt on ``data``, which follows ``after`` where that is further. It begins
        a generation where the data has changed.
        """
        if after is None or not after.is_as_far_as(self):
            return self
        if why_from_scratch(after.data, data):
            return replace(self, generation=after.generation + 1, attempt=1)
        return replace(self, generation=after.generation, attempt=after.attempt + 1)


def last_good(own: RunRecord, records: Iterable[RunRecord]) -> RunRecord | None:
    """The last of these records of the same job whose run succeeded; None: there is none but its own."""
    good = (
        (record.outcome.at, record)
        for record in records
        if record.run != own.run
        and record.job == own.job
        and record.outcome is not None
        and record.outcome.state == State.SUCCEEDED.value
    )
    return max(good, key=lambda pair: pair[0], default=(0.0, None))[1]


@dataclass(frozen=True, slots=True)
class Start:
    """No run exists: start the first attempt."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """The run is live: adopt it."""


@dataclass(frozen=True, slots=True)
class StopFirst:
    """The run is live, but a person asked for a new one, or its data has changed: stop it, wait until its
    members are gone, then start a new attempt. ``reason``: a sentence about the data, if that has changed.
    """

    changes: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """The run failed: start a new attempt that resumes. ``changes``: how the spec differs from the previous
    one.
    """

    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """The run succeeded and its result was not taken, or may be asked for again: hand it over, run
    nothing.
    """


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """Train again from scratch. ``reason``: a sentence about the data, if that has changed; else the run
    succeeded and its result was taken.
    """

    changes: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The run is live with another spec. ``changes`` shows the difference."""

    changes: tuple[str, ...]


Decision = Start | Adopt | StopFirst | NewAttempt | HandOver | NewGeneration | Refuse


def decide(
    record: RunRecord | None,
    state: State,
    owner: Owner,
    spec: Mapping[str, Any],
    data: Data | None = None,
) -> Decision:
    """Decide what a launch under this key does. ``state``: of the recorded attempt, as observed now;
    ``owner``: the launching client; ``data``: that of the new attempt, None: unknown.
    """
    if record is None:
        return Start()
    changes = spec_changes(record, spec, data)
    reason = why_from_scratch(record.data, data)
    if not state.is_final:
        is_own = record.owner.id == owner.id
        if reason or (record.owner.phase == "deferred" and not is_own):
            return StopFirst(changes, reason)
        return Refuse(changes) if changes else Adopt()
    succeeded = state is State.SUCCEEDED
    if succeeded and names_one_step(record.key):
        return HandOver()
    if reason:
        return NewGeneration(changes, reason)
    if not succeeded:
        return NewAttempt(changes)
    return NewGeneration(changes) if record.handed_over else HandOver()


def spec_changes(record: RunRecord, spec: Mapping[str, Any], data: Data | None) -> tuple[str, ...]:
    """Differences between the spec and that of the record. If the data of both is known it is compared as
    such (`why_from_scratch`): the same data may have another name, that of its version.
    """
    if same_spec(record.spec_hash, spec):
        return ()
    old = record.spec
    if data is not None and (data.fixed or record.data is not None):
        old, spec = _without_shards(old), _without_shards(spec)
    return tuple(differences(old, spec))


def _without_shards(spec: Mapping[str, Any]) -> dict[str, Any]:
    data = spec.get("data")
    rest = {name: value for name, value in data.items() if name != "shards"} if data else {}
    return {
        **{name: value for name, value in spec.items() if name != "data"},
        **({"data": rest} if rest else {}),
    }


def why_from_scratch(old: Data | None, new: Data | None) -> str:
    """Return why a run cannot go on from its checkpoints: its data has changed. Empty if it is the same, or
    not known of both.
    """
    if old is None or new is None or not _differ(old, new):
        return ""
    return (
        f"its data has changed ({old.short} -> {new.short}), and its checkpoints belong to the old "
        "data: it trains from scratch"
    )


def begun_with(record: RunRecord | None, state: State, after: Reached | None = None) -> Data | None:
    """Data of the next attempt. ``after``: progress of the run on another machine. None: nothing is known, or
    its result was taken, so that it begins anew.
    """
    if after is not None and (record is None or after.is_as_far_as(record)):
        return after.data
    if record is None or (state is State.SUCCEEDED and record.handed_over):
        return None
    return record.data


def _differ(old: Data, new: Data) -> bool:
    if old.content is not None and new.content is not None:
        return old.content != new.content
    return old.fixed and new.fixed and old.uri != new.uri

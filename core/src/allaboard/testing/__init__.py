"""Builders and a fake backend for tests of allaboard and of its users. They behave like the real ones.

>>> from allaboard.testing import FakeBackend, a_job
>>> backend = FakeBackend()
>>> import allaboard
>>> allaboard.run(a_job(), backend=backend).ok
True

`FakeBackend` plays observations; `FakeCluster` is a cluster in memory, on which the real Kubernetes backend
runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

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
from allaboard.checking.job import require_valid
from allaboard.engines import engine_of
from allaboard.errors import BackendUnreachable, OwnershipConflict, SpecChanged, UnknownRun
from allaboard.follow import run_record
from allaboard.follow.loop import FollowPolicy
from allaboard.follow.run_record import RunRecord
from allaboard.job.training_job import TrainingJob
from allaboard.runs.layout import Layout, lay_out
from allaboard.runs.observation import Condition, Event, MemberSeen, Observation, Owner, State, Stop
from allaboard.runs.status import state_of
from allaboard.testing.cluster import FakeCluster as FakeCluster


def a_job(**fields: Any) -> TrainingJob:
    """A valid job: two members of ``python train.py`` by default."""
    return TrainingJob(**{"name": "digits", "command": ["python", "train.py"], "workers": 2, **fields})


def a_layout(run: str = "digits-1", **fields: Any) -> Layout:
    """The layout of `a_job` with these fields, checked."""
    job = require_valid(a_job(**fields))
    return lay_out(job, engine_of(job), run)


def a_condition(
    kind: str, status: str = "True", since: float = 0.0, message: str = "", reason: str = ""
) -> Condition:
    """A condition of a job object. ``since``: epoch seconds; the reason is ``PyTorchJob`` and the type
    unless given.
    """
    return Condition(kind, status, reason or f"PyTorchJob{kind}", message, since)


def a_member(name: str = "worker-0", phase: str = "running", **fields: Any) -> MemberSeen:
    """A member as an observation has it: its index is also its rank."""
    group, _, index = name.rpartition("-")
    return MemberSeen(**{"group": group, "index": int(index), "rank": int(index), "phase": phase, **fields})


def seen(state: State | str = State.RUNNING, **fields: Any) -> Observation:
    """An observation that means ``state``."""
    base = Observation(run="digits-00000000", job="digits", uid="u1", created=0.0, alive=True)
    state = State(state)
    made = {
        State.QUEUED: replace(base, waiting="waits for 2 CPUs"),
        State.STARTING: replace(base, conditions=(a_condition("Created"),)),
        State.RUNNING: replace(
            base, conditions=(a_condition("Created"), a_condition("Running")), started=1.0
        ),
        State.RESTARTING: replace(base, conditions=(a_condition("Restarting"),), started=1.0),
        State.SUSPENDED: replace(base, suspended=True),
        State.STOPPING: replace(base, stop=Stop("someone", "a reason", 2.0)),
        State.STOPPED: replace(base, stop=Stop("someone", "a reason", 2.0), stopped=True, finished=2.0),
        State.SUCCEEDED: replace(base, conditions=(a_condition("Succeeded"),), started=1.0, finished=9.0),
        State.FAILED: replace(
            base, conditions=(a_condition("Failed", message="1 replica failed"),), started=1.0, finished=9.0
        ),
        State.TIMED_OUT: replace(
            base, conditions=(a_condition("Failed", reason="DeadlineExceeded"),), started=1.0, finished=9.0
        ),
        State.LOST: replace(base, alive=False, started=1.0),
        State.UNKNOWN: replace(base, alive=None),
    }[state]
    return replace(made, **fields)


class FakeBackend:
    """A backend in memory, with the methods of `Backend`. Its runs go through a script, one item for each
    observation, and stay at the last item.

    It follows the table of core/docs/contract.md, Launch under a key, with owners, attempts and hand-over,
    and notes every call in ``calls``. ``scripts``: one script for each attempt; the last one serves all
    further attempts. The default is one script: queued, starting, running, succeeded.
    """

    name = "fake"
    pace = FollowPolicy()
    where = "in memory"

    def __init__(self, *scripts: Sequence[State | str | Observation]) -> None:
        self.scripts = scripts or ((State.QUEUED, State.STARTING, State.RUNNING, State.SUCCEEDED),)
        self.records: dict[str, RunRecord] = {}
        self.looks: dict[str, Iterator[Observation]] = {}
        self.now: dict[str, Observation] = {}
        self.calls: list[tuple[str, ...]] = []
        self.lines: list[LogLine] = []
        self._uids = (f"uid-{n}" for n in itertools.count(1))
        self._broken = 0

    def break_for(self, looks: int) -> None:
        """Raise BackendUnreachable at the next ``looks`` observations."""
        self._broken = looks

    def launch(self, plan: Plan, owner: Owner) -> Handle:
        self.calls.append(("launch", plan.run))
        lay_out(plan.job, engine_of(plan.job), plan.run)
        record = self.records.get(plan.run)
        state = State.UNKNOWN if record is None else self._state(plan.run)
        if record is not None and state.is_final:
            record = record.ended(state, 9.0)
        decision = run_record.decide(record, state, owner, plan.spec)
        match decision:
            case run_record.Refuse(changes):
                raise SpecChanged("live with another job: " + "; ".join(changes))
            case run_record.Adopt() | run_record.HandOver():
                assert record is not None
                self.records[plan.run] = replace(record, owner=owner)
                handle = self._handle(plan.run)
                is_hand_over = isinstance(decision, run_record.HandOver)
                return replace(handle, adopted=not is_hand_over, hand_over=is_hand_over)
            case run_record.NewGeneration():
                assert record is not None
                record = record.next_generation(next(self._uids), owner, plan.spec, plan.spec_hash)
            case run_record.NewAttempt() | run_record.StopFirst():
                assert record is not None
                record = record.next_attempt(
                    next(self._uids), owner, plan.spec, plan.spec_hash, interrupted=plan.interrupted
                )
            case run_record.Start():
                record = RunRecord(
                    plan.run, plan.key, plan.job.name, plan.spec, plan.spec_hash, owner, next(self._uids), 0.0
                )
        record = replace(record, secrets=plan.secrets)
        self.records[plan.run] = record
        script = self.scripts[min(record.attempt, len(self.scripts)) - 1]
        self.looks[plan.run] = (s if isinstance(s, Observation) else seen(s) for s in script)
        self.now[plan.run] = next(self.looks[plan.run])
        return self._handle(plan.run)

    def _state(self, run: str) -> State:
        return state_of(self.now[run])

    def _handle(self, run: str) -> Handle:
        record = self._record(run)
        return Handle(run, record.attempt, record.generation, record.uid)

    def _record(self, run: str) -> RunRecord:
        if run not in self.records:
            raise UnknownRun(f"there is no run {run!r} here")
        return self.records[run]

    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        record = self._record(handle.run)
        if record.uid != handle.uid or record.owner != old:
            raise OwnershipConflict(f"run {handle.run} belongs to {record.owner.id} now")
        self.records[handle.run] = replace(record, owner=new)
        return replace(self._handle(handle.run), adopted=True)

    def observe(self, run: str, evidence: bool = False) -> Observation:
        record = self._record(run)
        if self._broken:
            self._broken -= 1
            raise BackendUnreachable("the fake backend does not answer")
        self.now[run] = seen = self.now[run] if evidence else next(self.looks[run], self.now[run])
        return replace(
            seen,
            run=run,
            key=record.key,
            job=record.job,
            attempt=record.attempt,
            generation=record.generation,
            interruptions=record.interruptions,
            uid=record.uid,
            owner=record.owner,
            stop=seen.stop or record.stop,
            handed_over=record.handed_over,
        )

    @contextmanager
    def changes(self, run: str) -> Iterator[_Awake]:
        yield _Awake(self)

    def events(self, run: str) -> Sequence[Event]:
        return self.observe(run, evidence=True).events

    def saving(self, run: str) -> str | None:
        return None

    def secrets_of(self, run: str) -> tuple[str, ...]:
        return self._record(run).secret_values

    def started_with(self, run: str) -> StartedWith:
        return StartedWith(self._record(run).spec, {})

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> Iterator[LogLine | Cursor]:
        start = int((cursor or {}).get("n", 0))
        yield from self.lines[start:]
        yield {"n": len(self.lines)}

    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        record = self._record(handle.run)
        if record.uid != handle.uid or record.owner.id != owner.id:
            return NotYours(record.owner.id)
        self.calls.append(("stop", handle.run, reason))
        if self._state(handle.run).is_final:
            return Stopped(already=True)
        stop = Stop(by, reason, 5.0)
        self.records[handle.run] = replace(record, stop=stop)
        self.looks[handle.run] = iter(())
        self.now[handle.run] = seen(State.STOPPED, stop=stop)
        return Stopped()

    def stop_from(self, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool:
        try:
            if self._state(handle.run).is_final:
                return False
            self.adopt(handle, old, new)
        except (OwnershipConflict, UnknownRun, KeyError):
            return False
        return isinstance(self.stop(handle, new, by, reason), Stopped)

    def suspend(self, run: str) -> None:
        self.now[self._record(run).run] = seen(State.SUSPENDED)

    def resume(self, run: str) -> None:
        self.now[self._record(run).run] = seen(State.RUNNING)

    def delete(self, run: str) -> None:
        record = self._record(run)
        self.records[run] = replace(record.ended(self._state(run), 9.0), deleted=True)
        self.looks[run] = iter(())
        self.now[run] = replace(self.now[run], deleted=True)

    def hand_over(self, handle: Handle) -> None:
        self.calls.append(("hand_over", handle.run))
        self.records[handle.run] = replace(self._record(handle.run), handed_over=True)

    def enforce(self, run: str, owner: Owner) -> None:
        self.calls.append(("enforce", run))

    def list(self) -> list[Observation]:
        return [replace(self.now[run], run=run, job=record.job) for run, record in self.records.items()]


class _Awake:
    """Wakes at once: time in tests is data."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend

    def wait(self, seconds: float) -> bool:
        self.backend.calls.append(("wait",))
        return True

"""The operator for one machine: what a PyTorchJob's controller and the kubelet would do, as a state machine.

Nothing here touches a process or a clock: the caller reports what happened and when, and carries out the
returned actions. Rules: Training Operator 1.9.4 (restart policies, condition algebra, who decides, clean-up,
suspend, deadline) and the kubelet's in-place restarts. What other operators do in another way the engine says
(`allaboard.engines.base.Rules`): JobSet restarts the whole gang when a member fails.

Where this differs from the operator, on purpose (tests/cluster/parity plays both and has every difference as
a row):

- backoffLimit N: the operator fails the job at the N-th restart, so N-1 survive, and is blind to recreated
  pods. Here exactly N restarts, of every kind, then it fails: what its documentation promises.
- backoffLimit absent: no limit. Here 3 (written out in every manifest): a script with a typo would crash for
  ever.
- Deadline: noticed at the next event or the 10 h resync. Here a timer, as documented.
- Clean-up default: None, so members run on and hold GPUs. Here running (core/docs/contract.md,
  Restarts and clean-up).
- Elastic, worker 0 lost: every survivor fails and is restarted, each counted. Here the whole gang starts
  again from its checkpoint and one restart is counted: one failure is one failure.
- Restart delay: 10 s doubling to 5 min. Here 0.5 s doubling to 10 s: there is no image to pull.
- A failure beyond the limit: the job fails at once, though restarts of other members that were counted have
  not begun. Here they begin, and have 1 s to speak, before it fails: a restart that is counted has happened.
- A member that waits for its restart when the job fails: clean-up takes its pod, or under clean_pods none it
  goes on crashing. Here it has failed, and is started no more.
- A member that is lost: its pod is gone and made anew. Here its processes are killed, and it is started again
  in place, as after any failure.
- Replica counts: not written any more once the job has ended or is suspended. Here as the members are.
- The deadline of a JobSet: each start's own. Here the job's, as documented.
- ttl after a permanent exit code: never, for want of a completionTime. Here from the end.
- Members still ending when the job succeeded: deleted at once. Here they have 1 s to end by themselves: an
  exit code of its own says more than 143.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from allaboard.engines import ENGINES, Engine
from allaboard.engines.base import Counts, Rules, restarts_in_all
from allaboard.runs.layout import Layout, Member
from allaboard.runs.observation import PHASES, Condition, Event, MemberSeen, Stall, Stop

FIRST_DELAY = 0.5
LONGEST_DELAY = 10.0
SETTLE = 1.0


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start this member's try ``number`` (0 is the first)."""

    member: Member
    number: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to its main process."""

    member: Member


@dataclass(frozen=True, slots=True)
class Kill:
    """Its whole tree, at once."""

    member: Member


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask the pool for the gang's slots."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give these members' slots back; None: all."""

    members: tuple[Member, ...] | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do: the supervisor may end."""


@dataclass(frozen=True, slots=True)
class Remove:
    """The ttl is over: delete the run."""


Action = Spawn | Terminate | Kill | Acquire | Release | Finish | Remove


@dataclass(slots=True)
class _MemberState:
    """The state of one member."""

    member: Member
    phase: str = "pending"
    tries: int = 0
    restarts: int = 0
    exit_code: int | None = None
    reason: str | None = None
    started: float | None = None
    ended: float | None = None
    alive: bool = False
    due: float | None = None
    kill_at: float | None = None
    is_restart: bool = False

    @property
    def busy(self) -> bool:
        """Return whether a process of the member lives or is about to start."""
        return self.alive or self.due is not None or self.is_restart


@dataclass(slots=True)
class PhaseEnds:
    """End of each phase; None: not ended yet, or not seen."""

    created: float
    admitted: float | None = None
    scheduled: float | None = None
    met: float | None = None
    stepped: float | None = None
    finished: float | None = None


@dataclass(slots=True)
class Operator:
    """The operator of one attempt. Methods take the time in epoch seconds and return the actions to carry
    out, in order.
    """

    layout: Layout
    created: float
    conditions: tuple[Condition, ...] = ()
    events: list[Event] = field(default_factory=list)
    members: dict[str, _MemberState] = field(default_factory=dict)
    rules: Rules = field(init=False)
    marks: PhaseEnds = field(init=False)
    started: float | None = None
    finished: float | None = None
    stop: Stop | None = None
    suspended: bool = False
    resume_asked: bool = False
    """True to resume once the members that are being suspended are gone."""
    removed: bool = False
    waiting: str | None = None
    has_asked_for_slots: bool = False
    expected: set[str] = field(default_factory=set)
    settle_until: float | None = None
    failure: bool = False
    taken_over: str | None = None
    """Reason why no member may start again: another attempt writes the checkpoints of this run now."""
    owed_restarts: set[str] = field(default_factory=set)
    verdict_at: float | None = None
    gang_due: float = 0.0
    over: bool = False

    def __post_init__(self) -> None:
        self.members = {m.name: _MemberState(m) for m in self.layout.members}
        self.rules = self.engine.rules(self.layout)
        self.marks = PhaseEnds(self.created)

    # What is known.

    @property
    def engine(self) -> Engine:
        return ENGINES[self.layout.engine]

    @property
    def meets(self) -> bool:
        """Return whether its members have a rendezvous that can be observed."""
        return self.layout.total > 1 and bool(self.engine.listeners(self.layout))

    @property
    def restarts(self) -> int:
        return restarts_in_all([state.restarts for state in self.members.values()], self.rules.scope)

    @property
    def ended(self) -> bool:
        """Return whether the job has its final condition (members may still be ending)."""
        return self._has_condition("Succeeded") or self._has_condition("Failed") or self.stop is not None

    @property
    def stopped(self) -> bool:
        """Return whether the run was stopped and no member is busy."""
        return (
            self.stop is not None
            and not self._is_final()
            and not any(state.busy for state in self.members.values())
        )

    def _has_condition(self, kind: str) -> bool:
        return any(c.type == kind and c.status == "True" for c in self.conditions)

    def _is_final(self) -> bool:
        return self._has_condition("Succeeded") or self._has_condition("Failed")

    # What happens.

    def begin(self, now: float) -> list[Action]:
        """The job was created."""
        self._condition("Created", now)
        if self.rules.policy.suspend:
            return self._on_suspended(now)
        return self._ask()

    def _ask(self) -> list[Action]:
        self.has_asked_for_slots, self.waiting = True, "this machine has not looked at it yet"
        return [Acquire()]

    def on_admitted(self, names: Iterable[str], now: float) -> list[Action]:
        """The pool gave slots to these members; more may come later for an elastic gang."""
        self.waiting, self.has_asked_for_slots = None, False
        if self.started is None:
            self.started = now
        if self.marks.admitted is None:
            self.marks.admitted = now
        names = list(names)
        self.expected.update(names)
        return [self._spawn(state) for name in names if not self._is_kept(state := self.members[name])]

    def _is_kept(self, state: _MemberState) -> bool:
        """Return whether a suspension leaves the member as it is: it has succeeded, and its operator keeps
        it.
        """
        return self.rules.keeps_done and state.phase == "succeeded"

    def _spawn(self, state: _MemberState) -> Spawn:
        state.due, state.alive, state.kill_at, state.is_restart = None, True, None, False
        number, state.tries = state.tries, state.tries + 1
        return Spawn(state.member, number)

    def on_running(self, name: str, now: float) -> list[Action]:
        """The member's program runs."""
        state = self.members[name]
        state.phase, state.started, state.ended, state.reason = "running", now, None, None
        if self.rules.scope == "gang":
            state.exit_code = None  # this is another pod
        self._event("Normal", "Started", name, f"started try {state.tries - 1}", now)
        if self.marks.scheduled is None and all(self.members[n].started for n in self.expected):
            self.marks.scheduled = now
        if name in self.owed_restarts and not any(self._is_owed_a_start(o) for o in self.members.values()):
            self.verdict_at = now + SETTLE
        return self._update_conditions(now)

    def on_rendezvous(self, now: float) -> None:
        """The members found each other at the rendezvous."""
        if self.marks.met is None:
            self.marks.met = now

    def on_first_step(self, now: float) -> None:
        """The first step was reported."""
        if self.marks.stepped is None:
            self.marks.stepped = now

    def on_called_off(self, name: str, now: float) -> list[Action]:
        """The member was terminated before it was started: no process exists."""
        state = self.members[name]
        state.alive, state.kill_at, state.tries = False, None, state.tries - 1
        self.owed_restarts.discard(name)
        if state.is_restart:
            return self._start_gang_again(now)
        state.phase = "deleted"
        return self._release_and_finish(now)

    def on_start_failed(self, name: str, text: str, now: float) -> list[Action]:
        """The member's program could not be started: the kubelet's StartError, exit code 128."""
        self._event("Warning", "Failed", name, text, now)
        return self.on_exited(name, 128, now, reason="StartError")

    def on_exited(self, name: str, code: int, now: float, reason: str | None = None) -> list[Action]:
        """The member's main process ended and no process of it is left. ``code``: minus n for signal n."""
        state = self.members[name]
        state.alive, state.kill_at, state.ended = False, None, now
        state.exit_code = 128 - code if code < 0 else code
        state.reason = reason or ("Completed" if state.exit_code == 0 else "Error")
        self.owed_restarts.discard(name)
        if state.is_restart:
            state.phase, state.reason = "pending", None
            return self._start_gang_again(now)
        if self._is_ending:
            return self._on_member_gone(state, now)
        if state.exit_code == 0 and self.layout.restart_of(state.member.group) != "always":
            state.phase = "succeeded"
            return [*self._update_conditions(now), *self._fail_if_used_up(now)]
        return self._on_member_failed(state, now)

    @property
    def _is_ending(self) -> bool:
        return self.ended or self.suspended

    def _on_member_failed(self, state: _MemberState, now: float) -> list[Action]:
        policy, code = self.rules.policy, state.exit_code or 0
        restart = self.layout.restart_of(state.member.group)
        is_final = restart == "never" or self.restarts >= policy.backoff_limit
        if state.member.group in self.engine.SPARED and is_final:
            state.phase = "failed"
            return self._update_conditions(now)
        if restart == "exit_code":
            self._event(
                "Normal",
                "ExitedWithCode",
                state.member.name,
                f"Pod: {self._object(state)} exited with code {code}",
                now,
            )
        if restart == "never" or (restart == "exit_code" and code < 128):
            state.phase = "failed"
            return self._fail("Failed", now, role=state.member.group)
        if self.taken_over is not None:
            state.phase = "failed"
            return self._fail("Failed", now, role=state.member.group, text=self.taken_over)
        if self.restarts >= policy.backoff_limit:
            state.phase = "failed"
            self.failure = True
            self.owed_restarts.update(
                o.member.name for o in self.members.values() if self._is_owed_a_start(o)
            )
            return self._fail_if_used_up(now)
        if self.rules.scope == "gang":
            return self._restart_all(state, now)
        state.restarts += 1
        if restart == "exit_code":
            state.phase = "pending"
            self._condition("Restarting", now, role=state.member.group, count=1)
        else:
            # The kubelet restarts in place: the pod stays Running and no condition of the job changes.
            state.phase, state.reason = "running", "CrashLoopBackOff"
        self._event(
            "Warning", "BackOff", state.member.name, f"exited with code {code}; restart {self.restarts}", now
        )
        if self._is_host(state):
            message = "the rendezvous host is gone; the whole gang starts again"
            return [Kill(member) for member in self._restart_gang(state, message, now)]
        state.due = now + _delay(state.restarts)
        return self._update_conditions(now)

    def _restart_all(self, failed: _MemberState, now: float) -> list[Action]:
        """The gang starts again because a member of it has failed. The others have their grace to end."""
        for state in self.members.values():
            state.restarts += state.tries > 0
        failed.phase, failed.reason = "pending", None
        self._unset_running(now)
        self._condition("Restarting", now, role=failed.member.group, count=1)
        message = f"exited with code {failed.exit_code}; restart {self.restarts} of the whole gang"
        return self._end_gang(failed, message, now)

    def _end_gang(self, first: _MemberState, message: str, now: float) -> list[Action]:
        """Every member has its grace to end, and then starts again, because of ``first``."""
        ending = self._restart_gang(first, message, now)
        for member in ending:
            self.members[member.name].kill_at = now + self.layout.grace
        return [Terminate(member) for member in ending]

    @property
    def is_training(self) -> bool:
        """Return whether every member runs that should: none is to be started, ended or restarted."""
        living = [state for state in self.members.values() if state.alive]
        waits = any(s.due is not None or s.is_restart or s.kill_at is not None for s in self.members.values())
        return (
            bool(living)
            and not self._is_ending
            and not waits
            and self._has_condition("Running")
            and all(state.phase == "running" for state in living)
        )

    def on_stalled(self, stall: Stall, now: float) -> list[Action]:
        """The run makes no progress: say it, start the gang again, or end the run, as policy.hang says. A
        restart counts as one of the member that holds up the others.
        """
        policy = self.rules.policy
        restarts = policy.hang_then == "restart" and self.restarts < policy.backoff_limit
        if not stall.is_hang:
            self._event("Normal", stall.code, self.layout.run, stall.text, now)
            return []
        if self._is_ending or policy.hang_then == "tell" or restarts:
            self._event("Warning", stall.code, self.layout.run, stall.text, now)
            return self._restart_stalled(stall, now) if restarts and not self._is_ending else []
        used = f" after {self.restarts} restarts" if policy.hang_then == "restart" else ""
        text = f"Job {self.layout.run} has failed{used} because {stall.text}"
        return self._fail("Failed", now, reason=stall.code, text=text)

    def _restart_stalled(self, stall: Stall, now: float) -> list[Action]:
        first = self.members.get(stall.member or "") or next(s for s in self.members.values() if s.alive)
        for state in self.members.values() if self.rules.scope == "gang" else (first,):
            state.restarts += state.tries > 0
        if self.rules.scope == "gang":
            self._unset_running(now)
            self._condition("Restarting", now, role=first.member.group, count=1)
        return self._end_gang(first, f"it made no progress; restart {self.restarts}, of the whole gang", now)

    def _is_owed_a_start(self, state: _MemberState) -> bool:
        """Return whether a restart of the member was counted but has not begun."""
        return state.due is not None or state.is_restart

    def _fail_if_used_up(self, now: float) -> list[Action]:
        """Fail a job whose restarts are used up. Restarts that were granted before come first."""
        if not self.failure or self.owed_restarts or self._is_ending:
            return []
        return self._fail("BackoffLimit", now)

    def _is_host(self, state: _MemberState) -> bool:
        """Worker 0 of an elastic gang holds the rendezvous: without it the others cannot go on."""
        return self.layout.elastic is not None and state.member.rank == self._host().rank

    def _host(self) -> Member:
        return next(m for m in self.layout.members if m.group == "worker" and m.index == 0)

    def _restart_gang(self, first: _MemberState, message: str, now: float) -> list[Member]:
        """All members that were ever started start again, once none of them lives any more. Those that have
        to be ended for it.
        """
        self._event("Warning", "GangRestart", first.member.name, message, now)
        self.gang_due = now + _delay(first.restarts)
        living = []
        for state in self.members.values():
            if state.tries == 0:
                continue
            state.is_restart, state.due = True, None
            if state.alive:
                living.append(state.member)
            else:
                state.phase = "pending" if state.phase == "succeeded" else state.phase
        self._start_gang_again(now)
        return living

    def _start_gang_again(self, now: float) -> list[Action]:
        """Start the new gang after the delay, once every process of the old gang is gone."""
        waiting = [o for o in self.members.values() if o.is_restart]
        if not any(o.alive for o in waiting):
            for state in waiting:
                state.due, state.is_restart = max(self.gang_due, now), False
        return []

    def _update_conditions(self, now: float) -> list[Action]:
        """Update the job's conditions from the members' states."""
        verdict = self.engine.judge(self.layout, self.counts())
        if verdict.running and not self._is_ending and not verdict.succeeded:
            self._condition("Running", now)
        if verdict.succeeded:
            return self._succeed(now)
        return []

    def counts(self) -> Mapping[str, Counts]:
        """Replica counts by role, as the operator's replicaStatuses."""
        return {
            group.role: Counts(
                replicas=group.replicas,
                active=self._count_members(group.role, "running"),
                succeeded=self._count_members(group.role, "succeeded"),
                failed=self._count_members(group.role, "failed"),
                first_succeeded=any(
                    o.phase == "succeeded"
                    for o in self.members.values()
                    if (o.member.group, o.member.index) == (group.role, 0)
                ),
            )
            for group in self.layout.groups
        }

    def _count_members(self, role: str, phase: str) -> int:
        return sum(1 for o in self.members.values() if o.member.group == role and o.phase == phase)

    def _succeed(self, now: float) -> list[Action]:
        self._condition("Succeeded", now)
        self.finished = self.marks.finished = now
        self.settle_until = now + SETTLE
        return self._clean_pods(now)

    def _fail(
        self, how: str, now: float, role: str = "", reason: str | None = None, text: str | None = None
    ) -> list[Action]:
        self._condition("Failed", now, role=role, count=1, how=how, reason=reason, text=text)
        self.finished = self.marks.finished = now
        return self._clean_pods(now)

    # The end of members.

    def _clean_pods(self, now: float) -> list[Action]:
        """Apply clean_pods. With none, running members go on but are no longer restarted."""
        keeps = self.rules.policy.clean_pods == "none"
        for state in self.members.values():
            if state.due is not None or (state.is_restart and not state.alive):
                state.phase = "failed" if keeps else "deleted"
            state.due, state.is_restart = None, False
        if keeps:
            self.settle_until = None
            return self._release_and_finish(now)
        if self.settle_until is not None and any(o.alive for o in self.members.values()):
            return []
        return self._end_all(now)

    def _is_cleaned(self, phase: str) -> bool:
        policy = self.rules.policy.clean_pods
        return policy == "all" or (policy == "running" and phase in ("running", "pending"))

    def _end_all(self, now: float) -> list[Action]:
        """Send SIGTERM to all living members, SIGKILL after the grace; then release the slots."""
        self.settle_until = None
        actions: list[Action] = []
        for state in self.members.values():
            if state.alive and state.kill_at is None:
                state.kill_at = now + self.layout.grace
                actions.append(Terminate(state.member))
        return actions + self._release_and_finish(now)

    def _on_member_gone(self, state: _MemberState, now: float) -> list[Action]:
        """A member ended after the job's final condition, or while it is suspended."""
        if self.suspended:
            state.phase = "deleted"
        elif state.exit_code == 0:
            state.phase = "succeeded"
        elif self.stop is None and self.rules.policy.clean_pods == "none":
            state.phase = "failed"
        else:
            state.phase = "deleted"
        return self._release_and_finish(now)

    def _release_and_finish(self, now: float) -> list[Action]:
        """The actions after something ended: release, finish."""
        if any(o.busy for o in self.members.values()):
            return []
        if self.suspended and not self.ended:
            return [Release(), *(self._resume(now) if self.resume_asked else [])]
        if not self.ended or self.over:
            return []
        self.over = True
        if self.rules.policy.clean_pods == "all" and self._is_final():
            for state in self.members.values():
                state.phase = "deleted"
        elif self._is_cleaned("pending") or self.stop is not None:
            for state in self.members.values():
                state.phase = "deleted" if state.phase in ("pending", "running") else state.phase
        return [Release(), Finish()]

    # What people ask for.

    def ask_stop(self, stop: Stop, kill: bool, now: float) -> list[Action]:
        """Stop the run. A second call with ``kill`` ends the grace."""
        if self.over:
            return []
        if self.stop is None and not self._is_final():
            self.stop = stop
            self.finished = self.marks.finished = now
            self._event("Normal", "Stopped", self.layout.run, f"stopped by {stop.by}: {stop.reason}", now)
        for state in self.members.values():
            state.due, state.is_restart = None, False
        self.waiting = None
        living = [m.member for m in self.members.values() if m.alive]
        actions = self._end_all(now)
        return [Kill(member) for member in living] if kill and living else actions

    def ask_suspend(self, now: float) -> list[Action]:
        """End every member and release the slots. Suspending a job that ended does nothing."""
        self.resume_asked = False
        if self.ended or self.suspended:
            return []
        return self._on_suspended(now)

    def _on_suspended(self, now: float) -> list[Action]:
        self.suspended, self.waiting, self.has_asked_for_slots = True, None, False
        self.failure, self.verdict_at = False, None
        self.owed_restarts.clear()
        self._unset_running(now)
        self._condition("Suspended", now)
        for state in self.members.values():
            state.due, state.is_restart = None, False
            if self.started is not None and not state.alive and not self._is_kept(state):
                state.phase = "deleted"
        return self._end_all(now)

    def ask_resume(self, now: float) -> list[Action]:
        """Start the members again from index 0, once all that ran before are gone; they find their checkpoint
        themselves.
        """
        if self.ended or not self.suspended:
            return []
        if any(o.busy for o in self.members.values()):
            self.resume_asked = True
            return []
        return self._resume(now)

    def _resume(self, now: float) -> list[Action]:
        self.suspended = self.resume_asked = False
        reason = self.engine.reason("Resumed", self.layout) or "Resumed"
        resumed = Condition("Suspended", "False", reason, self._message("Resumed"), now)
        self.conditions = self.engine.with_condition(self.conditions, resumed)
        self._event("Normal", reason, self.layout.run, self._message("Resumed"), now)
        self.started = None
        for state in self.members.values():
            if not self._is_kept(state):
                state.phase, state.exit_code, state.reason = "pending", None, None
        return self._ask()

    def on_refused(self, reason: str, text: str, now: float) -> list[Action]:
        """Fail the job before its start: something that every member needs is missing."""
        self._condition("Created", now)
        return self._fail("Failed", now, reason=reason, text=text)

    # Time.

    def clock_was_set(self, by: float) -> None:
        """The clock by which this is told the time was set by so many seconds."""

        def moved(at: float | None) -> float | None:
            return None if at is None else at + by

        for state in self.members.values():
            state.started, state.ended = moved(state.started), moved(state.ended)
            state.due, state.kill_at = moved(state.due), moved(state.kill_at)
        marks = self.marks
        marks.created += by
        marks.admitted, marks.scheduled, marks.met = map(moved, (marks.admitted, marks.scheduled, marks.met))
        marks.stepped, marks.finished = moved(marks.stepped), moved(marks.finished)
        self.started, self.finished = moved(self.started), moved(self.finished)
        self.settle_until, self.verdict_at = moved(self.settle_until), moved(self.verdict_at)
        self.gang_due += by

    def tick(self, now: float) -> list[Action]:
        """The actions that are due: restarts, kills after the grace, deadline, clocks, ttl."""
        actions: list[Action] = []
        for state in self.members.values():
            if state.kill_at is not None and now >= state.kill_at:
                state.kill_at = now + 1.0
                actions.append(Kill(state.member))
            if state.due is not None and now >= state.due and not state.alive and not self._is_ending:
                actions.append(self._spawn(state))
        if self.settle_until is not None and now >= self.settle_until:
            actions += self._end_all(now)
        if not self._is_ending and self.verdict_at is not None and now >= self.verdict_at:
            self.owed_restarts.clear()
            actions += self._fail_if_used_up(now)
        if not self._is_ending:
            actions += self._fail_if_late(now)
        if self._ttl_due(now):
            self.removed = True
            actions += [*self._end_all(now), Remove()]
        return actions

    def _fail_if_late(self, now: float) -> list[Action]:
        policy = self.rules.policy
        if policy.deadline is not None and self.started is not None and now - self.started >= policy.deadline:
            return self._fail("Deadline", now)
        phase = self.phase()
        limit, spent = policy.clocks.get(phase), self.phases(now).get(phase)
        if limit is not None and spent is not None and spent >= limit:
            late = f"its phase {phase} took longer than its clock of {limit:g} s"
            late += "; the script reported no step (allaboard.inside.report)" if phase == "first_step" else ""
            text = f"Job {self.layout.run} has failed because {late}"
            return self._fail("Deadline", now, reason="ClockExceeded", text=text)
        return []

    def _ttl_due(self, now: float) -> bool:
        ttl = self.rules.policy.ttl
        return (
            ttl is not None and self.finished is not None and not self.removed and now - self.finished >= ttl
        )

    def due(self) -> float | None:
        """The next time at which `tick` has something to do, if known."""
        times = [
            t
            for o in self.members.values()
            for t in (o.due if not o.alive else None, o.kill_at)
            if t is not None
        ]
        if self.settle_until is not None:
            times.append(self.settle_until)
        policy = self.rules.policy
        if not self._is_ending:
            if self.verdict_at is not None:
                times.append(self.verdict_at)
            if policy.deadline is not None and self.started is not None:
                times.append(self.started + policy.deadline)
            limit, since = policy.clocks.get(self.phase()), self._phase_since()
            if limit is not None and since is not None:
                times.append(since + limit)
        elif policy.ttl is not None and self.finished is not None and not self.removed:
            times.append(self.finished + policy.ttl)
        return min(times, default=None)

    # What is seen.

    def phase(self) -> str:
        """The current phase: the first whose end was not seen, without those that cannot be seen here."""
        marks = self.marks
        if marks.admitted is None:
            return "admitted"
        if marks.scheduled is None:
            return "scheduled"
        if marks.stepped is not None:
            return "training"
        if marks.met is None and self.meets:
            return "rendezvous"
        return "first_step"

    def _phase_since(self) -> float | None:
        marks = self.marks
        return {
            "admitted": marks.created if self.has_asked_for_slots else None,
            "scheduled": marks.admitted,
            "rendezvous": marks.scheduled,
            "first_step": marks.met if marks.met is not None else marks.scheduled,
            "training": marks.stepped,
        }[self.phase()]

    def phases(self, now: float) -> dict[str, float | None]:
        """Seconds in each phase, including the current one; None: not seen. There is no image phase on one
        machine.
        """
        marks = self.marks
        end = marks.finished if marks.finished is not None else now
        seconds: dict[str, float | None] = dict.fromkeys(PHASES)

        def spent(phase: str, since: float | None, until: float | None) -> None:
            if since is not None and until is not None:
                seconds[phase] = max(0.0, until - since)

        spent("admitted", marks.created, marks.admitted)
        spent("scheduled", marks.admitted, marks.scheduled)
        spent("rendezvous", marks.scheduled, marks.met)
        spent("first_step", marks.met if marks.met is not None else marks.scheduled, marks.stepped)
        spent("training", marks.stepped, end)
        on = self.phase()
        if seconds[on] is None and marks.finished is None:
            spent(on, self._phase_since(), now)
        return seconds

    def seen(self, log_of: Mapping[str, str]) -> tuple[MemberSeen, ...]:
        """The members, in rank order."""
        return tuple(
            MemberSeen(
                group=o.member.group,
                index=o.member.index,
                rank=o.member.rank,
                phase=o.phase,
                exit_code=o.exit_code,
                restarts=o.restarts,
                log=log_of.get(o.member.name),
                reason=o.reason,
                started=o.started,
                ended=o.ended,
            )
            for o in self.members.values()
        )

    # Words.

    def _object(self, state: _MemberState) -> str:
        return f"default.{self.layout.name}-{state.member.name}"

    def _message(self, condition: str, role: str = "", count: int = 0) -> str:
        master = self.layout.group("master") is not None
        return self.engine.message(condition, self.layout.name, master=master, role=role, count=count)

    def _condition(
        self,
        kind: str,
        now: float,
        *,
        role: str = "",
        count: int = 0,
        how: str | None = None,
        reason: str | None = None,
        text: str | None = None,
    ) -> None:
        reason = reason or self.engine.reason(how or kind, self.layout)
        if reason is None:
            return
        text = text or self._message(how or kind, role, count)
        before = self.conditions
        self.conditions = self.engine.with_condition(before, Condition(kind, "True", reason, text, now))
        if self.conditions != before:
            self._event(
                "Warning" if kind in ("Failed", "Restarting") else "Normal",
                reason,
                self.layout.run,
                text,
                now,
            )

    def _unset_running(self, now: float) -> None:
        """No member runs any more, though the job has not ended."""
        if self._has_condition("Running"):
            reason = self.engine.reason("Suspended", self.layout) or "Suspended"
            ended = Condition("Running", "False", reason, self._message("Suspended"), now)
            self.conditions = self.engine.with_condition(self.conditions, ended)

    def _event(self, kind: str, reason: str, about: str, text: str, now: float) -> None:
        # A member is heard of once all its processes are gone, with the time at which its first one ended.
        before = self.events[-1].time if self.events else None
        self.events.append(Event(max(now, before or now), kind, reason, about, text))


def _delay(restarts: int) -> float:
    """Seconds before a restart, by how many there were."""
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (restarts - 1))

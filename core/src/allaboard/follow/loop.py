"""Following a run to its end: one conversation, two small drivers, one blocking and one async.

`follow` decides and never waits itself: it asks to `Observe`, to `Wait` until something changed, to
`Enforce` a limit that nobody else keeps, to `Launch` the next attempt, and returns the `Outcome`. No clock,
no client, no sleep is in it; a test plays the other side with a list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

from allaboard.diagnosis import Diagnosis, diagnose
from allaboard.errors import AllaboardError, BackendUnreachable, ExitCode
from allaboard.follow.restart import Refusal, may_restart
from allaboard.observation import Observation, State
from allaboard.status import EXIT_CODES, state_of, summary
from allaboard.units import show_seconds


@dataclass(frozen=True, slots=True)
class FollowPolicy:
    """``poll``: seconds between looks when nothing wakes us; each backend has its own. ``unreachable``: how
    many looks in a row may go unanswered. ``attempts``: of the whole job. ``starting``: seconds between
    looks, at most, at a run that does not train yet: what keeps it from starting may wake nobody.
    """

    poll: float = 1.0
    attempts: int = 1
    unreachable: int = 60
    starting: float = 6.0


@dataclass(frozen=True, slots=True)
class Observe:
    """Look. The answer is an Observation, or a BackendUnreachable."""

    evidence: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Until something changed, ``seconds`` at most."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Enforce:
    """A limit has passed that whoever follows has to keep. Only who owns the run acts; the answer is None."""

    why: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Start this attempt. The answer is None, or the error for which it could not be started."""

    attempt: int
    why: str


Effect = Observe | Wait | Enforce | Launch
Answer = Observation | AllaboardError | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, and why. ``summary`` is the JSON of ``status``."""

    seen: Observation
    diagnoses: tuple[Diagnosis, ...] = ()
    note: str = ""

    @property
    def state(self) -> State:
        return state_of(self.seen)

    @property
    def run(self) -> str:
        return self.seen.run

    @property
    def ok(self) -> bool:
        return self.state is State.SUCCEEDED

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODES.get(self.state, ExitCode.FAILED)

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(self.summary["metrics"])

    @property
    def summary(self) -> dict[str, Any]:
        return summary(self.seen, self.diagnoses)

    @property
    def message(self) -> str:
        """One sentence for people: what ended how, and the reason."""
        took = None
        if self.seen.finished is not None and self.seen.started is not None:
            took = self.seen.finished - self.seen.started
        words = f"run {self.run} {_ENDINGS.get(self.state, str(self.state))}"
        words += f" after {show_seconds(took)}" if took is not None else ""
        stop = self.seen.stop
        if self.state is State.STOPPED and stop is not None:
            words += f" by {stop.by}: {stop.reason}"
        elif self.state is State.STOPPED and self.seen.notes:
            words += f": {self.seen.notes[-1]}"
        elif not self.ok and self.diagnoses:
            words += f": {self.diagnoses[0].summary}"
        return words + (f" ({self.note})" if self.note else "")


_ENDINGS = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.STOPPED: "was stopped",
    State.TIMED_OUT: "ran out of time",
    State.LOST: "was lost",
}


NOT_YET = frozenset({State.QUEUED, State.STARTING, State.RESTARTING, State.UNKNOWN})
"""States in which whoever follows wants to know why it goes no further."""


def follow(policy: FollowPolicy) -> Generator[Effect, Answer, Outcome]:
    """The conversation. Raises the last `BackendUnreachable` when the backend did not answer for too long:
    the run itself is untouched then.
    """
    silent = 0
    while True:
        seen = yield Observe()
        if isinstance(seen, BackendUnreachable):
            silent += 1
            if silent >= policy.unreachable:
                raise seen
            yield Wait(min(30.0, policy.poll * 2 ** min(silent, 5)))
            continue
        assert isinstance(seen, Observation)
        silent = 0
        if not state_of(seen).is_final:
            limit = seen.limit
            if limit is not None and limit.left <= 0:
                yield Enforce(limit.why)
                limit = None
            pause = min(policy.poll, policy.starting) if state_of(seen) in NOT_YET else policy.poll
            yield Wait(pause if limit is None else min(pause, max(1.0, limit.left)))
            continue
        closer = yield Observe(evidence=True)
        last = closer if isinstance(closer, Observation) and state_of(closer).is_final else seen
        diagnoses = diagnose(last)
        decision = may_restart(policy.attempts, last.attempt, state_of(last), diagnoses)
        if isinstance(decision, Refusal):
            note = (
                decision.reason
                if policy.attempts > 1 and state_of(last) in (State.FAILED, State.LOST)
                else ""
            )
            return Outcome(last, diagnoses, note)
        refused = yield Launch(decision.attempt, diagnoses[0].summary if diagnoses else "lost")
        if isinstance(refused, AllaboardError):
            # How the run ended is how its last attempt did; this is why there is no other.
            return Outcome(last, diagnoses, f"attempt {decision.attempt} could not start: {refused}")


def run_sync(operation: Generator[Effect, Answer, Outcome], answer: Callable[[Effect], Answer]) -> Outcome:
    """The blocking driver: ``answer`` carries out what is asked."""
    reply: Answer = None
    while True:
        step = _next_effect(operation, reply)
        if isinstance(step, Outcome):
            return step
        reply = answer(step)


async def run_async(
    operation: Generator[Effect, Answer, Outcome], answer: Callable[[Effect], Awaitable[Answer]]
) -> Outcome:
    """The async driver of the same conversation."""
    reply: Answer = None
    while True:
        step = _next_effect(operation, reply)
        if isinstance(step, Outcome):
            return step
        reply = await answer(step)


def _next_effect(operation: Generator[Effect, Answer, Outcome], reply: Answer) -> Effect | Outcome:
    """What is asked next, or the outcome. Apart from `answer`, whose own StopIteration must not look like the
    end.
    """
    try:
        return operation.send(reply)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome

"""Follows a run to its end: one generator of effects, and two small drivers, blocking and async.

`follow` decides and never waits itself. It yields effects: `Observe`, `Wait` until something changed,
`Enforce` a limit that only the client enforces, `Launch` the next attempt. It returns the `Outcome`. It uses
no clock, client or sleep; a test answers its effects from a list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

from allaboard.diagnosis import Diagnosis, diagnose
from allaboard.errors import AllaboardError, BackendUnreachable, ExitCode
from allaboard.follow.restart import Refusal, may_restart
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import DOUBTFUL, EXIT_CODES, state_of, summary
from allaboard.text.units import show_seconds


@dataclass(frozen=True, slots=True)
class FollowPolicy:
    """``poll``: seconds between observations without a wake-up; each backend has its own. ``unreachable``:
    how many observations in a row may fail. ``attempts``: of the whole job; ``interruptions``: how many of
    them need not count (`allaboard.follow.restart`). ``starting``: the longest time in seconds between
    observations of a run that does not train yet, because an obstacle may cause no wake-up.
    """

    poll: float = 1.0
    attempts: int = 1
    unreachable: int = 60
    starting: float = 6.0
    interruptions: int = 0


@dataclass(frozen=True, slots=True)
class Observe:
    """Observe the run. The answer is an Observation or a BackendUnreachable."""

    evidence: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until something changed, ``seconds`` at most."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Enforce:
    """Enforce a limit that has passed. Only the owner of the run acts; the answer is None."""

    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Start this attempt. ``interrupted``: the one before was, and does not count. The answer is None, or
    the error that prevented the start.
    """

    attempt: int
    reason: str
    interrupted: bool = False


Effect = Observe | Wait | Enforce | Launch
Answer = Observation | AllaboardError | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a run, and its reason.

    ``seen``: the last observation; ``diagnoses``: the causes of a failure, the first one first, empty for a
    success; ``note``: a sentence about the end, such as why no further attempt was started.
    """

    seen: Observation
    diagnoses: tuple[Diagnosis, ...] = ()
    note: str = ""

    @property
    def state(self) -> State:
        """The state that the run ended in."""
        return state_of(self.seen)

    @property
    def run(self) -> str:
        """The run's name, ``digits-1f0c9a77``."""
        return self.seen.run

    @property
    def ok(self) -> bool:
        """True if the run succeeded."""
        return self.state is State.SUCCEEDED

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of ``allaboard run`` for this outcome."""
        return EXIT_CODES.get(self.state, ExitCode.FAILED)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics that the run reported last, by name; None stands for a number that is not finite."""
        return dict(self.summary["metrics"])

    @property
    def summary(self) -> dict[str, Any]:
        """The run as ``allaboard status --json`` prints it."""
        return summary(self.seen, self.diagnoses)

    @property
    def message(self) -> str:
        """One sentence for people: how the run ended, and why."""
        took = None
        if self.seen.finished is not None and self.seen.started is not None:
            took = self.seen.finished - self.seen.started
        text = f"run {self.run} {_ENDINGS.get(self.state, str(self.state))}"
        text += f" after {show_seconds(took)}" if took is not None else ""
        stop = self.seen.stop
        if self.state is State.STOPPED and stop is not None:
            text += f" by {stop.by}: {stop.reason}"
        elif self.state is State.STOPPED and self.seen.notes:
            text += f": {self.seen.notes[-1]}"
        elif not self.ok and self.diagnoses:
            text += f": {self.diagnoses[0].summary}"
        elif doubt := next((d for d in self.diagnoses if d.code == DOUBTFUL), None):
            text += f", which is doubtful: {doubt.summary}"
        return text + (f" ({self.note})" if self.note else "")


_ENDINGS = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.STOPPED: "was stopped",
    State.TIMED_OUT: "ran out of time",
    State.LOST: "was lost",
}


NOT_YET = frozenset({State.QUEUED, State.STARTING, State.RESTARTING, State.UNKNOWN})
"""States in which a follower shows why the run makes no progress."""


def follow(policy: FollowPolicy) -> Generator[Effect, Answer, Outcome]:
    """Yield effects until the run ends. Raises the last `BackendUnreachable` when the backend did not answer
    for too long; the run itself is untouched then.
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
        decision = may_restart(
            policy.attempts,
            last.attempt,
            state_of(last),
            diagnoses,
            interruptions=last.interruptions,
            most_interruptions=policy.interruptions,
        )
        if isinstance(decision, Refusal):
            note = (
                decision.reason
                if policy.attempts > 1 and state_of(last) in (State.FAILED, State.LOST)
                else ""
            )
            return Outcome(last, diagnoses, note)
        reason = f"{diagnoses[0].summary if diagnoses else 'lost'} ({decision.reason})"
        refused = yield Launch(decision.attempt, reason, decision.interrupted)
        if isinstance(refused, AllaboardError):
            # The run ended as its last attempt did; this note says why no further attempt starts.
            return Outcome(last, diagnoses, f"attempt {decision.attempt} could not start: {refused}")


def run_sync(operation: Generator[Effect, Answer, Outcome], answer: Callable[[Effect], Answer]) -> Outcome:
    """The blocking driver: ``answer`` carries out an effect."""
    reply: Answer = None
    while True:
        step = _next_effect(operation, reply)
        if isinstance(step, Outcome):
            return step
        reply = answer(step)


async def run_async(
    operation: Generator[Effect, Answer, Outcome], answer: Callable[[Effect], Awaitable[Answer]]
) -> Outcome:
    """The async driver of the same generator."""
    reply: Answer = None
    while True:
        step = _next_effect(operation, reply)
        if isinstance(step, Outcome):
            return step
        reply = await answer(step)


def _next_effect(operation: Generator[Effect, Answer, Outcome], reply: Answer) -> Effect | Outcome:
    """The next effect, or the outcome. Separate from `answer`, whose own StopIteration must not look like the
    end.
    """
    try:
        return operation.send(reply)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome

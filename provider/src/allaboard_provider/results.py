"""An outcome as Airflow needs it: the result in XCom, or the exception and its text. Values in, values
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allaboard.diagnosis.faults import SURE, Fault, fault_of
from allaboard.follow.loop import Outcome
from allaboard.report import phrases
from allaboard.report.commands import Place
from allaboard.runs.observation import PHASES, Observation, State
from allaboard.runs.status import state_of
from allaboard.text.printable import visible
from allaboard.text.redaction import redact_text, redact_texts
from allaboard_provider import errors
from allaboard_provider.errors import (
    ImageTrouble,
    Interrupted,
    NodeLost,
    OutOfMemory,
    Preempted,
    QueueTimedOut,
    RunLost,
    SpecRejected,
    StoppedByPerson,
    TimedOut,
    TrainingBug,
    TrainingFailed,
)
from allaboard_provider.ownership import BY


def failure_text(outcome: Outcome, at: Place, secrets: Iterable[str] = ()) -> str:
    """Message of a failure: the cause, the reason, and what to do. ``at``: the place of the run; ``secrets``:
    the run's.
    """
    stopped = outcome.state is State.STOPPED  # there is nothing to mend
    fix = (
        f"; {at.in_text(outcome.diagnoses[0].fix, outcome.run)}" if outcome.diagnoses and not stopped else ""
    )
    text = f"{outcome.message}{fix}. All logs: {at.command('logs', outcome.run)}"
    return _plain(text, secrets)


def _plain(text: str, secrets: Iterable[str]) -> str:
    return visible(redact_text(text, secrets), newlines=True, tabs=True)


_STOPPED_BY_NO_PERSON = frozenset({"allaboard", "SIGTERM", BY})
_BY_STATE = {State.TIMED_OUT: TimedOut, State.LOST: RunLost}
_BY_CODE = {
    "preempted_by_priority": Preempted,
    "node_lost": NodeLost,
    "spot_or_node_shutdown": NodeLost,
}
_BY_FAULT: dict[Fault, type[TrainingFailed]] = {
    Fault.INTERRUPTION: Interrupted,
    Fault.MEMORY: OutOfMemory,
    Fault.IMAGE: ImageTrouble,
    Fault.JOB: SpecRejected,
    Fault.CODE: TrainingBug,
}


def failure_of(outcome: Outcome, at: Place, text: str, secrets: Iterable[str] = ()) -> TrainingFailed:
    """The exception of a run that did not succeed, by its first diagnosis. ``text``: its words."""
    first = outcome.diagnoses[0] if outcome.diagnoses else None
    if outcome.state is State.STOPPED:
        stop = outcome.seen.stop
        by_person = stop is None or stop.by not in _STOPPED_BY_NO_PERSON
        kind: type[TrainingFailed] = StoppedByPerson if by_person else TrainingFailed
        return kind(text, summary=_plain(outcome.message, secrets), run=outcome.run, retryable=not by_person)
    in_queue = outcome.state is State.TIMED_OUT and _never_got_a_place(outcome.seen)
    by_state = QueueTimedOut if in_queue else _BY_STATE.get(outcome.state)
    if first is None:
        return (by_state or TrainingFailed)(text, run=outcome.run, retryable=in_queue)
    sure = first.confidence >= SURE
    by_cause = _BY_CODE.get(first.code) or _BY_FAULT.get(fault_of(first.code), TrainingFailed)
    return (by_state or (by_cause if sure else TrainingFailed))(
        text,
        code=first.code,
        summary=_plain(first.summary, secrets),
        fields=_FIELDS.get(by_state or TrainingFailed, ()),
        fix=_plain(at.in_text(first.fix, outcome.run), secrets),
        # A queue may be shorter another time.
        retryable=first.retryable or in_queue,
        run=outcome.run,
        sure=sure and first.code != "unknown",
    )


_FIELDS: dict[type[TrainingFailed], tuple[str, ...]] = {
    TimedOut: ("policy.deadline", "policy.clocks"),
    QueueTimedOut: ("policy.clocks.admitted", "gang.timeout"),
}
"""Fields of a job that limit its time."""


def _never_got_a_place(seen: Observation) -> bool:
    """Return whether a run has ended in its queue."""
    return seen.started is None and not any(seen.phases.get(phase) for phase in PHASES[1:])


def result_of(outcome: Outcome, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """The result in XCom: ``status --json`` (core/docs/contract.md, Status object) without members and
    without ``secrets``, those of the run.
    """
    summary = {name: value for name, value in outcome.summary.items() if name != "members"}
    return dict(redact_texts(summary, secrets))


def end_of(
    outcome: Outcome, at: Place, secrets: Iterable[str] = (), text: str | None = None
) -> dict[str, Any]:
    """End of a run, for a worker that cannot look at it: plain JSON without secrets. ``result``: as
    `result_of`, of a run that succeeded; ``error``: the exception of its task otherwise, with ``text`` or
    `failure_text`.
    """
    known = tuple(secrets)
    if outcome.ok:
        return {"state": str(outcome.state), "result": result_of(outcome, known), "error": None}
    text = failure_text(outcome, at, known) if text is None else _plain(text, known)
    error = failure_of(outcome, at, text, known)
    fields = {"kind": type(error).__name__, "text": str(error), **vars(error)}
    return {"state": str(outcome.state), "result": None, "error": fields}


_FIELDS_OF_ERROR = {
    "code": str,
    "summary": str,
    "fix": str,
    "retryable": bool,
    "run": str,
    "sure": bool,
    "fields": list,
}
"""Fields of an exception beside its text."""


def read_end(value: Any) -> tuple[str, dict[str, Any] | None, TrainingFailed | None] | None:
    """The state, the result and the error of an `end_of`; None for anything else."""
    if not isinstance(value, Mapping) or not isinstance(value.get("state"), str):
        return None
    if isinstance(result := value.get("result"), Mapping):
        return value["state"], dict(result), None
    error = value.get("error")
    if not isinstance(error, Mapping):
        return value["state"], None, None
    kind = getattr(errors, str(error.get("kind")), TrainingFailed)
    if not (isinstance(kind, type) and issubclass(kind, TrainingFailed)):
        kind = TrainingFailed
    fields = {name: error[name] for name, of in _FIELDS_OF_ERROR.items() if isinstance(error.get(name), of)}
    return value["state"], None, kind(str(error.get("text", "")), **fields)


def observation_text(seen: Observation) -> str:
    """``digits-1f0c9a77 running, step 120/400``."""
    step = phrases.step_phrase(seen.progress.step, seen.progress.total)
    return ", ".join(filter(None, [f"{seen.run} {state_of(seen)}", step]))

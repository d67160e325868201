"""An outcome as Airflow needs it: the result in XCom, the text of a failure, and whether to try again. Values
in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allaboard.follow.loop import Outcome
from allaboard.observation import Observation, State
from allaboard.printable import visible
from allaboard.redaction import redact_text, redact_texts
from allaboard.status import state_of
from allaboard_provider.ownership import BY


def failure_text(outcome: Outcome, options: str = "", secrets: Iterable[str] = ()) -> str:
    """What failed, why, and what to do. ``options``: of the command line that finds the run; ``secrets``: the
    run's.
    """
    stopped = outcome.state is State.STOPPED  # there is nothing to mend
    fix = f"; {outcome.diagnoses[0].fix}" if outcome.diagnoses and not stopped else ""
    words = f"{outcome.message}{fix}. All logs: allaboard logs {outcome.run}{options}"
    return visible(redact_text(words, secrets), newlines=True, tabs=True)


#: Only a change of the job makes these end differently. Everything else is tried again as often as the task's
#: `retries` says: a script may have raised because of a passing trouble, and the next try resumes.
HOPELESS = frozenset({"bad_entrypoint", "world_size_mismatch", "checkpoint_mismatch"})
_STOPPED_BY_NO_PERSON = frozenset({"allaboard", "SIGTERM", BY})


def is_hopeless(outcome: Outcome) -> bool:
    """Whether another try is pointless, or against the will of the person who stopped the run."""
    if outcome.state is State.STOPPED:
        stop = outcome.seen.stop
        return stop is None or stop.by not in _STOPPED_BY_NO_PERSON
    return bool(outcome.diagnoses) and outcome.diagnoses[0].code in HOPELESS


def result_of(outcome: Outcome, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """The result in XCom: ``status --json`` without members (contract, section 4) and without ``secrets``,
    those of the run.
    """
    summary = {name: value for name, value in outcome.summary.items() if name != "members"}
    return dict(redact_texts(summary, secrets))


def observation_words(seen: Observation) -> str:
    """``digits-1f0c9a77 running, step 120/400``."""
    step = seen.progress.step
    return f"{seen.run} {state_of(seen)}" + (f", step {step}" if step is not None else "")

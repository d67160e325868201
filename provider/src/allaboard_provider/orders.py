"""Evidence in Airflow's states for a person's order to end a task whose run nobody seems to follow.

A task that hands over between a worker and a trigger passes through states that a clear passes through, too.
Such a state proves nothing: an order that it may stand for reaches the run by other ways (the next try stops
the run of the try before it), and a healthy run that was stopped is lost.

| state of the task | what it proves |
|---|---|
| failed, success, skipped, removed, upstream_failed | the task is over: stop |
| restarting | a person cleared it while a worker had it: stop |
| up_for_retry | this try is over, and no worker resumes it: stop |
| deferred | a trigger waits, here or in another triggerer |
| scheduled, queued, running | a resume is on its way or has begun; or a new try, which stops what is left |
| none | cleared, and the new try stops what is left; or a scheduler reset what another one had queued |
| awaiting_input, up_for_reschedule, words of a newer Airflow | nothing |

In each state that proves nothing, a DAG run that is over proves an order: Airflow begins no task of it.
"""

from __future__ import annotations

_OVER = {
    "failed": "the task was marked failed while deferred",
    "success": "the task was marked success while deferred",
    "skipped": "the task was skipped while deferred",
    "removed": "the task was removed from its DAG while deferred",
    "upstream_failed": "a task before this one failed while it was deferred",
    "restarting": "the task was cleared",
    "up_for_retry": "the try that deferred it is over",
}
_DAG_RUN_OVER = ("failed", "success")


def proves_an_order(state: str | None) -> bool:
    """Return whether the state of the task alone proves an order."""
    return state in _OVER


def why_stop(state: str | None, dag_run_state: str | None = None) -> str | None:
    """Reason for which the run of a deferred task must stop; None: no state proves an order."""
    if proves_an_order(state):
        return _OVER[str(state)]
    if dag_run_state in _DAG_RUN_OVER:
        return f"its DAG run was marked {dag_run_state} while the task was deferred"
    return None

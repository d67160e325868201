"""The exceptions of a task, and allaboard's errors as Airflow's.

What a training, its input or its place fails with is a `TrainingFailed`: a run that did not succeed by its
first diagnosis, and what prevented a run by who must act. So callbacks can page somebody from
``context["exception"]`` alone, and retry policies can tell a bug from a preemption:

    TrainingFailed              anything else: hardware, network, storage, a cause that is not known
    ├── TrainingBug             the user's code or data
    ├── OutOfMemory             of the host or the GPU
    ├── ImageTrouble            the image cannot be pulled
    ├── SpecRejected            a job, a file or a template: only another one ends differently; never retried
    ├── Interrupted             the members were taken away: evicted, drained
    │   ├── Preempted           ... for somebody of higher priority
    │   └── NodeLost            ... with their node, spot capacity included
    ├── RunLost                 what ran it is gone without a word
    ├── TimedOut                a deadline or clock of the job
    │   ├── QueueTimedOut       ... of its queue: the run got no place in time
    │   └── TaskTimedOut        ... of the task: its execution_timeout
    ├── PlaceFailed             the place refused or did not answer: cluster, store, connection
    ├── StoppedByPerson         never retried
    └── RunTakenOver            another try follows the run now; never retried

`SpecRejected`, `StoppedByPerson` and `RunTakenOver` are Airflow's `AirflowFailException`, which no retry
repeats; `TaskTimedOut` is its `AirflowTaskTimeout`. The table in provider/README.md says which of them
Airflow retries, with a retry policy and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jinja2

from allaboard.errors import AllaboardError, BackendUnreachable, BadInput, StorageUnreachable
from allaboard_provider.compat import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferralTimeout,
)
from allaboard_provider.masking import hidden


class TrainingFailed(AirflowException):
    """A run did not succeed, or did not begin. ``str`` is the text for people: which run, what failed, and
    what to do.

    ``run``: the run's name; ``dag/DAG run/task`` where the job's name is not known, and empty for a task
    without a run. ``code``: the
    id of the first diagnosis (`allaboard doctor --causes`), or of the error (``bad_input``), empty without
    one; ``summary``: its sentence; ``fields``: what of the job, or of the task, is to be changed
    (``policy.deadline``); ``fix``: what to do, in a sentence; ``retryable``: the same job, unchanged, may
    succeed later; ``sure``: whether the cause is known well enough to decide about a retry.
    """

    def __init__(
        self,
        text: str = "",
        *,
        code: str = "",
        summary: str = "",
        fields: Iterable[str] = (),
        fix: str = "",
        retryable: bool = False,
        run: str = "",
        sure: bool = False,
    ) -> None:
        super().__init__(text)
        self.code, self.summary, self.fields, self.fix = code, summary, list(fields), fix
        self.retryable, self.run, self.sure = retryable, run, sure

    def serialize(self) -> tuple[str, tuple[str], dict[str, Any]]:
        """As Airflow serialises exceptions: the class, its arguments, its keywords."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", (str(self),), dict(self.__dict__)


class TrainingBug(TrainingFailed):
    """The user's code or data failed."""


class OutOfMemory(TrainingFailed):
    """A member had too little memory, of the host or of the GPU."""


class ImageTrouble(TrainingFailed):
    """An image cannot be pulled."""


class SpecRejected(TrainingFailed, AirflowFailException):
    """Input of the task that cannot run as it is written: a job, a file, a template, a field of a task."""


class Interrupted(TrainingFailed):
    """The place took members away: an eviction, a drain. The job did nothing wrong."""


class Preempted(Interrupted):
    """Members made room for somebody of higher priority."""


class NodeLost(Interrupted):
    """A node went away with its members."""


class RunLost(TrainingFailed):
    """The supervisor or the job object of the run is gone without a trace."""


class TimedOut(TrainingFailed):
    """A deadline or a clock of the job has passed."""


class QueueTimedOut(TimedOut):
    """A run got no place in its queue in time: ``clocks.admitted`` or ``gang.timeout`` of the job."""


class TaskTimedOut(TimedOut, AirflowTaskTimeout):
    """The ``execution_timeout`` of the task has passed, and its run is stopped."""


class PlaceFailed(TrainingFailed):
    """The place refused or did not answer: a cluster, a store, a connection, Airflow itself."""


class StoppedByPerson(TrainingFailed, AirflowFailException):
    """A person stopped the run, or deleted its job."""


class RunTakenOver(TrainingFailed, AirflowFailException):
    """Another try of the task, or somebody else, follows the run now: this try has no say in it any more."""


Run = Callable[[], str]
"""Gives the name or the key of the run that a task is about."""
_PASSES = (BackendUnreachable, StorageUnreachable)
_OF_A_TEMPLATE = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
"""Exceptions that the author of a template can mend; any other one comes from a call in it."""


@contextmanager
def airflow_errors(run: Run = str) -> Iterator[None]:
    """Turn errors of the core into exceptions of Airflow. ``run``: empty for a task without a run."""
    try:
        yield
    except BadInput as error:
        raise rejected(error, run()) from None
    except AllaboardError as error:
        name, text = run(), hidden(error)
        raise PlaceFailed(
            _about(name, text),
            code=error.code,
            summary=text,
            fix="repair the place that is named, or wait for it; a next try continues from here",
            run=name,
            retryable=isinstance(error, _PASSES),
        ) from error


def rejected(error: BadInput, run: str) -> SpecRejected:
    """The exception of input that is wrong."""
    problems = [problem for problem in error.problems if problem.severity == "error"]
    first = hidden(problems[0]) if problems else ""
    return SpecRejected(
        _about(run, hidden(error)),
        code=error.code,
        summary=" ".join((hidden(error.headline), first)).strip(),
        fields=[problem.path for problem in problems if problem.path],
        fix="correct the input that is named, and clear the task",
        run=run,
        sure=True,
    )


@contextmanager
def naming_field(field: str, run: Run) -> Iterator[None]:
    """Turn what rendering a template raises into an exception that names its field."""
    try:
        yield
    except TrainingFailed:
        raise
    except _OF_A_TEMPLATE as error:
        undefined = isinstance(error, jinja2.UndefinedError)
        trouble = "uses an undefined name" if undefined else f"cannot be rendered ({type(error).__name__})"
        summary = f"{field}: its template {trouble}: {hidden(error)}"
        fix = (
            "define it (params, conf, XCom), or give it a default: {{ params.x | default(1) }}"
            if undefined
            else "correct the template; put text that Jinja must not read into {% raw %} and {% endraw %}"
        )
        name = run()
        raise SpecRejected(
            _about(name, f"{summary}; {fix}"),
            code="template_undefined" if undefined else "template_error",
            summary=summary,
            fields=[field],
            fix=fix,
            run=name,
            sure=True,
        ) from error
    except Exception as error:
        name, summary = run(), f"{field}: its template reads a value that does not exist: {hidden(error)}"
        fix = "create the connection or Variable that it names, or check Airflow's own API server"
        raise PlaceFailed(
            _about(name, f"{summary}; {fix}"),
            code="template_source",
            summary=summary,
            fields=[field],
            fix=fix,
            run=name,
        ) from error


def task_timed_out(limit: object, run: str) -> TaskTimedOut:
    """The exception of a task whose execution_timeout, ``limit``, has passed."""
    summary = f"the task's execution_timeout of {limit} has passed"
    fix = (
        "raise execution_timeout, which counts the time in a queue, too; policy.deadline limits the training "
        "alone"
    )
    return TaskTimedOut(
        _about(run, f"{summary}, and its run is stopped; {fix}"),
        code="execution_timeout",
        summary=summary,
        fields=["execution_timeout"],
        fix=fix,
        run=run,
        sure=True,
    )


def wait_timed_out(limit: object) -> TaskTimedOut:
    """The exception of a sensor whose execution_timeout, ``limit``, has passed."""
    summary = f"the task's execution_timeout of {limit} has passed, and what it waits for is not there"
    fix = "raise execution_timeout, which counts from the start of the try, time in the triggerer included"
    return TaskTimedOut(
        f"{summary}; {fix}",
        code="execution_timeout",
        summary=summary,
        fields=["execution_timeout"],
        fix=fix,
        sure=True,
    )


def taken_over(run: str, reason: str) -> RunTakenOver:
    """The exception of a try whose run another one follows. ``reason``: a sentence."""
    reason = hidden(reason)
    fix = (
        "no action is needed if the task was cleared; otherwise `allaboard status` names the owner of the run"
    )
    return RunTakenOver(
        _about(run, f"{reason}; {fix}"), code="taken_over", summary=reason, fix=fix, run=run, sure=True
    )


def worker_ended(run: str, reason: str) -> TrainingFailed:
    """The exception of a try whose worker was asked to end. ``reason``: a sentence, with the fate of the
    run.
    """
    fix = "look at who ended the worker: a restart, a drained node, a time limit, or a person"
    return TrainingFailed(
        _about(run, reason), code="worker_ended", summary=reason, fix=fix, run=run, retryable=True, sure=True
    )


def deferral_failed(error: Exception, limit: object, run: str) -> TrainingFailed:
    """The exception of a deferral that ended without an event."""
    if isinstance(error, TaskDeferralTimeout):
        return task_timed_out(limit, run)
    text = f"the trigger of this task failed: {hidden(error)}"
    fix = "look at the triggerer's log; another try starts the run again from its newest checkpoint"
    return PlaceFailed(
        _about(run, f"{text}; {fix}"), code="trigger_failed", summary=text, fix=fix, run=run, retryable=True
    )


def _about(run: str, text: str) -> str:
    return text if not run or run in text else f"run {run}: {text}"

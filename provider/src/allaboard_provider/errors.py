"""The exceptions of a task, and allaboard's errors as Airflow's.

A run that did not succeed raises a `TrainingFailed` by its first diagnosis, so that callbacks and retry
policies can tell a bug from a preemption:

    TrainingFailed              anything else: hardware, network, storage, a cause that is not known
    ├── TrainingBug             the user's code or data
    ├── OutOfMemory             of the host or the GPU
    ├── ImageTrouble            the image cannot be pulled
    ├── SpecRejected            only another job ends differently; Airflow never retries it
    ├── Interrupted             the members were taken away: evicted, drained
    │   ├── Preempted           ... for somebody of higher priority
    │   └── NodeLost            ... with their node, spot capacity included
    ├── RunLost                 what ran it is gone without a word
    ├── TimedOut                a deadline or clock of the job
    └── StoppedByPerson         Airflow never retries it

Bad input is the author's to fix and becomes `AirflowFailException`, which no retry repeats. Every other error
may pass and becomes `AirflowException`, which Airflow retries as often as the task says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from allaboard.errors import AllaboardError, BadInput


class TrainingFailed(AirflowException):
    """A run did not succeed. ``str`` is the text for people.

    ``code``: the id of the first diagnosis (`allaboard doctor --causes`), empty without one; ``summary``: its
    sentence; ``retryable``: the same job, unchanged, may succeed later; ``run``: the run's name; ``sure``:
    whether the cause is known well enough to decide about a retry.
    """

    def __init__(
        self,
        text: str = "",
        *,
        code: str = "",
        summary: str = "",
        retryable: bool = False,
        run: str = "",
        sure: bool = False,
    ) -> None:
        super().__init__(text)
        self.code, self.summary, self.retryable = code, summary, retryable
        self.run, self.sure = run, sure

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
    """The job cannot run as it is written."""


class Interrupted(TrainingFailed):
    """The place took members away: an eviction, a drain. The job did nothing wrong."""


class Preempted(Interrupted):
    """Members made room for somebody of higher priority."""


class NodeLost(Interrupted):
    """A node went away with its members."""


class RunLost(TrainingFailed):
    """What ran the run is gone without a word."""


class TimedOut(TrainingFailed):
    """A deadline or a clock of the job has passed."""


class StoppedByPerson(TrainingFailed, AirflowFailException):
    """A person stopped the run, or deleted its job."""


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn errors of the core into exceptions of Airflow."""
    try:
        yield
    except BadInput as error:
        raise AirflowFailException(str(error)) from None
    except AllaboardError as error:
        raise AirflowException(str(error)) from error

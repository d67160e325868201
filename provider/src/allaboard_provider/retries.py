"""`TrainingRetryPolicy`: whether Airflow tries a training again, by what the doctor found.

    TrainingJobOperator(task_id="train", job=..., retries=3, retry_policy=TrainingRetryPolicy())

Airflow asks a policy on the worker, with the exception of the try that failed. It counts every try: a policy
can end the retries early and choose the delay, and never has more of them than ``retries``. So an
interruption is answered before Airflow hears of it: the run starts again within the same try, from its newest
checkpoint (`allaboard.follow.restart`), and a policy sees only one that has happened too often.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from allaboard_provider.compat import AirflowFailException
from allaboard_provider.errors import ImageTrouble, Interrupted, PlaceFailed, QueueTimedOut, TrainingFailed

try:
    from allaboard_provider.compat import RetryDecision, RetryPolicy
except ImportError as error:  # Airflow before 3.3
    raise ImportError(
        "TrainingRetryPolicy needs the retry policies of Airflow 3.3, which the installed Airflow does not "
        "have; upgrade Airflow, or leave retry_policy out"
    ) from error

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

FIRST_DELAY = timedelta(minutes=1)
LONGEST_DELAY = timedelta(minutes=30)
_WAITS = (Interrupted, ImageTrouble, QueueTimedOut, PlaceFailed)
"""Exceptions of troubles that pass, but not at once: the next try waits."""


class TrainingRetryPolicy(RetryPolicy):
    """Fails at once what another try would repeat: a bug, too little memory, a job that cannot run. Retries
    what may pass; a place without room, and a registry without an answer, after ``delay``, which doubles with
    each try up to ``longest``; other passing causes after the task's own delay. What is no failure of a
    training, or has no known cause, is left to the task's ``retries``.

    The reason of each decision is in the task's log, and with Airflow's record of the retry.
    """

    def __init__(self, delay: timedelta = FIRST_DELAY, longest: timedelta = LONGEST_DELAY) -> None:
        if delay < timedelta(0) or longest < delay:
            raise ValueError(
                f"delay is {delay} and longest {longest}; a delay is 0 or more, and longest at least as long"
            )
        self.delay, self.longest = delay, longest

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """The decision about one failed try."""
        decision = self._decide(exception, try_number, max_tries)
        if decision.reason:
            # Airflow logs the reason as a field, which not every view of a log shows.
            log.info("retry policy: %s", decision.reason)
        return decision

    def _decide(self, exception: BaseException, try_number: int, max_tries: int) -> RetryDecision:
        if not isinstance(exception, TrainingFailed):
            return RetryDecision.default()
        reason = f"{exception.code or 'no cause known'}: {exception.summary or exception}"
        if exception.retryable:
            if try_number > max_tries:  # Airflow will not, whatever is said here
                return RetryDecision(
                    reason=f"no try is left, although the failure may be temporary ({reason})"
                )
            delay = self._delay(try_number) if isinstance(exception, _WAITS) else None
            return RetryDecision.retry(delay, f"retried, because the failure may be temporary ({reason})")
        if not exception.sure and not isinstance(exception, AirflowFailException):
            return RetryDecision(
                reason=f"left to the task's retries, because the cause is uncertain ({reason})"
            )
        return RetryDecision.fail(f"not retried, because another try would repeat the failure ({reason})")

    def _delay(self, try_number: int) -> timedelta:
        # The doublings are bounded: a task may be cleared a thousand times.
        grown = self.delay.total_seconds() * 2.0 ** min(max(try_number - 1, 0), 30)
        return timedelta(seconds=min(grown, self.longest.total_seconds()))

    def serialize(self) -> dict[str, Any]:
        """Plain JSON, in seconds."""
        return {
            "__type": "TrainingRetryPolicy",
            "delay": self.delay.total_seconds(),
            "longest": self.longest.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: Mapping[str, Any]) -> TrainingRetryPolicy:
        """The inverse of `serialize`."""
        return cls(timedelta(seconds=data["delay"]), timedelta(seconds=data["longest"]))

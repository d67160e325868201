"""The base of the sensors: they look once on a worker, then wait in the triggerer; or on the worker, where
the triggerer cannot see what they wait for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from allaboard_provider import defaults
from allaboard_provider.compat import AirflowException, AirflowSensorTimeout, AirflowSkipException
from allaboard_provider.errors import airflow_errors, wait_timed_out

if TYPE_CHECKING:
    from airflow.sdk import Context

    from allaboard_provider.hooks.allaboard import AllaboardHook
    from allaboard_provider.triggers.polling import PollTrigger


class Watching(BaseSensorOperator):
    """The base of sensors. ``timeout`` and ``execution_timeout`` count from the start of the try in every
    mode, time in the triggerer and between rescheduled looks included. ``timeout`` fails for good and
    ``execution_timeout`` may be tried again, as Airflow has it; ``mode`` is for a sensor that does not defer.

    :param allaboard_conn_id: the connection that names the place of runs and the store; the default one need
        not exist.
    :param deferrable: wait in the triggerer instead of a worker slot; the default is that of a
        `TrainingJobOperator`.
    :param poke_interval: seconds between two looks, or a timedelta.
    """

    ui_color = "#eef0f6"

    #: Seconds after the trigger's own deadline at which Airflow ends a deferral that no triggerer handles.
    backstop: float = 120.0

    def __init__(
        self,
        *,
        allaboard_conn_id: str | None = "allaboard_default",
        deferrable: bool = defaults.deferrable(),
        poke_interval: float | timedelta = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.allaboard_conn_id = allaboard_conn_id
        self.deferrable = deferrable

    @cached_property
    def hook(self) -> AllaboardHook:
        """The connection."""
        from allaboard_provider.hooks.allaboard import AllaboardHook

        return AllaboardHook(self.allaboard_conn_id)

    def look(self) -> dict[str, Any] | None:
        """The result once it is there, None before. Raises for one that never comes."""
        raise NotImplementedError

    def trigger(self) -> PollTrigger:
        """The trigger that waits; it fires ``{"status": "there"}``, ``timeout``, ``elsewhere`` or
        ``error``.
        """
        raise NotImplementedError

    def poke(self, context: Context) -> PokeReturnValue:
        with self._skipping():
            with airflow_errors():
                result = self.look()
            if result is None:
                left = self._deadline(context) - time.time()
                if left <= 0:
                    self._raise_late()
                # The last look is at the deadline.
                self.poke_interval = min(self.poke_interval, left)
        return PokeReturnValue(result is not None, result)

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        first = self.poke(context)
        if first.is_done:
            return first.xcom_value
        with airflow_errors():
            trigger = self.trigger()
        trigger.deadline = self._deadline(context)
        left = max(0.0, trigger.deadline - time.time())
        limit = timedelta(seconds=left + self.backstop)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=limit)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Look on the worker after the trigger has fired, and return the result."""
        status = event.get("status")
        if status == "timeout":
            last = self.poke(context)
            if last.is_done:
                return last.xcom_value
            with self._skipping():
                self._raise_late()
        if status != "there":
            self.log.info(
                "the triggerer cannot look (%s); this worker does",
                event.get("error") or "it is on another machine",
            )
        # The start of the try is known after a deferral, and is not after a reschedule.
        self.mode = "poke"
        return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Airflow's way back from a deferral, also from one whose trigger timed out or died."""
        if next_method == "__fail__":
            error = str((next_kwargs or {}).get("error", "Unknown"))
            status = "timeout" if error == "Trigger timeout" else "error"
            next_method, next_kwargs = "execute_complete", {"event": {"status": status, "error": error}}
        return super().resume_execution(next_method, next_kwargs, context)

    def _deadline(self, context: Context) -> float:
        """Time at which this try must end, in epoch seconds."""
        known: Any = context
        ti, begun = known.get("ti"), None
        if ti is not None and self.reschedule and not self.deferrable:
            begun = ti.get_first_reschedule_date(context)
        begun = begun or getattr(ti, "start_date", None)
        return (time.time() if begun is None else begun.timestamp()) + min(self._limits())

    def _limits(self) -> tuple[float, float]:
        """``timeout`` and ``execution_timeout`` in seconds."""
        limit = self.execution_timeout
        return float(self.timeout), math.inf if limit is None else limit.total_seconds()

    def _raise_late(self) -> NoReturn:
        timeout, execution_timeout = self._limits()
        if execution_timeout < timeout:
            raise wait_timed_out(self.execution_timeout)
        from allaboard.text.units import show_seconds

        raise AirflowSensorTimeout(f"the sensor's timeout of {show_seconds(timeout)} has passed")

    @contextmanager
    def _skipping(self) -> Iterator[None]:
        """Skip the task in place of a failure, where it says so. Airflow's own loop skips only for time-outs
        and AirflowFailException, and not at the first look of a sensor that defers.
        """
        try:
            yield
        except AirflowException as error:
            if self.soft_fail or self.never_fail:
                self.log.info("%s", error)  # Airflow's own line says no reason
                raise AirflowSkipException(str(error)) from error
            raise

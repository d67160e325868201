"""The base of the sensors: they look once on a worker, then wait in the triggerer; or on the worker, where
the triggerer cannot see what they wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from allaboard_provider import defaults
from allaboard_provider.compat import AirflowException, AirflowSkipException
from allaboard_provider.errors import airflow_errors

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from allaboard_provider.hooks.allaboard import AllaboardHook


class Watching(BaseSensorOperator):
    """The base of sensors. ``timeout`` counts in every mode.

    :param allaboard_conn_id: the connection that names the place of runs and the store; the default one need
        not exist.
    :param deferrable: wait in the triggerer instead of a worker slot; the default is that of a
        `TrainingJobOperator`.
    :param poke_interval: seconds between two looks, or a timedelta.
    """

    ui_color = "#eef0f6"

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

    def trigger(self) -> BaseTrigger:
        """The trigger that waits; it fires ``{"status": "there"}``, ``elsewhere`` or ``error``."""
        raise NotImplementedError

    def poke(self, context: Context) -> PokeReturnValue:
        try:
            with airflow_errors():
                result = self.look()
        except AirflowException as error:
            # Airflow's own loop skips only for time-outs and AirflowFailException, and not at the first look
            # of a sensor that defers.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        return PokeReturnValue(result is not None, result)

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        first = self.poke(context)
        if first.is_done:
            return first.xcom_value
        with airflow_errors():
            trigger = self.trigger()
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Look on the worker after the trigger has fired, and return the result."""
        if event.get("status") != "there":
            self.log.info(
                "the triggerer cannot look (%s); this worker does",
                event.get("error") or "it is on another machine",
            )
        return super().execute(context)

"""`TrainingJobSensor`: waits for a run that somebody else started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from allaboard_provider.sensors.base import Watching

if TYPE_CHECKING:
    from allaboard_provider.triggers.train import RunTrigger


class TrainingJobSensor(Watching):
    """Succeeds when the run succeeds and returns its status; fails, with the reason, when it ends otherwise.

    :param run: the run's id, a unique prefix of it, or a job's name (its newest run);
    :param key: or the key under which it was started (``allaboard run --key``). A run that is not there yet
        is waited for.

    The run is only watched: nothing here stops, adopts or restarts it. ``soft_fail=True`` skips instead of
    failing.
    """

    template_fields: Sequence[str] = ("run", "key", "allaboard_conn_id")

    def __init__(self, *, run: str | None = None, key: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.key = key

    def look(self) -> dict[str, Any] | None:
        from airflow.sdk.exceptions import AirflowException

        from allaboard.diagnose import diagnose
        from allaboard.errors import BadInput
        from allaboard.follow import Outcome
        from allaboard.status import state_of
        from allaboard_provider.places import place_of
        from allaboard_provider.task import failure_text, observation_words, result_of
        from allaboard_provider.triggers.train import found_run

        if bool(self.run) == bool(self.key):
            raise BadInput("give the run or the key to wait for, one of them")
        place = place_of(self.hook)
        backend = place.backend
        seen = found_run(backend, self.run, self.key)
        if seen is None:
            self.log.info("there is no run %s yet", self.run or f"under the key {self.key}")
            return None
        self.log.info("%s", observation_words(seen))
        if not state_of(seen).is_final:
            return None
        last = backend.observe(seen.run, evidence=True)
        outcome = Outcome(last, diagnose(last))
        if not outcome.ok:
            raise AirflowException(failure_text(outcome, place.options))
        return result_of(outcome)

    def trigger(self) -> RunTrigger:
        from allaboard.backends.local.machine import fingerprint
        from allaboard_provider.triggers.train import RunTrigger

        what: dict[str, Any] = {"run": self.run, "key": self.key, "poll": float(self.poke_interval)}
        if not self.hook.is_local:
            return RunTrigger(backend="kubernetes", connection=self.hook.conn_id, **what)
        return RunTrigger(fingerprint=fingerprint(str(self.hook.local().runs)), **what)

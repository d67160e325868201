"""The worker's part of a `TrainingJobSensor`: it looks at the training, and makes the trigger that waits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from allaboard.diagnosis import diagnose
from allaboard.engines import engine_of_kind
from allaboard.errors import BackendUnreachable, BadInput, UnknownRun
from allaboard.follow.loop import Outcome
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from allaboard.text.names import why_not_an_object_name
from allaboard.text.units import rfc3339
from allaboard_provider.errors import TrainingFailed
from allaboard_provider.places import Place, place_of
from allaboard_provider.results import failure_of, failure_text, observation_text, read_end, result_of
from allaboard_provider.runs import ended_before, find_run, since_of
from allaboard_provider.triggers.jobs import JobTrigger, ending_of
from allaboard_provider.triggers.polling import PollTrigger
from allaboard_provider.triggers.train import RunTrigger

if TYPE_CHECKING:
    from allaboard_provider.hooks.allaboard import AllaboardHook


class Awaited(Protocol):
    """Training that a sensor waits for; the fields of `TrainingJobSensor`."""

    run: str | None
    key: str | None
    kind: str | None
    job_name: str | None
    poke_interval: float

    @property
    def hook(self) -> AllaboardHook: ...

    @property
    def log(self) -> Any: ...


class TrainingLooks:
    """The looks of one try of a sensor. ``since``: epoch seconds; a training that ended before does not
    count. ``since_of_ids``: this applies to a run's own id, too. ``event``: of the trigger, after a deferral.
    """

    def __init__(
        self,
        sensor: Awaited,
        since: float | None,
        since_of_ids: bool,
        event: Mapping[str, Any] | None,
    ) -> None:
        self.sensor, self.hook, self.log = sensor, sensor.hook, sensor.log
        self.since, self.since_of_ids = since, since_of_ids
        self.reached = event is not None
        self.uid: str | None = (event or {}).get("uid")
        self.ending = event if event is not None and "result" in event else None

    @cached_property
    def place(self) -> Place:
        return place_of(self.hook)

    def close(self) -> None:
        if "place" in self.__dict__:
            self.place.close()

    def look(self) -> dict[str, Any] | None:
        """The status of the training that has succeeded; None while it has not ended. Raises TrainingFailed
        for one that ended otherwise, as its own task would, BadInput for fields that contradict each other.
        """
        self._check()
        try:
            result = self._look_at_job() if self.sensor.job_name else self._look_at_run()
        except BackendUnreachable as error:
            # The first failure may come from a wrong connection; a later one passes.
            if not self.reached:
                raise
            self.log.warning("%s; the sensor waits for it", error)
            return None
        self.reached = True
        return result

    def trigger(self) -> PollTrigger:
        """The trigger that waits in the sensor's place."""
        sensor, poll = self.sensor, float(self.sensor.poke_interval)
        if sensor.job_name:
            assert sensor.kind is not None
            return JobTrigger(
                sensor.kind, sensor.job_name, self.hook.conn_id, self.uid, since=self.since, poll=poll
            )
        common: dict[str, Any] = {"run": sensor.run, "key": sensor.key, "poll": poll}
        common |= {"since": self.since, "of_ids": self.since_of_ids}
        if not self.hook.is_local:
            return RunTrigger(backend="kubernetes", connection=self.hook.conn_id, **common)
        return RunTrigger(fingerprint=self.hook.local().place(), **common)

    def _check(self) -> None:
        sensor = self.sensor
        named = [bool(sensor.run), bool(sensor.key), bool(sensor.kind or sensor.job_name)]
        if named.count(True) != 1:
            raise BadInput(
                "what to wait for: give run, or key, or kind and job_name (of a job that others created); "
                "one of them"
            )
        if sensor.kind or sensor.job_name:
            self._check_job()

    def _check_job(self) -> None:
        sensor = self.sensor
        if not (sensor.kind and sensor.job_name):
            raise BadInput("kind and job_name belong together: kind='PyTorchJob', job_name='nightly'")
        engine_of_kind(sensor.kind)
        if trouble := why_not_an_object_name(str(sensor.job_name)):
            raise BadInput(f"job_name: {trouble}")
        if self.hook.is_local:
            raise BadInput(
                f"kind and job_name need a cluster, and connection {self.hook.conn_id!r} has none; give "
                "it backend: kubernetes, or wait for a run or a key"
            )

    def _look_at_run(self) -> dict[str, Any] | None:
        sensor, backend = self.sensor, self.place.backend
        seen = find_run(backend, sensor.run, sensor.key)
        if seen is None:
            self.log.info("there is no run %s yet", sensor.run or f"under the key {sensor.key}")
            return None
        if ended_before(seen, since_of(seen, sensor.run, self.since, self.since_of_ids)):
            self._log_passed_over(seen)
            return None
        self.log.info("%s", observation_text(seen))
        if not state_of(seen).is_final:
            return None
        last = backend.observe(seen.run, evidence=True)
        outcome, secrets = Outcome(last, diagnose(last)), backend.secrets_of(seen.run)
        if not outcome.ok:
            at = self.place.at
            raise failure_of(outcome, at, failure_text(outcome, at, secrets), secrets)
        return result_of(outcome, secrets)

    def _look_at_job(self) -> dict[str, Any] | None:
        try:
            ending = self.ending or self._ending_of_job()
        except UnknownRun as error:
            self.log.info("%s yet", error)
            return None
        if (end := read_end(ending)) is None:
            return None
        state, result, failure = end
        if result is None:
            raise failure or TrainingFailed(f"{self.sensor.kind} {self.sensor.job_name} has ended: {state}")
        return result

    def _ending_of_job(self) -> Mapping[str, Any] | None:
        """End of the job; None while it has not ended."""
        backend: Any = self.place.backend
        kind, name = str(self.sensor.kind), str(self.sensor.job_name)
        seen = backend.observe_job(kind, name, uid=self.uid)
        if ended_before(seen, self.since):
            self._log_passed_over(seen)
            return None
        self.uid = seen.uid
        self.log.info("%s", observation_text(seen))
        if not state_of(seen).is_final:
            return None
        last = backend.observe_job(kind, name, evidence=True, uid=self.uid)
        return ending_of(last, kind, backend.api.namespace) if state_of(last).is_final else None

    def _log_passed_over(self, seen: Observation) -> None:
        self.log.info(
            "%s at %s, before %s: it is not the one that is waited for (`since` says which counts)",
            observation_text(seen), rfc3339(seen.finished), rfc3339(self.since),
        )  # fmt: skip

"""`TrainingJobSensor`: waits for a training that somebody else started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from allaboard_provider.sensors.base import Watching

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from allaboard.observation import Observation
    from allaboard_provider.places import Place

DAG_RUN = "dag_run"
STORED = "allaboard_since"


class TrainingJobSensor(Watching):
    """Succeeds when the training succeeds and returns its status; fails, with the reason, when it ends
    otherwise. What to wait for is one of:

    :param run: a run's id, a unique prefix of it, or a job's name (its newest run);
    :param key: the key under which a run was started (``allaboard run --key``);
    :param kind: with ``job_name``, on a connection to a cluster: a job object that anybody made, with any
        tool: ``kind="PyTorchJob", job_name="nightly"``.

    :param since: what ended before this moment is of another night, and is passed over: a time with a zone
        (a datetime, a text, ``"{{ data_interval_start }}"``), or None for any end. The default, "dag_run", is
        the start of the DAG run as it was when this task first looked, which no retry and no clear moves. It
        is not asked of a run's own id, which means that very run. In a backfill nobody starts trainings anew:
        say None, or a time.

    What is not there yet is waited for. It is only watched: nothing here stops, adopts or restarts it.
    ``soft_fail=True`` skips instead of failing.
    """

    template_fields: Sequence[str] = ("run", "key", "kind", "job_name", "since", "allaboard_conn_id")

    def __init__(
        self,
        *,
        run: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        job_name: str | None = None,
        since: datetime | str | None = DAG_RUN,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run, self.key = run, key
        self.kind, self.job_name = kind, job_name
        self.since = since

    _since: float | None = None
    """In epoch seconds."""
    _uid: str | None = None
    """Of the job that was seen."""
    _told: Mapping[str, Any] | None = None
    """How it ended, by the trigger that saw it."""
    _reached = False

    @cached_property
    def _place(self) -> Place:
        from allaboard_provider.places import place_of

        return place_of(self.hook)

    def look(self) -> dict[str, Any] | None:
        from allaboard.errors import BackendUnreachable

        self._check()
        try:
            found = self._job() if self.job_name else self._run()
        except BackendUnreachable as error:
            # At first it may be the connection that is wrong; later on the cluster is only away.
            if not self._reached:
                raise
            self.log.warning("%s; it is waited for", error)
            return None
        self._reached = True
        return found

    def _check(self) -> None:
        """Raises BadInput for what cannot be meant."""
        from allaboard.errors import BadInput

        if [bool(self.run), bool(self.key), bool(self.kind or self.job_name)].count(True) != 1:
            raise BadInput(
                "what to wait for: give run, or key, or kind and job_name (of a job that others created); "
                "one of them"
            )
        if self.kind or self.job_name:
            self._check_job()

    def _check_job(self) -> None:
        from allaboard.engines import engine_of_kind
        from allaboard.errors import BadInput
        from allaboard.names import why_not_an_object_name

        if not (self.kind and self.job_name):
            raise BadInput("kind and job_name belong together: kind='PyTorchJob', job_name='nightly'")
        engine_of_kind(self.kind)
        if why := why_not_an_object_name(str(self.job_name)):
            raise BadInput(f"job_name: {why}")
        if self.hook.is_local:
            raise BadInput(
                f"kind and job_name are of a cluster, and connection {self.hook.conn_id!r} names none; give "
                "it backend: kubernetes, or wait for a run or a key"
            )

    def _run(self) -> dict[str, Any] | None:
        from airflow.sdk.exceptions import AirflowException

        from allaboard.diagnosis import diagnose
        from allaboard.follow.loop import Outcome
        from allaboard.status import state_of
        from allaboard_provider.results import (
            failure_text,
            observation_words,
            result_of,
        )
        from allaboard_provider.triggers.train import found_run, is_of_before, since_of

        backend = self._place.backend
        seen = found_run(backend, self.run, self.key)
        if seen is None:
            self.log.info("there is no run %s yet", self.run or f"under the key {self.key}")
            return None
        if is_of_before(seen, since_of(seen, self.run, self._since, self._of_ids)):
            self._tell_passed_over(seen)
            return None
        self.log.info("%s", observation_words(seen))
        if not state_of(seen).is_final:
            return None
        last = backend.observe(seen.run, evidence=True)
        outcome, known = Outcome(last, diagnose(last)), backend.secrets_of(seen.run)
        if not outcome.ok:
            raise AirflowException(failure_text(outcome, self._place.options, known))
        return result_of(outcome, known)

    @property
    def _of_ids(self) -> bool:
        return self.since != DAG_RUN

    def _tell_passed_over(self, seen: Observation) -> None:
        from allaboard.units import rfc3339
        from allaboard_provider.results import observation_words

        self.log.info(
            "%s at %s, before %s: it is not the one that is waited for (`since` says which counts)",
            observation_words(seen), rfc3339(seen.finished), rfc3339(self._since),
        )  # fmt: skip

    def _moment(self, context: Context) -> float | None:
        """What ``since`` says, in epoch seconds. Raises BadInput."""
        if self.since != DAG_RUN:
            return moment_of(self.since)
        known: Any = context
        store, dag_run = known.get("task_state_store"), known.get("dag_run")
        found = store.get(STORED) if store is not None else None
        if found is None and dag_run is not None and dag_run.start_date is not None:
            found = dag_run.start_date.timestamp()
            if store is not None:
                store.set(STORED, found)
        return None if found is None else float(found)

    def _job(self) -> dict[str, Any] | None:
        from airflow.sdk.exceptions import AirflowException

        from allaboard.errors import UnknownRun

        try:
            ended = self._told or self._end_of_job()
        except UnknownRun as error:
            self.log.info("%s yet", error)
            return None
        if ended is not None and ended["failure"] is not None:
            raise AirflowException(ended["failure"])
        return None if ended is None else dict(ended["result"])

    def _end_of_job(self) -> Mapping[str, Any] | None:
        """How the job ended; None while it has not."""
        from allaboard.status import state_of
        from allaboard_provider.results import observation_words
        from allaboard_provider.triggers.jobs import how_it_ended
        from allaboard_provider.triggers.train import is_of_before

        backend: Any = self._place.backend
        seen = backend.observe_job(self.kind, self.job_name, uid=self._uid)
        if is_of_before(seen, self._since):
            self._tell_passed_over(seen)
            return None
        self._uid = seen.uid
        self.log.info("%s", observation_words(seen))
        if not state_of(seen).is_final:
            return None
        last = backend.observe_job(self.kind, self.job_name, evidence=True, uid=self._uid)
        return how_it_ended(last, str(self.kind), backend.api.namespace) if state_of(last).is_final else None

    def trigger(self) -> BaseTrigger:
        from allaboard_provider.triggers.jobs import JobTrigger
        from allaboard_provider.triggers.train import RunTrigger

        poll = float(self.poke_interval)
        if self.job_name:
            assert self.kind is not None
            return JobTrigger(
                self.kind, self.job_name, self.hook.conn_id, self._uid, since=self._since, poll=poll
            )
        what: dict[str, Any] = {"run": self.run, "key": self.key, "poll": poll}
        what |= {"since": self._since, "of_ids": self._of_ids}
        if not self.hook.is_local:
            return RunTrigger(backend="kubernetes", connection=self.hook.conn_id, **what)
        return RunTrigger(fingerprint=self.hook.local().place(), **what)

    def execute(self, context: Context) -> Any:
        self._read_since(context)
        with self._leaving():
            return super().execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """The trigger has fired."""
        self._read_since(context)
        self._reached, self._uid = True, event.get("uid")
        self._told = event if "result" in event else None
        with self._leaving():
            return super().execute_complete(context, event)

    def _read_since(self, context: Context) -> None:
        from allaboard_provider.errors import in_airflows_words

        with in_airflows_words():
            self._since = self._moment(context)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Airflow ends the process of a task without a word, so what is open is closed here."""
        try:
            yield
        finally:
            place: Place | None = self.__dict__.pop("_place", None)
            if place is not None:
                place.leave()


def moment_of(since: Any) -> float | None:
    """A time in epoch seconds; None for none. Raises BadInput for what is no time, or has no time zone."""
    from allaboard.errors import BadInput
    from allaboard.untrusted import show

    if since is None or since in ("", "None"):
        return None
    moment = since
    if isinstance(since, str):
        try:
            moment = datetime.fromisoformat(since.strip())
        except ValueError:
            moment = None
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise BadInput(
            f"since: {show(str(since))} is no time with a time zone; give 2026-01-31T02:00:00+01:00, say, "
            f"a template of one ({{{{ data_interval_start }}}}), {DAG_RUN!r}, or None"
        )
    return moment.timestamp()

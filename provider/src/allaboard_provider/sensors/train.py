"""`TrainingJobSensor`: waits for a training that somebody else started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from allaboard.errors import BadInput
from allaboard.text.untrusted import show
from allaboard_provider.errors import airflow_errors
from allaboard_provider.sensors.base import Watching

if TYPE_CHECKING:
    from airflow.sdk import Context, PokeReturnValue

    from allaboard_provider.sensors._looks import TrainingLooks
    from allaboard_provider.triggers.polling import PollTrigger

DAG_RUN = "dag_run"
STORED = "allaboard_since"


class TrainingJobSensor(Watching):
    """Succeeds when the training succeeds, and returns its status; fails with the reason when the training
    ends otherwise. The training is named by one of:

    :param run: a run's id, a unique prefix of it, or a job's name (its newest run);
    :param key: the key under which a run was started (``allaboard run --key``);
    :param kind: with ``job_name``, on a connection to a cluster: the kind of a job object that anybody made,
        with any tool: ``kind="PyTorchJob", job_name="nightly"``;
    :param job_name: its name in the namespace of the connection.

    :param since: a training that ended before this moment is an earlier one, and is passed over: a time with
        a zone (a datetime, a text, ``"{{ data_interval_start }}"``), or None for any end. The default,
        "dag_run", is the start of the DAG run at the first look of this task, which no retry and no clear
        moves. It does not apply to a run's own id, which means that very run. A backfill starts no trainings
        anew: give None or a time there.

    The sensor waits for a training that does not exist yet. It only watches: it stops, adopts and restarts
    nothing. ``soft_fail=True`` skips instead of failing.
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

    _looks: TrainingLooks | None = None
    """The looks of this try."""

    def poke(self, context: Context) -> PokeReturnValue:
        if self._looks is None:  # called by itself, not by `execute`
            self._looks = self._new_looks(context, None)
        return super().poke(context)

    def look(self) -> dict[str, Any] | None:
        assert self._looks is not None
        return self._looks.look()

    def trigger(self) -> PollTrigger:
        assert self._looks is not None
        return self._looks.trigger()

    def execute(self, context: Context) -> Any:
        with self._opened(context, None):
            return super().execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """The trigger has fired."""
        with self._opened(context, event):
            return super().execute_complete(context, event)

    @contextmanager
    def _opened(self, context: Context, event: Mapping[str, Any] | None) -> Iterator[None]:
        """Airflow ends the process of a task without unwinding it, so connections are closed here."""
        if self._looks is None or event is not None:
            self._looks = self._new_looks(context, event)
        looks = self._looks
        try:
            yield
        finally:
            self._looks = None
            looks.close()

    def _new_looks(self, context: Context, event: Mapping[str, Any] | None) -> TrainingLooks:
        from allaboard_provider.sensors._looks import TrainingLooks

        with airflow_errors():
            since = self._moment(context)
        return TrainingLooks(self, since, self.since != DAG_RUN, event)

    def _moment(self, context: Context) -> float | None:
        """``since`` in epoch seconds. Raises BadInput."""
        if self.since != DAG_RUN:
            return moment_of(self.since)
        known: Any = context
        store, dag_run = known.get("task_state_store"), known.get("dag_run")
        start = store.get(STORED) if store is not None else None
        if start is None and dag_run is not None and dag_run.start_date is not None:
            start = dag_run.start_date.timestamp()
            if store is not None:
                store.set(STORED, start)
        return None if start is None else float(start)


def moment_of(since: Any) -> float | None:
    """The time in epoch seconds; None for none. Raises BadInput for a value that is no time with a time
    zone.
    """
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

"""Carries out orders about local runs that no trigger, worker or web server hears.

Runs in a thread of every triggerer (its main process, the one that may ask Airflow's database), and looks
after the runs of its home. A task may end, in the few seconds in which no trigger has begun, or while its
resume waits in a queue, and only the database says so then; a next try on another host can only leave a word
there. In the database a try has a name of its own, so a hand-over is no order here, and a clear is none: the
new try stops what is left, or asks for that.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allaboard.backends.base import Handle, handle_of
from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import AllaboardError, OwnershipConflict, UnknownRun
from allaboard.job.site import home
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import state_of
from allaboard_provider.compat import conf, read_task_state, write_task_state
from allaboard_provider.homes import ENDED, HOME, STOP, Ended, ordered_by, read_ended, read_home
from allaboard_provider.identity import VARIABLE, TaskKey, in_triggerer, stopping, task_of
from allaboard_provider.orders import why_stop
from allaboard_provider.ownership import BY, expect_no_further_try, stop_deferred
from allaboard_provider.triggerers import Presence

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks."""
FIRST = 3.0
"""Seconds before the first look: the triggerer forks, and a thread that holds a lock then would hold it for
ever in the child.
"""
_SHARE = 20
"""A look that took a second is followed by the next one after so many."""
_REMEMBERED = 86400.0
"""Seconds for which an ended run is told to a next try elsewhere that asks for it."""
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class TaskNow:
    """State of a task instance in the database. ``wanted``: the value of `STOP`; ``try_id``: the id of its
    present try.
    """

    state: str | None
    dag_run_state: str | None
    wanted: Any = None
    try_id: str = ""


def why_stop_here(owner: Owner, uid: str, now: TaskNow) -> str | None:
    """Reason for which a live run must stop; None: no state proves an order. A run that a worker follows
    belongs to that worker, unless a next try elsewhere asks for it: then there is no such worker.
    """
    if host := ordered_by(now.wanted, uid):
        return f"the next try of its task is on {host}, and resumes there"
    return why_stop(now.state, now.dag_run_state) if owner.phase == "deferred" else None


class Reconciler:
    """Looks after the runs of one home until the process ends."""

    def __init__(self, environ: Mapping[str, str], queues: Collection[str] | None) -> None:
        self.backend = LocalBackend(environ)
        self.presence = Presence(home(environ), queues)
        self._quiet = False

    def start(self) -> None:
        threading.Thread(target=self._go_on, name="allaboard-reconciler", daemon=True).start()

    def _go_on(self) -> None:
        time.sleep(FIRST)
        while True:
            began = time.monotonic()
            try:
                self.look()
            except Exception as error:  # the database may be away for a while
                (log.debug if self._quiet else log.warning)("local runs cannot be reconciled: %s", error)
                self._quiet = True
            else:
                self._quiet = False
            time.sleep(max(EVERY, _SHARE * (time.monotonic() - began)))

    def look(self) -> None:
        """Look once, and do what is to be done. Raises what the database raises."""
        with _session() as session:
            self.presence.say(_other_hosts(session))
            instance = _instance(session)
        runs = self._runs(instance, time.time())
        for those in _portions(list(runs), _AT_ONCE):
            with _session() as session:
                known = tasks_now(session, those)
            for task in those:
                if task in known:
                    self._reconcile(runs[task], task, known[task])

    def _runs(self, instance: str | None, now: float) -> dict[TaskKey, Observation]:
        """The runs of this Airflow that go on, or have ended not long ago."""
        runs: dict[TaskKey, Observation] = {}
        for seen in self.backend.list():
            task = task_of(seen.key)
            if task is None or task.instance != instance or seen.owner is None or seen.uid is None:
                continue
            if not state_of(seen).is_final or (seen.finished or 0.0) > now - _REMEMBERED:
                runs.setdefault(task, seen)
        return runs

    def _reconcile(self, seen: Observation, task: TaskKey, now: TaskNow) -> None:
        assert seen.owner is not None and seen.uid is not None
        if state_of(seen).is_final:
            if ordered_by(now.wanted, seen.uid) is not None:
                self._publish_end(task, seen)
            return
        reason = why_stop_here(seen.owner, seen.uid, now)
        if reason is not None:
            self._stop(seen, seen.owner, reason)
        elif why_stop(now.state, now.dag_run_state) is not None and now.state != "up_for_retry":
            expect_no_further_try(self.backend, seen)  # its worker ends it, or was killed
        elif seen.owner == in_triggerer(now.try_id):
            self.backend.watch_over(seen.run)  # its resume may wait in a queue for long

    def _stop(self, seen: Observation, owner: Owner, reason: str) -> None:
        handle = handle_of(seen)
        if owner.phase == "deferred":
            stopped = stop_deferred(self.backend, handle, owner.id, reason)
        else:
            stopped = self._stop_followed(handle, owner, reason)
        if stopped:
            log.info("run %s: stopped, because %s", seen.run, reason)

    def _stop_followed(self, handle: Handle, owner: Owner, reason: str) -> bool:
        ended = stopping(owner.id)
        try:
            self.backend.adopt(handle, owner, ended)
            self.backend.stop(handle, ended, BY, reason)
        except (OwnershipConflict, UnknownRun):
            return False
        return True

    def _publish_end(self, task: TaskKey, seen: Observation) -> None:
        """Publish the end of the run for a next try elsewhere, with the result of a run that succeeded."""
        from allaboard_provider.pages import outcome_of
        from allaboard_provider.results import result_of

        assert seen.uid is not None
        with _session() as session:
            last = read_home(_kept(session, task[1:], HOME))
            known = read_ended(_kept(session, task[1:], ENDED))
        if last is None or last.uid != seen.uid or (known is not None and known.uid == seen.uid):
            return  # already published, or a later attempt elsewhere has published its own
        result = None
        if state_of(seen) is State.SUCCEEDED:
            whole = outcome_of(self.backend.observe(seen.run, evidence=True))
            result = result_of(whole, self.backend.secrets_of(seen.run))
        ended = Ended(seen.uid, str(state_of(seen)), result, accepted=seen.handed_over)
        with _session() as session:
            write_task_state(session, task[1:], ENDED, json.dumps(ended.as_json()))


def tasks_now(session: Session, tasks: Sequence[TaskKey]) -> dict[TaskKey, TaskNow]:
    """States of these task instances in the database, without unknown ones."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance as TI
    from sqlalchemy import select, tuple_

    if not tasks:
        return {}
    by_place = {task[1:]: task for task in tasks}
    rows = session.execute(
        select(TI.dag_id, TI.run_id, TI.task_id, TI.map_index, TI.state, DagRun.state, TI.id)
        .join(DagRun, (DagRun.dag_id == TI.dag_id) & (DagRun.run_id == TI.run_id))
        .where(tuple_(TI.dag_id, TI.run_id, TI.task_id, TI.map_index).in_(list(by_place)))
    ).all()
    return {
        by_place[place]: TaskNow(_word(row[4]), _word(row[5]), _kept(session, place, STOP), str(row[6]))
        for row in rows
        if (place := tuple(row[:4])) in by_place
    }


def _kept(session: Session, place: tuple[Any, ...], key: str) -> Any:
    """A value that a task instance keeps in its own state store; None: there is none that can be read."""
    try:
        return json.loads(read_task_state(session, place, key) or "null")
    except ValueError:
        return None


def _other_hosts(session: Session) -> list[str]:
    """The hosts of the triggerers that live, without this one."""
    from datetime import UTC, datetime, timedelta

    from airflow.jobs.job import Job
    from airflow.utils.net import get_hostname
    from sqlalchemy import select

    fresh = timedelta(seconds=conf.getfloat("triggerer", "triggerer_health_check_threshold", fallback=30))
    rows = session.execute(
        select(Job.hostname)
        .where(Job.job_type == "TriggererJob", Job.end_date.is_(None))
        .where(Job.latest_heartbeat > datetime.now(UTC) - fresh, Job.hostname != get_hostname())
        .distinct()
    ).all()
    return [str(row[0]) for row in rows]


def _instance(session: Session) -> str | None:
    """The name of this Airflow in the keys of runs; None: it has none yet, and no run."""
    from airflow.models.variable import Variable
    from sqlalchemy import select

    fixed = conf.get("allaboard", "instance", fallback="")
    if fixed:
        return str(fixed)
    row = session.scalar(select(Variable).where(Variable.key == VARIABLE))
    return None if row is None else row.get_val()


@contextmanager
def _session() -> Iterator[Session]:
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        yield session


def _portions(tasks: list[TaskKey], size: int) -> Iterable[list[TaskKey]]:
    return (tasks[n : n + size] for n in range(0, len(tasks), size))


def _word(state: Any) -> str | None:
    return None if state is None else str(getattr(state, "value", state))


def queues_of(argv: Sequence[str]) -> tuple[bool, list[str] | None]:
    """Return whether this command line starts a triggerer, and the queues that it is limited to."""
    from airflow.cli import cli_parser

    if "triggerer" not in argv:
        return False, None
    arguments = cli_parser.get_parser().parse_args(list(argv))
    return getattr(arguments, "subcommand", None) == "triggerer", getattr(arguments, "queues", None)


def start(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Look after the runs of this home, if this process is a triggerer. Its failure ends no triggerer:
    without it workers follow their runs themselves.
    """
    try:
        is_one, queues = queues_of(argv)
        if is_one:
            Reconciler(environ, queues).start()
    except (AllaboardError, OSError, SystemExit) as error:
        log.warning("no local run is left to this triggerer on %s: %s", socket.gethostname(), error)

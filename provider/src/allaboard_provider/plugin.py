"""Plugin that Airflow loads in each of its processes (entry point ``airflow.plugins``): a listener, and the
tabs of the web pages. It imports nothing heavy.

The listener closes gaps that operators and triggers cannot close:

* A person ends a deferred task before a triggerer watches it, so no trigger's ``on_kill`` is called, or while
its resume waits in a queue. The process that took the order stops the run: the API server, or the scheduler
for a ``dagrun_timeout``. It stops a run on a cluster from a thread, for it may not wait for a cluster. A
local run of another host is stopped there, by the `reconciler` that every triggerer starts.
* A worker is killed between taking a run's result and Airflow's accepting the success. A result counts as
handed over only once Airflow has accepted it, so the next try hands it over instead of training again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pluggy import HookimplMarker

from allaboard.errors import SiteError
from allaboard.job.site import home
from allaboard_provider.compat import AirflowPlugin, allow_in_xcom, conf
from allaboard_provider.links import ROUTE
from allaboard_provider.ui import PREFIX, LazyApp

log = logging.getLogger(__name__)
hookimpl = HookimplMarker("airflow")

TRIGGER = "allaboard_provider.triggers.train.TrainingJobTrigger"

#: By task instance id: the call to make when Airflow has accepted the success of that task.
on_accepted: dict[str, Callable[[], None]] = {}


class Listener:
    """Airflow's events about task instances and DAG runs. Airflow logs an exception here, and goes on."""

    active = False

    @hookimpl
    def on_starting(self, component: Any) -> None:
        if "triggerer" in sys.argv:
            from allaboard_provider import reconciler

            reconciler.start(sys.argv[1:], os.environ)

    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        accepted = on_accepted.pop(str(task_instance.id), None)
        if accepted is not None:
            accepted()
        elif previous_state is None:
            stop_deferred_run(task_instance, "the task was marked success while deferred")

    @hookimpl
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None:
        on_accepted.pop(str(task_instance.id), None)
        if previous_state is None:  # as the API server calls it for a person
            stop_deferred_run(task_instance, "the task was marked failed while deferred")

    @hookimpl
    def on_task_instance_skipped(self, previous_state: Any, task_instance: Any) -> None:
        if previous_state is None:
            stop_deferred_run(task_instance, "the task was marked skipped while deferred")

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        reason = "the DAG run was failed while the task was deferred"
        if _has_local_runs():
            stop_runs_of(_tries_of(dag_run), (dag_run.dag_id, dag_run.run_id), reason)
        stop_on_clusters(_triggers_of(dag_run), reason)

    @hookimpl
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        # A person may cut tasks short with the DAG run. Airflow reports those that ran or were deferred one
        # by one (above), and none of those that were about to resume or to be tried again.
        if _has_local_runs() and (cut_short := _tries_of(dag_run, cut_short=True)):
            reason = "the DAG run was marked success before the task had ended"
            stop_runs_of(cut_short, (dag_run.dag_id, dag_run.run_id), reason)


def shows_pages(configured: str) -> bool:
    """Return whether Airflow's web pages show trainings. The option ``[allaboard] ui`` of older releases
    chose between two pages, and there is one now: ``off`` still means none, other words mean nothing any
    more.
    """
    word = configured.strip().lower()
    if word not in ("", "off"):
        log.info(
            "[allaboard] ui is not an option any more; the tab of a task is a page in a frame: leave it out"
        )
    return word != "off"


# Addresses without a slash before them: Airflow may live below a path.
_BELOW = PREFIX.removeprefix("/")
WEB_PAGES: dict[str, list[dict[str, Any]]] = {
    "fastapi_apps": [{"app": LazyApp(), "url_prefix": PREFIX, "name": "allaboard"}],
    "external_views": [
        {
            "name": "Training",
            "href": f"{_BELOW}/page/{{DAG_ID}}/{{RUN_ID}}/{{TASK_ID}}/{{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": ROUTE,
        }
    ],
    # The bundle sets a component under each of these names.
    "react_apps": [
        {
            "name": name,
            "bundle_url": f"{_BELOW}/bundle.js",
            "destination": destination,
            "url_route": f"{ROUTE}-{route}",
        }
        for name, destination, route in (("Models", "dag", "models"), ("Trainings", "dashboard", "now"))
    ],
}
"""Attributes that the plugin registers for Airflow's web pages."""
_PAGES = WEB_PAGES if shows_pages(str(conf.get("allaboard", "ui", fallback=""))) else {}


class AllaboardPlugin(AirflowPlugin):
    name = "allaboard"
    listeners = [Listener()]  # noqa: RUF012
    fastapi_apps = _PAGES.get("fastapi_apps", [])
    react_apps = _PAGES.get("react_apps", [])
    external_views = _PAGES.get("external_views", [])

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        Listener.active = True
        allow_jobs_in_xcom()


def allow_jobs_in_xcom() -> None:
    """Let tasks in this process read a `TrainingJob` that another task has returned: Airflow makes objects
    again of classes alone that it was told of, whatever methods they have.
    """
    from allaboard.job.training_job import TrainingJob

    allow_in_xcom(TrainingJob)


def _tries_of(dag_run: Any, *, cut_short: bool = False) -> list[Any]:
    """The ids of the present tries of a DAG run's tasks. ``cut_short``: only of those that had begun and did
    not end by themselves, which few DAG runs have.
    """
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    wanted = select(TaskInstance.id)
    if cut_short:
        wanted = wanted.where(TaskInstance.try_number > 0, TaskInstance.state.not_in(("success", "failed")))
    return [row[0] for row in _of_dag_run(dag_run, wanted)]


def _triggers_of(dag_run: Any) -> list[Mapping[str, Any]]:
    """The arguments of our triggers that the tasks of a DAG run wait for."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from sqlalchemy import select

    ours = select(Trigger).join(TaskInstance, TaskInstance.trigger_id == Trigger.id)
    rows = _of_dag_run(dag_run, ours.where(Trigger.classpath == TRIGGER))
    return [row[0].kwargs for row in rows]


def _of_dag_run(dag_run: Any, wanted: Any) -> list[Any]:
    """The selected rows of a DAG run's tasks, read in the session in which the scheduler or the API server
    already works: Airflow's own way to ask would end that session, and the scheduler with it.
    """
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return []
    of_it = wanted.where(TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id)
    with session.no_autoflush:
        return list(session.execute(of_it))


def stop_deferred_run(task_instance: Any, reason: str) -> None:
    """Stop the run of a deferred task that a person ended."""
    ti = task_instance
    stop_runs_of([ti.id], (ti.dag_id, ti.run_id, ti.task_id, ti.map_index), reason)
    if (arguments := _arguments_of(task_instance)) is not None:
        stop_on_clusters([arguments], reason)


def _arguments_of(task_instance: Any) -> Mapping[str, Any] | None:
    """The arguments of our trigger that a task waits for; those in its event once it has fired and the resume
    waits in a queue.
    """
    trigger = getattr(task_instance, "trigger", None)
    if trigger is not None:
        return trigger.kwargs if trigger.classpath == TRIGGER else None
    return event_of(getattr(task_instance, "next_kwargs", None))


def event_of(next_kwargs: Any) -> Mapping[str, Any] | None:
    """The event of our trigger in what a resume is called with, as Airflow keeps it; None for another one.
    Ours are plain JSON, which each version of Airflow keeps as it is.
    """
    event = next_kwargs.get("event") if isinstance(next_kwargs, Mapping) else None
    ours = isinstance(event, Mapping) and all(name in event for name in ("run", "uid", "owner", "backend"))
    return event if ours else None


def stop_runs_of(ti_ids: Collection[Any], task: tuple[Any, ...], reason: str) -> None:
    """Stop the runs of this machine that these tries left to a triggerer. A run of the same ``task`` (DAG,
    DAG run, and maybe task and map index) that a worker follows is that worker's to stop; if the worker was
    killed and the next try had not begun, the supervisor stops the run after some minutes.
    """
    if not _has_local_runs():
        return
    from allaboard.backends.base import Handle
    from allaboard.backends.local.backend import LocalBackend
    from allaboard.runs.status import state_of
    from allaboard_provider.identity import is_of_task
    from allaboard_provider.ownership import expect_no_further_try, stop_deferred

    owners = {str(ti_id) for ti_id in ti_ids}
    backend = LocalBackend()
    for seen in backend.list():
        if seen.owner is None or seen.uid is None or state_of(seen).is_final:
            continue
        if seen.owner.phase == "worker" and is_of_task(seen.key, *task):
            expect_no_further_try(backend, seen)
        if seen.owner.id not in owners:
            continue
        if stop_deferred(
            backend, Handle(seen.run, seen.attempt, seen.generation, seen.uid), seen.owner.id, reason
        ):
            log.info("run %s: stopped, because %s", seen.run, reason)


def stop_on_clusters(triggers: Collection[Mapping[str, Any]], reason: str) -> None:
    """Stop the runs of these triggers from a thread, and return at once."""
    remote = [arguments for arguments in triggers if arguments.get("backend", "local") != "local"]
    if remote:
        threading.Thread(target=_stop_each, args=(remote, reason), daemon=True).start()


def _stop_each(triggers: Collection[Mapping[str, Any]], reason: str) -> None:
    for arguments in triggers:
        try:
            _stop_on_its_cluster(arguments, reason)
        except Exception as error:  # the connection need not work in this process; it does in the triggerer
            log.warning("run %s could not be stopped from here: %s", arguments.get("run"), error)


def _stop_on_its_cluster(arguments: Mapping[str, Any], reason: str) -> None:
    from allaboard.backends.base import Handle
    from allaboard_provider.hooks.allaboard import AllaboardHook
    from allaboard_provider.ownership import stop_deferred
    from allaboard_provider.places import place_of

    run, uid, owner = (str(arguments[name]) for name in ("run", "uid", "owner"))
    handle = Handle(run, int(arguments.get("attempt", 1)), int(arguments.get("generation", 1)), uid)
    place = place_of(AllaboardHook(arguments.get("connection")))
    try:
        if stop_deferred(place.backend, handle, owner, reason):
            log.info("run %s: stopped, because %s", run, reason)
    finally:
        place.close()


def _has_local_runs() -> bool:
    """Return whether this user has local runs. Most API servers have no runs, and pay nothing here."""
    try:
        return (Path(home(os.environ)) / "local").is_dir()
    except SiteError:  # a user without a home has none here
        return False

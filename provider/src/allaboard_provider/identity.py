"""The identity of a task instance: its key, the same for every try, and its owner, a new one for every try.

The key begins with the name of the Airflow installation, so two installations on one machine never share a
run. The name is made once per metadata database and kept in a Variable. Two tasks that make it at the same
moment may briefly see two names; so each task instance keeps its first one in its own state store, which
survives retries and clears. Where Airflow has no such store, the task that makes the name waits a moment and
reads it again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from airflow.sdk import Variable

from allaboard.job.identity import airflow_key
from allaboard.job.training_job import TrainingJob
from allaboard.runs.observation import Owner
from allaboard.text.names import run_name, why_not_an_object_name
from allaboard.text.untrusted import parse_json
from allaboard_provider.compat import conf

VARIABLE = "allaboard_instance"
STORED = "allaboard_instance"
_AGREEMENT = 1.0
"""Seconds after which two tasks that made the name at the same moment see the same one."""


def key_of(context: Any) -> str:
    """The key of the run of this task instance."""
    ti = context["ti"]
    map_index = -1 if ti.map_index is None else ti.map_index
    return airflow_key(instance(context), ti.dag_id, ti.run_id, ti.task_id, map_index)


def instance(context: Any, pause: Callable[[float], None] = time.sleep) -> str:
    """The name of this Airflow installation: ``[allaboard] instance``, else the one made for the metadata
    database. ``pause``: sleeps, where tasks have no store and this one makes the name.
    """
    fixed = conf.get("allaboard", "instance", fallback="")
    if fixed:
        return str(fixed)
    store = context.get("task_state_store")
    name = (store is not None and store.get(STORED)) or Variable.get(VARIABLE, default=None)
    if not name:
        Variable.set(
            VARIABLE,
            secrets.token_hex(4),
            "The name of this Airflow installation in the keys of allaboard's runs",
        )
        if store is None:
            pause(_AGREEMENT)
        name = Variable.get(VARIABLE)
    if store is not None:
        store.set(STORED, name)
    return str(name)


def run_of(job: Any, context: Any) -> str:
    """The name of the run of a task, before it has begun. Of a job whose name is not known: which task it is,
    as ``dag/DAG run/task`` and the map index of a mapped one.
    """
    name = job.get("name") if isinstance(job, (Mapping, TrainingJob)) else None
    if isinstance(name, str) and why_not_an_object_name(name) is None:
        return run_name(name, key_of(context))
    ti = context["ti"]
    mapped = [str(ti.map_index)] if (ti.map_index or -1) >= 0 else []
    return "/".join((ti.dag_id, ti.run_id, ti.task_id, *mapped))


def on_worker(ti: Any, *, local: bool = True) -> Owner:
    """This try, while a worker follows. If the worker is killed, the run goes on while Airflow has a try
    left: that try adopts it, if it comes within the hour for which an orchestrated run goes on alone
    (`LocalBackend`), and resumes it otherwise. After the last try a
    ``local`` run is stopped within minutes, as that of any client at a terminal; a run on a cluster shows by
    the Lease of its follower that nobody follows it.
    """
    return Owner(str(ti.id), "worker", "orchestrated" if has_a_try_left(ti) or not local else "attached")


def has_a_try_left(ti: Any) -> bool:
    """Return whether Airflow has another try for this task instance after this one."""
    return bool(ti.try_number <= (ti.max_tries or 0))


class TaskKey(NamedTuple):
    """A task instance, as the key of its run names it. ``instance``: the name of its Airflow."""

    instance: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int


def task_of(key: str | None) -> TaskKey | None:
    """The task instance of a run's key; None: it is of none."""
    try:
        kind, *known = parse_json(key or "")
        task = TaskKey(*known)
    except (ValueError, TypeError):  # a key that a person chose
        return None
    is_valid = all(isinstance(word, str) for word in task[:4]) and isinstance(task.map_index, int)
    return task if kind == "airflow" and is_valid else None


def is_of_task(key: str, dag_id: str, run_id: str, task_id: str | None = None, map_index: int = -1) -> bool:
    """Return whether a run's key is that of this task instance, or without ``task_id`` of any in that DAG
    run. The name of the installation is not compared.
    """
    task = task_of(key)
    if task is None or (task.dag_id, task.run_id) != (dag_id, run_id):
        return False
    return task_id is None or task[3:] == (task_id, -1 if map_index is None else map_index)


def are_of_one_dag(key: str, other: str) -> bool:
    """Return whether two runs' keys are of tasks of the same DAG of the same installation."""
    try:
        kind, *known = parse_json(key)
        other_kind, *others = parse_json(other)
    except (ValueError, TypeError):  # a key that a person chose
        return False
    return kind == other_kind == "airflow" and len(known) >= 2 and known[:2] == others[:2]


def in_triggerer(ti_id: Any) -> Owner:
    """The same try, while a triggerer follows. One that restarts stops no run; a local run without any for
    an hour ends by itself.
    """
    return Owner(str(ti_id), "deferred", "orchestrated")


def stopping(ti_id: Any) -> Owner:
    """The same try, once a person has ended it: the owner under which the run is stopped. Attached: if the
    process that stops it dies, the supervisor of a local run stops it, and the janitor of a cluster finds it.
    Deferred: a next try does not adopt it.
    """
    return Owner(f"{ti_id}/ended", "deferred", "attached")

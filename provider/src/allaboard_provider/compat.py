"""Names of Airflow that differ between its versions, and the features that an older version lacks. The rest
of the provider asks this module, which asks whether something is there and never for a number.

Names that moved come from apache-airflow-providers-common-compat. Each is imported when it is first asked
for, so a DAG file pays only for what it uses. `FEATURES` is the table of the documentation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowPlugin,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        RetryDecision,
        RetryPolicy,
        conf,
        mask_secret,
        redact,
    )
    from airflow.sdk.exceptions import TaskDeferralTimeout
    from sqlalchemy.orm import Session

__all__ = [
    "AirflowException", "AirflowFailException", "AirflowNotFoundException", "AirflowPlugin",
    "AirflowSensorTimeout", "AirflowSkipException", "AirflowTaskTimeout", "RetryDecision", "RetryPolicy",
    "TaskDeferralTimeout", "conf", "mask_secret", "redact",
    "FEATURES", "Feature", "allow_in_xcom", "ask", "calls_on_kill", "keeps_task_state",
    "push_xcom", "read_connection", "read_task_state", "stats", "write_task_state",
]  # fmt: skip

_Params = ParamSpec("_Params")
_Answer = TypeVar("_Answer")

_FURTHER = {"TaskDeferralTimeout": ("airflow.sdk.exceptions", "airflow.exceptions")}
"""Modules, in order, of names that common-compat does not have."""


def __getattr__(name: str) -> Any:
    value = _named(name) if name in __all__ else None
    if value is None:
        # `from ... import` makes an ImportError of it, as for a name that the version does not have.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _named(name: str) -> Any:
    modules = _FURTHER.get(name, ("airflow.providers.common.compat.sdk",))
    return _found(*(f"{module}:{name}" for module in modules))


def _found(*places: str) -> Any:
    """The first of these values, ``module:name.of.value``, that the installed Airflow has; None for none."""
    for place in places:
        module, _, path = place.partition(":")
        try:
            value: Any = import_module(module)
            for name in path.split("."):
                value = getattr(value, name)
        except (ImportError, AttributeError):
            continue
        return value
    return None


# What an older version lacks.


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that not every version has, for the documentation. ``without``: what differs where it is
    absent; ``is_there``: looks for it in the installed Airflow.
    """

    name: str
    without: str
    is_there: Callable[[], bool]


def calls_on_kill() -> bool:
    """Return whether a triggerer calls ``on_kill`` when a person ends a deferred task."""
    return _found("airflow.triggers.base:BaseTrigger.on_kill") is not None


def keeps_task_state() -> bool:
    """Return whether a task instance has a state store, which retries and clears do not empty."""
    return _found("airflow.state:get_state_backend") is not None


def has_retry_policies() -> bool:
    """Return whether a task can have a retry policy."""
    return _found("airflow.sdk:RetryPolicy") is not None


def allows_classes() -> bool:
    """Return whether a plugin can name classes that tasks may read from XComs."""
    return _found("airflow.sdk.serde:allow_class") is not None


def has_queues_of_triggerers() -> bool:
    """Return whether a triggerer can be limited to the triggers of some queues."""
    return bool(_named("conf").has_option("triggerer", "queues_enabled"))


FEATURES = (
    Feature(
        "`on_kill` of triggers",
        "the trigger asks the same question in its `cleanup`, with the same check of the owner",
        calls_on_kill,
    ),
    Feature(
        "state of tasks (`task_state_store`)",
        "a local run stays on one host: give its task a queue of one worker; a sensor's `since` follows the "
        "DAG run's start when a clear moves it; the metric `allaboard.lost_steps` is not sent",
        keeps_task_state,
    ),
    Feature(
        "retry policies",
        "`TrainingRetryPolicy` cannot be imported; what is never retried is still never retried",
        has_retry_policies,
    ),
    Feature(
        "classes that a plugin allows in XComs",
        "a task that returns a `TrainingJob` for another one returns `job.as_mapping()`",
        allows_classes,
    ),
    Feature(
        "queues of triggerers",
        "a deferred local run needs all triggerers on its host; elsewhere the worker follows it",
        has_queues_of_triggerers,
    ),
)


# What is asked of Airflow in more than one way.

_asked: set[asyncio.Task[Any]] = set()
"""Questions without an answer yet, kept from garbage collection."""


async def ask(question: Callable[_Params, _Answer], *args: _Params.args, **kwargs: _Params.kwargs) -> _Answer:
    """The answer to a blocking question of the task SDK, from a trigger. Raises what the question raises."""
    from asgiref.sync import sync_to_async

    return await _answered(sync_to_async(question, thread_sensitive=False)(*args, **kwargs))


async def _answered(question: Coroutine[Any, Any, _Answer]) -> _Answer:
    """The answer to a question, which goes on when the trigger that asked it is cancelled: a triggerer of
    Airflow 3.1 that misses an answer takes it for that of its next question, and ends.
    """
    task = asyncio.create_task(question)
    _asked.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    _asked.discard(task)
    if not task.cancelled():
        task.exception()  # nobody may have waited for it


async def push_xcom(key: str, value: Any, **task: Any) -> None:
    """Push an XCom from a trigger. ``task``: dag_id, run_id, task_id and map_index."""
    from airflow.sdk.execution_time.xcom import XCom

    if hasattr(XCom, "aset"):
        await XCom.aset(key, value, **task)
    else:
        await ask(XCom.set, key, value, **task)


async def read_connection(conn_id: str) -> tuple[str | None, dict[str, Any]]:
    """Type and extras of a connection, read on a triggerer's loop. Raises Airflow's own error for one that
    does not exist.

    The properties of a connection, and AsyncKubernetesHook with them, mask secrets by a blocking question to
    the supervisor, which fails while another trigger asks it.
    """
    from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

    connection: Any = await _answered(get_async_connection(conn_id))
    return connection.conn_type, dict(await _answered(get_async_extra_dejson(connection)))


def stats() -> Any:
    """Airflow's metrics: ``incr``, ``timing`` and ``gauge``, each with ``tags``."""
    module = _found("airflow.sdk.observability.stats:incr")
    if module is not None:
        return import_module("airflow.sdk.observability.stats")
    return _found("airflow.sdk.observability.stats:Stats", "airflow.stats:Stats")


def allow_in_xcom(kind: type) -> None:
    """Let tasks in this process read objects of a class from XComs, where a plugin can say so."""
    if (allow := _found("airflow.sdk.serde:allow_class")) is not None:
        allow(kind)


def read_task_state(session: Session, place: tuple[Any, ...], key: str) -> str | None:
    """A value in the state of a task instance (DAG, DAG run, task, map index), read in the database; None
    without one.
    """
    if not keeps_task_state():
        return None
    from airflow.state import TaskScope, get_state_backend

    return get_state_backend().get(TaskScope(*place), key, session=session)


def write_task_state(session: Session, place: tuple[Any, ...], key: str, value: str) -> None:
    """Put a value into the state of a task instance, in the database; nothing where tasks have none."""
    if keeps_task_state():
        from airflow.state import TaskScope, get_state_backend

        get_state_backend().set(TaskScope(*place), key, value, session=session)

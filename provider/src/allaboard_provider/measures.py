"""Measures of a training as Airflow's own metrics: through its statsd, Datadog or OpenTelemetry, whichever
the site has set up, with its prefix.

    allaboard.queue       timer     how long an attempt waited for its queue, quota or slots
    allaboard.training    timer     how long it trained, from its first step on
    allaboard.runs        counter   attempts that ended; ``state`` says how
    allaboard.restarts    counter   restarts of members, and of whole gangs
    allaboard.lost_steps  counter   steps that were done again after restarts
    allaboard.goodput     gauge     the share of the run's time that went into steps that counted

All carry ``dag_id``, ``task_id``, ``job``. A worker sends them when an attempt has ended: a task that a
person ends while it is deferred has none.

Goodput is that of the tab (`allaboard.report.page_data`), in the sense of ml-goodput-measurement: productive
time by elapsed time. Elapsed is all from the creation of the run's first attempt to its end: queues, starts,
retry delays and clears as well. Productive is the time between reported steps that no restart, stop, clear
or lost attempt undid. Where that time is not known for all attempts, of all steps done over the attempts, and
over generations that were given up, it is the share that was neither done again nor thrown away: the
lower of the two is sent. It is sent once, when the run has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from allaboard_provider import compat

LOST_STEPS = "allaboard_lost_steps"
"""The key in the task's state store: how many steps a try of this task has told of already."""
Measure = tuple[str, str, float]
"""The kind (timing, in seconds; incr; gauge), the name, and the value."""


def measures_of(
    seen: Observation, reported: int | None = 0, *, starts_again: bool = False, goodput: float | None = None
) -> Iterator[Measure]:
    """Measures of an attempt that has ended. ``reported``: lost steps that were sent before, because a run
    counts them over all of its attempts; None: nobody knows. ``starts_again``: the whole gang does;
    ``goodput``: of a run that ended.
    """
    for name, phase in (("queue", "admitted"), ("training", "training")):
        seconds = seen.phases.get(phase)
        if seconds is not None:
            yield "timing", name, seconds
    yield "incr", "runs", 1
    if restarts := seen.restarts + starts_again:
        yield "incr", "restarts", restarts
    if reported is not None and (more := _more(seen.progress.lost_steps, reported)):
        yield "incr", "lost_steps", more
    if goodput is not None:
        yield "gauge", "goodput", goodput


def _more(lost: int, reported: int) -> int:
    # A run from scratch counts from zero again.
    return lost - reported if lost >= reported else lost


def send(context: Any, seen: Observation, **more: Any) -> None:
    """Send the measures of an attempt that has ended, from the worker of its task. ``more``: as for
    `measures_of`.
    """
    store = context.get("task_state_store")
    known = _reported(store) if store is not None else None
    stats = compat.stats()
    tags = tags_of(context["ti"], seen)
    for kind, name, value in measures_of(seen, known, **more):
        sent: Any = timedelta(seconds=value) if kind == "timing" else value
        of_it = {**tags, "state": state_of(seen).value} if name == "runs" else tags
        getattr(stats, kind)(f"allaboard.{name}", sent, tags=of_it)
    if store is not None and seen.progress.lost_steps != known:
        store.set(LOST_STEPS, seen.progress.lost_steps)


def _reported(store: Any) -> int:
    steps = store.get(LOST_STEPS)
    return steps if isinstance(steps, int) else 0


def tags_of(ti: Any, seen: Observation) -> Mapping[str, str]:
    """Those that Airflow's own metrics of the task have, and the name of the job."""
    own = getattr(ti, "stats_tags", None) or {"dag_id": ti.dag_id, "task_id": ti.task_id}
    return {**own, "job": seen.job or ""}

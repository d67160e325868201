"""Reader of snapshots: a snapshot is a JSON object of plain Kubernetes objects, each part optional, and is
read as an observation with its evidence. Parts that are missing, truncated or of the wrong kind are left out:
the reader never raises. Values in, values out.

    {"job": {}, "pods": [], "events": [], "nodes": [], "podgroups": [], "workloads": [], "queues": [],
    "pvcs": [], "logs": {"pod": "text"}, "submit_error": {}, "taken": "2026-11-25T01:00:00Z"}

A snapshot of a run of this machine has `observation` in place of objects: its members are processes. That of
a running one also has their `stacks` (`allaboard.diagnosis.stacks`), and `silent`, the seconds for which none
wrote a line.
"""

from __future__ import annotations

import datetime as _dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from allaboard.backends.kubernetes.client.values import Json, at, dicts, moment, text, texts
from allaboard.backends.kubernetes.observe.objects import latest, objects_of
from allaboard.backends.kubernetes.observe.observation import of_object
from allaboard.diagnosis.logs import Log
from allaboard.engines import Engine, engine_of_object
from allaboard.gangs.kueue import WorkloadSeen
from allaboard.runs.observation import Observation

PARTS = (
    "job", "pods", "events", "nodes", "podgroups", "workloads", "queues", "pvcs", "logs", "submit_error",
    "observation", "stacks", "silent",
)  # fmt: skip
LONGEST_LOG = 4 << 20
MOST_LOGS = 2000
MOST_CLOCKS = 100
"""Logs whose last times are looked at."""


def read_snapshot(snapshot: Mapping[str, Any]) -> Observation:
    """The observation of a snapshot, as of the newest of its times."""
    if isinstance(own := snapshot.get("observation"), Mapping):
        return _of_observation(own, snapshot)
    job = snapshot.get("job")
    job = job if isinstance(job, Mapping) and job else None
    engine = _engine(job)
    logs = _logs(snapshot.get("logs"))
    objects = objects_of(
        now=None,
        job=job,
        refused=snapshot.get("submit_error"),
        pods=snapshot.get("pods"),
        events=snapshot.get("events"),
        nodes=snapshot.get("nodes"),
        groups=snapshot.get("podgroups"),
        workloads=snapshot.get("workloads"),
        queues=snapshot.get("queues"),
        claims=snapshot.get("pvcs"),
        engine=engine,
    )
    taken = moment(snapshot.get("taken"))
    now = taken if taken is not None else _newest(latest(objects), logs)
    objects = replace(objects, now=now, is_exact=taken is not None)
    seen = _seen(job, engine, snapshot, now)
    return replace(seen, objects=objects, tails=logs)


def _engine(job: Json | None) -> Engine | None:
    return engine_of_object(job) if job is not None else None


def _logs(value: Any) -> dict[str, str]:
    """Name -> text; the texts of several containers are joined."""
    if not isinstance(value, Mapping):
        return {}
    texts_by_name: dict[str, str] = {}
    for name, log in list(value.items())[:MOST_LOGS]:
        if isinstance(log, list):
            log = "\n".join(line for line in log if isinstance(line, str))
        if isinstance(log, Mapping):
            log = "\n".join(texts(log).values())
        if isinstance(log, str) and log:
            key = str(name)[:300]
            texts_by_name[key] = (
                log if len(log) <= LONGEST_LOG else f"{log[: LONGEST_LOG // 4]}\n{log[-LONGEST_LOG // 2 :]}"
            )
    return texts_by_name


def _newest(objects: float | None, logs: Mapping[str, str]) -> float | None:
    """The newest time in it; those of logs count only within a month of the objects' own."""
    year = 1970
    if objects is not None:
        year = _dt.datetime.fromtimestamp(objects, _dt.UTC).year
    times = [
        t for log in [*logs.values()][:MOST_CLOCKS] if (t := Log(log[-600:], year).last_time) is not None
    ]
    near = [t for t in times if objects is None or 0 < t - objects < 30 * 86400]
    return max([*near, *([objects] if objects is not None else [])], default=None)


def _seen(
    job: Json | None, engine: Engine | None, snapshot: Mapping[str, Any], now: float | None
) -> Observation:
    """The job as its engine reads it; only its name and uid where the engine cannot."""
    name = text(at(job, "metadata", "name"))
    less = Observation(run=name, job=name, uid=text(at(job, "metadata", "uid")) or None)
    if job is None or engine is None:
        return less
    workload = next(iter(dicts(snapshot.get("workloads"))), None)
    try:
        seen = of_object(
            job,
            now=now if now is not None else 0.0,
            pods=_named(snapshot.get("pods")),
            events=dicts(snapshot.get("events"), 10_000),
            groups=_named(snapshot.get("podgroups")),
            workload=WorkloadSeen(workload) if workload is not None else None,
        )
    # The readers trust the API server, which gives every object its shape; a file is written by anybody.
    except Exception:
        return less
    return replace(seen, tails={})


def _named(value: Any) -> list[Json]:
    return [body for body in dicts(value) if text(at(body, "metadata", "name"))]


def _of_observation(own: Mapping[str, Any], snapshot: Mapping[str, Any]) -> Observation:
    try:
        seen = Observation.from_dict(own)
    except (TypeError, ValueError, KeyError, AttributeError):
        return Observation(run="", tails=_logs(snapshot.get("logs")))
    return replace(seen, tails=_logs(snapshot.get("logs")) or dict(texts(own.get("tails"))))


_KINDS = {"Pod": "pods", "Event": "events", "Node": "nodes", "PodGroup": "podgroups", "Workload": "workloads"}
_QUEUES = frozenset({"Queue", "LocalQueue", "ClusterQueue"})


def sort_objects(value: Json) -> dict[str, Any]:
    """The snapshot of kubectl's output: an object, or a List of them."""
    parts: dict[str, Any] = {}
    every = dicts(value) if isinstance(value.get("items"), list) else [value]
    for body in every:
        kind = text(body.get("kind"))
        part = _KINDS.get(kind) or (
            "queues" if kind in _QUEUES else "pvcs" if kind == "PersistentVolumeClaim" else ""
        )
        if part:
            parts.setdefault(part, []).append(body)
        elif kind == "Status":
            parts["submit_error"] = body
        elif "job" not in parts or (
            engine_of_object(parts["job"]) is None and engine_of_object(body) is not None
        ):
            parts["job"] = body
    return parts

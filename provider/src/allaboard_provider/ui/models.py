"""The models of a DAG: the metrics of its runs, one DAG run after another, and what was promoted. Values in,
values out.

What is told comes from the XComs of its tasks: what a training or an evaluation returned, the snapshot of one
that failed, and the promotions that a `PromoteOperator` read right after it had decided. A promotion or a
rollback from a command line shows with the next promotion of the DAG; a note says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allaboard.report.page_data import is_number
from allaboard.text.printable import visible
from allaboard.text.units import counted, rfc3339
from allaboard_provider.pages import unpack
from allaboard_provider.ui.database import Task, named_run

VERSION = 1
_METRICS, _VALUES = 12, 6
_RUNS, _PROMOTIONS = 200, 100
_LONGEST = 200


def models_of(dag_id: str, tasks: Sequence[Task], dag_runs: int, now: float) -> dict[str, Any]:
    """``runs``: oldest first; ``promotions``: newest first; ``champion``: the newest of each store."""
    runs = [row for task in tasks if (row := _run(task)) is not None]
    stores = _stores(tasks)
    promotions = [promotion for store in stores for promotion in store["promotions"]]
    numbers = {
        promotion["run"]: promotion["number"] for promotion in reversed(promotions) if promotion["run"]
    }
    for row in runs:
        row["promotion"] = numbers.get(row["run"])
    return {
        "version": VERSION,
        "dag_id": dag_id,
        "looked_at": now,
        "runs": runs[-_RUNS:],
        "metrics": _names(runs),
        "champions": [
            {**store["promotions"][0], "metric_name": store["metric"], "read_at": store["read_at"]}
            for store in stores
            if store["promotions"]
        ],
        "promotions": promotions[:_PROMOTIONS],
        "notes": _notes(tasks, runs, stores, dag_runs),
    }


def _run(task: Task) -> dict[str, Any] | None:
    named = named_run(task.named)
    if named is None:
        return None
    result = task.result if isinstance(task.result, Mapping) and "state" in task.result else None
    left = unpack(task.left) if result is None else None
    metrics: dict[str, Any] = {}
    if result is not None and isinstance(result.get("metrics"), Mapping):
        metrics = {str(n): v for n, v in result["metrics"].items() if is_number(str(n), v)}
    elif left is not None:
        measured = [m for m in left["metrics"] if isinstance(m, Mapping) and is_number("", m.get("value"))]
        metrics = {str(m.get("name")): m["value"] for m in measured}
    short = {n[:_LONGEST]: v for n, v in [*metrics.items()][:_METRICS]}
    state = result["state"] if result is not None else left["state"] if left is not None else None
    return {
        "dag_run": task.where.run_id,
        "after": task.after,
        "task_id": task.where.task_id,
        "map_index": task.where.map_index,
        "task_state": task.state,
        "run": named["run"],
        "point": _point(named.get("point")),
        "state": None if state is None else str(state),
        "seconds": left.get("seconds") if left is not None else _seconds(unpack(task.left)),
        "metrics": short,
        "promotion": None,
    }


def _point(point: Any) -> str:
    """The values of the point of a sweep in words: ``LR 0.1, workers 2``; empty for any other run."""
    if not isinstance(point, Mapping):
        return ""
    values = [f"{str(path).rpartition('.')[2]} {_value(value)}" for path, value in [*point.items()][:_VALUES]]
    return visible(", ".join(value[:_LONGEST] for value in values))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _seconds(left: Mapping[str, Any] | None) -> Any:
    return None if left is None else left.get("seconds")


def _names(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of all metrics, in the order in which they appear."""
    return [*dict.fromkeys(name for row in runs for name in row["metrics"])][: 2 * _METRICS]


def _stores(tasks: Iterable[Task]) -> list[dict[str, Any]]:
    """The promotions of each store, as the last task that promoted there read them."""
    stores: dict[str, dict[str, Any]] = {}
    for task in tasks:
        promoted = task.promotion
        if not isinstance(promoted, Mapping) or promoted.get("version") != VERSION:
            continue
        name, rows = str(promoted.get("store"))[:_LONGEST], promoted.get("promotions")
        read_at = promoted.get("read_at")
        if not isinstance(rows, list) or not isinstance(read_at, (int, float)):
            continue
        known = [_promotion(row, name) for row in rows if isinstance(row, Mapping)]
        if name not in stores or stores[name]["read_at"] <= read_at:
            stores[name] = {
                "store": name,
                "read_at": float(read_at),
                "metric": promoted.get("metric") if isinstance(promoted.get("metric"), str) else None,
                "promotions": [row for row in known if row is not None],
            }
    return [*stores.values()]


def _promotion(row: Mapping[str, Any], store: str) -> dict[str, Any] | None:
    number, metric = row.get("number"), row.get("metric")
    if not isinstance(number, int):
        return None
    restores = row.get("restores")
    return {
        "store": store,
        "number": number,
        "at": _text(row.get("at")),
        "run": _text(row.get("run")),
        "step": row.get("step") if isinstance(row.get("step"), int) else None,
        "checkpoint": _text(row.get("checkpoint")),
        "by": _text(row.get("by")),
        "restores": restores if isinstance(restores, int) else None,
        "metric": metric if is_number("", metric) else None,
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[: 5 * _LONGEST]


def _notes(
    tasks: Sequence[Task], runs: Sequence[Any], stores: Sequence[Mapping[str, Any]], dag_runs: int
) -> list[str]:
    notes = []
    older = dag_runs - len({task.where.run_id for task in tasks})
    if runs and older > 0:
        notes.append(f"{counted(older, 'more DAG run')} trained nothing, or came before those shown here.")
    for store in stores:
        notes.append(
            f"Promotions in {store['store']} as of {rfc3339(store['read_at'])}, when a task of this DAG last "
            "promoted there; what was promoted or rolled back elsewhere since shows with the next one."
        )
    if runs and not stores:
        notes.append(
            "No task of this DAG has promoted a model yet (PromoteOperator), so no champion is known."
        )
    if any(row["state"] is None for row in runs):
        notes.append("Of runs without a state here it is not known how they ended.")
    return notes

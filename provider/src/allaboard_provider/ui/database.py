"""Reads of Airflow's database for the pages: task instances, and the XComs that our tasks leave. Each is
bounded and has a short session of its own, so that no session is held while a cluster is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import and_, func, select
from sqlalchemy.orm import aliased

from allaboard_provider.pages import PROMOTION_KEY, RUN_KEY, SNAPSHOT_KEY

MOST_DAG_RUNS = 100
MOST_TASKS = 400
MOST_LIVE = 40
UNFINISHED = ("running", "deferred", "queued", "scheduled", "restarting", "up_for_retry", "up_for_reschedule")


@dataclass(frozen=True, slots=True)
class Where:
    """A task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


@dataclass(frozen=True, slots=True)
class Task:
    """A task instance and what it left. ``named``: the XCom that names its run; ``left``: its snapshot;
    ``result``: what it returned; ``promotion``: what a task that promotes decided. ``after``: when its DAG
    run was due, in epoch seconds.
    """

    where: Where
    state: str | None = None
    operator: str | None = None
    try_number: int = 0
    after: float | None = None
    named: Any = None
    left: Any = None
    result: Any = None
    promotion: Any = None


_FIELDS = {RUN_KEY: "named", SNAPSHOT_KEY: "left", "return_value": "result", PROMOTION_KEY: "promotion"}


class Database:
    """Airflow's."""

    def task(self, where: Where) -> Task | None:
        """A task instance with the name of its run and its snapshot; None: there is no such task instance."""
        with create_session(scoped=False) as session:
            ti = session.execute(
                select(TaskInstance.state, TaskInstance.operator, TaskInstance.try_number).where(
                    TaskInstance.dag_id == where.dag_id,
                    TaskInstance.run_id == where.run_id,
                    TaskInstance.task_id == where.task_id,
                    TaskInstance.map_index == where.map_index,
                )
            ).one_or_none()
            if ti is None:
                return None
            rows = session.execute(
                select(XComModel.key, XComModel.value).where(
                    XComModel.dag_id == where.dag_id,
                    XComModel.run_id == where.run_id,
                    XComModel.task_id == where.task_id,
                    XComModel.map_index == where.map_index,
                    XComModel.key.in_((RUN_KEY, SNAPSHOT_KEY)),
                )
            ).all()
        return Task(where, _word(ti[0]), ti[1], int(ti[2] or 0), **_values(rows))

    def tasks_of(self, dag_id: str) -> tuple[list[Task], int]:
        """The task instances of a DAG that started a run or promoted, of its newest DAG runs, oldest first;
        and how many DAG runs there are in all.
        """
        with create_session(scoped=False) as session:
            count = session.scalar(select(func.count(DagRun.id)).where(DagRun.dag_id == dag_id)) or 0
            newest = select(DagRun.id, DagRun.run_id, DagRun.run_after).where(DagRun.dag_id == dag_id)
            runs = session.execute(newest.order_by(DagRun.id.desc()).limit(MOST_DAG_RUNS)).all()
            due = {row[1]: row[2] for row in runs}
            ours = (
                select(XComModel.run_id, XComModel.task_id, XComModel.map_index)
                .where(
                    XComModel.dag_run_id.in_([row[0] for row in runs]),
                    XComModel.key.in_((RUN_KEY, PROMOTION_KEY)),
                )
                .order_by(XComModel.dag_run_id.desc())
                .limit(MOST_TASKS)
            )
            places = {Where(dag_id, *row) for row in session.execute(ours).all()}
            tasks = _read(session, dag_id, [row[0] for row in runs], places)
        order = {run: n for n, run in enumerate(reversed([row[1] for row in runs]))}
        dated = [_with_time(task, due.get(task.where.run_id)) for task in tasks]
        dated.sort(
            key=lambda task: (order.get(task.where.run_id, -1), task.where.task_id, task.where.map_index)
        )
        return dated, int(count)

    def unfinished(self, dag_ids: Collection[str]) -> list[Task]:
        """The task instances of these DAGs that follow a run now, newest first, with their snapshots."""
        if not dag_ids:
            return []
        named, left = aliased(XComModel), aliased(XComModel)

        def same(xcom: Any) -> Any:
            return and_(
                xcom.dag_id == TaskInstance.dag_id,
                xcom.run_id == TaskInstance.run_id,
                xcom.task_id == TaskInstance.task_id,
                xcom.map_index == TaskInstance.map_index,
            )

        wanted = (
            select(
                TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index,
                TaskInstance.state, TaskInstance.operator, TaskInstance.try_number, named.value, left.value,
            )
            .join(named, and_(same(named), named.key == RUN_KEY))
            .outerjoin(left, and_(same(left), left.key == SNAPSHOT_KEY))
            .where(TaskInstance.state.in_(UNFINISHED))
            .where(TaskInstance.dag_id.in_(dag_ids))
            .order_by(TaskInstance.start_date.desc())
            .limit(MOST_LIVE)
        )  # fmt: skip
        with create_session(scoped=False) as session:
            rows = session.execute(wanted).all()
        return [
            Task(Where(*row[:4]), _word(row[4]), row[5], int(row[6] or 0), named=row[7], left=row[8])
            for row in rows
        ]


def _read(session: Any, dag_id: str, dag_runs: Sequence[int], places: Collection[Where]) -> list[Task]:
    """These task instances with all that they left, in two questions."""
    if not places:
        return []
    names = {where.task_id for where in places}
    rows = session.execute(
        select(
            XComModel.run_id, XComModel.task_id, XComModel.map_index, XComModel.key, XComModel.value
        ).where(
            XComModel.dag_run_id.in_(dag_runs),
            XComModel.task_id.in_(names),
            XComModel.key.in_(tuple(_FIELDS)),
        )
    ).all()
    left: dict[Where, list[tuple[str, Any]]] = {}
    for row in rows:
        left.setdefault(Where(dag_id, *row[:3]), []).append((row[3], row[4]))
    states = session.execute(
        select(
            TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state,
            TaskInstance.operator, TaskInstance.try_number,
        ).where(
            TaskInstance.dag_id == dag_id,
            TaskInstance.task_id.in_(names),
            TaskInstance.run_id.in_({where.run_id for where in places}),
        )
    ).all()  # fmt: skip
    return [
        Task(where, _word(row[3]), row[4], int(row[5] or 0), **_values(left.get(where, ())))
        for row in states
        if (where := Where(dag_id, *row[:3])) in places
    ]


def _values(rows: Any) -> dict[str, Any]:
    return {_FIELDS[key]: value for key, value in rows}


def _with_time(task: Task, due: datetime | None) -> Task:
    from dataclasses import replace

    return replace(task, after=None if due is None else due.timestamp())


def _word(state: Any) -> str | None:
    return None if state is None else str(getattr(state, "value", state))


def named_run(value: Any) -> Mapping[str, Any] | None:
    """The XCom that names a run, if it is one."""
    return value if isinstance(value, Mapping) and isinstance(value.get("run"), str) else None

"""A database of Airflow (SQLite) without an Airflow, of whichever version is installed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.jobs.job import Job
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance as Row
from airflow.utils.net import get_hostname
from sqlalchemy import create_engine, insert, update
from sqlalchemy.orm import Session

from tests.provider.building import TaskInstance


def as_stored(try_id: uuid.UUID) -> Any:
    """The id of a try as a statement of this Airflow takes it: a text before 3.2."""
    return Row.__table__.c.id.type.python_type(str(try_id))


class AirflowDatabase:
    """``ti``: a deferred task instance of a DAG run that goes on; a triggerer lives on this host."""

    def __init__(self, file: Path, ti: TaskInstance) -> None:
        self.engine = create_engine(f"sqlite:///{file}")
        self.ti = ti
        import_all_models()
        Base.metadata.create_all(self.engine)
        now = datetime.now(UTC)
        with self.session() as session:
            self.add_dag_run(session, ti.run_id)
            self.add_task(session, ti)
            values = {"job_type": "TriggererJob", "state": "running", "latest_heartbeat": now}
            session.execute(insert(Job.__table__).values(hostname=get_hostname(), **values))

    def add_dag_run(self, session: Session, run_id: str) -> None:
        made = {"run_type": "manual", "state": "running", "log_template_id": 1}
        session.execute(
            insert(DagRun.__table__).values(
                dag_id=self.ti.dag_id, run_id=run_id, run_after=datetime.now(UTC), **made
            )
        )

    def add_task(self, session: Session, ti: TaskInstance, **values: Any) -> None:
        """A row for a task instance; ``values``: of more of its columns."""
        index = "map_index" if "map_index" in Row.__table__.c else "region_index"
        of_it = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, index: ti.map_index}
        made = {"state": "deferred", "pool": "default_pool", "try_number": ti.try_number, **values}
        session.execute(
            insert(Row.__table__).values(id=as_stored(ti.id), max_tries=ti.max_tries, **of_it, **made)
        )

    @contextmanager
    def session(self, **_: Any) -> Iterator[Session]:
        with Session(self.engine) as session:
            yield session
            session.commit()

    def say(self, state: str | None, dag_run: str = "running") -> None:
        """The states of all task instances and DAG runs from now on."""
        with self.session() as session:
            session.execute(update(Row.__table__).values(state=state))
            session.execute(update(DagRun.__table__).values(state=dag_run))

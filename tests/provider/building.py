"""Builders: a task's context as a worker has it, without Airflow's database."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


class StateStore(dict[str, Any]):
    """`context["task_state_store"]`: kept through the tries of a task instance."""

    def set(self, key: str, value: Any, **_: Any) -> None:
        self[key] = value


@dataclass
class TaskInstance:
    """What operators ask of theirs. ``states``: what Airflow says when it is asked for task states."""

    task_id: str = "train"
    dag_id: str = "nightly"
    run_id: str = "manual__1"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    start_date: datetime = field(default_factory=lambda: datetime.now(UTC))
    state: str = "running"
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def get_task_states(self, **_: Any) -> dict[str, dict[str, str]]:
        name = self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"
        return {self.run_id: {name: self.state}}


def a_context(ti: TaskInstance | None = None, store: StateStore | None = None) -> dict[str, Any]:
    """A context. Pass the store of an earlier one for a further try of the same task instance."""
    return {"ti": ti or TaskInstance(), "task_state_store": StateStore() if store is None else store}

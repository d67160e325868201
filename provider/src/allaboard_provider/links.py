"""The link from a task instance to its tab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from allaboard_provider.compat import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

ROUTE = "allaboard"
"""The last part of the address of the tab."""


class TrainingLink(BaseOperatorLink):
    """The tab *Training* of a task instance. Its address needs neither the run nor its cluster."""

    name = "Training"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return tab_of(ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)


def tab_of(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """The address of the tab, without a host."""
    dag, run, task = (quote(part, safe="") for part in (dag_id, run_id, task_id))
    mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{base}/dags/{dag}/runs/{run}/tasks/{task}{mapped}/plugin/{ROUTE}"

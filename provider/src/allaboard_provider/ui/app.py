"""The app behind the pages: JSON for the tabs and the card, and the whole page of a run as HTML.

Airflow guards no app of a plugin. Every route here but that of the browser code, which says nothing about
anybody, asks whether this user may see the task instances of the DAG.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from importlib import resources
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Path, Request, Response

from allaboard.report.html import head, page
from allaboard.report.page import run_page
from allaboard_provider.ui.card import now_of
from allaboard_provider.ui.database import Database, Task, Where
from allaboard_provider.ui.models import models_of
from allaboard_provider.ui.reading import Cache, page_of

_MOST_OUTPUTS = 8
"""Runs whose curves are kept from page to page: a few megabytes each."""
_REFRESH = 15
"""Seconds after which a browser asks again for the HTML page of a run that goes on."""

MapIndex = Annotated[int, Path(ge=-1, le=1_000_000)]
#: Airflow leaves the placeholder in the address for a task that is not mapped.
FramedIndex = Annotated[str, Path(pattern=r"^(-1|\d{1,6}|\{MAP_INDEX\})$")]
Name = Annotated[str, Path(min_length=1, max_length=250)]


def build(database: Database | None = None) -> FastAPI:
    """The app. ``database``: for tests."""
    # Airflow's API is imported with the first app: what it is made of warns and is slow to load.
    from airflow.api_fastapi.core_api.security import get_user

    may_see, signed_in = [Depends(_guard())], Depends(get_user)
    app = FastAPI(title="allaboard", docs_url=None, redoc_url=None, openapi_url=None)
    rows, pages, outputs = database or Database(), Cache(), Cache(_MOST_OUTPUTS)

    def task_at(where: Where) -> Task:
        task = rows.task(where)
        if task is None:
            raise HTTPException(404, "there is no such task instance")
        return task

    @app.get("/api/task/{dag_id}/{run_id}/{task_id}/{map_index}", dependencies=may_see)
    def task(request: Request, dag_id: Name, run_id: Name, task_id: Name, map_index: MapIndex) -> Response:
        where = Where(dag_id, run_id, task_id, map_index)
        return _json(request, page_of(task_at(where), time.time(), pages, outputs))

    @app.get("/page/{dag_id}/{run_id}/{task_id}", dependencies=may_see)
    def plain_page(request: Request, dag_id: Name, run_id: Name, task_id: Name) -> Response:
        return _html(request, page_of(task_at(Where(dag_id, run_id, task_id)), time.time(), pages, outputs))

    @app.get("/page/{dag_id}/{run_id}/{task_id}/{map_index}", dependencies=may_see)
    def page_in_frame(
        request: Request, dag_id: Name, run_id: Name, task_id: Name, map_index: FramedIndex
    ) -> Response:
        where = Where(dag_id, run_id, task_id, int(map_index) if map_index.isdigit() else -1)
        return _html(request, page_of(task_at(where), time.time(), pages, outputs))

    @app.get("/api/dag/{dag_id}/models", dependencies=may_see)
    def models(request: Request, dag_id: Name) -> Response:
        tasks, dag_runs = rows.tasks_of(dag_id)
        return _json(request, models_of(dag_id, tasks, dag_runs, time.time()))

    @app.get("/api/now")
    def now(request: Request, user: Any = signed_in) -> Response:
        found = rows.unfinished(_dags_of(user))
        seen = {dag for dag in {task.where.dag_id for task in found} if _may_see_tasks(request, dag, user)}
        tasks = [task for task in found if task.where.dag_id in seen]
        return _json(request, now_of(tasks, time.time(), pages))

    @app.get("/bundle.js")
    def bundle(request: Request) -> Response:
        code = resources.files("allaboard_provider.ui").joinpath("bundle.js").read_bytes()
        return _answer(request, code, "text/javascript; charset=utf-8", "public, no-cache")

    return app


def _guard(dag_id: str | None = None) -> Any:
    """Whether a user may see the task instances of a DAG, by default of the one in the address."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.core_api.security import requires_access_dag

    return requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE, dag_id)


def _dags_of(user: Any) -> set[str]:
    from airflow.api_fastapi.app import get_auth_manager

    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def _may_see_tasks(request: Request, dag_id: str, user: Any) -> bool:
    """The question of the guard of the other routes, about a DAG that no address names."""
    try:
        _guard(dag_id)(request, user)
    except HTTPException:
        return False
    return True


def _json(request: Request, value: Any) -> Response:
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    return _answer(request, text.encode("utf-8", "backslashreplace"), "application/json")


def _html(request: Request, told: dict[str, Any]) -> Response:
    if told["run"] is None:
        text = page("Training", [head("training", "Training", "", "calm", told["empty"])])
    else:
        text = _drawn(told["run"])
    answer = _answer(request, text.encode("utf-8", "backslashreplace"), "text/html; charset=utf-8")
    answer.headers["Content-Security-Policy"] = "frame-ancestors 'self'"
    if told["run"] is None or not told["run"]["is_final"]:
        answer.headers["Refresh"] = str(_REFRESH)
    return answer


def _drawn(run: dict[str, Any]) -> str:
    try:
        return run_page(run)
    except (AttributeError, LookupError, TypeError, ValueError):  # a snapshot that some task made up
        return page("Training", [head("training", "Training", "", "calm", "What this task left is no page.")])


def _answer(request: Request, body: bytes, kind: str, cache: str = "private, no-cache") -> Response:
    """The body, or 304 for a browser that has it already."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {
        "ETag": tag,
        "Cache-Control": cache,
        "Vary": "Cookie, Authorization",
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


def _finite(value: Any) -> Any:
    """JSON has no number for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value

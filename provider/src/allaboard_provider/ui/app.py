"""The app behind the pages: JSON for the tab of models and the card, and the page of a run, which lives in a
frame.

Airflow guards no app of a plugin. Every route here but that of the browser code, which says nothing about
anybody, asks whether this user may see the task instances of the DAG.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import Depends, FastAPI, HTTPException, Path, Request, Response

from allaboard.report.html import live_page, nothing
from allaboard.report.page import run_content
from allaboard_provider.pages import ENDED_STATES
from allaboard_provider.ui.card import now_of
from allaboard_provider.ui.database import Database, Task, Where
from allaboard_provider.ui.models import models_of
from allaboard_provider.ui.reading import Cache, page_of

_MOST_OUTPUTS = 8
"""Runs whose curves are kept from page to page: a few megabytes each."""
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

    def drawn(where: Where) -> Drawn:
        return draw(page_of(task_at(where), time.time(), pages, outputs))

    @app.get("/api/page/{dag_id}/{run_id}/{task_id}/{map_index}", dependencies=may_see)
    def content(request: Request, dag_id: Name, run_id: Name, task_id: Name, map_index: MapIndex) -> Response:
        return _json(request, drawn(Where(dag_id, run_id, task_id, map_index))._asdict())

    @app.get("/page/{dag_id}/{run_id}/{task_id}/{map_index}", dependencies=may_see)
    def page(request: Request, dag_id: Name, run_id: Name, task_id: Name, map_index: FramedIndex) -> Response:
        where = Where(dag_id, run_id, task_id, int(map_index) if map_index.isdigit() else -1)
        return _html(request, where, drawn(where))

    @app.get("/api/dag/{dag_id}/models", dependencies=may_see)
    def models(request: Request, dag_id: Name) -> Response:
        tasks, dag_runs = rows.tasks_of(dag_id)
        return _json(request, models_of(dag_id, tasks, dag_runs, time.time()))

    @app.get("/api/now")
    def now(request: Request, user: Any = signed_in) -> Response:
        tasks_followed = rows.unfinished(_dags_of(user))
        seen = {
            dag
            for dag in {task.where.dag_id for task in tasks_followed}
            if _may_see_tasks(request, dag, user)
        }
        tasks = [task for task in tasks_followed if task.where.dag_id in seen]
        return _json(request, now_of(tasks, time.time(), pages))

    @app.get("/bundle.js")
    def bundle(request: Request) -> Response:
        code = resources.files("allaboard_provider.ui").joinpath("bundle.js").read_bytes()
        return _answer(request, code, "text/javascript; charset=utf-8", "public, no-cache")

    return app


def _guard(dag_id: str | None = None) -> Any:
    """True if a user may see the task instances of a DAG, by default of the one in the address."""
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


def _html(request: Request, where: Where, drawn: Drawn) -> Response:
    parts = (where.dag_id, where.run_id, where.task_id, str(where.map_index))
    # Relative: Airflow may live below a path.
    again = "/".join(["../../../../api/page", *(quote(part, safe="") for part in parts)])
    text = live_page(drawn.title, drawn.main, again, drawn.every)
    answer = _answer(request, text.encode("utf-8", "backslashreplace"), "text/html; charset=utf-8")
    answer.headers["Content-Security-Policy"] = "frame-ancestors 'self'"
    return answer


_NOT_DRAWN = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""Exceptions that a snapshot raises which some task made up."""


class Drawn(NamedTuple):
    """The page of a task in a frame: ``main`` is HTML; ``every``: the seconds after which it is asked for
    again, None for never.
    """

    title: str
    main: str
    every: float | None


def draw(page: Mapping[str, Any]) -> Drawn:
    """``told``: of `page_of`."""
    run, live = page["run"], page["source"] == "live"
    if run is None:
        over = page["task"]["state"] in ENDED_STATES
        return Drawn("Training", nothing("No training here", page["empty"]), None if over else 10.0)
    every = None if run["is_final"] else 4.0 if live else 10.0
    try:
        return Drawn(*run_content(run, live=live and every is not None, note=page["note"]), every)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        OSError,
        TypeError,
        ValueError,
    ):  # a snapshot that some task made up
        return Drawn("Training", nothing("No training here", "What this task left is no page."), None)


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

"""Which trainings on the cluster belong to no task any more?

A training on a cluster outlives its worker, so that the next try finds it again. Where a DAG run was
deleted, or a task is over without having stopped its training, no next try comes. Every ten minutes this DAG
lists the trainings of a namespace, asks Airflow's REST API for the task of each, and stops those whose task
is gone.

It needs a connection `airflow_rest`: its host is the address of Airflow's API server (`https://airflow.lab`),
its login and password are those of a user who may read DAG runs. Whatever the API does not answer is not
gone: then the task fails, and stops nothing more.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

import pendulum
from airflow.sdk import DAG, Connection, get_current_context, task

CLUSTER = "allaboard_default"  # the connection to the namespace with the trainings
REST = "airflow_rest"
OVER = ("success", "failed", "skipped", "upstream_failed", "removed")


class Rest:
    """The REST API of the Airflow at ``host``."""

    def __init__(self, host: str, login: str | None = None, password: str | None = None) -> None:
        self.host = host.rstrip("/")
        body = {"username": login, "password": password} if login else None
        self._token = str(self._ask("/auth/token", body)["access_token"])

    def state(self, *path: str) -> str | None:
        """The state of a DAG run or a task instance; ``none`` of one that has no state yet, None where there
        is no such thing. Raises urllib's errors: no answer is no proof.
        """
        try:
            return self._ask("/api/v2/" + "/".join(quote(word, safe="") for word in path))["state"] or "none"
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if path != "/auth/token":
            headers["Authorization"] = f"Bearer {self._token}"
        with urllib.request.urlopen(
            urllib.request.Request(self.host + path, data, headers), timeout=30
        ) as answer:
            return json.loads(answer.read(1 << 20))


def reason_to_stop(dag_run: str | None, task_instance: str | None) -> str | None:
    """Why a training is gone, by the states of its DAG run and its task instance; None: it is not. A task
    that is to be tried again, or that a person has cleared, takes its training up itself.
    """
    if dag_run is None:
        return "its DAG run was deleted"
    if dag_run in ("success", "failed"):
        return f"its DAG run is over: {dag_run}"
    if task_instance in OVER:
        return f"its task is over: {task_instance}"
    return None


def stop_gone(backend: Any, rest: Rest, instance: str) -> dict[str, str]:
    """Stop the trainings of this installation whose tasks are gone: their runs, and why."""
    from allaboard.backends.base import NotYours, handle_of
    from allaboard.runs.status import state_of
    from allaboard_provider.identity import task_of

    stopped = {}
    # The owner is read before Airflow is asked: a try that begins meanwhile is another, and keeps the run.
    for seen in backend.list():
        of = task_of(seen.key)
        if of is None or of.instance != instance or state_of(seen).is_final or seen.stop is not None:
            continue
        if seen.owner is None or seen.owner.kind == "detached":
            continue
        dag_run = ("dags", of.dag_id, "dagRuns", of.run_id)
        mapped = [str(of.map_index)] if of.map_index >= 0 else []
        of_task = rest.state(*dag_run, "taskInstances", of.task_id, *mapped)
        reason = reason_to_stop(rest.state(*dag_run), of_task)
        if reason is None:
            continue
        answer = backend.stop(handle_of(seen), seen.owner, "stop_gone_trainings", reason)
        if not isinstance(answer, NotYours):
            stopped[seen.run] = reason
    return stopped


with DAG(
    "stop_gone_trainings",
    description="Stop trainings on the cluster whose tasks are gone",
    schedule="*/10 * * * *",
    start_date=pendulum.datetime(2025, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,  # until there is the connection
    tags=["allaboard", "example"],
    doc_md=__doc__,
) as dag:

    @task
    def stop_trainings() -> dict[str, str]:
        from allaboard_provider.hooks.allaboard import AllaboardHook
        from allaboard_provider.identity import instance

        context: Any = get_current_context()
        place = Connection.get(REST)
        rest = Rest(str(place.host), place.login, place.password)
        own = context["dag_run"]
        if rest.state("dags", own.dag_id, "dagRuns", own.run_id) is None:
            # Another Airflow, or a proxy that finds nothing: there every DAG run would seem to be gone.
            raise RuntimeError(
                f"{place.host} does not know this DAG run: is that the API server of this Airflow?"
            )
        return stop_gone(AllaboardHook(CLUSTER).get_conn(), rest, instance(context))

    stop_trainings()

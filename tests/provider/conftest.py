"""Tests of the provider: Airflow is told where it lives before it is imported, and never phones, guesses or
shows examples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.provider.live import Live

HERE = Path(__file__).resolve().parent

os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(HERE.parents[1] / "dags_examples")
os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"
os.environ["AIRFLOW__ALLABOARD__INSTANCE"] = "tests"
os.environ["AIRFLOW__ALLABOARD__DEFER_AFTER"] = "0"  # tests of triggers do not wait for one

# Without retry policies these two cannot even be imported.
collect_ignore = (
    [] if find_spec("airflow.sdk.definitions.retry_policy") else ["test_retries.py", "test_exceptions.py"]
)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs, slots and the default store of this test alone, emptied of live runs at the end. Airflow's plugin
    is not loaded, as in a bare process; no scheduler is there that a trigger could be too quick for.
    """
    from allaboard.backends.local.backend import LocalBackend
    from allaboard.runs.status import state_of
    from allaboard_provider import plugin
    from allaboard_provider.triggers import polling
    from tests.provider.runs import stop

    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ALLABOARD_POOL", str(tmp_path / "pool"))
    monkeypatch.setattr(plugin.Listener, "active", False)
    monkeypatch.setattr(polling, "SETTLE", 0.0)
    yield
    for seen in LocalBackend().list() if (tmp_path / "home").exists() else ():
        if not state_of(seen).is_final:
            stop(seen)


@pytest.fixture(autouse=True)
def triggerer(own_home: None, tmp_path: Path) -> Iterator[Any]:
    """A triggerer that lives beside the runs of this test, the only one of its Airflow. Its `close` ends
    it.
    """
    from allaboard_provider.triggerers import Presence

    presence = Presence(str(tmp_path / "home"), None)
    presence.say([])
    yield presence
    presence.close()


@pytest.fixture(scope="session")
def examples(root: Path) -> Path:
    """The DAGs that a newcomer runs first."""
    return root / "dags_examples"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A whole Airflow for all tests of a file. A test that ends a part of it starts another one."""
    from tests.provider.live import Live

    executors = {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor,pods:pods.PodExecutor"}
    live = Live(tmp_path_factory.mktemp("live"), **executors)
    try:
        live.airflow.start()
        live.airflow.wait_until_ready(400)
        yield live
    finally:
        live.stop()


@pytest.fixture
def airflow_says(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes Airflow answer, when it is asked for the state of a task, or of its DAG run."""

    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def says(answer: Any, dag_run: str = "running") -> None:
        def states(dag_id: str, task_ids: list[str], run_ids: list[str], map_index: int) -> dict[str, Any]:
            found = answer() if callable(answer) else answer
            task = task_ids[0] if map_index < 0 else f"{task_ids[0]}_{map_index}"
            return {run_ids[0]: {task: found}} if found is not None else {}

        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
        monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(lambda *_: dag_run))

    return says


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cluster in memory behind the connection ``cluster``."""
    from allaboard.render.cluster_facts import assumed_facts
    from allaboard.testing.cluster import FakeCluster
    from allaboard_provider import clusters
    from allaboard_provider.hooks.allaboard import AllaboardHook

    found = FakeCluster()
    fields = {"backend": "kubernetes", "store": "s3://bucket/team", "image": "lab/train:1"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "allaboard", "extra": fields}))

    def given(hook: AllaboardHook) -> dict[str, Any]:
        facts = assumed_facts(hook.environment, "default")
        return {"site": hook.site, "environ": hook.environment, "facts": facts}

    async def aread_connection(conn_id: str, namespace: str | None) -> Any:
        return clusters.ClusterConnection(conn_id, {}, namespace)

    @asynccontextmanager
    async def awaited(hook: AllaboardHook) -> Any:
        yield found.async_backend(**given(hook))

    monkeypatch.setattr(clusters, "aread_connection", aread_connection)
    monkeypatch.setattr(AllaboardHook, "on_cluster", lambda hook, pause=None: found.backend(**given(hook)))
    monkeypatch.setattr(AllaboardHook, "awaited", awaited)
    return found

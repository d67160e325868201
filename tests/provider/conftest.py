"""Tests of the provider: Airflow is told where it lives before it is imported, and never phones, guesses or
shows examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(HERE.parents[1] / "dags_examples")
os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"
os.environ["AIRFLOW__ALLABOARD__INSTANCE"] = "tests"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs, slots and the default store of this test alone, emptied of live runs at the end. Airflow's plugin
    is not loaded, as in a bare process; no scheduler is there that a trigger could be too quick for.
    """
    from allaboard.backends.local.backend import LocalBackend
    from allaboard.status import state_of
    from allaboard_provider import plugin
    from allaboard_provider.triggers import looking
    from tests.provider.runs import stop

    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ALLABOARD_POOL", str(tmp_path / "pool"))
    monkeypatch.setattr(plugin.Listener, "active", False)
    monkeypatch.setattr(looking, "SETTLE", 0.0)
    yield
    for seen in LocalBackend().list() if (tmp_path / "home").exists() else ():
        if not state_of(seen).is_final:
            stop(seen)


@pytest.fixture(scope="session")
def examples(root: Path) -> Path:
    """The DAGs that a newcomer runs first."""
    return root / "dags_examples"

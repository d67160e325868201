"""A machine of its own for every test of the components: home, pool, store and pipeline root in temporary
folders, nothing alive at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.processes import kill_run
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.state.records import read_record
from allaboard.render.cluster_facts import assumed_facts
from allaboard.runs.observation import Observation
from allaboard.testing.cluster import FakeCluster

pytest.importorskip("kfp")

from kfp import dsl

from allaboard_kfp import step

JOBS = Path(__file__).parent / "jobs"
PIPELINE_RUN = "0c1d2e3f-1111-2222-3333-444455556666"


@dataclass
class Here:
    """This test's machine."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def out(self) -> Path:
        """The pipeline root."""
        return self.folder / "out"

    def runs(self) -> list[Observation]:
        return LocalBackend().list()

    def the_run(self) -> Observation:
        (run,) = self.runs()
        return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ALLABOARD_POOL", str(tmp_path / "pool"))
    monkeypatch.setenv("ALLABOARD_STORE", str(tmp_path / "store"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield Here(tmp_path)
    if (tmp_path / "home").exists():
        for path in LocalBackend().runs.glob("*"):
            run = RunFolder(path)
            record = read_record(run)
            if record is None:
                continue
            # A supervisor that lives would restart the members that are swept.
            attempt = run.attempt(record.generation, record.attempt)
            attempt.write_request(
                "end", {"do": "stop", "by": "test", "reason": "its end", "at": 0.0, "kill": True}
            )
            deadline = time.monotonic() + 60
            while attempt.is_live() and time.monotonic() < deadline:
                time.sleep(0.02)
            kill_run(record.uid)


@pytest.fixture
def job(here: Here) -> dict[str, Any]:
    """A job of one member that takes a second; `jobs/quick.py` says what else it can do."""
    return {
        "name": "quick",
        "command": ["python", "quick.py"],
        "workers": 1,
        "checkpoints": {
            "uri": "store://checkpoints",
            "every": 2,
            "best": {"metric": "val_loss", "mode": "min"},
        },
    }


@dataclass
class Artifacts:
    """What kfp would give to the functions of components: artifacts whose places are in one task's folder."""

    task: Path

    def __getitem__(self, kind: type[dsl.Artifact]) -> dsl.Artifact:
        name = kind.__name__.lower()
        self.task.mkdir(parents=True, exist_ok=True)
        return kind(name=name, uri=str(self.task / name))


@pytest.fixture
def artifacts(here: Here) -> Callable[..., Artifacts]:
    """``artifacts("train")``: the place of a task of one pipeline run; the same again for its next try."""

    def of(task: str, run: str = "pipe-2026-11-21-12-00-00-000001") -> Artifacts:
        return Artifacts(here.out / run / task)

    return of


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def cluster(here: Any, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster in memory, and a pod of a pipeline on it."""
    found = FakeCluster()

    def backend_of(name: Any, *, site: Any, namespace: str | None) -> Any:
        assert name == "kubernetes"
        facts = assumed_facts(os.environ, namespace or "default")
        return found.backend(site=site, environ=dict(os.environ), facts=facts)

    monkeypatch.setattr(step, "backend_of", backend_of)
    for name, value in {
        "ALLABOARD_BACKEND": "kubernetes", "ALLABOARD_IMAGE": "lab/train:1",
        "ALLABOARD_STORE": "s3://bucket/team", "KFP_POD_NAME": "retrain-1", "KFP_POD_UID": "pod-1",
        "KFP_RUN_ID": PIPELINE_RUN, "ARGO_NODE_NAME": "retrain(0).root(0).train(0).executor(0)",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return found

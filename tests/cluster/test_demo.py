"""`make demo-cluster` and `make cluster-down`, from a checkout of its own, below which the cluster lies that
it starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import components
from tests.cluster.plane import obstacle
from tests.meta.source import ROOT, tracked

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.airflow_live,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(900),
]
DEMO, DOWN = ["dags_examples/demo_cluster.py"], ["-m", "tests.cluster", "down"]


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    for component in components.chosen(["training-operator", "s3", "nodes"]):
        if reason := obstacle(component):
            pytest.skip(reason)
    for path in tracked():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    yield tmp_path
    run(tmp_path, *DOWN)


def run(checkout: Path, *words: str) -> str:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("ALLABOARD_", "AIRFLOW_", "KUBECONFIG"))}
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def test_make_says_the_same() -> None:
    lines = (ROOT / "Makefile").read_text()
    for words in (DEMO, DOWN):
        assert f"@$(AIRFLOW)/bin/python {' '.join(words)} $(ARGS)" in lines


def test_from_nothing_to_a_model_that_is_promoted_and_away_again(checkout: Path) -> None:
    said = run(checkout, *DEMO)
    print(said)
    assert "Promoted: champion number 1, accuracy 0.9" in said and "make cluster-down" in said
    state = checkout / ".allaboard/cluster"
    assert state.is_dir()
    print(run(checkout, *DOWN))
    assert not state.exists()

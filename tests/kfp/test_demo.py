"""`make demo-kfp`: the example's pipeline on real digits, twice, and on a bad day."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allaboard.promotion.champion import history
from allaboard.storage import open_store
from tests.kfp.conftest import Here
from tests.kfp.golden import ROOT
from tests.kfp.ir import validated


@pytest.fixture
def clone(here: Here) -> Path:
    """The examples in a fresh place, where nothing was demonstrated yet."""
    shutil.copytree(
        ROOT / "dags_examples",
        here.folder / "clone" / "dags_examples",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return here.folder / "clone"


def demo(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "dags_examples/demo_kfp.py", *arguments],
        cwd=clone, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_demo_trains_promotes_and_shows_the_gate(clone: Path) -> None:
    """DistributedDataParallel on two processes; the second time a model that learned less."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    made = clone / ".allaboard" / "demo-kfp"

    first = demo(clone)
    assert first.returncode == 0, first.stdout + first.stderr
    for step in ("1/5 prepare-shards", "2/5 train", "3/5 collect-checkpoint", "4/5 evaluate", "5/5 promote"):
        assert step in first.stdout
    assert "step 317/317 (100%)" in first.stdout
    assert "Promoted: champion number 1" in first.stdout
    # What surrounds the steps' words is in the log alone.
    assert "KFP Executor" not in first.stdout
    assert "executor_input" in (made / "log.txt").read_text()

    (champion,) = history(open_store(made / "store" / "digits")).promotions
    assert champion.metrics["accuracy"] >= 0.97
    assert champion.metrics["digits"] == 356
    assert Path(champion.checkpoint).is_relative_to(made / "store" / "digits" / "models")

    validated((made / "retrain_digits.yaml").read_text())
    assert (made / "pages" / "train.html").read_text().startswith("<!doctype html>")
    places = re.findall(r"[^\s=]*\.allaboard/\S+", first.stdout.partition("Promoted:")[2])
    assert len(places) > 8
    assert [place for place in places if not (clone / place.removeprefix("file://")).exists()] == []

    second = demo(clone, "--epochs", "1")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "The champion is number 1" in second.stdout
    assert "The gate stayed shut" in second.stdout
    assert history(open_store(made / "store" / "digits")).promotions == (champion,)


@pytest.mark.thorough
def test_a_demo_that_fails_says_why(clone: Path) -> None:
    pytest.importorskip("sklearn")
    (clone / "dags_examples" / "digits" / "train.py").write_text("raise ValueError('no such luck')\n")
    answer = demo(clone)
    assert answer.returncode == 1
    assert "ValueError: no such luck" in answer.stdout
    assert "The pipeline failed" in answer.stdout
    assert "3/5" not in answer.stdout
    assert "Traceback" not in answer.stderr

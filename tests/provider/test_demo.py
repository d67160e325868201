"""`make demo`: a newcomer's first two minutes, and the second time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard.promotion.champion import history
from allaboard.runs.status import state_of
from allaboard.storage import open_store
from tests.provider.live import until

pytestmark = [
    pytest.mark.airflow_live,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A copy of the examples: the demo keeps what it makes beside them."""
    folder = tmp_path_factory.mktemp("demo")
    shutil.copytree(
        root / "dags_examples", folder / "dags_examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


def demo(place: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "dags_examples/demo.py", *words],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "200"},
    )


def output_of(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate()
    return text


def test_the_first_time_there_is_a_champion_and_the_end_says_where_everything_is(place: Path) -> None:
    process = demo(place)
    text = output_of(process)
    assert process.returncode == 0, text
    assert re.search(r"train: step \d+/317, loss", text), "progress was not visible"
    champion = history(open_store(place / ".allaboard" / "demo" / "store" / "digits")).champion
    assert champion is not None and champion.metrics["accuracy"] >= 0.97
    assert f"Promoted: champion number 1, accuracy {champion.metrics['accuracy']:.4f}" in text
    places = dict(re.findall(r"^  (checkpoint|metrics|task logs) +(.+)$", text, re.MULTILINE))
    assert (place / places["checkpoint"] / "manifest.json").exists()
    assert (place / places["task logs"] / "task_id=train").is_dir()
    assert json.loads(places["metrics"])["accuracy"] == champion.metrics["accuracy"]
    logs = re.search(r"^  training +ALLABOARD_HOME=(\S+) (\S+) logs (\S+)$", text, re.MULTILINE)
    assert logs is not None
    answer = subprocess.run(
        [logs[2], "logs", logs[3], "--json"],
        cwd=place, env={**os.environ, "ALLABOARD_HOME": logs[1]}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"step":317' in answer.stdout.replace("\\", "")


def test_the_second_time_only_a_better_model_is_promoted(place: Path) -> None:
    process = demo(place, "--epochs", "1")
    text = output_of(process)
    assert process.returncode == 0, text
    assert "The gate stayed shut" in text and "The champion is number 1" in text
    assert len(history(open_store(place / ".allaboard" / "demo" / "store" / "digits")).promotions) == 1


def test_ctrl_c_ends_the_training_and_airflow_with_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_HOME", str(place / ".allaboard" / "demo" / "home"))
    before = len(LocalBackend().list())
    process = demo(place, "--epochs", "400")

    def at_its_steps() -> bool:
        runs = LocalBackend().list()
        return len(runs) > before and bool(runs[0].progress.step)

    until("the training is at its steps", at_its_steps)
    process.send_signal(signal.SIGINT)
    text = output_of(process)
    assert process.returncode == 130, text
    assert all(state_of(seen).is_final for seen in LocalBackend().list())

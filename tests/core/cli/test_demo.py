"""``allaboard demo``: real processes, a real kill, a real promotion; what it types works when it is typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from allaboard.cli import app
from allaboard.cli.start import demo as under_test
from tests.core.cli.terminal import Terminal

SHORT = """\
name: spirals
command: [python, train.py]
engine: trainjob
workers: 2
resources: {cpu: 1}
policy: {restart: on_failure, backoff_limit: 6}
data: {shards: "store://spirals/shards"}
checkpoints: {uri: "store://spirals/checkpoints", every: 20, keep: 3, best: {metric: mean_loss, mode: min}}
environment: {EPOCHS: "8", PAUSE: "0.05"}
code: [train.py, data.py]
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_worker_is_killed_and_its_model_becomes_the_champion(ab: Terminal, tmp_path: Path) -> None:
    place = tmp_path / "here"
    place.mkdir()
    (place / "train.yaml").write_text(SHORT)  # what is there stays
    demo = ab.start("demo", str(place))
    said, _ = demo.communicate(timeout=220)
    assert demo.returncode == 0, said
    fate = re.search(
        r"worker-0 was killed; the training went on from step (\d+): \d+ steps? done twice", said
    )
    assert fate is not None and int(fate[1]) % 20 == 0, said
    assert "promoted as number 1" in said and "no champion to beat" in said
    assert (place / "train.yaml").read_text() == SHORT
    assert "<svg" in (place / "page.html").read_text()
    # Each of its commands is one that a person may type in that folder.
    commands = re.findall(r"^\$ allaboard (.*)$", said, re.MULTILINE)
    assert [words.split()[0] for words in commands] == ["shards", "run", "evaluate", "promote", "report"]


@pytest.mark.parametrize("lacking", ["torch", "numpy"])
def test_it_says_what_it_needs(lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "find_spec", lambda name: None if name == lacking else object())
    done = CliRunner().invoke(app, ["demo", str(tmp_path / "x")], standalone_mode=False)
    assert "pip install 'allaboard[torch]'" in str(done.exception) and f"no {lacking};" in str(done.exception)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_is_none_is_told(ab: Terminal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = ab("demo", str(tmp_path / "file"))
    assert said.code == 2
    assert "cannot hold the demo" in said.err and "name a folder" in said.err

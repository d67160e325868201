"""The libraries themselves write: what they finish is whole, what is killed is not. Without network."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from allaboard.checkpoints.foreign import Verdict, judge_place
from allaboard.checkpoints.foreign.unit import MOST_READ
from allaboard.storage import open_store
from tests.core.checkpoints.foreign.test_samples import EXPECTED

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / ".venv" / "frameworks" / "bin" / "python"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason="the libraries are not installed here: make frameworks"),
]


def run(script: str, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(PYTHON), str(ROOT / "tests" / "frameworks" / script), *arguments],
        env={**environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("kind", EXPECTED)
def test_what_the_installed_library_writes_is_whole(kind: str, tmp_path: Path) -> None:
    run("writers.py", kind, str(tmp_path / "out"))
    judged = judge_place(open_store(tmp_path / "out"))
    assert {(j.unit.name, j.format, j.facts.step, j.facts.epoch) for j in judged} >= {*EXPECTED[kind]}
    assert [(j.unit.name, j.verdict, j.reason) for j in judged if j.verdict is not Verdict.WHOLE] == []


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("trainer", 20),
        ("trainer_over", 20),
        ("lightning", 20),
        ("torch_file", 20),
        ("torch_dcp", 20),
        ("safetensors", 20),
        ("keras", 20),
        ("keras_h5", 20),
        ("xgboost", 20),
        ("xgboost_ubj", 20),
        ("lightgbm", 20),
    ],
)
def test_killed_while_it_saves_what_is_torn_is_never_whole(kind: str, rounds: int, tmp_path: Path) -> None:
    """A checkpoint that is called whole is one that its library loads again, every time."""
    loads = json.loads(run("kills.py", kind, str(tmp_path), str(rounds), "7").splitlines()[-1])
    wrong, whole, others, unjudged = [], 0, 0, 0
    for name, loaded in loads.items():
        for item in judge_place(open_store(tmp_path / name)):
            if item.verdict is Verdict.UNKNOWN and item.unit.name in loaded:
                unjudged += 1
            elif item.verdict is not Verdict.WHOLE:
                others += 1
            elif item.unit.name in loaded:
                whole += 1
            else:
                wrong.append((name, item.unit.name))
    # Weights alone may be the beginning of a save of more: they are called whole by nobody.
    assert wrong == [] and (unjudged if kind == "safetensors" else whole) > rounds // 2
    print(f"{kind}: {rounds} kills, {whole} whole, {others} torn or unknown")


def test_large_models_of_xgboost_cut_at_random_places_are_torn(tmp_path: Path) -> None:
    run("writers.py", "xgboost_large", str(tmp_path / "out"))
    chance, wrong = random.Random(11), []
    for path in sorted((tmp_path / "out").iterdir()):
        size = path.stat().st_size
        [judged] = judge_place(open_store(path.parent), path.name)
        assert (judged.verdict, judged.facts.step) == (Verdict.WHOLE, 699) and size > MOST_READ, judged
        for at in sorted((chance.randrange(99, size) for _ in range(200)), reverse=True):
            os.truncate(path, at)
            [cut] = judge_place(open_store(path.parent), path.name)
            wrong += [(path.name, at, cut.verdict)] if cut.verdict is not Verdict.TORN else []
    assert wrong == []


@pytest.mark.parametrize("kind", ["trainer", "lightning", "accelerate"])
def test_with_a_callback_it_saves_on_sigterm(kind: str, tmp_path: Path) -> None:
    command = [str(PYTHON), str(ROOT / "tests" / "frameworks" / "callbacks.py"), kind, str(tmp_path / "out")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "core" / "src"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as script:
        assert script.stdout is not None
        for line in script.stdout:
            if b'"step":3' in line:
                assert b'"loss":' in line
                break
        script.terminate()
        last = [line for line in script.stdout if b'"step":' in line][-1:]
        assert script.wait() == 143
    [judgement] = judge_place(open_store(tmp_path / "out"))
    assert judgement.verdict is Verdict.WHOLE, judgement.reason
    if kind != "accelerate":  # which names its states by their order
        assert judgement.facts.step is not None and judgement.facts.step >= 3, last

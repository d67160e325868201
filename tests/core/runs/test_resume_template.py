"""``{checkpoint}`` is filled in, or dropped with its flag; every other brace stays."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from allaboard.runs import resume_template
from allaboard.runs.resume_template import fill_command, fill_environment, has_template, is_template

NEWEST = "/data/out/checkpoint-500"


@pytest.mark.parametrize(
    ("command", "with_one", "without"),
    [
        (["--resume", "{checkpoint}"], ["--resume", NEWEST], []),
        (["-r", "{checkpoint}", "-v"], ["-r", NEWEST, "-v"], ["-v"]),
        (["--resume={checkpoint}"], [f"--resume={NEWEST}"], []),
        (["ckpt_path={checkpoint}", "x=1"], [f"ckpt_path={NEWEST}", "x=1"], ["x=1"]),
        (["+trainer.ckpt={checkpoint}"], [f"+trainer.ckpt={NEWEST}"], []),
        (["train.py", "{checkpoint}"], ["train.py", NEWEST], ["train.py"]),
        (["--lr=1", "{checkpoint}"], ["--lr=1", NEWEST], ["--lr=1"]),
        (["--a", "{checkpoint}", "--b", "{checkpoint}"], ["--a", NEWEST, "--b", NEWEST], []),
        (["{checkpoint}"], [NEWEST], []),
    ],
)
def test_filled_in_or_dropped(command: list[str], with_one: list[str], without: list[str]) -> None:
    assert has_template(command, {})
    assert fill_command(command, NEWEST) == with_one
    assert fill_command(command, None) == without


@pytest.mark.parametrize(
    "word",
    [
        "${checkpoint}",
        "{checkpoint,}",
        "{{checkpoint}}",
        "{a,b}",
        '{"checkpoint": 1}',
        "x{checkpoint}",
        "{checkpoint}/model.pt",
        "--resume {checkpoint}",
        "python train.py --resume {checkpoint}",
        "print(f'{checkpoint}')",
        "a={checkpoint}b",
        "a b={checkpoint}",
        "{Checkpoint}",
        "{ checkpoint }",
        "{checkpoint",
        "--resume={checkpoint}\n",
        "",
    ],
)
def test_other_braces_stay(word: str) -> None:
    assert not is_template(word)
    assert fill_command(["--x", word], NEWEST) == fill_command(["--x", word], None) == ["--x", word]
    assert fill_environment({"A": word}, None) == {"A": word}


def test_variables() -> None:
    environment = {"RESUME": "{checkpoint}", "B": "b={checkpoint}", "C": "c"}
    assert has_template([], environment)
    assert fill_environment(environment, NEWEST) == {"RESUME": NEWEST, "B": "b={checkpoint}", "C": "c"}
    assert fill_environment(environment, None) == {"B": "b={checkpoint}", "C": "c"}


def test_it_can_move_into_a_container() -> None:
    """Python 3.8, and nothing but the standard library."""
    tree = ast.parse(Path(resume_template.__file__).read_text(), feature_version=(3, 8))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "collections.abc"}

"""`allaboard evaluate` and `allaboard promote`: from a checkpoint to a champion, and back."""

from __future__ import annotations

import json

import pytest

from tests.core.cli.terminal import STATUS, Terminal

SAVES = """
from allaboard.inside import Checkpointer
saver = Checkpointer()
for step in (10, 20):
    saver.save(step, b"state %d" % step, metrics={"accuracy": step / 25})
"""
EVALUATES = """
from allaboard.inside import context, open_checkpoint, result
found = open_checkpoint()
assert found.uri == context().checkpoint
result(accuracy=int(found.load().split()[1]) / 25 + 0.01, step=found.step)
"""


@pytest.fixture
def saved(ab: Terminal) -> Terminal:
    """A run with two checkpoints, and an evaluation for them."""
    assert ab("run", ab.job(SAVES, checkpoints={"uri": "saved"})).code == 0
    ab.job(EVALUATES, file="evaluate.json", name="evaluation")
    return ab


def at(ab: Terminal, step: int) -> str:
    run = next(run for run in ab.runs() if run.startswith("digits"))
    return f"{ab.folder}/saved/{run}/step-{step:012d}"


# --- evaluate


def test_an_evaluation_is_a_run_of_its_own(saved: Terminal) -> None:
    said = saved("evaluate", "evaluate.json", "--checkpoint", at(saved, 10))
    assert said.code == 0 and "accuracy 0.41, step 10" in said.out
    assert any(run.startswith("evaluation-") for run in saved.runs())
    said = saved("evaluate", "evaluate.json", "--checkpoint", at(saved, 20), "--json")
    assert (
        said.code == 0 and set(said.json) == STATUS and said.json["metrics"] == {"accuracy": 0.81, "step": 20}
    )


def test_a_runs_folder_means_its_newest_checkpoint(saved: Terminal) -> None:
    said = saved("evaluate", "evaluate.json", "--checkpoint", at(saved, 10).rpartition("/")[0], "--json")
    assert said.json["metrics"]["step"] == 20


@pytest.mark.thorough
def test_a_failed_evaluation(saved: Terminal) -> None:
    job = saved.job("raise ValueError('odd')", file="bad.json", name="bad", policy={"restart": "never"})
    said = saved("evaluate", job, "--checkpoint", at(saved, 10))
    assert (
        said.code == 1
        and "ValueError: odd" in said.err
        and "allaboard evaluate bad.json --checkpoint" in said.err
    )


@pytest.mark.thorough
def test_a_checkpoint_that_is_not_there_starts_nothing(saved: Terminal) -> None:
    before = saved.runs()
    said = saved("evaluate", "evaluate.json", "--checkpoint", at(saved, 99))
    assert said.code == 2 and "no complete checkpoint is there" in said.err
    assert saved.runs() == before


# --- promote


def test_the_first_is_the_champion_and_only_a_better_one_follows(saved: Terminal) -> None:
    first = saved("promote", at(saved, 10), "--into", "champions", "--metric", "accuracy")
    assert first.code == 0 and "no champion to beat" in first.out and "promoted as number 1" in first.out
    again = saved("promote", at(saved, 10), "--into", "champions", "--metric", "accuracy", "--json")
    assert again.code == 0 and again.json["promotion"]["number"] == 1, "it is the champion already"
    better = saved(
        "promote",
        at(saved, 20),
        "--into",
        "champions",
        "--metric",
        "accuracy",
        "--better-by",
        "0.1",
        "--json",
    )
    assert better.json["promoted"] is True and better.json["champion"]["number"] == 2
    worse = saved("promote", at(saved, 10), "--into", "champions", "--metric", "accuracy")
    assert (
        worse.code == 0
        and "✗ accuracy 0.4 is not better" in worse.out
        and "the champion stays number 2" in worse.out
    )
    body = saved("promote", at(saved, 10), "--into", "champions", "--metric", "accuracy", "--json").json
    assert (
        body["promoted"] is False and body["champion"]["number"] == 2 and body["verdict"]["passed"] is False
    )


@pytest.mark.thorough
def test_thresholds(saved: Terminal) -> None:
    said = saved("promote", at(saved, 20), "--into", "champions", "--threshold", "accuracy>=0.97")
    assert (
        said.code == 0
        and "not promoted; there is no champion" in said.out
        and "not at least 0.97" in said.out
    )
    assert not (saved.folder / "champions").exists()
    assert (
        saved("promote", at(saved, 20), "--into", "champions", "--threshold", "accuracy>=0.5").out.count("✓")
        == 1
    )


@pytest.mark.thorough
def test_the_metrics_of_an_evaluation_count(saved: Terminal) -> None:
    evaluated = saved("evaluate", "evaluate.json", "--checkpoint", at(saved, 20), "--json").out
    saved.write("evaluation.json", evaluated)
    gate = ["--into", "champions", "--threshold", "accuracy>=0.805"]
    assert saved("promote", at(saved, 20), *gate, "--json").json["promoted"] is False, "the manifest says 0.8"
    said = saved("promote", at(saved, 20), *gate, "--metrics", "evaluation.json", "--json")
    assert said.json["promoted"] is True and said.json["promotion"]["metrics"]["accuracy"] == 0.81
    other = saved(
        "promote", at(saved, 10), "--into", "champions", "--metrics", "-", "--json", stdin='{"accuracy": 0.9}'
    )
    assert other.json["promotion"]["number"] == 2 and other.json["promotion"]["metrics"] == {"accuracy": 0.9}


def test_rolling_back_and_the_history(saved: Terminal) -> None:
    for step in (10, 20):
        assert (
            saved("promote", at(saved, step), "--into", "store://champions", "--reason", f"try {step}").code
            == 0
        )
    said = saved("promote", "--into", "store://champions", "--rollback")
    assert said.code == 0 and "promoted as number 3, which was number 1" in said.out
    body = saved("promote", "--into", "store://champions", "--history", "--json").json
    assert [p["number"] for p in body["promotions"]] == [3, 2, 1] and body["champion"]["step"] == 10
    table = saved("promote", "--into", "store://champions", "--history").out.splitlines()
    assert table[0].split()[0] == "number" and "rollback to promotion 1" in table[1] and "try 20" in table[2]
    said = saved(
        "promote",
        "--into",
        "store://champions",
        "--rollback",
        "--to",
        "2",
        "--reason",
        "it was not that",
        "--json",
    )
    assert said.json["champion"]["restores"] == 2 and said.json["champion"]["by"].count("@") == 1


def test_a_history_of_nothing(ab: Terminal) -> None:
    said = ab("promote", "--into", "champions", "--history")
    assert said.code == 0 and "nothing was promoted" in said.out
    assert ab("promote", "--into", "champions", "--history", "--json").json["promotions"] == []
    said = ab("promote", "--into", "champions", "--rollback")
    assert said.code == 2 and "no promotion before the present one" in said.err


WRONG = {
    "no checkpoint": (["nowhere/step-000000000010"], "no complete checkpoint is there"),
    "no file": (["CHECKPOINT", "--metrics", "lost.json"], "lost.json: no such file"),
    "no JSON": (["CHECKPOINT", "--metrics", "job.py"], "is not JSON"),
    "no metrics": (["CHECKPOINT", "--metrics", "list.json"], "expected an object of metrics"),
    "a failed evaluation": (["CHECKPOINT", "--metrics", "failed.json"], "the evaluation failed"),
    "better in nothing": (["CHECKPOINT", "--better-by", "0.1"], "better_by needs a metric; name it"),
    "where to without a rollback": (["CHECKPOINT", "--to", "1"], "add --rollback, or leave out --to"),
    "two things": (["CHECKPOINT", "--history"], "CHECKPOINT and --history are given"),
}  # fmt: skip


@pytest.mark.thorough(but=("two things", "no checkpoint"))
@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_promoted(saved: Terminal, case: str) -> None:
    saved.write("list.json", "[1]")
    saved.write("failed.json", json.dumps({"state": "failed", "metrics": {"accuracy": 1.0}}))
    words, expected = WRONG[case]
    said = saved(
        "promote", *(at(saved, 10) if w == "CHECKPOINT" else w for w in words), "--into", "champions"
    )
    assert said.code == 2 and expected in said.err, said.text
    assert not (saved.folder / "champions").exists()

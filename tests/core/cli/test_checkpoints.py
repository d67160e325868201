"""`allaboard checkpoints`: a run's or a folder's, on disk and in a bucket."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.cli.terminal import Terminal
from tests.core.s3server import S3Server

SAVES = """
from allaboard.inside import Checkpointer, report
saver = Checkpointer()
for step in range(1, 6):
    report(step=step, total=5)
    metrics = {"loss": 1 / step, "accuracy": 0.9 if step == 3 else 0.1}
    saver.step(step * 10, lambda: b"state %d" % step, metrics=metrics)
"""
STEPS = [10, 20, 30, 40, 50]


@pytest.fixture
def saved(ab: Terminal) -> Terminal:
    """A run that has saved five checkpoints."""
    assert ab("run", ab.job(SAVES, checkpoints={"uri": "saved", "every": 10})).code == 0
    return ab


def place(ab: Terminal) -> str:
    return f"saved/{ab.runs()[0]}"


def steps(ab: Terminal, where: str) -> list[int]:
    said = ab("checkpoints", "list", where, "--json")
    assert said.code == 0, said.text
    return [found["step"] for found in said.json["checkpoints"]]


def test_listed_by_run_and_by_place(saved: Terminal) -> None:
    for where in (
        "digits",
        saved.runs()[0],
        place(saved),
        f"./{place(saved)}/",
        f"{saved.folder}/{place(saved)}",
        "saved",
    ):
        assert steps(saved, where) == STEPS, where
    assert steps(saved, f"{place(saved)}/step-000000000030") == [30]
    body = saved("checkpoints", "list", "digits", "--json").json["checkpoints"][2]
    assert body["uri"] == f"{saved.folder}/{place(saved)}/step-000000000030"
    assert (
        body["metrics"] == {"loss": 1 / 3, "accuracy": 0.9}
        and body["bytes"] == 7
        and body["run"] == saved.runs()[0]
    )


def test_the_table(saved: Terminal) -> None:
    head, *rows = saved("checkpoints", "list", "digits").out.splitlines()
    assert head.split() == ["step", "saved", "size", "metrics", "where"]
    assert len(rows) == 5 and "loss 0.3333, accuracy 0.9" in rows[2]


def test_torn_ones_are_named_and_not_listed(saved: Terminal) -> None:
    next((saved.folder / place(saved) / "step-000000000050").glob("state*")).unlink()
    said = saved("checkpoints", "list", "digits")
    assert said.code == 0 and "step 50 is torn and not used" in said.err
    assert steps(saved, "digits") == STEPS[:-1]


@pytest.mark.thorough
def test_the_end_of_a_run_names_its_newest_checkpoint(saved: Terminal) -> None:
    page = saved("status", "digits").out
    assert f"checkpoint  {saved.folder}/{place(saved)}/step-000000000050" in page
    assert saved("status", "digits", "--json").json["checkpoints"]["latest"].endswith("step-000000000050")


def test_verifying(saved: Terminal) -> None:
    said = saved("checkpoints", "verify", "digits")
    assert said.code == 0 and said.out.splitlines() == [f"step {n}: whole" for n in STEPS]
    part = next((saved.folder / place(saved) / "step-000000000020").glob("state*"))
    part.write_bytes(b"stale 2")
    said = saved("checkpoints", "verify", "digits", "--json")
    assert said.code == 2
    assert {c["step"]: c["ok"] for c in said.json["checkpoints"]} == {
        10: True,
        20: False,
        30: True,
        40: True,
        50: True,
    }
    assert "sha256 differs" in saved("checkpoints", "verify", "digits", "--step", "20").out
    assert saved("checkpoints", "verify", "digits", "--step", "30").code == 0
    assert saved("checkpoints", "verify", f"{place(saved)}/step-000000000020").code == 2


def test_collecting_the_newest_the_best_or_a_step(saved: Terminal) -> None:
    run = saved.runs()[0]
    said = saved("checkpoints", "collect", "digits", "models")
    assert said.code == 0 and said.out.rstrip().endswith(f"{saved.folder}/models/{run}/step-000000000050")
    said = saved("checkpoints", "collect", "digits", "models", "--best", "accuracy:max", "--json")
    assert said.json["step"] == 30 and said.json["uri"] == f"{saved.folder}/models/{run}/step-000000000030"
    assert (
        saved("checkpoints", "collect", "digits", "store://models", "--step", "20", "--store", "team").code
        == 0
    )
    assert steps(saved, f"team/models/{run}") == [20]
    again = saved("checkpoints", "collect", "digits", "models", "--step", "50")
    assert again.code == 0 and "were there already" in again.out


def test_a_damaged_newest_is_passed_over_and_said(saved: Terminal) -> None:
    next((saved.folder / place(saved) / "step-000000000050").glob("state*")).write_bytes(b"stale 5")
    said = saved("checkpoints", "collect", "digits", "models")
    assert said.code == 0 and "step-000000000040" in said.out and "step 50 was passed over" in said.err


@pytest.mark.thorough
def test_pruning(saved: Terminal) -> None:
    said = saved("checkpoints", "prune", "digits", "--keep", "2", "--best", "accuracy:max")
    assert said.code == 0 and "kept steps 30, 40, 50; retired steps 10, 20" in said.out
    assert steps(saved, "digits") == [30, 40, 50]
    said = saved("checkpoints", "prune", "digits", "--keep", "1", "--json")
    assert said.json["kept"] == [50] and said.json["retired"] == [30, 40]


WRONG = {
    "no such folder": (["list", "./nowhere"], 0, "no complete checkpoint in"),
    "no such run": (["list", "nothing"], 2, "there is no run 'nothing'"),
    "nothing to verify": (["verify", "./nowhere"], 2, "no checkpoint in"),
    "nothing to collect": (["collect", "./nowhere", "models"], 2, "no complete checkpoint is there"),
    "no such step": (
        ["collect", "digits", "models", "--step", "7"], 2, "complete steps are: 10, 20, 30, 40, 50",
    ),
    "best by nothing": (["collect", "digits", "models", "--best", "loss"], 2, "val_loss:min"),
    "best by what is not": (["collect", "digits", "models", "--best", "f1:max"], 2, "has a finite metric"),
    "two choices": (["collect", "digits", "models", "--best", "loss:min", "--step", "7"], 2, "not both"),
    "keep nothing": (["prune", "digits", "--keep", "0"], 2, "0 is not in the range"),
    "prune one": (["prune", "saved/x/step-000000000010", "--keep", "1"], 2, "name the run's folder"),
    "no kind of store": (["list", "gs://bucket/x"], 2, "is not a kind of store"),
}  # fmt: skip


@pytest.mark.thorough(but=("no such step", "no such run"))
@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_there(saved: Terminal, case: str) -> None:
    words, code, expected = WRONG[case]
    said = saved("checkpoints", *words)
    assert said.code == code and expected in said.text, said.text


def test_a_run_that_saves_nothing(ab: Terminal) -> None:
    assert ab("run", ab.job()).code == 0
    said = ab("checkpoints", "list", "digits")
    assert said.code == 2 and "has no checkpoints" in said.err


@pytest.mark.thorough
def test_in_a_bucket(ab: Terminal, moto: S3Server, tmp_path: Path) -> None:
    ab.environ.update(moto.environ)
    store = f"s3://{moto.make_bucket()}/team"
    job = ab.job(SAVES, checkpoints={"uri": "store://digits/runs", "every": 10})
    said = ab("run", job, "--store", store, "--json")
    assert said.code == 0, said.text
    (run,) = ab.runs()
    assert said.json["checkpoints"]["latest"] == f"{store}/digits/runs/{run}/step-000000000050"
    assert steps(ab, "digits") == steps(ab, f"{store}/digits/runs/{run}") == STEPS
    assert ab("checkpoints", "list", f"store://digits/runs/{run}", "--store", store).code == 0
    assert ab("checkpoints", "verify", "digits").code == 0
    assert ab("checkpoints", "collect", "digits", "models", "--best", "loss:min").code == 0
    assert steps(ab, f"models/{run}") == [50]
    assert ab("checkpoints", "collect", f"models/{run}", "store://models", "--store", store).code == 0
    assert steps(ab, f"{store}/models/{run}") == [50]


def test_a_bucket_that_is_not_there_or_does_not_answer(ab: Terminal, moto: S3Server) -> None:
    from tests.core.s3server import free_port

    ab.environ.update(moto.environ)
    said = ab("checkpoints", "list", "s3://no-such-bucket/x")
    assert said.code == 2 and "no-such-bucket" in said.err
    said = ab(
        "checkpoints",
        "list",
        "s3://no-such-bucket/x",
        "--json",
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}",
    )
    assert said.code == 5 and said.json["error"]["code"] == "storage_unreachable"


JUDGES = """
import os
from allaboard.inside import context, result
result(has_state=int("trainer_state.json" in os.listdir(context().checkpoint)))
"""


@pytest.mark.thorough
def test_a_checkpoint_of_another_library_is_adopted_and_evaluated(ab: Terminal) -> None:
    out = ab.folder / "out"
    shutil.copytree(SAMPLES / "hugging_face_trainer", out)
    shutil.copytree(out / "checkpoint-4", out / "checkpoint-6")
    (out / "checkpoint-6" / "trainer_state.json").unlink()
    for path in out.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    said = ab("checkpoints", "adopt", "out", "--json")
    assert said.code == 2, said.text
    assert [item["files"] for item in said.json["adopted"]] == [str(out / "checkpoint-4")]
    assert said.json["left"] == [
        {
            "name": "checkpoint-6",
            "format": "huggingface-trainer",
            "verdict": "torn",
            "reason": "trainer_state.json is missing, which is written last",
        }
    ]
    said = ab("checkpoints", "adopt", "out/checkpoint-4")
    assert said.code == 0 and said.out == "step 4 had a manifest already\n"
    assert ab("checkpoints", "verify", "out/checkpoint-4").out == "step 4: whole\n"
    assert str(out / "checkpoint-4") in ab("checkpoints", "list", "out").out
    copy = ab("checkpoints", "collect", "out/checkpoint-4", "models", "--json").json
    assert copy["step"] == 4 and copy["metrics"]["eval_loss"] > 0
    evaluation = ab.job(JUDGES, "ev.json")
    for where in ("out/checkpoint-4", copy["uri"]):
        said = ab("evaluate", evaluation, "--checkpoint", where, "--json")
        assert said.code == 0 and said.json["metrics"] == {"has_state": 1}, said.text
    promoted = ab("promote", "out/checkpoint-4", "--into", "store", "--json")
    assert promoted.code == 0 and promoted.json["promotion"]["step"] == 4, promoted.text


def test_adopting_where_nothing_is(ab: Terminal) -> None:
    (ab.folder / "empty").mkdir()
    said = ab("checkpoints", "adopt", "empty")
    assert said.code == 2 and "no checkpoint of a known format is there" in said.err

"""Scripts of six libraries, unchanged, killed at random and within a save: those that their pages show."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from tests.core.cli.killed import PYTHON, Killed, points
from tests.core.cli.terminal import Terminal

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not PYTHON.exists(), reason="the libraries are not installed here: make frameworks"),
]


@dataclass(frozen=True, slots=True)
class Library:
    """``lasts``: steps, epochs or rounds of 20 kills; ``metric``: of its training, ``exact``: the same once a
    step is done again, ``has_total``: the log tells how many steps there are. ``step_of``: of the number in a
    checkpoint's name; ``every``: steps between two, or those in which a Trainer posts nothing: once in 5 s;
    ``once_more``: those of an epoch that a try may begin again with a checkpoint of its middle. ``loads``:
    statements by which the library loads the file or folder ``place``, and prints a number.
    """

    lasts: int
    metric: str
    every: int
    loads: str
    exact: bool = False
    has_total: bool = True
    once_more: int = 0
    step_of: Callable[[int], int] = lambda number: number


KERAS = 23
"""Batches of an epoch of the page's script."""
LIBRARIES = {
    "trainer": Library(
        4000, "loss", 1500,
        "import transformers as t; print(t.AutoModel.from_pretrained(place).num_parameters())",
    ),
    "accelerate": Library(
        200, "loss", 20,
        "import safetensors.torch as t; print(len(t.load_file(place + '/model.safetensors')))",
    ),
    "lightning": Library(
        60, "train_loss", 20, "import torch; print(torch.load(place, weights_only=False)['global_step'])",
        once_more=50,
    ),
    "keras": Library(
        150, "loss", KERAS, "import keras; print(keras.models.load_model(place).count_params())",
        step_of=lambda epoch: KERAS * epoch,
    ),
    "xgboost": Library(
        1500, "train-rmse", 10,
        "import xgboost as x; print(x.Booster(model_file=place).num_boosted_rounds())",
        exact=True, has_total=False,
    ),
    "lightgbm": Library(
        1500, "train's l2", 10, "import lightgbm as l; print(l.Booster(model_file=place).num_trees())",
        exact=True, has_total=False,
    ),
}  # fmt: skip

EVALUATES = """
import os, subprocess
from allaboard.inside import context, result
environ = {**os.environ, "KERAS_BACKEND": "torch"}
command = ["PYTHON", "-c", "import sys; place = sys.argv[1]; LOADS", context().checkpoint]
done = subprocess.run(command, capture_output=True, text=True, env=environ)
print(done.stderr)
result(size=int(done.stdout.split()[-1]))
"""


@pytest.mark.parametrize("page", LIBRARIES)
def test_twice(page: str, ab: Terminal) -> None:
    goes_through(page, ab, None, 2)


@pytest.mark.parametrize("page", ["trainer", "accelerate"])
def test_two_members_of_which_each_is_killed(page: str, ab: Terminal) -> None:
    goes_through(page, ab, None, 2, workers=2)


@pytest.mark.endurance
@pytest.mark.parametrize("page", LIBRARIES)
def test_twenty_times(page: str, ab: Terminal) -> None:
    goes_through(page, ab, LIBRARIES[page].lasts, 20)


def goes_through(page: str, ab: Terminal, lasts: int | None, times: int, workers: int = 1) -> None:
    """From the first start to the champion."""
    library, killed, began = LIBRARIES[page], Killed(ab, page, seed=times), time.monotonic()
    job = killed.job(lasts, policy={"backoff_limit": times + 5}, workers=workers)
    done = killed.run(job, times, ranks=[*reversed(range(workers))])
    logs = sorted(Path(m.log) for m in ab.seen(page).members if m.log and m.rank == 0)
    assert done.returncode == 0, done.stdout + "\n".join(log.read_text()[-2000:] for log in logs)
    status = ab("status", page, "--json").json
    assert status["state"] == "succeeded" and (workers > 1 or status["restarts"] == len(killed.lefts)), (
        done.stdout
    )
    goes_on_from_the_newest(killed, ab, workers)
    is_told_rightly(killed, ab, workers)
    has_no_false_step(killed, ab, library, workers)
    assert ("left" in done.stdout) == library.has_total, done.stdout
    is_kept(killed, ab, library)
    print(row(killed, time.monotonic() - began))


def row(killed: Killed, seconds: float) -> str:
    """A line of the table that `make test ARGS=-rP` shows: what each kill left to go on from."""
    torn = sum(len(left.torn) for left in killed.lefts)
    resumed = ", ".join("-" if left.step is None else str(left.step) for left in killed.lefts)
    page = f"{killed.page}, seed {killed.seed}"
    return f"{page}: {len(killed.lefts)} kills, {torn} torn, {seconds:.0f} s; resumed from step {resumed}"


def goes_on_from_the_newest(killed: Killed, ab: Terminal, workers: int) -> None:
    """Each start after a kill was handed the newest whole checkpoint of that moment; torn ones went aside.
    Where another member lives on for a while, nothing is moved.
    """
    events = ab("events", killed.page, "--json").json["events"]
    told = [event["message"] for event in events if event["reason"] == "Resumes"]
    expected = [f"goes on from {left.handed}" for left in killed.lefts if left.handed is not None]
    if workers > 1:
        return
    assert [text.partition(" (step ")[0] for text in told] == expected
    aside = "\n".join(event["message"] for event in events if event["reason"] == "TornCheckpoint")
    assert all(f"/out/{name} is torn" in aside for left in killed.lefts for name in left.torn)


def is_told_rightly(killed: Killed, ab: Terminal, workers: int) -> None:
    """`status` and the page tell the end of all members, and what was done twice as rank 0's logs have it."""
    status, page = ab("status", killed.page, "--json").json, ab("report", killed.page, "--json").json["data"]
    steps = [step for log in killed.logs() for step, _ in points(log, "")]
    back = [(before, step) for before, step in pairwise(steps) if step < before]
    told = {"step": steps[-1], "lost_steps": sum(before - step + 1 for before, step in back)}
    assert status["progress"] == {**told, "total": status["progress"]["total"]}
    assert page["progress"].items() >= status["progress"].items()
    assert status["progress"]["total"] in (None, steps[-1])
    assert [mark["step"] for mark in page["resumed"]] == [step - 1 for _, step in back if step > 1]
    for told_by in (status, page):
        assert [member["phase"] for member in told_by["members"]] == ["succeeded"] * workers
        assert told_by["restarts"] == sum(member["restarts"] for member in told_by["members"])
        assert (told_by["flags"], told_by["diagnoses"]) == ([], [])
    listed = ab("checkpoints", "list", killed.page, "--json").json["checkpoints"]
    assert status["checkpoints"]["latest"] == max(listed, key=lambda item: item["step"])["uri"]
    assert {row["step"] for row in page["checkpoints"]} <= {item["step"] for item in listed}


def has_no_false_step(killed: Killed, ab: Terminal, library: Library, workers: int) -> None:
    """Each try begins behind the checkpoint that it was handed, counts upwards, and what it does again has
    the loss of the first time, of other batches about that; the page has the last of them.
    """
    tries, behind = [points(log, library.metric) for log in killed.logs()], 0
    for begins, left in zip(tries[1:], killed.lefts, strict=False):
        number = re.findall(r"\d+", Path(left.handed).name)[-1] if left.handed else None
        handed = library.step_of(int(number)) if number is not None else -1
        # A library may say first where it stands, and be killed before it says more.
        [first] = [step for step, _ in begins if step != handed][:1] or [handed + 1 - behind]
        # Of several members the others may come to the end of a save.
        most = handed - behind + library.every * workers + 1
        assert handed - behind - library.once_more < first <= most, (left, behind, begins[:3])
        behind = max(behind, handed + 1 - first)
    told: dict[int, float] = {}
    for steps in tries:
        assert steps == sorted(steps, key=lambda point: point[0])
        valued = {step: value for step, value in steps if value is not None}
        again = {step: value / told[step] for step, value in valued.items() if step in told}
        if library.exact:
            assert again == pytest.approx(dict.fromkeys(again, 1.0), rel=1e-3)
        elif again:
            assert 1 / 3 < median(again.values()) < 3, again
        told |= valued
    page = ab("report", killed.page, "--json").json
    page = page.get("data", page)
    drawn = [curve for curve in page["curves"] if curve["kind"] == "progress"]
    [curve] = [curve for curve in drawn if curve["name"] == library.metric]
    steps = [step for step, _ in curve["points"]]
    assert steps == sorted({*steps}) and steps[-1] == max(told) and steps[0] == min(told)
    assert all(value == pytest.approx(told[step], rel=1e-6) for step, value in curve["points"])
    assert page["progress"]["step"] == max(step for step, _ in tries[-1])


def is_kept(killed: Killed, ab: Terminal, library: Library) -> None:
    """Listed, verified, collected, evaluated, promoted."""
    listed = {
        Path(item["files"]).name
        for item in ab("checkpoints", "list", killed.page, "--json").json["checkpoints"]
    }
    saved = {path.name for path in killed.out.iterdir()} - {killed.run_name}
    assert listed == {name for name in saved if ".torn" not in name}
    assert ab("checkpoints", "verify", killed.page).code == 0
    copy = ab("checkpoints", "collect", killed.page, "models", "--json").json
    script = EVALUATES.replace("PYTHON", str(PYTHON)).replace("LOADS", library.loads)
    evaluated = ab("evaluate", ab.job(script, "ev.json", name="ev"), "--checkpoint", copy["uri"], "--json")
    assert evaluated.code == 0, evaluated.text + ab("logs", "ev").text
    metrics = ab.write("evaluation.json", evaluated.out)
    rule = ("--metrics", metrics, "--metric", "size", "--json")
    promoted = ab("promote", copy["uri"], "--into", "champions", *rule)
    assert promoted.json["promoted"], promoted.text

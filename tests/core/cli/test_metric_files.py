"""A script that prints nothing and keeps its metrics in files, followed, with its status and its page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from allaboard.checking.job import check
from allaboard.job.identity import spec_hash, spec_of
from allaboard.job.training_job import TrainingJob
from tests.core.cli.terminal import Terminal

WRITES_A_TABLE = """
import os
os.makedirs("runs/version_0")
with open("runs/version_0/metrics.csv", "w") as file:
    file.write("epoch,step,train_loss,val_loss\\n")
    for step in range(1, 41):
        file.write(f"{step // 20},{step},{4 / step:.4f},\\n")
        if step % 20 == 0:
            file.write(f"{step // 20},{step},,{8 / step:.4f}\\n")
    file.write("2,41,0.0")  # it is still being written
"""
PRINTS_TOO = (
    WRITES_A_TABLE
    + """
for step in range(1, 6):
    print(f"step {step}/5, train_loss: {step}.5", flush=True)
"""
)


def test_status_and_page_show_metrics_of_files_and_where_they_are_from(ab: Terminal) -> None:
    (ab.folder / "runs/old").mkdir(parents=True)
    old = ab.folder / "runs/old/metrics.csv"
    old.write_text("step,train_loss\n999,7\n")
    os.utime(old, (1000, 1000))
    followed = ab("run", ab.job(WRITES_A_TABLE, metrics={"from": "runs/"}), "--json")
    assert followed.code == 0, followed.text
    file = "version_0/metrics.csv"
    for status in (followed.json, ab("status", "digits", "--json").json):
        assert status["progress"] == {"step": 40, "total": None, "lost_steps": 0}
        assert status["metrics"] == {"train_loss": 0.1, "val_loss": 0.2}
        assert status["metrics_from"] == {"step": file, "train_loss": file, "val_loss": file}
        assert status["progress_format"] is None
    assert f"step, train_loss, val_loss from {file}" in ab("status", "digits").out
    data = ab("report", "digits", "--json").json["data"]
    curves = {curve["name"]: curve for curve in data["curves"]}
    assert curves["val_loss"]["points"] == [[20, 0.4], [40, 0.2]] and curves["train_loss"]["count"] == 40
    assert data["curve_files"] == {"train_loss": file, "val_loss": file}
    assert ab("report", "digits", "-o", "page.html").code == 0
    assert f"are from {file}" in (Path(ab.folder) / "page.html").read_text()


def test_what_the_script_prints_stands_first(ab: Terminal) -> None:
    assert ab("run", ab.job(PRINTS_TOO, metrics={"from": "runs"})).code == 0
    status = ab("status", "digits", "--json").json
    assert status["progress"]["step"] == 5 and status["metrics"]["train_loss"] == 5.5
    assert [*status["metrics_from"]] == ["val_loss"]


@pytest.mark.thorough
def test_a_second_attempt_goes_on_from_the_files_of_the_first(ab: Terminal) -> None:
    script = """
import os, sys
n = len(os.listdir("runs")) if os.path.isdir("runs") else 0
os.makedirs(f"runs/version_{n}")
with open(f"runs/version_{n}/metrics.csv", "w") as file:
    file.write("step,loss\\n" + "".join(f"{s},{n + 1}\\n" for s in range(n * 10, n * 10 + 15)))
sys.exit(3 if n == 0 else 0)
"""
    done = ab("run", ab.job(script, metrics={"from": "runs"}, policy={"backoff_limit": 1}))
    assert done.code == 0, done.text
    data = ab("report", "digits", "--json").json["data"]
    assert data["curves"][0]["points"] == [[n, 1.0 if n < 10 else 2.0] for n in range(25)]


def test_a_job_without_the_field_keeps_its_hash_and_one_with_it_does_not() -> None:
    job = TrainingJob(name="digits", command=["python", "train.py"])
    plain = "v1:52b772399f8b1b3e64a7d0a02cdc373de11f4e50fe31955e81f8044f2a515123"
    assert spec_hash(spec_of(job)) == plain
    assert spec_hash(spec_of(job.with_(metrics={"from": "runs"}))) != plain


@pytest.mark.parametrize(
    ("metrics", "paths"),
    [
        ({}, ["metrics.from"]),
        ({"from": 3}, ["metrics.from"]),
        ({"form": "runs"}, ["metrics.form"]),
        ("runs", ["metrics"]),
        ({"from": "runs/\0"}, ["metrics.from"]),
    ],
)
def test_all_problems_of_the_field_are_told_at_once(metrics: object, paths: list[str]) -> None:
    job = TrainingJob(name="digits", command=["python", "train.py"], metrics=metrics, workers=0)
    found = [problem.path for problem in check(job)]
    assert [path for path in found if path != "workers"] == paths and "workers" in found


def test_nothing_heavy_is_imported_for_the_field() -> None:
    import subprocess

    program = (
        "import sys, allaboard.backends.metric_files.reading, allaboard.backends.local.backend; "
        "print([n for n in ('tensorboard', 'numpy', 'google.protobuf') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

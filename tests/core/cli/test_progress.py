"""Progress of a script that imports nothing of allaboard, followed, and in a log that is shown."""

from __future__ import annotations

import json
from pathlib import Path

from tests.core.cli.terminal import Terminal

LIKE_A_TRAINER = """
import sys, time

TOTAL = 200
def bar(n):
    rate = f"[00:{n // 10:02}<00:20,  9.50it/s]"
    print(f"\\r{100 * n // TOTAL:3}%|{'#' * 4:10}| {n}/{TOTAL} {rate}", end="", file=sys.stderr, flush=True)

print("Map: 100%|##########| 5000/5000 [00:01<00:00, 4100.20 examples/s]", file=sys.stderr)
for n in range(TOTAL + 1):
    bar(n)
    if n and n % 50 == 0:
        print()
        print({"loss": str(4 - n / 100), "grad_norm": "1.5", "learning_rate": "5e-05", "epoch": str(n / 100)})
        sys.stdout.flush()
    if n == 100:
        print("{'eval_loss': '2.75', 'eval_runtime': '1.2', 'epoch': '1.0'}", flush=True)
    time.sleep(0.01)
print({"train_runtime": "2.2", "train_samples_per_second": "90.1", "train_loss": "3.1", "epoch": "2.0"})
"""
FORMAT = "Hugging Face's Trainer"


def test_a_trainer_is_followed_from_its_bar_and_its_dictionaries(ab: Terminal) -> None:
    followed = ab("run", ab.job(LIKE_A_TRAINER))
    assert followed.code == 0, followed.out
    assert followed.out.count(f"progress: as {FORMAT} prints it") == 1
    status = ab("status", "digits", "--json").json
    assert status["progress"] == {"step": 200, "total": 200, "lost_steps": 0, "format": FORMAT}
    assert status["metrics"]["loss"] == 2.0 and status["metrics"]["eval_loss"] == 2.75
    assert f"as {FORMAT} prints it" in ab("status", "digits").out
    curves = json.loads(_page_data(ab))
    assert curves["loss"] == [[50, 3.5], [100, 3.0], [150, 2.5], [200, 2.0]]
    assert curves["eval_loss"] == [[100, 2.75]]


def _page_data(ab: Terminal) -> str:
    from allaboard.report.output import OutputReader

    reader = OutputReader()
    run = ab.runs()[0]
    reader.read_all(ab.backend, run, 1)
    return json.dumps(reader.history.curves)


def test_the_page_draws_its_curve(ab: Terminal) -> None:
    assert ab("run", ab.job(LIKE_A_TRAINER)).code == 0
    assert ab("report", "digits", "-o", "page.html").code == 0
    page = (Path(ab.folder) / "page.html").read_text()
    assert "eval_loss" in page and "grad_norm" in page


OWN = """
for n in range(1, 6):
    print(f"at {n} of 5 the energy is {-n / 2}", flush=True)
"""


def test_a_format_of_its_own_is_read_by_the_jobs_expression_and_off_reads_none(ab: Terminal) -> None:
    expression = r"at (?P<step>\d+) of (?P<total>\d+) the energy is (?P<energy>\S+)"
    assert ab("run", ab.job(OWN, progress=expression)).code == 0
    status = ab("status", "digits", "--json").json
    assert (status["progress"]["step"], status["progress"]["total"], status["metrics"]) == (
        5,
        5,
        {"energy": -2.5},
    )
    assert ab("run", ab.job(LIKE_A_TRAINER, progress="off"), "--key", "off").code == 0
    status = ab("status", "digits", "--json").json
    assert status["progress"]["step"] is None and status["metrics"] == {}


# allaboard progress FILE


def test_a_log_is_shown_as_it_would_be_followed(ab: Terminal) -> None:
    ab.write(
        "train.log", "starting\niter 0: loss 4.5, time 10.00ms, mfu 1.00%\niter 10: loss nan, time 10.00ms\n"
    )
    said = ab("progress", "train.log")
    assert (said.code, said.out.splitlines()) == (
        0,
        [
            "progress: as nanoGPT prints it",
            "line 2: step 0, loss 4.5, time 10, mfu 1",
            "line 3: step 10, loss nan, time 10",
        ],
    )
    objects = [json.loads(line) for line in ab("progress", "train.log", "--json").out.splitlines()]
    assert [(o["line"], o["step"], o["total"], o["epoch"]) for o in objects] == [
        (2, 0, None, None),
        (3, 10, None, None),
    ]
    assert [o["metrics"] for o in objects] == [
        {"loss": 4.5, "time": 10.0, "mfu": 1.0},
        {"loss": None, "time": 10.0},
    ]
    assert ab("progress", "-", stdin="step 3: train loss 2.5, val loss 2.25\n").out.splitlines() == [
        "progress: as nanoGPT prints it",
        "line 1: step 3, train loss 2.5, val loss 2.25",
    ]


def test_what_is_no_log_is_told_in_a_sentence(ab: Terminal) -> None:
    (ab.folder / "binary").write_bytes(b"\x7fELF\0\0\0loss: 1 step: 2")
    (ab.folder / "folder").mkdir()
    for name, sentence in (
        ("nowhere", "nowhere: no such file"),
        ("binary", "binary is binary, no log: it holds NUL bytes"),
        ("folder", "folder is a folder; name a log in it"),
    ):
        said = ab("progress", name)
        assert (said.code, said.out) == (2, "") and sentence in said.err, said
        as_json = ab("progress", name, "--json")
        assert as_json.code == 2 and sentence in as_json.json["error"]["message"]


def test_what_holds_no_progress_is_told_in_a_sentence(ab: Terminal) -> None:
    ab.write("empty", "")
    ab.write("build.log", "[ 12%] Building CXX object loss.cpp.o\n" * 40)
    assert (ab("progress", "empty").code, ab("progress", "empty").out) == (
        0,
        "empty is empty: there is no line to read\n",
    )
    said = ab("progress", "build.log")
    assert said.code == 0 and said.out.startswith("build.log holds no progress that is known; ")
    assert ab("progress", "build.log", "--json").out == ""


def test_torn_text_is_read_around(ab: Terminal) -> None:
    line = "iter 10: loss 4.5, time 10.00ms"
    (ab.folder / "torn.log").write_bytes(
        f"{line}\n".encode() + "é".encode()[:1] + f" {line}\n{line}".encode()
    )
    said = ab("progress", "torn.log")
    assert said.code == 0 and said.out.count("step 10") == 2
    assert "torn.log is not UTF-8 text in every line" in said.err

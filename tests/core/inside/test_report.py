from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import BadInput
from allaboard.inside.report import EVERY, ReportWriter, Speed, report, result
from allaboard.text.reportline import Report, decode


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Heard:
    """A teller whose clock the test holds, and what it wrote."""

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.clock = Clock()
        self.teller = ReportWriter(self.writes.append, self.clock)
        self.teller._wake_later = lambda: None  # type: ignore[method-assign]  # the test is the thread

    def progress(self, **fields: Any) -> None:
        self.teller.progress(fields)

    @property
    def reports(self) -> list[Report]:
        assert all(text.endswith("\n") and text.count("\n") == 1 for text in self.writes)
        return [found for text in self.writes if (found := decode(text))]

    @property
    def steps(self) -> list[int]:
        return [found.fields["step"] for found in self.reports]


def test_at_most_ten_lines_a_second_and_the_last_of_a_burst_is_not_lost() -> None:
    heard = Heard()
    for step in range(10_000):
        heard.clock.now = 100 + step / 1000
        heard.progress(step=step)
        if heard.teller.due() == 0.0:
            heard.teller.flush()
    assert 90 <= len(heard.steps) <= 101
    assert heard.steps[-1] != 9999
    due = heard.teller.due()
    assert due is not None and 0 < due <= EVERY
    heard.clock.now += due
    assert heard.teller.due() == 0.0
    heard.teller.flush()
    assert heard.steps[-1] == 9999 and heard.teller.due() is None


def test_slow_steps_are_all_reported() -> None:
    heard = Heard()
    for step in range(20):
        heard.clock.now += 0.2
        heard.progress(step=step)
    assert heard.steps == list(range(20))


def test_the_final_step_does_not_wait() -> None:
    heard = Heard()
    for step in range(1, 6):
        heard.progress(step=step, total=5)
    assert heard.steps == [1, 5]


def test_a_result_comes_after_what_waits() -> None:
    heard = Heard()
    heard.progress(step=1)
    heard.progress(step=2)
    heard.teller.write_line('[allaboard] {"v":1,"kind":"result","metrics":{}}')
    assert [found.fields.get("step", found.kind) for found in heard.reports] == [1, 2, "result"]


def test_a_loss_that_is_not_finite_is_null_flagged_and_never_replaced() -> None:
    heard = Heard()
    heard.progress(step=1, loss=0.5)
    heard.progress(step=2, loss=float("nan"))
    for step in range(3, 50):
        heard.progress(step=step, loss=0.5)
    heard.teller.flush()
    assert heard.steps == [1, 2, 49]
    odd = heard.reports[1]
    assert odd.fields["loss"] is None and odd.nonfinite == ("loss",)
    assert heard.reports[2].nonfinite == ()


def test_steps_per_second_are_measured_over_the_last_ten_seconds() -> None:
    speed, now = Speed(), 0.0
    assert speed.add_step(0, now) is None
    for step in range(1, 101):
        now += 0.5
        found = speed.add_step(step, now)
    assert found == pytest.approx(2.0, rel=0.01)
    for step in range(101, 301):
        now += 0.1
        found = speed.add_step(step, now)
    assert found == pytest.approx(10.0, rel=0.01)


def test_after_a_resume_from_an_earlier_step_the_speed_starts_anew() -> None:
    speed = Speed()
    speed.add_step(100, 0.0)
    assert speed.add_step(110, 1.0) == 10.0
    assert speed.add_step(50, 2.0) is None
    assert speed.add_step(54, 3.0) == 4.0


def test_numbers_of_numpy_and_torch_are_numbers(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    monkeypatch.setenv("RANK", "0")
    heard = Heard()
    monkeypatch.setattr(sys.modules["allaboard.inside.report"], "_writer", heard.teller)
    loss = torch.tensor([0.25], requires_grad=True)
    report(numpy.int64(3), total=numpy.int32(9), loss=loss * 2, accuracy=numpy.float32(0.5), done=True)
    inputs, found = heard.reports
    assert inputs.kind == "inputs" and inputs.fields["versions"]["torch"] == torch.__version__
    assert found.fields == {"step": 3, "total": 9, "loss": 0.5, "accuracy": 0.5, "done": True}


def test_a_result_stands_in_the_status_of_the_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the last progress before it, where there is a file for it and both fit."""
    module, heard = sys.modules["allaboard.inside.report"], Heard()
    kept = tmp_path / "termination-log"
    monkeypatch.setattr(module, "_writer", heard.teller)
    monkeypatch.setattr(module, "_TERMINATION_LOG", str(kept))
    report(199, total=200)
    report(200, total=200)
    result(accuracy=0.9)
    assert not kept.exists(), "no file is made where no kubelet has made one"
    kept.write_text("something older, and longer than what is written now" * 9)
    result(accuracy=0.9)
    last = [decode(line) for line in kept.read_text().splitlines()]
    assert [(one.kind, one.fields) for one in last if one] == [
        ("progress", {"step": 200, "total": 200}), ("result", {"metrics": {"accuracy": 0.9}})
    ]  # fmt: skip
    before = kept.read_text()
    result(history=["x" * 4000, "y" * 4000])
    assert kept.read_text() == before, "cut in two it would be no report"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result(accuracy=0.1)
    assert kept.read_text() == before, "rank 0 speaks for all"


def test_a_waiting_tensor_holds_no_graph_and_keeps_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    heard = Heard()
    monkeypatch.setattr(sys.modules["allaboard.inside.report"], "_writer", heard.teller)
    running = torch.zeros(())
    for step in (1, 2):
        running += 1
        report(step, loss=running)
    running += 100
    waiting = heard.teller._waiting
    assert waiting is not None and waiting["loss"].grad_fn is None
    heard.teller.flush()
    assert [found.fields["loss"] for found in heard.reports if found.kind == "progress"] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"step": -1}, r"report\(step=-1\): give a whole number"),
        ({"step": 1.5}, r"report\(step=1.5\)"),
        ({"step": True}, r"report\(step=True\)"),
        ({"step": 1, "total": "9"}, r"report\(total='9'\)"),
        ({"step": 1, "loss": "low"}, r"report\(loss='low'\): give a number"),
        ({"step": 1, "acc": [1]}, r"report\(acc=\[1\]\)"),
        ({"step": 1, "kind": 1}, r"report\(kind=...\): this name is taken"),
        ({"step": 1, "v": 1}, r"report\(v=...\): this name is taken"),
    ],
)
def test_what_is_no_number_is_refused_on_every_rank(
    arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(BadInput, match=words):
            report(**arguments)


def test_a_result_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(BadInput, match="give numbers, strings, lists and mappings"):
        result(model=object())


# --- in processes of their own


def script(text: str, *, returncode: int = 0, **environ: str) -> list[Report]:
    """Run it with stdout in a pipe; the reports that arrived."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-c", "from allaboard.inside import report, result\n" + text],
        env={**clean, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == returncode, done.stderr
    return [found for line in done.stdout.splitlines() if (found := decode(line))]


def test_a_process_of_its_own_reports_and_the_end_loses_nothing() -> None:
    found = script("""
for step in range(1000): report(step, loss=1 / (step + 1))
result(accuracy=0.98, loss=float('inf'), tags=['a'])
""")
    assert found[0].kind == "inputs" and found[0].fields["versions"]["python"].count(".") == 2
    assert found[1].fields["step"] == 0
    assert (
        found[-2].kind == "progress"
        and found[-2].fields["step"] == 999
        and "steps_per_second" in found[-2].fields
    )
    assert found[-1].fields == {"metrics": {"accuracy": 0.98, "loss": None, "tags": ["a"]}}
    assert found[-1].nonfinite == ("metrics.loss",)


def test_an_uncaught_error_loses_no_report() -> None:
    found = script("for step in range(100): report(step)\nraise SystemExit(3)", returncode=3)
    assert found[-1].fields["step"] == 99


def test_the_last_of_a_burst_is_written_while_the_script_is_busy_elsewhere() -> None:
    # os._exit runs nothing at the end: only the thread can have written it.
    text = """
import os, sys, threading, time
from allaboard.inside import report as r
written = threading.Event()
class Seen:
    def write(self, text):
        sys.__stdout__.write(text)
        if '"step":99' in text: written.set()
    def flush(self): sys.__stdout__.flush()
sys.stdout = Seen()
for step in range(100): report(step)
assert written.wait(60)
os._exit(0)
"""
    assert script(text)[-1].fields["step"] == 99


def test_only_rank_0_reports() -> None:
    text = "report(1)\nresult(a=1)"
    found = script(text, RANK="0", WORLD_SIZE="4")
    assert [line.kind for line in found] == ["inputs", "progress", "result"]
    assert script(text, RANK="3", WORLD_SIZE="4") == []


def test_a_script_without_torch_stays_without_torch() -> None:
    script("import sys\nreport(1)\nassert not {'torch', 'numpy', 'boto3'} & set(sys.modules)")


def test_a_forked_child_neither_hangs_nor_repeats() -> None:
    text = """
import os
for step in range(50): report(step)
child = os.fork()
if child == 0:
    report(1000)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    steps = [found.fields["step"] for found in script(text) if found.kind == "progress"]
    assert steps.count(49) == 1 and steps.count(1000) == 1 and steps.count(0) == 1


@pytest.mark.parametrize("ending", ["sys.stdout.close()", "os.close(1)", "sys.stdout = None"])
def test_a_lost_stdout_never_ends_a_training(ending: str) -> None:
    text = f"import os, sys\n{ending}\nfor step in range(10): report(step, total=9)\nresult(a=1)\nos._exit(7)"
    assert script(text, returncode=7) == []


def test_a_reader_that_went_away_never_ends_a_training() -> None:
    text = """
import sys
from pathlib import Path
sys.stdin.readline()
for step in range(10): report(step, total=9)
import os
os._exit(7)
"""
    rank = subprocess.Popen(
        [sys.executable, "-c", "from allaboard.inside import report\n" + text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert rank.stdout is not None
        rank.stdout.close()
        rank.communicate(b"go\n", timeout=60)
        assert rank.returncode == 7
    finally:
        rank.kill()
        rank.wait()


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_lines_of_processes_that_share_a_pipe_never_interleave(unbuffered: str) -> None:
    text = """
from allaboard.inside import report
for step in range(2000): report(step, total=step, loss=0.123456789, **{'n' * 300: 1})
"""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONUNBUFFERED": unbuffered,
    }
    reading, writing = os.pipe()
    ranks = [subprocess.Popen([sys.executable, "-c", text], env=environ, stdout=writing) for _ in range(3)]
    os.close(writing)
    with os.fdopen(reading) as lines:
        found = [decode(line) for line in lines]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    assert all(found) and len([line for line in found if line and line.kind == "progress"]) == 6000


def test_a_signal_in_the_middle_of_a_report_may_report_as_well() -> None:
    text = f"""
import signal
def stop(*_):
    report(10**6)
    result(stopped=1)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, stop)
import os, threading
threading.Timer(0.05, lambda: os.kill(os.getpid(), {int(signal.SIGTERM)})).start()
step = 0
while True:
    step += 1
    report(step, total=step)
"""
    found = script(text)
    assert found[-1].kind == "result" and found[-2].fields["step"] == 10**6

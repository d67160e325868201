"""Members that print anything: each run ends as its exit code says, and only rank 0 speaks for it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from allaboard import State
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.supervisor.probes import LogWatch, resolve_checkpoint_link
from allaboard.follow.progress import is_below
from allaboard.text.reportline import PREFIX, Report, encode
from tests.core.backends.local.test_bad_days import run

PRINTS = """
import json, os, sys
P = "[allaboard] "
def line(**fields):
    sys.stdout.write(P + json.dumps({"v": 1, **fields}) + "\\n")
line(kind="progress", step=1, total=9, loss=0.5)
for text in ('{"v":1,"kind":"progress","step":2,"note":"\\\\ud800"}',
             '{"v":1,"kind":"result","metrics":{"a":' + "[" * 500 + "]" * 500 + "}}",
             '{"v":1,"kind":"progress","step":' + "9" * 4300 + "}",
             '{"v":1,"kind":"progress","step":1e308,"total":NaN}',
             '{"v":1,"kind":"progress","step":true}',
             '{"v":1,"kind":"flag","code":["x"],"text":7}',
             '{"v":1,"kind":"flag","code":"\\\\ud800","text":"\\\\ud800"}',
             "{" * 100_000):
    sys.stdout.write(P + text + "\\n")
sys.stdout.flush()
os.write(1, b"\\xff\\xfe\\x00 " + P.encode() + b'{"v":1,"kind":"progress","step":"\\xff"}\\n')
for n in range(3000):
    line(kind="progress", step=3, **{f"metric {n}\\n": 1.0, f"m{n}": float(n)})
line(kind="flag", code="odd", text="x" * 2_000_000)
sys.stdout.write("y" * 50_000_000 + "\\n")
line(kind="progress", step=4, total=9, loss=0.25)
line(kind="result", metrics={"acc": 0.9})
sys.stdout.flush()
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.mark.thorough(but=("3",))
@pytest.mark.parametrize("code", [0, 3])
def test_a_run_ends_as_its_exit_code_says_whatever_it_prints(
    backend: LocalBackend, folder: Path, code: int
) -> None:
    outcome = run(backend, folder, PRINTS, environment={"CODE": str(code)})
    assert outcome.state is (State.FAILED if code else State.SUCCEEDED)
    assert outcome.seen.members[0].exit_code == code
    assert (outcome.seen.progress.step, outcome.metrics) == (4, {"acc": 0.9})
    assert len(json.dumps(asdict(outcome.seen.progress))) < 50_000


SPOOFS = """
import os
from allaboard.text.reportline import encode
if os.environ["RANK"] != "0":
    print(encode("progress", step=77, total=77, loss=float("nan")))
    print(encode("result", metrics={"acc": 1.0}))
    own = os.environ["ALLABOARD_CHECKPOINTS"]
    print(encode("checkpoint", step=77, uri=f"{own}/step-000000000077", best=True))
    print(encode("flag", code="checkpoint_corrupt", text="not so"), flush=True)
else:
    print(encode("progress", step=2, total=3, loss=0.5))
    print(encode("checkpoint", step=2, uri="/etc"))
    print(encode("result", metrics={"acc": 0.5}), flush=True)
"""


def test_only_rank_0_speaks_for_the_run(backend: LocalBackend, folder: Path) -> None:
    outcome = run(backend, folder, SPOOFS, workers=3, checkpoints={"uri": "out"})
    assert outcome.ok and outcome.metrics == {"acc": 0.5}
    progress = outcome.seen.progress
    assert (progress.step, progress.total, dict(progress.metrics)) == (2, 3, {"loss": 0.5})
    assert progress.checkpoint is None and progress.best_checkpoint is None
    assert set(outcome.seen.flags) == {"checkpoint_elsewhere", "rendezvous_never_happened"}
    said = next(e.message for e in outcome.seen.events if e.reason == "checkpoint_elsewhere")
    assert "/etc" in said and str(folder / "out" / outcome.run) in said


def test_a_link_that_leads_out_of_the_runs_folder_is_followed_first(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for each in (own / "step-1", other):
        each.mkdir(parents=True)
    (own / "step-2").symlink_to(other)

    def reported(name: str) -> str:
        report = Report("checkpoint", {"uri": str(own / name)})
        return str(resolve_checkpoint_link(report, str(own)).fields["uri"])

    assert is_below(reported("step-1"), str(own)) and is_below(reported("not-there"), str(own))
    assert reported("step-2") == str(other)


# The log itself.


@pytest.mark.thorough
def test_a_log_is_read_in_pieces_and_to_its_end_at_last(tmp_path: Path) -> None:
    log = tmp_path / "a.0.log"
    line = encode("progress", step=1).encode() + b"\n"
    log.write_bytes((b"x" * 1023 + b"\n") * (40 << 10) + line)
    watch = LogWatch(log)
    assert watch.reports(1.0) == [] and watch.has_more
    assert [r.kind for r in watch.reports(2.0)] == ["progress"] and not watch.has_more
    assert len(LogWatch(log).reports(1.0, last=True)) == 1
    assert LogWatch(log, counts_reports=False).reports(1.0) == []


def test_the_last_state_of_a_bar_needs_no_end_of_a_line(tmp_path: Path) -> None:
    log, watch = tmp_path / "a.0.log", LogWatch(tmp_path / "a.0.log")
    bars = "".join(f"\rTraining: {n}%|#  | {n}/100 [00:01<00:09, 9.00it/s]" for n in (10, 11, 12))
    log.write_bytes(bars.encode())
    assert [r.fields["step"] for r in watch.reports(1.0)] == [10, 11]
    assert [r.fields["step"] for r in watch.reports(2.0, last=True)] == [12]
    assert watch.reports(3.0, last=True) == []


def test_of_a_flood_of_reports_the_newest_are_heard(tmp_path: Path) -> None:
    log = tmp_path / "a.0.log"
    log.write_text("".join(f"{encode('progress', step=n)}\n" for n in range(20_000)))
    steps = [r.fields["step"] for r in LogWatch(log).reports(1.0)]
    assert steps[-1] == 19_999 and len(steps) < 5_000


def test_a_line_without_end_costs_a_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "a.0.log"
    log.write_bytes(PREFIX.encode() + b'{"v":1,"kind":"progress","step":1,"x":"' + b"y" * (20 << 20))
    watch = LogWatch(log)
    assert watch.reports(1.0) == [] and len(watch.rest) < 1 << 17


def test_a_log_that_is_gone_or_a_full_disk_beside_it_says_nothing(tmp_path: Path) -> None:
    assert LogWatch(tmp_path / "none.0.log").reports(1.0) == []
    log = tmp_path / "a.0.log"
    log.write_text(encode("progress", step=1) + "\n")
    log.with_suffix(".times").mkdir()
    assert len(LogWatch(log).reports(1.0)) == 1

"""What reaches a terminal: no secret of a job, nothing that a terminal obeys, no line that nobody said."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from allaboard.cli import failure
from allaboard.cli.live import Frame
from allaboard.errors import BadInput, Problem, SpecChanged
from allaboard.job.identity import differences
from allaboard.report import phrases, terminal
from allaboard.report.commands import HERE
from allaboard.runs.observation import Event, MemberSeen, State
from allaboard.storage import open_store
from allaboard.testing import seen
from allaboard.text.printable import visible_json
from tests.core.cli.terminal import WAITS, Terminal

CANARY = "c4nary-V4lue_77"
EVIL = "evil\x1b[2J\x1b]0;x\x07\r\n✓ digits succeeded\u202e\u2028[red]"
SECRETS: dict[str, Any] = {
    "environment": {"API_KEY": CANARY, "PIP_INDEX_URL": f"https://me:{CANARY}@index/simple"},
}
PRINTS = f"""
import sys
print({EVIL!r})
print("10%\\r90%\\r", flush=True)
raise ValueError({EVIL!r} + " token={CANARY}")
"""


def unharmed(text: str) -> None:
    assert "\x1b" not in text and "\u202e" not in text and "\u2028" not in text and "\x07" not in text
    assert not [line for line in text.splitlines() if line.startswith("✓ digits succeeded")]


def test_a_failing_run_tells_no_secret_and_drives_no_terminal(ab: Terminal) -> None:
    job = ab.job(PRINTS, policy={"restart": "never"}, **SECRETS)
    said = ab("run", job)
    (run,) = ab.runs()
    texts = [said.text]
    for line in (["status", run], ["status", run, "--json"], ["events", run], ["list"], ["list", "--json"]):
        texts.append(ab(*line).text)
    for text in texts:
        assert CANARY not in text
        unharmed(text)
    logs = ab("logs", run).text
    assert "\x1b" not in logs and "\u202e" not in logs and "\\x1b[2J" in logs
    assert "90%" in logs and "10%" not in logs
    assert "\x1b[2J" in ab("logs", run, "--raw").text
    # What is written down beside the record, by which the run is started again, and the member's own log.
    told = [p for p in ab.backend.runs.rglob("*") if p.is_file() and CANARY in p.read_text(errors="replace")]
    assert {p.name for p in told if p.suffix != ".log"} <= {"record.json", "plan.json"}, told


def test_another_job_under_a_live_key_is_told_without_its_secrets(ab: Terminal) -> None:
    ab.job(WAITS, **SECRETS)
    assert ab("run", "job.json", "--detach", "--key", "k").code == 0
    ab.job(WAITS, file="other.json", environment={"API_KEY": f"other-{CANARY}", "LR": "0.1"})
    said = ab("run", "other.json", "--detach", "--key", "k")
    assert said.code == 2 and "environment.API_KEY" in said.err and 'absent -> "0.1"' in said.err
    assert CANARY not in said.text
    ab("stop", ab.runs()[0], "--now")


def test_differences_name_what_changed_and_not_the_secret() -> None:
    lines = differences(
        {"environment": {"API_KEY": CANARY}, "command": ["x", "--token", CANARY], "workers": 1},
        {"environment": {"API_KEY": f"{CANARY}2"}, "command": ["x", "--token", "other"], "workers": 2},
    )
    assert lines == [
        'environment.API_KEY: "***" -> "***" (another one)',
        'command: ["x", "--token", "***"] -> ["x", "--token", "***"] (another one)',
        "workers: 1 -> 2",
    ]
    assert CANARY not in str(SpecChanged.of("r", lines))


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://key:{CANARY}@bucket/x",
        f"https://bucket.s3.amazonaws.com/x?X-Amz-Signature={CANARY}&X-Amz-Expires=60",
        f"gs://bucket/x?token={CANARY}",
    ],
)
def test_a_refused_uri_is_told_without_what_signs_it(uri: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_store(uri)
    assert CANARY not in str(caught.value)


def test_every_error_is_clean_however_it_was_made() -> None:
    problem = Problem(f"a\n{EVIL}", f"token={CANARY} {EVIL}")
    for text in (
        str(problem),
        str(BadInput(f"Bearer {CANARY}\x1b[2J", [problem])),
        json.dumps(problem.to_dict()),
    ):
        assert CANARY not in text
        unharmed(text)


def test_what_is_said_is_one_line_and_coloured_by_us_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.say(f"{EVIL} password={CANARY}")
    out = capsys.readouterr().out
    unharmed(out)
    assert CANARY not in out and len(out.splitlines()) == 1
    monkeypatch.setattr(terminal, "supports_colour", lambda stderr=False: True)
    terminal.say(terminal.style("\x1b[31mx", "green", bold=True))
    assert click.unstyle(capsys.readouterr().out) == "\\x1b[31mx\n"
    assert terminal.coloured(terminal.style("x", "no_colour"), True).startswith("x")


def test_json_stays_the_same_value_and_plain() -> None:
    value = {"a": EVIL + "\x7f\x9b\ud800\U000e0041é"}
    text = visible_json(json.dumps(value, ensure_ascii=False))
    unharmed(text)
    assert "\x7f" not in text and "é" in text
    text.encode()
    assert json.loads(text) == value


def test_columns_stay_columns() -> None:
    lines = phrases.table(("a", "b"), [(EVIL, "x")])
    assert len(lines) == 2
    unharmed("\n".join(lines))


def test_the_live_view_reads_no_markup_and_no_escapes() -> None:
    frame = Frame(HERE, lambda: 0.0)
    members = (MemberSeen(group="[red]x[/red]\x1b[2J", index=0, rank=0, phase="running"),)
    frame.show(
        seen(State.QUEUED, members=members, waiting=EVIL, notes=(EVIL,)),
        [Event(0.0, "Warning", "r", EVIL, EVIL)],
    )
    out = io.StringIO()
    Console(file=out, width=200, height=60, force_terminal=False).print(frame)
    unharmed(out.getvalue())
    assert "[red]x[/red]" in out.getvalue()


def test_a_report_of_a_bug_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["allaboard", "run", f"--store=s3://a:{CANARY}@b", "--token", CANARY])
    assert failure.exit_code(RuntimeError(f"Authorization: Bearer {CANARY}"), [], HERE) == 1
    (written,) = (tmp_path / "home" / "bugs").iterdir()
    assert CANARY not in written.read_text() + capsys.readouterr().err
    assert "RuntimeError" in written.read_text()

"""Logs of any size pass through in blocks: which lines, in which order, and what is held of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from allaboard.backends.base import Cursor, LogLine, Selection
from allaboard.backends.local.state import logs
from allaboard.backends.local.state.paths import AttemptFolder, locked
from allaboard.runs.observation import MemberSeen

MEMBERS = (MemberSeen("master", 0, 0, "running"), MemberSeen("worker", 0, 1, "running"))


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptFolder:
    folder = AttemptFolder(tmp_path)
    folder.make()
    return folder


def wrote(attempt: AttemptFolder, member: str, number: int, data: bytes, *notes: tuple[int, float]) -> None:
    path = attempt.log(member, number)
    with path.open("ab") as file:
        file.write(data)
    with path.with_suffix(".times").open("a") as file:
        file.writelines(f"{offset} {when:.3f}\n" for offset, when in notes)


def read(
    attempt: AttemptFolder, cursor: Cursor | None = None, **selection: object
) -> tuple[list[tuple[str, str]], Cursor]:
    """(member, line), long ones in one piece, and the new cursor."""
    *items, new = logs.read_logs(attempt, MEMBERS, Selection(**selection), cursor)  # type: ignore[arg-type]
    assert isinstance(new, dict)
    found: list[tuple[str, str]] = []
    goes_on = False
    for item in items:
        assert isinstance(item, LogLine)
        if goes_on:
            member, before = found.pop()
            assert member == item.member, "the pieces of a line stay together"
            found.append((member, before + item.text))
        else:
            found.append((item.member, item.text))
        goes_on = item.more
    return found, new


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound is met by a few bytes."""
    for name, value in (("LONGEST", 64), ("_SMALLEST", 16), ("_LARGEST", 16), ("_NOTES", 24)):
        monkeypatch.setattr(logs, name, value)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("seed", range(30))
def test_blocks_give_the_lines_that_reading_everything_would(attempt: AttemptFolder, seed: int) -> None:
    chance = random.Random(seed)
    expected: list[tuple[float, int, str, str]] = []
    for rank, member in enumerate(("master-0", "worker-0")):
        when = 1000.0
        for number in range(chance.randint(1, 3)):
            data, notes = b"", []
            for n in range(chance.randint(0, 40)):
                if not n or chance.random() < 0.2:
                    when += chance.choice((0.5, 1.0, 7.0))
                    notes.append((len(data), when))
                text = chance.choice(("", "é", "x" * chance.randint(1, 200), "wörter über wörter € 𝄞 " * 4))
                expected.append((when, rank, member, text))
                data += text.encode() + b"\n"
            wrote(attempt, member, number, data, *notes)
    expected.sort(key=lambda line: line[0])
    lines = [(member, text) for _, _, member, text in expected]
    whole, cursor = read(attempt)
    assert whole == lines
    assert read(attempt, cursor)[0] == []
    for most in (0, 1, 3, 10, len(lines), len(lines) + 5):
        assert read(attempt, tail=most)[0] == (lines[-most:] if most else [])
    since = chance.choice([when for when, *_ in expected] or [1.0])
    assert read(attempt, since=since)[0] == [(m, text) for when, _, m, text in expected if when >= since]
    assert read(attempt, since=since, tail=2)[0] == read(attempt, since=since)[0][-2:]


@pytest.mark.usefixtures("tiny")
def test_what_is_appended_comes_once_whatever_its_pieces_are(attempt: AttemptFolder) -> None:
    chance = random.Random(3)
    text = "".join(chance.choice("aé€𝄞\n") + "b" * chance.randint(0, 90) for _ in range(40))
    data, told, cursor = text.encode(), "", None
    with locked(attempt.live):
        while data:
            size = chance.randint(1, 120)
            wrote(attempt, "master-0", 0, data[:size])
            data = data[size:]
            *items, cursor = logs.read_logs(attempt, MEMBERS, Selection(), cursor)
            assert isinstance(cursor, dict)
            told += "".join(i.text + ("" if i.more else "\n") for i in items if isinstance(i, LogLine))
    *items, _ = logs.read_logs(attempt, MEMBERS, Selection(), cursor)
    told += "".join(i.text + ("" if i.more else "\n") for i in items if isinstance(i, LogLine))
    assert told.removesuffix("\n") == text.removesuffix("\n")


def test_a_line_without_its_end_waits_while_its_try_may_write_on(attempt: AttemptFolder) -> None:
    with locked(attempt.live):
        wrote(attempt, "master-0", 0, b"one\ntw")
        lines, cursor = read(attempt)
        assert lines == [("master-0", "one")]
        assert read(attempt, tail=1)[0] == [("master-0", "one")]
        wrote(attempt, "master-0", 1, b"")  # another try: this one writes no more
        assert read(attempt, cursor)[0] == [("master-0", "tw")]


def test_an_end_of_a_log_is_read_without_the_log(
    attempt: AttemptFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = b"".join(b"%015d\n" % n for n in range(65536))
    wrote(attempt, "master-0", 0, block * 64, *((n << 20, 1000.0 + n) for n in range(64)))
    taken = 0
    pread = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        nonlocal taken
        data = pread(fd, size, offset)
        taken += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    assert len(read(attempt, tail=3)[0]) == 3
    assert taken < 1 << 20
    assert len(read(attempt, since=1063.0)[0]) == 65536
    assert taken < 4 << 20


READS = """
import resource, sys
from pathlib import Path
from allaboard.backends.base import LogLine, Selection
from allaboard.backends.local.state import logs
from allaboard.backends.local.state.paths import AttemptFolder
from allaboard.cli.watch.logs import _Printer
from allaboard.runs.observation import Observation
import json

tail = json.loads(sys.argv[2])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20),) * 2)
printer = _Printer(Observation("run"), single=True, as_json=sys.argv[3] == "json")
for item in logs.read_logs(AttemptFolder(Path(sys.argv[1])), (), Selection(tail=tail), None):
    if isinstance(item, LogLine):
        printer.line(item)
printer.close()
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much a process uses")
@pytest.mark.parametrize(
    ("kind", "tail", "form"),
    [
        ("many lines", "null", "text"),
        ("many lines", "300000", "text"),
        ("many lines", "3", "json"),
        ("one line", "null", "text"),
        ("one line", "1", "json"),
    ],
)
def test_a_log_of_any_size_is_printed_in_little_memory(
    attempt: AttemptFolder, kind: str, tail: str, form: str
) -> None:
    line = b"step 1 of 2, loss 0.25, and %s\n" % (b"more words" * 6) if kind == "many lines" else b"x" * 1024
    with attempt.log("master-0", 0).open("wb") as file:
        for _ in range(32):
            file.write(line * ((1 << 20) // len(line)))
    asked = [sys.executable, "-c", READS, str(attempt.path), tail, form]
    done = subprocess.run(asked, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    if form == "text" and tail == "null":
        assert len(done.stdout) >= attempt.log("master-0", 0).stat().st_size

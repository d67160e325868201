"""The live view: what a frame shows, and a real terminal with a person at it."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fcntl import ioctl

import pytest
from rich.console import Console

from allaboard.backends.base import Handle
from allaboard.cli.live import Frame, LiveView
from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.runs.observation import Event, Observation, Progress, Slow, Stall, State
from allaboard.runs.status import state_of
from allaboard.testing import a_member, seen
from tests.core.cli.terminal import LONG, TRAINS, WAITS, Terminal, wait_for

SLOWLY = """
import time
from allaboard.inside import report, result
for step in range(1, 41):
    report(step=step, total=40, loss=1 / step)
    time.sleep(0.05)
result(accuracy=0.9)
"""
TRAINING = replace(
    seen(State.RUNNING),
    members=(a_member("master-0", rank=0), a_member("worker-0", rank=1, restarts=1)),
    restarts=1,
    phases={
        "admitted": 0.0,
        "scheduled": 0.1,
        "image": None,
        "rendezvous": 2.1,
        "first_step": 0.3,
        "training": 30.0,
    },
    progress=Progress(
        step=300,
        total=400,
        lost_steps=7,
        metrics={"loss": 0.03125, "steps_per_second": 10.0},
        checkpoint="/x/step-000000000300",
    ),
)


def drawn(
    observation: Observation, *events: Event, size: tuple[int, int] = (100, 40), after: float = 0.0
) -> str:
    """The frame as text, ``after`` seconds from the observation."""
    now = [100.0]
    frame = Frame(HERE, lambda: now[0])
    frame.show(observation, events)
    now[0] += after
    console = Console(
        file=io.StringIO(), width=size[0], height=size[1], force_terminal=True, color_system=None
    )
    console.print(frame)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_frame_of_a_training(tz: None) -> None:
    text = drawn(TRAINING)
    assert re.search(r"digits-00000000  running  for 1m 39s +attempt 1 · 1 restart\n", text)
    assert "Created 00:00:00 → Running 00:00:00" in text
    assert "admitted 0.0 s   scheduled 0.1 s   rendezvous 2.1 s   first step 0.3 s   training 30 s" in text
    assert re.search(r"worker-0 +1  running +- +1 *\n", text)
    assert re.search(r"━+╺?━* +step 300/400  75%  10 s left", text)
    assert "loss 0.03125   10 steps/s   checkpoint step-000000000300   7 steps lost" in text
    assert "allaboard logs digits-00000000 -f" in text


@pytest.fixture
def tz(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are shown in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_clocks_of_a_frame_go_on_between_two_looks() -> None:
    text = drawn(TRAINING, after=12.0)
    assert "training 42 s" in text and "first step 0.3 s" in text, "only the phase that is on"


def test_a_frame_says_why_a_run_waits_and_which_member_backs_off() -> None:
    assert "queued" in drawn(seen(State.QUEUED)) and "waits for 2 CPUs" in drawn(seen(State.QUEUED))
    backing_off = a_member("worker-0", rank=1, reason="CrashLoopBackOff", exit_code=1, restarts=2)
    text = drawn(replace(TRAINING, members=(backing_off,)))
    assert re.search(r"worker-0 +1  waits to restart +1 +2 *\n", text)


def test_why_it_waits_has_a_line_of_its_own(tz: None) -> None:
    why = "this machine holds it back, 3 before it: it needs 2 more GPUs, which run digits-1f0c9a77 uses"
    text = drawn(replace(seen(State.QUEUED), waiting=why, phases={"admitted": 4.0}))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0].endswith("attempt 1 · 0 restarts") and lines[1] == f"  {why}"
    assert lines[-1] == "  who else waits: allaboard queues", "there is no output yet"
    assert "who else waits" not in drawn(TRAINING)


HELD = "Kueue holds it back in queue research, 3 before it: it needs 2 more nvidia.com/gpu in flavor h100"


def test_a_frame_gives_a_queues_reason_lines_of_its_own() -> None:
    waits = seen(State.QUEUED, waiting=f"{HELD}, which others use", created=58.0, phases={"admitted": 42.0})
    lines = [line.rstrip() for line in drawn(waits, size=(80, 40)).splitlines()]
    assert re.fullmatch(r"\S digits-00000000  queued  for 42 s +attempt 1 · 0 restarts", lines[0])
    assert lines[1:4] == [
        "  Kueue holds it back in queue research, 3 before it: it needs 2 more",
        "  nvidia.com/gpu in flavor h100, which others use",
        "",
    ]
    again = replace(waits, phases={"admitted": 50.0}, queued_before=42.0)
    assert "queued  for 8.0 s" in drawn(again), "since its queue took it back"


def test_a_frame_of_a_run_on_another_cluster_points_at_no_log_here() -> None:
    away = replace(TRAINING, elsewhere=True, phases={"admitted": 21.0})
    text = drawn(away, after=12.0)
    assert "allaboard logs" not in text and "admitted 21 s" in text


def test_the_march_of_the_conditions_ends_with_the_last(tz: None) -> None:
    text = drawn(seen(State.SUCCEEDED, members=TRAINING.members))
    assert "Succeeded" in text


def test_events_without_the_first_starts() -> None:
    events = [
        Event(1.0, "Normal", "Started", "worker-0", "started try 0"),
        Event(2.0, "Warning", "BackOff", "worker-0", "exited with code 1; restart 1"),
        Event(3.0, "Normal", "Started", "worker-0", "started try 1"),
    ]
    text = drawn(TRAINING, *events)
    assert "try 0" not in text and "restart 1" in text and "try 1" in text


@pytest.mark.parametrize("size", [(200, 60), (80, 24), (60, 12), (20, 5)])
def test_a_frame_fits_any_terminal(size: tuple[int, int]) -> None:
    many = tuple(a_member(f"worker-{n}", rank=n) for n in range(64))
    broken = replace(many[40], phase="failed", exit_code=1, restarts=3)
    text = drawn(replace(TRAINING, members=(*many[:40], broken, *many[41:])), size=size)
    assert all(len(line) <= size[0] for line in text.splitlines())
    if size[0] >= 60:
        assert "worker-40" in text, "the one that something happened to is shown"
        assert "more" in text


def test_a_script_that_reports_nothing_has_no_bar() -> None:
    assert "━" not in drawn(replace(TRAINING, progress=Progress()))
    assert "step 12" in drawn(replace(TRAINING, progress=Progress(step=12)))


def test_the_view_stays_at_the_end_and_says_what_is_next(capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=100, height=40, force_terminal=True, color_system=None)
    view = LiveView(lambda: [], HERE, console=console)
    notes, warnings = ("the job has changed: workers: 1 -> 2",), ("members start one by one",)
    view.launched(Handle("digits-00000000", 2, 1, "u1", notes=notes, warnings=warnings))
    view.seen(TRAINING)
    ended = replace(TRAINING, conditions=seen(State.SUCCEEDED).conditions, finished=50.0)
    view.ended(Outcome(ended))
    view.close()
    assert "warning: members start one by one" in screen.getvalue()
    assert "the job has changed: workers: 1 -> 2" in screen.getvalue() and "✓" in screen.getvalue()
    assert "\x1b[?25h" in screen.getvalue(), "the cursor is back"
    assert "allaboard logs digits-00000000" in capsys.readouterr().out


class Screen:
    """A person's terminal: a pseudo terminal with somebody who types."""

    def __init__(self, ab: Terminal, *words: str, kind: str = "xterm-256color") -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
        ab.environ.update(TERM=kind, COLUMNS="110", LINES="40")
        ab.environ.pop("NO_COLOR", None)
        self.process = ab.start(
            *words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def read(self) -> str:
        """All that was written so far."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            self.seen += data.decode()
        return self.seen

    def until(self, text: str) -> None:
        wait_for(lambda: text in self.read())

    def types(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        def over() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_for(over, LONG)
        self.read()
        return int(self.process.returncode)

    @property
    def text(self) -> str:
        """What was written, without colours and movements."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", self.seen)


@contextmanager
def a_screen(ab: Terminal, *words: str) -> Iterator[Screen]:
    screen = Screen(ab, *words)
    try:
        yield screen
    finally:
        if screen.process.poll() is None:
            screen.process.kill()
            screen.process.wait()
        os.close(screen.master)


def test_on_a_terminal_the_run_is_seen_live(ab: Terminal) -> None:
    with a_screen(ab, "run", ab.job(SLOWLY, workers=2)) as screen:
        screen.until("step 40/40")
        assert screen.end() == 0
    assert "\x1b[?25h" in screen.seen and "\x1b[32m" in screen.seen, (
        "the cursor is back, and there were colours"
    )
    text = screen.text
    for words in (
        "Created",
        "→ Running",
        "→ Succeeded",
        "master-0",
        "worker-0",
        "100%",
        "steps/s",
        "left",
        "accuracy 0.9",
    ):
        assert words in text, words


def test_ctrl_c_at_a_terminal_stops_the_run(ab: Terminal) -> None:
    with a_screen(ab, "run", ab.job(WAITS)) as screen:
        ab.until_said("ready")
        screen.types("\x03")
        assert screen.end() == 3
    assert "Ctrl-C: stopping; its members may save and end" in screen.text
    assert "was stopped" in screen.text and "\x1b[?25h" in screen.seen
    assert "saved" in ab("logs", "digits").out, "the member had its grace, and no Ctrl-C of its own"
    assert ab.processes(ab.runs()[0]) == []


@pytest.mark.thorough
def test_closing_the_terminal_leaves_the_run(ab: Terminal) -> None:
    screen = Screen(ab, "run", ab.job(WAITS))
    ab.until_said("ready")
    screen.read()
    os.close(screen.master)
    assert screen.process.wait(LONG) == 0
    assert state_of(ab.seen()) is State.RUNNING and ab.seen().owner.kind == "detached"  # type: ignore[union-attr]
    assert not (ab.backend.runs.parents[2] / "bugs").exists()
    assert ab("stop", "digits").code == 0


def test_a_failure_on_a_terminal_is_explained_below_the_frame(ab: Terminal) -> None:
    with a_screen(ab, "run", ab.job("raise ValueError('odd')", policy={"restart": "never"})) as screen:
        assert screen.end() == 1
    assert "✗" in screen.text and "ValueError: odd" in screen.text and "because" in screen.text


def test_following_on_a_terminal(ab: Terminal) -> None:
    assert ab("run", ab.job(SLOWLY), "--detach").code == 0
    with a_screen(ab, "follow", "digits") as screen:
        assert screen.end() == 0
    assert "step 40/40" in screen.text


@pytest.mark.thorough
def test_ctrl_c_while_following_leaves_the_run(ab: Terminal) -> None:
    assert ab("run", ab.job(WAITS), "--detach").code == 0
    ab.until_said("ready")
    with a_screen(ab, "follow", "digits") as screen:
        screen.until("running")
        screen.types("\x03")
        assert screen.end() == 130
    assert "goes on" in screen.text
    assert state_of(ab.seen()) is State.RUNNING
    assert ab("stop", "digits").code == 0


@pytest.mark.thorough
def test_a_dumb_terminal_gets_plain_lines(ab: Terminal) -> None:
    screen = Screen(ab, "run", ab.job(TRAINS), kind="dumb")
    assert screen.end() == 0
    os.close(screen.master)
    assert "\x1b" not in screen.seen and "succeeded" in screen.seen


def test_a_run_that_stands_says_why_below_its_state() -> None:
    stall = Stall("rank_stalled", "rank 2 has not entered all_reduce", 0.0, "rank 2")
    text = drawn(seen(State.RUNNING, stall=stall))
    assert "running" in text and "rank 2 has not entered all_reduce" in text


def test_a_run_that_one_rank_holds_up_says_so_below_its_state() -> None:
    slow = Slow(3, 1.9, "rank 3 takes 1.9 times as long as the others for each step")
    assert slow.text in drawn(seen(State.RUNNING, slow=slow))
    assert slow.text not in drawn(seen(State.SUCCEEDED, slow=slow))

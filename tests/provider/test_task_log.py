"""What the task log says of a run: changes, progress now and then, rank 0's words, each once and all
bounded.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Cursor, LogLine, Selection
from allaboard.follow.loop import Outcome
from allaboard.report.output import LONGEST, MOST_LINES
from allaboard.runs.observation import Progress, Stall, State, Stop
from allaboard.testing import a_member, seen
from allaboard.text.reportline import encode
from allaboard_provider.task_log import TaskLog, restart_warnings
from tests.core.report import one_output

TRACEBACK = "Traceback (most recent call last):"


class Backend:
    """A home, and the lines of rank 0."""

    name = "local"

    def __init__(self, home: Path) -> None:
        self.home = str(home)
        self.lines: list[str] = []

    def logs(self, run: str, selection: Selection, cursor: Cursor | None) -> Any:
        assert selection.ranks == (0,)
        start = (cursor or {}).get("n", 0)
        yield from (LogLine("master-0", 0, 0, None, text) for text in self.lines[start:])
        yield {"n": len(self.lines)}


@pytest.fixture
def backend(tmp_path: Path) -> Any:
    return Backend(tmp_path)


class LoggedRun(TaskLog):
    """A task log that reads its lines."""

    def __init__(self, backend: Any, run: str, ti_id: str, **options: Any) -> None:
        super().__init__(run, ti_id, home=backend.home, **options)
        self.backend = backend

    def look(self, seen: Any, now: float) -> list[str]:
        self.read(self.backend, seen, now)
        return self.update(seen, now)


def at(step: int, **fields: Any) -> Any:
    told = Progress(step=step, total=400, metrics={"loss": 0.3125}, heartbeat=1.0)
    return seen(State.RUNNING, progress=told, **fields)


def test_changes_are_told_once(backend: Any) -> None:
    log = LoggedRun(backend, "r", "try-1")
    assert log.look(seen(State.QUEUED), 0.0) == ["r: queued: waits for 2 CPUs"]
    assert log.look(seen(State.QUEUED), 1.0) == []
    assert log.look(seen(State.QUEUED, waiting="waits for 1 CPU"), 2.0) == ["r: queued: waits for 1 CPU"]
    running = seen(State.RUNNING, members=(a_member("master-0"),))
    assert log.look(running, 3.0) == ["r: running (master-0 running)"]
    assert log.look(replace(running, flags=("nan_loss",)), 4.0) == ["r: warning: nan loss (see diagnoses)"]


def test_a_run_that_stands_is_told_once_until_another_rank_is_to_blame_or_it_moves(backend: Any) -> None:
    log = LoggedRun(backend, "r", "try-1")
    running = seen(State.RUNNING, members=(a_member("master-0"),))
    assert log.look(running, 0.0) == ["r: running (master-0 running)"]

    def stands(rank: int, text: str) -> Any:
        stall = Stall("rank_stalled", text, 0.0, f"rank {rank}")
        return replace(running, stall=stall, flags=("rank_stalled",))

    assert log.look(stands(2, "rank 2 is late"), 1.0) == [
        "r: running: rank 2 is late",
        "r: warning: rank stalled (see diagnoses)",
    ]
    assert log.look(stands(2, "rank 2 is still late"), 2.0) == []
    assert log.look(stands(1, "rank 1 is late"), 3.0) == ["r: running: rank 1 is late"]
    assert log.look(running, 4.0) == ["r: running (master-0 running)"]


def test_a_place_in_a_queue_is_told_once_a_minute_and_another_reason_at_once(backend: Any) -> None:
    """A hundred runs wait, and one of them starts every second."""
    log = LoggedRun(backend, "r", "try-1")

    def waits(place: int, why: str) -> Any:
        where = f", {place} before it" if place else ", next in line"
        return seen(State.QUEUED, created=0.0, waiting=f"Kueue holds it back in queue team{where}: {why}")

    lines = [
        line
        for now in range(100)
        for line in log.look(waits(99 - now, f"it needs {now % 3 + 1} more cpu in flavor any"), float(now))
    ]
    assert [line.partition("team, ")[2][:9] for line in lines] == ["99 before", "39 before"]
    stopped = log.look(waits(0, "LocalQueue team is stopped"), 100.0)
    assert stopped == [
        "r: queued: Kueue holds it back in queue team, next in line: LocalQueue team is stopped"
    ]
    assert log.look(waits(0, "LocalQueue team is stopped"), 500.0) == [], "told once"


def test_a_run_on_another_cluster_says_where_its_members_are(backend: Any) -> None:
    log = LoggedRun(backend, "r", "try-1")
    away = seen(State.RUNNING, elsewhere=True, notes=("Kueue has sent it to cluster far",))
    assert log.look(away, 0.0) == ["r: running: Kueue has sent it to cluster far"]


def test_progress_is_told_now_and_then_and_at_the_last_step(backend: Any) -> None:
    log = LoggedRun(backend, "r", "try-1")
    told = [log.look(at(step, started=1000.0), 1000.0 + step) for step in range(1, 200)]
    lines = [line for news in told for line in news if "step" in line]
    assert "r: step 1/400 (0%), loss 0.3125" in lines
    assert 10 < len(lines) < 40
    assert any("step 400/400" in line for line in log.look(at(400, started=1000.0), 1199.1))


def test_a_checkpoint_and_a_resume_are_told(backend: Any) -> None:
    log = LoggedRun(backend, "r", "try-1")
    log.look(at(1), 0.0)
    saved = replace(at(2).progress, checkpoint="file:///a/step-2", best_checkpoint="file:///a/step-2")
    assert log.look(seen(State.RUNNING, progress=saved), 0.1) == [
        "r: checkpoint file:///a/step-2, the best so far"
    ]
    resumed = replace(saved, resumed_from=2)
    assert "r: resumed from step 2" in log.look(seen(State.RUNNING, progress=resumed), 0.2)


def test_rank_0s_own_words_are_told_before_the_end_and_report_lines_are_not(backend: Any) -> None:
    backend.lines = ["hello", encode("progress", step=1), "good bye"]
    log = LoggedRun(backend, "r", "try-1")
    assert log.look(seen(State.SUCCEEDED), 0.0) == ["hello", "good bye", "r: succeeded"]
    assert LoggedRun(backend, "r", "try-2", output=False).look(seen(State.SUCCEEDED), 0.0) == ["r: succeeded"]


def test_another_process_goes_on_where_this_one_left_off(backend: Any) -> None:
    backend.lines = ["one"]
    assert "one" in LoggedRun(backend, "r", "try-1").look(seen(State.RUNNING), 0.0)
    backend.lines.append("two")
    assert LoggedRun(backend, "r", "try-1").look(seen(State.RUNNING), 1.0) == ["two"]
    assert "one" in LoggedRun(backend, "r", "try-2").look(seen(State.RUNNING), 1.0), (
        "the log of another try is another log"
    )


def test_another_attempt_begins_its_story_anew(backend: Any) -> None:
    log = LoggedRun(backend, "r", "try-1")
    backend.lines = ["of the first attempt"]
    log.look(seen(State.RUNNING, uid="u1"), 0.0)
    backend.lines = ["of the second"]
    assert "of the second" in log.look(seen(State.RUNNING, uid="u2"), 1.0)


def test_a_new_attempt_tells_nothing_of_the_progress_of_the_one_before(backend: Any) -> None:
    saved = {"checkpoint": "file:///a/step-55", "best_checkpoint": "file:///a/step-55"}
    before = replace(at(57).progress, **saved)
    for log in (LoggedRun(backend, "r", "same-try"), LoggedRun(backend, "r", "next-try")):
        if log.path is not None and log.path.stem == "same-try":
            log.look(seen(State.RUNNING, uid="u1", progress=before), 0.0)
        carried = replace(before, heartbeat=None)
        assert log.look(seen(State.STARTING, uid="u2", progress=carried), 1.0) == ["r: starting"]
        resumed = replace(before, step=55, resumed_from=55)
        assert log.look(seen(State.STARTING, uid="u2", progress=resumed), 2.0) == ["r: resumed from step 55"]
        anew = replace(resumed, step=56, metrics={"loss": 0.25}, checkpoint="file:///a/step-56")
        assert log.look(seen(State.STARTING, uid="u2", progress=anew), 90.0) == [
            "r: step 56/400 (14%), loss 0.25",
            "r: checkpoint file:///a/step-56",
        ]


def test_a_restart_is_a_warning_with_what_the_failed_try_wrote_last_once(tmp_path: Path) -> None:
    class Tries:
        name, home = "local", str(tmp_path)

        def logs(self, run: str, selection: Selection, cursor: Cursor | None = None) -> Any:
            (member,) = selection.members or ()
            said = [
                "before",
                "Traceback (most recent call last)",
                "  in f",
                f"ValueError: {selection.restart}",
            ]
            yield from (LogLine(member, 1, 0, None, text) for text in said)
            yield {}

    backend: Any = Tries()
    log = TaskLog("r", "try-1", home=backend.home)
    failed = replace(a_member("worker-0"), exit_code=1, restarts=1)
    fine = a_member("master-0")
    log.update(seen(State.RUNNING, members=(fine, failed)), 1.0)
    assert restart_warnings(backend, log, seen(State.RUNNING, members=(fine, failed))) == [
        "r: worker-0 exited with 1 and is started again, restart 1; its last lines:",
        "  Traceback (most recent call last)",
        "    in f",
        "  ValueError: 0",
    ]
    assert restart_warnings(backend, log, seen(State.RUNNING, members=(fine, failed))) == []
    again = TaskLog("r", "try-1", home=backend.home)
    assert restart_warnings(backend, again, seen(State.RUNNING, members=(fine, failed))) == [], (
        "told elsewhere"
    )
    twice = seen(State.RUNNING, members=(fine, replace(failed, restarts=2)))
    assert restart_warnings(backend, log, twice)[-1] == "  ValueError: 1"


def test_a_run_that_somebody_stopped_has_no_member_that_failed(backend: Any) -> None:
    members = (replace(a_member("master-0"), exit_code=143, phase="failed"),)
    stop = Stop("ann@lab", "not tonight\x1b[2J", 2.0)
    ended = seen(State.STOPPED, stop=stop, members=members, tails={"master-0": "Terminated"})
    log = LoggedRun(backend, "r", "try-1")
    assert log.look(ended, 0.0) == ["r: stopped by ann@lab: not tonight\\x1b[2J"]
    assert log.failure_lines(Outcome(ended)) == []
    failed = seen(State.FAILED, members=members, tails={"master-0": "Terminated"})
    assert log.failure_lines(Outcome(failed))[0] == "the last lines of master-0, which failed first:"


def test_what_was_told_is_forgotten_with_the_try_and_after_a_month(backend: Any, tmp_path: Path) -> None:
    old = LoggedRun(backend, "r", "long-ago")
    old.look(seen(State.RUNNING), 0.0)
    assert old.path is not None
    os.utime(old.path, (0, time.time() - 31 * 86400))
    log = LoggedRun(backend, "r", "try-1")
    log.look(seen(State.RUNNING), 0.0)
    log.forget()
    assert list((tmp_path / "airflow").iterdir()) == []


def test_a_disk_that_is_full_or_a_memory_that_is_torn_ends_no_task(backend: Any, tmp_path: Path) -> None:
    (tmp_path / "airflow").write_text("a file where the folder should be")
    assert LoggedRun(backend, "r", "try-1").look(seen(State.RUNNING), 0.0) != []
    (tmp_path / "airflow").unlink()
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "try-1.json").write_text('{"uid": "u1", "cur')
    assert LoggedRun(backend, "r", "try-1").look(seen(State.RUNNING), 0.0) != []


def test_of_a_flood_only_its_end_is_held(backend: Any) -> None:
    backend.lines = ["[allaboard] {}", *(f"line {n}" for n in range(100_000))]
    told = LoggedRun(backend, "r", "ti").look(seen(State.RUNNING), 1.0)
    left_out = 100_001 - MOST_LINES
    assert f"({left_out:,} lines of rank 0 left out here: allaboard logs r --rank 0)" in told
    assert told[-1] == "line 99999"


def test_the_task_log_says_the_same_of_an_output_as_all_others() -> None:
    """In a worker, and in a triggerer, which awaits its backend."""
    backend: Any = one_output.Wrote()

    class Awaited:
        name = "kubernetes"

        async def logs(self, *asked: Any) -> Any:
            for item in backend.logs(*asked):
                yield item

    for awaits in (False, True):
        log = TaskLog("r", "try-1", secrets=(one_output.SECRET,))
        if awaits:
            asyncio.run(log.aread(Awaited(), one_output.RUNNING, 0.0))
        else:
            log.read(backend, one_output.RUNNING, 0.0)
        told = log.update(one_output.RUNNING, 10.0)
        first = told.index(one_output.LINES[0])
        assert told[first : first + len(one_output.LINES)] == one_output.LINES
        assert told[-1] == f"r: {one_output.PROGRESS}"
        head, *end = log.failure_lines(one_output.FAILED)
        assert head.startswith(f"the last lines of {one_output.FAILING}, ")
        assert end == [f"  {one_output.TAIL}"]


def test_a_secret_of_the_run_is_in_no_line_even_where_one_is_cut(backend: Any) -> None:
    secret = "nobody-knows-it-by-its-looks"
    log = LoggedRun(backend, "r", "try-1", secrets=(secret,))
    backend.lines = [f"opened with {secret}", "x" * (LONGEST - 10) + secret]
    waiting = seen(State.QUEUED, waiting=f"waits for {secret}")
    failed = seen(State.FAILED, members=(a_member("master-0", exit_code=1),))
    tail = f"{TRACEBACK}\nRuntimeError: {secret}"
    outcome = Outcome(replace(failed, tails={"master-0": tail}), ())
    lines = [
        *log.look(waiting, 0.0),
        *log.failure_lines(outcome),
        *log.restart_lines(failed.members[0], tail.split("\n")),
    ]
    told = "\n".join(lines) + str(log.saved_state)
    assert "opened with ***" in told and told.count("RuntimeError: ***") == 2
    assert "nobody" not in told

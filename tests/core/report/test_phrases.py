"""The words that people read: the same for every view, made of values alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from allaboard.backends.base import Handle
from allaboard.cli.watch.status import page
from allaboard.diagnosis import diagnose
from allaboard.follow.loop import Outcome
from allaboard.follow.restart import REPEATS
from allaboard.report import localtime, phrases
from allaboard.report.commands import HERE
from allaboard.report.ending import command_again, ending_lines
from allaboard.report.plain import PlainView
from allaboard.report.terminal import json_line
from allaboard.runs.observation import Condition, Event, Observation, Progress, State, Stop
from allaboard.testing import a_condition, a_member, seen


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at_step(step: int | None, total: int | None = None, **metrics: float | None) -> Observation:
    return seen(State.RUNNING, progress=Progress(step=step, total=total, metrics=metrics))


def test_the_gang() -> None:
    assert phrases.members_phrase([]) == ""
    members = [a_member("master-0"), a_member("worker-0"), a_member("worker-1")]
    assert phrases.members_phrase(members) == "1 master + 2 workers"


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (at_step(None), ""),
        (at_step(3), "step 3"),
        (at_step(0, 10), "step 0/10 (0%)"),
        (
            at_step(5, 10, loss=0.03125, steps_per_second=2.0),
            "step 5/10 (50%), loss 0.03125, 2 steps/s, 2.5 s left",
        ),
        (at_step(12, 10, steps_per_second=2.0), "step 12/10 (100%), 2 steps/s"),
        (at_step(5, 10, loss=None), "step 5/10 (50%), loss nan"),
        (at_step(5, None, steps_per_second=0.0), "step 5"),
    ],
)
def test_the_progress(observation: Observation, expected: str) -> None:
    assert phrases.progress_phrase(observation) == expected


def test_the_phase_that_is_on_runs_and_the_others_stand_still() -> None:
    observation = seen(
        State.RUNNING, phases={"admitted": 1.0, "scheduled": 2.0, "image": None, "rendezvous": 3.0}
    )
    found = phrases.phases(observation, more=60.0)
    assert found == [
        ("admitted", "1.0 s", False),
        ("scheduled", "2.0 s", False),
        ("rendezvous", "1m 03s", True),
    ]
    ended = replace(observation, conditions=seen(State.SUCCEEDED).conditions)
    assert [on for *_, on in phrases.phases(ended)] == [False] * 3


def test_the_march_keeps_what_is_no_longer_true_and_goes_by_time() -> None:
    conditions = (
        a_condition("Succeeded", since=9.0),
        a_condition("Running", "False", since=2.0),
        a_condition("Created", since=1.0),
        a_condition("Suspended", "False", since=3.0),
    )
    assert [c.type for c in phrases.conditions_in_order(conditions)] == ["Created", "Running", "Succeeded"]
    assert phrases.conditions_in_order([Condition("Created", "True", "", "")])[0].type == "Created"


def test_metrics_are_short_and_nested_ones_left_out() -> None:
    assert phrases.metrics(
        {"loss": 1 / 3, "bad": None, "steps_per_second": 9.9, "n": 3, "deep": {"x": 1}}
    ) == ("loss 0.3333, bad nan, n 3")


def test_a_table_is_as_wide_as_it_must_be() -> None:
    assert phrases.table(("a", "long"), [("xxxx", "y"), ("z", "")]) == ["a     long", "xxxx  y", "z"]


def test_json_holds_no_nan() -> None:
    assert (
        json_line({"a": [float("nan"), float("inf"), 1.5], "b": {1: None}})
        == '{"a":[null,null,1.5],"b":{"1":null}}'
    )


# --- the last words


def failed(**fields: object) -> Outcome:
    members = (
        a_member("master-0", "failed", rank=0, exit_code=143, ended=9.0),
        a_member("worker-0", "failed", rank=1, exit_code=1, ended=8.0, restarts=2),
    )
    tails = {
        "worker-0": "Traceback (most recent call last):\n  ...\nValueError: odd",
        "master-0": "Connection reset by peer",
    }
    found = seen(State.FAILED, **{"members": members, "tails": tails, **fields})
    return Outcome(found, diagnose(found))


def test_a_failure_in_order() -> None:
    lines = list(ending_lines(failed(), HERE, "allaboard run job.yaml --key k"))
    assert lines[0] == (
        "✗ digits-00000000 failed after 8.0 s: "
        "the training script raised an error (worker-0, rank 1): ValueError: odd"
    )
    assert lines[1:] == [
        "  because     worker-0 wrote: ValueError: odd",
        "              worker-0's exit code: 1",
        "  do          fix the script; its log shows the traceback",
        "  log         the last 3 lines of worker-0, restart 2:",
        "    │ Traceback (most recent call last):",
        "    │   ...",
        "    │ ValueError: odd",
        "  next        allaboard logs digits-00000000 worker-0",
        "              allaboard events digits-00000000",
        "              allaboard run job.yaml --key k   (tries again)",
    ]


def test_only_the_last_twenty_lines_are_quoted() -> None:
    tails = {"worker-0": "\n".join(f"line {n}" for n in range(100))}
    quoted = [line for line in ending_lines(failed(tails=tails), HERE) if "│" in line]
    assert len(quoted) == 20 and quoted[-1].endswith("line 99")


def test_a_success_with_a_warning_and_lost_steps() -> None:
    progress = Progress(
        step=9,
        total=9,
        lost_steps=4,
        result={"accuracy": 0.9},
        checkpoint="/c/step-9",
        best_checkpoint="/c/step-5",
    )
    member = a_member("master-0", "succeeded", log="/home/logs/master-0.0.log")
    found = seen(State.SUCCEEDED, members=(member,), progress=progress, flags=("nan_loss",))
    text = "\n".join(ending_lines(Outcome(found, diagnose(found)), HERE, "again"))
    assert text.startswith("✓ digits-00000000 succeeded after 8.0 s\n")
    for line in (
        "  metrics     accuracy 0.9",
        "  lost        4 steps done again after restarts",
        "  warning     the loss is not a finite number",
        "  checkpoint  /c/step-9",
        "  best        /c/step-5",
        "  logs        /home/logs",
        "  next        allaboard checkpoints list digits-00000000",
    ):
        assert line in text, line
    assert "again" not in text.splitlines()[-1], "what succeeded is not run again"


def test_a_stop_says_who_and_why_and_how_to_go_on() -> None:
    stop = Stop("ann@lab", "Ctrl-C", 5.0)
    saved = Progress(step=20, checkpoint="/c/step-20")
    lines = list(
        ending_lines(
            Outcome(seen(State.STOPPED, stop=stop, started=1.0, finished=6.0, progress=saved)),
            HERE,
            "again --key k",
        )
    )
    assert lines[0] == "■ digits-00000000 was stopped after 5.0 s by ann@lab: Ctrl-C"
    assert lines[-1].endswith("again --key k   (resumes from its newest checkpoint)")


def test_why_no_attempt_follows_is_said() -> None:
    found = seen(State.LOST, attempt=3)
    assert any(
        "3 of 3 attempts used" in line
        for line in ending_lines(Outcome(found, diagnose(found), "3 of 3 attempts used"), HERE)
    )
    lines = [*ending_lines(replace(failed(), note=REPEATS), HERE)]
    assert "  attempts    another attempt would repeat it" in lines


def test_the_command_that_goes_on_can_be_pasted() -> None:
    assert command_again("run", ["my job.yaml", "--store", "s3://b"], "a b") == (
        "allaboard run 'my job.yaml' --store s3://b --key 'a b'"
    )


# --- the page of a run


@pytest.mark.parametrize("state", [s for s in State])
def test_every_state_has_a_page(state: State) -> None:
    observation = seen(state)
    text = "\n".join(page(observation, diagnose(observation), HERE, 100.0, coloured=False))
    assert text.startswith(f"digits-00000000  {str(state).replace('_', ' ')}") and "next" in text


def test_a_page_says_what_holds_it() -> None:
    text = "\n".join(page(seen(State.QUEUED), (), HERE, 100.0, coloured=False))
    assert "waits       waits for 2 CPUs" in text
    stop = Stop("ann@lab", "no need", 50.0)
    assert "by ann@lab at 00:00:50: no need" in "\n".join(
        page(seen(State.STOPPING, stop=stop), (), HERE, 100.0, False)
    )


# --- plain lines


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was said since the last time, without the times of day."""
    lines = capsys.readouterr().out.splitlines()
    return [line.partition("  ")[2] or line for line in lines]


def test_progress_is_one_line_every_five_seconds_and_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    view = PlainView(lambda: [], HERE, clock=clock)
    view.seen(seen(State.RUNNING))
    told(capsys)
    said: list[str] = []
    for step in range(1, 21):
        clock.now += 1.0
        view.seen(at_step(step, 20))
        said += told(capsys)
    assert said == [f"step {n}/20 ({n / 20:.0%})" for n in (1, 6, 11, 16, 20)]


def test_what_nobody_may_overlook_is_a_warning_before_the_notes(capsys: pytest.CaptureFixture[str]) -> None:
    """As a step of a pipeline says it, too."""
    handle = Handle("digits-1", 1, 1, "u", notes=("a note",), warnings=("members start one by one",))
    PlainView(lambda: [], HERE).launched(handle)
    assert told(capsys)[1:] == ["warning: members start one by one", "a note"]


def test_a_change_is_one_line_and_no_change_none(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(lambda: [], HERE)
    member = a_member("master-0")
    for observation in (seen(State.QUEUED), seen(State.QUEUED), seen(State.RUNNING, members=(member,))):
        view.seen(observation)
    view.seen(seen(State.RUNNING, members=(member,)))
    assert told(capsys) == ["queued: waits for 2 CPUs", "running: 1 master"]


def test_who_was_taken_away_is_named_once_and_events_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = []
    view = PlainView(lambda: events, HERE)
    member = a_member("worker-0")
    view.seen(seen(State.RUNNING, members=(member,)))
    events.append(Event(2.0, "Normal", "Evicted", "worker-0", "Evicted pod: Drifted"))
    events.append(Event(3.0, "Warning", "ExitedWithCode", "job", "x" * 2000 + "\n" + "y" * 2000))
    gone = replace(member, phase="failed", reason="Evicted", said="low on resource: memory", ended=4.0)
    view.seen(seen(State.RUNNING, members=(gone,), restarts=1))
    view.seen(seen(State.RUNNING, members=(gone,), restarts=2))
    said = told(capsys)
    assert sum(line.startswith("worker-0: Evicted: Evicted pod: Drifted") for line in said) == 1
    assert sum(line.startswith("worker-0: Evicted: low on resource: memory") for line in said) == 1
    assert max(map(len, said)) < 300
    assert phrases.member_row(gone)[2] == "failed (Evicted)"


def test_a_place_in_a_queue_is_told_once_a_minute_and_another_reason_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    view = PlainView(lambda: [], HERE, clock=clock)

    def waits(why: str) -> Observation:
        return seen(State.QUEUED, waiting=f"Kueue holds it back in queue team, {why}")

    said = []
    for place in range(150, 0, -1):
        view.seen(waits(f"{place} before it: it needs 2 more cpu"))
        said += told(capsys)
        clock.now += 1.0
    assert [line.partition("team, ")[2] for line in said] == [
        f"{place} before it: it needs 2 more cpu" for place in (150, 90, 30)
    ]
    view.seen(waits("next in line: LocalQueue team is stopped"))
    view.seen(seen(State.RUNNING, members=(a_member("master-0"),)))
    assert told(capsys) == [
        "queued: Kueue holds it back in queue team, next in line: LocalQueue team is stopped",
        "running: 1 master",
    ]


def test_a_run_that_was_over_before_the_first_look_still_says_that_it_ran(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = PlainView(lambda: [], HERE)
    conditions = (a_condition("Created"), a_condition("Running", "False"), a_condition("Succeeded"))
    view.seen(seen(State.SUCCEEDED, members=(a_member("master-0"),), conditions=conditions))
    assert told(capsys) == ["running: 1 master"]
    view = PlainView(lambda: [], HERE)
    view.seen(seen(State.RUNNING, members=(a_member("master-0"),)))
    view.seen(seen(State.SUCCEEDED, members=(a_member("master-0"),)))
    assert told(capsys) == ["running: 1 master"], "once"


def test_warnings_are_told_once_and_what_is_normal_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    events = [Event(1.0, "Normal", "Started", "worker-0", "started try 0")]
    view = PlainView(lambda: events, HERE)
    view.seen(seen(State.RUNNING))
    told(capsys)
    words_of_it = "exited with code 1; restart 1"
    events.append(Event(time.time(), "Warning", "BackOff", "worker-0", words_of_it))
    for _ in range(2):
        view.seen(seen(State.RUNNING, restarts=1))
    assert told(capsys) == ["worker-0: exited with code 1; restart 1"]


def test_an_event_is_told_once_wherever_it_stands_among_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def warns(words: str, when: float, id: str = "") -> Event:
        return Event(when, "Warning", "BackOff", "worker-0", words, id)

    now = time.time()
    events = [warns("second", now, "u2")]
    view = PlainView(lambda: events, HERE)
    view.seen(seen(State.RUNNING))
    told(capsys)
    events[:] = [warns("first", now - 1, "u1"), warns("second", now + 1, "u2")]  # late, and again
    view.seen(seen(State.RUNNING, restarts=1))
    assert told(capsys) == ["worker-0: first"]


def test_times_of_lines_never_go_back(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    events: list[Event] = []
    view = PlainView(lambda: events, HERE)
    view.seen(seen(State.RUNNING))
    events.append(Event(now - 60, "Warning", "Failed", "worker-0", "known late"))
    view.seen(seen(State.RUNNING, restarts=1))
    lines = capsys.readouterr().out.splitlines()
    times = [line[:8] for line in lines]
    assert times == sorted(times) and f"known late (at {localtime.clock(now - 60)})" in lines[-1]


def test_what_happened_before_it_was_found_is_not_news(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(lambda: [Event(1.0, "Warning", "BackOff", "worker-0", "long ago")], HERE)
    view.launched(Handle("digits-00000000", 1, 1, "u", adopted=True))
    view.seen(seen(State.RUNNING))
    text = capsys.readouterr().out
    assert "runs already; following it" in text and "long ago" not in text


def test_beside_a_json_object_all_is_said_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(lambda: [], HERE, aside=True)
    view.launched(Handle("digits-00000000", 1, 1, "u"))
    view.seen(at_step(1, 2))
    view.ended(Outcome(seen(State.SUCCEEDED)))
    out, err = capsys.readouterr()
    assert out == "" and "on its way" in err and "step 1/2" in err and "succeeded" in err

"""The pages: whole in themselves, honest about what went wrong, safe against what jobs may say."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.diagnosis import diagnose
from allaboard.follow.loop import Outcome
from allaboard.follow.printed import ProgressReader
from allaboard.job.training_job import TrainingJob
from allaboard.report.commands import HERE
from allaboard.report.history import History, history
from allaboard.report.page import run_page
from allaboard.report.page_data import LONGEST_LINE, Readings, page_data, timeline
from allaboard.runs.observation import Event, MemberSeen, Observation, Progress, State
from allaboard.testing import a_job, a_member, seen
from allaboard.text.reportline import encode
from tests.core.report.pages import Page, hashed

NOW = 1_790_000_000.0
JOB = a_job(checkpoints={"uri": "store://c", "best": {"metric": "val_loss", "mode": "min"}})
TOLD = [
    *(encode("progress", step=n, total=9, loss=9.0 / n, steps_per_second=2.0) for n in range(1, 10)),
    encode("checkpoint", step=6, uri="s3://b/r/step-6", metrics={"val_loss": 0.5, "val_accuracy": 0.9}),
    encode("checkpoint", step=9, uri="s3://b/r/step-9", metrics={"val_loss": 0.6, "val_accuracy": 0.8}),
]


def outcome(state: State, **fields: Any) -> Outcome:
    looked: Observation = seen(state, **fields)
    return Outcome(looked, diagnose(looked))


def text(ended: Outcome, told: History, job: TrainingJob | None = JOB, **rest: Any) -> str:
    lines = {name: tail.splitlines() for name, tail in ended.seen.tails.items()}
    return run_page(page_data(ended, Readings(told, **{"lines": lines, **rest}), NOW, at=HERE, job=job))


def page(ended: Outcome, told: History | None = None) -> Page:
    return Page(text(ended, told or history(TOLD)))


@pytest.mark.parametrize("state", [s for s in State if s.is_final], ids=str)
def test_a_page_is_whole_in_itself_for_every_ending(state: State) -> None:
    found = page(outcome(state, members=(a_member("master-0", exit_code=1 if state is State.FAILED else 0),)))
    assert found.links == []
    assert not {"link", "img", "iframe"} & set(found.tags)
    assert found.tags.count("script") == 1 and hashed(found)
    assert str(state).replace("_", " ") in found.words


def test_it_shows_the_curves_the_best_the_members_and_the_places() -> None:
    progress = Progress(step=9, total=9, result={"val_loss": 0.5}, best_checkpoint="s3://b/r/step-6")
    member = a_member("worker-0", "succeeded", exit_code=0, log="/logs/worker-0.log")
    found = page(outcome(State.SUCCEEDED, progress=progress, members=(member,), phases={"training": 8.0}))
    assert found.tags.count("svg") == 3  # loss with val_loss; accuracy; speed
    for words in (
        "best 0.5",
        "9/9",
        "worker-0",
        "/logs/worker-0.log",
        "6 ★",
        "s3://b/r/step-9",
        "training 8.0 s",
    ):
        assert words in found.words


def test_every_curve_is_drawn() -> None:
    many = {f"layer_{n}": 0.5 for n in range(150)}
    found = page(outcome(State.SUCCEEDED), history([encode("progress", step=n, **many) for n in (1, 2)]))
    assert found.tags.count("svg") == 150
    assert all(f"layer {n}" in found.words for n in range(150))


PHASES = {"admitted": 1.0, "scheduled": 0.5, "rendezvous": 2.0, "first_step": 0.5, "training": 10.0}


@pytest.mark.parametrize(
    ("phases", "window", "spans"),
    [
        (PHASES, (95.0, 120.0), [("start", 5.0), ("training", 10.0), ("no phase told", 2.0), ("end", 4.0)]),
        (PHASES, None, [("admitted", 1.0), ("training", 10.0), ("no phase told", 2.0)]),
        (
            {"admitted": 1.0, "scheduled": 0.5},
            (95.0, 120.0),
            [("start", 5.0), ("running, no step told", 14.5), ("end", 4.0)],
        ),
        ({}, (95.0, 120.0), [("running, no step told", 16.0)]),
        (PHASES, (106.0, 120.0), [("training", 8.0), ("end", 4.0)]),  # an earlier try began it
        (PHASES, (117.0, 120.0), [("end", 3.0)]),  # it had ended before
        (PHASES, (103.0, 110.0), [("first step", 0.5), ("training", 6.0)]),  # clocks that differ
    ],
)
def test_where_the_time_went_sums_to_the_time_of_the_step(
    phases: dict[str, float], window: tuple[float, float] | None, spans: list[tuple[str, float]]
) -> None:
    found = timeline(seen(State.SUCCEEDED, created=100.0, finished=116.0, phases=phases), NOW, window)
    began, ended = window or (100.0, 116.0)
    assert sum(seconds for _, seconds in found) == pytest.approx(ended - began)
    assert set(spans) <= set(found)


def test_an_attempt_after_another_says_what_came_before_it() -> None:
    looked = seen(State.SUCCEEDED, created=100.0, finished=116.0, attempt=2, phases=PHASES)
    assert timeline(looked, NOW, (50.0, 116.0))[0] == ("before attempt 2", 50.0)


def test_a_failure_shows_the_reason_the_evidence_what_to_do_and_the_last_lines() -> None:
    member = a_member("worker-0", "failed", exit_code=1, log="/logs/worker-0.log")
    tails = {"worker-0": "starting\nTraceback (most recent call last):\nValueError: 3 is not enough\n"}
    found = page(outcome(State.FAILED, members=(member,), tails=tails))
    for words in (
        "What went wrong",
        "ValueError: 3 is not enough",
        "Fix the script",
        "python_exception",
        "starting",
    ):
        assert words in found.words


def test_what_a_job_says_stays_text() -> None:
    job = a_job(environment={"X": "</pre><script>alert(1)</script>"})
    ended = outcome(
        State.FAILED, members=(a_member(exit_code=1),), tails={"worker-0": "<script>alert(2)</script>"}
    )
    found = Page(text(ended, history([encode("progress", step=1, **{"<b>loss": 1.0})]), job))
    assert found.tags.count("script") == 1 and hashed(found)
    assert "alert(1)" in found.words and "alert(2)" in found.words


def test_a_page_holds_no_secret_of_the_job_and_nothing_hidden() -> None:
    secret = "c4nary-V4lue_77"
    job = a_job(environment={"API_KEY": secret}, command=["python", "x.py", "--token", secret])
    tails = {"worker-0": f"the key is {secret}\x1b[2J and https://u:{secret}@host/x?sig={secret}"}
    ended = outcome(State.FAILED, members=(a_member(exit_code=1),), tails=tails)
    found = text(ended, history([]), job)
    assert secret not in found and "the key is ***" in found
    assert "\x1b" not in found and "API_KEY" in found


def test_a_run_that_told_nothing_says_how_to_tell_something() -> None:
    found = page(outcome(State.SUCCEEDED), history([]))
    assert "svg" not in found.tags
    assert "allaboard.inside.report" in found.words


def test_a_loss_that_was_no_number_is_said() -> None:
    told = history([*TOLD, encode("progress", step=10, loss=float("nan"))])
    assert "loss was not a finite number at step 10." in page(outcome(State.SUCCEEDED), told).words


def test_restarts_and_attempts_are_seen() -> None:
    told = history([*TOLD, encode("resumed", step=6), encode("progress", step=7, loss=1.0)])
    progress = Progress(step=7, total=9, lost_steps=3)
    found = page(outcome(State.SUCCEEDED, restarts=2, attempt=2, progress=progress), told)
    for words in ("resumed from step 6", "2, attempt 2", "steps done twice"):
        assert words in found.words


def test_a_page_of_a_long_training_stays_small() -> None:
    lines = (encode("progress", step=n, loss=1 / (n + 1), lr=0.1, speed=2.0) for n in range(50_000))
    assert len(text(outcome(State.SUCCEEDED), history(lines))) < 150_000


@pytest.mark.parametrize("state", [s for s in State if not s.is_final], ids=str)
def test_a_run_that_goes_on_has_a_page_that_says_when_it_was_looked_at(state: State) -> None:
    found = page(outcome(state, created=NOW - 90))
    assert f"digits-00000000 {state}" in found.words
    assert "looked at: 2026-09-21T14:13:20.000Z" in found.words and "What went wrong" not in found.words


@pytest.mark.parametrize(
    ("state", "phases", "spans"),
    [
        (State.RUNNING, {"admitted": 1.0, "training": 10.0}, [("admitted", 1.0), ("training", 49.0)]),
        (State.QUEUED, {}, [("not started", 50.0)]),
        (State.SUSPENDED, {"admitted": 1.0}, [("admitted", 1.0), ("not started", 49.0)]),
    ],
)
def test_the_time_of_a_run_that_goes_on_sums_to_now(
    state: State, phases: dict[str, float], spans: list[tuple[str, float]]
) -> None:
    looked = seen(state, created=NOW - 50, started=None, phases=phases)
    assert timeline(looked, NOW) == spans


def test_a_run_that_waits_says_why() -> None:
    found = page(outcome(State.QUEUED, waiting="4 of 8 CPU slots are free, it needs 6"))
    assert "Why it waits" in found.words and "4 of 8 CPU slots are free, it needs 6" in found.words


def test_events_are_told_oldest_first_and_the_last_hundred_of_many() -> None:
    events = [Event(NOW + n, "Warning", f"Odd{n}", "pod/w", f"<i>word{n}") for n in range(130)]
    found = Page(text(outcome(State.SUCCEEDED), history(TOLD), events=events))
    assert "30 earlier events left out here." in found.words
    assert "Odd29 " not in found.words and found.words.index("Odd30 ") < found.words.index("Odd129 ")
    assert "<i>word129" in found.words


def test_of_very_many_members_those_that_failed_come_first() -> None:
    members = [a_member(f"worker-{n}", "succeeded", exit_code=0, rank=n) for n in range(1000)]
    members[900] = a_member("worker-900", "failed", exit_code=1, rank=900, reason="OOMKilled")
    found = page(outcome(State.FAILED, members=tuple(members)))
    assert "worker-900" in found.words and "failed (OOMKilled)" in found.words
    assert "700 calmer members left out here." in found.words and "worker-999" not in found.words


def test_the_lines_of_whoever_failed_come_before_those_of_rank_0() -> None:
    members = (a_member("master-0", "deleted", exit_code=143), a_member("worker-0", "failed", exit_code=1))
    lines = {"master-0": ["epoch 7"], "worker-0": ["ValueError: odd"]}
    found = Page(text(outcome(State.FAILED, members=members), history([]), lines=lines)).words
    assert found.index("ValueError: odd") < found.index("epoch 7")


def test_what_could_not_be_read_is_said() -> None:
    assert (
        "its events cannot be read: no"
        in Page(text(outcome(State.SUCCEEDED), history([]), gaps=["its events cannot be read: no"])).words
    )


EVIL = "</style></title><script>x</script>\x1b[2J\u202e\"'&"


def test_names_of_others_stay_text_wherever_they_stand() -> None:
    member = MemberSeen(EVIL, 0, 0, "failed", exit_code=1, log=EVIL, reason=EVIL)
    progress = Progress(step=1, result={EVIL: 1.0, "text": EVIL}, checkpoint=EVIL, best_checkpoint=EVIL)
    told = history([
        encode("progress", step=1, **{EVIL: 1.0}),
        encode("checkpoint", step=1, uri=EVIL, metrics={EVIL: 1.0, "loss": 0.5, "note": EVIL}),
        encode("progress", step=2, **{EVIL + "loss": float("nan"), EVIL: 2.0}),
    ])  # fmt: skip
    ended = outcome(
        State.FAILED, run=EVIL, job=EVIL, key=EVIL, members=(member,), progress=progress, notes=(EVIL,),
        flags=(EVIL,), waiting=EVIL, tails={member.name: EVIL},
    )  # fmt: skip
    events = [Event(NOW, EVIL, EVIL, EVIL, EVIL)]
    whole = text(ended, told, None, events=events, gaps=[EVIL])
    found = Page(whole)
    assert found.tags.count("script") == 1 and hashed(found) and found.tags.count("style") == 1
    assert "\x1b" not in whole and "\u202e" not in whole and "\\x1b[2J\\u202e" in found.words


def test_a_secret_that_is_known_goes_before_a_line_is_cut() -> None:
    secret = "c4nary-V4lue_77"
    line = "x" * (LONGEST_LINE - 2) + " " + secret
    member = a_member("worker-0", "failed", exit_code=1)
    found = text(
        outcome(State.FAILED, members=(member,)),
        history([]),
        None,
        lines={"worker-0": [line]},
        secrets=[secret],
    )
    assert secret[:4] not in found and "2,002 characters in all" in found


@pytest.mark.thorough
def test_whatever_a_run_writes_its_page_stays_small() -> None:
    """Everything that a script or a cluster can make many or long, at once."""
    names = [f"metric_{n}_{'x' * 80}" for n in range(300)]
    lines = [encode("progress", step=n, loss=1.0, **dict.fromkeys(names, 0.5)) for n in range(30)]
    lines += [
        encode("checkpoint", step=n, uri="s3://b/" + "u" * 1900, metrics={"a" * 5000: 1.0, "b": "c" * 60_000})
        for n in range(3000)
    ]
    lines += [encode("resumed", step=n % 7) for n in range(3000)]
    members = tuple(a_member(f"worker-{n}", "failed", exit_code=1, rank=n) for n in range(5000))
    result = {name: 1.0 for name in names} | {"y" * 60_000: 1.0}
    ended = outcome(State.FAILED, members=members, progress=Progress(result=result))
    events = [Event(NOW, "Warning", "Odd", "pod/w", "e" * 1000) for _ in range(10_000)]
    whole = text(ended, history(lines), lines={"worker-0": ["z" * 60_000] * 1000}, events=events)
    assert len(whole) < 1_500_000
    Page(whole)


def test_a_gap_in_the_lines_is_a_gap_in_the_drawing() -> None:
    lines = [f"iter {n}: loss {5 - n / 100}, time 1.00ms" for n in (10, 20, 80, 90)]
    whole, torn = history(lines), history(lines[:2])
    torn.miss()
    for report in (report for line in lines for report in [*ProgressReader().read(line)]):
        if report.fields["step"] > 20:
            torn.add(report)
    strokes = [
        text(outcome(State.SUCCEEDED), told).partition('class="line s0"')[2].partition('"/>')[0].count("M")
        for told in (whole, torn)
    ]
    assert strokes == [1, 2]

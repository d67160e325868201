"""The pages: whole in themselves, honest about what went wrong, safe against what jobs may say."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from allaboard.diagnosis import diagnose
from allaboard.follow.loop import Outcome
from allaboard.observation import Observation, Progress, State
from allaboard.promotion.champion import Decision, Promotion
from allaboard.promotion.gate import Check, Verdict
from allaboard.reportline import encode
from allaboard.testing import a_job, a_member, seen
from allaboard_kfp.history import History, history
from allaboard_kfp.report import promotion_page, timeline, training_page

JOB = a_job(checkpoints={"uri": "store://c", "best": {"metric": "val_loss", "mode": "min"}})
TOLD = [
    *(encode("progress", step=n, total=9, loss=9.0 / n, steps_per_second=2.0) for n in range(1, 10)),
    encode("checkpoint", step=6, uri="s3://b/r/step-6", metrics={"val_loss": 0.5, "val_accuracy": 0.9}),
    encode("checkpoint", step=9, uri="s3://b/r/step-9", metrics={"val_loss": 0.6, "val_accuracy": 0.8}),
]


class Page(HTMLParser):
    """What is in a page, as a browser would see it."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "data", "action", "onload")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data + " "


def outcome(state: State, **fields: Any) -> Outcome:
    looked: Observation = seen(state, **fields)
    return Outcome(looked, diagnose(looked))


def page(ended: Outcome, told: History | None = None) -> Page:
    return Page(training_page(ended, JOB, told or history(TOLD)))


@pytest.mark.parametrize("state", [s for s in State if s.is_final], ids=str)
def test_a_page_is_whole_in_itself_for_every_ending(state: State) -> None:
    found = page(outcome(state, members=(a_member("master-0", exit_code=1 if state is State.FAILED else 0),)))
    assert found.links == []
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert str(state) in found.words


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


def test_curves_beyond_the_most_that_are_drawn_are_named() -> None:
    many = {f"layer_{n}": 0.5 for n in range(15)}
    found = page(outcome(State.SUCCEEDED), history([encode("progress", step=n, **many) for n in (1, 2)]))
    drawn = found.tags.count("svg")
    assert 4 < drawn < 15
    assert f"Not drawn are {15 - drawn} more: " in found.words
    assert all(f"layer {n}" in found.words for n in range(15))


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
    found = timeline(seen(State.SUCCEEDED, created=100.0, finished=116.0, phases=phases), window)
    began, ended = window or (100.0, 116.0)
    assert sum(seconds for _, seconds in found) == pytest.approx(ended - began)
    assert set(spans) <= set(found)


def test_an_attempt_after_another_says_what_came_before_it() -> None:
    looked = seen(State.SUCCEEDED, created=100.0, finished=116.0, attempt=2, phases=PHASES)
    assert timeline(looked, (50.0, 116.0))[0] == ("before attempt 2", 50.0)


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
    text = training_page(ended, job, history([encode("progress", step=1, **{"<b>loss": 1.0})]))
    found = Page(text)
    assert "script" not in found.tags
    assert "alert(1)" in found.words and "alert(2)" in found.words


def test_a_page_holds_no_secret_of_the_job_and_nothing_hidden() -> None:
    secret = "c4nary-V4lue_77"
    job = a_job(environment={"API_KEY": secret}, command=["python", "x.py", "--token", secret])
    tails = {"worker-0": f"the key is {secret}\x1b[2J and https://u:{secret}@host/x?sig={secret}"}
    ended = outcome(State.FAILED, members=(a_member(exit_code=1),), tails=tails)
    text = training_page(ended, job, history([]))
    assert secret not in text and "the key is ***" in text
    assert "\x1b" not in text and "API_KEY" in text


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
    assert len(training_page(outcome(State.SUCCEEDED), JOB, history(lines))) < 150_000


def test_the_gates_page_shows_every_check_and_every_champion() -> None:
    new = Promotion(
        2, "s3://b/models/2", 9, {"accuracy": 0.98}, at="2026-11-21T12:00:00.000Z", reason="nightly"
    )
    old = replace(new, number=1, checkpoint="s3://b/models/1", reason="")
    checks = (Check("threshold", "accuracy", True, 0.98, 0.97, None, "accuracy 0.98 is at least 0.97"),)
    found = Page(
        promotion_page(
            Decision(Verdict(True, checks), new, new), new.checkpoint, {"accuracy": 0.98}, [new, old]
        )
    )
    for words in (
        "promoted",
        "accuracy 0.98 is at least 0.97",
        "s3://b/models/1",
        "2 ★",
        "nightly",
        "number 2 now",
    ):
        assert words in found.words


def test_the_gates_page_says_when_it_stayed_shut() -> None:
    old = Promotion(1, "s3://b/models/1", metrics={"accuracy": 0.99})
    check = Check("champion", "accuracy", False, 0.98, 0.99, 0.99, "accuracy 0.98 is not better than 0.99")
    decision = Decision(Verdict(False, (check,)), None, old, problems=("x.json: torn; it is not obeyed",))
    found = Page(promotion_page(decision, "s3://b/2", {"accuracy": None, "note": "<x>"}, [old]))
    for words in ("not promoted", "stays number 1", "✗", "torn; it is not obeyed", "nan", "<x>"):
        assert words in found.words


def test_without_any_champion_the_page_says_so() -> None:
    found = Page(promotion_page(Decision(Verdict(False), None, None), "s3://b/2", {}, []))
    assert "There is no champion yet." in found.words

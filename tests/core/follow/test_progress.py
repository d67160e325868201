"""What report lines add up to, and how many steps a restart cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import reduce
from typing import Any

import pytest

from allaboard.follow.progress import (
    MOST_FLAGS,
    MOST_INPUTS,
    MOST_METRICS,
    add_flags,
    add_report,
    flags_of,
    is_below,
    progress_of,
    progress_of_trainer,
)
from allaboard.runs.observation import Progress
from allaboard.text.reportline import Report, decode, encode

OWN = "/store/run"


def fold(*lines: str, own: str | None = OWN) -> Progress:
    reports = [decode(line) for line in lines]
    return reduce(lambda p, r: add_report(p, r, 1.0, own), [r for r in reports if r is not None], Progress())


def step(n: int, **more: object) -> str:
    return encode("progress", step=n, total=100, **more)


def test_the_newest_line_counts() -> None:
    found = fold(step(1, loss=2.0), step(2, loss=1.5, lr=0.1), "not for us")
    assert (found.step, found.total, dict(found.metrics), found.lost_steps) == (
        2,
        100,
        {"loss": 1.5, "lr": 0.1},
        0,
    )


def test_a_resume_says_what_was_lost() -> None:
    assert fold(step(17), encode("resumed", step=15), step(16)).lost_steps == 2
    assert fold(step(15), encode("resumed", step=15), step(16)).lost_steps == 0


def test_a_script_that_says_nothing_is_seen_by_its_steps_going_back() -> None:
    assert fold(step(17), step(11), step(12)).lost_steps == 7
    assert fold(step(17, loss=1.0), step(17, val_loss=2.0)).lost_steps == 0


def test_the_result_and_the_checkpoints_are_kept() -> None:
    found = fold(
        encode("checkpoint", step=5, uri=f"{OWN}/a", best=True),
        encode("checkpoint", step=9, uri=f"{OWN}/b"),
        encode("result", metrics={"acc": 0.9}),
    )
    assert (found.checkpoint, found.best_checkpoint, found.result) == (
        f"{OWN}/b",
        f"{OWN}/a",
        {"acc": 0.9},
    )


def test_a_loss_that_is_not_a_number_is_null_and_flagged() -> None:
    report = decode(step(3, loss=float("nan")))
    assert report is not None and report.fields["loss"] is None and report.nonfinite == ("loss",)
    assert flags_of(report) == {"nan_loss": "step 3: loss is not a finite number"}
    assert flags_of(Report("flag", {"code": "checkpoint_corrupt", "text": "x"})) == {
        "checkpoint_corrupt": "x"
    }
    assert flags_of(Report("progress", {}, ("grad_norm",))) == {}


def test_foreign_cut_and_newer_lines() -> None:
    assert decode("loss 0.3") is None
    assert decode('[allaboard] {"v":1,"kind":"progress","st') is None
    assert decode("[allaboard] []") is None
    newer = decode('[rank0]: [allaboard] {"v":7,"kind":"hologram","step":3}')
    assert newer is not None and newer.kind == "hologram" and newer.version == 7
    assert add_report(Progress(step=1), newer, 1.0) == Progress(step=1)


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("/store/run/step-000000000009", "/store/run"),
        ("file:///store/run/step-1", "/store/run/"),
        ("/store/my run/step-1", "file:///store/my%20run"),
        ("/store/run/step-1", "/store/other/../run"),
        ("s3://b/ml/run/step-1/", "S3://b//ml/run"),
        ("/workspace/saved/run/step-1", "saved/run"),
        ("/root/saved/run/step-1", "~/saved/run"),
    ],
)
def test_a_checkpoint_of_the_runs_own_folder_is_taken(uri: str, folder: str) -> None:
    assert is_below(uri, folder)
    assert fold(encode("checkpoint", step=1, uri=uri), own=folder).checkpoint == uri


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("/store/run", "/store/run"),
        ("/store/run/", "/store/run"),
        ("/store/run-2/step-1", "/store/run"),
        ("/store/run/../other/step-1", "/store/run"),
        ("/store/run/./step-1", "/store/run"),
        ("/store/run//step-1", "/store/run"),
        ("store/run/step-1", "/store/run"),
        ("file:///store/run/%2e%2e/other", "/store/run"),
        ("file://elsewhere/store/run/step-1", "/store/run"),
        ("s3://store/run/step-1", "/store/run"),
        ("https://b/ml/run/step-1", "s3://b/ml/run"),
        ("s3://b/ml/run/../../secret", "s3://b/ml/run"),
        ("s3://other/ml/run/step-1", "s3://b/ml/run"),
        ("/store/run/step-1\n/etc", "/store/run"),
        ("/store/run/\x1b]0;hello", "/store/run"),
        ("/store/run/" + "x" * 5000, "/store/run"),
        ("", "/store/run"),
        ("/elsewhere/run/step-1", "saved/run"),
    ],
)
def test_one_reported_elsewhere_is_not_taken_and_flagged(uri: str, folder: str) -> None:
    report = decode(encode("checkpoint", step=1, uri=uri, best=True))
    assert report is not None and not is_below(uri, folder)
    found = add_report(Progress(), report, 1.0, folder)
    assert found.checkpoint is None and found.best_checkpoint is None
    assert list(flags_of(report, Progress(), folder)) == ["checkpoint_elsewhere"]


def test_a_run_without_a_folder_of_its_own_has_no_checkpoints() -> None:
    report = decode(encode("checkpoint", step=1, uri="/anywhere/step-1"))
    assert report is not None and add_report(Progress(), report, 1.0).checkpoint is None
    assert flags_of(report) == {}


def test_what_is_kept_of_a_run_is_bounded() -> None:
    progress, flags = Progress(), {}
    for n in range(500):
        for line in (
            step(n, **{f"m{n}": 1.0, f"{'long' * 100}{n}": 2.0}),
            encode("flag", code=f"code-{n}", text="x" * 6_000),
        ):
            report = decode(line)
            assert report is not None
            flags |= add_flags(flags, flags_of(report, progress))
            progress = add_report(progress, report, 1.0)
    assert len(progress.metrics) == MOST_METRICS and len(flags) == MOST_FLAGS + 1
    assert "too_many_metrics" in flags and len(json.dumps([asdict(progress), flags])) < 50_000


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mloss", "x" * 5000, "\u202eloss"])
def test_a_metric_whose_name_cannot_be_shown_is_left_out(name: str) -> None:
    assert fold(step(1, **{name: 1.0}, loss=0.5)).metrics == {"loss": 0.5}


def test_a_script_raises_no_flag_that_only_an_onlooker_can_know() -> None:
    for code in ("node_lost", "gang_unschedulable", "rendezvous_never_happened"):
        assert flags_of(Report("flag", {"code": code, "text": ""})) == {}


def test_the_words_of_a_flag_are_one_short_line() -> None:
    (text,) = flags_of(Report("flag", {"code": "odd", "text": "a\nb\x1b[2J" + "x" * 10_000})).values()
    assert text.isprintable() and len(text) <= 520


@pytest.mark.parametrize(
    "data", [None, [], "x", {"step": "x", "metrics": [1], "result": 3, "heartbeat": "y"}]
)
def test_a_damaged_record_is_read_as_far_as_it_goes(data: object) -> None:
    assert progress_of(data) == Progress()


def test_progress_is_read_back_from_a_record() -> None:
    found = fold(step(3, loss=1.0), encode("checkpoint", step=3, uri=f"{OWN}/c", best=True))
    assert progress_of(json.loads(json.dumps({**asdict(found), "of_a_newer_version": 1}))) == found


# What Trainer is told.


def test_what_a_trainjob_says_of_its_progress_is_read() -> None:
    told = {
        "progressPercentage": 45,
        "estimatedRemainingSeconds": 795,
        "metrics": [{"name": "loss", "value": "0.2347"}, {"name": "note", "value": "fine"}],
        "lastUpdatedTime": "2026-11-01T00:00:00Z",
    }
    progress = progress_of_trainer(told)
    assert progress is not None
    assert (progress.step, progress.total) == (45, 100)
    assert dict(progress.metrics) == {"loss": 0.2347, "steps_per_second": 55 / 795}
    assert progress.heartbeat == 1793491200.0


@pytest.mark.parametrize("told", [None, {}, [], "x", 7])
def test_a_trainjob_that_says_nothing_has_no_progress(told: object) -> None:
    assert progress_of_trainer(told) is None


@pytest.mark.parametrize(
    "told",
    [
        {"progressPercentage": 101},
        {"progressPercentage": True},
        {"progressPercentage": "45", "estimatedRemainingSeconds": 9},
        {"estimatedRemainingSeconds": 9, "metrics": [{"name": "steps_per_second", "value": "1"}]},
        {"metrics": {"loss": 1}},
        {"metrics": ["loss", None, {"name": 7}, {"name": "x" * 101, "value": "1"}]},
        {"metrics": [{"name": "loss", "value": value} for value in ("nan", "1e999", "9" * 50, None, 1)]},
        {"lastUpdatedTime": "yesterday"},
    ],
)
def test_what_is_no_progress_is_left_out(told: dict[str, object]) -> None:
    progress = progress_of_trainer(told)
    assert progress is not None and (progress.step, dict(progress.metrics)) == (None, {})
    assert progress.heartbeat is None


def test_what_it_trains_with_is_kept_bounded_and_survives_its_record() -> None:
    found = fold(
        encode("inputs", versions={"python": "3.11.2", "torch": "2.14.0"}),
        encode("inputs", versions={"torch": "2.15.0"}, data={"s3://lab/shards": "content:v1:aa"}),
    )
    assert dict(found.inputs) == {
        "python": "3.11.2",
        "torch": "2.15.0",
        "data s3://lab/shards": "content:v1:aa",
    }
    assert progress_of(asdict(found)).inputs == found.inputs
    many = fold(encode("inputs", versions={f"p{n}": "9" * 500 for n in range(MOST_INPUTS + 5)}))
    assert len(many.inputs) == MOST_INPUTS and all(len(version) <= 100 for version in many.inputs.values())
    assert decode(encode("inputs", versions={"torch": 2})) is None, "a version is a text"
    damaged = progress_of({"inputs": {"torch": 2, "python": "3.11"}, "longest_pause": True})
    assert dict(damaged.inputs) == {"python": "3.11"} and damaged.longest_pause == 0.0


# Progress that a script prints by itself.


NOTHING = Progress()


def printed(step: int, now: float, before: Progress = NOTHING, **fields: Any) -> Progress:
    return add_report(before, Report("progress", {"step": step, **fields}, printed="nanoGPT"), now)


def test_the_speed_of_a_script_that_prints_none_is_that_of_its_lines() -> None:
    progress = printed(10, 100.0, loss=4.0)
    assert "steps_per_second" not in printed(11, 100.5, progress).metrics, "too soon to be told"
    for step, now in ((20, 105.0), (20, 109.0), (40, 115.0)):
        progress = printed(step, now, progress)
    assert progress.metrics["steps_per_second"] == 2.0 and progress.format == "nanoGPT"
    again = printed(5, 116.0, progress)
    assert (again.pace_from, again.lost_steps) == ((5.0, 116.0), 36)


def test_its_own_speed_goes_first() -> None:
    progress = printed(40, 120.0, printed(10, 100.0), steps_per_second=7.0)
    assert progress.metrics["steps_per_second"] == 7.0


HANDED_720 = encode("handed", step=720)


def bars(*drawn: tuple[int, float, float], before: Progress = NOTHING) -> Progress:
    """What bars of tqdm tell: (step, its own speed, when it was drawn)."""
    progress = before
    for step, speed, at in drawn:
        report = Report("progress", {"step": step, "total": 2000, "steps_per_second": speed}, printed="tqdm")
        progress = add_report(progress, report, at)
    return progress


def test_a_bar_that_jumped_to_its_checkpoint_tells_no_speed() -> None:
    """Killed at 740, it goes on from 720: its bar counts 720 steps that it did not do."""
    before = bars((100, 10.0, 90.0), (740, 10.0, 154.0))
    assert before.metrics["steps_per_second"] == 10.0
    report = decode(HANDED_720)
    assert report is not None
    handed = add_report(before, report, 160.0)
    assert handed.metrics["steps_per_second"] == 10.0, "the last one that is known"
    soon = bars((721, 72_000.0, 170.0), (730, 900.0, 171.0), before=handed)
    assert soon.metrics["steps_per_second"] == 10.0
    later = bars((760, 30.0, 174.0), (920, 12.0, 190.0), before=soon)
    assert later.metrics["steps_per_second"] == (920 - 721) / 20.0
    assert progress_of(json.loads(json.dumps(asdict(later)))) == later


@pytest.mark.parametrize(
    "sign",
    [[], [HANDED_720], [encode("progress", step=0, total=2000)]],
    ids=["its step goes back", "it was handed a checkpoint", "a client begins at 0"],
)
@pytest.mark.parametrize("first", [721, 999])
def test_posts_after_a_resume_have_the_speed_of_their_own_steps(sign: list[str], first: int) -> None:
    """A Trainer divides all steps by the seconds since it began anew."""
    if not sign and first > 740:
        pytest.skip("nothing tells that this is another process")
    progress = fold(encode("progress", step=740, total=2000, steps_per_second=20.0))
    for text, at in [*((line, 150.0) for line in sign), *((None, 160.0 + 5 * n) for n in range(4))]:
        step = first + int((at - 160) * 10)
        line = text or encode("progress", step=step, total=2000, steps_per_second=step / (at - 155))
        report = decode(line)
        assert report is not None
        progress = add_report(progress, report, at)
    assert progress.metrics["steps_per_second"] == pytest.approx(10.0)


def test_a_script_that_says_that_it_resumed_measures_its_own_speed() -> None:
    lines = (encode("resumed", step=700), encode("progress", step=710, steps_per_second=33.0))
    assert fold(encode("progress", step=740), HANDED_720, *lines).metrics["steps_per_second"] == 33.0


def test_a_speed_is_never_counted_over_the_time_between_two_processes() -> None:
    """A post that is late: the first step of the new process is above the last of the old one."""
    progress = bars((700, 10.0, 100.0))
    for step, at in ((740, 500.0), (760, 510.0)):
        report = decode(HANDED_720)
        assert report is not None
        progress = bars(
            (step, 99.0, at), before=progress if step > 740 else add_report(progress, report, 499.0)
        )
    assert progress.metrics["steps_per_second"] == 2.0


def test_another_format_begins_anew() -> None:
    progress = printed(50, 100.0, loss=4.0)
    reported = add_report(progress, Report("progress", {"step": 3, "acc": 0.5}), 101.0)
    assert (reported.step, reported.metrics, reported.format) == (3, {"acc": 0.5}, None)
    assert reported.lost_steps == 0
    assert progress_of(asdict(progress)) == progress

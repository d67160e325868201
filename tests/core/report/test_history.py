"""What a run told over its time, restarts and all."""

from __future__ import annotations

import pytest

from allaboard.follow.printed import ProgressReader
from allaboard.follow.progress import add_report
from allaboard.report.history import MOST_CURVES, MOST_POINTS, History, Saved, history
from allaboard.runs.observation import Progress
from allaboard.text.reportline import Report, encode


def test_curves_and_checkpoints_are_what_was_told() -> None:
    told = history(
        [
            "some words",
            encode("progress", step=1, total=4, loss=2.0, steps_per_second=1.5),
            encode("progress", step=2, total=4, loss=1.0),
            encode("checkpoint", step=2, uri="s3://b/2", metrics={"val_loss": 1.1, "words": "x"}, best=True),
            "[allaboard] {cut sho",
        ]
    )
    assert told.curves == {"loss": [(1, 2.0), (2, 1.0)], "steps_per_second": [(1, 1.5)]}
    assert told.measured == {"val_loss": [(2, 1.1)]}
    assert told.saved == [Saved(2, "s3://b/2", {"val_loss": 1.1, "words": "x"}, True, place=2)]
    assert told.resumed == []


def test_steps_that_were_lost_are_taken_back_when_the_run_resumes() -> None:
    told = history(
        [encode("progress", step=n, loss=float(n)) for n in range(1, 8)]
        + [encode("checkpoint", step=6, uri="torn", metrics={"val_loss": 6.0})]
        + [encode("resumed", step=4)]
        + [encode("progress", step=n, loss=-float(n)) for n in (5, 6)]
    )
    assert told.curves["loss"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, -5.0), (6, -6.0)]
    assert told.measured["val_loss"] == []
    assert told.saved == []
    assert told.resumed == [4]


def test_a_script_that_resumes_without_a_word_is_understood() -> None:
    told = history([encode("progress", step=n, loss=1.0) for n in (1, 2, 3, 2, 3)])
    assert [step for step, _ in told.curves["loss"]] == [1, 2, 3]
    assert told.resumed == [1]


def test_starting_from_scratch_again_is_no_resuming() -> None:
    told = history([encode("progress", step=n, loss=1.0) for n in (1, 2, 1)])
    assert told.curves["loss"] == [(1, 1.0)]
    assert told.resumed == []


def test_a_checkpoint_that_is_saved_again_is_told_once() -> None:
    told = history([encode("checkpoint", step=2, uri="u", metrics={"val_loss": loss}) for loss in (1.0, 0.9)])
    assert told.measured == {"val_loss": [(2, 0.9)]}
    assert len(told.saved) == 1


def test_what_is_no_number_is_remembered_with_its_step() -> None:
    told = history([encode("progress", step=3, loss=float("nan"))])
    assert told.nonfinite == [(3, "loss")]
    assert told.curves == {}


def test_a_very_long_curve_keeps_its_ends_and_its_shape() -> None:
    told = history(encode("progress", step=n, loss=float(n)) for n in range(1, 50_001))
    points = told.curves["loss"]
    assert len(points) <= MOST_POINTS
    assert points[0] == (1, 1.0) and points[-1] == (50_000, 50_000.0)
    assert all(abs(step - loss) < 8 for step, loss in points)
    assert [step for step, _ in points] == sorted({step for step, _ in points})


@pytest.mark.thorough
def test_a_very_long_curve_keeps_its_extremes() -> None:
    odd = {30_001: 1000.0, 70_002: -1000.0}
    told = history(encode("progress", step=n, loss=odd.get(n, 1.0)) for n in range(1, 100_001))
    assert {(30_001, 1000.0), (70_002, -1000.0)} <= set(told.curves["loss"])


def test_names_and_texts_without_end_are_not_kept() -> None:
    told = history([
        encode("progress", step=1, **{f"m{n}": 1.0 for n in range(500)}, **{"x" * 5000: 1.0}),
        encode("checkpoint", step=1, uri="u" * 5000, metrics={"a": "y" * 5000, "x" * 5000: 1.0, "loss": 1}),
    ])  # fmt: skip
    assert len(told.curves) == MOST_CURVES
    assert told.saved == [Saved(1, "", {"loss": 1.0}, False, place=1)]


def test_lines_that_are_lost_are_a_gap_in_the_curve() -> None:
    told = history(["iter 10: loss 4.0, time 1.00ms", "iter 20: loss 3.0, time 1.00ms"])
    told.miss()
    told.miss()
    for n in (80, 90):
        told.add(Report("progress", {"step": n, "loss": 2.0}, printed=told.format))
    assert told.curves["loss"] == [(10, 4.0), (20, 3.0), (80, 2.0), (90, 2.0)] and told.gaps == [20]


def test_numbers_that_are_printed_make_way_for_those_that_are_reported() -> None:
    told = history(["iter 10: loss 4.0, time 1.00ms", encode("progress", step=3, loss=1.0)])
    assert (told.curves, told.resumed, told.format) == ({"loss": [(3, 1.0)]}, [], "")


def test_a_step_that_is_told_twice_is_one_point() -> None:
    """A bar that is drawn again; a try that begins at the step where the one before was killed."""
    told = history(
        [encode("progress", step=n, loss=loss) for n, loss in ((1, 3.0), (2, 2.5), (2, 2.0), (3, 1.0))]
    )
    assert told.curves == {"loss": [(1, 3.0), (2, 2.0), (3, 1.0)]}


def test_the_curve_of_the_speed_has_no_jump_of_a_bar_that_resumed() -> None:
    def bar(step: int, speed: float) -> Report:
        return Report("progress", {"step": step, "loss": 1.0, "steps_per_second": speed}, printed="tqdm")

    told = History()
    for step in (10, 20):
        told.add(bar(step, 10.0), step / 10)
    told.add(Report("handed", {"step": 10}), 20.0)
    for step, speed in ((11, 9000.0), (20, 300.0), (32, 50.0), (42, 12.0)):
        told.add(bar(step, speed), 30.0 + step / 10)
    assert told.curves["steps_per_second"] == [
        (10, 10.0), (32, pytest.approx(10)), (42, pytest.approx(10)),
    ]  # fmt: skip
    assert [step for step, _ in told.curves["loss"]] == [10, 11, 20, 32, 42]
    undated = History()
    for step, speed in ((10, 10.0), (20, 10.0), (11, 9000.0), (20, 300.0)):
        undated.add(bar(step, speed))
    assert undated.curves["steps_per_second"] == [(10, 10.0)]


def test_progress_at_nothing_takes_no_step_back() -> None:
    """A client of a script that resumes posts 0 before its first step: no number, and no step lost."""
    lines = [encode("progress", step=n, total=9, loss=1 / n) for n in range(1, 6)]
    begins = encode("progress", step=0, total=9)
    told = history([*lines, begins, encode("progress", step=5, total=9, loss=0.1)])
    assert [step for step, _ in told.curves["loss"]] == [1, 2, 3, 4, 5] and told.breaks == []
    progress = Progress()
    for line in (*lines, begins):
        [report] = ProgressReader().read(line)
        progress = add_report(progress, report, 1.0)
    assert (progress.step, progress.lost_steps) == (5, 0)
    anew = history([*lines, encode("progress", step=0, loss=3.0)])
    assert anew.curves["loss"] == [(0, 3.0)]

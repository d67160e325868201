"""What report lines add up to, and how many steps a restart cost."""

from __future__ import annotations

from functools import reduce

from allaboard.observation import Progress
from allaboard.progress import after, flags_of
from allaboard.reportline import Report, decode, encode


def fold(*lines: str) -> Progress:
    reports = [decode(line) for line in lines]
    return reduce(lambda p, r: after(p, r, 1.0), [r for r in reports if r is not None], Progress())


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
        encode("checkpoint", step=5, uri="a", best=True),
        encode("checkpoint", step=9, uri="b"),
        encode("result", metrics={"acc": 0.9}),
    )
    assert (found.checkpoint, found.best_checkpoint, found.result) == ("b", "a", {"acc": 0.9})


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
    assert after(Progress(step=1), newer, 1.0) == Progress(step=1)

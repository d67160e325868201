"""What the reader of a stream remembers: which format, which epoch, whose bar, and when it stands back."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.follow.printed import ProgressReader
from allaboard.follow.progress import add_report, flags_of
from allaboard.runs.observation import Progress
from allaboard.text.reportline import encode


def read(*lines: str, spec: str | None = None) -> list[tuple[int | None, int | None, dict[str, Any]]]:
    """(step, total, metrics) of each report."""
    reader = ProgressReader(spec)
    return [
        (r.fields.get("step"), r.fields.get("total"), _metrics(r.fields))
        for line in lines
        for r in reader.read(line)
    ]


def _metrics(fields: Any) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in ("step", "total", "epoch", "steps_per_second")}


def bar(n: int, total: int, description: str = "", rest: str = "") -> str:
    return f"{description}{100 * n // total:3}%|{'█' * 3}       | {n}/{total} [00:12<01:30,  9.80it/s{rest}]"


def test_a_trainers_bar_alone_is_nothing_and_tells_the_step_once_a_dictionary_came() -> None:
    assert read(bar(1, 50), bar(2, 50)) == []
    assert read(bar(7, 50), "{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 0.14}", bar(9, 50)) == [
        (7, 50, {"loss": 1.5, "learning_rate": 1e-05}),
        (9, 50, {}),
    ]


def test_a_bar_of_its_evaluation_moves_nothing() -> None:
    steps = [step for step, _, _ in read(
        bar(10, 50), "{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 1.0}",
        bar(1, 8), bar(8, 8), "{'eval_loss': 1.25, 'epoch': 1.0}",
        bar(11, 50),
    )]  # fmt: skip
    assert steps == [10, 10, 11]


def test_dictionaries_of_fast_steps_have_their_steps_by_the_epoch() -> None:
    """The bar before a dictionary is of an earlier step; the one behind it is drawn with it."""
    lines = [bar(7, 400)]
    for n in range(1, 5):
        lines += [f"{{'loss': {9 - n}.0, 'learning_rate': 1e-05, 'epoch': {n / 40}}}", bar(10 * n, 400)]
    found = [(step, metrics["loss"]) for step, _, metrics in read(*lines) if metrics]
    assert found == [(7, 8.0), (10, 7.0), (30, 6.0), (40, 5.0)], "exact once two epochs agree on the pace"


def test_dictionaries_that_come_late_have_no_step() -> None:
    late = [f"{{'loss': {9 - n}.0, 'learning_rate': 1e-05, 'epoch': {n / 10}}}" for n in range(1, 4)]
    found = read(bar(30, 400), *late)
    assert [(step, metrics["loss"]) for step, _, metrics in found] == [(30, 8.0), (None, 7.0), (None, 6.0)]


def test_epochs_outside_and_batches_inside_are_one_count() -> None:
    found = read(
        bar(0, 3, "Epochs: "),
        bar(50, 100, "Training: ", ", loss=1.5"), bar(100, 100, "Training: ", ", loss=1.25"),
        bar(1, 3, "Epochs: "), bar(50, 100, "Training: ", ", loss=1.0"),
    )  # fmt: skip
    assert [(step, total) for step, total, _ in found] == [(50, 300), (100, 300), (150, 300)]


def test_a_bar_of_keras_after_an_epoch_is_an_evaluation() -> None:
    trains, evaluates = (f"{{}}/{n} ━━━━━━━━━━ 1s 9ms/step - acc: 0.91 - loss: 0.31" for n in (40, 10))
    found = read(
        "Epoch 1/2",
        trains.format(40),
        evaluates.format(5),
        evaluates.format(10),
        "Epoch 2/2",
        trains.format(1),
    )
    assert [(step, total) for step, total, _ in found] == [(40, 80), (41, 80)]


def test_two_formats_in_one_log_do_not_mix() -> None:
    megatron = " iteration {:8d}/    100 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5E+00 |"
    found = read(
        megatron.format(1),
        "iter 50: loss 9.9, time 1.00ms, mfu 1.00%",
        bar(7, 9, "Training: "),
        megatron.format(2),
    )
    assert [step for step, _, _ in found] == [1, 2]


def test_a_library_takes_the_place_of_a_bar() -> None:
    reader = ProgressReader()
    assert [r.printed for r in reader.read(bar(1, 9, "Training: "))] == ["tqdm"]
    assert [r.printed for r in reader.read("iter 50: loss 9.9, time 1.00ms, mfu 1.00%")] == ["nanoGPT"]
    assert reader.read(bar(2, 9, "Training: ")) == [] and reader.name == "nanoGPT"


def test_of_what_a_script_reports_itself_nothing_printed_stands_beside() -> None:
    reader, progress = ProgressReader(), Progress()
    lines = [
        "iter 50: loss 9.9, time 1.00ms, mfu 1.00%",
        encode("progress", step=3, loss=1.0),
        "iter 60: loss 9.8, time 1.00ms",
    ]
    for report in (report for line in lines for report in reader.read(line)):
        progress = add_report(progress, report, 1.0)
    assert (progress.step, progress.metrics, progress.format, progress.lost_steps) == (
        3,
        {"loss": 1.0},
        None,
        0,
    )


def test_another_phase_in_the_same_process_loses_no_steps_and_a_new_try_does() -> None:
    progress, line = Progress(), "iter {}: loss 2.5, time 10.00ms"
    for reader, n in (((one := ProgressReader()), 90), (one, 10), (ProgressReader(), 4)):
        for report in reader.read(line.format(n)):
            progress = add_report(progress, report, 1.0)
    assert (progress.step, progress.lost_steps) == (4, 7)


@pytest.mark.parametrize("spelled", ["nan", "NaN", "inf", "-inf", "Infinity"])
def test_what_is_no_number_is_null_and_flagged(spelled: str) -> None:
    (report,) = ProgressReader().read(f"iter 50: loss {spelled}, time 1.00ms")
    assert report.fields["loss"] is None and "nan_loss" in flags_of(report)


@pytest.mark.parametrize(
    ("prefix", "counts"),
    [
        ("[rank0]:", True), ("[rank3]:", False), ("[default0]:", True), ("[default3]:", False), ("0: ", True),
        ("3: ", False), ("[1,0]<stdout>:", True), ("[1,2]<stdout>:", False),
        ("2026-01-02 10:11:12,345 - INFO - root - ", True), ("INFO:train:", True), ("[Rank 2] ", False),
        ("I0102 10:11:12.000000 140 train.py:48] ", True), ("\x1b[32mINFO\x1b[0m | ", True),
        ("the best so far was ", False), ("resumed from checkpoint at ", False), ("# ", False),
    ],
)  # fmt: skip
def test_prefixes_of_loggers_and_ranks(prefix: str, counts: bool) -> None:
    assert len(read(f"{prefix}step: 10 loss: 2.5")) == counts


def test_a_format_of_ones_own() -> None:
    spec = r"^<(?P<step>\d+)/(?P<total>\d+)> e=(?P<energy>\S+)( lr=(?P<lr>\S+))?"
    assert read("<3/9> e=1,024.5 lr=3e-4", "<4/9> e=low", "iter 50: loss 9.9, time 1.00ms", spec=spec) == [
        (3, 9, {"energy": 1024.5, "lr": 3e-4}),
        (4, 9, {}),
    ]


@pytest.mark.timeout(20)
def test_a_hostile_expression_is_given_up_and_said() -> None:
    reader = ProgressReader(r"(?P<step>\d+)(a|aa)+$")
    reports = [r for _ in range(10) for r in reader.read("1" + "a" * 1900 + "!")]
    assert [r.fields["code"] for r in reports] == ["progress_expression_slow"]


def test_off_reads_reports_alone() -> None:
    assert read("iter 50: loss 9.9, time 1.00ms", encode("progress", step=3), spec="off") == [(3, None, {})]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "line",
    [
        "a " * 900, "1" * 1900, "[" * 1900, "loss: " * 300, "{'loss': " * 200, "epoch 1 " * 240,
        "loss a.b " * 220, "step 1 " + "loss 1 (" * 240, "[1] " * 480, "a.b:" * 480, "1%|" * 600, "━" * 1900,
    ],
)  # fmt: skip
def test_a_hostile_line_takes_no_time(line: str) -> None:
    reader = ProgressReader()
    for n in range(20):
        reader.read(f"{line}{chr(97 + n)}")


def test_a_bar_at_nothing_moves_a_training_that_resumes_nowhere() -> None:
    """tqdm draws 0 before a script tells its bar where it goes on; so does Lightning within an epoch."""
    assert read(bar(0, 50, "Epoch 3"), bar(7, 50, "Epoch 3", ", loss=0.5"))[0][0] == 107
    found = read(
        bar(0, 400, "Steps", ", loss=1.5"),
        bar(0, 400, "Steps"),
        bar(120, 400, "Steps", ", loss=0.5"),
    )
    assert [(step, metrics) for step, _, metrics in found] == [(0, {"loss": 1.5}), (120, {"loss": 0.5})]


def test_the_first_dictionary_has_the_step_of_the_bar_behind_it() -> None:
    lines = [bar(0, 400), "{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.125}", bar(25, 400)]
    assert read(*lines) == [(25, 400, {"loss": 2.5, "learning_rate": 1e-05})]
    again = "{'loss': 2.25, 'learning_rate': 1e-05, 'epoch': 0.25}"
    found = read(*lines[:2], again, bar(50, 400))
    assert [(step, metrics["loss"]) for step, _, metrics in found] == [(None, 2.5), (50, 2.25)]
    third = "{'loss': 2.0, 'learning_rate': 1e-05, 'epoch': 0.375}"
    assert read(*lines, again, bar(50, 400), third)[-1][:2] == (75, 400), "two epochs agree on the pace"


def test_rounds_count_on_from_the_checkpoint_that_a_process_was_handed() -> None:
    handed, line = encode("handed", step=9), "[{}]\ttrain-rmse:0.5"
    assert [step for step, _, _ in read(line.format(0), line.format(1))] == [0, 1]
    assert [step for step, _, _ in read(handed, line.format(0), line.format(1)) if step is not None][1:] == [
        10,
        11,
    ]
    of_lightgbm = "[11]\tvalid_0's l2: 0.25"
    assert read(handed, of_lightgbm)[-1][0] == 11, "which counts on by itself"


def test_a_checkpoint_that_was_handed_over_is_no_progress() -> None:
    [report] = ProgressReader().read(encode("handed", step=9))
    assert add_report(Progress(), report, 1.0) == Progress(jumped=True)


RICH = "Epoch {}/7  ━━━━━━━━━━━━━━━━ {}/50 0:00:00 • -:--:-- 619.32it/s train_loss: 0.25"


def test_lightnings_bar_of_rich_names_the_last_epoch() -> None:
    """With a logger (v_num) or without."""
    assert [read(RICH.format(0, 10) + more)[-1][:2] for more in ("", " v_num: 0")] == [(10, 400), (10, 400)]
    assert read(RICH.format(7, 50))[-1][:2] == (400, 400)
    assert read(RICH.format(1, 10).replace("• -:--:--", "0:00:10"))[-1][:2] == (10, 350), "another's"


@pytest.mark.parametrize("drawn", [" " * 18, " " * 2, "━" + " " * 30, "╺ "])
def test_lightnings_bar_of_rich_is_read_from_its_first_steps(drawn: str) -> None:
    """As long as an epoch has hardly begun the bar is blank: of a long one for hours."""
    begun = f"Epoch 2/9 {drawn}312/20000 0:00:41 • 0:44:12 7.50it/s v_num: 3.000 train_loss: 0.91"
    assert read(begun) == [(40_312, 200_000, {"train_loss": 0.91})]
    assert read(begun.replace(" v_num: 3.000", "")) == [(40_312, 200_000, {"train_loss": 0.91})]
    blank = f"Epoch 2/9 {drawn}0/20000 0:00:00 • -:--:-- 0.00it/s"
    assert read(blank, blank, begun)[-1][0] == 40_312
    other = f"Testing DataLoader 0 {drawn}3/20 0:00:00 • 0:00:04 7.50it/s"
    assert read(other) == [] and read(begun, other)[-1][0] == 40_312

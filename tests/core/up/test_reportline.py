"""The line between a training process and its follower: what is written is what is read, also from others."""

from __future__ import annotations

import math

import pytest

from allaboard.reportline import PREFIX, Report, decode, encode


def test_what_is_written_is_read() -> None:
    line = encode("progress", step=3, total=10, loss=0.5, note=None)
    assert decode(line) == Report("progress", {"step": 3, "total": 10, "loss": 0.5})
    assert decode(f"[rank0]: {line}\n") == decode(line), "behind a launcher's prefix too"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null_and_named(bad: float) -> None:
    report = decode(encode("progress", step=1, loss=bad, scores={"a": [1.0, bad]}))
    assert report is not None and report.nonfinite == ("loss", "scores.a[1]")
    assert report.fields == {"step": 1, "loss": None, "scores": {"a": [1.0, None]}}


def test_a_foreign_writers_nan_is_named_too() -> None:
    report = decode(PREFIX + '{"v":1,"kind":"progress","step":2,"loss":NaN}')
    assert report == Report("progress", {"step": 2, "loss": None}, ("loss",))


def test_unknown_fields_kinds_and_newer_versions_are_kept() -> None:
    assert decode(PREFIX + '{"v":7,"kind":"weather","wind":3}') == Report("weather", {"wind": 3}, (), 7)


@pytest.mark.parametrize(
    "line",
    [
        "step 3",
        PREFIX + "hello",
        PREFIX + '{"v":1,"kind":"progress","st',
        PREFIX + '{"kind":"progress"}',
        PREFIX + '{"v":1}',
        PREFIX + '{"a":' * 100_000,
    ],
)
def test_other_lines_are_no_reports(line: str) -> None:
    assert decode(line) is None

"""The number of a step that a pipeline branches on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allaboard.errors import BadInput
from allaboard_kfp.value import WORST, OutputMetric

BEST = {"metric": "val_loss", "mode": "min"}


@pytest.mark.parametrize(
    ("metric", "mode", "best", "output"),
    [
        ("", "", None, OutputMetric("", "max")),
        ("", "", BEST, OutputMetric("val_loss", "min")),
        ("", "", {"metric": "val_loss"}, OutputMetric("val_loss", "min")),
        ("val_loss", "", BEST, OutputMetric("val_loss", "min")),
        ("accuracy", "max", BEST, OutputMetric("accuracy", "max")),
        ("val_loss", "max", BEST, OutputMetric("val_loss", "max")),
    ],
)
def test_what_is_not_said_follows_from_the_job(
    metric: str, mode: str, best: Any, output: OutputMetric
) -> None:
    assert OutputMetric.of(metric, mode, best) == output


@pytest.mark.parametrize(
    ("metric", "mode", "words"),
    [("accuracy", "", "say mode: max or min"), ("a", "up", "mode 'up' is not known")],
)
def test_a_direction_that_nobody_can_know_is_asked_for(metric: str, mode: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        OutputMetric.of(metric, mode, BEST)


@pytest.mark.parametrize(
    ("output", "sources", "value"),
    [
        (OutputMetric("a"), [{"a": 1, "b": 2}], 1.0),
        (OutputMetric("a.b"), [{"a": {"b": 0.5}}], 0.5),
        (OutputMetric("a"), [{"b": 1}, {"a": 3}], 3.0),
        (OutputMetric("a"), [{"a": 1}, {"a": 3}], 1.0),
        (OutputMetric(), [{"a": 7, "words": "fine", "done": True}], 7.0),
        (OutputMetric(), [{}], -WORST),
    ],
)
def test_the_value_is_the_metric_of_the_first_that_has_it(
    output: OutputMetric, sources: list[dict[str, Any]], value: float
) -> None:
    found, trouble = output.value(*sources)
    assert (found, trouble) == (value, "")
    assert isinstance(found, float)


@pytest.mark.parametrize(
    "told", [{}, {"a": None}, {"a": float("nan")}, {"a": float("inf")}, {"a": True}, {"a": 10**400}]
)
@pytest.mark.parametrize(("mode", "worst"), [("max", -WORST), ("min", WORST)])
def test_what_is_no_finite_number_is_the_worst_and_is_said(told: Any, mode: str, worst: float) -> None:
    found, trouble = OutputMetric("a", mode).value(told, {"a": 1.0} if told else {})
    assert found == worst
    assert "no finite number 'a' was reported" in trouble
    assert json.loads(json.dumps(found, allow_nan=False)) == worst


def test_of_several_numbers_one_must_be_named() -> None:
    assert OutputMetric().value({"a": 7, "b": 8}) == (
        -WORST,
        "the output value is -1e+308: several numbers were reported (a, b); "
        "name one as metric, and give its mode",
    )


def test_a_misspelt_metric_is_answered_with_the_one_that_was_meant() -> None:
    assert "did you mean 'accuracy'?" in OutputMetric("acuracy").value({"accuracy": 0.9})[1]

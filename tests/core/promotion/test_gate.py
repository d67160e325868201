"""The gate, as tables: what passes, what does not, and the figures that it gives as its reason."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from allaboard.errors import BadInput
from allaboard.promotion.gate import Check, Gate, Threshold, judge

NAN = math.nan


@pytest.mark.parametrize(
    ("threshold", "metrics", "passed", "reason"),
    [
        ("accuracy>=0.97", {"accuracy": 0.98}, True, "accuracy 0.98 is at least 0.97"),
        ("accuracy>=0.97", {"accuracy": 0.97}, True, "accuracy 0.97 is at least 0.97"),
        ("accuracy>=0.97", {"accuracy": 0.9699}, False, "accuracy 0.9699 is not at least 0.97"),
        ("loss<=0.2", {"loss": 0.2}, True, "loss 0.2 is at most 0.2"),
        ("loss<=0.2", {"loss": 0.21}, False, "loss 0.21 is not at most 0.2"),
        ("count>=3", {"count": 3}, True, "count 3 is at least 3"),
        ("loss<=0.2", {"loss": NAN}, False, "loss is not a finite number"),
        ("loss<=0.2", {"loss": -math.inf}, False, "loss is not a finite number"),
        ("loss<=0.2", {"loss": None}, False, "loss is not a finite number"),
        ("loss<=0.2", {"loss": "0.1"}, False, "loss is '0.1', not a number"),
        ("loss<=0.2", {"loss": True}, False, "loss is True, not a number"),
        ("loss<=0.2", {}, False, "loss is missing (the metrics are: none)"),
        ("los<=0.2", {"loss": 0.1, "a": 1}, False, "los is missing (the metrics are: a, loss)"),
        ("val.loss<=0.2", {"val": {"loss": 0.1}}, True, "val.loss 0.1 is at most 0.2"),
        ("val.loss<=0.2", {"val": {"loss": NAN}}, False, "val.loss is not a finite number"),
    ],
)
def test_thresholds(threshold: str, metrics: dict[str, Any], passed: bool, reason: str) -> None:
    verdict = judge(Gate.parse(thresholds=threshold), metrics)
    assert (verdict.passed, verdict.reason) == (passed, reason)
    assert verdict.checks[0].kind == "threshold"


@pytest.mark.parametrize(
    ("mode", "better_by", "value", "champion", "passed"),
    [
        ("max", 0, 0.98, 0.97, True),
        ("max", 0, 0.97, 0.97, False),  # as good is not better
        ("max", 0, 0.96, 0.97, False),
        ("min", 0, 0.1, 0.2, True),
        ("min", 0, 0.2, 0.2, False),
        ("min", 0, 0.3, 0.2, False),
        ("max", 0.01, 0.98, 0.97, True),
        ("max", 0.01, 0.9799, 0.97, False),
        ("max", 0.2, 0.3, 0.1, True),  # 0.3 - 0.1 is a little less than 0.2 in binary
        ("min", 0.1, 0.2, 0.3, True),
        ("min", 0.1, 0.21, 0.3, False),
        ("max", 5, 105, 100, True),
        ("max", 1e-9, 0.5, 0.5 - 1e-9, True),
    ],
)
def test_better_than_the_champion(
    mode: str, better_by: float, value: float, champion: float, passed: bool
) -> None:
    verdict = judge(Gate("m", mode, better_by), {"m": value}, {"m": champion})
    (check,) = verdict.checks
    assert (verdict.passed, check.passed) == (passed, passed)
    assert (check.kind, check.value, check.champion) == ("champion", value, champion)


def test_the_reason_gives_every_figure() -> None:
    gate = Gate.parse("accuracy", "max", better_by="0.002", thresholds="accuracy>=0.97,loss<=0.2")
    verdict = judge(gate, {"accuracy": 0.981, "loss": 0.3}, {"accuracy": 0.98})
    assert verdict.passed is False
    assert [check.reason for check in verdict.checks] == [
        "accuracy 0.981 is at least 0.97",
        "loss 0.3 is not at most 0.2",
        "accuracy 0.981 is not at least 0.002 better than the champion's 0.98 "
        "(larger is better; it is 0.001 better)",
    ]
    assert verdict.reason == "; ".join([verdict.checks[1].reason, verdict.checks[2].reason])
    assert verdict.checks[2].needed == 0.982


def test_without_a_champion_there_is_nothing_to_beat() -> None:
    verdict = judge(Gate("accuracy", "max", 0.5), {"accuracy": 0.1}, None)
    assert (verdict.passed, verdict.reason) == (True, "accuracy 0.1: no champion to beat")


@pytest.mark.parametrize("value", [NAN, None, math.inf, "0.9"])
def test_without_a_champion_a_candidate_still_needs_a_number(value: Any) -> None:
    assert judge(Gate("accuracy"), {"accuracy": value}, None).passed is False
    assert judge(Gate("accuracy"), {}, None).passed is False


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_a_candidate_that_is_not_finite_never_beats_anything(mode: str, value: float) -> None:
    verdict = judge(Gate("m", mode), {"m": value}, {"m": 0.5})
    assert (verdict.passed, verdict.reason) == (False, "m is not a finite number")


@pytest.mark.parametrize("champion", [NAN, None, math.inf])
def test_a_champion_that_is_not_finite_is_beaten_by_any_number(champion: Any) -> None:
    verdict = judge(Gate("m", "min"), {"m": 1e9}, {"m": champion})
    assert (verdict.passed, verdict.reason) == (
        *(True,),
        "m 1000000000: the champion's is not a finite number, which any number beats",
    )


def test_a_champion_without_the_metric_cannot_be_compared() -> None:
    verdict = judge(Gate("f1"), {"f1": 0.9}, {"accuracy": 0.9})
    assert verdict.passed is False
    assert "the champion has no 'f1' (its metrics: accuracy); compare by one that both have" in verdict.reason


def test_scalars_of_numpy_are_taken_on_both_sides() -> None:
    numpy = pytest.importorskip("numpy")
    verdict = judge(Gate("m", "max", 0.2), {"m": numpy.float64(0.3)}, {"m": numpy.float64(0.1)})
    assert verdict.passed is True


def test_a_gate_that_asks_nothing_is_open() -> None:
    verdict = judge(Gate(), {})
    assert (verdict.passed, verdict.checks, verdict.reason) == (True, (), "the gate has no condition")


def test_arguments_are_not_changed() -> None:
    metrics, champion = {"m": NAN, "n": {"a": 1}}, {"m": 0.5}
    judge(Gate("m"), metrics, champion)
    assert math.isnan(metrics["m"])  # type: ignore[arg-type]
    assert champion == {"m": 0.5}


def test_a_verdict_has_a_json_form() -> None:
    verdict = judge(Gate.parse("m", "max", thresholds="m>=1"), {"m": 2}, {"m": 1.5})
    assert json.loads(json.dumps(verdict.to_dict())) == {
        "passed": True,
        "reason": "m 2 is at least 1; "
        "m 2 is better than the champion's 1.5 (larger is better; it is 0.5 better)",
        "checks": [
            {
                "kind": "threshold",
                "metric": "m",
                "passed": True,
                "value": 2,
                "needed": 1.0,
                "champion": None,
                "reason": "m 2 is at least 1",
            },
            {
                "kind": "champion",
                "metric": "m",
                "passed": True,
                "value": 2,
                "needed": 1.5,
                "champion": 1.5,
                "reason": "m 2 is better than the champion's 1.5 (larger is better; it is 0.5 better)",
            },
        ],
    }
    assert isinstance(verdict.checks[0], Check)


# --- as people write it


@pytest.mark.parametrize(
    "written",
    [
        "accuracy>=0.97, loss<=0.2",
        ["accuracy >= 0.97", "loss <= 0.2"],
        ["accuracy>=0.97,loss<=0.2"],
        [Threshold("accuracy", True, 0.97), "loss<=0.2"],
        {"accuracy": {"min": 0.97}, "loss": {"max": "0.2"}},
    ],
)
def test_thresholds_are_written_in_several_ways(written: Any) -> None:
    assert Gate.parse(thresholds=written).thresholds == (
        Threshold("accuracy", True, 0.97),
        Threshold("loss", False, 0.2),
    )


def test_a_gate_has_a_json_form_that_it_is_read_from() -> None:
    gate = Gate.parse("accuracy", "max", "0.002", "accuracy>=0.97")
    assert gate.to_dict() == {
        "metric": "accuracy",
        "mode": "max",
        "better_by": 0.002,
        "thresholds": ["accuracy>=0.97"],
    }
    assert Gate.parse(**gate.to_dict()) == gate


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"mode": "larger"}, "mode 'larger' is not known; write min"),
        ({"metric": "m", "better_by": -0.1}, "better_by -0.1 is negative"),
        ({"metric": "m", "better_by": "much"}, "better_by: 'much' is not a number"),
        ({"metric": "m", "better_by": NAN}, "better_by: nan is not a number"),
        ({"better_by": 0.1}, "better_by needs a metric"),
        ({"thresholds": "accuracy>0.97"}, "write accuracy>=0.97 or loss<=0.2"),
        ({"thresholds": "accuracy"}, "write accuracy>=0.97 or loss<=0.2"),
        ({"thresholds": "accuracy>=high"}, "'high' is not a number"),
        ({"thresholds": ["a>=nan"]}, "'nan' is not a number"),
        ({"thresholds": {"loss": 0.2}}, 'write {"min": 0.97} or {"max": 0.2}'),
        ({"thresholds": {"loss": {"most": 0.2}}}, 'write {"min": 0.97} or {"max": 0.2}'),
        ({"thresholds": {"loss": {"max": True}}}, r"thresholds\.loss\.max: True is not a number"),
    ],
)
def test_what_is_no_gate_is_refused(written: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Gate.parse(**written)

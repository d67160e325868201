"""The best of a sweep's runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from allaboard.errors import BadInput
from allaboard.promotion.sweep import pick_best


def result(run: str, metrics: Any = None, **named: Any) -> dict[str, Any]:
    return {"run": run, "state": "succeeded", "metrics": named if metrics is None else metrics}


def order(*results: dict[str, Any], mode: str = "min") -> list[Any]:
    return [each["run"] for each in pick_best(results, "loss", mode).ranking]


def test_the_best_is_first_in_either_direction() -> None:
    results = [result("a", loss=0.2), result("b", loss=-1), result("c", loss=3)]
    assert order(*results) == ["b", "a", "c"] and order(*results, mode="max") == ["c", "a", "b"]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_equals_the_first_wins(mode: str) -> None:
    assert order(result("c", loss=1), result("a", loss=1.0), result("b", loss=1), mode=mode) == [
        "c",
        "a",
        "b",
    ]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    "odd", [{}, {"loss": None}, {"loss": math.nan}, {"loss": math.inf}, {"loss": -math.inf}, {"loss": "0"},
            {"loss": True}, {"val": {"loss": 1}}, None, "loss", 7],
)  # fmt: skip
def test_a_value_that_is_no_finite_number_never_wins_and_is_told(odd: Any, mode: str) -> None:
    bad = {"run": "odd", "metrics": odd}
    for results in ([bad, result("a", loss=5)], [result("a", loss=5), bad]):
        pick = pick_best(results, "loss", mode)
        assert pick.best is not None and pick.best["run"] == "a"
        assert len(pick.left_out) == 1 and pick.left_out[0].startswith("run odd: ")
    assert pick_best([bad], "loss", mode).best is None


def test_a_nested_metric_has_dots() -> None:
    pick = pick_best([result("a", {"val": {"loss": 2}}), result("b", {"val.loss": 1})], "val.loss", "min")
    assert [row["value"] for row in pick.to_dict()["ranking"]] == [1, 2]


def test_the_choice_is_small_however_many_runs_there_are() -> None:
    pick = pick_best([result(str(n), loss=n) for n in range(1000)], "loss", "max")
    assert pick.to_dict()["runs"] == 1000 and len(pick.to_dict()["ranking"]) == 50


def test_no_mode_but_two() -> None:
    with pytest.raises(BadInput, match="mode 'least' is not known"):
        pick_best([], "loss", "least")

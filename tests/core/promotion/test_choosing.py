"""Which of several trainings is the best: ties, failures, and numbers that are none."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from allaboard.errors import BadInput
from allaboard.promotion.choosing import Candidate, Choice, best_of


def chosen(*values: Any, mode: str = "min", most_failed: int | None = None) -> Choice:
    """Of trainings a, b, c...: a value of their loss, or the sentence of a failure."""
    candidates = [
        Candidate(name, {"loss": 0.0}, value) if isinstance(value, str) else Candidate(name, {"loss": value})
        for name, value in zip("abcdefg", values, strict=False)
    ]
    return best_of(candidates, "loss", mode, most_failed=most_failed)


@pytest.mark.parametrize(
    ("mode", "values", "best", "ranks"),
    [
        ("min", (0.3, 0.1, 0.2), 1, [1, 2, 3]),
        ("max", (0.3, 0.1, 0.2), 0, [1, 2, 3]),
        ("min", (2, 1, 1.0, 3), 1, [1, 1, 3, 4]),  # the first of equals; who comes after two equals is third
        ("max", (0.5, 0.5), 0, [1, 1]),
        ("min", (math.nan, 7.0, -math.inf), 1, [1, None, None]),
        ("max", (math.inf, 7.0, None), 1, [1, None, None]),
        ("min", (True, 4, {"a": 1}), 1, [1, None, None]),
        ("min", (10**400, 4), 1, [1, None]),
        ("min", ("it was lost", 0.9), 1, [1, None]),  # whatever it reported before
        ("max", (-0.0, 0.0), 0, [1, 1]),
    ],
)
def test_who_is_the_best(mode: str, values: tuple[Any, ...], best: int, ranks: list[int | None]) -> None:
    choice = chosen(*values, mode=mode)
    assert choice.best == best == choice.standings[0].index
    assert [standing.rank for standing in choice.standings] == ranks


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((0.3, 0.1), "b has the smallest loss, 0.1, of 2 trainings"),
        ((0.3,), "a has the smallest loss, 0.3, of 1 training"),
        ((0.1, 0.1, 0.2), "a has the smallest loss, 0.1, of 3 trainings; b has the same, and comes later"),
        (
            (0.1, 0.1, 0.1),
            "a has the smallest loss, 0.1, of 3 trainings; 2 others have the same, and come later",
        ),
        ((0.1, math.nan, "x"), "a has the smallest loss, 0.1, of 3 trainings; 2 cannot be compared"),
    ],
)
def test_the_reason_is_a_sentence(values: tuple[Any, ...], reason: str) -> None:
    assert chosen(*values).reason == reason


def test_nobody_is_chosen_where_nobody_has_a_number_and_each_is_told() -> None:
    choice = chosen(math.nan, "a member exited with 1", "the node\nwas lost", 10**400)
    assert choice.best is None
    assert choice.reason == (
        "none of 4 trainings has a finite loss (a: loss is not a finite number; "
        "b: it failed: a member exited with 1; c: it failed: the node\\nwas lost; and 1 more)"
    )


@pytest.mark.parametrize(
    ("values", "most", "best"),
    [
        (("x", "y", 0.1), None, 2),
        (("x", "y", 0.1), 2, 2),
        (("x", "y", 0.1), 1, None),
        (("x", 0.2, 0.1), 0, None),
        ((math.nan, 0.2), 0, 1),  # one that diverged has not failed
    ],
)
def test_so_many_may_have_failed(values: tuple[Any, ...], most: int | None, best: int | None) -> None:
    choice = chosen(*values, most_failed=most)
    assert choice.best == best
    if best is None:
        assert (
            choice.reason == f"{values.count('x') + values.count('y')} of 3 trainings failed, and {most} may"
        )


def test_a_metric_within_another_and_one_that_is_not_there() -> None:
    choice = best_of(
        [Candidate("a", {"val": {"loss": 1}}), Candidate("b\x1b[31m", {"los\n": 1})], "val.loss", "min"
    )
    assert choice.best == 0
    assert choice.standings[1].name == "b\\x1b[31m"
    assert choice.standings[1].trouble == "val.loss is missing (the metrics are: los\\n)"


def test_a_choice_is_json() -> None:
    kept = json.loads(json.dumps(chosen(0.2, math.nan, "x").to_dict(), allow_nan=False))
    assert kept["best"] == 0
    assert kept["standings"][0] == {"index": 0, "name": "a", "rank": 1, "value": 0.2, "trouble": ""}


@pytest.mark.parametrize(
    ("candidates", "more", "words"),
    [
        ([], {}, "there is nothing to choose from"),
        ([Candidate("a")], {"mode": "least"}, "mode 'least' is not known"),
        ([Candidate("a")], {"most_failed": -1}, "most_failed -1 is negative"),
    ],
)
def test_what_is_refused(candidates: list[Candidate], more: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        best_of(candidates, "loss", **{"mode": "min", **more})

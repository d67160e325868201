from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from allaboard.checkpoints.metrics import best_of, number, parse_best, plain
from allaboard.errors import BadInput


def test_scalars_of_numpy_and_torch_become_plain_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    clean, nonfinite = plain(
        {
            "numpy32": numpy.float32(0.5),
            "numpy64": numpy.float64("nan"),
            "count": numpy.int64(3),
            "array": numpy.array([0.25]),
            "torch": torch.tensor(0.75, requires_grad=True),
            "torch_nan": torch.tensor(float("inf")),
            "decimal": Decimal("0.125"),
        }
    )
    assert clean == {
        "numpy32": 0.5,
        "numpy64": None,
        "count": 3,
        "array": 0.25,
        "torch": 0.75,
        "torch_nan": None,
        "decimal": 0.125,
    }
    assert nonfinite == ("numpy64", "torch_nan")
    assert all(type(value) in (float, int, type(None)) for value in clean.values())


def test_nested_metrics_and_words_are_kept() -> None:
    clean, nonfinite = plain(
        {"per_class": {"cat": 0.5, "dog": math.nan}, "split": "test", "ok": True, "list": [1, math.inf]}
    )
    assert clean == {"per_class": {"cat": 0.5, "dog": None}, "split": "test", "ok": True, "list": [1, None]}
    assert nonfinite == ("per_class.dog", "list[1]")


@pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}, lambda: 0])
def test_what_is_no_metric_is_named(value: Any) -> None:
    with pytest.raises(BadInput, match=r"metrics\.accuracy: .* is not a number"):
        plain({"accuracy": value})


def test_a_tensor_of_many_is_no_metric() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BadInput, match=r"metrics\.loss: Tensor is not a number; give one number"):
        plain({"loss": torch.zeros(3)})


def test_metrics_must_have_names() -> None:
    with pytest.raises(BadInput, match="float is not a mapping"):
        plain(0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        ({"loss": 1}, 1),
        ({"loss": None}, None),
        ({"loss": math.nan}, None),
        ({"loss": -math.inf}, None),
        ({"loss": True}, None),
        ({"loss": "0.5"}, None),
        ({}, None),
    ],
)
def test_only_a_finite_number_is_one(metrics: dict[str, Any], found: float | None) -> None:
    assert number(metrics, "loss") == found


def test_dots_lead_into_nested_metrics() -> None:
    assert number({"val": {"loss": 0.5}}, "val.loss") == 0.5
    assert number({"val.loss": 0.25, "val": {"loss": 0.5}}, "val.loss") == 0.25
    assert number({"val": 3}, "val.loss") is None


def ranked(mode: str, *values: Any) -> list[int]:
    items = list(enumerate(values))
    return [index for index, _ in best_of(items, lambda item: {"m": item[1]}, "m", mode)]


def test_best_first_by_direction_and_the_later_of_equals() -> None:
    assert ranked("min", 3, 1, 2) == [1, 2, 0]
    assert ranked("max", 3, 1, 2) == [0, 2, 1]
    assert ranked("min", 1, 1, 2, 1) == [3, 1, 0, 2]
    assert ranked("max", 1, 1, 0, 1) == [3, 1, 0, 2]


def test_nan_is_never_the_best() -> None:
    assert ranked("min", math.nan, 5, None, -math.inf) == [1]
    assert ranked("max", math.nan, None) == []


def test_best_is_written_metric_colon_mode() -> None:
    assert parse_best("val_loss:min") == ("val_loss", "min")
    assert parse_best("val:loss:max") == ("val:loss", "max")
    for text in ("val_loss", ":min", ""):
        with pytest.raises(BadInput, match="write val_loss:min"):
            parse_best(text)
    with pytest.raises(BadInput, match="mode 'minimum' is not known; write min"):
        parse_best("val_loss:minimum")

"""Readers of JSON that anybody may have written: a value of the wrong kind is left out."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from allaboard.backends.kubernetes.client import values

ODD: tuple[Any, ...] = (None, 5, 2.5, True, "text", b"bytes", [1, "a", None, {}], {"a": [1]}, object())


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_no_value_makes_a_reader_raise(odd: Any) -> None:
    assert isinstance(values.dicts(odd), list)
    assert isinstance(values.text(odd), str)
    assert isinstance(values.texts(odd), dict)
    assert all(isinstance(item, str) for item in values.scalars(odd))
    assert values.at(odd, "a", "b", "c") is None
    assert values.mapping(odd) == (odd if isinstance(odd, dict) else {})
    assert values.whole(odd) == (odd if odd == 5 else None)
    assert values.moment(odd) is None
    assert values.quantity(odd) is None or isinstance(odd, int | float)


def test_values_of_the_right_kind() -> None:
    assert values.dicts({"items": [{"a": 1}, 3]}) == [{"a": 1}]
    assert values.at({"spec": {"size": 4}}, "spec", "size") == 4
    assert values.texts({"a": 1, "b": True, "c": [], "d": "x"}) == {"a": "1", "b": "true", "d": "x"}
    assert values.scalars(("ALL", 3, None)) == ("ALL", "3")
    assert values.quantity("1500m") == Decimal("1.5")
    assert values.moment("1970-01-01T00:01:00Z") == 60.0


def test_a_list_and_a_text_are_read_up_to_a_limit() -> None:
    assert len(values.dicts([{}] * (values.MOST_ITEMS + 1))) == values.MOST_ITEMS
    assert len(values.text("x" * (values.LONGEST + 1))) == values.LONGEST

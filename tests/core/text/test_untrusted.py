"""Whatever a text holds, reading it ends in a plain value or in one sentence, soon and small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allaboard.text.untrusted import Limits, Unreadable, find_flaws, parse_json, plain_number, spelled
from allaboard.text.untrusted_yaml import parse_yaml

LAUGHS = "a0: &a0 [x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGED_LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], k{n}: 1}}\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "the field 'a' appears twice"),
        ('{"a": NaN}', "holds NaN"),
        ('{"a": 1e999}', "too large"),
        ("[" * 50_000, "more than 64 deep"),
        ('{"a":' * 50_000, "more than 64 deep"),
        ("[" + "9" * 4_300 + "]", "4300 characters"),
        ('["\\ud800"]', "[0]: holds half of a surrogate pair"),
        ('{"\\ud800": 1}', "its name holds half"),
        ('["a\\u0000b"]', "NUL"),
        ("", "is not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        ("[" + "1," * 250_000 + "1]", "more than 200,000 values"),
        ("x" * (9 * 2**20), "bytes"),
    ],
)
def test_json_that_cannot_be_taken(text: str | bytes, words: str) -> None:
    with pytest.raises(Unreadable) as error:
        parse_json(text)
    assert words in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "the field 'a' appears twice"),
        ("a: " + "[" * 50_000, "more than 64 deep"),
        ("- " * 50_000, "more than 64 deep"),
        ("? " * 50_000, "more than 64 deep"),
        (LAUGHS, "200,000 values"),
        (MERGED_LAUGHS, "200,000 values"),
        ("a: &a [*a]", "holds itself"),
        ("a: &a {<<: *a}", "holds itself"),
        ("a: *b", "undefined alias"),
        ("{1: 2}", "the field's name 1 is not text"),
        ("2026-11-22: 2", ""),
        ("? [a]\n: 1", "not a list or a mapping"),
        ("a: .nan", "not a finite number"),
        ("a: " + "9" * 4_300, "4300 characters"),
        ('a: "\\ud800"', "Unicode"),
        ("a: !!python/object/apply:os.system [id]", "tag"),
        ("a: !!binary aGk=", "tag"),
        ("a: \0", "control characters"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_yaml_that_cannot_be_taken(text: str | bytes, words: str) -> None:
    if not words:
        assert parse_yaml(text) == [{"2026-11-22": 2}]
        return
    with pytest.raises(Unreadable) as error:
        parse_yaml(text)
    assert words in str(error.value)
    assert len(str(error.value)) < 400


def test_a_shared_part_is_no_attack() -> None:
    assert parse_yaml("x: &x {a: 1}\ny: {<<: *x, b: 2}\nz: *x") == [
        {"x": {"a": 1}, "y": {"a": 1, "b": 2}, "z": {"a": 1}}
    ]


def test_brackets_within_text_are_not_depth() -> None:
    assert parse_json('["' + "[" * 5_000 + '"]') == ["[" * 5_000]
    quoted = ["\\", '\\"', '"' + "[" * 5_000, "\\" * 7 + '"', "[" * 5_000]
    assert parse_json(json.dumps(quoted)) == quoted


@pytest.mark.parametrize("depth", [64, 65])
@pytest.mark.parametrize("beside", ["", '{"a": [[]], "b": "]"},' * 40])
def test_the_limit_of_depth_is_exact(depth: int, beside: str) -> None:
    text = "[" + beside + "[" * (depth - 1) + "]" * (depth - 1) + "]"
    if depth == 64:
        assert parse_json(text)
    else:
        with pytest.raises(Unreadable, match="more than 64 deep"):
            parse_json(text)


def test_the_last_of_a_field_counts_where_that_is_asked_for() -> None:
    assert parse_json('{"a": 1, "a": 2}', unique=False) == {"a": 2}


def test_numbers_know_how_they_were_spelled() -> None:
    (values,) = parse_yaml("[012, 1.10, 5, 0x1F, 1_000, 0.5, 1e3]")
    assert [spelled(value) for value in values if not isinstance(value, str)] + [
        value for value in values if isinstance(value, str)
    ] == ["012", "1.10", "5", "0x1F", "1_000", "0.5", "1e3"]
    assert [type(plain_number(value)) for value in parse_json("[1.10, 7]")] == [float, int]
    assert spelled(parse_json("[1.10]")[0]) == "1.10"


def test_dates_and_times_stay_text() -> None:
    assert parse_yaml("{day: 2026-11-22, at: 12:30:00, moment: 2026-11-22T01:02:03Z}") == [
        {"day": "2026-11-22", "at": "12:30:00", "moment": "2026-11-22T01:02:03Z"}
    ]


def test_nan_of_metrics_is_nothing_where_that_is_asked_for() -> None:
    found = parse_json('{"a": NaN, "b": -Infinity, "c": 1e999, "d": 1}', nonfinite=True)
    assert found == {"a": None, "b": None, "c": None, "d": 1}


def a_knot() -> Any:
    knot: list[Any] = []
    knot.append(knot)
    return knot


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({"a": [1, {1: 2}]}, "a[1]", "is not text"),
        ({"a": float("nan")}, "a", "not a finite number"),
        ({"a": "x\0"}, "a", "NUL"),
        ({"\ud800": 1}, "\\ud800", "its name"),
        ({"a": object()}, "a", "not a plain value"),
        ({"a": 10**4_000}, "a", "digits"),
    ],
)
def test_values_made_in_python_are_held_to_the_same(value: Any, path: str, words: str) -> None:
    ((where, trouble),) = find_flaws(value)
    assert where == path
    assert words in trouble


def test_what_holds_itself_ends() -> None:
    assert [trouble for _, trouble in find_flaws(a_knot())] == ["is nested more than 64 deep"]
    assert [trouble for _, trouble in find_flaws([1] * 20, Limits(values=10))] == [
        "holds more than 10 values"
    ]

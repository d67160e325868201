"""What differs since the last good run."""

from __future__ import annotations

import pytest

from allaboard.diagnosis.last_good import (
    COMPARED,
    MOST_CHANGES,
    MOST_LINES,
    SinceLastGood,
    changes_since,
    new_lines,
)


def test_the_job_is_compared_field_by_field_and_secrets_are_not_shown() -> None:
    good = {"image": "lab/train@sha256:aa", "environment": {"LR": "0.1", "API_TOKEN": "qqqq1"}}
    now = {"image": "lab/train@sha256:bb", "environment": {"LR": "0.3", "API_TOKEN": "zzzz2"}, "workers": 2}
    found = changes_since(good, now, {}, {})
    assert 'image: "lab/train@sha256:aa" -> "lab/train@sha256:bb"' in found
    assert 'environment.LR: "0.1" -> "0.3"' in found and "workers: absent -> 2" in found
    assert not any("qqqq1" in line or "zzzz2" in line for line in found)
    assert any(line.startswith("environment.API_TOKEN: ") for line in found)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("a\nb\nc\n", "a\nB\nc\n", ["train.py: 1 line changed"]),
        ("a\nb\n", "a\nb\nc\nd\n", ["train.py: 2 lines changed"]),
        ("a\r\n", "a\n", ["train.py: its line ends changed"]),
        ("a\n", "a\n", []),
        ("a\n", "b\n" * (COMPARED + 1), ["train.py: changed"]),
    ],
)
def test_code_is_compared_by_lines(before: str, after: str, words: list[str]) -> None:
    assert [*changes_since({}, {}, {"train.py": before}, {"train.py": after})] == words


def test_files_come_and_go_and_unknown_code_says_nothing() -> None:
    assert [*changes_since({}, {}, {"a.py": "", "b.py": ""}, {"b.py": "", "c.py": ""})] == [
        "a.py: is gone",
        "c.py: is new",
    ]
    assert changes_since({}, {}, {}, {"a.py": "x"}) == ()


def test_many_changes_are_counted() -> None:
    many = {f"f{n}.py": "x" for n in range(MOST_CHANGES + 5)}
    found = changes_since({}, {}, many, {name: "y" for name in many})
    assert len(found) == MOST_CHANGES + 1 and found[-1] == "and 5 more changes"


def test_lines_are_new_by_their_shape() -> None:
    good = ["2026-01-01T00:00:00Z epoch 1 loss 0.5", "reading /data/0f3a9c1e77 (10 rows)", "done in 3.2 s"]
    now = {
        "worker-1": [
            "[rank1]: 2026-01-02T07:00:00Z epoch 2 loss 0.25",
            "reading /data/aa00bb11cc (12 rows)",
            "",
            "-----",
            "[rank1]: ValueError: odd",
            "[rank1]: ValueError: odd",
            '[allaboard] {"kind": "progress"}',
        ]
    }
    assert new_lines(good, now) == (("worker-1", "ValueError: odd"),)


def test_the_last_of_many_are_told_and_nothing_where_the_good_ones_are_gone() -> None:
    words = "abcdefghijklmnopqrstuvwxyz"
    now = {"master-0": [f"new {a}{b}" for a in words for b in words]}
    found = new_lines(["x"], now)
    assert len(found) == MOST_LINES and found[-1] == ("master-0", "new zz")
    assert new_lines([], now) == ()


def test_secrets_in_lines_are_hidden() -> None:
    found = new_lines(
        ["x"], {"master-0": ["GET https://u:hunter22@store/x?X-Amz-Signature=abcdef0123456789"]}
    )
    assert found and "hunter22" not in found[0][1] and "abcdef0123456789" not in found[0][1]


def test_a_failure_says_in_one_line_what_was_changed() -> None:
    few = SinceLastGood("digits-1", None, ('image: "a" -> "b"', "train.py: 2 lines changed"))
    assert few.headline == ('since the last good run, digits-1: image: "a" -> "b", train.py: 2 lines changed')
    many = SinceLastGood("digits-1", None, tuple(f"field {n}" for n in range(5)))
    assert many.headline.endswith("field 2, and 2 more")
    assert SinceLastGood("digits-1", None).headline == ""

"""What differs since the last good run."""

from __future__ import annotations

import pytest

from allaboard.diagnosis.last_good import (
    COMPARED,
    MOST_CHANGES,
    MOST_LINES,
    RanWith,
    SinceLastGood,
    changes_since,
    images_of,
    new_lines,
)
from allaboard.testing import a_member


def test_the_job_is_compared_field_by_field_and_secrets_are_not_shown() -> None:
    good = {"image": "lab/train@sha256:aa", "environment": {"LR": "0.1", "API_TOKEN": "qqqq1"}}
    now = {"image": "lab/train@sha256:bb", "environment": {"LR": "0.3", "API_TOKEN": "zzzz2"}, "workers": 2}
    found = changes_since(RanWith(good), RanWith(now))
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
    assert [*changes_since(RanWith(code={"train.py": before}), RanWith(code={"train.py": after}))] == words


def test_files_come_and_go_and_unknown_code_says_nothing() -> None:
    assert [
        *changes_since(RanWith(code={"a.py": "", "b.py": ""}), RanWith(code={"b.py": "", "c.py": ""}))
    ] == [
        "a.py: is gone",
        "c.py: is new",
    ]
    assert changes_since(RanWith(), RanWith(code={"a.py": "x"})) == ()


def test_many_changes_are_counted() -> None:
    many = {f"f{n}.py": "x" for n in range(MOST_CHANGES + 5)}
    found = changes_since(RanWith(code=many), RanWith(code={name: "y" for name in many}))
    assert len(found) == MOST_CHANGES + 1 and found[-1] == "and 5 more changes"


def test_an_image_that_means_other_bytes_is_told_by_its_digest() -> None:
    a, b, c = ("sha256:" + letter * 64 for letter in "abc")
    before = [a_member("master-0", image=a), a_member("worker-0", image=c)]
    after = [a_member("master-0", image=b), a_member("worker-0", image=c)]
    good, now = images_of(before), images_of([*after, a_member("worker-1")])
    assert changes_since(RanWith(images=good), RanWith(images=now)) == (
        "image of master: other content under the same name, sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb",
    )
    other = changes_since(RanWith({"image": "a:1"}, images=good), RanWith({"image": "a:2"}, images=now))
    assert other == ('image: "a:1" -> "a:2"',), "the name says it already"
    assert changes_since(RanWith(images=good), RanWith()) == (), "no node has told it"


def test_versions_and_data_are_compared_as_far_as_both_runs_told_them() -> None:
    good = {"torch": "2.14.0", "numpy": "2.3.0", "scipy": "1.0", "data s3://lab/shards": "content:v1:aa"}
    now = {"torch": "2.15.0", "numpy": "2.3.0", "pandas": "3.0", "data s3://lab/shards": "content:v1:bb"}
    assert changes_since(RanWith(inputs=good), RanWith(inputs=now)) == (
        "torch: 2.14.0 -> 2.15.0",
        "data s3://lab/shards: other content",
    )
    assert changes_since(RanWith(inputs=good), RanWith()) == ()


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

"""The line between a training process and its follower: what is written is what is read, also from others."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import asdict

import pytest

from allaboard.follow.progress import add_flags, add_report, flags_of, progress_of
from allaboard.runs.observation import Observation, Progress
from allaboard.runs.status import summary
from allaboard.text.reportline import PREFIX, Report, decode, encode


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
        PREFIX + '{"v":1,"kind":"result","metrics":{"a":' + "[" * 500 + "]" * 500 + "}}",
        PREFIX + '{"v":1,"kind":"progress","step":1,"loss":"\\ud800"}',
        PREFIX + '{"v":1,"kind":"flag","code":"x","text":"a\\u0000b"}',
        PREFIX + '{"v":1,"kind":"progress","step":' + "9" * 4300 + "}",
        PREFIX + '{"v":' + "9" * 5000 + ',"kind":"progress","step":1}',
        PREFIX + '{"v":true,"kind":"progress","step":1}',
        PREFIX + '{"v":1,"kind":["progress"],"step":1}',
        PREFIX + '{"v":1,"kind":"progress","step":true}',
        PREFIX + '{"v":1,"kind":"progress","step":1e308}',
        PREFIX + '{"v":1,"kind":"progress","step":NaN}',
        PREFIX + '{"v":1,"kind":"progress","step":-1}',
        PREFIX + '{"v":1,"kind":"progress","step":"7"}',
        PREFIX + '{"v":1,"kind":"progress","step":1,"total":Infinity}',
        PREFIX + '{"v":1,"kind":"progress","step":1,"step":2}',
        PREFIX + '{"v":1,"kind":"checkpoint","uri":["/a"]}',
        PREFIX + '{"v":1,"kind":"result","metrics":[1]}',
        PREFIX + '{"v":1,"kind":"flag","code":7,"text":"x"}',
        PREFIX + '{"v":1,"kind":"flag","code":"a b\\n","text":"x"}',
        PREFIX + '{"v":1,"kind":"flag","code":"x","text":"' + "y" * 70_000 + '"}',
        PREFIX + '{"v":1,"kind":"result","metrics":{' + ",".join(f'"m{n}":1' for n in range(50_000)) + "}}",
    ],
)
def test_other_lines_are_no_reports(line: str) -> None:
    assert decode(line) is None


def test_no_bytes_that_a_member_prints_raise_anything() -> None:
    """Mutations of real lines and lines of hostile parts, through all that a follower does with them."""
    dice = random.Random(20261122)
    real = [
        encode("progress", step=3, total=10, loss=0.5, note="ä"),
        encode("resumed", step=2, source="/a"),
        encode("checkpoint", step=3, uri="/own/step-3", metrics={"loss": 1.0}, best=True),
        encode("result", metrics={"a": [1, {"b": math.nan}]}),
        encode("flag", code="odd", text="words"),
    ]
    parts = [
        '"\\ud800"',
        "[" * 400,
        "1e999",
        "-0",
        "NaN",
        "9" * 4301,
        '"\\u0000"',
        "null",
        "true",
        "{}",
        '"",',
        "}",
        '"',
    ]
    progress, flags = Progress(), {}
    for _ in range(4_000):
        line = dice.choice(real)
        for _ in range(dice.randrange(4)):
            at = dice.randrange(len(line))
            if dice.random() < 0.5:
                line = line[:at] + dice.choice(parts) + line[at + dice.randrange(6) :]
            else:
                line = re.sub(r"(?<=:)[^,:{}]+", lambda m: dice.choice([m[0], *parts]), line)
        raw = bytearray(line.encode())
        for _ in range(dice.randrange(3)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        report = decode(raw.decode("utf-8", "replace"))
        if report is not None:
            flags |= add_flags(flags, flags_of(report, progress, "/own"))
            progress = add_report(progress, report, 1.0, "/own")
        seen = Observation("run", progress=progress, flags=tuple(flags))
        if report is not None:
            json.dumps(summary(seen), allow_nan=False).encode()
    assert progress_of(asdict(progress)) == progress

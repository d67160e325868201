"""The flags of a run beside its checkpoints, which anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allaboard.checkpoints.flags import FLAGS, RunFlags, decode_flags, handed_flags, read_flags
from allaboard.storage import open_store


def test_flags_are_read_as_they_were_written(tmp_path: Path) -> None:
    flags = RunFlags(
        "r-1", "succeeded", {"nan_loss": "step 3: loss", "slow_rank": ""}, 2, 1, "2026-11-27T08:00:00Z"
    )
    (tmp_path / FLAGS).write_bytes(flags.encode())
    assert read_flags(open_store(tmp_path)) == flags
    assert flags.serious == {"nan_loss": "step 3: loss"}


@pytest.mark.parametrize("code", ["rendezvous_never_happened", "gang_unschedulable", "clock_training_idle"])
def test_where_a_run_was_says_nothing_of_its_model(code: str) -> None:
    assert not RunFlags("r-1", "succeeded", {code: "no process ever listened at 127.0.0.1:2000"}).serious
    assert RunFlags("r-1", "succeeded", {"success_doubtful": "", code: ""}).serious == {
        "success_doubtful": ""
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"flags": []}',
        '{"flags": null}',
        "\0",
        "[" * 10_000,
        '{"flags": {"a": 1}',
        "x" * (1 << 22),
    ],
    ids=range(9),
)
def test_what_is_no_file_of_flags_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FLAGS).write_text(text)
    assert read_flags(open_store(tmp_path)) is None


def test_text_of_others_is_bounded_and_visible() -> None:
    body = {
        "run": 3,
        "state": "succeeded",
        "attempt": True,
        "flags": {"a": "\x1b[31m" + "x" * 9999, "b c": "", "d": 7},
    }
    read = decode_flags(json.dumps(body).encode())
    assert read is not None and [*read.flags] == ["a", "d"] and read.run == "" and read.attempt == 1
    assert "\x1b" not in read.flags["a"] and len(read.flags["a"]) <= 500 and read.flags["d"] == ""


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert read_flags(open_store(tmp_path)) is None
    assert read_flags(open_store(tmp_path / "absent")) is None


STATUS = {
    "run": "r-1", "state": "succeeded", "attempt": 2, "finished": "2026-11-27T08:00:00.000Z",
    "flags": ["nan_loss", "slow_rank"],
    "diagnoses": [{"code": "nan_loss", "summary": "the loss is NaN"}, "x"],
}  # fmt: skip


def test_flags_that_a_step_hands_on_stand_in_for_the_file_and_never_before_it(tmp_path: Path) -> None:
    handed = handed_flags(STATUS)
    assert handed == RunFlags(
        "r-1", "succeeded", {"nan_loss": "the loss is NaN", "slow_rank": ""}, 2, 1, "2026-11-27T08:00:00.000Z"
    )
    assert read_flags(open_store(tmp_path), handed) == handed
    assert handed_flags({"run": "r-1", "flags": []}) == RunFlags("r-1", "", {}), "it ended, and without any"
    kept = RunFlags("r-1", "succeeded", {})
    (tmp_path / FLAGS).write_bytes(kept.encode())
    assert read_flags(open_store(tmp_path), handed) == kept
    (tmp_path / FLAGS).write_text("{")
    assert read_flags(open_store(tmp_path), handed) == handed, "a damaged one says nothing"


@pytest.mark.parametrize(
    "result", [None, "text", [], {}, {"flags": None}, {"flags": "nan_loss"}, {"flags": {"a": "b"}}], ids=repr
)
def test_what_says_nothing_of_an_end_hands_no_flags_on(result: object) -> None:
    assert handed_flags(result) is None


def test_what_a_step_hands_on_is_bounded_and_visible() -> None:
    text = {"code": "a", "summary": "\x1b[31m" + "x" * 9999}
    read = handed_flags(
        {"run": 3, "flags": ["a", "b c", 7, *map(str, range(999))], "diagnoses": [text, {"code": []}]}
    )
    assert read is not None and read.run == "" and len(read.flags) <= 100 and "b c" not in read.flags
    assert "\x1b" not in read.flags["a"] and len(read.flags["a"]) <= 500

"""The doctor of a run that goes on: health is said on evidence alone, and its members are looked at."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.cli.terminal import Terminal, wait_for

SILENT = """
import time
def loads():
    while True:
        time.sleep(0.1)
loads()
"""
STEPS = """
import time
for step in range(10**6):
    print("step", step, "loss", 1 / (step + 1), flush=True)
    time.sleep(0.1)
"""
FAILING_SAVES = STEPS.replace(
    "time.sleep", 'print("WARNING: save failed: [Errno 28] No space left on device", flush=True); time.sleep'
)
NAN = STEPS.replace("1 / (step + 1)", "float('nan')")


def doctor(ab: Terminal, script: str) -> dict[str, Any]:
    """The first diagnosis of a run that has run for a little."""
    assert ab("run", ab.job(script), "--detach").code == 0

    def looked() -> dict[str, Any] | None:
        if script is not SILENT and ab("logs", "digits").out.count("step") <= 5:
            return None  # a trouble that was told once or twice is none yet
        body = ab("doctor", "digits", "--json").json
        return body["diagnoses"][0] if body["state"] == "running" else None

    try:
        return wait_for(looked)
    finally:
        ab("stop", "digits", "--now")


def test_a_silent_run_is_unknown_with_the_line_where_each_rank_is(ab: Terminal) -> None:
    top = doctor(ab, SILENT)
    assert top["code"] == "unknown" and "no member reports a step" in top["summary"]
    assert [e["object"] for e in top["evidence"]] == ["rank 0"] and "`loads`" in top["evidence"][0]["text"]


def test_steps_that_are_printed_now_are_healthy(ab: Terminal) -> None:
    assert doctor(ab, STEPS)["code"] == "healthy"


@pytest.mark.thorough(but=("script0",))
@pytest.mark.parametrize("script", [FAILING_SAVES, NAN])
def test_steps_beside_a_trouble_are_not(ab: Terminal, script: str) -> None:
    assert doctor(ab, script)["code"] != "healthy"

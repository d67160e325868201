"""Hostile jobs and command lines, a few of those of `make torture`: only our own words, within bounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")


def torture(root: Path, what: str, first: int, count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.torture.{what}", str(first), str(count)],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    last = done.stderr.rpartition("\r")[2][-2000:]
    assert done.returncode == 0, f"{done.stdout[-3000:]}\nended with {done.returncode} at: {last}"


@pytest.mark.parametrize("first", [0, 500])
def test_a_hostile_job_ends_in_a_job_or_in_a_sentence(root: Path, first: int) -> None:
    torture(root, "jobs", first, 500)


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, 10, 20])
def test_a_hostile_command_line_ends_with_a_documented_exit_code(root: Path, first: int) -> None:
    torture(root, "commands", first, 10)

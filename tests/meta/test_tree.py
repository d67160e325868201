"""The tree itself: nothing of one machine in it, nothing unfinished, every part with its licence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.source import DISTS, ROOT, tracked

LARGEST = 1_000_000
"""Bytes. Data sets and checkpoints are made, not kept."""
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")


def texts() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_bytes().decode(errors="replace") for path in tracked()}


def test_no_file_holds_a_path_of_this_machine() -> None:
    here = {str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix}
    # Too short to mean one machine alone: /usr is everywhere, and so is /root in images.
    here = {path for path in here if len(Path(path).parts) > 2}
    assert [(name, path) for name, text in texts().items() for path in here if f"{path}/" in text] == []


def test_nothing_is_marked_unfinished() -> None:
    assert [
        name
        for name, text in texts().items()
        if name.endswith((".py", ".yaml", ".toml")) and UNFINISHED.search(text)
    ] == []


def test_no_file_is_large() -> None:
    assert [str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > LARGEST] == []


def test_every_distribution_carries_the_same_licence() -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    assert licence.lstrip().startswith(b"Apache License")
    assert [d.name for d in DISTS if (d.folder / "LICENSE").read_bytes() != licence] == []


def test_files_of_tests_say_what_they_test() -> None:
    """pytest collects ``test_*.py`` alone: another name would be skipped in silence."""
    python = [path for path in tracked() if path.suffix == ".py" and ROOT / "tests" in path.parents]
    strays = [
        path for path in python if not path.name.startswith("test_") and "def test_" in path.read_text()
    ]
    assert strays == []


@pytest.mark.thorough
def test_every_test_of_the_cluster_can_be_collected() -> None:
    """They run by themselves, and later."""
    command = [sys.executable, "-m", "pytest", "tests/cluster", "--e2e", "--collect-only", "-q"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:]

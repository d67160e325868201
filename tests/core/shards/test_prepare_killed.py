"""Preparations killed with -9: nothing torn is ever seen, and the next call ends with the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.core.s3server import S3Server

SCRIPT = Path(__file__).with_name("killing.py")

every_kind = pytest.mark.parametrize("kind", ["files", "iterable"])


def killing(*arguments: object, **environ: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert seen["problems"] == []
    return seen


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.thorough)])
@every_kind
def test_killed_before_any_change_of_the_file_system(kind: str, every: int, tmp_path: Path) -> None:
    """Or before one in four."""
    seen = killing("points", kind, tmp_path, every)
    assert seen["killed"] >= 60 // every
    assert seen["continued"] >= 20 // every


@pytest.mark.thorough
@every_kind
def test_killed_again_and_again_at_the_same_place(kind: str, tmp_path: Path) -> None:
    assert killing("chain", kind, tmp_path)["killed"] >= 10


@pytest.mark.thorough
@every_kind
def test_killed_at_random_moments(kind: str, tmp_path: Path) -> None:
    assert killing("random", kind, tmp_path, 60)["killed"] >= 60


@pytest.mark.slow
@pytest.mark.thorough
@every_kind
def test_killed_before_any_request_to_a_bucket(kind: str, tmp_path: Path, moto: S3Server) -> None:
    seen = killing("bucket", kind, f"s3://{moto.make_bucket()}/data", tmp_path, **moto.environ)
    assert seen["killed"] >= 12
    assert seen["continued"] >= 5

"""A machine of its own for every test: home and pool in temporary folders; nothing of a run is left at the
end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.folders import RunFolder
from allaboard.backends.local.procs import sweep
from allaboard.backends.local.records import read


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    """A local backend in temporary folders. Whatever still lives at the end is killed, and named if it should
    not.
    """
    environ = {
        **os.environ,
        "ALLABOARD_HOME": str(tmp_path / "home"),
        "ALLABOARD_POOL": str(tmp_path / "pool"),
    }
    made = LocalBackend(environ)
    yield made
    for path in made.runs.iterdir():
        record = read(RunFolder(path))
        if record is not None:
            sweep(record.uid)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the scripts of a test live."""
    made = tmp_path / "work"
    made.mkdir()
    return made

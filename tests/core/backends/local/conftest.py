"""A machine of its own for every test: home and pool in temporary folders; nothing of a run is left at the
end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.processes import kill_run
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.state.records import read_record
from tests.core.backends.local.helpers import wait_for


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
    for path in made.runs.glob("*"):
        run = RunFolder(path)
        record = read_record(run)
        if record is None:
            continue
        attempt = run.attempt(record.generation, record.attempt)
        attempt.write_request(
            "end", {"do": "stop", "by": "test", "reason": "its end", "at": 0.0, "kill": True}
        )
        wait_for(lambda attempt=attempt: not attempt.is_live())  # type: ignore[misc]
        kill_run(record.uid)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the scripts of a test live."""
    made = tmp_path / "work"
    made.mkdir()
    return made

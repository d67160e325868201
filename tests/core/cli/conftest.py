from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.cli.terminal import Terminal, a_terminal


@pytest.fixture
def ab(tmp_path: Path) -> Iterator[Terminal]:
    """``ab("run", "job.json")`` is ``allaboard run job.json``."""
    with a_terminal(tmp_path) as terminal:
        yield terminal

"""The older allaboard is that of ``make adoption FROM=COMMIT``; without one these tests skip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.adoption.older import Older, older_or_skip
from tests.core.cli.terminal import Terminal, a_terminal


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Older:
    """The older allaboard."""
    return older_or_skip(tmp_path_factory.mktemp("older"))


@dataclass
class OlderTerminal(Terminal):
    """Types to the older command."""

    python: str = ""

    def command(self, *words: str) -> list[str]:
        return [self.python, "-m", "allaboard", *words]


@pytest.fixture
def now(tmp_path: Path, before: Older) -> Iterator[Terminal]:
    """A terminal with the allaboard of this checkout."""
    with a_terminal(tmp_path) as terminal:
        yield terminal


@pytest.fixture
def then(now: Terminal, before: Older) -> Iterator[Terminal]:
    """The same folder, home and pool, and the older allaboard."""
    environ = {**now.environ, "PATH": before.environ["PATH"]}
    terminal = OlderTerminal(now.folder, environ, python=str(before.python))
    try:
        yield terminal
    finally:
        for process in terminal.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

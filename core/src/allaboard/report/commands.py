"""Command lines that continue with a run, ready to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextvars import ContextVar

_OPTIONS: ContextVar[tuple[str, ...]] = ContextVar("options", default=())


def set_place_options(options: Sequence[str]) -> None:
    """Set the place options that `command` adds in this context: ``["--context", "lab"]``.

    Each command line runs in a context of its own (`allaboard.cli.main`).
    """
    _OPTIONS.set(tuple(options))


def command(words: str) -> str:
    """A command line of allaboard with the place options of this context."""
    return " ".join(["allaboard", words, *map(shlex.quote, _OPTIONS.get())])

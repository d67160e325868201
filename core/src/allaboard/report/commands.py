"""Command lines to go on with, as people can paste them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextvars import ContextVar

_OPTIONS: ContextVar[tuple[str, ...]] = ContextVar("options", default=())


def set_place_options(options: Sequence[str]) -> None:
    """From here on this process works at the place that these options name: ``["--context", "lab"]``."""
    _OPTIONS.set(tuple(options))


def command(words: str) -> str:
    """A command line to go on with, at the place where this process works; without a word, where the
    environment says.
    """
    return " ".join(["allaboard", words, *map(shlex.quote, _OPTIONS.get())])

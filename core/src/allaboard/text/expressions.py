"""A regular expression that a person wrote, bounded in time: `regex` stops a search that takes too long,
whatever the expression and the text are. Python's own ``re`` may go on for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

LONGEST = 2000
"""Characters of a text that are searched."""
MOST = 1000
"""Characters of an expression."""
SECONDS = 0.05
"""The longest search."""


def trouble_with(text: str, group: str) -> str | None:
    """Trouble with an expression that needs a group of this name, as the rest of a sentence; None:
    nothing.
    """
    if not text or len(text) > MOST:
        return f"has {len(text)} characters; 1 to {MOST} are allowed"
    try:
        groups = _compile(text).groupindex
    except ValueError as error:
        return f"is no regular expression: {error}"
    return None if group in groups else f"has no group named {group}; write (?P<{group}>...) where it stands"


def compiled(text: str, group: str) -> Any | None:
    """The expression, for `search`; None for one that has trouble."""
    return None if trouble_with(text, group) is not None else _compile(text)


def search(expression: Any, text: str) -> Mapping[str, str | None] | None:
    """The named groups of the first place that matches; None where none does. Raises TimeoutError after
    `SECONDS`.
    """
    match = expression.search(text[:LONGEST], timeout=SECONDS)
    return None if match is None else match.groupdict()


@lru_cache(64)
def _compile(text: str) -> Any:
    import regex

    try:
        return regex.compile(text)
    except (regex.error, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from None

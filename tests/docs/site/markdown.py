"""Pieces of Markdown. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; cells may hold Markdown, and hold it in one line."""
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
        "",
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def fenced(text: str, language: str = "text") -> list[str]:
    """A block of code, whatever backticks are in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}{language}", text.rstrip("\n"), fence, ""]


def code(text: str) -> str:
    """``text`` as code within a line."""
    return f"``{text}``" if "`" in text else f"`{text}`"


def contents(pages: Iterable[str], *, hidden: bool = True) -> list[str]:
    """The tree of pages below this one, for the site's navigation."""
    return [
        "```{toctree}",
        *([":hidden:"] if hidden else []),
        ":maxdepth: 1",
        "",
        *pages,
        "```",
        "",
    ]

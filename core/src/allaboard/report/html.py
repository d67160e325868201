"""Pieces of a page: HTML out of values. Values in, text out.

Text from outside goes through `escape`; docstrings name the arguments that are HTML already.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from allaboard._version import __version__
from allaboard.printable import visible
from allaboard.redaction import redact_text
from allaboard.report import words

NONE = "\N{EN DASH}"


def escape(text: str) -> str:
    """Escape text from outside for a page: no markup, no secret, no invisible characters."""
    return html.escape(visible(redact_text(text), newlines=True, tabs=True))


def head(kicker: str, title: str, state: str, tone: str, lead: str) -> str:
    return (
        f'<header class="{tone}"><p class="kicker">{escape(kicker)}</p>'
        f'<h1>{escape(title)} <span class="badge {tone}">{escape(state)}</span></h1>'
        f'<p class="lead">{escape(lead)}</p></header>'
    )


def section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """``rows`` are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def definitions(facts: Iterable[tuple[str, Any]]) -> str:
    rows = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in facts)
    return f'<dl class="facts">{rows}</dl>'


def is_number(name: str, value: Any) -> bool:
    return name != words.SPEED and isinstance(value, (int, float)) and not isinstance(value, bool)


_CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load for a page: nothing but the styles in it."""


def meta(name: str, content: str) -> str:
    return f'<meta name="{escape(name)}" content="{escape(content)}">'


GENERATOR = "allaboard"
"""The generator in the head of a page: such a file may be overwritten."""


def page(title: str, parts: Iterable[str], about: Mapping[str, str] | None = None) -> str:
    """A whole page. ``parts`` are HTML already; ``about``: metadata for its head, by name."""
    style = resources.files("allaboard.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(part for part in parts if part)
    facts = {"generator": GENERATOR, **(about or {}), "viewport": "width=device-width,initial-scale=1"}
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_CONTENT_POLICY}">'
        f"{''.join(meta(name, text) for name, text in facts.items())}"
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main>{body}\n"
        f"<footer>allaboard {escape(__version__)}</footer></main></body></html>\n"
    )

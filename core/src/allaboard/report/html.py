"""Pieces of a page: HTML out of values. Values in, text out.

Text from outside goes through `escape`; docstrings name the arguments that are HTML already.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from allaboard import __version__
from allaboard.text.printable import visible
from allaboard.text.redaction import redact_text

NONE = "\N{EN DASH}"


def escape(text: str) -> str:
    """Escape text from outside for a page: no markup, no secret, no invisible characters."""
    return html.escape(visible(redact_text(text), newlines=True, tabs=True))


_COMMAND = re.compile(r"`([^`\n]+)`")


def prose(text: str) -> str:
    """A sentence from outside, with what stands in backticks as code."""
    return _COMMAND.sub(r"<code>\1</code>", escape(text))


def head(kicker: str, title: str, state: str, tone: str, lead: str, *, live: bool = False) -> str:
    """The head of a page; without a badge where there is no ``state``. ``live``: it changes by itself."""
    kicker_ = escape(kicker) + (' <span class="live">live</span>' if live else "")
    badge = f' <span class="badge {tone}">{escape(state)}</span>' if state else ""
    return (
        f'<header class="{tone}"><p class="kicker">{kicker_}</p>'
        f"<h1>{escape(title)}{badge}</h1>"
        f'<p class="lead">{escape(lead)}</p></header>'
    )


def nothing(title: str, text: str) -> str:
    """A polite word where there is nothing to show."""
    return f'<div class="nothing"><b>{escape(title)}</b><p>{escape(text)}</p></div>'


def section(title: str, body: str) -> str:
    return f'<section data-part="{escape(title)}"><h2>{escape(title)}</h2>{body}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """``rows`` are HTML already; ``kind``: a CSS class, ``figures`` for numbers alone."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    begin = f'<div class="wide"><table class="{kind}">' if kind else '<div class="wide"><table>'
    return f"{begin}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def definitions(facts: Iterable[tuple[str, Any]]) -> str:
    rows = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in facts)
    return f'<dl class="facts">{rows}</dl>'


_NO_SCRIPT = "default-src 'none'; style-src 'unsafe-inline'"
"""The parts that a browser may load for a page: its own styles alone."""
_LIVE = f"{_NO_SCRIPT}; connect-src 'self'; base-uri 'none'; form-action 'none'"


def meta(name: str, content: str) -> str:
    return f'<meta name="{escape(name)}" content="{escape(content)}">'


GENERATOR = "allaboard"
"""The generator in the head of a page: such a file may be overwritten."""


def page(
    title: str, parts: Iterable[str], about: Mapping[str, str] | None = None, *, script: bool = False
) -> str:
    """A whole page, one file. ``parts`` are HTML already; ``about``: metadata for its head, by name;
    ``script``: with the script of charts, the only one that a browser may run in it.
    """
    body = "\n".join(part for part in parts if part)
    footer = f"<footer>allaboard {escape(__version__)}</footer>"
    code = _file("page.js") if script else ""
    return _document(title, about or {}, f"<main>{body}\n{footer}</main>", code, _NO_SCRIPT)


def live_page(title: str, content: str, address: str, every: float | None) -> str:
    """A page in a frame of another page of the same server, which changes by itself. ``content``: its HTML;
    ``address``: where the next one is asked for, as JSON with the fields ``title``, ``main`` (the HTML) and
    ``every``: after how many seconds, None for never.
    """
    main = f'<main data-live="{escape(address)}" data-every="{every or 0:g}">{content}</main>'
    return _document(title, {}, main, _file("page.js") + _file("live.js"), _LIVE)


def _document(title: str, about: Mapping[str, str], main: str, code: str, policy: str) -> str:
    facts = {"generator": GENERATOR, **about, "viewport": "width=device-width,initial-scale=1"}
    policy += f"; script-src '{_hash(code)}'" if code else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"{''.join(meta(name, text) for name, text in facts.items())}"
        f"<title>{escape(title)}</title><style>{_file('page.css')}</style></head>\n"
        f"<body>{main}" + (f"<script>{code}</script>" if code else "") + "</body></html>\n"
    )


def _file(name: str) -> str:
    return resources.files("allaboard.report").joinpath(name).read_text(encoding="utf-8")


def _hash(code: str) -> str:
    """The name of a script in a content policy: the hash of its text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()

"""Saying things: lines for people, objects for machines, and what to do when nobody listens any more.

Here is the edge of the terminal. Whatever is said is made of foreign words as well (names, uris, logs, other
people's runs, servers' sentences), so everything that goes through here leaves without secrets and with its
control characters visible; colours are put in as `style` marks them, and no other way.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from allaboard.printable import visible, visible_json
from allaboard.redaction import redact_text, redact_texts


def say(text: str = "", *, error: bool = False, to_stderr: bool = False) -> None:
    """A line for people on stdout; an error, which may have several, goes to stderr, and so do lines beside a
    JSON object. A terminal that went away is no reason to fail."""
    aside = error or to_stderr
    line = f"{style('error:', 'red', bold=True)} {text}" if error else text
    try:
        click.echo(
            coloured(shown(line, lines=error), supports_colour(aside)),
            err=aside,
            color=supports_colour(aside),
        )
    except BrokenPipeError:
        if aside:
            return
        raise
    except OSError:
        return


def shown(text: str, *, lines: bool = False) -> str:
    """``text`` as it may be printed; ``lines``: it may have several."""
    return visible(redact_text(text), newlines=lines, tabs=True)


# The marks of a colour, from Unicode's private use: `visible` lets them pass, and whoever else writes them
# gets a colour and nothing more.
_BEGINS, _IS, _ENDS = "\uf8f0", "\uf8f1", "\uf8f2"
_STYLED = re.compile(f"{_BEGINS}([a-z_]*)(!?){_IS}|{_ENDS}")


def style(text: str, colour: str = "", bold: bool = False, dim: bool = False) -> str:
    """``text`` marked to be printed in a colour of click's, or dim."""
    return f"{_BEGINS}{'dim' if dim else colour}{'!' if bold else ''}{_IS}{text}{_ENDS}"


def coloured(text: str, with_colour: bool) -> str:
    """``text`` with its marks turned into what a terminal understands, or taken out."""
    return _STYLED.sub(lambda mark: _ansi_code(mark) if with_colour else "", text)


def _ansi_code(mark: re.Match[str]) -> str:
    if mark[1] is None:
        return "\x1b[0m"
    colour, dim = (None, True) if mark[1] == "dim" else (mark[1] or None, None)
    try:
        return click.style("", fg=colour, bold=mark[2] == "!" or None, dim=dim, reset=False)
    except (TypeError, ValueError):  # somebody else's mark
        return ""


def show_json(value: Any, *, exact: bool = False) -> None:
    """The one JSON object of a verb, on stdout. ``exact``: with its secrets, for what is to be sent."""
    text = json_value(value) if exact else json_value(redact_texts(value))
    click.echo(visible_json(json.dumps(text, ensure_ascii=False, indent=2, allow_nan=False)))


def show_json_line(value: Any) -> None:
    """One line of JSON Lines, on stdout, at once."""
    click.echo(json_line(value))


def json_line(value: Any) -> str:
    text = json_value(value)
    return visible_json(json.dumps(text, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def json_value(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(v) for v in value]
    return value


def supports_colour(stderr: bool = False) -> bool:
    """Whether colours are welcome there: on a terminal, unless NO_COLOR is set."""
    stream = sys.stderr if stderr else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def progress_bar(
    what: str, show: Callable[[int], str], *, aside: bool
) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on stderr for a person at a terminal, silence elsewhere. Yields what takes (done, in
    all)."""
    if aside or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    import time

    began, width, drawn = time.monotonic(), 30, 0

    def moved(done: int, total: int | None) -> None:
        nonlocal drawn
        share = min(1.0, done / total) if total else 0.0
        filled = f"{'━' * round(share * width):<{width}}" if total else "·" * width
        pace = done / max(1e-3, time.monotonic() - began)
        amount = f"{show(done)} of {show(total)}" if total else show(done)
        line = f"{what}  {filled}  {amount}, {show(round(pace))}/s"
        click.echo(f"\r{line:<{drawn}}", nl=False, err=True)
        drawn = len(line)

    try:
        yield moved
    finally:
        if drawn:
            click.echo(f"\r{'':<{drawn}}\r", nl=False, err=True)


class Ink:
    """Colours, where they are wanted."""

    def __init__(self, with_colour: bool) -> None:
        self.wanted = with_colour

    def __call__(self, text: str, colour: str, bold: bool = False) -> str:
        return style(text, colour, bold) if self.wanted else text


def silence_stdout() -> None:
    """Nobody reads stdout any more: let the rest of this process write to nowhere, and end without a
    complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())

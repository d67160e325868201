"""Output: lines for people, JSON objects for machines, and closed pipes.

All output passes through this module, because it contains text from outside (names, uris, logs, foreign jobs,
messages of servers). Secrets are removed and control characters are made visible. Only `style` adds colours.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from allaboard.text.printable import visible, visible_json
from allaboard.text.redaction import redact_text, redact_texts

WARNING = "warning: "
"""Before what nobody may overlook."""

_hidden: set[str] = set()


def hide(secrets: Iterable[str]) -> None:
    """From now on nothing that this process prints shows these values: those of the runs that it tells of, by
    `Backend.secrets_of`. Text of a member may hold them anywhere, in any spelling.
    """
    _hidden.update(secrets)


def forget_hidden() -> None:
    """Forget the values of `hide`: the next command line of this process tells of other runs."""
    _hidden.clear()


def say(text: str = "", *, error: bool = False, to_stderr: bool = False) -> None:
    """Print a line for people on stdout. Errors, which may have several lines, go to stderr, as do lines
    beside a JSON object. A closed terminal is no error.
    """
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
    """``text`` made safe to print; ``lines``: it may have several lines."""
    return visible(redact_text(text, _hidden), newlines=lines, tabs=True)


# Colour marks from Unicode's private use area. `visible` keeps them; in text from outside they could only
# cause a colour.
_BEGINS, _IS, _ENDS = "\uf8f0", "\uf8f1", "\uf8f2"
_STYLED = re.compile(f"{_BEGINS}([a-z_]*)(!?){_IS}|{_ENDS}")


def style(text: str, colour: str = "", bold: bool = False, dim: bool = False) -> str:
    """``text`` marked to be printed in a colour of click's, or dim."""
    return f"{_BEGINS}{'dim' if dim else colour}{'!' if bold else ''}{_IS}{text}{_ENDS}"


def coloured(text: str, with_colour: bool) -> str:
    """``text`` with its marks replaced by escape sequences, or removed."""
    return _STYLED.sub(lambda mark: _ansi_code(mark) if with_colour else "", text)


def _ansi_code(mark: re.Match[str]) -> str:
    if mark[1] is None:
        return "\x1b[0m"
    colour, dim = (None, True) if mark[1] == "dim" else (mark[1] or None, None)
    try:
        return click.style("", fg=colour, bold=mark[2] == "!" or None, dim=dim, reset=False)
    except (TypeError, ValueError):  # a mark from outside
        return ""


def show_json(value: Any, *, exact: bool = False) -> None:
    """Print the one JSON object of a verb on stdout. ``exact``: keep secrets, for objects that
    will be sent.
    """
    text = json_value(value) if exact else json_value(redact_texts(value, _hidden))
    click.echo(visible_json(json.dumps(text, ensure_ascii=False, indent=2, allow_nan=False)))


def show_json_line(value: Any) -> None:
    """Print one line of JSON Lines on stdout, without secrets, and flush it."""
    click.echo(json_line(redact_texts(value, _hidden)))


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
    """True if the stream shows colours: a terminal, and NO_COLOR is not set."""
    stream = sys.stderr if stderr else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def progress_bar(
    label: str, show: Callable[[int], str], *, aside: bool
) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on stderr if it is a terminal, else nothing. Yields a function of (done, total)."""
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
        line = f"{label}  {filled}  {amount}, {show(round(pace))}/s"
        click.echo(f"\r{line:<{drawn}}", nl=False, err=True)
        drawn = len(line)

    try:
        yield moved
    finally:
        if drawn:
            click.echo(f"\r{'':<{drawn}}\r", nl=False, err=True)


class Ink:
    """Adds colours, if they are enabled."""

    def __init__(self, with_colour: bool) -> None:
        self.wanted = with_colour

    def __call__(self, text: str, colour: str, bold: bool = False) -> str:
        return style(text, colour, bold) if self.wanted else text


def silence_stdout() -> None:
    """Redirect stdout to /dev/null after its reader is gone, so that the process ends without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())

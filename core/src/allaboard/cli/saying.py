"""Saying things: lines for people, objects for machines, and what to do when nobody listens any more."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click


def say(text: str = "", *, error: bool = False, to_stderr: bool = False) -> None:
    """A line for people on stdout; an error goes to stderr, and so do lines beside a JSON object. A terminal
    that went away is no reason to fail."""
    line = f"{click.style('error:', fg='red', bold=True)} {text}" if error else text
    aside = error or to_stderr
    try:
        click.echo(line, err=aside, color=colours(aside))
    except BrokenPipeError:
        if aside:
            return
        raise
    except OSError:
        return


def show(value: Any) -> None:
    """The one JSON object of a verb, on stdout."""
    click.echo(json.dumps(plain(value), ensure_ascii=False, indent=2, allow_nan=False))


def show_line(value: Any) -> None:
    """One line of JSON Lines, on stdout, at once."""
    click.echo(as_json_line(value))


def as_json_line(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def colours(stderr: bool = False) -> bool:
    """Whether colours are welcome there: on a terminal, unless NO_COLOR is set."""
    stream = sys.stderr if stderr else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def bar(what: str, show: Callable[[int], str], *, aside: bool) -> Iterator[Callable[[int, int | None], None]]:
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

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def __call__(self, text: str, colour: str, bold: bool = False) -> str:
        return click.style(text, fg=colour, bold=bold) if self.wanted else text


def silence() -> None:
    """Nobody reads stdout any more: let the rest of this process write to nowhere, and end without a
    complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())

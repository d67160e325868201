"""``allaboard progress``: what a follower would see of the progress in a log. It reads the log once, in
pieces, by the reader that follows runs.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from allaboard.report.terminal import say, show_json_line

EPILOG = """\b
Examples:
  allaboard progress train.log
  python train.py 2>&1 | allaboard progress - --json

A job's own way to print is its field `progress` (`allaboard explain progress`).
Exit code 0, progress or not; 2 for what is no log: a missing file, a folder, bytes that are no text.
"""
PIECE = 1 << 20
LONGEST = 1 << 17
"""Bytes of a line that are read."""


@click.command(epilog=EPILOG)
@click.argument("file", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines on stdout and nothing else.")
def progress(file: str, as_json: bool) -> int:
    """Show the progress that would be seen in a log (-: stdin): step, epoch and metrics of each line
    that surely tells some, and whose format that is."""
    from allaboard.follow.printed import ProgressReader
    from allaboard.job.loader import display_name
    from allaboard.report.phrases import number, step_phrase

    reader, name = ProgressReader(), display_name(file)
    size = count = torn = 0
    format: str | None = None
    with _opened(file, name) as stream:
        for line, data in _candidates(stream, name, reader):
            size = line
            torn += data is not None and _is_torn(data)
            text = "" if data is None else data.decode("utf-8", "replace")
            for report in reader.read(text):
                if report.kind != "progress":
                    continue
                count += 1
                values = _progress(report.fields)
                if as_json:
                    show_json_line({"line": line, **values})
                    continue
                if report.printed != format:
                    format = report.printed
                    say(f"progress: as {f'{format} prints' if format else 'the script reports'} it")
                parts = [step_phrase(values["step"], values["total"])]
                parts += [f"epoch {values['epoch']:g}"] if values["epoch"] is not None else []
                parts += [f"{key} {number(value)}" for key, value in values["metrics"].items()]
                say(f"line {line}: {', '.join(part for part in parts if part)}")
    if as_json:
        return 0
    if size == 0:
        say(f"{name} is empty: there is no line to read")
    elif count == 0:
        say(
            f"{name} holds no progress that is known; "
            "the field `progress` of a job says how its script prints it"
        )
    if torn:
        say(f"{name} is not UTF-8 text in every line; what could not be read is left out", to_stderr=True)
    return 0


def _progress(fields: Any) -> dict[str, Any]:
    """Progress of a line, by the names that the log uses."""
    counts = {key: fields.get(key) for key in ("step", "total", "epoch")}
    metrics = {
        key: value
        for key, value in fields.items()
        if key not in {*counts, "steps_per_second"} and (value is None or isinstance(value, (int, float)))
    }
    return {**counts, "metrics": metrics, "steps_per_second": fields.get("steps_per_second")}


def _is_torn(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


@contextmanager
def _opened(file: str, name: str) -> Iterator[BinaryIO]:
    """The bytes of a file or of stdin. Raises BadInput for what cannot be opened."""
    from allaboard.errors import BadInput

    if file == "-" and (sys.stdin is None or sys.stdin.closed):
        raise BadInput("stdin is closed; pipe a log into it, or name a file")
    try:
        stream: BinaryIO = sys.stdin.buffer if file == "-" else Path(file).open("rb")  # noqa: SIM115  (closed below)
    except FileNotFoundError:
        raise BadInput(f"{name}: no such file; name a log, or - for stdin") from None
    except IsADirectoryError:
        raise BadInput(f"{name} is a folder; name a log in it") from None
    except PermissionError:
        raise BadInput(f"{name} may not be read by this user") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        yield stream
    finally:
        if file != "-":
            stream.close()


def _piece(stream: BinaryIO, name: str) -> bytes:
    from allaboard.errors import BadInput

    try:
        return stream.read1(PIECE) if isinstance(stream, io.BufferedReader) else stream.read(PIECE)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}") from None


def _candidates(stream: BinaryIO, name: str, reader: Any) -> Iterator[tuple[int, bytes | None]]:
    """(number, bytes) of the lines that may be progress, and at the end the number of all lines with None.
    Raises BadInput for bytes that are no text.
    """
    from allaboard.errors import BadInput

    done, rest = 0, b""
    while True:
        piece = _piece(stream, name)
        if done == 0 and not rest and b"\0" in piece[:4096]:
            raise BadInput(f"{name} is binary, no log: it holds NUL bytes; name a file of text")
        text = rest + piece
        end = text.rfind(b"\n") + 1 if piece else len(text)
        if not end and len(text) > LONGEST:
            end = len(text)
        rest = text[end:]
        at, number = 0, done
        for start, line in reader.candidates(text[:end]):
            number += text.count(b"\n", at, start)
            at = start
            yield number + 1, line
        done += text.count(b"\n", 0, end)
        if not piece:
            yield done + (1 if text and not text.endswith(b"\n") else 0), None
            return

"""Files that a person named: a job (YAML or JSON), metrics, a kubeconfig; and ``-``, which is stdin. Read
within bounds, whatever they are. Every way in which one cannot be read ends in one sentence with the place.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from allaboard.errors import BadInput
from allaboard.job.homes import expand_home
from allaboard.job.training_job import TrainingJob
from allaboard.text.names import nearest
from allaboard.text.untrusted import LIMITS, Limits, Unreadable, decode, parse_json, show

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"


def load(path: str | Path) -> TrainingJob:
    """The job in a file, or on stdin (``-``). Relative paths in it start at the file's folder. Raises
    `BadInput`.
    """
    return TrainingJob.of(parse(read_text(path), display_name(path)), folder=folder_of(path))


def folder_of(path: str | Path) -> str:
    """Folder in which relative paths of a job in this file start; for stdin the working directory."""
    if os.fspath(path) in _STREAMS:
        return str(Path.cwd())
    return str(job_folder(path).resolve().parent)


def names_a_file(text: str) -> bool:
    """True if a text that may be a job is the path of a job file."""
    text = text.strip()
    return text.endswith(SUFFIXES) and "\n" not in text


def display_name(path: str | Path) -> str:
    """Name of a file in messages."""
    return "stdin" if os.fspath(path) == STDIN else show(os.fspath(path), 200, quote=False)


def job_folder(path: str | Path) -> Path:
    """The path with ``~`` and ``~user`` resolved. Raises `BadInput` for a user without a home, and for what
    can be no path.
    """
    text = os.fspath(path)
    if "\0" in text:
        raise BadInput(f"{show(text)} is not a file name: it holds a NUL byte")
    try:
        file = expand_home(path)
        os.fsencode(file)
    except UnicodeEncodeError:
        raise BadInput(f"{show(text)} is not a file name") from None
    return file


def read_text(path: str | Path, limits: Limits = LIMITS) -> str:
    """The text of a file that a person named; ``-`` is stdin. Raises `BadInput` for what is no file, and for
    more bytes than ``limits`` allow; no more than those are ever read.
    """
    try:
        return decode(_read_file(path, limits), limits)
    except Unreadable as error:
        raise BadInput(f"{display_name(path)} {error}") from None


def first_bytes(path: str | Path, count: int) -> bytes:
    """The first bytes of a file that a person named; none of a pipe, which is read once. Raises `BadInput`
    for what is no file.
    """
    file = job_folder(path)
    if os.fspath(path) in _STREAMS or file.is_fifo():
        return b""
    return _read_file(path, Limits(size=sys.maxsize), count)


_STREAMS = (STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def _read_file(path: str | Path, limits: Limits, count: int | None = None) -> bytes:
    """The bytes of a file, or the first ``count`` of them."""
    if os.fspath(path) in _STREAMS:
        return _read_stdin(limits)
    file = job_folder(path)
    name = display_name(file)
    try:
        # Never block on a pipe without a writer, and never take over a terminal.
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | _NOT_WAITING)
        try:
            _check_kind(fd, file, name, limits)
            return _bytes_of(fd, limits) if count is None else os.read(fd, count)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise BadInput(f"{name}: no such file{_suggest_file(file)}") from None
    except IsADirectoryError:
        raise BadInput(f"{name} is a folder; name the job file in it") from None
    except PermissionError:
        raise BadInput(f"{name} may not be read by this user") from None
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}") from None


_NOT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


def _check_kind(fd: int, file: Path, name: str, limits: Limits) -> None:
    """Raises `BadInput` for what is not a file, and for one that is too large."""
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    if stat.S_ISFIFO(status.st_mode):
        # What a shell makes of <(command) is a pipe that is being written to.
        if not os.fspath(file).startswith(("/dev/fd/", "/proc/self/fd/")):
            raise BadInput(f"{name} is a pipe; name a file, or give - and pipe it into stdin")
        os.set_blocking(fd, True)
    elif not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{name} is a device; name a file, or give - for stdin")
    if status.st_size > limits.size:
        raise BadInput(f"{name} has {status.st_size:,} bytes; {limits.size:,} are allowed")


def _read_stdin(limits: Limits) -> bytes:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        if sys.stdin is None:
            raise BadInput("stdin is closed; pipe the text into it, or name a file")
        return sys.stdin.read(limits.size + 1).encode(errors="surrogatepass")
    try:
        return bytes(stream.read(limits.size + 1) or b"")
    except (OSError, ValueError) as error:
        raise BadInput(f"stdin cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _bytes_of(fd: int, limits: Limits) -> bytes:
    """All of it, or one byte more than is allowed."""
    data = bytearray()
    while len(data) <= limits.size:
        piece = os.read(fd, min(2**20, limits.size + 1 - len(data)))
        if not piece:
            break
        data += piece
    return bytes(data)


def parse(text: str, name: str) -> dict[str, Any]:
    """The mapping that the text says; ``name`` is what messages call it. Numbers know how they were spelled
    (`allaboard.text.untrusted`).
    """
    documents = parse_all(text, name)
    if len(documents) > 1:
        raise BadInput(f"{name} holds {len(documents)} documents; give one job per file")
    if not documents:
        raise BadInput(f"{name} is empty; `allaboard schema` says what a job may hold")
    value = documents[0]
    if not isinstance(value, dict) and text.startswith("#!"):
        raise BadInput(f"{name} is a script; `allaboard run {name}` makes a job of it, and prints that job")
    if not isinstance(value, dict):
        script = "; a script ends in .py or .sh, or begins with #!" if isinstance(value, str) else ""
        raise BadInput(
            f"{name} holds {kind_in_words(value)}; a job is a mapping of fields, like `name: digits`{script}"
        )
    return value


def parse_all(text: str, name: str) -> list[Any]:
    """The documents of a text, empty ones left out: the one of JSON, or those of YAML. What no file's name
    tells may be JSON, which YAML 1.1 does not read in every form. Raises `BadInput`.
    """
    from allaboard.text.untrusted_yaml import parse_yaml

    try:
        if name.endswith(".json"):
            return [value for value in [parse_json(text)] if value is not None]
        if not name.endswith(SUFFIXES) and text.lstrip().startswith("{"):
            try:
                return [parse_json(text)]
            except Unreadable as error:
                if not str(error).startswith("is not JSON"):
                    raise
        return parse_yaml(text)
    except Unreadable as error:
        raise BadInput(f"{name} {error}") from None


def kind_in_words(value: Any) -> str:
    """``a list``, ``text``: what a document is that is no mapping."""
    return {list: "a list", str: "text", int: "a number", float: "a number"}.get(
        type(value), "something else"
    )


def _suggest_file(file: Path) -> str:
    try:
        names = [p.name for p in file.parent.iterdir() if p.suffix in SUFFIXES]
    except OSError:
        return f"; the folder {display_name(file.parent)} is not there either"
    near = nearest(file.name, names)
    return f"; did you mean {display_name(file.with_name(near))}?" if near else ""

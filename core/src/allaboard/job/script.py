"""A script in the place of a job file: whether a file is a script, and the job that it stands for.

The ending decides first, then the first bytes:

- ``.yaml``, ``.yml``, ``.json`` and ``-``: a job;
- ``.py``: a script of Python; ``.sh``: of the shell that its first line names, else of sh;
- a first line ``#!``: a script of the interpreter named there;
- the bytes of an executable (ELF, Mach-O): a program;
- else a job, which may have any name.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from allaboard.errors import BadInput
from allaboard.job.loader import STDIN, SUFFIXES, display_name, first_bytes, job_folder, read_text
from allaboard.job.training_job import TrainingJob
from allaboard.text.names import as_job_name

_EXECUTABLES = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_BATCH = re.compile(rb"^#(SBATCH|PBS|BSUB|\$) ", re.MULTILINE)
_HEAD = 4096
"""Bytes of a file that decide what it is."""
_MODULES = 500
"""The most modules of its folder that are looked for among a script's imports."""


def starter_of(path: str) -> list[str] | None:
    """The words before the script's own name that start it (``[python]``; none for an executable); None for a
    job. Raises BadInput for a file that cannot be read, and for a script of a batch system.
    """
    if path == STDIN or path.endswith(SUFFIXES):
        return None
    head = first_bytes(path, _HEAD)
    name = display_name(path)
    if directive := _BATCH.search(head):
        raise BadInput(
            f"{name} asks a batch system for its resources ({directive[0].decode().strip()}), "
            "which allaboard does not read; run the script that it starts, like `allaboard run train.py -w 2`"
        )
    named = _named_interpreter(head)
    if path.endswith(".py"):
        return ["python"]
    if path.endswith(".sh"):
        return named or ["sh"]
    if head.startswith(_EXECUTABLES):
        return []
    return named


def _named_interpreter(head: bytes) -> list[str] | None:
    """The words of a first line ``#!``, those after env where it stands there; None without such a line."""
    if not head.startswith(b"#!"):
        return None
    try:
        command = shlex.split(head[2:].split(b"\n", 1)[0].decode())
    except ValueError:  # UnicodeDecodeError is one
        return None
    if command and command[0].rpartition("/")[2] == "env":
        command = [word for word in command[1:] if word not in ("-S", "--split-string") and "=" not in word]
    return command or None


def job_of_script(
    path: str, starter: Sequence[str], arguments: Sequence[str], *, workers: int, gpu: int, folder: Path
) -> TrainingJob:
    """The job that a script stands for.

    :param starter: of `starter_of`.
    :param folder: the working folder, from which the members start; for a script outside it, its own folder.

    The job ships the script and the modules beside it that it imports. With several GPUs a script of Python
    is started by torchrun, once for each.
    """
    script = job_folder(path).absolute()
    start = folder.absolute() if script.is_relative_to(folder.absolute()) else script.parent
    own = str(script.relative_to(start))
    runs_python = [*starter] == ["python"]
    before = ["torchrun"] if runs_python and gpu > 1 else [*starter]
    fields: dict[str, Any] = {
        "name": as_job_name(script.stem),
        "command": [*before, own if before or "/" in own else f"./{own}", *arguments],
        "workers": workers,
        "code": [own, *(modules_beside(script, start) if runs_python else ())],
    }
    if gpu:
        fields["resources"] = {"gpu": gpu}
    return TrainingJob(folder=str(start.resolve()), **fields)


def modules_beside(script: Path, start: Path) -> list[str]:
    """The files of the script's folder that it imports, directly or not, by their paths from ``start``.

    Imports are read, not run: what a module imports by a name that is computed is not among them.
    """
    files = [script]
    for file in files:
        if len(files) > _MODULES:
            break
        files += [module for module in dict.fromkeys(_imports(file, script.parent)) if module not in files]
    return [str(file.relative_to(start)) for file in files[1:]]


def _imports(file: Path, root: Path) -> Iterator[Path]:
    """The files below ``root`` that a file imports; none where it is not readable as Python."""
    try:
        tree = ast.parse(read_text(file))
    except (BadInput, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            if node.level > len(file.relative_to(root).parts):
                continue
            base = file.parents[node.level - 1] if node.level else root
            module = node.module.split(".") if node.module else []
            yield from _files_of(base, module)
            for alias in node.names:
                yield from _files_of(base, [*module, alias.name])


def _files_of(base: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The file of a module, and those of the packages around it."""
    for n in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:n])
        if (package := place / "__init__.py").is_file():
            yield package
        elif (module := place.with_name(f"{place.name}.py")).is_file():
            yield module


def without_script(path: str, given: Sequence[str]) -> BadInput:
    """The refusal of options that describe a script beside a job. ``given``: the options."""
    name = display_name(os.fspath(path))
    return BadInput(
        f"{', '.join(given)}: {name} is a job, which says its own command, workers and resources; write them "
        "there. A script ends in .py or .sh, begins with #!, or is an executable"
    )

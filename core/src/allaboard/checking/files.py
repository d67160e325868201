"""Checks a job on this machine: its fields (`allaboard.checking.job`), and the files that it ships. Files are
checked only if the folder of the job is known, and too large ones are not read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allaboard.checking.job import check as _check
from allaboard.errors import BadInput, Problem
from allaboard.job.training_job import CODE_LIMIT, TrainingJob, shipped_files
from allaboard.text.units import show_bytes
from allaboard.text.untrusted import show


def check(
    job: TrainingJob | Mapping[str, Any], *, lenient: bool = False, folder: str | None = None
) -> list[Problem]:
    """Every problem of a job, errors first. An empty list means that the job can be laid out. Nothing starts,
    and no backend is asked.

    :param job: a `TrainingJob`, or a mapping of its fields.
    :param lenient: take ``"4"`` and ``4.0`` for 4, as templating makes them.
    :param folder: where the relative paths of a mapping start; a `TrainingJob` has a folder of its own.
        Where the folder is known, the files of ``code`` must be there.
    """
    problems = _check(job, lenient=lenient)
    where = job.folder if isinstance(job, TrainingJob) else folder
    wrong = any(p.path.partition("[")[0] in ("", "code") and p.severity == "error" for p in problems)
    if where is None or wrong or not job.get("code") or isinstance(job.get("code"), Mapping):
        return problems
    problems += sizes_of_code(TrainingJob(folder=where, code=job.get("code")))[1]
    return sorted(problems, key=lambda p: p.severity != "error")


def sizes_of_code(job: TrainingJob) -> tuple[dict[str, int], list[Problem]]:
    """Bytes of each file that a checked job ships, and what is wrong with them: they are not there, are no
    files, or are more than fit.
    """
    folder = Path(job.folder or os.curdir)
    sizes: dict[str, int] = {}
    problems = []
    for n, name in enumerate(shipped_files(job)):
        try:
            status = (folder / name).stat()
        except FileNotFoundError:
            reason = f"is not there in {folder.absolute()}"
        except (OSError, ValueError) as error:
            reason = f"cannot be read in {folder.absolute()} ({getattr(error, 'strerror', None) or error})"
        else:
            if stat.S_ISREG(status.st_mode):
                sizes[name] = status.st_size
                continue
            kind = "a folder; name the files in it" if stat.S_ISDIR(status.st_mode) else "no file"
            reason = f"is {kind}"
        problems.append(Problem(f"code[{n}]", f"{show(name)} {reason}"))
    return sizes, [*problems, *_size_problem(sizes)]


def shipped_code(job: TrainingJob) -> dict[str, bytes]:
    """The files that a job ships. Raises BadInput for those that are not there, are no files, or are too
    large.
    """
    sizes, problems = sizes_of_code(job)
    if problems:
        raise BadInput(f"job {job.name!r} ships files that cannot be shipped:", problems)
    folder = Path(job.folder or os.curdir)
    files: dict[str, bytes] = {}
    for n, name in enumerate(sizes):
        try:
            with (folder / name).open("rb") as file:
                files[name] = file.read(CODE_LIMIT + 1)  # it may have grown; then it is refused by its size
        except OSError as error:
            reason = f"{name!r} cannot be read ({error.strerror}) in {folder.absolute()}"
            problems.append(Problem(f"code[{n}]", reason))
    if problems:
        raise BadInput(f"job {job.name!r} ships files that cannot be read:", problems)
    return files


def _size_problem(sizes: Mapping[str, int]) -> list[Problem]:
    total = sum(sizes.values())
    if total <= CODE_LIMIT:
        return []
    largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
    named = ", ".join(f"{show(path, quote=False)} {show_bytes(sizes[path])}" for path in largest)
    more = f" and {len(sizes) - len(largest)} more" if len(sizes) > len(largest) else ""
    message = (
        f"{show_bytes(total)} in all, {total - CODE_LIMIT} bytes more than a ConfigMap holds "
        f"({named}{more}); put what is large into the image or a volume"
    )
    return [Problem("code", message)]

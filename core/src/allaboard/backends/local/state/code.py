"""The text files that a job ships, kept beside its attempt as they were at its launch: what a later run is
compared with. Members do not run these; they run what lies in the job's folder.
"""

from __future__ import annotations

from collections.abc import Mapping

from allaboard.backends.local.state.paths import AttemptFolder, make_private, open_private
from allaboard.job.training_job import CODE_LIMIT


def keep_code(attempt: AttemptFolder, files: Mapping[str, bytes]) -> None:
    """``files``: path -> content. Those outside the job's folder are left out. Raises OSError."""
    for path, content in files.items():
        file = attempt.code / path
        if not file.resolve().is_relative_to(attempt.code.resolve()):
            continue
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        make_private(file.parent)
        with open_private(file, "w") as out:
            out.write(text)


def kept_code(attempt: AttemptFolder) -> dict[str, str]:
    """Path -> text."""
    files = sorted(attempt.code.rglob("*")) if attempt.code.is_dir() else ()
    return {
        str(file.relative_to(attempt.code)): file.read_text(encoding="utf-8", errors="replace")
        for file in files
        if file.is_file() and file.stat().st_size <= CODE_LIMIT
    }

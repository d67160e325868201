"""Failures of a command: one sentence for people on stderr, or one object on stdout with ``--json``, and
the exit code.

A traceback is never shown. An exception that is not an AllaboardError is reported as a bug in allaboard, with
the path of the details.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from allaboard.errors import AllaboardError, BadInput, ExitCode, SiteError
from allaboard.report.commands import HERE, Place
from allaboard.report.exits import exit_code_of
from allaboard.report.terminal import say, show_json_line, shown, silence_stdout
from allaboard.text.redaction import redact_job

_MACHINE_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.ENAMETOOLONG,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)
"""Errors of a disk or of the system. They are never reported as bugs of allaboard."""


def exit_code(error: Exception, arguments: Sequence[str], at: Place | None) -> int:
    """Print the error in the form that the command line ``arguments`` asks for, and return the exit code.
    ``at``: the place of its runs, as far as it was read.
    """
    try:
        return _report(error, wants_json(arguments), at or HERE)
    except OSError as trouble:
        # Python would flush what is left there once more at its end.
        silence_stdout()
        return report_unwritten(trouble, ExitCode.OK)


def report_unwritten(trouble: OSError, code: int) -> int:
    """Say on stderr that stdout takes nothing, a full disk for one. ``code``: the exit code without that."""
    error = SiteError(f"stdout cannot be written: {trouble.strerror}; make room there, or print elsewhere")
    failed = _report_own_error(error, False, HERE)
    return code or failed


def _report(error: Exception, as_json: bool, at: Place) -> int:
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.Abort):
        return ExitCode.INTERRUPTED
    if isinstance(error, click.ClickException):
        return _report_usage_error(error, as_json)
    if isinstance(error, AllaboardError):
        return _report_own_error(error, as_json, at)
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return _report_own_error(SiteError(f"{where}{error.strerror}"), as_json, at)
    return _report_bug(error, as_json, at)


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the command line has ``--json``. Also works for a command line that click refused."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def _report_usage_error(error: click.ClickException, as_json: bool) -> int:
    message = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)  # the help of allaboard
        return ExitCode.BAD_INPUT
    message = message[:1].lower() + message[1:]
    ctx = getattr(error, "ctx", None)
    if as_json:
        _print_error_object("usage", message)
    elif ctx is not None:
        say(f"{message}\nTry `{ctx.command_path} --help`.", error=True)
    else:
        say(message, error=True)
    return ExitCode.BAD_INPUT


def _report_own_error(error: AllaboardError, as_json: bool, at: Place) -> int:
    if as_json:
        headline = error.headline if isinstance(error, BadInput) else str(error)
        problems = [problem.to_dict() for problem in error.problems]
        _print_error_object(error.code, at.in_text(headline), problems)
    else:
        say(f"{at.in_text(str(error))}{_permission_hint(error, at)}", error=True)
    return exit_code_of(error)


def _permission_hint(error: AllaboardError, at: Place) -> str:
    """Hint for a missing permission. The server's message only names the permission."""
    if error.code != "forbidden" or " cannot " not in str(error):
        return ""
    is_of_keys = 'resource "secrets"' in str(error)
    role = at.command("cluster", "--rbac", "mpi" if is_of_keys else "submitter")
    more = "" if is_of_keys else " (or viewer)"
    return f"\nWhat else is missing: {at.command('preflight', 'JOB')}; a Role that allows it: {role}{more}"


def _report_bug(error: Exception, as_json: bool, at: Place) -> int:
    message = f"this is a bug in allaboard: {type(error).__name__}: {error}"
    report = _write_bug_report("".join(traceback.format_exception(error)))
    if report:
        message += f"\nThe details are in {report}; please send them with the report."
    else:
        message += "\nIts details could not be written anywhere: neither ALLABOARD_HOME nor TMPDIR has room."
    message += at.in_text("\nA run that was started is not affected: `allaboard list` shows it.")
    if as_json:
        _print_error_object("bug", message)
    else:
        say(message, error=True)
    return ExitCode.FAILED


def _write_bug_report(details: str) -> Path | None:
    """Write the details to the home or, if that fails, to a new temporary folder. Only the user may read the
    file, and no symbolic link is followed.
    """
    import tempfile
    import time

    from allaboard.job.site import home

    name = f"bug-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{os.urandom(3).hex()}.txt"
    content = shown(f"{redact_job(sys.argv)}\n{sys.version}\n\n{details}", lines=True)
    text = content.encode("utf-8", "backslashreplace")
    with suppress(OSError, AllaboardError):
        bugs = Path(home(os.environ)) / "bugs"
        with suppress(FileExistsError):
            bugs.parent.mkdir(0o700, parents=True, exist_ok=True)
            bugs.mkdir(0o700)
        return _write_new_file(bugs, name, text)
    with suppress(OSError):
        return _write_new_file(Path(tempfile.mkdtemp(prefix="allaboard-bug-")), name, text)
    return None


def _write_new_file(folder: Path, name: str, text: bytes) -> Path:
    """Write a new file into a folder of this user. Raises OSError if the folder is a link or belongs to
    another user.
    """
    if sys.platform == "win32":
        (folder / name).write_bytes(text)
        return folder / name
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(at).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the folder belongs to another user", str(folder))
        os.fchmod(at, 0o700)
        fd = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at
        )
        try:
            with open(fd, "wb") as file:  # noqa: PTH123
                os.fchmod(fd, 0o600)
                file.write(text)
        except OSError:
            os.unlink(name, dir_fd=at)
            raise
    finally:
        os.close(at)
    return folder / name


def _print_error_object(code: str, message: str, problems: Sequence[dict[str, Any]] = ()) -> None:
    show_json_line({"error": {"code": code, "message": message, "problems": list(problems)}})

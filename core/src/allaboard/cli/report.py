"""``allaboard report``: everything about a run on one page, for a browser, a mail or an archive."""

from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import click

from allaboard.backends.base import Backend
from allaboard.cli.doctor import since_last_good
from allaboard.cli.place import Place, json_option, place_options
from allaboard.diagnosis import diagnose
from allaboard.errors import AllaboardError, BadInput
from allaboard.follow.loop import Outcome
from allaboard.report.html import GENERATOR, meta
from allaboard.report.page import run_page
from allaboard.report.page_data import read_page_data
from allaboard.report.terminal import say, show_json
from allaboard.spec.job import TrainingJob
from allaboard.units import rfc3339

EPILOG = """\b
Examples:
  allaboard report digits                      the newest run of the job digits, into RUN.html
  allaboard report digits-1f0c -o page.html
  allaboard report digits -o - | mail -s digits team@example.org

One file, which fetches nothing and runs no script. A running run is shown in its present state.
Exit code 0 whenever the run is known, failed runs included.
"""
_HEAD = 64 << 10
"""Bytes that hold the head of a page (styles and metadata)."""


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the page to FILE, overwriting it; - is stdout. Default: RUN.html, which overwrites only an "
    "earlier page of this run.",
)
@place_options
@json_option
def report(run: str, output: str | None, at: Place, as_json: bool) -> None:
    """Write a page about a run: its state and why, its phases, curves, members, checkpoints, events and last
    lines, the job as it was run, and of a failure what differs from the last good run.
    """
    if as_json and output == "-":
        raise BadInput("--json and -o - both want stdout; leave out one of them, or name a file")
    backend, seen = at.open_to_watch(run, evidence=True)
    outcome = Outcome(seen, diagnose(seen))
    page_data = read_page_data(backend, outcome, backend.secrets_of(seen.run))
    now = time.time()
    job, since = _job_of(backend, seen.run), since_last_good(backend, seen)
    data = run_page(outcome, page_data, now, job=job, since=since).encode("utf-8", "backslashreplace")
    if output == "-":
        sys.stdout.buffer.write(data)
        return
    path = _page_path(output, seen.run)
    _write_page(path, data, exclusive=output is None and not path.exists())
    if as_json:
        show_json({"run": seen.run, "page": str(path), "looked_at": rfc3339(now)})
    else:
        say(str(path))


def _job_of(backend: Backend, run: str) -> TrainingJob | None:
    """The job as its author set it; None for a job of others, and where it cannot be read any more."""
    try:
        spec = backend.started_with(run).spec
        return TrainingJob(**spec) if spec else None
    except (AllaboardError, TypeError):  # TypeError: a field of a newer release
        return None


def _page_path(output: str | None, run: str) -> Path:
    """The path of the page. Raises BadInput for a folder, and for an existing file that is no page of this
    run and was not named.
    """
    path = Path(output) if output is not None else Path(f"{run}.html")
    if output is not None and (path.is_dir() or output.endswith("/")):
        raise BadInput(f"-o {output} is a folder; name a file in it: -o {path / f'{run}.html'}")
    if output is None and path.exists() and not _is_page_of(path, run):
        raise BadInput(
            f"{path} is there already, and is no page of {run}; move it, or say where the page goes: "
            f"-o {path} overwrites it"
        )
    return path


def _is_page_of(path: Path, run: str) -> bool:
    """Whether the file is an earlier page of this run."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD).partition(b"</head>")[0].decode("utf-8", "replace")
    return meta("generator", GENERATOR) in head and meta("allaboard-run", run) in head


def _write_page(path: Path, data: bytes, exclusive: bool) -> None:
    """Write the page atomically. Raises StorageError. ``exclusive``: never overwrite a file that appeared
    meanwhile.
    """
    from allaboard.storage.disk import DiskStore, translate_os_errors

    if path.exists() and not stat.S_ISREG(path.stat().st_mode):  # a terminal, a pipe, /dev/null
        with translate_os_errors(path, "writing"), path.open("wb") as file:
            file.write(data)
        return
    folder = DiskStore(path.absolute().parent)
    if exclusive:
        folder.create(path.name, data)
    else:
        folder.write(path.name, data)

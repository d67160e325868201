"""``allaboard report``: everything about a run on one page, for a browser, a mail or an archive."""

from __future__ import annotations

import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from allaboard.cli.place import Place, json_option, place_options, resolved, store_option
from allaboard.diagnosis import diagnose
from allaboard.errors import BadInput, UnknownRun
from allaboard.follow.loop import Outcome
from allaboard.report.html import GENERATOR, meta
from allaboard.report.last_good import since_last_good
from allaboard.report.page import run_page
from allaboard.report.page_data import PAGE, SNAPSHOT, Bounds, Readings, page_data
from allaboard.report.reading import job_of, read_run
from allaboard.report.runs_page import MOST_COMPARED, MOST_RUNS, compare_page, history_page
from allaboard.report.terminal import say, show_json
from allaboard.text.units import rfc3339

EPILOG = """\b
Examples:
  allaboard report digits                      the newest run of the job digits, into RUN.html
  allaboard report digits-1f0c -o page.html
  allaboard report digits -o - | mail -s digits team@example.org
  allaboard report --compare digits-1f0c digits-2b7e -o compared.html
  allaboard report --history digits --champions store://digits -o history.html

One file, which fetches nothing; a small script in it zooms, and the page works without it. A running
run is shown in its present state. --json carries everything on the page as data.
Exit code 0 whenever the run is known, failed runs included.
"""
_HEAD = 64 << 10
"""Bytes that hold the head of a page (styles and metadata)."""


@click.command(epilog=EPILOG)
@click.argument("runs", metavar="RUN...", nargs=-1)
@click.option(
    "--compare", is_flag=True, help="Show the curves of several runs on one page, and how their jobs differ."
)
@click.option(
    "--history", metavar="NAME", help="Show the runs of the job NAME: metrics, time and goodput of each."
)
@click.option("--champions", metavar="URI", help="With --history: mark the champions kept at URI.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the page to FILE, overwriting it; - is stdout. Default: RUN.html, which overwrites only an "
    "earlier page of this run.",
)
@store_option
@place_options
@json_option
def report(
    runs: tuple[str, ...],
    compare: bool,
    history: str | None,
    champions: str | None,
    output: str | None,
    store: str | None,
    at: Place,
    as_json: bool,
) -> None:
    """Write a page about a run: its state and the reason, phases, curves, members, checkpoints, events and
    last lines, its job, and after a failure the differences from the last good run.
    """
    if as_json and output == "-":
        raise BadInput("--json and -o - both want stdout; leave out one of them, or name a file")
    _check_options(runs, compare, history, champions, output)
    now = time.time()
    if history is not None:
        pages = _runs_of(at, history, now)
        numbers = None if champions is None else _champions(resolved(champions, store))
        _publish(history_page(history, pages, numbers), output, None, as_json, now, {"runs": pages})
    elif compare:
        bounds = replace(PAGE, points=PAGE.points // len(runs))
        pages = [_data_of(at, run, now, bounds) for run in runs]
        _publish(compare_page(pages), output, None, as_json, now, {"runs": pages})
    else:
        data = _data_of(at, runs[0], now, PAGE)
        _publish(run_page(data), output, data["run"], as_json, now, {"run": data["run"], "data": data})


def _check_options(
    runs: tuple[str, ...], compare: bool, history: str | None, champions: str | None, output: str | None
) -> None:
    """Raises BadInput for what does not say one page."""
    if history is not None and (runs or compare):
        raise BadInput("--history NAME is a page of its own; leave out the runs or --history")
    if champions is not None and history is None:
        raise BadInput("--champions needs --history NAME; add --history, or leave out --champions")
    if compare and not 2 <= len(runs) <= MOST_COMPARED:
        raise BadInput(f"--compare takes 2 to {MOST_COMPARED} runs; {len(runs)} are named")
    if not compare and history is None and len(runs) != 1:
        raise BadInput(
            f"a page is about one run, and {len(runs)} are named; name one, or add --compare"
            if runs
            else "name a run (`allaboard list` shows them), or --history NAME"
        )
    if (compare or history is not None) and output is None:
        raise BadInput("name the file of the page: -o page.html, or -o - for stdout")


def _data_of(at: Place, run: str, now: float, bounds: Bounds) -> dict[str, Any]:
    """Data of the page of a run."""
    backend, seen = at.open_to_watch(run, evidence=True)
    outcome = Outcome(seen, diagnose(seen))
    read = read_run(backend, outcome, backend.secrets_of(seen.run))
    job, since = job_of(backend, seen.run), since_last_good(backend, seen)
    return page_data(outcome, read, now, at=at, job=job, since=since, bounds=bounds)


def _runs_of(at: Place, name: str, now: float) -> list[dict[str, Any]]:
    """Data of the runs of a job, oldest first, without their logs. Raises UnknownRun."""
    backend = at.open()
    seen = [observed for observed in backend.list() if observed.job == name]
    if not seen:
        raise UnknownRun(f"the job {name} has no run {backend.where}; `allaboard list` shows all runs")
    seen.sort(key=lambda observed: observed.created or 0.0)
    return [
        page_data(
            Outcome(observed, ()),
            Readings(secrets=backend.secrets_of(observed.run)),
            now,
            at=at,
            bounds=SNAPSHOT,
        )
        for observed in seen[-MOST_RUNS:]
    ]


def _champions(uri: str) -> dict[str, int]:
    """The number of the last promotion of each run."""
    from allaboard.promotion import champion
    from allaboard.storage import open_store

    newest_first = champion.history(open_store(uri)).promotions
    return {p.run: p.number for p in reversed(newest_first) if p.run is not None}


def _publish(
    page: str, output: str | None, run: str | None, as_json: bool, now: float, body: dict[str, Any]
) -> None:
    """Write the page, and say where it is. ``run``: whose page it is, if of one."""
    data = page.encode("utf-8", "backslashreplace")
    if output == "-":
        sys.stdout.buffer.write(data)
        return
    path = _page_path(output, run or "runs")
    _write_page(path, data, exclusive=output is None and not path.exists())
    if as_json:
        show_json({"page": str(path), "looked_at": rfc3339(now), **body})
    else:
        say(str(path))


def _page_path(output: str | None, run: str) -> Path:
    """The path of the page. Raises BadInput for a folder, and for an existing file that is no page of this
    run and was not named.
    """
    path = Path(output) if output is not None else Path(f"{run}.html")
    if output is not None and (path.is_dir() or output.endswith("/")):
        raise BadInput(f"-o {output} is a folder; name a file in it: -o {path / f'{run}.html'}")
    if output is None and path.exists() and not _is_page_of(path, run):
        raise BadInput(
            f"{path} exists and is not a page of {run}; move it, or name another file: "
            f"-o {path} overwrites it"
        )
    return path


def _is_page_of(path: Path, run: str) -> bool:
    """Return whether the file is an earlier page of this run."""
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

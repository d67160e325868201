"""The command line as people use it: real processes, in a home and a pool of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allaboard.backends.base import handle_of
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.processes import find_marked, kill_run
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.state.records import read_record
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from tests.core.cli.warm import Warm
from tests.waiting import wait_for as wait_for

WARM = Warm()
LONG = 120.0
"""Seconds after which a wait is a hang."""

STATUS = {
    "run", "name", "key", "state", "attempt", "restarts", "started", "finished", "phases", "members",
    "conditions", "checkpoints", "metrics", "progress", "flags", "diagnoses",
    "progress_format", "metrics_from",
}  # fmt: skip
"""The fields of `status --json` (core/docs/contract.md, Status object)."""

TRAINS = """
from allaboard.inside import report, result
for step in range(1, 11):
    report(step=step, total=10, loss=1 / step)
result(accuracy=0.9, loss=0.1)
"""
WAITS = """
import os, signal, sys, time
def saved(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, saved)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Said:
    """What a command line answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return self.out + self.err


@dataclass
class Terminal:
    """Runs ``allaboard`` in a folder, as a user would. A line that is waited for is typed to a Python that
    has the command line loaded (see `warm`), unless its `command` is another one.
    """

    folder: Path
    environ: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(self, *words: str, stdin: str = "", **environ: str) -> Said:
        whole = {**self.environ, **environ}
        plain = type(self).command is Terminal.command
        if plain and WARM.takes(words, whole, stdin):
            done = WARM.run(words, self.folder, whole, stdin, LONG)
        else:
            done = subprocess.run(
                self.command(*words),
                cwd=self.folder,
                env=whole,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=LONG,
            )
        assert "Traceback" not in done.stderr or "the last" in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The same, in the background; ended with the test."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(
            self.command(*words), cwd=self.folder, env=self.environ, text=True, **{**pipes, **options}
        )
        self.started.append(process)
        return process

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "allaboard", *words]

    def job(self, script: str = TRAINS, file: str = "job.json", **fields: Any) -> str:
        """A job file whose members run ``script``; its name."""
        program = f"{Path(file).stem}.py"
        (self.folder / program).write_text(script)
        job = {"name": "digits", "command": ["python", program], **fields}
        (self.folder / file).write_text(json.dumps({k: v for k, v in job.items() if v is not None}))
        return file

    def write(self, file: str, text: str) -> str:
        (self.folder / file).write_text(text)
        return file

    @property
    def backend(self) -> LocalBackend:
        return LocalBackend(self.environ)

    def runs(self) -> list[str]:
        """The runs that have a record."""
        return sorted(p.name for p in self.backend.runs.glob("*") if (p / "record.json").exists())

    def processes(self, run: str) -> list[int]:
        """Pids of a run's members, and of what they started, that live."""
        record = read_record(RunFolder(self.backend.runs / run))
        return [] if record is None else [found.pid for found in find_marked(record.uid)]

    def seen(self, run: str = "digits") -> Observation:
        return self.backend.observe(run)

    def until_said(self, text: str, run: str = "digits", member: str | None = None) -> None:
        """Wait until a member's log holds this text, and until it is written down that it runs: a busy disk
        may be slower than the member.
        """

        def there() -> bool:
            try:
                seen = self.seen(run)
            except Exception:  # there is no such run yet
                return False
            logs = [Path(m.log) for m in seen.members if m.log and member in (None, m.name)]
            is_said = any(text in log.read_text() for log in logs if log.exists())
            return is_said and state_of(seen) is not State.STARTING

        wait_for(there)

    def end(self) -> None:
        """Nothing of a test lives on."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        backend = self.backend
        for run in self.runs():
            seen = backend.observe(run)
            if seen.alive and seen.owner is not None:
                backend.stop(handle_of(seen), seen.owner, "the test", "it is over", kill=True)
            wait_for(lambda run=run: not backend.observe(run).alive)
        for run in self.runs():
            record = read_record(RunFolder(backend.runs / run))
            if record is not None:
                kill_run(record.uid)


def finished(process: subprocess.Popen[str]) -> Said:
    out, err = process.communicate(timeout=LONG)
    return Said(process.returncode, out or "", err or "")


@contextmanager
def a_terminal(folder: Path) -> Iterator[Terminal]:
    """A terminal in ``folder``/work; whatever it started is gone afterwards."""
    work = folder / "work"
    work.mkdir()
    own = {"ALLABOARD_HOME": str(folder / "home"), "ALLABOARD_POOL": str(folder / "pool"), "NO_COLOR": "1"}
    terminal = Terminal(work, {**os.environ, **own})
    try:
        yield terminal
    finally:
        terminal.end()

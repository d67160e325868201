"""What tests of the local backend share: waiting for what must happen, and looking at real processes."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

import allaboard
from allaboard import TrainingJob
from allaboard.backends.base import Plan
from allaboard.backends.local import backend as backend_module
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.processes import find_marked
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.state.records import read_record
from allaboard.checking.job import require_valid
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from tests.waiting import wait_for as wait_for


def processes_of(backend: LocalBackend, run: str) -> list[int]:
    """Pids of members (and what they started) that live."""
    record = read_record(RunFolder(backend.runs / run))
    return [] if record is None else [found.pid for found in find_marked(record.uid)]


def a_plan(folder: Path, script: str, key: str = "k", **fields: Any) -> Plan:
    """A job whose members run ``script``, each script in its own file: an earlier run may read late."""
    name = f"main-{zlib.crc32(script.encode()):08x}.py"
    for file in (name, "main.py"):
        (folder / file).write_text(script)
    job = TrainingJob(
        folder=str(folder), **{"name": "job", "command": ["python", name], "workers": 2, **fields}
    )
    return Plan(require_valid(job), key)


def ended(backend: LocalBackend, run: str, seconds: float = 120.0) -> Observation:
    """The observation of a run once it has ended and nobody supervises it any more."""

    def look() -> Observation | None:
        seen = backend.observe(run)
        return seen if state_of(seen).is_final and not seen.alive else None

    return wait_for(look, seconds)


def supervisors_begin_with(code: str, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors that are launched from here run ``code``, written to ``program``, before anything else."""
    plain = backend_module.isolated_command
    end = "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    path = f"import sys\nsys.path.insert(0, {str(Path(allaboard.__file__).parents[1])!r})\n"
    program.write_text(path + code + "\n" + end)

    def command(module: str, *words: str) -> list[str]:
        python, isolated, *rest = plain(module, *words)
        at = next(n for n, word in enumerate(rest) if word.endswith(".py"))
        return [python, isolated, *rest[:at], str(program), *rest[at:]]

    monkeypatch.setattr(backend_module, "isolated_command", command)


def supervisor_and_keeper(backend: LocalBackend, run: str) -> tuple[int, int]:
    """Their pids: the holders of the attempt's lock, parent first."""
    folder = backend.find(run)
    record = read_record(folder)
    assert record is not None
    live = folder.attempt(record.generation, record.attempt).live.resolve()
    holders = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if any(fd.resolve() == live for fd in (process / "fd").iterdir()):
                    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                    holders.append((int(process.name), parent))
            except OSError:
                continue
    pids = {pid for pid, _ in holders}
    keeper = next(pid for pid, parent in holders if parent in pids)
    supervisor = next(pid for pid, _ in holders if pid != keeper)
    return supervisor, keeper

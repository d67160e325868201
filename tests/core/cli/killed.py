"""A page of ``core/docs/how-to/frameworks`` as its reader uses it: its script and its job, killed again and
again. What is asserted here holds for each library.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from allaboard.backends.local.host.processes import find_marked, send_signal
from allaboard.checkpoints.foreign import Judgement, Verdict, judge_place, newest
from allaboard.checkpoints.foreign.adopting import step_of_judgement
from allaboard.checkpoints.foreign.finding import ASIDE
from allaboard.follow.printed import ProgressReader
from allaboard.runs.observation import Observation
from allaboard.storage import open_store
from allaboard.text.reportline import is_beginning
from tests.core.cli.terminal import Terminal, wait_for

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "core" / "docs" / "how-to" / "frameworks"
PYTHON = ROOT / ".venv" / "frameworks" / "bin" / "python"
PATIENCE = 240.0
"""Seconds in which a try must show its first step."""
_JOB = re.compile(r"^```yaml runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SCRIPT = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script_and_job(page: str, several: bool = True) -> tuple[str, dict[str, Any]]:
    """The script of a page, and its job; with ``several``: that for two members, where it has one."""
    text = (PAGES / f"{page}.md").read_text()
    jobs, [script] = _JOB.findall(text), _SCRIPT.findall(text)
    return script, yaml.safe_load(jobs[-1 if several else 0])


@dataclass(frozen=True, slots=True)
class Left:
    """What a kill left: ``handed``, the path of the newest whole checkpoint, its step (of Keras its epoch),
    and the names of torn ones.
    """

    handed: str | None
    step: int | None
    torn: tuple[str, ...]


@dataclass
class Killed:
    """A run of a page's job; ``seed`` chooses the moments of its kills. ``struck``: logs of tries that were
    killed.
    """

    terminal: Terminal
    page: str
    seed: int = 1
    lefts: list[Left] = field(default_factory=list)
    struck: set[str] = field(default_factory=set)

    @property
    def out(self) -> Path:
        return self.terminal.folder / "out"

    @property
    def run_name(self) -> str:
        """The folder of the run below ``out``."""
        return self.terminal.seen(self.page).run

    def logs(self) -> list[Path]:
        """Of rank 0, the first try first."""
        [last] = [Path(m.log) for m in self.terminal.seen(self.page).members if m.rank == 0 and m.log]
        logs = last.parent.glob(f"{last.name.partition('.')[0]}.*.log")
        return sorted(logs, key=lambda path: [*map(int, re.findall(r"\d+", path.name))])

    def job(self, lasts: int | None = None, **fields: Any) -> str:
        """The files of the page; the name of its job's. ``lasts``: the number of steps, epochs or rounds.
        With several ``workers``: its job for two members, where it has one.
        """
        script, made = script_and_job(self.page, several=fields.get("workers", 1) > 1)
        made |= fields
        program, *rest = made["command"]
        made["command"] = [str(PYTHON.with_name(program)), *rest]
        if lasts is not None:
            [at] = [n for n, word in enumerate(made["command"]) if word in LASTS]
            made["command"][at + 1] = str(lasts)
        self.out.mkdir(exist_ok=True)
        (self.terminal.folder / "train.py").write_text(script)
        return self.terminal.write("job.yaml", yaml.safe_dump(made, sort_keys=False))

    def run(
        self, job: str, times: int, first: int = 0, ranks: Sequence[int] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        """Follow the run to its end, and kill: each second time while something is saved, else once a step is
        told. A machine may be so fast that the last kills come too late. ``first``: the step before which
        nothing is killed; ``ranks``: those of the members that are killed, in turn.
        """
        moments = random.Random(self.seed)
        process = self.terminal.start("run", job, stderr=subprocess.STDOUT)
        for number in range(times):
            in_a_save = number % 2 == 1
            seen = wait_for(partial(self._trains, number, process, None if in_a_save else first), PATIENCE)
            if process.poll() == 0:
                break
            [member] = [m for m in seen.members if m.rank == ranks[number % len(ranks)]]
            marked = find_marked(seen.uid or "", member.name)  # a save may be shorter than the look for them
            if in_a_save:
                self._until_something_is_saved(process)
                time.sleep(moments.uniform(0, 0.01) * moments.choice((0, 1)))
            else:
                time.sleep(moments.uniform(0.05, 0.5))
            killed = [who for who in marked if send_signal(who, signal.SIGKILL)]
            if not killed:  # it has just been started when it was looked for
                again = find_marked(seen.uid or "", member.name)
                killed = [who for who in again if send_signal(who, signal.SIGKILL)]
            if not killed:  # it has come to its end meanwhile
                break
            wait_for(lambda killed=killed: not any(_lives(who.pid) for who in killed))
            self.struck |= {member.log for member in seen.members if member.log}
            self.lefts.append(self._left(seen))
        assert 2 * len(self.lefts) >= times, f"{len(self.lefts)} of {times} kills"
        out, _ = process.communicate(timeout=600)
        return subprocess.CompletedProcess((), process.returncode, out)

    def _trains(self, number: int, process: subprocess.Popen[str], least: int | None) -> Observation | None:
        """What is seen of the run once its try after so many kills has told a step, or it has succeeded.
        ``least``: the lowest step that counts; None: that the try runs is enough.
        """
        assert process.poll() in (None, 0), (
            process.communicate()[0],
            self.terminal("logs", self.page).text[-3000:],
        )
        if process.poll() == 0:
            return self.terminal.seen(self.page)
        try:
            seen = self.terminal.seen(self.page)
        except Exception:  # there is no such run yet
            return None
        logs = [m.log for m in seen.members if m.rank == 0 and m.log and m.log not in self.struck]
        is_try = seen.restarts >= number and all(member.phase == "running" for member in seen.members)
        if not is_try or not logs:
            return None
        if least is None:
            return seen
        told = points(Path(logs[0]), "")
        return seen if told and told[-1][0] >= least else None

    def _until_something_is_saved(self, process: subprocess.Popen[str]) -> None:
        """Wait for a new name, or for the end of the run."""
        before = self._names()
        end = time.monotonic() + PATIENCE
        while self._names() <= before and process.poll() is None:
            assert time.monotonic() < end, f"nothing was saved in {PATIENCE:g} s"
            time.sleep(0.001)

    def _names(self) -> set[str]:
        """Of what the script has saved."""
        return {path.name for path in self.out.iterdir() if ASIDE not in path.name}

    def _left(self, seen: Observation) -> Left:
        judged: list[Judgement] = judge_place(open_store(self.out))
        whole = newest(judged)
        torn = tuple(item.unit.name for item in judged if item.verdict is Verdict.TORN)
        if whole is None:
            return Left(None, None, torn)
        return Left(str(self.out / whole.unit.name), step_of_judgement(whole)[0], torn)


LASTS = ("--max_steps", "--num_epochs", "--max_epochs", "--epochs", "--rounds")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def points(log: Path, metric: str) -> list[tuple[int, float | None]]:
    """(step, the metric or None) of each line of progress of a try."""
    if not log.exists():  # its process starts just now
        return []
    reader = ProgressReader()
    lines = log.read_bytes().decode(errors="replace").split("\n")
    reports = [
        report
        for line in lines
        for report in reader.read(line)
        if report.kind == "progress" and not is_beginning(report)
    ]
    return [(r.fields["step"], r.fields.get(metric)) for r in reports if r.fields.get("step") is not None]

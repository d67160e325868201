"""``allaboard demo``: a training from its data to a promoted model, in which a member is killed.

It types the commands that anybody would type, in a folder with a job and scripts to look at and to change.
All it adds is the misfortune: a member gets SIGKILL half-way, as when its machine is taken away.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from allaboard.errors import AllaboardError, BadInput, UnknownRun
from allaboard.job.homes import expand_home
from allaboard.report.terminal import Ink, say, supports_colour
from allaboard.text.units import counted, show_seconds

if TYPE_CHECKING:
    from allaboard.backends.local.backend import LocalBackend

FILES = ("data.py", "train.py", "train.yaml", "evaluate.py", "evaluate.yaml")
STORE = "store"
VICTIM = "worker-0"
_PAUSE = 0.2

EPILOG = """\b
Examples:
  allaboard demo                    in ./allaboard-demo
  allaboard demo /tmp/spirals       again there: only a better model is promoted

Needs torch (pip install "allaboard[torch]") and two CPU cores; takes about a minute. Files that are in
the folder already stay as they are: change train.py, and run it again. Ctrl-C ends it with its run.

Exit code 0 when all steps succeeded, else that of the step that did not.
"""


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="[FOLDER]", default="allaboard-demo")
@click.option("--no-kill", is_flag=True, help="Leave all members alone.")
def demo(folder: str, no_kill: bool) -> int:
    """Train, lose a worker, go on, evaluate, promote: on this machine, with torch alone."""
    from allaboard.backends.base import Plan
    from allaboard.backends.local.backend import LocalBackend
    from allaboard.running import read_job

    missing = [name for name in ("torch", "numpy") if find_spec(name) is None]
    if missing:
        raise BadInput(
            f"the demo trains with torch and numpy, and this Python has no {missing[0]}; "
            "pip install 'allaboard[torch]', or pipx run --spec 'allaboard[torch]' allaboard demo"
        )
    place = expand_home(folder)
    _lay_out(place)
    began, ink = time.monotonic(), Ink(supports_colour())
    key = f"demo-{secrets.token_hex(4)}"
    run = Plan(read_job(str(place / "train.yaml")), key).run
    backend = LocalBackend()
    shell = _Shell(place, ink)
    shell.title("Which arm of the spiral is it? Points become shards, which members read by rank.")
    prepare = ("prepare", "data:samples", "store://spirals/shards", "--samples-per-shard", "300")
    if code := shell("shards", *prepare):
        return code
    shell.title(
        "A master and a worker train together."
        + ("" if no_kill else f" Half-way {VICTIM} is killed, as when its machine is taken away.")
    )
    misfortune = _Misfortune(backend, run)
    if not no_kill:
        misfortune.start()
    code = shell("run", "train.yaml", "--key", key)
    misfortune.over.set()
    if code:
        return code
    seen = backend.observe(run)
    best = seen.progress.best_checkpoint or seen.progress.checkpoint
    if best is None:
        say("The training saved no checkpoint, so there is nothing to promote; train.py was changed?")
        return 1
    for line in misfortune.lines(seen.progress.resumed_from, seen.progress.lost_steps):
        say(ink(line, "yellow"))
    shell.title("How good is its best checkpoint on points that nobody has trained on?")
    if code := shell("evaluate", "evaluate.yaml", "--checkpoint", best, "--json", into="evaluation.json"):
        return code
    shell.title("Good enough, and better than the champion? Then it is the champion.")
    criteria = ("--metrics", "evaluation.json", "--metric", "accuracy", "--threshold", "accuracy>=0.9")
    if code := shell("promote", best, "--into", "store://spirals", *criteria):
        return code
    shell.title("All of it on one page.")
    if code := shell("report", run, "-o", "page.html", with_store=False):
        return code
    say()
    say(ink(f"From points to a champion in {show_seconds(time.monotonic() - began)}.", "green", bold=True))
    say(f"Look at {place}/page.html, change {place}/train.py, and run it again: `allaboard demo {folder}`.")
    say("On a cluster with Trainer v2 the same job runs by `allaboard run train.yaml --backend kubernetes`.")
    return 0


def _lay_out(place: Path) -> None:
    """The job and its scripts; what is there already stays."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        source = resources.files("allaboard.cli.start") / "spirals"
        for name in FILES:
            if not (place / name).exists():
                (place / name).write_bytes((source / name).read_bytes())
    except OSError as error:
        message = f"{place} cannot hold the demo: {error.strerror}; name a folder that you may write to"
        raise BadInput(message) from error


class _Shell:
    """Types commands of allaboard, in a folder."""

    def __init__(self, place: Path, ink: Ink) -> None:
        self.place, self.ink, self.number = place, ink, 0

    def title(self, text: str) -> None:
        self.number += 1
        say()
        say(self.ink(f"{self.number}. {text}", bold=True, colour=""))

    def __call__(self, *arguments: str, into: str | None = None, with_store: bool = True) -> int:
        """Its exit code. ``into``: the file that takes its output."""
        arguments = (*arguments, "--store", STORE) if with_store else arguments
        shown = shlex.join(["allaboard", *arguments]) + (f" > {into}" if into else "")
        say(self.ink(f"$ {shown}", "cyan"))
        sys.stdout.flush()
        from allaboard.backends.local.host.isolated import isolated_command

        command = isolated_command("allaboard", *arguments)
        if into is None:
            return _end_of(subprocess.Popen(command, cwd=self.place))
        with (self.place / into).open("wb") as file:
            return _end_of(subprocess.Popen(command, cwd=self.place, stdout=file))


def _end_of(child: subprocess.Popen[bytes]) -> int:
    """Its exit code. Ctrl-C reaches the command, too, which ends its run: it is waited for."""
    while True:
        try:
            code = child.wait()
            return 128 - code if code < 0 else code
        except KeyboardInterrupt:
            continue


@dataclass
class _Misfortune:
    """Kills a member once half of the steps are done and something is saved. ``killed``: it has."""

    backend: LocalBackend
    run: str
    over: threading.Event = field(default_factory=threading.Event)
    killed: bool = False

    def start(self) -> None:
        threading.Thread(target=self._strike, daemon=True).start()

    def _strike(self) -> None:
        from allaboard.backends.local.host.processes import find_marked, send_signal

        while not self.over.wait(_PAUSE):
            try:
                seen = self.backend.observe(self.run)
            except (UnknownRun, AllaboardError):
                continue  # not there yet
            step, total = seen.progress.step, seen.progress.total
            if step is None or not total or 2 * step < total or not seen.progress.checkpoint:
                continue
            victims = [who for who in find_marked(seen.uid or "", VICTIM) if who.pid != os.getpid()]
            if [who for who in victims if send_signal(who, signal.SIGKILL)]:
                self.killed = True
                return

    def lines(self, resumed_from: int | None, lost: int) -> list[str]:
        """Lines about the result."""
        if not self.killed:
            return []
        from_where = "from its beginning" if resumed_from is None else f"from step {resumed_from}"
        return [
            f"{VICTIM} was killed; the training went on {from_where}: {counted(lost, 'step')} done twice."
        ]

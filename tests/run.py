"""The tests that need no cluster, in both environments, with a closing line each: what `make test` runs.

    python tests/run.py [--all | --rest | --cluster] [pytest arguments]

Without the thorough ones; with --all every test that needs no cluster (`make test-all`), with --rest those
that `make test` leaves out, with --cluster those that need a cluster (`make cluster-test`). Those of
endurance only where ``-m`` names them.

Exit code 0 when every test of both passed; 1 otherwise, which takes in: no tests were found, pytest itself
broke, the time limit was reached, or a test left a process behind. What is left behind is named and killed:
nothing of a test run outlives it, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".venv" / "reports"
LIMIT = 75 * 60
"""Seconds for all suites of a call together."""
INTERRUPTED_GRACE = 60
"""Seconds that pytest has to take down its fixtures once it is interrupted."""
LINGERING = 5.0
"""Seconds that processes have to end after the pytest that started them."""

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Suite:
    """One call of pytest: in which environment, on what."""

    name: str
    arguments: tuple[str, ...]
    bin: Path
    without: tuple[str, ...] = ()
    """Marks whose tests are left out, unless the caller chooses by marks."""
    only: tuple[str, ...] = ()
    """Marks that its tests have, unless the caller chooses by marks."""

    @property
    def report(self) -> Path:
        return REPORTS / f"{self.name}.xml"

    @property
    def closing(self) -> Path:
        """Its closing line, for who comes later."""
        return REPORTS / f"{self.name}.closing"


WORKERS = min(2 * (os.cpu_count() or 1) + 1, 8)
"""Tests of real processes mostly wait for them."""
SIDE_BY_SIDE = ("-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder")
"""A file's tests stay together, as many share a server or a whole Airflow; tests/conftest.py puts those
with a real Airflow first, then those of tests/longest.txt. ``-n 0``: one after the other."""

SUITES = (
    Suite(
        "airflow",
        ("tests/core", "tests/provider", "tests/meta", "tests/docs", *SIDE_BY_SIDE),
        ROOT / ".venv/airflow/bin",
        without=("endurance",),
    ),
    # Not the core once more: what it stands on has the same versions in both environments.
    Suite(
        "kfp",
        ("tests/kfp", "tests/meta/test_imports.py", *SIDE_BY_SIDE),
        ROOT / ".venv/kfp/bin",
        without=("endurance",),
    ),
)
CLUSTER = Suite("cluster", ("tests/cluster", "--e2e"), ROOT / ".venv/airflow/bin")


def main(arguments: list[str]) -> int:
    suites, arguments = chosen(arguments)
    adopt_orphans()
    # Under nohup, or behind `&`, they would be ignored: by pytest too, and by the tests, which send them.
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    REPORTS.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LIMIT
    closing: list[str] = []
    failed = False
    for suite in suites:
        line, good = run(suite, arguments, deadline)
        if interruption.received:
            line += f", stopped by {signal.Signals(interruption.received).name}"
        closing.append(f"{suite.name}: {line}")
        suite.closing.write_text(f"{closing[-1]}\n")
        failed |= not good
        if interruption.received:
            break
    print("", *closing, sep="\n", flush=True)
    return 1 if failed or interruption.received else 0


def chosen(arguments: list[str]) -> tuple[tuple[Suite, ...], list[str]]:
    """The suites that the first argument asks for, and the arguments that are left for pytest."""
    match arguments:
        case ["--all", *left]:
            return SUITES, left
        case ["--rest", *left]:
            return tuple(replace(suite, only=("thorough",)) for suite in SUITES), left
        case ["--cluster", *left]:
            return (CLUSTER,), left
    return tuple(replace(suite, without=(*suite.without, "thorough")) for suite in SUITES), arguments


def run(suite: Suite, arguments: list[str], deadline: float) -> tuple[str, bool]:
    """The closing line of one suite, and whether all of it is good."""
    print(f"\n== tests in the {suite.name} environment", flush=True)
    suite.report.unlink(missing_ok=True)
    suite.closing.unlink(missing_ok=True)
    report = f"--junitxml={suite.report}"
    wanted = [*suite.only, *(f"not {mark}" for mark in suite.without)]
    marks = ["-m", " and ".join(wanted)] if wanted else []
    command = [str(suite.bin / "python"), "-m", "pytest", *suite.arguments, *marks, report, *arguments]
    environ = {**os.environ, "PATH": f"{suite.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    # Else each worker compiles all tests, each time.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A process group of its own: signals reach it through `interruption` alone, which lets fixtures finish.
    pytest = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, process_group=0)
    with interruption.of(pytest.pid, deadline):
        code = reap_until_gone(pytest.pid)
    # Already reaped, together with whatever else came to us: Popen must not look for it again.
    pytest.returncode = code
    late = interruption.expired
    left = list(take_down_what_is_left())
    for process in left:
        print(f"left behind by the tests and killed: {process}", flush=True)
    remarks = [summary(suite.report)]
    # 0, 1, 5: all passed, some failed, none found. Any other end is one before the last test.
    if code not in (0, 1, 5):
        remarks.append(f"pytest ended with {code}, before its last test")
    if late:
        remarks.append(f"stopped at the limit of {LIMIT // 60} minutes")
    if left:
        remarks.append(f"{len(left)} processes left behind")
    # 5 is "no tests collected": fine only for one who chose tests, and then chose none of this environment.
    chose = any(word.startswith(("-k", "-m")) for word in arguments)
    good = code == 0 or (code == 5 and chose)
    return ", ".join(remarks), good and not late and not left


def summary(report: Path) -> str:
    """``312 passed, 2 skipped in 214.21s`` from pytest's own report."""
    try:
        suite = next(ElementTree.parse(report).iter("testsuite"))
    except (OSError, ElementTree.ParseError, StopIteration):
        return "no report"
    counts = {
        word: int(suite.get(key, 0))
        for word, key in (("failed", "failures"), ("error", "errors"), ("skipped", "skipped"))
    }
    counts["passed"] = int(suite.get("tests", 0)) - sum(counts.values())
    # What tests/conftest.py adds: a green line must not hide what was left out, or passed at a later try.
    for told in suite.iter("property"):
        counts[told.get("name", "")] = int(told.get("value", 0))
    order = ("failed", "passed", "skipped", "error", "left out", "tried again")
    words = [f"{counts[word]} {word}" for word in order if counts.get(word)]
    return f"{', '.join(words) or 'no tests ran'} in {float(suite.get('time', 0)):.2f}s"


# --- processes ---------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none gets out of sight. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_until_gone(pid: int) -> int:
    """Wait for this child as init would: orphans are reaped as they end, so that tests see them gone."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def take_down_what_is_left() -> Iterator[str]:
    """Wait a moment for the last to end, then kill the rest; each as ``pid command``."""
    deadline = time.monotonic() + LINGERING
    while reap_the_dead() and time.monotonic() < deadline:
        time.sleep(0.05)
    while left := [pid for pid in descendants() if pid != os.getpid()]:
        for pid in left:
            # Named once, before it is killed: after that it has no command line.
            yield f"{pid} {command_of(pid)}"
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + LINGERING
        while any(alive(pid) for pid in left):
            if time.monotonic() > deadline:
                return  # stuck in the kernel; it is named
            reap_the_dead()
            time.sleep(0.02)


def reap_the_dead() -> bool:
    """Reap children that have ended; whether any child is left."""
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if ended == 0:
            return True


def descendants() -> list[int]:
    """All processes below this one, by /proc; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command, in parentheses, may hold anything: the fields that count stand behind the last one.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def command_of(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()[:200]
        )
    except OSError:
        return "?"


class Interruption:
    """Ends the running pytest when a signal comes or the time is up: first as Ctrl-C would, then for good."""

    def __init__(self) -> None:
        self.pid = 0
        self.received = 0
        self.expired = False
        self._timers: list[threading.Timer] = []

    def of(self, pid: int, deadline: float) -> Interruption:
        self.pid = pid
        self._after(max(0.0, deadline - time.monotonic()), self._expire)
        return self

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        self.pid = 0
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._send(signal.SIGINT)
        self.received = self.received or number
        self._after(INTERRUPTED_GRACE, lambda: self._send(signal.SIGKILL))

    def _expire(self) -> None:
        self.expired = True
        self._send(signal.SIGINT)
        self._after(INTERRUPTED_GRACE, lambda: self._send(signal.SIGKILL))

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, then)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _send(self, number: int) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


interruption = Interruption()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

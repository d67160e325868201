"""Stacks of the threads of members' Python processes, asked for from outside.

A process answers if it began with `allaboard.inside.startup`: a signal makes it write its stacks into an
anonymous file, which is read through ``/proc``. One that does not catch that signal is never sent it, because
it would end: its stacks are read by py-spy, where that is installed (``allaboard[stacks]``). Linux only:
elsewhere nobody answers.
"""

# ruff: noqa: PTH115, PTH116, PTH118, PTH119, PTH120, PTH123, PTH208, SIM115  (/proc)

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO

from allaboard.backends.local.host.processes import (
    MEMBER,
    Identity,
    absolute_folders,
    environment,
    find_marked,
    process_of,
    send_signal,
)
from allaboard.diagnosis.recorder import pending_collective, read_records
from allaboard.diagnosis.stacks import ProcessLook, main_thread, spied_stack

SIGNAL = 61
FILE, COLLECTIVES = "memfd:allaboard-stacks", "memfd:allaboard-collectives"
"""All as `allaboard.inside.startup` has them."""
LAST = b"#"
"""Asks for the last collectives, of NCCL's too; as `allaboard.inside.startup` has it."""
ENDPOINT = "memfd:allaboard-token"
"""A file of the process that answers posts (`allaboard.inside.helper.endpoint`): it is none of a script."""
MOST = 1 << 18
"""Bytes of one answer that are read; faulthandler writes up to 100 frames of up to 100 threads."""
BETWEEN = 1.0
PATIENCE = 3.0
"""Seconds that a process has to answer; one in an uninterruptible wait of the kernel does not."""
MOST_RECORD = 1 << 23
"""Bytes of the collectives of one process that are read; 2,000 are 1 MB."""
MOST_SPIED = 64
"""Processes that py-spy reads at once."""
MOST_THREADS = 256
"""Threads of a process that are looked at."""
_SETTLED = 0.05
_OF_TORCH = ("pt_", "gloo_")
"""The names of threads that torch's own code starts begin so in newer versions: the watchdog of NCCL, the
loop of gloo and the store of the rendezvous never rest.
"""


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """One process that was asked. ``parent``: the pid of its parent; ``text``: its stacks as faulthandler
    writes them, or None where it did not answer; ``state``: of its main thread, the kernel's letter (R runs,
    S sleeps, D waits for a disk or a network file system, T is stopped); ``cpu``: seconds that it has
    computed so far; ``at``: when, by a clock that only goes on; ``switches``: thread -> times that it has
    gone to sleep, without those of torch.
    """

    who: Identity
    parent: int
    text: str | None
    state: str
    cpu: float
    at: float
    switches: Mapping[int, int]
    ready: bool = False
    """Another thread than the main one was ready to run."""
    counts: str = ""
    """The numbers of its collectives, as torch's flight recorder writes them."""
    is_asked: bool = True
    """False: it tells no stacks, as a compiler that a rank has started."""


@dataclass(slots=True)
class _Asked:
    """One process that was asked. ``state``, ``ready``: those before the question woke it."""

    who: Identity
    file: str
    before: int
    size: int
    state: str
    ready: bool


@dataclass(slots=True)
class _Spied:
    """One process that py-spy reads."""

    who: Identity
    spy: subprocess.Popen[bytes]
    printed: IO[bytes]


def look_twice(
    mark: str, between: float = BETWEEN, sleep: Callable[[float], None] = time.sleep
) -> tuple[ProcessLook, ...]:
    """Stacks of the processes of a run, by its mark, ``between`` seconds after a first look, which tells
    who computes and who waits. Processes that did not answer have no frames; those that were not asked have
    no rank either.
    """
    looks = TwoLooks(mark, between)
    while (processes := looks.step()) is None:
        sleep(_SETTLED)
    return processes


class TwoLooks:
    """`look_twice` in small steps, for who must not wait: each takes some milliseconds. ``records``: also ask
    those whose collectives stand for the last ones.
    """

    def __init__(self, mark: str, between: float = BETWEEN, *, records: bool = True) -> None:
        self.between, self.records = between, records
        self.asked: AskedRecords | None = None
        self.second: list[ProcessStacks] = []
        self.first: dict[Identity, ProcessStacks] | None = None
        self.round = _Round(find_marked(mark))
        self.again_at = 0.0

    def step(self) -> tuple[ProcessLook, ...] | None:
        """Stacks of the processes; None: not known yet, ask again soon."""
        if self.asked is not None and self.first is not None:
            if not self.asked.is_over():
                return None
            records = self.asked.answers
            return tuple(_look(self.first[each.who], each, records.get(each.who)) for each in self.second)
        if self.first is not None and self.again_at:
            if time.monotonic() < self.again_at:
                return None
            self.round, self.again_at = _Round(self.first), 0.0
        if not self.round.is_over():
            return None
        answers = [*self.round.answers(), *self.round.others()]
        if not any(each.is_asked for each in answers):
            return ()
        if self.first is None:
            self.first = {each.who: each for each in answers}
            self.again_at = time.monotonic() + self.between
            return None
        self.second = answers
        stand = [each.who for each in answers if each.counts and each.counts == self.first[each.who].counts]
        self.asked = AskedRecords(stand if self.records else [])
        return self.step()


class AskedRecords:
    """The last collectives of processes, asked for at once. Each has `PATIENCE` seconds."""

    def __init__(self, members: Iterable[Identity]) -> None:
        self.until = time.monotonic() + PATIENCE
        self.waiting = {who: asked for who in members if (asked := ask_records(who.pid, LAST)) is not None}
        self.answers: dict[Identity, str] = {}

    def is_over(self) -> bool:
        """True if all have answered, or had their time."""
        for who, (path, before) in [*self.waiting.items()]:
            answer = record_of(path, before)
            if answer is not None:
                self.answers[who] = answer
                del self.waiting[who]
        return not self.waiting or time.monotonic() >= self.until


def ask_records(pid: int, question: bytes) -> tuple[str, int] | None:
    """Ask a process for its collectives. The file into which it writes, and when it last wrote there; None:
    it cannot be asked.
    """
    with suppress(OSError):
        path = open_file(pid, COLLECTIVES)
        if path is not None:
            before = os.stat(path).st_mtime_ns
            if ask_collectives(pid, question):
                return path, before
    return None


def record_of(path: str, before: int) -> str | None:
    """The whole answer that a process has written since ``before``; None: it is not there yet. Empty if the
    process is gone.
    """
    try:
        if os.stat(path).st_mtime_ns == before:
            return None
        with open(path, encoding="utf-8", errors="replace") as file:
            answer = file.read(MOST_RECORD).partition("\n")[2]
    except OSError:
        return ""
    return answer if answer.endswith("\n") else None


def _look(before: ProcessStacks, now: ProcessStacks, record: str | None) -> ProcessLook:
    environ = environment(now.who.pid)
    rank = environ.get("RANK", "") if now.is_asked else ""
    passed = max(now.at - before.at, 0.01)
    slept = {
        thread: (times - before.switches[thread]) / passed
        for thread, times in now.switches.items()
        if thread in before.switches
    }
    records = read_records(record) if record else None
    return ProcessLook(
        now.who.pid,
        now.parent,
        int(rank) if rank.isdigit() and len(rank) < 10 else None,
        environ.get(MEMBER, ""),
        main_thread(now.text or ""),
        now.state,
        (now.cpu - before.cpu) / passed,
        pending_collective(records if records is not None else read_records(now.counts)),
        slept.pop(now.who.pid, 0.0),
        max(slept.values(), default=0.0),
        records,
        now.ready,
    )


def ask(
    members: Iterable[Identity], patience: float = PATIENCE, sleep: Callable[[float], None] = time.sleep
) -> list[ProcessStacks]:
    """The stacks of these processes, those of Python that were started to answer; others are left out.

    Waits ``patience`` seconds at most for all of them together. Raises nothing: who is gone, or belongs to
    another user, is left out.
    """
    asking = _Round(members, patience)
    while not asking.is_over():
        sleep(_SETTLED)
    return asking.answers()


class _Round:
    """One round of asking: everybody is asked at once, and has ``patience`` seconds."""

    def __init__(self, members: Iterable[Identity], patience: float = PATIENCE) -> None:
        self.until = time.monotonic() + patience
        those = [*members] if sys.platform.startswith("linux") else []
        asked = [_ask_one(who, path) for who in those if (path := _answers_in(who.pid)) is not None]
        self.asked = [each for each in asked if each is not None]
        # A process that is stopped by a signal does not answer before it goes on.
        self.waiting = [each for each in self.asked if not _is_stopped(each.who.pid)]
        answering = {each.who for each in self.asked}
        self.spied = [*_spies(who for who in those if who not in answering)]
        self.rest = [who for who in those if who not in answering]

    def is_over(self) -> bool:
        self.waiting = [each for each in self.waiting if not _has_settled(each)]
        busy = self.waiting or any(each.spy.poll() is None for each in self.spied)
        return not busy or time.monotonic() >= self.until

    def answers(self) -> list[ProcessStacks]:
        spied = [answer for each in self.spied if (answer := _seen_by(each))]
        return [*(answer for each in self.asked if (answer := _answer(each))), *spied]

    def others(self) -> Iterator[ProcessStacks]:
        """The processes that tell no stacks."""
        spied = {each.who for each in self.spied}
        for who in self.rest:
            if who not in spied and (stacks := _stacks_of(who, None)) is not None:
                yield replace(stacks, is_asked=False)


def _spies(members: Iterable[Identity]) -> Iterator[_Spied]:
    """Have py-spy read these processes, those of Python; nothing where it is not installed."""
    program = _py_spy()
    if program is None:
        return
    for who in islice((who for who in members if _is_python(who.pid)), MOST_SPIED):
        printed = tempfile.TemporaryFile()
        command = [program, "dump", "--nonblocking", "--json", "--pid", str(who.pid)]
        try:
            spy = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.DEVNULL
            )
        except OSError:
            printed.close()
            return
        yield _Spied(who, spy, printed)


def _py_spy() -> str | None:
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy", path=absolute_folders())


def _is_python(pid: int) -> bool:
    try:
        is_python = os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
        return is_python and open_file(pid, ENDPOINT) is None
    except OSError:
        return False


def _seen_by(spied: _Spied) -> ProcessStacks | None:
    """Stacks that py-spy has read; None if it read none: an unknown process is no member."""
    if spied.spy.poll() is None:
        spied.spy.kill()
    spied.spy.wait()
    with spied.printed as file:
        file.seek(0)
        text = spied_stack(file.read(MOST), spied.who.pid)
    return _stacks_of(spied.who, text) if text else None


def _answers_in(pid: int) -> str | None:
    """The file into which a process would write its stacks; None: it must not be asked."""
    try:
        if not _catches(pid, SIGNAL):
            return None
        return open_file(pid, FILE)
    except OSError:
        return None


def open_file(pid: int, name: str) -> str | None:
    """The anonymous file of this name that a process has open. Raises OSError where nobody may look."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            if name in os.readlink(f"/proc/{pid}/fd/{fd}"):
                return f"/proc/{pid}/fd/{fd}"
    return None


def ask_collectives(pid: int, question: bytes = b"?") -> bool:
    """Ask a process for the number of its collective, or what else ``question`` stands for; whether it
    could be asked. The answer is there a little later.
    """
    pipe = f"/proc/{pid}/fd/{_collectives(pid)[0]}"
    with suppress(OSError):
        if not os.readlink(pipe).startswith("pipe:"):
            return False
        ask = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(ask, question) > 0
        finally:
            os.close(ask)
    return False


def _collectives(pid: int) -> tuple[str, str]:
    """(descriptor of the pipe through which a process is asked, its last answer), "" where it was not asked
    or cannot tell; a forked child has the file of its parent, and nobody who answers.
    """
    with suppress(OSError):
        path = open_file(pid, COLLECTIVES)
        if path is not None:
            with open(path, encoding="utf-8", errors="replace") as file:
                head, _, answer = file.read(MOST).partition("\n")
            who, _, pipe = head.partition(" ")
            if who == str(pid) and pipe.isdecimal():
                return pipe, answer
    return "", ""


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal. Raises OSError if its status is not readable."""
    mask = int(_status(pid).get("SigCgt", "0"), 16)
    return bool(mask >> (number - 1) & 1)


def _status(pid: int | str) -> Mapping[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        pairs = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in pairs}


def _ask_one(who: Identity, path: str) -> _Asked | None:
    try:
        size = os.stat(path).st_size
        state, ready = _status(who.pid).get("State", "?")[:1], _is_ready(who.pid, _threads(who.pid))
    except OSError:
        return None
    ask_collectives(who.pid)
    return _Asked(who, path, size, size, state, ready) if send_signal(who, SIGNAL) else None


def _has_settled(asked: _Asked) -> bool:
    """Return whether the answer is there and has not grown since the last look."""
    try:
        size = os.stat(asked.file).st_size
    except OSError:
        return True
    settled = size > asked.before and size == asked.size
    asked.size = size
    return settled


def _answer(asked: _Asked) -> ProcessStacks | None:
    text: str | None = None
    with suppress(OSError), open(asked.file, "rb") as file:
        file.seek(asked.before)
        text = file.read(MOST).decode("utf-8", "replace") or None
    stacks = _stacks_of(asked.who, text)
    return None if stacks is None else replace(stacks, state=asked.state, ready=asked.ready)


def _stacks_of(who: Identity, text: str | None) -> ProcessStacks | None:
    """With what the kernel tells of it; None: it is gone."""
    pid = who.pid
    process = process_of(pid)
    if process is None or process.identity != who:
        return None
    try:
        state = _status(pid).get("State", "?")[:1]
        threads = [*_threads(pid)]
    except OSError:
        return None
    return ProcessStacks(
        who,
        process.parent,
        text,
        state,
        _cpu_seconds(pid),
        time.monotonic(),
        {thread: slept for thread, slept, _ in threads},
        _is_ready(pid, threads),
        _collectives(pid)[1],
    )


def _is_ready(pid: int, threads: Iterable[tuple[int, int, str]]) -> bool:
    return any(letter == "R" for thread, _, letter in threads if thread != pid)


def _threads(pid: int) -> Iterator[tuple[int, int, str]]:
    """(thread, times that it has gone to sleep, the kernel's letter) of a process, without those that torch
    has named. Raises OSError when it is gone.
    """
    for name in islice(os.listdir(f"/proc/{pid}/task"), MOST_THREADS):
        with suppress(OSError):
            status = _status(f"{pid}/task/{name}")
            slept = status.get("voluntary_ctxt_switches", "")
            if slept.isdigit() and (name == str(pid) or not status.get("Name", "").startswith(_OF_TORCH)):
                yield int(name), int(slept), status.get("State", "?")[:1]


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return _status(pid).get("State", "?")[:1] in ("T", "t")
    return False


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; 0 if it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0

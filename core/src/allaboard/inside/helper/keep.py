"""The part of the helper for a job whose checkpoints another library writes (``checkpoints.format: auto``).

At each start of a container `begin` fills in ``{checkpoint}``. Around the command of rank 0 `keep` stays: it
passes on each signal, looks now and then at the folders in which the run saves, has what is whole adopted
(`checkpoints`, a process that ends at once), looks once more when the command has ended, and ends as the
command did. From a SIGTERM on all of that has the pod's grace period.

With ``checkpoints.folder`` that process copies the newest into the bucket, too. One that fails is started
again, later each time.
"""

# ruff: noqa: PTH118, PTH120, SIM105  (modules that are slow to import)

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is slow to import
import json
import os
import subprocess
import sys
import time

TYPE_CHECKING = False  # as in `start`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ARCHIVE = "checkpoints.zip"
EVERY = 15.0
"""Seconds between two looks at names and times."""
LONGEST, LONGEST_AFTER_FAILURE = 600.0, 60.0
"""Seconds that the end of a command waits for the sums of its last checkpoints."""
MARGIN = 2.0
"""Seconds of the grace period that are left unused."""
BEGINNING = 300.0
"""Seconds that the choice of a checkpoint may take, but for what is fetched: its bytes come or fail."""
COPIES = b"ALLABOARD_HELP_COPIES"
"""Variable: the place that takes copies of the checkpoints."""
LONGEST_COPY = 3600.0
"""Seconds that the end of a command waits for the copy of its last checkpoint."""
NOT_COPIED = 75
"""Exit code of the process that copies where another try may succeed."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds until a copy that failed is tried again, doubling each time."""
LAST_TRIES = 3
_FAILED = "the checkpoints cannot be judged"
_FAULTS = ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGABRT", "SIGSYS")
"""Signals that are never passed on: the kernel's to this process."""


class Unfilled(Exception):
    """The command cannot be filled in. Its text is a sentence."""


def begin(
    here: str, command: list[bytes], environment: dict[bytes, bytes]
) -> tuple[list[bytes], dict[bytes, bytes], bool]:
    """(the command and its variables, filled in; whether rank 0 is here). Writes lines into the log. Raises
    Unfilled.
    """
    given = {
        "command": [os.fsdecode(word) for word in command],
        "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
    }
    try:
        output, errors = _started(here, json.dumps(given).encode(), environment)
        if not output:
            raise Unfilled(f"{_FAILED}: {errors.decode('utf-8', 'replace').strip().rpartition(chr(10))[2]}")
        answer = json.loads(output)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Unfilled(f"{_FAILED}: {error}") from None
    if "error" in answer:
        raise Unfilled(answer["error"])
    for line in answer["lines"]:
        os.write(1, f"allaboard: {line}\n".encode("utf-8", "backslashreplace"))
    filled = [os.fsencode(word) for word in answer["command"]]
    variables = {os.fsencode(name): os.fsencode(value) for name, value in answer["environment"].items()}
    return filled, variables, bool(answer["leads"])


def _started(here: str, given: bytes, environment: dict[bytes, bytes]) -> tuple[bytes, bytes]:
    """Output and errors of the process that fills in. At a SIGTERM nothing is started, and this process
    ends.
    """
    log, pipe = os.dup(1), subprocess.PIPE
    command = _arguments(here, "start", str(log))
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, pass_fds=[log])
    os.close(log)

    def end(number: int, frame: object) -> None:
        process.kill()
        os._exit(128 + number)

    # A first process, for which no signal does anything by itself, would have all of the grace period pass.
    before = _signal.signal(_signal.SIGTERM, end) if COPIES in environment else None
    try:
        return process.communicate(given, None if COPIES in environment else BEGINNING)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    finally:
        if before is not None:
            _signal.signal(_signal.SIGTERM, before)


def keep(here: str, become: Callable[[], None], environment: dict[bytes, bytes]) -> None:
    """Start the command as a child and stay until it has ended. ``become``: turns a process into it. Returns,
    and raises, only before there is a child.
    """
    from endpoint import anonymous_file, libc_of_process  # type: ignore[import-not-found]

    anonymous_file("allaboard-keeper", libc_of_process())  # py-spy is not sent to who has it
    own = os.fsdecode(environment[b"ALLABOARD_CHECKPOINTS"])
    sys.path.insert(0, os.path.join(here, ARCHIVE))
    from allaboard.checkpoints.foreign.changes import times_below

    faults = {getattr(_signal, name) for name in _FAULTS}
    # SIGCHLD may be ignored, by whoever started this process: then no end of a child is told.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - faults)
    command = os.fork()
    if command == 0:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
        become()
    keeper = Keeper(
        command,
        lambda: times_below(own, os.path.dirname(own)),
        lambda again: _start_adopting(here, environment, before, again),
        _grace(environment.get(b"ALLABOARD_GRACE", b"")),
        COPIES in environment,
    )
    try:
        status = keeper.wait()
    except Exception:  # the command goes on, whatever the helper cannot do
        status = os.waitpid(command, 0)[1] if keeper.status is None else keeper.status
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


class Keeper:
    """Waits for a command and has its checkpoints adopted. ``look``: a value that changes when one is
    written; ``adopt``: starts a process and returns its pid, told whether the one before failed; ``grace``:
    seconds from SIGTERM to SIGKILL; ``copies``: the process copies, too.
    """

    def __init__(
        self,
        command: int,
        look: Callable[[], object],
        adopt: Callable[[bool], int],
        grace: float,
        copies: bool = False,
    ) -> None:
        self._command, self._look, self._adopt, self._grace = command, look, adopt, grace
        self._copies, self._failures, self._next = copies, 0, 0.0
        self._adopter = 0
        self._seen: object = []
        self.status: int | None = None
        self._deadline: float | None = None

    def wait(self) -> int:
        """The status of the command, as of waitpid(2), once that and the last look have ended."""
        due = time.monotonic() + EVERY
        while True:
            now = time.monotonic()
            if self.status is not None and (self._adopter == 0 or now >= (self._deadline or 0)):
                seen = self._look()
                is_over = self._adopter or now >= (self._deadline or 0) or self._failures >= LAST_TRIES
                if is_over or seen == self._seen:
                    self._end_adopter()
                    self._tell_of_copies()
                    return self.status
                if now >= self._next:
                    self._start(seen)
            elif self._adopter == 0 and now >= max(due, self._next):
                due = now + EVERY
                if (seen := self._look()) != self._seen:
                    self._start(seen)
            until = now + EVERY if self._adopter else max(due, self._next)
            if self.status is not None:
                until = self._deadline or now
                until = until if self._adopter else min(until, max(now, self._next))
            heard = _signal.sigtimedwait(_signal.valid_signals(), max(0.05, until - time.monotonic()))
            if heard is not None:
                self._hear(heard)
            self._reap()

    def _start(self, seen: object) -> None:
        self._seen = seen
        try:
            self._adopter = self._adopt(self._failures > 0)
        except OSError:  # no process is to be had; what has changed since is seen again
            self._seen = None if self.status is None else seen

    def _hear(self, heard: Any) -> None:
        if heard.si_signo == _signal.SIGCHLD:
            return
        if heard.si_signo == _signal.SIGTERM:
            self._set_deadline(self._grace - MARGIN)
        # What the kernel sends (Ctrl-C of a terminal) all of the group has.
        if self.status is None and heard.si_code <= 0:
            try:
                os.kill(self._command, heard.si_signo)
            except OSError:
                pass

    def _set_deadline(self, seconds: float) -> None:
        end = time.monotonic() + max(0.0, seconds)
        self._deadline = end if self._deadline is None else min(end, self._deadline)

    def _reap(self) -> None:
        """Take the ends of all children, as a first process must."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._adopter:
                self._adopter = 0
                self._judge(status)
            if pid == self._command:
                self.status = status
                self._failures, self._next = min(self._failures, 1), 0.0
                longest = LONGEST if status == 0 else LONGEST_AFTER_FAILURE
                self._set_deadline(LONGEST_COPY if self._copies else longest)

    def _judge(self, status: int) -> None:
        """Decide on the next try, by the end of a process that copies."""
        if not self._copies or status == 0:
            self._failures, self._next = 0, 0.0
            return
        self._seen = None
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
        self._failures, self._next = self._failures + 1, time.monotonic() + pause

    def _tell_of_copies(self) -> None:
        """Say that the last checkpoint is in no bucket, as a report line tells it."""
        if self._copies and (self._adopter or self._failures):
            text = "the last checkpoint of the folder is not copied yet; the next start with this folder does"
            report = {"v": 1, "kind": "flag", "code": "checkpoints_not_copied", "text": text}
            os.write(1, f"[allaboard] {json.dumps(report, separators=(',', ':'))}\n".encode())

    def _end_adopter(self) -> None:
        if self._adopter:
            os.kill(self._adopter, _signal.SIGKILL)


def _start_adopting(here: str, environment: dict[bytes, bytes], mask: Any, again: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        os.setpgid(0, 0)
        os.nice(10)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 2)
        arguments = _arguments(here, "adopt", *(["again"] if again else []))
        os.execve(arguments[0], arguments, environment)
    finally:
        os._exit(127)


def _arguments(here: str, *own: str) -> list[str]:
    return [sys.executable, "-E", "-s", "-S", os.path.join(here, ARCHIVE), *own]


def _grace(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 30.0

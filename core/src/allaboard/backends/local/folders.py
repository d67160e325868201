"""Where a run keeps its state on this machine, and how files there change: atomically, so that a reader never
sees half.

<home>/local/<machine>/format                     the version of all below
<home>/local/<machine>/runs/<run>/record.json     the run record; record.lock guards its changes
                           .../<g>-<n>/           generation g, attempt n
                                plan.json         what the supervisor runs (no environment, no secret)
                                state.json        what is seen, rewritten as a whole
                                events.jsonl      events, appended
                                live.lock         held while supervisor or keeper live
                                wake              a pipe: a byte wakes the supervisor
                                requests/         what people ask for, one file each
                                client            touched by followers
                                logs/<member>.<try>.log   output, as written
                                logs/<member>.<try>.times  offset and time, now and then
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allaboard.backends.local.machine import machine_id
from allaboard.errors import SiteError

FORMAT = "1"


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """The files of one attempt."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def live(self) -> Path:
        return self.path / "live.lock"

    @property
    def wake(self) -> Path:
        return self.path / "wake"

    @property
    def requests(self) -> Path:
        return self.path / "requests"

    @property
    def client(self) -> Path:
        return self.path / "client"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    def log(self, member: str, number: int) -> Path:
        return self.logs / f"{member}.{number}.log"

    def make(self) -> None:
        """Create it, empty, for a supervisor to come."""
        for folder in (self.path, self.requests, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkfifo(self.wake, 0o600)
        self.live.touch()
        self.client.touch()

    def is_live(self) -> bool:
        """Whether supervisor or keeper live: somebody holds the lock."""
        try:
            fd = os.open(self.live, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def ask(self, name: str, body: Mapping[str, Any]) -> None:
        """Leave a request for the supervisor and wake it. Nobody, if the run was deleted meanwhile."""
        with suppress(FileNotFoundError):
            write_json(self.requests / f"{name}.json", body)
            self.poke()

    def poke(self) -> None:
        """Wake the supervisor; nobody listening is no error."""
        try:
            fd = os.open(self.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                raise
            return
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(fd, b"!")
        os.close(fd)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def lock(self) -> Path:
        return self.path / "record.lock"

    def attempt(self, generation: int, attempt: int) -> AttemptFolder:
        return AttemptFolder(self.path / f"{generation}-{attempt}")

    def attempts(self) -> list[AttemptFolder]:
        """All that are there, oldest first."""
        found = []
        for entry in self.path.iterdir() if self.path.is_dir() else ():
            generation, _, attempt = entry.name.partition("-")
            if generation.isdecimal() and attempt.isdecimal():
                found.append((int(generation), int(attempt), entry))
        return [AttemptFolder(path) for _, _, path in sorted(found)]


def runs_folder(home: str) -> Path:
    """The runs of this machine below a home, made if it is not there. A home on a shared disk serves many
    machines.

    Raises SiteError when a newer allaboard wrote it, or when it may not be written.
    """
    base = Path(home) / "local" / machine_id()[:12]
    marker = base / "format"
    try:
        (base / "runs").mkdir(parents=True, exist_ok=True)
        version = marker.read_text().strip() if marker.exists() else ""
        if not version:
            write_text(marker, FORMAT + "\n")
            version = FORMAT
    except OSError as error:
        raise SiteError(
            f"{base} cannot be used for runs: {error.strerror}; "
            "set ALLABOARD_HOME to a folder that this user may write"
        ) from error
    if version != FORMAT:
        raise SiteError(
            f"{base} was written in format {version}, and this allaboard reads format {FORMAT}; "
            "use the allaboard that wrote it, or set ALLABOARD_HOME to another folder"
        )
    return base / "runs"


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole; readers see the old or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Half a surrogate pair, as in a name that is no UTF-8, is written as JSON's escape for it.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, body: Any) -> None:
    write_text(path, json.dumps(body, ensure_ascii=False, separators=(",", ":")))


def read_json(path: Path) -> Any:
    """The JSON in a file; None when there is none."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SiteError(
            f"{path} is damaged ({error}); delete the run's folder {path.parent} if it is not needed"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold a file's lock. It goes with the process, however that ends. The file may be removed by who holds
    it.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # its folder went in between
        fcntl.flock(fd, fcntl.LOCK_EX)
        if _is_still(path, fd):
            break
        os.close(fd)  # who held it before us removed it: what we locked is no longer the file of that name
    try:
        yield fd
    finally:
        os.close(fd)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False

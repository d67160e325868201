"""Files in which a run keeps its state on this machine. They change atomically: a reader never sees half a
file.

<home>/local/<machine>/format                     the version of all below
<home>/local/<machine>/housekeeping.lock          when it was last tidied up here; held while somebody does
                   .../housekeeping.json          what could not be removed, and whether that was told
<home>/local/<machine>/removed/                   what is being removed; nothing there counts any more
<home>/local/<machine>/runs/<run>/record.json     the run record; record.lock guards its changes
                           .../<g>-<n>/           generation g, attempt n
                                plan.json         what the supervisor runs (no environment, no secret)
                                state.json        what is seen, rewritten as a whole
                                events.jsonl      events, appended
                                live.lock         held while supervisor or keeper live
                                wake              a pipe: a byte wakes the supervisor
                                requests/         what people ask for, one file each
                                client            touched by followers
                                code/             the files that the job ships, as they were at its launch
                                logs/<member>.<try>.log   output, as written
                                logs/<member>.<try>.times  offset and time, now and then
                                reserve           room for the last word on a full disk
                                scratch-<n>/      of an empty_dir of the job
                                ephemeral-<n>/    of an ephemeral volume; goes when the attempt has ended
                           .../claims/<name>/     of a claim that is kept for the run
<home>/claims/<name>/                             of a claim that is kept always; nothing removes it

All of it is private to its user (0700, 0600), whatever the umask: logs and jobs hold what is not meant for
others, and whoever may open ``live.lock`` may hold it. Nothing here is made by looking.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from allaboard.backends.local.host.machine import machine_id
from allaboard.backends.local.host.shared_files import READ, user_name
from allaboard.errors import SiteError
from allaboard.text.untrusted import RECORDS, Unreadable, parse_json, show

FORMAT = "1"
DAMAGED = "run_damaged"
"""The code of the error that says which file of a run cannot be read, and the flag of such a run."""
NEWER = "run_newer"
"""The code of the error about a run that only a newer allaboard can read, and the flag of such a run."""
HOUSEKEEPING = "housekeeping.lock"
_RESERVED = 1 << 16
CLAIMS = "claims"
"""The folder of a run, and of a home, that holds claims."""
EPHEMERAL = "ephemeral-"
"""Prefix of an attempt's folders that go when the attempt has ended."""
_HOME_HOLDS = frozenset({"local", "secrets", "store", "bugs", CLAIMS})
_FULL = (errno.ENOSPC, errno.EDQUOT)


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
    def code(self) -> Path:
        return self.path / "code"

    @property
    def setup(self) -> Path:
        """Folder in which each member has what it fetches and installs before its command."""
        return self.path / "setup"

    @property
    def client(self) -> Path:
        return self.path / "client"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def reserve(self) -> Path:
        return self.path / "reserve"

    def log(self, member: str, number: int) -> Path:
        return self.logs / f"{member}.{number}.log"

    def make(self) -> None:
        """Create it, empty, for a supervisor to come."""
        for folder in (self.path, self.requests, self.logs):
            make_private(folder)
        with suppress(FileExistsError):
            os.mkfifo(self.wake, 0o600)
            self.wake.chmod(0o600)
        for file in (self.live, self.client, self.supervisor_log):
            open_private(file, "a").close()
        with open_private(self.reserve, "w") as reserve:
            reserve.write(" " * _RESERVED)

    def make_room(self) -> None:
        """Free the reserved space: the disk is full, and the final state must be written."""
        with suppress(OSError):
            self.reserve.unlink()

    def is_live(self) -> bool:
        """Return whether the supervisor or the keeper lives: one of them holds the lock."""
        return is_held(self.live)

    def write_request(self, name: str, body: Mapping[str, Any]) -> None:
        """Write a request for the supervisor and wake it; requests are read in the order in which they were
        written. Does nothing if the run was deleted meanwhile.
        """
        with suppress(FileNotFoundError):
            write_json(self.requests / f"{time.monotonic_ns():020d}-{name}.json", body)
            self.wake_supervisor()

    def wake_supervisor(self) -> None:
        """Wake the supervisor; no error if it is gone."""
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

    @property
    def trash(self) -> Path:
        return self.path.parent.with_name("removed")

    def attempt(self, generation: int, attempt: int) -> AttemptFolder:
        return AttemptFolder(self.path / f"{generation}-{attempt}")

    def attempts(self) -> list[AttemptFolder]:
        """All that are there, oldest first."""
        folders = []
        for entry in self.path.iterdir() if self.path.is_dir() else ():
            generation, _, attempt = entry.name.partition("-")
            if generation.isdecimal() and attempt.isdecimal():
                folders.append((int(generation), int(attempt), entry))
        return [AttemptFolder(path) for _, _, path in sorted(folders)]


def runs_folder(home: str) -> Path:
    """The runs of this machine below a home; it need not be there yet (`prepare` makes it). A home on a
    shared disk serves many machines.

    Raises SiteError if a newer allaboard wrote it, if it cannot be read, or if it belongs to another user.
    """
    base = Path(home) / "local" / machine_id()[:12]
    with translate_disk_errors(home):
        if not _exists(base):
            return base / "runs"
        _make_own(base)
        try:
            with open_plain(base / "format") as file:
                version = file.read(100).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            version = ""
    if version not in (FORMAT, ""):
        raise SiteError(
            f"{base} was written in format {show(version, 20, quote=False)}, and this allaboard reads format "
            f"{FORMAT}; use the allaboard that wrote it, or set ALLABOARD_HOME to another folder"
        )
    return base / "runs"


def prepare(home: str) -> None:
    """Make what runs need below a home, and make it private. Raises SiteError when it may not be written."""
    runs = runs_folder(home)
    base, top = runs.parent, Path(home)
    with translate_disk_errors(home):
        if not _exists(top):
            top.parent.mkdir(parents=True, exist_ok=True)
            make_private(top)
        elif not _exists(base):
            _close_home(top)
        for folder in (base.parent, base, runs):
            make_private(folder)
        if not _exists(base / "format"):
            open_private(base / HOUSEKEEPING, "a").close()  # there is nothing yet to tidy up
            write_text(base / "format", FORMAT + "\n")


def _exists(path: Path) -> bool:
    """Return whether a path exists. Unlike `Path.exists`, raises for a path that cannot be read."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def _make_own(base: Path) -> None:
    """Refuse a folder of another user, and make a folder of this user private."""
    info = base.stat()
    if info.st_uid != os.geteuid() and info.st_uid != _owner_on_this_disk(base):
        owner = user_name(info.st_uid)
        raise SiteError(
            f"{base} belongs to {owner}, and runs are private to their user; work as {owner}, or set "
            "ALLABOARD_HOME to a folder of your own",
            code="home_of_another",
        )
    if stat.S_IMODE(info.st_mode) & 0o077:
        with suppress(OSError):  # read-only, or a disk without modes
            _close_home(base.parent.parent)
            for folder in (base, *base.glob("runs/*")):
                folder.chmod(0o700)


def _close_home(home: Path) -> None:
    """Make an open home private, unless the folder holds other files as well."""
    info = home.stat()
    is_home = home.name == ".allaboard" or {p.name for p in home.iterdir()} <= _HOME_HOLDS
    if is_home and info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) & 0o077:
        home.chmod(0o700)


def _owner_on_this_disk(folder: Path) -> int | None:
    """The owner of files that this process creates there: some network disks have one owner for all files."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return None


def make_private(folder: Path) -> None:
    """Make a folder with mode 0700, whatever the umask, and its missing parents. A folder that is removed
    meanwhile is made again.
    """
    if not _exists(folder.parent):
        make_private(folder.parent)
    while True:
        try:
            folder.mkdir(0o700)
            folder.chmod(0o700)
            return
        except FileExistsError:
            try:
                is_folder = stat.S_ISDIR(folder.stat().st_mode)
            except FileNotFoundError:
                if not folder.is_symlink():
                    continue  # it went in between
                is_folder = False  # a link to nowhere
            if is_folder:
                return
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        except FileNotFoundError:
            if not _exists(folder.parent):
                raise


def open_private(path: Path, mode: str) -> IO[str]:
    """A text file for its user alone, to write or append to; half a surrogate pair, as in a name that is no
    UTF-8, is written as JSON's escape for it.
    """
    return open(path, mode, encoding="utf-8", errors="backslashreplace", opener=_private)


def _private(path: str, flags: int) -> int:
    """Opens for the user alone, whatever the umask. Links are not followed, and pipes not waited for."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    if stat.S_IMODE(info.st_mode) != 0o600:
        with suppress(OSError):  # a disk without modes
            os.fchmod(fd, 0o600)
    return fd


@contextmanager
def translate_disk_errors(home: str) -> Iterator[None]:
    """Turn errors of the disk into a SiteError that says what to do."""
    try:
        yield
    except OSError as error:
        raise SiteError(_describe_disk_error(home, error), code=_code(error)) from error


def _code(error: OSError) -> str:
    return "home_full" if error.errno in _FULL else "home_unusable"


def _describe_disk_error(home: str, error: OSError) -> str:
    path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else home
    if not Path(path).is_relative_to(home) and not Path(home).is_relative_to(path):
        return f"{path}: {error.strerror}"
    shown = path if len(path) < 200 else f"{path[:100]}...{path[-60:]}"
    other = "set ALLABOARD_HOME to a folder that this user may write"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            trouble, remedy = "no space is left", "free some there, or set ALLABOARD_HOME to another disk"
        case errno.EROFS:
            trouble, remedy = "the disk is read-only", other
        case errno.EACCES | errno.EPERM:
            trouble, remedy = "permission denied", other
        case errno.ENOTDIR | errno.EEXIST:
            trouble, remedy = "a file is where a folder should be", f"move it away, or {other}"
        case errno.ENAMETOOLONG:
            trouble, remedy = "the path is too long", "set ALLABOARD_HOME to a shorter one"
        case errno.ELOOP:
            trouble, remedy = "its links lead in a circle or elsewhere", other
        case _:
            trouble, remedy = error.strerror or str(error), f"see to that disk, or {other}"
    return f"the home of runs cannot be used: {shown}: {trouble}; {remedy}"


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole; readers see the old or the new."""
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}")  # threads write beside each other
    try:
        with open_private(temporary, "w") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, body: Any) -> None:
    write_text(path, json.dumps(body, ensure_ascii=False, separators=(",", ":")))


def open_plain(path: Path) -> BinaryIO:
    """A regular file, to read, without waiting. Raises OSError for anything else: a pipe would never
    answer, a device never end, a link lead anywhere.
    """
    fd = os.open(path, READ)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise OSError(errno.EINVAL, "is not a regular file", str(path))


def read_json(path: Path) -> Any:
    """The JSON in a file of a run; None when there is none. Raises SiteError (`DAMAGED`) for another
    content.
    """
    try:
        with open_plain(path) as file:
            data = file.read(RECORDS.size + 1)
        return parse_json(data, RECORDS, spelling=False, any_text=True, unique=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Unreadable as error:
        raise damaged_error(path, str(error)) from error
    except OSError as error:
        if error.errno not in _NOT_PLAIN:
            raise
        raise damaged_error(path, "is a folder" if path.is_dir() else "is not a regular file") from error


_NOT_PLAIN = (errno.EINVAL, errno.ELOOP, errno.EMLINK, errno.ENXIO)


def newer_error(path: Path, version: int, known: int) -> SiteError:
    """The error about a file of a newer version that this one cannot read; nothing is wrong with it."""
    return SiteError(
        f"run {show(_run_of(path))} was made by a newer allaboard: {path.name} is of version {version}, this "
        f"one reads {known}; use the newer one",
        code=NEWER,
    )


def unreadable_error(path: Path, body: Any, known: int, trouble: str) -> SiteError:
    """The error about a file whose content is not what this version expects."""
    version = body.get("version") if isinstance(body, dict) else None
    if type(version) is int and version > known:
        return newer_error(path, version, known)
    return damaged_error(path, trouble)


def damaged_error(path: Path, trouble: str) -> SiteError:
    """The error that says what is wrong with a file of a run, and what to do."""
    run = _run_of(path)
    return SiteError(
        f"run {show(run)} is damaged: {show(str(path), 300, quote=False)} {trouble}; restore the file, or "
        f"remove what is left of the run: `allaboard delete {show(run, quote=False)}`",
        code=DAMAGED,
    )


def _run_of(path: Path) -> str:
    return next((p.name for p in (path, *path.parents) if p.parent.name == "runs"), path.parent.name)


def discard(path: Path, trash: Path) -> None:
    """Remove a file, a link or a folder atomically, by a rename into ``trash``; leftovers in ``trash`` are
    ignored. Nothing behind a link is touched. Raises SiteError if something cannot be removed.
    """
    discarded = trash / f"{path.parent.name}.{path.name}.{secrets.token_hex(4)}"
    try:
        make_private(trash)
        path.rename(discarded)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in _FULL:  # this must work on a full disk
            raise _not_removed_error(path, error) from error
        discarded = path
    remove(discarded)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder where it is. Raises SiteError for what stays."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            _make_removable(path)
            shutil.rmtree(path)
    except FileNotFoundError:  # another process removes it, too
        pass
    except OSError as error:
        raise _not_removed_error(path, error) from error


def _make_removable(top: Path) -> None:
    """Restore the user's access to folders that a member made inaccessible."""
    with suppress(OSError):
        top.chmod(0o700)
    for folder, names, _ in os.walk(top):
        for name in names:
            with suppress(OSError):
                if not (path := Path(folder, name)).is_symlink():
                    path.chmod(0o700)


def _not_removed_error(path: Path, error: OSError) -> SiteError:
    at = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(path)
    inside = "" if at == str(path) else f"{show(at, 300, quote=False)}: "
    return SiteError(
        f"{show(str(path), 300, quote=False)} cannot be removed: {inside}{error.strerror}; remove it by hand",
        code="not_removed",
    )


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[int]:
    """Hold a file's lock and yield its descriptor. The kernel frees the lock when the process ends. The
    holder may remove the file. Without ``wait``: raises BlockingIOError if another process holds it.
    """
    while True:
        make_private(path.parent)
        try:
            fd = _private(str(path), os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # its folder went in between
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        if is_same_file(path, fd):
            break
        os.close(fd)  # the previous holder removed the file: the locked file no longer has this name
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Wait until a file's lock is free, and hold it. Creates nothing: a missing file has no holder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        yield
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Return whether a process holds a file's lock. Creates nothing and does not wait."""
    try:
        # For reading: also where the disk has become read-only under a run.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def is_same_file(path: Path, fd: int) -> bool:
    """Return whether the open file is the file of this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False

"""A store that is a folder on a disk. Standard library only.

**Whole or not at all.** Bytes go to a temporary name in the folder where they will stay (a rename across
file systems is a copy), are flushed to the disk, get their final name by one rename, and the folder is
flushed too: without that the *name* may be lost in a power cut although the bytes are not. An exclusive
create links the finished file to its name instead of renaming it, which fails when the name is taken; so
nobody ever sees a created object that is half written, as they would with O_EXCL on the final name.

**What killed writers leave.** A temporary name tells the machine and the process that wrote it. When that
process is gone the file goes with the next write or delete beside it; where we cannot know (another machine
or container, a process id in use again) it goes when it is a day old. Ages are measured against a file
written just now, so that a file server's clock may differ from ours. No locks: on a file server with a
broken lock service they hang.

**Links.** Reading follows symbolic links. Writing and deleting do so only while they stay inside the folder
that was opened: a link in a shared folder must not lead our bytes elsewhere. Links to folders are not
listed, so that a loop of them cannot hang a reader.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat as _stat
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from allaboard.errors import (
    BadInput,
    StorageConflict,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageMissing,
    StorageUnreachable,
    StorageUnsupported,
)
from allaboard.storage.base import OWN, Entry, Progress, checked_key, checked_prefix, checked_range
from allaboard.text.units import show_bytes

_TEMP = re.compile(re.escape(OWN) + r"([0-9a-f]{8})-([0-9]+)-[0-9a-f]{8}\.tmp")
_CHUNK = 8 * 2**20
_DAY = 86400.0
_SWEEP_EVERY = 3600.0  # seconds between two sweeps of the same folder by one process
_TRIES = 20  # a folder that was just made may be removed by a delete() that found it empty


class DiskStore:
    """Everything below the folder ``root`` (absolute); it need not exist before the first write."""

    def __init__(
        self, root: Path, *, fence: Path | None = None, swept: dict[str, float] | None = None
    ) -> None:
        self._root = root
        self._fence = fence or root  # the folder that was opened; `below` keeps it
        self._swept = {} if swept is None else swept  # folder -> time of this process's last sweep

    def __repr__(self) -> str:
        return f"DiskStore({self.uri!r})"

    @property
    def uri(self) -> str:
        return str(self._root)

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        prefix = checked_prefix(prefix)
        return _walk(self._path(prefix), f"{prefix}/" if prefix else "")

    def folders(self, prefix: str = "") -> list[str]:
        path = self._path(checked_prefix(prefix))
        return sorted(
            item.name for item in _listing(path) if _is_folder(item) and _holds_objects(Path(item.path))
        )

    def stat(self, key: str) -> Entry | None:
        path = self._path(checked_key(key))
        with translate_os_errors(path, "looking at"):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Entry(key, status.st_size, status.st_mtime) if _stat.S_ISREG(status.st_mode) else None

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        checked_range(start, length)
        path = self._path(checked_key(key))
        with _open_for_reading(path) as file, translate_os_errors(path, "reading"):
            file.seek(start)
            return file.read(-1 if length is None else length)

    def write(self, key: str, data: bytes) -> None:
        with self._new(key) as (path, file), translate_os_errors(path, "writing"):
            file.write(data)

    def create(self, key: str, data: bytes) -> None:
        with self._new(key, exclusive=True) as (path, file), translate_os_errors(path, "writing"):
            file.write(data)

    def upload(self, path: Path, key: str, progress: Progress | None = None) -> None:
        with _open_for_reading(path) as source, self._new(key) as (target, file):
            _copy(source, path, file, target, progress)

    def download(self, key: str, path: Path, progress: Progress | None = None) -> None:
        source_path = self._path(checked_key(key))
        with _open_for_reading(source_path) as source, replace_on_success(path) as file:
            copied = _copy(source, source_path, file, path, progress)
            size = os.fstat(source.fileno()).st_size
            if copied != size:
                raise StorageUnreachable(
                    f"{source_path}: only {copied} of {size} bytes read, {path} was not written; try again"
                )

    def copy(self, source: str, key: str) -> None:
        source_path, path = self._path(checked_key(source)), self._path_inside(checked_key(key))
        with _open_for_reading(source_path):
            pass  # checked before anything is written
        if not _linked(Path(os.path.realpath(source_path)), path):
            self.upload(source_path, key)

    def delete(self, keys: Iterable[str]) -> None:
        touched: set[Path] = set()
        for path in [self._path_inside(checked_key(key)) for key in keys]:
            with translate_os_errors(path, "deleting"):
                if path.is_dir() and not path.is_symlink():
                    continue  # a folder is no object
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                    touched.add(path.parent)
        for folder in touched:
            with translate_os_errors(folder, "deleting below"):
                self._remove_empty(folder)

    def below(self, prefix: str) -> DiskStore:
        return DiskStore(self._path(checked_prefix(prefix)), fence=self._fence, swept=self._swept)

    def above(self) -> DiskStore:
        if self._root == self._root.parent:
            raise BadInput(f"store {self.uri!r}: no folder holds it; give a folder below it")
        return DiskStore(self._root.parent)

    def local_path(self, key: str = "") -> Path:
        return self._path(checked_prefix(key))

    def _path(self, key: str) -> Path:
        if not key:
            return self._root
        path = self._root / key
        if path.parts[len(self._root.parts) :] != tuple(key.split("/")):  # 'C:' or a backslash on Windows
            raise BadInput(
                f"storage key {key!r} is not a file below {self._root}; use letters, digits, '-', '_' and '.'"
            )
        return path

    def _path_inside(self, key: str) -> Path:
        """The path to write ``key`` to. `StorageDenied` when a link leads it out of the folder that was
        opened.
        """
        path = self._path(key)
        real = Path(os.path.realpath(path.parent))
        fence = Path(os.path.realpath(self._fence))
        if not real.is_relative_to(fence):
            raise StorageDenied(
                f"{path}: a symbolic link leads out of {self._fence} to {real}, so nothing was written or "
                f"deleted; remove the link, or open the store at {real}"
            )
        return path

    @contextmanager
    def _new(self, key: str, *, exclusive: bool = False) -> Iterator[tuple[Path, BinaryIO]]:
        path = self._path_inside(checked_key(key))
        with replace_on_success(path, exclusive=exclusive, made=self._sweep_around) as file:
            self._sweep(path.parent, os.fstat(file.fileno()).st_mtime)
            yield path, file

    def _sweep(self, folder: Path, now: float) -> None:
        """Remove what killed writers left in ``folder``; ``now`` by the clock of its file system."""
        last = self._swept.get(str(folder))
        if last is None or time.monotonic() - last > _SWEEP_EVERY:
            self._swept[str(folder)] = time.monotonic()
            sweep(folder, now)

    def _sweep_around(self, folder: Path) -> None:
        """Sweep the siblings of a new ``folder``: a killed writer may have left one that no process will use
        again.
        """
        if self._fence not in folder.parents or str(folder.parent) in self._swept:
            return
        now = folder.stat().st_mtime
        self._sweep(folder.parent, now)
        with suppress(OSError, StorageError):
            for item in _listing(folder.parent):
                if _is_folder(item) and item.name != folder.name and sweep(Path(item.path), now):
                    with suppress(OSError):  # it holds more than leftovers
                        Path(item.path).rmdir()

    def _remove_empty(self, folder: Path) -> None:
        with suppress(FileNotFoundError):
            sweep(
                folder, folder.stat().st_mtime
            )  # the file system's clock: this process has just changed the folder
            _sync_folder(folder)
        while folder != self._root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # another process was faster
            except OSError:
                return  # not empty, or no permission: it stays
            folder = folder.parent


def sweep(folder: Path, now: float) -> int:
    """Remove the temporary files in ``folder`` whose writers are gone; how many went.

    ``now`` is the time by the clock of its file system. Raises nothing: what cannot be removed stays.
    """
    removed = 0
    with suppress(OSError, StorageError):
        for item in _listing(folder):
            match = _TEMP.fullmatch(item.name)
            if match and (_writer_is_gone(match[1], int(match[2])) or _is_old(item, now)):
                with suppress(OSError):
                    Path(item.path).unlink()
                    removed += 1
    return removed


def _writer_is_gone(machine: str, pid: int) -> bool:
    if machine != _machine() or sys.platform == "win32":  # there, signal 0 is Ctrl-C
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _is_old(item: os.DirEntry[str], now: float) -> bool:
    with suppress(OSError):
        return now - item.stat(follow_symlinks=False).st_mtime > _DAY
    return False


@contextmanager
def replace_on_success(
    path: Path, *, exclusive: bool = False, made: Callable[[Path], None] = lambda folder: None
) -> Iterator[BinaryIO]:
    """A file to write to that appears under ``path`` when the block ends, durable; when the block raises,
    nothing happened.

    Missing folders are made, and ``made`` gets the uppermost. With ``exclusive``: `StorageConflict` when
    ``path`` exists.
    """
    with translate_os_errors(path, "writing"):
        temp, fd = _open_temp(path.parent, made)
    with _temporary(temp, fd) as unnamed:
        yield unnamed.file
        unnamed.keep(path, exclusive=exclusive)


@contextmanager
def unnamed_file(folder: Path) -> Iterator[Unnamed]:
    """A file to write to in ``folder`` (made when missing) that gets its name once it is complete; without
    one it is gone when the block ends.
    """
    with translate_os_errors(folder, "writing to"):
        temp, fd = _open_temp(folder, lambda uppermost: None)
    with _temporary(temp, fd) as unnamed:
        yield unnamed


class Unnamed:
    """Result of `unnamed_file`: ``file`` to write to, and ``path``, where the bytes lie for now."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file

    def keep(self, path: Path, *, exclusive: bool = False) -> None:
        """The file is complete: it appears under ``path``, on the same file system, durable; missing folders
        are made. Nothing more can be written.
        """
        with translate_os_errors(path, "writing"):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()  # Windows renames no open file
            _make_folders(path.parent)
            link_exclusively(self.path, path) if exclusive else self.path.replace(path)
            _sync_folder(path.parent)


@contextmanager
def _temporary(temp: Path, fd: int) -> Iterator[Unnamed]:
    file = os.fdopen(fd, "wb")
    try:
        yield Unnamed(temp, file)
    finally:
        with suppress(OSError):
            file.close()  # flushes once more and fails once more after a full disk
        with suppress(OSError):
            temp.unlink(missing_ok=True)


def _open_temp(folder: Path, made: Callable[[Path], None]) -> tuple[Path, int]:
    for tries_left in reversed(range(_TRIES)):
        temp = _temp_in(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            uppermost = _make_folders(folder)
            if uppermost is not None:
                made(uppermost)
            return temp, os.open(temp, flags, 0o666)
        except FileNotFoundError:  # a delete() removed the folder, which was empty until now
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def _temp_in(folder: Path) -> Path:
    return folder / f"{OWN}{_machine()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def _make_folders(folder: Path) -> Path | None:
    """Make what is missing, durably. The uppermost folder that was made, None when all were there."""
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        try:
            path.mkdir(exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
        _sync_folder(path.parent)
    return missing[-1] if missing else None


def _linked(source: Path, path: Path) -> bool:
    """Give the file of ``source`` a second name, ``path``, which may be taken. False where the file system or
    the owner of the file does not let us.
    """
    with translate_os_errors(path, "writing"):
        _make_folders(path.parent)
        temp = _temp_in(path.parent)
        try:
            os.link(source, temp)
        except OSError as error:
            if error.errno not in {*_NO_LINKS, errno.EXDEV, errno.EMLINK, errno.EACCES}:
                raise
            return False
        try:
            temp.replace(path)
        finally:
            temp.unlink(missing_ok=True)  # to rename one name of a file to another of its names does nothing
        _sync_folder(path.parent)
    return True


def link_exclusively(temp: Path, path: Path) -> None:
    """Give the finished file its name if the name is free, else raise FileExistsError. Its first name may
    stay or go. Raises StorageUnsupported where the file system can do neither, OSError.
    """
    try:
        os.link(temp, path)
    except FileExistsError:
        # A file server may carry out the link, lose its answer, and refuse the repeated request.
        if not temp.samefile(path):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_to_free_name(temp, path)


_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


def _rename_to_free_name(temp: Path, path: Path) -> None:
    """For file systems without hard links (FAT, some network and user-space ones)."""
    if sys.platform == "win32":
        temp.rename(path)  # refuses a taken name there
        return
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2  # since glibc 2.28
    except (AttributeError, OSError):
        number = errno.ENOSYS
    else:
        here, no_replace = -100, 1
        if rename(here, os.fsencode(temp), here, os.fsencode(path), no_replace) == 0:
            return
        number = ctypes.get_errno()
    if number not in _NO_LINKS:
        raise OSError(number, os.strerror(number), str(path))
    raise StorageUnsupported(
        f"{path}: this file system can neither link files nor rename without replacing, so two writers could "
        "both win; nothing was written; keep this store on another file system"
    )


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # folders cannot be opened there; NTFS keeps its journal
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (PermissionError, FileNotFoundError):
        return  # a folder without read permission, or one that was removed meanwhile
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # not every file system knows how
            raise
    finally:
        os.close(fd)


def _machine() -> str:
    """Eight digits for where a process id means the same process: this machine since its start, this
    container.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        place = boot + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        place = str(uuid.getnode())
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def _listing(folder: Path) -> list[os.DirEntry[str]]:
    with translate_os_errors(folder, "listing"):
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _walk(folder: Path, prefix: str) -> Iterator[Entry]:
    # A folder sorts by its name and a slash, as its keys do: 'a-b' comes before 'a/c'.
    named = [(f"{item.name}/" if _is_folder(item) else item.name, item) for item in _listing(folder)]
    for name, item in sorted(named, key=lambda pair: pair[0]):
        if name.endswith("/"):
            yield from _walk(Path(item.path), prefix + name)
        elif not name.startswith(OWN):
            entry = _entry(item, prefix + name)
            if entry:
                yield entry


def _entry(item: os.DirEntry[str], key: str) -> Entry | None:
    try:
        status = item.stat()
    except OSError:
        return None  # deleted since the listing, or a link to nowhere
    return Entry(key, status.st_size, status.st_mtime) if _stat.S_ISREG(status.st_mode) else None


def _is_folder(item: os.DirEntry[str]) -> bool:
    return item.is_dir(follow_symlinks=False)


def _holds_objects(folder: Path) -> bool:
    return next(_walk(folder, ""), None) is not None


@contextmanager
def _open_for_reading(path: Path) -> Iterator[BinaryIO]:
    """The file to read from. A pipe or a device of that name is refused: it would hang its reader, or never
    end.
    """
    with translate_os_errors(path, "reading"):
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        file = os.fdopen(fd, "rb")
    with file:
        mode = os.fstat(fd).st_mode
        if _stat.S_ISDIR(mode):
            raise translate_error(OSError(errno.EISDIR, os.strerror(errno.EISDIR)), path, "reading")
        if not _stat.S_ISREG(mode):
            raise StorageMissing(f"{path}: it is a pipe or a device; put a file there")
        yield file


def _copy(
    source: BinaryIO, source_path: Path, target: BinaryIO, target_path: Path, progress: Progress | None
) -> int:
    buffer = memoryview(bytearray(_CHUNK))
    total = 0
    while True:
        with translate_os_errors(source_path, "reading"):
            count = source.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            return total
        with translate_os_errors(target_path, "writing"):
            target.write(buffer[:count])
        total += count
        if progress:
            progress(count)


@contextmanager
def translate_os_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn system errors into StorageError. This is the only place that does."""
    try:
        yield
    except OSError as error:
        raise translate_error(error, path, doing) from error


def translate_error(error: OSError, path: Path, doing: str) -> StorageError:
    """The StorageError for ``error``: the place, the system's message, what to do."""
    number = error.errno or 0
    kind, advice = _ADVICE.get(number, (StorageError, "see what the system says about this path"))
    cause = f"{os.strerror(number) if number else error} ({errno.errorcode.get(number, 'no number')})"
    if "{free}" in advice:  # only then: to ask a disk that does not answer would hang
        advice = advice.replace("{free}", _free_bytes(path))
    return kind(f"{path}: {cause} while {doing} it; {advice.replace('{user}', _user())}")


_DENIED = (StorageDenied, "give {user} the permission on it and its folder, or use another folder")
_GONE = (
    StorageUnreachable,
    "the disk or file server does not answer as it should; look at its mount and try again",
)
_ADVICE: dict[int, tuple[type[StorageError], str]] = {
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: (
        StorageDenied,
        "the file system is mounted read-only; mount it writable or use another folder",
    ),
    errno.ENOENT: (StorageMissing, "check the name, and whether the disk is mounted on this machine"),
    errno.EISDIR: (StorageMissing, "it is a folder, not a file; name a file in it or another place"),
    errno.ENOTDIR: (
        StorageMissing,
        "a part of the path is a file, not a folder; move that file or name another place",
    ),
    errno.EEXIST: (StorageConflict, "it exists already and was left as it is"),
    errno.ENOSPC: (
        StorageFull,
        "the disk has {free}; free some, keep fewer checkpoints, or use another disk",
    ),
    errno.EDQUOT: (StorageFull, "the quota of {user} is used up; free some space or ask for more"),
    errno.EFBIG: (
        StorageFull,
        "a file may not be that large here; look at 'ulimit -f' and the file system's limit",
    ),
    errno.EIO: _GONE,
    errno.ESTALE: _GONE,
    errno.ETIMEDOUT: _GONE,
    errno.ENOTCONN: _GONE,
    errno.EHOSTDOWN: _GONE,
    errno.ENODEV: _GONE,
    errno.ENXIO: _GONE,
    errno.ENAMETOOLONG: (StorageError, "use a shorter name"),
    errno.ELOOP: (StorageError, "symbolic links go round in a circle; remove one of them"),
    errno.EMFILE: (StorageError, "this process has too many files open; raise 'ulimit -n'"),
}


def _user() -> str:
    return f"uid {os.geteuid()}" if hasattr(os, "geteuid") else "this user"


def _free_bytes(path: Path) -> str:
    for folder in (path, *path.parents):
        with suppress(OSError):
            usage = shutil.disk_usage(folder)
            return f"{show_bytes(usage.free)} free of {show_bytes(usage.total)} (or no free inodes)"
    return "no space left"

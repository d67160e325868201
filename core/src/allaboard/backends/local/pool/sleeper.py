"""A small program that replaces the supervisor of a queued run until something happens. It takes a few MB.

`become_sleeper` replaces the supervisor by this file, in the same process and with its locks and pipes. When
something must be decided (slots, a request, a deadline) this file replaces itself by the supervisor again. It
decides nothing itself and imports neither allaboard nor anything else that is large.

One of the user's waiting processes holds the lock of the file ``lookout`` and checks once a second for killed
gangs, which wake no ticket. The others try to become the lookout now and then, in case it was killed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is large
import fcntl
import posix
import select
import sys
import time

_BLIND, _ELECTION = 60.0, 10.0
"""Seconds after which the lookout's supervisor reads the whole pool, and after which others try to become the
lookout.
"""
GAP = 60.0
"""Seconds between two looks after which the process stood still: its followers have their time anew."""
_TICKETS = 5
"""The lookout checks waiting tickets once per so many checks of running gangs."""
_FOREIGN = 2000


def become_sleeper(
    back: list[str],
    *,
    wake: int,
    owner: int,
    home: str,
    pool: str,
    until: float,
    client: str,
    patience: float,
    calm: float,
    dead: dict[str, str],
    keep: int,
) -> None:
    """Become this program; afterwards become ``back``, with two more arguments: the reason, and by the
    monotonic clock when the run was last followed (0: not seen).

    ``wake``, ``owner``: the pipes of the attempt and of the ticket (-1: none). ``home``: the user's folder of
    the pool ("": none). ``until``: seconds since the boot
    (`clock.steady`), 0 for never. ``client``: a file ("": none) that must be
    touched every ``patience`` seconds. ``calm``: seconds in which a byte in ``owner``, which anybody may
    write, does not count. ``dead``: folders that are known to be dead, with their state. ``keep``: another
    descriptor that stays open. Raises OSError when it cannot.
    """
    for fd in (wake, owner, keep):
        if fd >= 0:
            posix.set_inheritable(fd, True)
    numbers = [str(wake), str(owner), str(until), str(patience), str(calm)]
    pairs = [text for pair in list(dead.items())[:_FOREIGN] for text in pair]
    # SIGTERM is blocked until a handler is installed again.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
    arguments = [*numbers, home, pool, client, str(len(pairs)), *pairs, *back]
    posix.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *arguments])


class _Terminated(Exception):
    """SIGTERM came."""


def _raise_terminated(number: int, frame: object) -> None:
    raise _Terminated


def main(arguments: list[str]) -> None:
    wake, owner = int(arguments[0]), int(arguments[1])
    until, patience, calm = map(float, arguments[2:5])
    home, pool, client = arguments[5:8]
    count = int(arguments[8])
    pairs, back = arguments[9 : 9 + count], arguments[9 + count :]
    dead = dict(zip(pairs[::2], pairs[1::2], strict=True))
    try:
        _signal.signal(_signal.SIGTERM, _raise_terminated)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTERM])
        reason, followed = _sleep(wake, owner, home, pool, until, client, patience, calm, dead)
    except _Terminated:
        reason, followed = "sigterm", 0.0
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
    posix.execv(back[0], [*back, reason, repr(followed)])


def _sleep(
    wake: int,
    owner: int,
    home: str,
    pool: str,
    until: float,
    client: str,
    patience: float,
    calm: float,
    dead: dict[str, str],
) -> tuple[str, float]:
    """Sleep until something must be decided; returns the reason, and when the run was followed if that was
    seen.
    """
    begun = seen = looked = time.monotonic()
    followed = 0.0
    touched, folder, lookout, looks = _touch(client), _lock_home(home), -1, 0
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    while True:
        if lookout < 0 and folder >= 0:
            lookout = _try_lookout_lock(folder)
        now = time.monotonic()
        hears = now - begun >= calm
        if hears and owner >= 0:
            poll.register(owner, select.POLLIN)
        pause = 1.0 if lookout >= 0 else _ELECTION * (1 + posix.urandom(1)[0] / 256)
        if not hears:
            pause = min(pause, begun + calm - now)
        if until:
            pause = min(pause, max(0.0, until - _steady()))
        ready = [fd for fd, _ in poll.poll(int(pause * 1000) + 1)]
        now = time.monotonic()
        if now - looked > GAP:
            followed = seen = now
        looked = now
        stamp = _touch(client)
        if stamp != touched:
            touched, followed, seen = stamp, now, now
        if wake in ready:
            return "asked", followed
        if owner in ready:
            return "poked", followed
        if owner < 0 and calm and now - begun >= calm:
            return "again", followed
        if until and _steady() >= until:
            return "due", followed
        if client and now - seen > patience:
            return "abandoned", followed
        if lookout >= 0 and hears:
            looks += 1
            if now - begun >= _BLIND or _has_pool_changed(pool, dead, looks % _TICKETS == 0):
                return "lookout", followed


def _steady() -> float:
    """As `clock.steady`."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def _touch(client: str) -> float:
    try:
        return posix.stat(client).st_mtime if client else 0.0
    except OSError:
        return 0.0


def _lock_home(home: str) -> int:
    """The folder, open and locked: systemd-tmpfiles, which clears /tmp, passes locked folders by."""
    try:
        fd = posix.open(home, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return -1
    return fd


def _try_lookout_lock(folder: int) -> int:
    """The lock of the lookout, or -1 while another process has it."""
    flags = posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        fd = posix.open("lookout", flags, 0o600, dir_fd=folder)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        posix.close(fd)
        return -1
    return fd


def _has_pool_changed(pool: str, dead: dict[str, str], tickets: bool) -> bool:
    """Return whether the state of a gang (or a ticket) differs from the known state."""
    for folder in _folders(pool):
        try:
            names = sorted(filter(_is_name, posix.listdir(folder)))
        except OSError:
            continue
        for name in names if posix.lstat(folder).st_uid == posix.geteuid() else names[:_FOREIGN]:
            at = f"{folder}/{name}"
            if (tickets or name[0] == "g") and _liveness(at) != dead.get(at, ""):
                return True
    return False


def _is_name(name: str) -> bool:
    # As the pattern in `pool`, but without the module for patterns, which is large.
    return name[:2] in ("w-", "g-") and name[2:19].isdecimal() and name[19:20] == name[28:29] == "-"


def _folders(pool: str) -> list[str]:
    """As `shared_files.user_folders`."""
    parent, _, base = pool.rpartition("/")
    folders = []
    for at, start in ((parent or "/", f"{base}."), (pool, "")):
        try:
            names = posix.listdir(at)
        except OSError:
            continue
        for name in names:
            user = name[len(start) :].partition(".")[0]
            if name.startswith(start) and user.isdecimal() and user.isascii() and len(user) <= 10:
                folder = f"{at}/{name}"
                try:
                    if posix.lstat(folder).st_uid == int(user):
                        folders.append(folder)
                except OSError:
                    pass
    return folders


def _liveness(at: str) -> str:
    """The state of the folder of a gang or a ticket: "" if it lives or is gone."""
    if _has_reader(f"{at}/owner"):
        return ""
    if _has_reader(f"{at}/slots"):
        return "leftover"
    try:
        posix.lstat(at)
    except OSError:
        return ""
    return "dead"


def _has_reader(pipe: str) -> bool:
    flags = posix.O_WRONLY | posix.O_NONBLOCK | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        posix.close(posix.open(pipe, flags))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])

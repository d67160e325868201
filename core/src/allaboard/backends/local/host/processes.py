"""Processes as the kernel sees them: which live, their descendants, and how to kill all of them.

A process is named by its pid *and* its start time (`Identity`); a pid alone may have been reused.

Killing a tree is a race against ``fork``. `freeze_and_kill` freezes the processes it finds (SIGSTOP; a
stopped process cannot fork), looks again until nothing new turns up, then sends SIGKILL to all of them.
`kill_all` repeats that until two looks in a row find no process. Freezing first also keeps the tree whole
while it is read: killing a parent at once would reparent its children to init. A subreaper (`set_subreaper`)
sees even those, because they become its children.

Linux is read through ``/proc``. Elsewhere ``ps`` is asked, there is no prctl, and environments cannot be
read: a child that leaves its group *and* loses its parent may then survive. ``ALLABOARD_NO_PRCTL=1`` switches
prctl off on Linux too.
"""

# ruff: noqa: PTH110, PTH112, PTH116, PTH123, PTH208  (descriptors and /proc; and pathlib is slow to import)

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from allaboard.backends.local.host.control_group import pids_in_group, remove_group
from allaboard.errors import SiteError

MARK = "ALLABOARD_MARK"
MEMBER = "ALLABOARD_MEMBER"

_LINUX = sys.platform.startswith("linux")
_DETACH = "ALLABOARD_DETACH_FD"
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36


class Identity(NamedTuple):
    """One process, for ever (within one boot): pids are reused, a pid together with its start time is not."""

    pid: int
    start: int


NO_START = -1
"""The start time of a process that has already ended: no living process has it."""


class Process(NamedTuple):
    """One line of the process table. ``start``: clock ticks since boot (Linux), epoch seconds elsewhere."""

    pid: int
    parent: int
    group: int
    session: int
    start: int
    dead: bool
    """A zombie: all its threads have ended, and only its parent has not noticed."""

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start)


class Reaped(NamedTuple):
    """A child that ended. ``code``: exit code, or minus the signal; ``maxrss``: peak memory in bytes."""

    pid: int
    code: int
    maxrss: int


# --- looking ----------------------------------------------------------------------------------------------


def process_of(pid: int) -> Process | None:
    """The process with this pid, zombies included; None when there is none."""
    if not _LINUX:
        return _ps(pid).get(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return _parse_stat(pid, file.read(4096))
    except OSError:  # ESRCH too: it ended between open and read
        return None


def processes() -> dict[int, Process]:
    """The whole process table, zombies included."""
    if not _LINUX:
        return _ps()
    entries = (process_of(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in entries if process}


def require_processes() -> None:
    """Raise SiteError where the system does not show this process its own kind, by which runs are kept."""
    if _LINUX and process_of(os.getpid()) is None:
        raise SiteError(
            "/proc shows no processes, and local runs need it; mount it: mount -t proc proc /proc",
            code="no_proc",
        )


def why_no_process(error: OSError) -> str:
    """Reason for which no process could be created, as a sentence."""
    if error.errno != errno.EAGAIN:
        return f"no process could be made: {error.strerror}"
    import resource

    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most == resource.RLIM_INFINITY:
        return "no process could be made: this user or container is at its process limit; end some of them"
    return (
        f"no process could be made: the process limit of this user ({most}, ulimit -u) or of this container "
        "is reached; end some, or raise the limit"
    )


def _parse_stat(pid: int, line: bytes) -> Process | None:
    # The command's name stands in parentheses and may itself hold spaces and parentheses.
    fields = line[line.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    parent, group, session, threads, start = (int(fields[i]) for i in (1, 2, 3, 17, 19))
    # The state is the first thread's; others may go on without it.
    return Process(pid, parent, group, session, start, fields[0] in (b"Z", b"X", b"x") and threads <= 1)


def _ps(pid: int | None = None) -> dict[int, Process]:
    """The table by ``ps``, for systems without /proc."""
    which = ["-A"] if pid is None else ["-p", str(pid)]
    table: dict[int, Process] = {}
    for line in output_of("ps", *which, "-o", "pid=,ppid=,pgid=,stat=,lstart=").splitlines():
        columns = line.split()
        with contextlib.suppress(ValueError, IndexError, OSError):
            process, parent, group = int(columns[0]), int(columns[1]), int(columns[2])
            start = int(time.mktime(time.strptime(" ".join(columns[4:9]), "%a %b %d %H:%M:%S %Y")))
            table[process] = Process(
                process, parent, group, os.getsid(process), start, columns[3].startswith("Z")
            )
    return table


def output_of(*command: str, path: str | None = None, within: float = 10.0) -> str:
    """Output of a command that is looked up in ``path`` (default: ours); its stderr is dropped.

    Raises TimeoutError when it has not ended after ``within`` seconds, OSError when it cannot be started.
    """
    folders = absolute_folders(path).split(os.pathsep)
    program = next(filter(_is_program, (f"{folder}/{command[0]}" for folder in folders if folder)), None)
    if program is None:  # a bare name would be a program of the current folder
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    reading, writing = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, source, to) for source, to in ((null, 0), (writing, 1), (null, 2))]
    try:
        pid = os.posix_spawn(program, command, {**os.environ, "LC_ALL": "C"}, file_actions=actions)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
        os.close(null)
    text = b""
    deadline = time.monotonic() + within
    try:
        while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (data := os.read(reading, 65536)):
                _wait(pid)
                return text.decode(errors="replace")
            text += data
    finally:
        os.close(reading)
    os.kill(pid, signal.SIGKILL)
    reap_orphan(pid)  # without waiting: what hangs in a driver does not die of it
    raise TimeoutError(errno.ETIMEDOUT, f"no answer within {within:g} s", command[0])


def absolute_folders(path: str | None = None) -> str:
    """A search path (default: ours) without the current folder, in which anybody may have put a program."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    return os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep)))


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and not os.path.isdir(path)


def identity(pid: int) -> Identity | None:
    """The identity of the process with this pid; None if there is none, or only a zombie."""
    process = process_of(pid)
    return None if process is None or process.dead else process.identity


def start_time(pid: int) -> int | None:
    """Start time of a process (unit: see `Process`); None if there is no such process."""
    process = process_of(pid)
    return process.start if process else None


def is_alive(who: Identity) -> bool:
    """True while this very process runs. A zombie is dead; another process under the same pid is another."""
    return identity(who.pid) == who


def children(pid: int) -> list[int]:
    """Direct children, zombies included. Cheap: does not read the whole table where the kernel helps."""
    if not _kernel_lists_children():
        return [process.pid for process in processes().values() if process.parent == pid]
    pids: list[int] = []
    with contextlib.suppress(OSError):  # it ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # the thread ended
                pids += map(int, _read_file(f"/proc/{pid}/task/{thread}/children").split())
    return pids


def _kernel_lists_children() -> bool:
    """CONFIG_PROC_CHILDREN: so on nearly every Linux."""
    global _lists_children
    if _lists_children is None:
        _lists_children = _LINUX and os.path.exists(f"/proc/self/task/{os.getpid()}/children")
    return _lists_children


_lists_children: bool | None = None


def descendants(pid: int) -> list[Identity]:
    """The whole tree below ``pid``, all depths, parents first, without ``pid`` itself and without zombies."""
    return list(descendants_of_all([pid], ()))


def descendants_of_all(roots: Iterable[int], spare: Iterable[int]) -> Iterator[Identity]:
    """Descendants of ``roots`` that are neither in ``spare`` nor below it, each yielded when it is seen."""
    # Walking down from the root is quick enough to catch a process that forks and exits, forks and exits; but
    # it may miss a child while its parent is exiting. So an empty result counts only if the whole process
    # table confirms it.
    roots, spare, anybody = tuple(roots), tuple(spare), False
    for who in _walk(roots, spare, children):
        anybody = True
        yield who
    if roots and not anybody:
        yield from _walk(roots, spare, _tree().get)


def _tree() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for process in processes().values():
        tree.setdefault(process.parent, []).append(process.pid)
    return tree


def _walk(
    roots: Iterable[int], spare: Iterable[int], children_of: Callable[[int], list[int] | None]
) -> Iterator[Identity]:
    seen = {*roots, *spare}
    todo = list(dict.fromkeys(roots))
    for pid in todo:  # grows while we go
        for child in children_of(pid) or ():
            if child not in seen:
                seen.add(child)
                todo.append(child)
                if who := identity(child):
                    yield who


def environment(pid: int) -> dict[str, str]:
    """The initial environment of a process; {} without permission, or if a process title overwrote it."""
    if not _LINUX:
        return {}
    try:
        data = _read_file(f"/proc/{pid}/environ")
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def find_marked(mark: str, member: str | None = None) -> list[Identity]:
    """Living processes with ALLABOARD_MARK (and ALLABOARD_MEMBER) in a readable environment."""
    if not _LINUX:
        return []
    marks = [f"{MARK}={mark}"] if member is None else [f"{MARK}={mark}", f"{MEMBER}={member}"]
    needles = [os.fsencode(text) for text in marks]
    marked = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            data = _read_file(f"/proc/{name}/environ")
        except OSError:
            continue
        if needles[0] not in data:
            continue
        entries = data.split(b"\0")
        if all(needle in entries for needle in needles) and (who := identity(int(name))):
            marked.append(who)
    return marked


def find_in_group(mark: str) -> list[Identity]:
    """Living processes in the control group of a run."""
    return [who for pid in pids_in_group(mark) if (who := identity(pid))]


def pids_with_open_file(device: int, inode: int, *, reading: bool = False) -> list[int]:
    """Pids with this file open, among readable processes; ``reading``: so that they may read it. Linux only;
    elsewhere [].
    """
    if not _LINUX:
        return []
    names = filter(str.isdigit, os.listdir("/proc"))
    return [int(name) for name in names if _has_open(name, device, inode, reading)]


def continue_stopped(path: str, *, kill: bool = False) -> list[Identity]:
    """Let the processes go on that have this file open and are stopped (SIGSTOP, Ctrl-Z): they would answer
    nobody. Those that a debugger holds go on when that lets them, and are returned; with ``kill`` they are
    killed. Linux only.
    """
    held: list[Identity] = []
    try:
        info = os.stat(path)
    except OSError:
        return held
    for pid in pids_with_open_file(info.st_dev, info.st_ino):
        who, state = identity(pid), _state_of(pid)
        if who is not None and state == b"T":
            send_signal(who, signal.SIGCONT)
        elif who is not None and state == b"t":
            held.append(who)
    for who in held if kill else ():
        send_signal(who, signal.SIGKILL)
    return held


def debugger_of(pid: int) -> str:
    """Name of the debugger that holds this process."""
    with contextlib.suppress(OSError, ValueError):
        for line in _read_file(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"TracerPid:") and (tracer := int(line.split()[1])):
                name = _read_file(f"/proc/{tracer}/comm").decode(errors="replace").strip()
                return f"{name} (process {tracer})"
    return "a debugger"


def _state_of(pid: int) -> bytes:
    """The letter of its state: T stopped, t held by a debugger."""
    with contextlib.suppress(OSError):
        return _read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0]
    return b""


def _has_open(pid: str, device: int, inode: int, reading: bool) -> bool:
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                seen = os.stat(f"/proc/{pid}/fd/{fd}")
                if (seen.st_dev, seen.st_ino) == (device, inode) and (not reading or _may_read(pid, fd)):
                    return True
    return False


def _may_read(pid: str, fd: str) -> bool:
    for line in _read_file(f"/proc/{pid}/fdinfo/{fd}").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_WRONLY
    return False


def user_of(pid: int) -> int | None:
    """The real user id of a process; None when there is none."""
    if not _LINUX:
        text = output_of("ps", "-p", str(pid), "-o", "ruid=").strip()
        return int(text) if text.isdigit() else None
    with contextlib.suppress(OSError):
        for line in _read_file(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    return None


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# --- killing ----------------------------------------------------------------------------------------------


def send_signal(who: Identity, sig: int) -> bool:
    """Signal this process, never a later one with its pid. False: it is gone, or not permitted."""
    try:
        fd = os.pidfd_open(who.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    except OSError:  # an old kernel, or a sandbox that forbids it
        fd = None
    try:
        if start_time(who.pid) != who.start:
            return False
        if fd is None:
            os.kill(who.pid, sig)
        else:
            signal.pidfd_send_signal(fd, sig)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if fd is not None:
            os.close(fd)


def freeze_and_kill(find: Callable[[], Iterable[Identity]]) -> list[Identity]:
    """Freeze what ``find`` finds until nothing new turns up, then kill it. Does not wait for deaths."""
    frozen: dict[Identity, None] = {}
    for _ in range(20):  # the caller repeats this for a storm of forks that is faster
        before = len(frozen)
        for who in find():
            if who not in frozen:
                send_signal(
                    who, signal.SIGSTOP
                )  # while it is found: a moment later it may run under another pid
                frozen[who] = None
        if len(frozen) == before:
            break
    for who in frozen:
        send_signal(who, signal.SIGKILL)
    return list(frozen)


def kill_all(find: Callable[[], Iterable[Identity]], within: float = 2.0) -> tuple[Identity, ...]:
    """Kill whatever ``find`` finds until it finds nothing twice and all that was killed is dead; returns the
    survivors after ``within`` seconds.

    Survivors are processes that sleep in the kernel (a dead network disk) or belong to another user. Children
    of ours are left to be reaped.
    """
    deadline = time.monotonic() + within
    pause, quiet = 0.001, 0
    killed: set[Identity] = set()
    while quiet < 2:
        frozen = freeze_and_kill(find)
        # One that is dying has no environment any more, by which it could be found, and holds its files.
        killed = {who for who in {*killed, *frozen} if is_alive(who)}
        quiet = 0 if frozen or killed else quiet + 1
        if time.monotonic() > deadline:
            return tuple({*killed, *(who for who in find() if is_alive(who))})
        if not quiet:
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
    return ()


def other_descendants(keep: Iterable[int] = ()) -> Iterator[Identity]:
    """In a subreaper: all that lives below this process, except its children ``keep`` and what is below
    these. Dead children are reaped.

    It yields nothing only when no other child is left: one that has died since the children were listed may
    have left a child of its own meanwhile, and is yielded too, as one whom nobody can be (`NO_START`).
    """
    spare = {os.getpid(), *keep}
    for pid in children(os.getpid()):
        if pid not in spare:
            yield reap_orphan(pid) or Identity(pid, NO_START)
    yield from descendants_of_all([os.getpid()], spare)


def kill_run(
    mark: str, identities: Iterable[Identity] = (), within: float = 2.0, uid: int | None = None
) -> tuple[Identity, ...]:
    """Kill the processes of a dead run: those with its mark, in its control group, the recorded ones, and
    their descendants. Returns survivors.

    ``uid`` restricts it to processes of that user, because another user may have written the record. This
    process and its ancestors are never touched.
    """
    spare = {os.getpid(), *_ancestors(os.getpid())}
    recorded = set(identities)

    def find() -> Iterator[Identity]:
        survivors = {*find_marked(mark), *find_in_group(mark), *(who for who in recorded if is_alive(who))}
        survivors = {who for who in survivors if who.pid not in spare}
        for who in (*survivors, *descendants_of_all([who.pid for who in survivors], spare)):
            if uid is None or user_of(who.pid) == uid:
                yield who

    left = kill_all(find, within)
    remove_group(mark)
    return left


def reap_orphan(pid: int) -> Identity | None:
    """The identity of a child; None if it has ended, and then it is reaped."""
    who = identity(pid)
    if who is None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return who


def _ancestors(pid: int) -> Iterator[int]:
    while (process := process_of(pid)) and process.parent > 0:
        pid = process.parent
        yield pid


def reap() -> list[Reaped]:
    """Collect every child that has ended, without waiting."""
    ended: list[Reaped] = []
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        unit = 1 if sys.platform == "darwin" else 1024
        ended.append(Reaped(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit))


# --- prctl ------------------------------------------------------------------------------------------------

_libc: Any = None


def has_prctl() -> bool:
    """Linux, and not switched off by ALLABOARD_NO_PRCTL=1."""
    return _LINUX and os.environ.get("ALLABOARD_NO_PRCTL", "") in ("", "0")


def set_subreaper() -> bool:
    """Orphans among our descendants become our children instead of init's. False where the system cannot."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_pdeathsig(sig: int) -> bool:
    """The kernel sends us ``sig`` when our parent dies. False where the system cannot."""
    return _prctl(_PR_SET_PDEATHSIG, sig)


def set_name(name: str) -> bool:
    """Set the name that ``ps -o comm`` and ``top`` show for this process; at most 15 bytes. Lost at exec."""
    return _prctl(_PR_SET_NAME, name.encode()[:15])


def _prctl(option: int, argument: int | bytes) -> bool:
    global _libc
    if not has_prctl():
        return False
    import ctypes

    if _libc is None:
        _libc = ctypes.CDLL(None)
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    zero = ctypes.c_ulong(0)
    return bool(_libc.prctl(ctypes.c_int(option), value, zero, zero, zero) == 0)


# --- daemons ----------------------------------------------------------------------------------------------


def spawn_supervisor(
    argv: Sequence[str], env: Mapping[str, str], log_path: str, patient: Callable[[], None] = lambda: None
) -> int:
    """Start ``argv`` as a daemon that outlives this process and return its pid. Its output is appended to
    ``log_path``.

    The program must call `detach` first; this waits for it and calls ``patient`` now and then. An exception
    of ``patient`` ends the program. Raises SiteError with the reason when it cannot be started or ends
    before. Safe in a process with threads: nothing of Python runs between fork and exec.
    """
    opened: list[int] = []
    child = 0
    try:
        reading, writing = os.pipe()
        opened += [reading, writing]
        null = os.open(os.devnull, os.O_RDONLY)
        opened.append(null)
        log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        opened.append(log)
        log_size = os.fstat(log).st_size
        # High numbers, so that no source of a dup2 below is the target of an earlier one, even with stdio
        # closed.
        writing, null, log = high = [_duplicate_above(10, fd) for fd in (writing, null, log)]
        opened += high
        actions = [
            (os.POSIX_SPAWN_DUP2, source, to) for source, to in ((null, 0), (log, 1), (log, 2), (writing, 3))
        ]
        child = _posix_spawn(argv, {**env, _DETACH: "3"}, actions)
        for fd in opened[1:]:
            os.close(fd)
        del opened[1:]
        answer = _read_start_report(reading, patient)
    except OSError as error:
        name = getattr(error, "filename", None) or argv[0]
        reason = why_no_process(error) if error.errno == errno.EAGAIN else f"{name}: {error.strerror}"
        raise SiteError(f"the supervisor cannot be started: {reason}", code="no_supervisor") from error
    except BaseException:
        if child:
            _kill_half_started(child, opened[0])
        raise
    finally:
        for fd in opened:
            os.close(fd)
    ended = _wait(child)
    if not answer:
        raise SiteError(
            f"the supervisor ended at once ({ended}); its last line: {_last_line(log_path, log_size)}",
            code="no_supervisor",
        )
    return int(answer)


def _read_start_report(reading: int, patient: Callable[[], None]) -> bytes:
    """The report of the starting program, until it closes the pipe."""
    answer = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        patient()
        if poll.poll(250):
            data = os.read(reading, 64)
            if not data:
                return answer
            answer += data


def _kill_half_started(child: int, reading: int) -> None:
    """Kill a daemon during its start: the child, or the process that replaced it and reported its pid."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    _wait(child)
    # A process that left its group reports its pid and closes the pipe; so does the end of all.
    with contextlib.suppress(ValueError):
        if who := identity(int(_read_start_report(reading, lambda: None))):
            send_signal(who, signal.SIGKILL)


def _posix_spawn(argv: Sequence[str], env: Mapping[str, str], actions: list[Any]) -> int:
    # A caller may ignore SIGINT (nohup, a shell's background job) or block signals: none of it is the
    # daemon's.
    settable = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
    options: dict[str, Any] = {"file_actions": actions, "setsigmask": [], "setsigdef": settable}
    try:
        return os.posix_spawnp(argv[0], list(argv), dict(env), setsid=True, **options)
    except NotImplementedError:  # a C library without it: `detach` makes the session a moment later
        return os.posix_spawnp(argv[0], list(argv), dict(env), **options)


def _duplicate_above(lowest: int, fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)


def _wait(child: int) -> str:
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # another thread of this process waits for all children
        return "exit code unknown"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _last_line(path: str, start: int) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - 2000))
        lines = file.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "nothing")
    return "nothing"


def detach() -> None:
    """Become a daemon and report the pid. A program that `spawn_supervisor` starts calls this first.

    Leaves the caller's process tree and session and closes every file descriptor above 2. Does nothing in a
    program that was started otherwise, so that it can be run in the foreground. Raises SiteError when no
    process can be made.
    """
    text = os.environ.pop(_DETACH, None)
    if text is None:
        return
    report = int(text)
    try:
        child = os.fork()
    except OSError as error:
        raise SiteError(why_no_process(error), code="no_process") from error
    if child:
        os._exit(0)
    os.setsid()
    close_all_but([report])
    with contextlib.suppress(BrokenPipeError):  # the client was killed meanwhile; the run goes on
        os.write(report, str(os.getpid()).encode())
    os.close(report)


def close_all_but(keep: Iterable[int]) -> None:
    """Close every file descriptor above 2 that is not in ``keep``. For a process without threads."""
    spare = set(keep)
    for name in os.listdir("/proc/self/fd" if _LINUX else "/dev/fd"):
        if (fd := int(name)) > 2 and fd not in spare:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)

"""The machine's pool of CPU, memory, GPU and port slots, shared by every run and every user of the machine.

    <pool>/lock                  one short lock: whoever decides holds it
    <pool>/gpus/gpu-<id>         locked while a process of the gang that got this GPU lives
    <pool>/ports/<number>        the same for a port on the loopback interface
    <pool>/queue/<ticket>/       a gang that waits
    <pool>/gangs/<ticket>/       a gang that was admitted (the same folder, renamed)
        owner                    locked while its supervisor or keeper lives slots                    locked
        while any process lives that was given it: supervisor, members, their forks entry.json
        who, what was asked for, what was given, which processes run wake                     a pipe:
        "something became free, try again"

The kernel drops a lock with the last process that holds it, so nothing has to be cleaned up for the numbers
to be right. A gang whose ``owner`` is free is dead: whoever decides next first kills what it left
(`procs.sweep`), and counts it only if ``slots`` is held even then. `admission` holds the rule by which gangs
are admitted.

**Several users.** The folders are sticky and writable by all (`sharedfiles`). Everybody reads the entries of
everybody, removes only his own, and kills only his own processes; root removes and kills for everybody, but
for an entry of a user only processes of that user.

Capacity is what the asking process may use (affinity, quota, CUDA_VISIBLE_DEVICES). Runs with different views
of one machine share one count of cores: none gets more than its own view leaves free, so the pool may hand
out too little, never too much.
"""

# ruff: noqa: PTH100, PTH111, PTH118, PTH123, PTH208  (pathlib knows no folder descriptors)

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allaboard.backends.local import machine, procs
from allaboard.backends.local import sharedfiles as files
from allaboard.backends.local.admission import Allotment, Claim, Used, decide, fit
from allaboard.backends.local.admission import Need as Need
from allaboard.backends.local.admission import Request as Request
from allaboard.backends.local.admission import shrink as shrink
from allaboard.backends.local.machine import Capacity
from allaboard.backends.local.procs import Identity
from allaboard.errors import BadInput, SiteError
from allaboard.units import show_bytes

_VERSION = 1
_LOCK_PATIENCE = 30.0
_SWEEP_AGAIN = 5.0
"""Seconds between two attempts to kill what cannot be killed: each holds the lock for a while."""


def default_path(environ: Mapping[str, str] | None = None) -> str:
    """ALLABOARD_POOL, or /tmp/allaboard-pool: the same for all users, whatever their TMPDIR."""
    environ = os.environ if environ is None else environ
    return os.path.abspath(os.path.expanduser(environ.get("ALLABOARD_POOL") or "/tmp/allaboard-pool"))


# --- what is written down -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One ticket or gang, as its ``entry.json`` says. Anybody may have written it: read with care."""

    request: Request
    capacity: Capacity
    since: float
    pid: int = 0
    boot: str = ""
    pid_namespace: str = ""
    admitted: tuple[tuple[int, tuple[str, ...]], ...] = ()
    ports: tuple[int, ...] = ()
    identities: tuple[Identity, ...] = ()

    @property
    def claim(self) -> Claim:
        return self.request.claim(self.capacity)

    @property
    def used(self) -> Used:
        members = (self.request.members[member] for member, _ in self.admitted)
        return Used().plus(members, (gpu for _, gpus in self.admitted for gpu in gpus))

    def to_json(self) -> bytes:
        request = self.request
        body = {
            "version": _VERSION,
            "mark": request.mark,
            "run": request.run,
            "members": [[member.cpu, member.memory, member.gpu] for member in request.members],
            "minimum": request.minimum,
            "capacity": [self.capacity.cpu, self.capacity.memory, list(self.capacity.gpus)],
            "since": self.since,
            "pid": self.pid,
            "boot": self.boot,
            "pid_namespace": self.pid_namespace,
            "admitted": [[member, list(gpus)] for member, gpus in self.admitted],
            "ports": list(self.ports),
            "identities": [list(who) for who in self.identities],
        }
        return json.dumps(body).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Entry | None:
        """None when it is no entry (torn, or nonsense). Unknown fields of a newer release are passed over."""
        try:
            body = json.loads(data)
            members = tuple(_need(*member) for member in body["members"])
            cpu, memory, gpus = body["capacity"]
            return cls(
                Request(str(body["mark"]), members, _optional(body["minimum"]), str(body["run"])),
                Capacity(_amount(cpu), int(_amount(memory)), tuple(map(str, gpus))),
                _amount(body["since"]),
                int(body["pid"]),
                str(body["boot"]),
                str(body["pid_namespace"]),
                tuple((range(len(members))[int(i)], tuple(map(str, gpus))) for i, gpus in body["admitted"]),
                tuple(map(int, body["ports"])),
                tuple(Identity(int(pid), int(start)) for pid, start in body["identities"]),
            )
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return None


def _need(cpu: Any, memory: Any, gpu: Any) -> Need:
    return Need(_amount(cpu), int(_amount(memory)), int(_amount(gpu)))


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


def _amount(value: Any) -> float:
    number = float(value or 0)
    return number if math.isfinite(number) and number > 0 else 0.0


# --- the pool -----------------------------------------------------------------------------------------------


class Ticket:
    """A place in the queue, held while this process lives.

    ``fileno()`` becomes readable when a new `Pool.try_admit` may succeed. That is a courtesy of whoever gives
    something back; a gang that is killed cannot show it: try again every second or so as well.
    """

    def __init__(self, pool: Pool, name: str, entry: Entry, folder: int, owner: int, wake: int) -> None:
        self.entry = entry
        self.why = "not tried yet"
        self._pool, self._name, self._folder, self._owner, self._wake = pool, name, folder, owner, wake

    @property
    def request(self) -> Request:
        return self.entry.request

    def fileno(self) -> int:
        return self._wake

    def cancel(self) -> None:
        """Leave the queue. Nothing if it was left already, or the request was admitted."""
        if self._owner >= 0:
            self._pool._leave("queue", self._name, [self._owner, self._wake, self._folder])
            self._spend()

    def _spend(self) -> None:
        self._owner = self._wake = self._folder = -1


class Grant:
    """Slots of an admitted gang. Members go by their index in ``request.members``."""

    def __init__(
        self, pool: Pool, name: str, entry: Entry, folder: int, owner: int, slots: int, gpus: dict[str, int]
    ) -> None:
        self._pool, self._name, self._entry = pool, name, entry
        self._folder, self._owner, self._slots = folder, owner, slots
        self._gpus, self._ports = gpus, dict[int, int]()

    @property
    def request(self) -> Request:
        return self._entry.request

    @property
    def admitted(self) -> tuple[int, ...]:
        """Members that have slots, in order."""
        return tuple(member for member, _ in self._entry.admitted)

    def gpus(self, member: int) -> tuple[str, ...]:
        """For CUDA_VISIBLE_DEVICES of this member; () means none, not any."""
        return dict(self._entry.admitted).get(member, ())

    @property
    def ports(self) -> tuple[int, ...]:
        return self._entry.ports

    def fds(self, member: int) -> tuple[int, ...]:
        """Locks that the member must inherit: its slots stay taken while a process has them open."""
        return (self._slots, *(self._gpus[gpu] for gpu in self.gpus(member)), *self._ports.values())

    @property
    def owner_fds(self) -> tuple[int, ...]:
        """For `Keeper.hold`: the gang counts as living while supervisor or keeper has them open."""
        return (self._owner,)

    def record(self, identities: Iterable[Identity]) -> None:
        """Write down all processes that run now, for whoever must sweep after us."""
        self._change(identities=tuple(identities))

    def shrink(self, members: Iterable[int]) -> None:
        """Give back the slots of members that ended for good."""
        gone = set(members)
        self._change(admitted=tuple(pair for pair in self._entry.admitted if pair[0] not in gone))
        for gpu in set(self._gpus) - self._entry.used.gpus:
            os.close(self._gpus.pop(gpu))
        self._pool._poke()

    def release(self) -> None:
        """Give back everything; may be called twice. What a process inherited stays taken until it ends."""
        if self._owner >= 0:
            fds = [self._slots, *self._gpus.values(), *self._ports.values(), self._owner, self._folder]
            self._pool._leave("gangs", self._name, fds)
            self._owner = self._slots = self._folder = -1
            self._gpus, self._ports = {}, {}
            self._entry = replace(self._entry, admitted=(), ports=())

    def _change(self, **changes: Any) -> bool:
        """Rewrite the entry. A full disk or a tidied /tmp must not end a training: locks hold without it."""
        self._entry = replace(self._entry, **changes)
        with contextlib.suppress(OSError):
            files.write_whole(self._folder, "entry.json", self._entry.to_json())
            return True
        return False


@dataclass(slots=True)
class _Seen:
    """The pool as it stands while we hold its lock."""

    used: Used = field(default_factory=Used)
    queue: dict[str, Entry] = field(default_factory=dict)
    gangs: dict[str, Entry] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    leftover: set[str] = field(default_factory=set)
    """Gangs without supervisor and keeper, but with processes that we may not or cannot kill."""


class Pool:
    """A handle on the pool's folder, for one thread. Keep it open while its tickets and grants are used."""

    def __init__(self, path: str, capacity: Capacity) -> None:
        """Open the folder, or make it. Raises SiteError when it cannot be used or should not be trusted."""
        self.path, self.capacity = path, capacity
        self._fds: dict[str, int] = {}
        self._swept: dict[str, float] = {}
        try:
            with self._translated():
                self._fds["."] = files.make_folder(path)
                with self._locked():
                    for part in ("gpus", "ports", "queue", "gangs"):
                        self._fds[part] = files.make_part(self._fds["."], part, os.path.join(path, part))
                for fd in self._fds.values():
                    files.protect(fd)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the folder. Tickets and grants must have been given back, or are when this process ends."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Asking and giving.

    def ask(self, request: Request) -> Ticket:
        """Queue up. Raises BadInput when the request can never fit this machine."""
        self._objections(request)
        boot, namespace = machine.boot_id(), machine.pid_namespace()
        entry = Entry(request, self.capacity, time.time(), os.getpid(), boot, namespace)
        with self._translated(), self._locked():
            queue = self._fds["queue"]
            last = max((_number(name) for name in os.listdir(queue)), default=0)
            # Microseconds, so that a ticket's place can be told long after; the queue decides if the clock
            # was set back.
            name = f"{max(last + 1, time.time_ns() // 1000):017d}-{os.urandom(4).hex()}"
            folder = files.own_folder(queue, name)
            owner = files.new_lock(folder, "owner")
            files.write_whole(folder, "entry.json", entry.to_json())
            wake = files.new_pipe(folder, "wake", os.path.join(self.path, "queue", name, "wake"))
        return Ticket(self, name, entry, folder, owner, wake)

    def try_admit(self, ticket: Ticket) -> Grant | None:
        """Slots for at least the minimum, if it is its turn and they are free; else None, and `why_waiting`.

        What dead gangs left is killed first. A grant uses the ticket up.
        """
        files.drain(ticket._wake)
        with self._translated(), self._locked():
            seen = self._look(sweep=True)
            order = sorted(seen.queue)
            answers = decide([seen.queue[name].claim for name in order], seen.used)
            answer = dict(zip(order, answers, strict=True)).get(ticket._name)
            gpus = self._take(answer)
            if answer is None or gpus is None:
                ticket.why = _why(ticket, seen)
                return None
            try:
                grant = self._admit(ticket, answer, gpus)
            except BaseException:
                _close(gpus.values())
                raise
        self._poke()  # the queue moved on
        return grant

    def _admit(self, ticket: Ticket, answer: Allotment, gpus: dict[str, int]) -> Grant:
        entry = replace(ticket.entry, since=time.time(), admitted=tuple(enumerate(answer)))
        name, queue, gangs = ticket._name, self._fds["queue"], self._fds["gangs"]
        slots = files.new_lock(ticket._folder, "slots")
        try:
            files.write_whole(ticket._folder, "entry.json", entry.to_json())
            os.rename(name, name, src_dir_fd=queue, dst_dir_fd=gangs)
        except BaseException:
            os.close(slots)
            raise
        grant = Grant(self, name, entry, ticket._folder, ticket._owner, slots, gpus)
        os.close(ticket._wake)
        ticket._spend()
        return grant

    def why_waiting(self, ticket: Ticket) -> str:
        """One sentence about the last `try_admit`: what is missing, who has it, how many are before us."""
        return ticket.why

    def grow(self, grant: Grant) -> tuple[int, ...]:
        """Admit more members of an elastic gang where there is room that nobody waits for; returns them."""
        missing = [i for i in range(len(grant.request.members)) if i not in grant.admitted]
        if not missing:
            return ()
        with self._translated(), self._locked():
            seen = self._look(sweep=True)
            more = Claim(tuple(grant.request.members[i] for i in missing), 1, grant._entry.capacity)
            *_, answer = decide([*(seen.queue[name].claim for name in sorted(seen.queue)), more], seen.used)
            gpus = self._take(answer)
            if answer is None or gpus is None:
                return ()
            new = tuple(zip(missing, answer, strict=False))
            before = grant._entry.admitted
            if not grant._change(admitted=tuple(sorted((*before, *new)))):
                grant._entry = replace(
                    grant._entry, admitted=before
                )  # what is not written down is not counted
                _close(gpus.values())
                return ()
            grant._gpus |= gpus
            return tuple(member for member, _ in new)

    def port(self, grant: Grant) -> int:
        """Reserve a loopback port for as long as the grant, or a member that inherits it, lives.

        From below the range that the kernel gives to outgoing connections: none of those can take it
        meanwhile. Raises SiteError when there is none.
        """
        ports = _port_range()
        start = int.from_bytes(os.urandom(4), "big") % len(ports)
        with self._translated():
            for step in range(len(ports)):
                port = ports[(start + step) % len(ports)]
                fd = files.take_lock(self._fds["ports"], str(port))
                if fd is not None and _bindable(port):
                    grant._ports[port] = fd
                    grant._change(ports=(*grant.ports, port))
                    return port
                _close([fd] if fd is not None else [])
        raise SiteError(f"no port from {ports[0]} to {ports[-1]} is free on 127.0.0.1", code="no_port")

    def describe(self) -> dict[str, Any]:
        """Who holds what and who waits, for people and ``--json``; changes nothing.

        ``capacity``, ``free``: {cpu, memory, gpus}. ``gangs``, ``queue``: [{run, user, pid, since, members,
        cpu, memory, gpus}]; gangs also have ``ports`` and ``leftover`` (supervisor and keeper are dead), and
        in the queue ``gpus`` is a number. ``gpus``: [{id, run, pids}], pids of holders that no gang accounts
        for.
        """
        with self._translated(), self._locked():
            seen = self._look(sweep=False)
        free = [gpu for gpu in self.capacity.gpus if gpu not in seen.used.gpus]
        return {
            "path": self.path,
            "capacity": _describe(self.capacity.cpu, self.capacity.memory, list(self.capacity.gpus)),
            "free": _describe(
                max(0.0, round(self.capacity.cpu - seen.used.cpu, 3)),
                max(0, self.capacity.memory - seen.used.memory),
                free,
            ),
            "gangs": [_describe_gang(name, seen) for name in sorted(seen.gangs)],
            "queue": [_describe_wait(name, seen) for name in sorted(seen.queue)],
            "gpus": [self._describe_gpu(gpu, seen) for gpu in self.capacity.gpus],
        }

    def _describe_gpu(self, gpu: str, seen: _Seen) -> dict[str, Any]:
        runs = [entry.request.run for entry in seen.gangs.values() if gpu in entry.used.gpus]
        held = gpu in seen.used.gpus and not runs
        return {
            "id": gpu,
            "run": runs[0] if runs else None,
            "pids": self._pids("gpus", _file_of(gpu)) if held else [],
        }

    def _pids(self, part: str, name: str) -> list[int]:
        """Who has a file of the pool open, among the processes that we may look into."""
        with contextlib.suppress(OSError):
            found = os.stat(name, dir_fd=self._fds[part], follow_symlinks=False)
            return [pid for pid in procs.holders(found.st_dev, found.st_ino) if pid != os.getpid()]
        return []

    def _objections(self, request: Request) -> None:
        claim = request.claim(self.capacity)
        if fit(claim, Used()) is not None:
            return
        room = _amounts(self.capacity.cpu, self.capacity.memory, len(self.capacity.gpus), all_of_it=True)
        raise BadInput(
            f"{request.run or 'the gang'} can never start here: {claim.minimum} members together ask for "
            f"{_asked(claim)}, and this machine has {room}; ask for less, or let it shrink (fit: shrink)",
            code="never_fits",
        )

    # Looking, under the lock.

    def _look(self, sweep: bool) -> _Seen:
        seen = _Seen()
        for name, folder in self._folders("queue"):
            if files.is_held(folder, "owner"):
                self._note(seen, seen.queue, name, folder)
            elif sweep:
                files.remove_folder(self._fds["queue"], name)
        for name, folder in self._folders("gangs"):
            living = files.is_held(folder, "owner")
            if not living and sweep:
                self._bury(name, folder)
            if living or files.is_held(folder, "slots"):
                self._note(seen, seen.gangs, name, folder)
                seen.leftover.update([] if living else [name])
            elif sweep:
                files.remove_folder(self._fds["gangs"], name)
        for entry in seen.gangs.values():
            seen.used = seen.used.plus([entry.request.members[i] for i, _ in entry.admitted], entry.used.gpus)
        # The locks have the last word on GPUs: a process may hold one that no entry speaks of any more.
        wanted = {
            gpu for entry in seen.queue.values() for gpu in entry.capacity.gpus if entry.claim.wants_gpu
        }
        unclear = wanted.union(self.capacity.gpus) - seen.used.gpus
        held = [gpu for gpu in unclear if files.is_held(self._fds["gpus"], _file_of(gpu))]
        seen.used = seen.used.plus((), held)
        return seen

    def _folders(self, part: str) -> Iterator[tuple[str, int]]:
        for name in os.listdir(self._fds[part]):
            with contextlib.suppress(OSError):  # no folder, or gone
                if _number(name):
                    folder = os.open(name, files.FOLDER, dir_fd=self._fds[part])
                    try:
                        yield name, folder
                    finally:
                        os.close(folder)

    def _note(self, seen: _Seen, where: dict[str, Entry], name: str, folder: int) -> None:
        entry, user = _read(folder)
        if entry is not None:
            where[name], seen.users[name] = entry, user

    def _bury(self, name: str, folder: int) -> None:
        """Kill what a dead gang left, as far as it can be seen from here and is ours to kill."""
        entry, user = _read(folder)
        if entry is None or time.monotonic() < self._swept.get(name, 0.0):
            return
        self._swept[name] = time.monotonic() + _SWEEP_AGAIN
        here = entry.boot == machine.boot_id() and entry.pid_namespace == machine.pid_namespace()
        if here and entry.request.mark and os.geteuid() in (user, 0):
            procs.sweep(entry.request.mark, entry.identities, uid=None if user == 0 else user)

    def _take(self, answer: Allotment | None) -> dict[str, int] | None:
        """Lock the GPUs of an allotment: all or none."""
        taken: dict[str, int] = {}
        for gpu in (gpu for gpus in answer or () for gpu in gpus):
            fd = files.take_lock(self._fds["gpus"], _file_of(gpu))
            if fd is None:
                _close(taken.values())
                return None
            taken[gpu] = fd
        return taken

    # Leaving.

    def _leave(self, part: str, name: str, fds: Sequence[int]) -> None:
        """Drop the locks and remove the folder; one whose slots were inherited stays, to be swept later."""
        with contextlib.ExitStack() as stack:
            # Slots are given back even when the pool's lock is stuck or its folder is gone.
            with contextlib.suppress(OSError, SiteError):
                stack.enter_context(self._locked())
            _close(fds)
            with contextlib.suppress(OSError):
                folder = os.open(name, files.FOLDER, dir_fd=self._fds[part])
                still_held = files.is_held(folder, "slots")
                os.close(folder)
                if not still_held:
                    files.remove_folder(self._fds[part], name)
        self._poke()

    def _poke(self) -> None:
        """Tell all who wait that another try may be worth it."""
        with contextlib.suppress(OSError):
            for _, folder in self._folders("queue"):
                files.poke(folder, "wake")

    # The lock, and the world's errors in our words.

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + _LOCK_PATIENCE
        pause = 0.0005
        while (fd := files.take_lock(self._fds["."], "lock")) is None:
            if time.monotonic() > deadline:
                who = ", ".join(map(str, self._pids(".", "lock"))) or "of another user"
                raise SiteError(
                    f"the pool {self.path} has been locked for {_LOCK_PATIENCE:g} s by process {who}; "
                    "end it if it hangs, or point ALLABOARD_POOL to another folder",
                    code="pool_stuck",
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.01)
        try:
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f" ({error.filename})" if error.filename else ""
            raise SiteError(
                f"the pool {self.path} cannot be used: {error.strerror or error}{what}; "
                "repair it, or point ALLABOARD_POOL to a folder of your own",
                code="pool_unusable",
            ) from error


def _read(folder: int) -> tuple[Entry | None, int]:
    """The entry in a ticket's or gang's folder, and the user it belongs to."""
    try:
        data, user = files.read_small(folder, "entry.json")
    except OSError:
        return None, -1
    return Entry.from_json(data), user


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


# --- words for people ---------------------------------------------------------------------------------------


def _amounts(cpu: float, memory: int, gpus: int, all_of_it: bool = False) -> str:
    words = []
    if cpu or all_of_it:
        words.append(f"{cpu:g} core{'s' if cpu != 1 else ''}")
    if memory or all_of_it:
        words.append(f"{show_bytes(memory)} of memory")
    if gpus or all_of_it:
        words.append(f"{gpus or 'no'} GPU{'s' if gpus != 1 else ''}")
    return ", ".join(words)


def _asked(claim: Claim) -> str:
    first = claim.members[: claim.minimum]
    asked = Used().plus(first)
    return _amounts(asked.cpu, asked.memory, sum(member.gpu for member in first))


def _why(ticket: Ticket, seen: _Seen) -> str:
    claim = ticket.entry.claim
    free = [gpu for gpu in claim.capacity.gpus if gpu not in seen.used.gpus]
    cpu, memory = claim.capacity.cpu - seen.used.cpu, claim.capacity.memory - seen.used.memory
    words = [
        f"waits for {_asked(claim)}",
        f"free: {_amounts(max(0.0, cpu), max(0, memory), len(free), all_of_it=True)}",
    ]
    holders = [entry for entry in seen.gangs.values() if entry.claim.kinds & claim.kinds]
    if holders:
        names = ", ".join(entry.request.run or f"process {entry.pid}" for entry in holders[:5])
        words.append(f"held by {names}" + (f" and {len(holders) - 5} more" if len(holders) > 5 else ""))
    before = [n for n, entry in seen.queue.items() if n < ticket._name and entry.claim.kinds & claim.kinds]
    if before:
        words.append(f"{len(before)} before it in the queue")
    return "; ".join(words)


def _describe(cpu: float, memory: int, gpus: Any) -> dict[str, Any]:
    return {"cpu": cpu, "memory": memory, "gpus": gpus}


def _describe_entry(entry: Entry, user: int) -> dict[str, Any]:
    who = files.user_name(user)
    return {"run": entry.request.run, "user": who, "pid": entry.pid, "since": entry.since}


def _describe_gang(name: str, seen: _Seen) -> dict[str, Any]:
    entry = seen.gangs[name]
    return {
        **_describe_entry(entry, seen.users[name]),
        **_describe(entry.used.cpu, entry.used.memory, sorted(entry.used.gpus)),
        "members": len(entry.admitted),
        "ports": list(entry.ports),
        "leftover": name in seen.leftover,
    }


def _describe_wait(name: str, seen: _Seen) -> dict[str, Any]:
    entry = seen.queue[name]
    members = entry.request.members
    asked = Used().plus(members)
    return {
        **_describe_entry(entry, seen.users[name]),
        **_describe(asked.cpu, asked.memory, sum(member.gpu for member in members)),
        "members": len(members),
    }


# --- names and ports ----------------------------------------------------------------------------------------


def _file_of(gpu: str) -> str:
    return "gpu-" + "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in gpu)[:200]


def _number(name: str) -> int:
    """The place in the queue that a ticket's name tells; 0 for what is no ticket."""
    number, dash, _ = name.partition("-")
    return int(number) if dash and number.isdecimal() and number.isascii() else 0


def _port_range() -> range:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            lowest = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = 32768
    # A machine whose range begins very low has nothing below it; then only the lock and the bind test
    # protect.
    return range(max(10240, lowest - 10000), lowest) if lowest > 12000 else range(20000, 30000)


def _bindable(port: int) -> bool:
    """Nobody listens there, on the loopback interface or on all of them (torch's store binds to all)."""
    import socket

    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES) or family == socket.AF_INET:
                return False  # IPv6 switched off is no reason
    return True

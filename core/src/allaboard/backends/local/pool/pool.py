"""The machine's pool of CPU, memory, GPU and port slots, shared by every run and every user of the machine.

    <pool>.<user>/               one folder per user; nobody else can make, rename or lock anything in it
        lock                     one process of this user decides at a time
        lookout                  one of those who wait looks for gangs that were killed (`sleeper`)
        w-<ticket>/              a gang that waits
        g-<ticket>/              a gang that was admitted (the same folder, renamed)
            owner                a pipe that its supervisor or keeper reads: it lives. A byte says "try again"
            slots                read while any process lives that was given it: supervisor, member, its forks
            gpu-<id>             the same for one GPU
            entry.json           who, what was asked for, what was given, which processes run

The kernel closes a pipe with the last process that has it, and only its user may read it: nothing has to be
cleaned up for the numbers to be right, and nobody can lie about another one. A gang whose ``owner`` nobody
reads is dead: whoever of its user (or root) decides next first kills what it left (`processes.kill_run`); it
counts only while ``slots`` is read even then. `admission` holds the rule by which gangs are admitted.

**Several users.** Everybody reads the entries of everybody, writes in his own folder, and kills only his own
processes; root kills for everybody, but for an entry of a user only processes of that user. There is no lock
that one user could keep from another. What keeps two who decide at the same moment from taking the same
slots: each first writes down what he takes, then looks again at what all have, and takes it back if it is too
much. Of two who wrote, the later one sees the earlier one. Who comes when another's ticket is there gets a
later number; of two who come at the same moment either may be first. Entries that cannot be read are passed
over.

**What remains.** Whoever may use the pool may take all of it, as any user of a machine may, and may forge an
early place in the queue. Who owns the folder that holds ``<pool>`` (root owns /tmp) may rename what is in it.

Capacity is what the asking process may use (affinity, quota, CUDA_VISIBLE_DEVICES). Runs with different views
of one machine share one count of cores: none gets more than its own view leaves free, so the pool may hand
out too little, never too much.
"""

# ruff: noqa: PTH100, PTH111, PTH118, PTH123, PTH208  (pathlib knows no folder descriptors)

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from allaboard.backends.local.host import machine, processes
from allaboard.backends.local.host import shared_files as files
from allaboard.backends.local.host.machine import Capacity
from allaboard.backends.local.host.processes import Identity
from allaboard.backends.local.pool.admission import Allotment, Claim, Used, decide, fit
from allaboard.backends.local.pool.admission import Need as Need
from allaboard.backends.local.pool.admission import Request as Request
from allaboard.backends.local.pool.waiting import STARTS, Holder, places, start_of, why_waiting
from allaboard.errors import BadInput, SiteError
from allaboard.text.units import show_bytes
from allaboard.text.untrusted import Limits, Unreadable, parse_json

_VERSION = 1
_LOCK_PATIENCE = 5.0
"""Seconds after which a process decides without the lock, which only saves work."""
TAKE_WITHIN = 30.0
"""Seconds within which a ticket takes the slots that it could have; then all others go before it."""
_FORGIVEN = 3600.0
"""Seconds in which another user who was late is offered no slots, and after which he is as others are."""
_OFFERS = "offers.json"
"""In this user's folder: for how long whom slots were offered."""
_SWEEP_AGAIN = 5.0
"""Seconds between two attempts to kill unkillable processes."""
_MOST_FOREIGN = 2000
"""The most tickets and gangs of another user that are read."""
_LIMITS = Limits(size=1 << 18, depth=8, values=50_000)
_NAME = re.compile(r"([wg])-([0-9]{17})-([0-9a-f]{8})-([cmg0]{1,3})")


def default_path(environ: Mapping[str, str] | None = None) -> str:
    """ALLABOARD_POOL, or /tmp/allaboard-pool: the same for all users, whatever their TMPDIR."""
    environ = os.environ if environ is None else environ
    return os.path.abspath(os.path.expanduser(environ.get("ALLABOARD_POOL") or "/tmp/allaboard-pool"))


# --- what is written down -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One ticket or gang from its ``entry.json``. Untrusted: any user may have written it."""

    request: Request
    capacity: Capacity
    since: float
    pid: int = 0
    boot: str = ""
    pid_namespace: str = ""
    admitted: tuple[tuple[int, tuple[str, ...]], ...] = ()
    ever_given: tuple[str, ...] = ()
    """GPUs that it ever had: a process may keep one after the gang has released it."""
    ports: tuple[int, ...] = ()
    identities: tuple[Identity, ...] = ()

    @property
    def claim(self) -> Claim:
        return self.request.claim(self.capacity)

    @property
    def used(self) -> Used:
        members = (self.request.members[member] for member, _ in self.admitted)
        return Used().plus(members, (gpu for _, gpus in self.admitted for gpu in gpus))

    @property
    def growth_claim(self) -> Claim | None:
        """The additional slots that a running elastic gang would take."""
        having = {member for member, _ in self.admitted}
        missing = tuple(m for i, m in enumerate(self.request.members) if i not in having)
        elastic = self.request.minimum is not None and self.claim.minimum < len(self.request.members)
        return Claim(missing, 1, self.capacity) if missing and elastic else None

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
            "given": list(self.ever_given),
            "ports": list(self.ports),
            "identities": [list(who) for who in self.identities],
        }
        return json.dumps(body).encode()

    @classmethod
    def from_json(cls, data: bytes, is_own: bool = False) -> Entry | None:
        """None for invalid or too large data. Fields of newer versions are ignored.

        ``is_own``: only this user can have written it, which skips most checks.
        """
        try:
            body = json.loads(data) if is_own else parse_json(data, _LIMITS)
            members = tuple(_parse_need(*member) for member in body["members"])
            cpu, memory, gpus = body["capacity"]
            return cls(
                Request(str(body["mark"]), members, _parse_optional(body["minimum"]), _one_line(body["run"])),
                Capacity(_parse_amount(cpu), int(_parse_amount(memory)), tuple(map(str, gpus))),
                _parse_amount(body["since"]),
                int(body["pid"]),
                str(body["boot"]),
                str(body["pid_namespace"]),
                tuple((range(len(members))[int(i)], tuple(map(str, gpus))) for i, gpus in body["admitted"]),
                tuple(map(str, body["given"])),
                tuple(map(int, body["ports"])),
                tuple(Identity(int(pid), int(start)) for pid, start in body["identities"]),
            )
        except (Unreadable, ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            return None


def _parse_need(cpu: Any, memory: Any, gpu: Any) -> Need:
    return Need(_parse_amount(cpu), int(_parse_amount(memory)), int(_parse_amount(gpu)))


def _parse_optional(value: Any) -> int | None:
    return None if value is None else int(value)


def _parse_amount(value: Any) -> float:
    number = float(value or 0)
    return min(number, 1e15) if math.isfinite(number) and number > 0 else 0.0


def _one_line(name: Any) -> str:
    """A name from another user, made safe for one line of a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(name))[:200]


# --- the pool -----------------------------------------------------------------------------------------------


class Ticket:
    """A place in the queue, held while this process lives.

    ``fileno()`` becomes readable when `Pool.try_admit` is likely to succeed. A killed gang wakes no ticket: a
    waiting process must call `Pool.advance` then (`sleeper` does).
    """

    def __init__(self, pool: Pool, name: str, entry: Entry, folder: int, owner: int) -> None:
        self.name, self.entry = name, entry
        self.why = "this machine holds it back: it has not been looked at yet"
        self.look_again: float | None = None
        """Seconds after which to try again, as another ticket may have lost its place; None: no need to."""
        self._pool, self._folder, self._owner = pool, folder, owner

    @property
    def request(self) -> Request:
        return self.entry.request

    def fileno(self) -> int:
        return self._owner

    def cancel(self) -> None:
        """Leave the queue. Does nothing if the ticket was cancelled or admitted."""
        if self._owner >= 0:
            self._pool._release_folder(f"w-{self.name}", [self._owner, self._folder])
            self._close_pipes()

    def _close_pipes(self) -> None:
        self._owner = self._folder = -1


class Grant:
    """Slots of an admitted gang. Members go by their index in ``request.members``."""

    def __init__(
        self, pool: Pool, name: str, entry: Entry, folder: int, owner: int, slots: int, gpus: dict[str, int]
    ) -> None:
        self.name = name
        self._pool, self._entry = pool, entry
        self._folder, self._owner, self._slots = folder, owner, slots
        self._gpus = gpus

    def fileno(self) -> int:
        """Readable when `Pool.grow` is likely to succeed."""
        return self._owner

    @property
    def request(self) -> Request:
        return self._entry.request

    @property
    def admitted(self) -> tuple[int, ...]:
        """Members that have slots, in order."""
        return tuple(member for member, _ in self._entry.admitted)

    def gpus(self, member: int) -> tuple[str, ...]:
        """The GPUs for CUDA_VISIBLE_DEVICES of this member; () means none."""
        return dict(self._entry.admitted).get(member, ())

    @property
    def ports(self) -> tuple[int, ...]:
        return self._entry.ports

    def fds(self, member: int) -> tuple[int, ...]:
        """Pipes that the member must inherit: its slots and ports stay taken while a process has them."""
        return (self._slots, *(self._gpus[gpu] for gpu in self.gpus(member)))

    @property
    def owner_fds(self) -> tuple[int, ...]:
        """For `Keeper.hold`: the gang counts as living while supervisor or keeper has them open."""
        return (self._owner,)

    def record(self, identities: Iterable[Identity]) -> None:
        """Record all running processes, for a later cleanup by another process."""
        self._rewrite_entry(identities=tuple(identities))

    def shrink(self, members: Iterable[int]) -> None:
        """Release the slots of members that ended for good."""
        gone = set(members)
        self._rewrite_entry(admitted=tuple(pair for pair in self._entry.admitted if pair[0] not in gone))
        for gpu in set(self._gpus) - self._entry.used.gpus:
            os.close(self._gpus.pop(gpu))
        self._pool.advance()

    def release(self) -> None:
        """Release everything; may be called twice. Slots inherited by a process stay taken until it ends."""
        if self._owner >= 0:
            fds = [self._slots, *self._gpus.values(), self._owner, self._folder]
            self._pool._release_folder(f"g-{self.name}", fds)
            self._owner = self._slots = self._folder = -1
            self._gpus = {}
            self._entry = replace(self._entry, admitted=(), ports=())

    def _rewrite_entry(self, **changes: Any) -> bool:
        """Rewrite the entry. A full disk or a cleaned /tmp must not end a training: the pipes hold the slots
        without it.
        """
        self._entry = replace(self._entry, **changes)
        with contextlib.suppress(OSError):
            files.replace_file(self._folder, "entry.json", self._entry.to_json())
            return True
        return False


class _Offer(NamedTuple):
    """For how many seconds somebody could have taken slots, when that was seen last by the monotonic clock,
    and with which tickets he could at the last look.
    """

    spent: float
    at: float
    tickets: tuple[str, ...]

    def at_look(self, tickets: tuple[str, ...], now: float) -> _Offer:
        """The same after a look at which ``tickets`` could have slots."""
        if not tickets:
            return self._replace(tickets=())
        spent = self.spent + (now - self.at if self.tickets else 0.0)
        return _Offer(spent, now, tickets[:_MOST_FOREIGN])


_Key = tuple[int, str]
"""A ticket's or gang's user and name."""


@dataclass(slots=True)
class _PoolState:
    """The state of the pool at one moment."""

    queue: dict[_Key, Entry] = field(default_factory=dict)
    gangs: dict[_Key, Entry] = field(default_factory=dict)
    leftover: set[_Key] = field(default_factory=set)
    """Gangs without supervisor and keeper, whose processes this user cannot kill."""
    lingering_gpus: dict[_Key, frozenset[str]] = field(default_factory=dict)
    """GPUs that processes still hold after their gang released them."""
    folders: dict[_Key, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    """Folders of dead gangs that this user may not remove, with their state."""
    late: frozenset[_Key] = frozenset()
    """Tickets of who could have had slots for `TAKE_WITHIN`: all others go before them."""

    @property
    def order(self) -> list[_Key]:
        return sorted(self.queue, key=lambda key: (key in self.late, key[1], key[0]))

    @property
    def running(self) -> list[Used]:
        """The slots of each gang, and each lingering GPU by itself."""
        lingering = {gpu for gpus in self.lingering_gpus.values() for gpu in gpus}
        gangs = [entry.used for entry in self.gangs.values()]
        lone = lingering.difference(*(used.gpus for used in gangs))
        return [*gangs, *(Used(gpus=frozenset([gpu])) for gpu in sorted(lone))]

    @property
    def used(self) -> Used:
        used = Used()
        for gang in self.running:
            used = used.joined(gang)
        return used

    def admissible(self) -> dict[_Key, Allotment]:
        """The tickets that would be admitted now. Growing elastic gangs come after all waiting ones."""
        growing = [(key, more) for key, entry in sorted(self.gangs.items()) if (more := entry.growth_claim)]
        order = self.order
        claims = [*(self.queue[key].claim for key in order), *(more for _, more in growing)]
        answers = decide(claims, self.running)
        keys = [*order, *(key for key, _ in growing)]
        return {key: answer for key, answer in zip(keys, answers, strict=True) if answer is not None}


class Pool:
    """A handle on the pool, for one thread. Keep it open while its tickets and grants are used.

    The first `request_slots` creates the folders. Every method raises SiteError when the pool cannot be used;
    it may be called again later.
    """

    def __init__(self, path: str, capacity: Capacity, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.capacity, self.clock = path, capacity, clock
        self.dead: dict[str, str] = {}
        """Folders that were dead at the last read and that this user may not remove, with their state."""
        self._at, self._own = "", -1
        self._swept: dict[str, float] = {}

    def close(self) -> None:
        """Close the folder. Release tickets and grants first; otherwise the end of the process
        releases them.
        """
        if self._own >= 0:
            os.close(self._own)
            self._own = -1

    @property
    def home(self) -> str:
        """The folder of this user in the pool; "" before the first request."""
        return self._at

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Asking and giving.

    def request_slots(self, request: Request) -> Ticket:
        """Queue up. Raises BadInput when the request can never fit this machine."""
        self._objections(request)
        boot, namespace = machine.boot_id(), machine.pid_namespace()
        entry = Entry(request, self.capacity, time.time(), os.getpid(), boot, namespace)
        with self._translate_errors():
            name, folder, owner = self._make_ticket(entry)
        return Ticket(self, name, entry, folder, owner)

    def _next_name(self, entry: Entry) -> str:
        """The name of a ticket that queues up now."""
        # Microseconds order the tickets; after a clock was set back the queue's last number decides. A number
        # of another user that is a day ahead is a forgery.
        now, own = time.time_ns() // 1000, os.geteuid()
        numbers = ((user, _queue_number(name)) for user, name in self._names())
        last = max((n for user, n in numbers if user == own or n < now + 86_400_000_000), default=0)
        kinds = "".join(letter for letter in "cmg" if letter in _kind_letters(entry.claim)) or "0"
        return f"{max(last + 1, now):017d}-{os.urandom(4).hex()}-{kinds}"

    def reopen_ticket(self, name: str, owner: int) -> Ticket:
        """Reopen the ticket that this process had before an exec; ``owner`` is its ``fileno()``."""
        with self._translate_errors():
            self._open_own_folder()
            folder = os.open(f"w-{name}", files.FOLDER, dir_fd=self._own)
            entry = _read_entry(folder, is_own=True)
        if entry is None:
            os.close(folder)
            raise SiteError(f"the ticket {name} in {self._at} is damaged", code="pool_unusable")
        os.set_inheritable(owner, False)
        return Ticket(self, name, entry, folder, owner)

    def _make_ticket(self, entry: Entry, name: str | None = None) -> tuple[str, int, int]:
        """Make a ticket's folder; return its name, the folder and the pipe of its owner.

        The folder is numbered when it is complete: until then others cannot see it, and admit later numbers.
        """
        self._open_own_folder()
        made = f".{os.urandom(8).hex()}"
        folder = files.new_folder(self._own, made)
        try:
            owner = files.new_pipe(folder, "owner", os.path.join(self._at, made, "owner"))
            try:
                files.replace_file(folder, "entry.json", entry.to_json())
                name = name or self._next_name(entry)
                os.rename(made, f"w-{name}", src_dir_fd=self._own, dst_dir_fd=self._own)
            except BaseException:
                os.close(owner)
                raise
        except BaseException:
            os.close(folder)
            files.remove_folder(self._own, made)
            raise
        return name, folder, owner

    def try_admit(self, ticket: Ticket) -> Grant | None:
        """Slots for at least the minimum, if it is the ticket's turn and they are free; else None, and
        `why_waiting`.

        First kills what dead gangs left. Also wakes the other tickets that can be admitted now. A grant
        consumes the ticket.
        """
        files.drain(ticket._owner)
        with self._translate_errors(), self._decision_lock():
            self._requeue(ticket)
            seen = self._read_pool(sweep=True)
            me = (os.geteuid(), ticket.name)
            ticket.look_again = self._pass_over_late(seen, me)
            answers = seen.admissible()
            if me in answers:
                grant = self._admit(ticket, answers[me])
                if grant is not None:
                    seen.gangs[me] = grant._entry
                    del seen.queue[me]
                    self._wake(seen, seen.admissible().keys() - answers.keys())
                    return grant
            names = [name for _, name in seen.order]
            ticket.why = _why(ticket.name, start_of(ticket.entry.claim), ticket.entry.capacity, seen, names)
            self._wake(seen, answers.keys() - {me})
            return None

    def _pass_over_late(self, seen: _PoolState, me: _Key) -> float | None:
        """Put those at the end of the queue who could have had their slots for `TAKE_WITHIN` and have not
        taken them: a stopped process, or a ticket that was forged, blocks nobody. Returns the seconds after
        which the next one will have been passed over; None: nobody is offered slots.

        A ticket of this user is judged by itself, those of another user together: he may make any number of
        them, and again and again. Who was late once stays so until he takes slots, or until `_FORGIVEN`: else
        he would cost all others those seconds each time that slots become free.
        """
        now, user = self.clock(), os.geteuid()

        def name_of(key: _Key) -> str:
            return key[1] if key[0] == user else str(key[0])

        before = self._read_offers(now)
        offered: dict[str, list[str]] = {}
        for key in seen.admissible():
            if key != me and key in seen.queue:
                offered.setdefault(name_of(key), []).append(key[1])
        taking = {key for key, gang in seen.gangs.items() if gang.used != Used()}
        queued = {name_of(key) for key in seen.queue}
        offers: dict[str, _Offer] = {}
        for name in {*before, *offered} - {me[1]}:  # who asks is not stopped
            is_user = name.isdecimal()
            offer = before.get(name, _Offer(0.0, now, ()))
            if any((int(name) if is_user else user, ticket) in taking for ticket in offer.tickets):
                offer = _Offer(0.0, now, ())
            offer = offer.at_look(tuple(offered.get(name, ())), now)
            if offer.tickets or (offer.spent and (now - offer.at < _FORGIVEN if is_user else name in queued)):
                offers[name] = offer
        if offers != before:
            with contextlib.suppress(OSError):  # a full disk: they are passed over later
                body = {name: [offer.spent, offer.at, *offer.tickets] for name, offer in offers.items()}
                files.replace_file(self._own, _OFFERS, json.dumps([machine.boot_id(), body]).encode())
        late = {name for name, offer in offers.items() if offer.spent >= TAKE_WITHIN}
        seen.late = frozenset(key for key in seen.queue if key != me and name_of(key) in late)
        waits = [offer.spent for name, offer in offers.items() if offer.tickets and name not in late]
        return TAKE_WITHIN - max(waits) if waits else None

    def _read_offers(self, now: float) -> dict[str, _Offer]:
        """Offers of slots that this user's processes have seen since the boot, by the name of who was
        offered.
        """
        try:
            boot, body = parse_json(files.read_small_file(self._own, _OFFERS), spelling=False)
            offers = {
                str(name): _Offer(float(spent), float(at), tuple(map(str, tickets)))
                for name, (spent, at, *tickets) in body.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
        return {
            name: offer for name, offer in offers.items() if boot == machine.boot_id() and offer.at <= now
        }

    def _admit(self, ticket: Ticket, answer: Allotment) -> Grant | None:
        """Write the entry and read the pool again: None if another user took the same slots meanwhile."""
        name, folder = ticket.name, ticket._folder
        gpus = tuple(gpu for member in answer for gpu in member)
        entry = replace(ticket.entry, since=time.time(), admitted=tuple(enumerate(answer)), ever_given=gpus)
        with contextlib.ExitStack() as opened:
            pipes = {part: self._pipe(folder, f"w-{name}", part, opened) for part in ("slots", *gpus)}
            files.replace_file(folder, "entry.json", entry.to_json())
            os.rename(f"w-{name}", f"g-{name}", src_dir_fd=self._own, dst_dir_fd=self._own)
            if not self._fits_machine((os.geteuid(), name), entry):
                os.rename(f"g-{name}", f"w-{name}", src_dir_fd=self._own, dst_dir_fd=self._own)
                files.replace_file(folder, "entry.json", ticket.entry.to_json())
                return None
            opened.pop_all()
        grant = Grant(self, name, entry, folder, ticket._owner, pipes.pop("slots"), pipes)
        ticket._close_pipes()
        return grant

    def _pipe(self, folder: int, at: str, part: str, opened: contextlib.ExitStack) -> int:
        name = part if part == "slots" else _gpu_pipe(part)
        fd = files.new_pipe(folder, name, os.path.join(self._at, at, name))
        opened.callback(os.close, fd)
        return fd

    def _fits_machine(self, me: _Key, entry: Entry) -> bool:
        """Return whether all entries, including this one, fit the machine."""
        seen = self._read_pool(sweep=False, queue=False)
        used = seen.used
        others = [gang.used.gpus for key, gang in seen.gangs.items() if key != me]
        lingering = [gpus for key, gpus in seen.lingering_gpus.items() if key != me]
        cpu_fits = not entry.used.cpu or used.cpu <= self.capacity.cpu + 1e-6
        memory_fits = not entry.used.memory or used.memory <= self.capacity.memory
        return (
            cpu_fits
            and memory_fits
            and not entry.used.gpus.intersection(*[frozenset().union(*others, *lingering)])
        )

    def why_waiting(self, ticket: Ticket) -> str:
        """One sentence about the last `try_admit`: what is missing, who has it, how many are before us."""
        return ticket.why

    def grow(self, grant: Grant) -> tuple[int, ...]:
        """Admit more members of an elastic gang if that delays no waiting ticket; returns them."""
        files.drain(grant._owner)
        missing = [i for i in range(len(grant.request.members)) if i not in grant.admitted]
        if not missing:
            return ()
        me = (os.geteuid(), grant.name)
        with self._translate_errors(), self._decision_lock():
            seen = self._read_pool(sweep=True)
            answer = seen.admissible().get(me)
            if answer is None:
                return ()
            before, given = grant._entry.admitted, grant._entry.ever_given
            new = tuple(zip(missing, answer, strict=False))
            gpus = [gpu for member in answer for gpu in member]
            with contextlib.ExitStack() as opened:
                pipes = {gpu: self._pipe(grant._folder, f"g-{grant.name}", gpu, opened) for gpu in gpus}
                written = grant._rewrite_entry(
                    admitted=tuple(sorted((*before, *new))), ever_given=tuple({*given, *gpus})
                )
                if not written or not self._fits_machine(me, grant._entry):
                    grant._rewrite_entry(
                        admitted=before, ever_given=given
                    )  # without an entry the slots do not count
                    return ()
                opened.pop_all()
            grant._gpus |= pipes
            return tuple(member for member, _ in new)

    def reserve_port(self, grant: Grant) -> int:
        """Reserve a loopback port for as long as the grant, or a member that inherits it, lives.

        From below the range that the kernel gives to outgoing connections: none of those can take it
        meanwhile. Raises SiteError when there is none.
        """
        ports = _port_range()
        start = int.from_bytes(os.urandom(4), "big") % len(ports)
        me = (os.geteuid(), grant.name)
        with self._translate_errors(), self._decision_lock():
            taken = self._ports_of_others(me)
            for step in range(len(ports)):
                port = ports[(start + step) % len(ports)]
                if port in taken or port in grant.ports or not _is_port_free(port):
                    continue
                before = grant.ports
                grant._rewrite_entry(ports=(*before, port))
                if port not in self._ports_of_others(me):
                    return port
                grant._rewrite_entry(ports=before)
        raise SiteError(f"no port from {ports[0]} to {ports[-1]} is free on 127.0.0.1", code="no_port")

    def _ports_of_others(self, me: _Key) -> set[int]:
        gangs = self._read_pool(sweep=False, queue=False).gangs
        return {port for key, entry in gangs.items() if key != me for port in entry.ports}

    def advance(self) -> None:
        """Clean up after killed gangs, and wake the tickets that can be admitted now. Never raises."""
        with contextlib.suppress(OSError, SiteError), self._decision_lock():
            seen = self._read_pool(sweep=True)
            self._wake(seen, seen.admissible())

    def view(self) -> PoolView:
        """The data for a sentence about a place in the queue, read without opening waiting tickets."""
        with self._translate_errors():
            names = sorted(name[2:] for _, name in self._names() if name[0] == "w")
            return PoolView(self._read_pool(sweep=False, queue=False), names)

    def describe(self) -> dict[str, Any]:
        """The holders of slots and the queue, for people and ``--json``; changes nothing.

        ``capacity``, ``free``: {cpu, memory, gpus}. ``gangs``, ``queue``: [{run, user, pid, since, members,
        cpu, memory, gpus}]; gangs also have ``ports`` and ``leftover`` (supervisor and keeper are dead), and
        in the queue ``gpus`` is a number, ``position`` says whose turn it is (1: the next of those that
        compete with each other), and ``why`` is a sentence. ``gpus``: [{id, run, pids}], pids of holders that
        no gang accounts for.
        """
        with self._translate_errors():
            seen = self._read_pool(sweep=False)
        order, holders = seen.order, _holders(seen)
        used = seen.used
        free = [gpu for gpu in self.capacity.gpus if gpu not in used.gpus]
        return {
            "path": self.path,
            "capacity": _resources_body(self.capacity.cpu, self.capacity.memory, list(self.capacity.gpus)),
            "free": _resources_body(
                max(0.0, round(self.capacity.cpu - used.cpu, 3)),
                max(0, self.capacity.memory - used.memory),
                free,
            ),
            "gangs": [_gang_body(key, seen) for key in sorted(seen.gangs, key=lambda key: key[1])],
            "queue": [
                _ticket_body(key, seen.queue[key], before, used, holders)
                for key, before in zip(order, places(_kind_letters_in(n) for _, n in order), strict=True)
            ],
            "gpus": [self._describe_gpu(gpu, seen) for gpu in self.capacity.gpus],
        }

    def _describe_gpu(self, gpu: str, seen: _PoolState) -> dict[str, Any]:
        runs = [entry.request.run for entry in seen.gangs.values() if gpu in entry.used.gpus]
        keepers = [seen.folders[key] for key, gpus in seen.lingering_gpus.items() if gpu in gpus]
        pids = [pid for folder in keepers for pid in _pids_with_file(folder, _gpu_pipe(gpu))]
        return {"id": gpu, "run": runs[0] if runs else None, "pids": pids if not runs else []}

    def _objections(self, request: Request) -> None:
        claim = request.claim(self.capacity)
        if fit(claim, Used()) is not None:
            return
        room = _describe_amounts(
            self.capacity.cpu, self.capacity.memory, len(self.capacity.gpus), all_of_it=True
        )
        raise BadInput(
            f"{request.run or 'the gang'} can never start here: {claim.minimum} members together ask for "
            f"{_describe_claim(claim)}, and this machine has {room}; "
            "ask for less, or let it shrink (fit: shrink)",
            code="never_fits",
        )

    # Looking.

    def _names(self) -> Iterator[tuple[int, str]]:
        """(user, name) of all tickets and gangs."""
        for user, at in files.user_folders(self.path):
            with contextlib.suppress(OSError):
                yield from ((user, name) for name in os.listdir(at) if _NAME.fullmatch(name))

    def _read_pool(self, sweep: bool, queue: bool = True) -> _PoolState:
        seen = _PoolState()
        for user, at in files.user_folders(self.path):
            with contextlib.suppress(OSError):
                fd = os.open(at, files.FOLDER)
                try:
                    if os.fstat(fd).st_uid == user:
                        self._read_user_folder(seen, user, at, fd, sweep, queue)
                finally:
                    os.close(fd)
        self.dead = seen.dead if queue else self.dead
        return seen

    def _read_user_folder(
        self, seen: _PoolState, user: int, at: str, parent: int, sweep: bool, queue: bool
    ) -> None:
        is_own = user == os.geteuid()
        names = sorted(filter(_NAME.fullmatch, os.listdir(parent)))  # running gangs come first
        for name in names if is_own else names[:_MOST_FOREIGN]:
            if name[0] == "w" and not queue:
                continue
            with contextlib.suppress(OSError):  # it is gone
                folder = os.open(name, files.FOLDER, dir_fd=parent)
                try:
                    key = user, name[2:]
                    seen.folders[key] = os.path.join(at, name)
                    if name[0] == "w":
                        is_gone = self._read_ticket(seen, key, folder)
                    else:
                        is_gone = self._read_gang(seen, key, folder, sweep)
                finally:
                    os.close(folder)
                if is_gone and is_own and sweep:
                    files.remove_folder(parent, name)
                elif is_gone:
                    seen.dead[seen.folders[key]] = "dead"

    def _read_ticket(self, seen: _PoolState, key: _Key, folder: int) -> bool:
        if not files.has_reader(folder, "owner"):
            return True
        entry = _read_entry(folder, key[0] == os.geteuid())
        if entry is not None and (key[0] == os.geteuid() or _is_believed(entry, key[0])):
            seen.queue[key] = entry
        return False

    def _read_gang(self, seen: _PoolState, key: _Key, folder: int, sweep: bool) -> bool:
        living = files.has_reader(folder, "owner")
        if not living and sweep:
            self._kill_leftovers(key, folder)
        if not living and not files.has_reader(folder, "slots"):
            return True
        entry = _read_entry(folder, key[0] == os.geteuid())
        if entry is not None:
            seen.gangs[key] = entry
            former = frozenset(entry.ever_given) - entry.used.gpus
            if lingering := {gpu for gpu in former if files.has_reader(folder, _gpu_pipe(gpu))}:
                seen.lingering_gpus[key] = frozenset(lingering)
        if not living:
            seen.leftover.add(key)
            seen.dead[seen.folders[key]] = "leftover"
        return False

    def _kill_leftovers(self, key: _Key, folder: int) -> None:
        """Kill what a dead gang left, if it ran in this boot and pid namespace and this user may."""
        user, name = key
        if os.geteuid() not in (user, 0) or time.monotonic() < self._swept.get(name, 0.0):
            return
        entry = _read_entry(folder, user == os.geteuid())
        if entry is None:
            return
        self._swept[name] = time.monotonic() + _SWEEP_AGAIN
        here = entry.boot == machine.boot_id() and entry.pid_namespace == machine.pid_namespace()
        if here and entry.request.mark:
            # Whoever may read it was given it: the pipe is its user's alone.
            holders = _pids_with_file(folder, "slots", reading=True)
            known = (*entry.identities, *filter(None, map(processes.identity, holders)))
            processes.kill_run(entry.request.mark, known, uid=None if user == 0 else user)

    def _wake(self, seen: _PoolState, keys: Iterable[_Key]) -> None:
        """Wake the owners of these tickets and gangs."""
        for key in keys:
            with contextlib.suppress(OSError):
                folder = os.open(seen.folders[key], files.FOLDER)
                try:
                    files.wake_reader(folder, "owner")
                finally:
                    os.close(folder)

    # Our own folder.

    def _open_own_folder(self) -> None:
        """Open this user's own folder, the one that others see."""
        if self._own >= 0 and not files.is_same_folder(self._at, self._own):
            self.close()
        if self._own < 0:
            self._at, self._own = files.own_folder(self.path)

    def _requeue(self, ticket: Ticket) -> None:
        """Queue up again under the same number if the folder was removed."""
        self._open_own_folder()
        if not files.is_same_folder(os.path.join(self._at, f"w-{ticket.name}"), ticket._folder):
            _, folder, owner = self._make_ticket(ticket.entry, ticket.name)
            os.dup2(owner, ticket._owner, inheritable=False)
            os.dup2(folder, ticket._folder, inheritable=False)
            os.close(owner)
            os.close(folder)

    def _release_folder(self, name: str, fds: Iterable[int]) -> None:
        """Close the pipes and remove the folder. A folder with inherited slots stays for a later cleanup."""
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):
            folder = os.open(name, files.FOLDER, dir_fd=self._own)
            still_held = files.has_reader(folder, "slots")
            os.close(folder)
            if not still_held:
                files.remove_folder(self._own, name)
        self.advance()

    @contextlib.contextmanager
    def _decision_lock(self) -> Iterator[None]:
        """One process of this user decides at a time, to save work. The lock is ignored if it is held too
        long.
        """
        self._open_own_folder()
        deadline = time.monotonic() + _LOCK_PATIENCE
        pause = 0.001
        while (fd := files.take_lock(self._own, "lock")) is None and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        try:
            yield
        finally:
            if fd is not None:
                os.close(fd)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn system errors into SiteError."""
        try:
            yield
        except OSError as error:
            file = f" ({error.filename})" if error.filename else ""
            raise SiteError(
                f"the pool {self.path} cannot be used: {error.strerror or error}{file}; "
                "repair it, or point ALLABOARD_POOL to a folder of your own",
                code="pool_unusable",
            ) from error


@dataclass(frozen=True)
class PoolView:
    """The holders of slots, and the names in the queue, the next first."""

    _seen: _PoolState
    _names: list[str]

    def why_waiting(self, name: str, asked: Need, capacity: Capacity) -> str | None:
        """Reason for which the ticket ``name``, which needs ``asked`` to start, waits; None if it left the
        queue.
        """
        if any(name == gang for _, gang in self._seen.gangs):
            return STARTS  # its supervisor has not written so yet
        return _why(name, asked, capacity, self._seen, self._names) if name in self._names else None


def _read_entry(folder: int, is_own: bool) -> Entry | None:
    """The entry in a ticket's or gang's folder; None when it cannot be read."""
    try:
        return Entry.from_json(files.read_small_file(folder, "entry.json", _LIMITS.size), is_own)
    except OSError:
        return None


def _is_believed(entry: Entry, user: int) -> bool:
    """Return whether a ticket of another user may be valid: it is of this boot, and its process, if visible,
    belongs to that user.
    """
    if entry.boot != machine.boot_id():
        return False
    if entry.pid_namespace != machine.pid_namespace():
        return True
    owner = processes.user_of(entry.pid)
    # Where /proc shows nobody the processes of others (hidepid), it does not show init.
    return owner == user or (owner is None and processes.user_of(1) is None)


def _pids_with_file(folder: str | int, name: str, reading: bool = False) -> list[int]:
    """The pids that have a file of the pool open, among readable processes."""
    with contextlib.suppress(OSError):
        if isinstance(folder, int):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        else:
            status = os.lstat(os.path.join(folder, name))
        pids = processes.pids_with_open_file(status.st_dev, status.st_ino, reading=reading)
        return [pid for pid in pids if pid != os.getpid()]
    return []


# --- words for people ---------------------------------------------------------------------------------------


def _describe_amounts(cpu: float, memory: int, gpus: int, all_of_it: bool = False) -> str:
    amounts = []
    if cpu or all_of_it:
        amounts.append(f"{cpu:g} core{'s' if cpu != 1 else ''}")
    if memory or all_of_it:
        amounts.append(f"{show_bytes(memory)} of memory")
    if gpus or all_of_it:
        amounts.append(f"{gpus or 'no'} GPU{'s' if gpus != 1 else ''}")
    return ", ".join(amounts)


def _describe_claim(claim: Claim) -> str:
    asked = start_of(claim)
    return _describe_amounts(asked.cpu or 0, asked.memory or 0, asked.gpu)


def _why(name: str, asked: Need, capacity: Capacity, seen: _PoolState, names: Sequence[str]) -> str:
    """Reason for which a ticket waits. ``names``: the tickets of the queue, the next first."""
    kinds = set(_kind_letters_in(name))
    earlier = itertools.takewhile(lambda other: other < name, names)
    before = sum(not kinds.isdisjoint(_kind_letters_in(other)) for other in earlier)
    return why_waiting(asked, capacity, seen.used, _holders(seen), before)


def _holders(seen: _PoolState) -> list[Holder]:
    """Holders of slots, oldest first; leftovers of a run have a name of their own."""
    holders = []
    for key, entry in sorted(seen.gangs.items(), key=lambda item: item[0][1]):
        user = None if key[0] == os.geteuid() else files.user_name(key[0])
        name = f"run {entry.request.run}" if entry.request.run else f"process {entry.pid}"
        left = f"what is left of {name}"
        holders.append(Holder(left if key in seen.leftover else name, entry.used, user))
        if gpus := seen.lingering_gpus.get(key):
            holders.append(Holder(left, Used(gpus=gpus), user))
    return holders


def _kind_letters(claim: Claim) -> str:
    """The kinds that a claim competes for, as letters of its name: c, m, g."""
    return "".join(kind[0] for kind in claim.kinds)


def _kind_letters_in(name: str) -> str:
    return name.rpartition("-")[2].strip("0")


def _resources_body(cpu: float, memory: int, gpus: Any) -> dict[str, Any]:
    return {"cpu": cpu, "memory": memory, "gpus": gpus}


def _entry_body(entry: Entry, user: int) -> dict[str, Any]:
    who = files.user_name(user)
    return {"run": entry.request.run, "user": who, "pid": entry.pid, "since": entry.since}


def _gang_body(key: _Key, seen: _PoolState) -> dict[str, Any]:
    entry = seen.gangs[key]
    return {
        **_entry_body(entry, key[0]),
        **_resources_body(entry.used.cpu, entry.used.memory, sorted(entry.used.gpus)),
        "members": len(entry.admitted),
        "ports": list(entry.ports),
        "leftover": key in seen.leftover,
    }


def _ticket_body(
    key: _Key, entry: Entry, before: int, used: Used, holders: Sequence[Holder]
) -> dict[str, Any]:
    members = entry.request.members
    asked = Used().plus(members)
    return {
        **_entry_body(entry, key[0]),
        **_resources_body(asked.cpu, asked.memory, sum(member.gpu for member in members)),
        "members": len(members),
        "position": before + 1,
        "why": why_waiting(start_of(entry.claim), entry.capacity, used, holders, before),
    }


# --- names and ports ----------------------------------------------------------------------------------------


def _gpu_pipe(gpu: str) -> str:
    return "gpu-" + "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in gpu)[:200]


def _queue_number(name: str) -> int:
    """The place in the queue that a ticket's or gang's name tells."""
    return int(name[2:19])


def _port_range() -> range:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            lowest = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = 32768
    # A machine whose range begins very low has nothing below it; then only the lock and the bind test
    # protect.
    return range(max(10240, lowest - 10000), lowest) if lowest > 12000 else range(20000, 30000)


def _is_port_free(port: int) -> bool:
    """Return whether a port is free on the loopback interface and on all interfaces (torch's store binds to
    all).
    """
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

"""The keeper: the small process between a supervisor and its members that starts them and lets none survive.

    supervisor ──socketpair── keeper ──fork, exec── member worker-0 ── whatever it starts
                                      └───────────── member worker-1 ── ...

It is forked from the supervisor, without exec (start-up time), before the supervisor has threads, and stays
single-threaded: it may fork safely, and the kernel's parent-death signal, which follows the forking *thread*,
means it.

Each of the two sees the other's death as the end of the socket and then kills everything below itself at
once. Both are subreapers: whatever a member leaves behind (double forks, own sessions) becomes a child of the
keeper, and once that is dead a child of the supervisor. Members also get SIGKILL from the kernel when the
keeper dies, so if both die at the same instant only grandchildren remain, and the next allaboard process
finds them by the mark in their environment and by their control group, where one could be made
(`processes.kill_run`). Without prctl (macOS) there are neither
subreapers nor parent-death signals: the same code runs, but a child that left its member's session and lost
its parent may survive.

A member is a container without walls: when its main process ends, the rest of it is killed before the end is
reported. What belongs to which member is told by ancestry; for orphans by ALLABOARD_MEMBER in the environment
or by the session. An orphan that hid both stays until it can only belong to a member that is ending, at the
latest until the gang ends.

Messages are JSON with a length in front; file descriptors (slot locks) travel beside them.
"""

# ruff: noqa: PTH110, PTH118, PTH120  (nothing but os after the fork)

from __future__ import annotations

import array
import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, NoReturn

import allaboard
from allaboard.backends.local.host import processes
from allaboard.backends.local.host.clock import Clock, steady
from allaboard.backends.local.host.control_group import join_group, remove_group
from allaboard.backends.local.host.processes import Identity


def _endpoint() -> ModuleType:
    """The helper's module, which imports nothing of allaboard."""
    path = os.path.join(os.path.dirname(allaboard.__file__), "inside", "helper", "endpoint.py")
    spec = spec_from_file_location("_allaboard_endpoint", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ENDPOINT = _endpoint()
"""Loaded before anything forks."""

_CLOSING_LIMIT = 5.0
"""Seconds after which a member that cannot be killed whole is reported with its survivors."""

_ABANDONED_LIMIT = 30.0
"""Seconds for which a keeper without a supervisor keeps trying."""


_POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals to the keeper that are meant for the supervisor, which knows about grace."""


@dataclass(frozen=True, slots=True)
class Started:
    """The member's program runs (exec succeeded). ``at``: epoch seconds by the supervisor's clock, here and
    below.
    """

    member: str
    identity: Identity
    at: float


@dataclass(frozen=True, slots=True)
class Exited:
    """The main process ended and nothing of the member is left but ``survivors`` (normally none).

    ``code`` is the exit code, or minus the signal; ``maxrss`` the peak memory in bytes of the main process
    and of those children it waited for; ``at`` the moment the main process ended.
    """

    member: str
    code: int
    maxrss: int
    at: float
    survivors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The program never ran. ``stage`` is log, cwd, exec, fork or setup; ``text`` is for the job's author."""

    member: str
    stage: str
    errno: int
    text: str
    at: float


Event = Started | Exited | SpawnFailed

ALL_GONE = b"nothing is left of the members\n"
"""Note of a keeper that has ended the members of a supervisor that was killed."""


# --- the wire ---------------------------------------------------------------------------------------------


class _Wire:
    """One end of the socket: frames with file descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.open = True
        self._in = bytearray()
        self._fds: list[int] = []
        self._out = bytearray()

    @property
    def backlog(self) -> bool:
        return bool(self._out)

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send now, waiting for room. A dead peer is no error here: reading tells."""
        frame = _frame({**message, "fds": len(fds)})
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self.sock.sendmsg([frame], beside)
            self.sock.sendall(frame[sent:])
        except OSError:
            self.open = False

    def queue(self, message: Mapping[str, Any]) -> None:
        """Send as much as fits, the rest at the next `flush`. Never waits for the peer."""
        self._out += _frame({**message, "fds": 0})
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                del self._out[: self.sock.send(self._out, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()
            self.open = False

    def receive(self) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Whole messages that have arrived, without waiting; clears `open` at the end of the line."""
        self._fill()
        while len(self._in) >= 4:
            (length,) = struct.unpack_from("!I", self._in)
            if len(self._in) < 4 + length:
                return
            message = json.loads(bytes(self._in[4 : 4 + length]))
            del self._in[: 4 + length]
            count = message["fds"]
            fds, self._fds = self._fds[:count], self._fds[count:]
            yield message, fds

    def _fill(self) -> None:
        size = socket.CMSG_SPACE(64 * 4)
        flags = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            while True:
                data, beside, _, _ = self.sock.recvmsg(65536, size, flags)
                for level, kind, payload in beside:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        self._fds += _parse_frame(payload)
                if not data:
                    self.open = False
                    return
                self._in += data
        except BlockingIOError:
            return
        except OSError:
            self.open = False


def _frame(message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return struct.pack("!I", len(body)) + body


def _parse_frame(payload: bytes) -> list[int]:
    fds = array.array("i")
    fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return list(fds)


# --- the supervisor's side --------------------------------------------------------------------------------


class Keeper:
    """The supervisor's handle of the keeper, for one thread. A dead keeper raises nothing: `alive` turns
    false.
    """

    def __init__(self, pid: int, sock: socket.socket, mark: str, clock: Clock) -> None:
        self.pid, self.clock = pid, clock
        self.identity = Identity(pid, processes.start_time(pid) or 0)
        self.mark = mark
        self._wire = _Wire(sock)
        self._members: dict[str, Identity | None] = {}
        self._seen: set[Identity] = set()

    @classmethod
    def start(
        cls,
        mark: str,
        keep_fds: Iterable[int] = (),
        clock: Clock | None = None,
        group: str | None = None,
        last_word: int | None = None,
    ) -> Keeper:
        """Fork the keeper. Call it before the supervisor has threads. ``clock``: tells when things happened;
        ``group``: the folder of the control group of the members; ``last_word``: a file among ``keep_fds``
        into which a keeper without a supervisor writes `ALL_GONE`.

        It keeps ``keep_fds`` open until it ends (the run's lock: then a free lock means that the members are
        gone too) and closes every other descriptor of the supervisor. Raises OSError when the fork fails.
        """
        processes.set_subreaper()
        own_end, keeper_end = socket.socketpair()
        keep = [keeper_end.fileno(), *keep_fds]
        # Until it ignores them, a signal would end the keeper, or run the supervisor's handler in it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _POLITE)
        try:
            pid = os.fork()
            if pid == 0:
                _keeper_process(keeper_end, mark, keep, group, last_word)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            keeper_end.close()
        return cls(pid, own_end, mark, clock or Clock())

    @property
    def alive(self) -> bool:
        """False once the line to the keeper is broken: call `on_keeper_death`."""
        return self._wire.open

    @property
    def members(self) -> tuple[str, ...]:
        """Members that were spawned and whose end has not been read yet."""
        return tuple(self._members)

    def fileno(self) -> int:
        """Readable when `read_events` has something to say, the keeper's death included."""
        return self._wire.sock.fileno()

    def read_events(self) -> list[Event]:
        """Events since the last call, in order; does not wait."""
        return [
            self._record_event(_event(message, self.clock.at(message["at"])))
            for message, _ in self._wire.receive()
        ]

    def _record_event(self, event: Event) -> Event:
        if isinstance(event, Started):
            self._members[event.member] = event.identity
            self._seen.add(event.identity)
        elif who := self._members.pop(event.member, None):
            self._seen.discard(who)
        return event

    def spawn(
        self,
        member: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        log: str,
        fds: Iterable[int] = (),
        *,
        reports: bool = False,
    ) -> None:
        """Start a member; answered by Started or SpawnFailed.

        It gets a session of its own, stdin from /dev/null, stdout and stderr appended to the file ``log``,
        ``fds`` open (slot locks) and no other, default signal dispositions, and exactly ``env`` plus
        ALLABOARD_MARK and ALLABOARD_MEMBER, and with ``reports`` those of an endpoint for Kubeflow's progress
        protocol (`allaboard.inside.helper`). A bare command is looked up in the PATH of ``env``; one with a
        slash is relative to ``cwd``.
        """
        if not argv:
            raise ValueError(f"{member} has no command")
        if member in self._members:
            raise ValueError(f"{member} has not ended yet; spawn it again after its Exited")
        self._members[member] = None
        request = {
            "do": "spawn",
            "member": member,
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "log": log,
            "reports": reports,
        }
        self._wire.send(request, list(fds))

    def signal(self, member: str, sig: int) -> None:
        """Send ``sig`` to the member's main process only, as Kubernetes does. Nothing if it has ended."""
        self._wire.send({"do": "signal", "member": member, "sig": int(sig)})

    def kill(self, member: str) -> None:
        """Kill the member's whole tree; answered by Exited. Nothing if it has ended."""
        self._wire.send({"do": "kill", "member": member})

    def kill_all(self) -> None:
        """`kill` for every member, and whatever orphans belong to none."""
        self._wire.send({"do": "kill_all"})

    def hold(self, fds: Iterable[int]) -> None:
        """Keep these open in the keeper until it ends (`Grant.owner_fds`)."""
        self._wire.send({"do": "hold"}, list(fds))

    def on_keeper_death(self, keep: Iterable[int] = (), within: float = 2.0) -> tuple[Identity, ...]:
        """Kill all that the keeper left; returns survivors. Members without an Exited are gone, code unknown.

        ``keep`` are children that the supervisor started otherwise. Reaps.
        """
        spare = {os.getpid(), *keep}

        def left() -> Iterator[Identity]:
            yield from processes.other_descendants(keep)
            if not processes.has_prctl():  # orphans went to init: find them by their identities and the mark
                marked = (*processes.find_marked(self.mark), *processes.find_in_group(self.mark))
                here = {who for who in (*self._seen, *marked) if processes.is_alive(who)}
                here = {who for who in here if who.pid not in spare}
                yield from here
                yield from processes.descendants_of_all([who.pid for who in here], spare)

        survivors = processes.kill_all(left, within)
        remove_group(self.mark)
        self._wire.open = False
        self._wire.sock.close()
        return survivors

    def close(self, within: float = 6.0) -> list[Event]:
        """Kill all members, let the keeper end, wait for it; returns the last events. May be called twice."""
        events: list[Event] = []
        if self._wire.sock.fileno() < 0:
            return events
        self._wire.send({"do": "exit"})
        deadline = time.monotonic() + within
        while self.alive and (remaining := deadline - time.monotonic()) > 0:
            select.select([self.fileno()], [], [], remaining)
            events += self.read_events()
        if self.alive or not self._ended_regularly():
            self.on_keeper_death()
        self._wire.sock.close()
        return events

    def _ended_regularly(self) -> bool:
        """Return whether the keeper, which hung up, had nothing left to keep. Reaps the keeper."""
        try:
            return os.waitpid(self.pid, 0)[1] == 0
        except ChildProcessError:  # reaped elsewhere: unknown
            return False


def _event(message: Mapping[str, Any], at: float) -> Event:
    member = message["member"]
    match message["event"]:
        case "started":
            return Started(member, Identity(message["pid"], message["start"]), at)
        case "exited":
            return Exited(member, message["code"], message["maxrss"], at, tuple(message["survivors"]))
        case _:
            return SpawnFailed(member, message["stage"], message["errno"], message["text"], at)


# --- the keeper's side ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Member:
    name: str
    pid: int
    start: int
    report: int | None
    """Pipe by which the child tells why it could not exec; closed by a successful exec."""
    failure: dict[str, Any] | None = None
    ended: dict[str, Any] | None = None
    """End of the main process, once it was reaped."""
    deadline: float | None = None
    """Set while the member is being killed."""
    early_signals: list[int] = field(default_factory=list)
    """Signals that came before its program ran."""

    @property
    def is_being_killed(self) -> bool:
        return self.deadline is not None


def _keeper_process(
    sock: socket.socket, mark: str, keep: Iterable[int], group: str | None, last_word: int | None
) -> NoReturn:
    """The forked process; never returns."""
    code = 70
    try:
        os.setsid()  # a kill of the supervisor's process group must not take both
        gc.freeze()  # the supervisor's garbage holds descriptor numbers that mean something else here
        processes.close_all_but(keep)
        processes.set_subreaper()
        processes.set_name("allaboard-keep")
        loop = _KeeperLoop(sock, mark, group)
        if loop.run() and last_word is not None and not loop.leaving:
            with contextlib.suppress(OSError):
                os.write(last_word, ALL_GONE)
        remove_group(mark)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        processes.kill_all(processes.other_descendants)
    finally:
        os._exit(code)


class _KeeperLoop:
    """The keeper's loop. Waits for nothing but its poll: a slow member must not delay the others."""

    def __init__(self, sock: socket.socket, mark: str, group: str | None) -> None:
        self.wire = _Wire(sock)
        self.mark, self.group = mark, group
        self.members: dict[str, _Member] = {}
        self.held: list[int] = []
        self.leaving = False
        self.wake, waker = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(waker, False)
        for sig in _POLITE:
            signal.signal(sig, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def run(self) -> bool:
        """Run until the supervisor is gone or asks for the end; whether nothing is left then."""
        pause = 0.001
        while self.wire.open and not (self.leaving and not self.members and not self.wire.backlog):
            ready = self.wait(pause if self.being_killed() else None)
            self.settle_reports(ready)
            self.reap()
            for message, fds in self.wire.receive():
                self.handle_command(message, fds)
            for member in self.being_killed():
                self.kill_round(member)
            pause = min(pause * 2, 0.02) if self.being_killed() else 0.001
        return self.end()

    def wait(self, pause: float | None) -> set[int]:
        poll = select.poll()
        poll.register(self.wire.sock, select.POLLIN | (select.POLLOUT if self.wire.backlog else 0))
        poll.register(self.wake, select.POLLIN)
        for member in self.members.values():
            if member.report is not None:
                poll.register(member.report, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if pause is None else pause * 1000)}
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 512):
                pass
        if self.wire.backlog:
            self.wire.flush()
        return ready

    # Commands.

    def handle_command(self, message: dict[str, Any], fds: list[int]) -> None:
        member = self.members.get(message.get("member", ""))
        match message["do"]:
            case "spawn":
                self.spawn(message, fds)
            case "signal" if member and member.report is not None:
                # Until its exec the child still ignores the signals that the keeper ignores.
                member.early_signals.append(message["sig"])
            case "signal" if member and member.ended is None:
                self.signal(member, message["sig"])
            case "kill" if member:
                self.start_killing(member)
            case "hold":
                self.held += fds
            case "kill_all" | "exit" as word:
                self.leaving = self.leaving or word == "exit"
                for each in self.members.values():
                    self.start_killing(each)

    def spawn(self, message: dict[str, Any], fds: list[int]) -> None:
        name = message["member"]
        environment = {**message["env"], processes.MARK: self.mark, processes.MEMBER: name}
        try:
            report, childs_end = os.pipe()
            try:
                pid = os.fork()
                if pid == 0:
                    _exec_member(
                        message["argv"],
                        environment,
                        message["cwd"],
                        message["log"],
                        fds,
                        childs_end,
                        self.group,
                        message["reports"],
                    )
            except OSError:
                os.close(report)
                raise
            finally:
                os.close(childs_end)
        except OSError as error:  # EAGAIN: too many processes; ENOMEM; EMFILE: too many files
            self.send_failure(name, "fork", error.errno or 0, processes.why_no_process(error))
        else:
            os.set_blocking(report, False)
            self.members[name] = _Member(name, pid, processes.start_time(pid) or 0, report)
        finally:
            for fd in fds:  # the member has its own copies: a slot is free when its processes are gone
                os.close(fd)

    # Starts and ends.

    def settle_reports(self, ready: set[int]) -> None:
        for member in self.members.values():
            if member.report in ready:
                self.settle_report(member)

    def settle_report(self, member: _Member) -> None:
        """The child has reported or never will: its program runs, or it failed before."""
        if member.report is None:
            return
        text = b""
        with contextlib.suppress(BlockingIOError):  # it is gone, and a child of its own holds the other end
            text = os.read(member.report, 65536)  # written at once and far smaller than a pipe: whole
        os.close(member.report)
        member.report = None
        if text:
            member.failure = json.loads(text)
        else:
            self.send_event("started", member.name, pid=member.pid, start=member.start)
            for sig in member.early_signals:
                self.signal(member, sig)

    def signal(self, member: _Member, sig: int) -> None:
        with contextlib.suppress(OSError):  # a setuid program; never ESRCH, because we have not reaped it
            os.kill(member.pid, sig)

    def reap(self) -> None:
        mains = {member.pid: member for member in self.members.values() if member.ended is None}
        for pid, code, maxrss in processes.reap():
            if member := mains.get(pid):
                member.early_signals.clear()  # its pid may have been reused
                self.settle_report(member)
                member.ended = {"code": code, "maxrss": maxrss, "at": steady()}
                self.start_killing(member)

    def start_killing(self, member: _Member) -> None:
        if member.deadline is None:
            member.deadline = time.monotonic() + _CLOSING_LIMIT
            if member.ended is None:
                # The whole group at once: no fork within it is faster.
                with contextlib.suppress(OSError):
                    os.killpg(member.pid, signal.SIGSTOP)

    def being_killed(self) -> list[_Member]:
        return [member for member in self.members.values() if member.is_being_killed]

    def kill_round(self, member: _Member) -> None:
        """One round of killing. Reports the end when nothing is left, or after the deadline."""
        remaining = processes.freeze_and_kill(lambda: self.processes_of(member))
        if remaining or member.ended is None:
            if member.deadline is None or time.monotonic() < member.deadline:
                return
            # A process sleeps in the kernel. Report it as a survivor rather than wait for ever.
            member.ended = member.ended or {"code": -int(signal.SIGKILL), "maxrss": 0, "at": steady()}
        del self.members[member.name]
        if member.failure:
            self.send_failure(member.name, **member.failure)
        else:
            survivors = [who.pid for who in remaining if processes.is_alive(who)]
            self.send_event("exited", member.name, **member.ended, survivors=survivors)

    def processes_of(self, member: _Member) -> Iterator[Identity]:
        """The processes of a member: its main process, its orphans, and their descendants."""
        mains = {each.pid for each in self.members.values() if each.ended is None}
        others = {each.pid for each in self.members.values() if each is not member}
        roots: list[int] = []
        if member.ended is None and (who := processes.identity(member.pid)):
            roots.append(who.pid)
            yield who
        for pid in self.orphans():
            process = None if pid in mains else processes.process_of(pid)
            if process is None:
                continue
            if process.dead:
                if process.session not in others:  # it may have left a child since the orphans were listed
                    yield Identity(pid, processes.NO_START)
            elif self.owner_of(process) in (member.name, _UNKNOWN_MEMBER):
                roots.append(pid)
                yield process.identity
        yield from processes.descendants_of_all(roots, mains)

    def orphans(self) -> Iterable[int]:
        """Processes of members that lost their parent: our children now, among the main processes."""
        if processes.has_prctl():
            return processes.children(os.getpid())
        # They belong to init. Those that left the session and hid their environment cannot be found.
        sessions = {each.pid for each in self.members.values()}
        in_session = (p.pid for p in processes.processes().values() if p.session in sessions and not p.dead)
        candidates = (*processes.find_marked(self.mark), *processes.find_in_group(self.mark))
        marked = (who.pid for who in candidates if who.pid not in (os.getpid(), os.getppid()))
        return {*in_session, *marked}

    def owner_of(self, process: processes.Process) -> str | None:
        """The member that an orphan belonged to; `_UNKNOWN_MEMBER` if it hides and all are ending; None:
        unknown.
        """
        environment = processes.environment(process.pid)
        if environment.get(processes.MARK) == self.mark:
            return environment.get(processes.MEMBER)
        for member in self.members.values():
            if process.session == member.pid:
                return member.name
        return _UNKNOWN_MEMBER if all(member.is_being_killed for member in self.members.values()) else None

    def end(self) -> bool:
        """End the keeper: the supervisor is gone or asked for it. Kills everything below; whether nothing is
        left.
        """
        deadline = time.monotonic() + _ABANDONED_LIMIT
        while left := processes.kill_all(self.all_processes, within=1.0):
            if time.monotonic() >= deadline:
                break
        return not left and (processes.has_prctl() or self.group is not None)

    def all_processes(self) -> Iterator[Identity]:
        yield from processes.other_descendants()
        if not processes.has_prctl():
            lost = [who for pid in self.orphans() if (who := processes.identity(pid))]
            yield from lost
            yield from processes.descendants_of_all([who.pid for who in lost], [os.getpid()])

    # Words to the supervisor.

    def send_event(self, event: str, member: str, **fields: Any) -> None:
        self.wire.queue({"at": steady(), **fields, "event": event, "member": member})

    def send_failure(self, member: str, stage: str, errno: int, text: str) -> None:
        self.send_event("spawn_failed", member, stage=stage, errno=errno, text=text)


_UNKNOWN_MEMBER = ""


# --- the member's first instants --------------------------------------------------------------------------


def _exec_member(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    log: str,
    fds: Iterable[int],
    report: int,
    group: str | None,
    reports: bool,
) -> NoReturn:
    """In the forked child: exec the member's program, or report the error. Never returns."""
    stage = "setup"
    try:
        keeper = os.getppid()
        os.setsid()
        signal.set_wakeup_fd(-1)
        _default_signals()
        processes.close_all_but([report, *fds])
        for fd in fds:
            os.set_inheritable(fd, True)
        if processes.set_pdeathsig(signal.SIGKILL) and os.getppid() != keeper:
            os._exit(127)  # the keeper died between fork and prctl: no signal would come
        if group is not None:
            with contextlib.suppress(OSError):
                join_group(group)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        stage = "log"
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with contextlib.suppress(OSError):  # whatever the umask, which stays the member's own
            os.fchmod(out, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        stage = "cwd"
        os.chdir(cwd)
        stage = "exec"
        _exec(argv, _with_endpoint(env) if reports else env)
    except Exception as error:  # every error must reach the supervisor
        number = error.errno or 0 if isinstance(error, OSError) else 0
        failure = {
            "stage": stage,
            "errno": number,
            "text": _explain(stage, error, argv, env, cwd, log)[:2000],
        }
        os.write(report, json.dumps(failure).encode())
    finally:
        os._exit(127)


def _with_endpoint(env: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with the variables of an endpoint, which a child of this process is; without them where
    there can be none.
    """
    if env.get("ALLABOARD_STARTUP") == "off":
        return env
    try:
        added = ENDPOINT.start({os.fsencode(name): os.fsencode(value) for name, value in env.items()})
    except OSError:
        return env
    return {**env, **{os.fsdecode(name): os.fsdecode(value) for name, value in added.items()}}


def _default_signals() -> None:
    """Reset signals as a shell does: Python ignores SIGPIPE, a client maybe SIGINT, and exec keeps ignored
    signals.
    """
    for sig in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(sig, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _exec(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Like execvpe, but a program that is there and cannot be run wins over "not found" further on."""
    if "/" in argv[0]:
        os.execve(argv[0], list(argv), env)
    refused: OSError | None = None
    for folder in _path(env).split(os.pathsep):
        try:
            os.execve(os.path.join(folder, argv[0]), list(argv), env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])


def _path(env: Mapping[str, str]) -> str:
    return env.get("PATH") or os.defpath


def _explain(
    stage: str, error: Exception, argv: Sequence[str], env: Mapping[str, str], cwd: str, log: str
) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    match stage, getattr(error, "errno", None):
        case "log", _:
            return f"the log {log} cannot be written: {reason}"
        case "cwd", _:
            return f"the folder {cwd}, where the member should start, cannot be entered: {reason}"
        case "exec", errno.ENOENT if "/" not in argv[0]:
            return f"command {argv[0]!r} is not found in PATH ({_path(env)})"
        case "exec", errno.ENOENT if os.path.exists(argv[0]):
            return f"command {argv[0]!r} exists, but the interpreter in its first line does not"
        case "exec", errno.ENOENT:
            return f"command {argv[0]!r} does not exist (looked from {cwd})"
        case "exec", errno.EACCES:
            return (
                f"command {argv[0]!r} is not executable: make it so (chmod +x) or name its interpreter first"
            )
        case "exec", errno.ENOEXEC:
            return f"command {argv[0]!r} is not a program: give it a #! line or name its interpreter first"
        case "exec", errno.E2BIG:
            return f"arguments and environment of {argv[0]!r} are too large for this system"
        case _:
            return f"command {argv[0]!r} could not be started: {reason}"

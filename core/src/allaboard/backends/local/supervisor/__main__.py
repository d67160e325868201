"""The supervisor: the process that owns one attempt of a run, from admission to the last member's end.

It carries out what `controller` decides: requests slots, lets the keeper start and end members, reads their
logs, and keeps ``state.json`` current. Clients talk to it through files and a pipe that wakes it. A run that
was never admitted is mostly a `sleeper`: the same process with the same locks, but a few MB. The supervisor
imports everything before its first member starts, so that an upgrade of the package changes nothing.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allaboard.backends.checkpoints import keep_flags
from allaboard.backends.local.host.clock import Clock
from allaboard.backends.local.host.control_group import make_group
from allaboard.backends.local.host.isolated import isolated_command
from allaboard.backends.local.host.machine import Capacity, boot_id, capacity, cpus, oom_kills
from allaboard.backends.local.host.processes import Identity, detach, set_subreaper, why_no_process
from allaboard.backends.local.host.stacks import TwoLooks
from allaboard.backends.local.pool import sleeper
from allaboard.backends.local.pool.pool import Grant, Need, Pool, Request, Ticket
from allaboard.backends.local.pool.waiting import start_of
from allaboard.backends.local.state import housekeeping, records
from allaboard.backends.local.state.last_good import longest_pause_of_last_good
from allaboard.backends.local.state.paths import (
    EPHEMERAL,
    AttemptFolder,
    RunFolder,
    open_private,
    read_json,
    remove,
    write_json,
)
from allaboard.backends.local.supervisor import controller as op
from allaboard.backends.local.supervisor.environment import (
    declared_names,
    loopback_place,
    member_command,
    member_environment,
    member_files,
    with_checkpoint,
)
from allaboard.backends.local.supervisor.hang import HangWatch
from allaboard.backends.local.supervisor.probes import (
    LogWatch,
    excerpt,
    first_lines,
    probe_port,
    resolve_checkpoint_link,
)
from allaboard.backends.local.supervisor.reaper import Exited, Keeper, SpawnFailed, Started
from allaboard.backends.local.supervisor.secrets import secret_value, secret_variables
from allaboard.backends.local.supervisor.slowness import SlowWatch

# What is imported at the first line of progress, and at the end: by then another release may be installed.
from allaboard.checkpoints import flags as _flags_of_runs  # noqa: F401
from allaboard.diagnosis.ends import doubts_of, waits
from allaboard.diagnosis.stacks import positions, where_it_is
from allaboard.engines import ENGINES
from allaboard.errors import AllaboardError, BadInput, SiteError
from allaboard.follow.printed import ProgressReader
from allaboard.follow.printed import families as _formats  # noqa: F401
from allaboard.follow.progress import add_flags, add_report, flags_of, place_of, progress_of
from allaboard.follow.run_record import RunRecord
from allaboard.follow.stall import is_sign
from allaboard.runs.layout import Group, Layout, Member
from allaboard.runs.observation import Doubt, Event, Observation, Progress, Slow, Stall, State, Stop
from allaboard.runs.setup import TOKEN, TOKEN_KEY
from allaboard.runs.status import CLOCK_IDLE, DOUBTFUL, idle_clock, state_of
from allaboard.text.redaction import hide_known
from allaboard.text.reportline import HANDED, Report, encode
from allaboard.text.units import show_seconds

if TYPE_CHECKING:
    from allaboard.backends.local.supervisor.adoption import Adoption
    from allaboard.backends.local.supervisor.copies import Copies
    from allaboard.checkpoints.foreign.handing import Handed

_FAST, _SLOW, _CLOSE_WATCH = 0.05, 0.25, 60.0
_STATE_EVERY = 0.1
_RENDEZVOUS_PATIENCE = 60.0
_OWNER_EVERY = 5.0
_GAP = 5.0
"""Seconds between two looks at the followers from which on this process may have stood still."""
_NOT_COPIED = "checkpoints_not_copied"
"""The flag of a run whose newest checkpoint could not be copied to ``checkpoints.uri``."""
_TAKEN_OVER = "checkpoint_taken_over"
_WAITS = "slots_pending"
"""The flag of a run that waits for slots."""
_ADMISSION_EVERY = 15.0
_LOCK_PATIENCE = 60.0
_SHORT_SLEEP, _CALM, _LONGEST_CALM = 10.0, 0.5, 30.0
_POOL_RETRY, _LONGEST_POOL_RETRY = 5.0, 300.0
_AT_ONCE = 16
"""Members that are being started at a time: between two of them a stop gets through."""
_LAST_WORD_PATIENCE = 120.0
_SETTLING = 0.2
"""Seconds between two looks at members that have not ended with the others."""
_JUDGED, _MOST_JUDGED = 1 << 20, 64
"""Bytes of the log of a member, and members, by which a success is judged."""


class Supervisor:
    """One attempt. Single-threaded: it forks."""

    def __init__(
        self, folder: AttemptFolder, plan: dict[str, Any], wake: int, clock: Clock | None = None
    ) -> None:
        self.clock = clock or Clock()
        self.folder, self.plan, self.wake = folder, plan, wake
        self.layout = Layout.from_dict(plan["layout"])
        self.run = RunFolder(folder.path.parent)
        self.operator = op.Operator(self.layout, plan["created"])
        self.keeper: Keeper | None = None
        self.group: str | None = None
        self.pool = Pool(plan["pool"], Capacity(0.0, 0))
        self.ticket: Ticket | None = None
        self.pool_fails = False
        """The queue does not depend on why it waits."""
        self.asked_to_end = False
        self.grant: Grant | None = None
        self.ports: tuple[int, ...] = ()
        self.members = {m.name: m for m in self.layout.members}
        self.order = [m.name for m in self.layout.members]
        self.secrets: dict[str, str] = {}
        self.token: str | None = None
        self.identities: dict[str, Identity] = {}
        self.oom_kills = oom_kills()
        self.to_start: dict[str, op.Spawn] = {}
        self.starting: set[str] = set()
        self.watches: dict[str, LogWatch] = {}
        self.logs: dict[str, str] = {}
        self.progress = replace(progress_of(plan["progress"]), expression=self.layout.progress)
        self.own = self.layout.saving.uri if self.layout.saving is not None else None
        self.flags: dict[str, str] = {}
        policy = self.operator.rules.policy
        watched = policy.hang_then != "off"
        self.hang = (
            HangWatch(
                policy.hang_after,
                plan["mark"],
                _folder_of(self.layout.saving.saved_into if self.layout.saving is not None else None),
                partial(longest_pause_of_last_good, self.run),
            )
            if watched
            else None
        )
        self.first_signs: int | bool | None = None
        """True: a member has written a sign of progress; else the bytes in which none was seen."""
        self.slowness = SlowWatch(plan["mark"]) if watched else None
        self.adoption = _adoption(self.layout, plan)
        self.copies = _copies(self.layout, plan)
        self.handed: Handed | None = None
        self.choice = 0
        """Number of the last choice of a checkpoint for members that start."""
        self.choice_of: dict[str, int] = {}
        """Member -> the choice with which it started last."""
        self.doubts: tuple[Doubt, ...] = ()
        self.settling: TwoLooks | None = None
        """The looks at the members that have not ended with the others."""
        self.judged = 0
        self.kept: tuple[str, tuple[str, ...]] | None = None
        """The state and the flags that stand beside the checkpoints."""
        self.heard = False
        self.can_hear = True
        self.written_events = 0
        self.wrote, self.dirty, self.over = 0.0, True, False
        self.owner_read = 0.0
        self.tried = 0.0
        self.client_seen = (0.0, time.monotonic())
        self.looked = time.monotonic()
        self.kind = ""
        self.rested, self.calm = -_SHORT_SLEEP, 0.0

    # The loop.

    def main(self, again: dict[str, Any] | None = None) -> None:
        """``again``: the state that `_sleep_small` saved before this process slept."""
        if again is None:
            self._begin(self.clock.now())
        else:
            self._restore(again)
        record = records.read_record(self.run)
        if record is not None and record.stop is not None:
            self._carry_out(self.operator.ask_stop(record.stop, False, self.clock.now()))
        while not self.over:
            self._write_state()
            self._sleep_small()
            woken = self._sleep()
            self._follow_clock()
            now = self.clock.now()
            self._read_keeper_events()
            self._read_requests(now)
            self._admission(woken)
            self._probe_members(now)
            before = self.operator.conditions, self.operator.waiting
            self._carry_out(self.operator.tick(now))
            # A deadline may end the job and leave no action: its members run on.
            self.dirty |= (self.operator.conditions, self.operator.waiting) != before
            self._check_client(now)
        self._end()

    def _follow_clock(self) -> None:
        """Somebody may have set the machine's clock: deadlines, delays and phases go on as if it had always
        been right.
        """
        by = self.clock.follow()
        if by:
            self.operator.clock_was_set(by)
            self.wrote, self.owner_read, self.dirty = self.wrote + by, self.owner_read + by, True
            if self.hang is not None:
                self.hang.moved_at += by

    # Waiting in the queue, or suspended, as a small program.

    def _sleep_small(self) -> None:
        """Sleep as a small program while no member was ever started and no action is due."""
        operator = self.operator
        idle = self.keeper is None and self.grant is None and not operator.ended and not self.over
        if (
            not idle
            or self.dirty
            or not self.owner_read
            or not (operator.has_asked_for_slots or operator.suspended)
        ):
            return
        owner = self.ticket.fileno() if self.ticket is not None else -1
        again = {
            "live": self.plan["live_fd"],
            "wake": self.wake,
            "owner": owner,
            "ticket": self.ticket.name if self.ticket is not None else "",
            "client": self.client_seen,
            "rested": time.monotonic(),
            "calm": self.calm,
            "offset": self.clock.offset,
            "created": operator.marks.created,
        }
        due = operator.due()
        if self.ticket is not None and self.ticket.look_again is not None:
            due = min(due or math.inf, self.clock.now() + self.ticket.look_again)
        patience = self._patience()
        left = (patience or 0.0) - (time.monotonic() - self.client_seen[1])
        back = isolated_command("allaboard.backends.local.supervisor", str(self.folder.path))
        with suppress(OSError):  # it goes on as the large program
            sleeper.become_sleeper(
                [*back, json.dumps(again)],
                wake=self.wake,
                owner=owner,
                home=self.pool.home if owner >= 0 else "",
                pool=self.pool.path,
                until=due - self.clock.offset if due is not None else 0.0,
                client=str(self.folder.client) if patience is not None else "",
                patience=max(0.0, left),
                calm=self.calm,
                dead=self.pool.dead,
                keep=self.plan["live_fd"],
            )

    def _restore(self, again: dict[str, Any]) -> None:
        """Restore the state of the supervisor that slept."""
        seen = Observation.from_dict(read_json(self.folder.state)["seen"])
        operator = self.operator
        operator.conditions, operator.waiting = seen.conditions, seen.waiting
        operator.marks.created = again["created"]
        operator.suspended, operator.has_asked_for_slots = seen.suspended, not seen.suspended
        self.flags = {flag: "" for flag in seen.flags if flag != _WAITS}
        self.client_seen = (again["client"][0], max(again["client"][1], again["followed"]))
        self.rested, self.calm, self.dirty = again["rested"], again["calm"], False
        if operator.suspended:
            self._has_secrets(self.clock.now())
            return
        try:
            if again["ticket"]:
                self.ticket = self.pool.reopen_ticket(again["ticket"], again["owner"])
                self.pool.capacity = self.ticket.entry.capacity
        except SiteError:
            os.close(again["owner"])  # the folder is gone: queue up anew
        if not self._has_secrets(self.clock.now()):
            return
        if self.ticket is None:
            self._carry_out([op.Acquire()])
        else:
            self._admission()

    def _begin(self, now: float) -> None:
        if self._has_secrets(now):
            self._carry_out(self.operator.begin(now))

    def _has_secrets(self, now: float) -> bool:
        """Read the secrets once: restarted members get the same values. The job fails without them."""
        try:
            self.secrets = secret_variables(self.plan["secrets"])
            code = self.plan.get("code_secret")
            self.token = secret_value(code, TOKEN_KEY) if code else None
        except BadInput as error:
            self._carry_out(self.operator.on_refused("SecretsUnusable", " ".join(str(error).split()), now))
            return False
        return True

    def _new_keeper(self) -> Keeper:
        live, mark = self.plan["live_fd"], self.plan["mark"]
        self.group = make_group(mark)
        return Keeper.start(mark, keep_fds=(live,), clock=self.clock, group=self.group, last_word=live)

    def _sleep(self) -> bool:
        """Sleep until something happens; true if slots may have become free."""
        place = self.ticket or (self.grant if self._may_grow() else None)
        sources = [self.wake, *(source.fileno() for source in (self.keeper, place) if source is not None)]
        now = self.clock.now()
        pause = _FAST if self._is_starting(now) else _SLOW
        due = self.operator.due()
        if due is not None:
            pause = min(pause, max(0.0, due - now))
        if self.dirty:
            pause = min(pause, max(0.0, self.wrote + _STATE_EVERY - now))
        if any(watch.has_more for watch in self.watches.values()):
            pause = 0.0
        ready, _, _ = select.select(sources, [], [], pause)
        if self.wake in ready:
            with suppress(BlockingIOError):
                os.read(self.wake, 4096)
        return place is not None and place.fileno() in ready

    def _is_starting(self, now: float) -> bool:
        """Return whether a rendezvous or a first step is due soon; it is polled at short intervals for a
        limited time.
        """
        marks = self.operator.marks
        if self.operator.settle_until is not None:
            return True
        return marks.scheduled is not None and marks.stepped is None and now - marks.scheduled < _CLOSE_WATCH

    def _end(self) -> None:
        """End the attempt: write the state, then the record, then release the slots."""
        if self.keeper is not None:
            self.keeper.close()
        if self.grant is not None:
            self.grant.release()
        self.pool.close()
        for left in self.folder.path.glob(f"{EPHEMERAL}*"):
            with suppress(SiteError):
                remove(left)
        self._write_state(force=True, over=True)
        if self.own is not None:
            self._keep_flags_at(self.own, self.clock.now())

    # What the operator wants.

    def _carry_out(self, actions: list[op.Action]) -> None:
        todo = deque(actions)
        while todo:
            self.dirty = True
            match action := todo.popleft():
                case op.Acquire():
                    self._request_slots()
                case op.Spawn(member):
                    self.to_start[member.name] = action
                case op.Terminate(member) | op.Kill(member) if member.name in self.to_start:
                    del self.to_start[member.name]
                    todo += self.operator.on_called_off(member.name, self.clock.now())
                case op.Terminate(member):
                    assert self.keeper is not None
                    self.keeper.signal(member.name, signal.SIGTERM)
                case op.Kill(member):
                    assert self.keeper is not None
                    self.keeper.kill(member.name)
                case op.Release():
                    self._release()
                case op.Finish():
                    self.over = True
                case op.Remove():
                    self._remove()
        self._start_members()

    def _start_members(self) -> None:
        """Start the next few members. Starting a thousand takes many seconds, in which a stop may arrive."""
        if self.to_start and self.copies is not None and not self.copies.is_ready(time.monotonic()):
            self._tell_of_copies(self.copies)
            return
        while self.to_start and len(self.starting) < _AT_ONCE:
            spawn = self.to_start.pop(next(iter(self.to_start)))
            self.starting.add(spawn.member.name)
            self._spawn(spawn.member, spawn.number)

    def _request_slots(self) -> None:
        """Request slots; on failure report why and try again later."""
        needs = [self._need(m) for m in self.layout.members]
        elastic = self.layout.elastic
        request = Request(
            self.plan["mark"], tuple(needs), elastic.min if elastic else None, run=self.layout.run
        )
        try:
            with_gpus = any(g.needs.gpu for g in self.layout.groups)
            self.pool.capacity = capacity(os.environ, with_gpus=with_gpus)
            self.ticket = self.pool.request_slots(request)
        except SiteError as error:
            self._pool_unusable(error)
            return
        self._admission()

    def _pool_unusable(self, error: SiteError) -> None:
        """Wait while the pool cannot be used. The run never ends because of it."""
        self.operator.waiting = f"no slots can be reserved: {error}; the supervisor tries again at intervals"
        self.dirty = self.pool_fails = True
        self.calm = min(_LONGEST_POOL_RETRY, max(_POOL_RETRY, 2 * self.calm))

    def _need(self, member: Member) -> Need:
        group = self.layout.group(member.group)
        assert group is not None
        return Need(group.needs.cpu, group.needs.memory, group.needs.gpu)

    def _admission(self, woken: bool = True) -> None:
        """Try to get slots: after a wake-up of the pool, and now and then."""
        if not woken and time.monotonic() - self.tried < _ADMISSION_EVERY:
            return
        self.tried = time.monotonic()
        if self.ticket is not None:
            self._reopen_ticket(self.ticket)
        elif self.grant is not None and self._may_grow():
            self._grow(self.grant)
        elif self.operator.has_asked_for_slots and not self.operator.ended and self.keeper is not None:
            self._request_slots()

    def _reopen_ticket(self, ticket: Ticket) -> None:
        # Any user may write to the pipe, as often as they like.
        short = time.monotonic() - self.rested < _SHORT_SLEEP
        self.calm = min(_LONGEST_CALM, max(_CALM, 2 * self.calm)) if short else 0.0
        try:
            grant = self.pool.try_admit(ticket)
            if grant is None:
                self._set_waiting(self.pool.why_waiting(ticket))
                return
            self.ticket, self.grant = None, grant
            listeners = ENGINES[self.layout.engine].listeners(self.layout)
            self.ports = tuple(self.pool.reserve_port(grant) for _ in listeners)
        except SiteError as error:
            if self.grant is not None:
                self._release()
            self._pool_unusable(error)
            return
        if self.keeper is None:
            try:
                self.keeper = self._new_keeper()
            except OSError as error:
                text = f"no member can be started: {why_no_process(error)}"
                self._carry_out(self.operator.on_refused("NoProcess", text, self.clock.now()))
                return
        self.keeper.hold(grant.owner_fds)
        self._on_admitted(grant.admitted)

    def _set_waiting(self, reason: str) -> None:
        self.dirty |= self.operator.waiting != reason
        self.pool_fails = False
        self.operator.waiting = reason

    def _may_grow(self) -> bool:
        """Return whether an elastic gang that started below its maximum may take further members."""
        elastic = self.layout.elastic is not None and not self.operator.ended
        return elastic and self.grant is not None and len(self.grant.admitted) < self.layout.total

    def _grow(self, grant: Grant) -> None:
        with suppress(SiteError):  # it runs on as it is
            self._on_admitted(self.pool.grow(grant))

    def _on_admitted(self, indices: Iterable[int]) -> None:
        names = [self.order[i] for i in indices]
        if names:
            self._carry_out(self.operator.on_admitted(names, self.clock.now()))

    def _release(self) -> None:
        if self.ticket is not None:
            self.ticket.cancel()
        if self.grant is not None:
            self.grant.release()
        self.ticket = self.grant = None

    def _spawn(self, member: Member, number: int) -> None:
        assert self.keeper is not None and self.grant is not None
        group = self.layout.group(member.group)
        assert group is not None
        index = self.order.index(member.name)
        log = self.folder.log(member.name, number)
        self.logs[member.name] = str(log)
        # Any member can print a report line: the run's are those of the first.
        self.watches[member.name] = LogWatch(
            log, counts_reports=member.rank == 0, printed=ProgressReader(self.layout.progress)
        )
        try:
            files = self._write_files()
            layout = self._layout_to_start(member)
            step = None if self.handed is None or layout == self.layout else self.handed.step
            if step is not None and member.rank == 0:
                with open_private(log, "a") as file:
                    file.write(encode(HANDED, step=step) + "\n")
        except (OSError, AllaboardError) as error:
            text = str(error)
            if isinstance(error, OSError):
                text = f"its {error.filename} cannot be written: {error.strerror}"
            self.starting.discard(member.name)
            self._carry_out(self.operator.on_start_failed(member.name, text, self.clock.now()))
            return
        group = layout.group(member.group)
        assert group is not None
        environment = member_environment(
            layout,
            member,
            caller=os.environ,
            place=loopback_place(self.layout, self.ports),
            gpus=self._gpus(self.grant, index, group),
            cpus=cpus(),
            secrets=self.secrets,
            files=files,
        )
        if self.token:
            environment[TOKEN] = self.token
        declared = declared_names(self.layout, member, self.secrets)
        self.keeper.spawn(
            member.name,
            member_command(layout, group, environment, declared, str(self.folder.setup / member.name)),
            environment,
            self.plan["folder"],
            str(log),
            self.grant.fds(index),
            reports=member.rank == 0 and self.layout.inject,
        )

    def _layout_to_start(self, member: Member) -> Layout:
        """The layout with the newest whole checkpoint in it. Members that start together, or one after the
        other because the first one failed, get the same one; while others train nothing of theirs is moved.
        Raises StorageError.
        """
        if self.adoption is None:
            return self.layout
        others_live = bool(self.identities) or bool(self.starting - {member.name})
        before = self.choice_of.get(member.name, 0)
        taken = self.handed if others_live and before < self.choice else None
        if taken is None or before:
            handed = self.adoption.hand_over(move_aside=not others_live, taken=taken)
            self.choice += taken is None or handed.files != taken.files
            self.handed = handed
            now = self.clock.now()
            for text in handed.moved:
                self.operator.events.append(Event(now, "Warning", "TornCheckpoint", self.layout.run, text))
            if handed.files is not None:
                step = "" if handed.step is None else f" (step {handed.step})"
                text = f"goes on from {handed.files}{step}"
                self.operator.events.append(Event(now, "Normal", "Resumes", self.layout.run, text))
        self.choice_of[member.name] = self.choice
        return with_checkpoint(self.layout, None if self.handed is None else self.handed.files)

    def _on_adopted(self, reports: list[Report], now: float) -> None:
        """Checkpoints are the run's once they are where its job has them."""
        if self.copies is not None:
            reports = self.copies.look(time.monotonic(), has_new=bool(reports))
            self._tell_of_copies(self.copies)
        self._take_reports(reports, now)

    def _finish_copies(self, copies: Copies) -> None:
        """The last copies of an attempt that has ended, before anybody hears of its end."""
        reports = copies.finish(self.layout.grace, self._is_hurried)
        self._tell_of_copies(copies)
        self._take_reports(reports, self.clock.now())

    def _is_hurried(self) -> bool:
        """Return whether somebody wants the run to end."""
        return self.operator.stop is not None or self.asked_to_end or any(self.folder.requests.glob("*.json"))

    def _tell_of_copies(self, copies: Copies) -> None:
        notes, copies.notes = copies.notes, []
        for kind, reason, text in notes:
            self.dirty = True
            self.operator.events.append(Event(self.clock.now(), kind, reason, self.layout.run, text))

    def _take_reports(self, reports: Iterable[Report], now: float) -> None:
        for report in reports:
            self.dirty = True
            self.progress = add_report(self.progress, report, now, self.own)

    def _gpus(self, grant: Grant, index: int, group: Group) -> tuple[str, ...]:
        """The GPUs of a member, and of those that only wait for it to start their ranks."""
        others = [n for n, m in enumerate(self.members.values()) if self._waits(m)] if group.command else []
        return tuple(gpu for n in (index, *others) for gpu in grant.gpus(n))

    def _waits(self, member: Member) -> bool:
        group = self.layout.group(member.group)
        return group is not None and not group.command

    def _write_files(self) -> dict[str, str]:
        """Write the files that the operator would put into members: path in a member -> path here."""
        files = member_files(self.layout, str(self.folder.path))
        for path, text in files.values():
            with open_private(Path(path), "w") as file:
                file.write(text)
        return {there: here for there, (here, _) in files.items()}

    def _remove(self) -> None:
        """The ttl has passed: remove logs and state, keep the record."""
        with suppress(OSError, SiteError):  # else the next allaboard process removes it
            records.change_record(
                self.run, lambda r: replace(r, deleted=True) if r.uid == self.plan["uid"] else r
            )

    # What happens.

    def _read_keeper_events(self) -> None:
        if self.keeper is None:
            return
        events = self.keeper.read_events()
        begun = {event.member: event.identity for event in events if isinstance(event, Started)}
        self.identities |= begun
        if begun and self.grant is not None:
            self.grant.record(list(self.identities.values()))
        for event in events:
            self.dirty = True
            self.starting.discard(event.member)
            match event:
                case Started(member, _, at):
                    self._carry_out(self.operator.on_running(member, at))
                case SpawnFailed(member, _, _, text, at):
                    self._carry_out(self.operator.on_start_failed(member, text, at))
                case Exited(member, code, _, at, _):
                    self._on_exited(member, code, at)
        self._start_members()
        if not self.keeper.alive:
            self._on_keeper_died()

    def _on_exited(self, member: str, code: int, at: float) -> None:
        self.identities.pop(member, None)
        # Read its last lines first: they may hold the result, and a restart begins another log.
        self._read_log(member, at, last=True)
        if self.adoption is not None and not self.identities and not self.starting:
            self._on_adopted(self.adoption.finish(), at)
        self._carry_out(self.operator.on_exited(member, code, at, self._why_killed(code)))
        if self.copies is not None and self.operator.ended and not self.identities and not self.starting:
            self._finish_copies(self.copies)

    def _why_killed(self, code: int) -> str | None:
        """The kubelet's OOMKilled, where the kernel has killed one more process for our control group's
        memory than members have ended of it.
        """
        if code not in (-signal.SIGKILL, 128 + signal.SIGKILL) or oom_kills() <= self.oom_kills:
            return None
        self.oom_kills += 1
        return "OOMKilled"

    def _on_keeper_died(self) -> None:
        """The keeper was killed: kill all members. They count as killed."""
        assert self.keeper is not None
        self.keeper.on_keeper_death()
        now = self.clock.now()
        self.operator.events.append(
            Event(
                now,
                "Warning",
                "KeeperLost",
                self.layout.run,
                "the keeper was killed, and every member with it",
            )
        )
        living = [n for n, member in self.operator.members.items() if member.alive and n not in self.to_start]
        self.starting.clear()
        try:
            self.keeper = self._new_keeper()
        except OSError as error:  # nothing of the run is left: it is lost
            raise SiteError(f"its keeper was killed, and {why_no_process(error)}") from error
        if self.grant is not None:
            self.keeper.hold(self.grant.owner_fds)
        for name in living:
            self._on_exited(name, -signal.SIGKILL, now)

    def _read_requests(self, now: float) -> None:
        if self.asked_to_end:
            self.asked_to_end, self.dirty = False, True
            stop = Stop("SIGTERM", "the supervisor was asked to end", now)
            self._carry_out(self.operator.ask_stop(stop, False, now))
        for path in sorted(self.folder.requests.glob("*.json")):
            body = _read_request(path)
            with suppress(OSError):
                path.unlink()
            self.dirty = True
            match body.get("do"):
                case "stop":
                    at = body.get("at")
                    at = at if isinstance(at, (int, float)) else now
                    stop = Stop(str(body.get("by", "somebody")), str(body.get("reason", "")), at)
                    self._carry_out(self.operator.ask_stop(stop, bool(body.get("kill")), now))
                case "suspend":
                    self._carry_out(self.operator.ask_suspend(now))
                case "resume":
                    self._carry_out(self.operator.ask_resume(now))

    def _patience(self) -> float | None:
        """Seconds for which this run goes on without a follower; None: however long."""
        patience = self.plan.get(f"{self.kind}_seconds")
        return float(patience) if isinstance(patience, (int, float)) else None

    def _check_client(self, now: float) -> None:
        """Stop an attached or orchestrated run that nobody followed for too long."""
        # The monotonic clock stands still while the machine sleeps. Where this process alone stood still, its
        # followers may have stood still with it.
        moment, patience = time.monotonic(), self._patience()
        if patience is not None and moment - self.looked > min(sleeper.GAP, max(_GAP, patience / 4)):
            self.client_seen = (self.client_seen[0], moment)
        self.looked = moment
        if now - self.owner_read < _OWNER_EVERY or self.operator.ended:
            return
        self.owner_read = now
        try:
            record = records.read_record(self.run)
        except (OSError, AllaboardError):
            return
        self.kind = record.owner.kind if record is not None else ""
        with suppress(OSError):
            touched = self.folder.client.stat().st_mtime
            if touched != self.client_seen[0]:
                self.client_seen = (touched, moment)
        patience = self._patience()
        if patience is not None and moment - self.client_seen[1] > patience:
            stop = Stop("allaboard", _abandoned(self.kind, patience), now)
            with suppress(OSError, SiteError):
                records.change_record(self.run, lambda r: replace(r, stop=r.stop or stop))
            self._carry_out(self.operator.ask_stop(stop, False, now))

    # What is seen.

    def _probe_members(self, now: float) -> None:
        for name in self.watches:
            self._read_log(name, now)
        if self.adoption is not None and self.watches:
            self._on_adopted(self.adoption.look(time.monotonic()), now)
        self._probe_rendezvous(now)
        self._probe_movement(now)
        self._probe_speed(now)
        self._probe_waiting(now)
        if not self.operator.ended and self.layout.policy.clocks:
            message = idle_clock(self.operator.phases(now), self.layout.policy.clocks)
            if message is not None:
                self._flag(CLOCK_IDLE, message, now)

    def _probe_movement(self, now: float) -> None:
        """Look for a hang: members run but do not progress. Act on it as policy.hang says."""
        if self.hang is None or self.operator.ended:
            return
        written = self._written()
        news = self.hang.look(written, self.operator.is_training, time.monotonic(), now)
        if news is None:
            return
        self.dirty = True
        if isinstance(news, Stall):
            self._carry_out(self.operator.on_stalled(news, now))
        else:
            text = f"the run makes progress again, after {show_seconds(news)} without a sign of progress"
            self.operator.events.append(Event(now, "Normal", "MovesAgain", self.layout.run, text))

    def _written(self) -> int:
        """Bytes in all logs; 0 as long as they hold no sign of progress since the members started."""
        written = sum(watch.offset for watch in self.watches.values())
        if not self.operator.is_training:
            self.first_signs = None
        elif self.first_signs is not True and written != self.first_signs:
            seen = any(map(is_sign, (line for w in self.watches.values() for line in first_lines(w.path))))
            self.first_signs = True if seen else written
        return written if self.first_signs is True else 0

    def _probe_speed(self, now: float) -> None:
        """Look for a rank that holds up the others."""
        if self.slowness is None or self.operator.ended:
            return
        stands = self.hang is not None and self.hang.stall is not None
        news = self.slowness.look(self.operator.is_training and not stands, time.monotonic())
        if news is None:
            return
        self.dirty = True
        warning = isinstance(news, Slow)
        kind, reason = ("Warning", "slow_rank") if warning else ("Normal", "KeepsUp")
        text = news.text if isinstance(news, Slow) else news
        self.operator.events.append(Event(now, kind, reason, self.layout.run, text))

    def _probe_waiting(self, now: float) -> None:
        """Look for members that wait for others which have ended, before they are ended, too."""
        if self.operator.settle_until is None:
            return
        if self.settling is None:
            self.settling = TwoLooks(self.plan["mark"], _SETTLING, records=False)
        looks = self.settling.step()
        if looks is None:
            return
        self.settling = TwoLooks(self.plan["mark"], _SETTLING, records=False)
        waiting = [place for place in positions(looks) if place.operation is not None]
        for place in waiting[:1] if not self.doubts else ():
            where = where_it_is(place, looks)
            self._doubt((waits(place.rank, where, place.look.member),), now)

    def _judge_success(self, now: float, over: bool) -> None:
        """Doubt a success whose logs contradict it: when the run has ended, and once more when all of its
        members have.
        """
        turn = 2 if over else 1
        if self.doubts or self.judged >= turn:
            return
        seen = self._observation(now)
        if state_of(seen) is not State.SUCCEEDED:
            return
        self.judged = turn
        secrets = tuple(self.secrets.values())
        first = sorted((m for m in seen.members if m.log), key=lambda member: member.rank)[:_MOST_JUDGED]
        tails = {m.name: hide_known(excerpt(Path(m.log or ""), _JUDGED), secrets) for m in first}
        self._doubt(doubts_of(replace(seen, tails=tails)), now)

    def _keep_flags(self, now: float) -> None:
        """Keep the flags beside the checkpoints, if they are on a disk: before the state, for which readers
        wait.
        """
        if self.own is not None and _folder_of(self.own):
            self._keep_flags_at(self.own, now)

    def _keep_flags_at(self, uri: str, now: float) -> None:
        seen = self._observation(now)
        kept = (state_of(seen).value, seen.flags)
        if state_of(seen).is_final and kept != self.kept:
            self.kept = kept
            with suppress(Exception):  # no run is lost for its flags: what opens a bucket is imported late
                keep_flags(uri, seen, self.flags, os.environ)

    def _doubt(self, doubts: tuple[Doubt, ...], now: float) -> None:
        if doubts:
            self.doubts = doubts
            self._flag(DOUBTFUL, "; ".join(doubt.text for doubt in doubts), now)

    def _read_log(self, name: str, now: float, *, last: bool = False) -> None:
        watch = self.watches.get(name)
        for report in watch.reports(now, last=last) if watch is not None else ():
            self.dirty = True
            report = resolve_checkpoint_link(report, self.own)
            flags = flags_of(report, self.progress, self.own)
            for code, text in add_flags(self.flags, flags).items():
                self._flag(code, text, now)
            self.operator.taken_over = self.operator.taken_over or flags.get(_TAKEN_OVER)
            self.progress = add_report(self.progress, report, now, self.own)
            if report.kind == "progress":
                if self.heard:
                    self.operator.on_rendezvous(now)
                self.operator.on_first_step(now)
                if self.slowness is not None and self.progress.step is not None:
                    self.slowness.reached(self.progress.step, now)

    def _probe_rendezvous(self, now: float) -> None:
        operator = self.operator
        if not operator.meets or operator.marks.met is not None or operator.marks.scheduled is None:
            return
        if not operator.ended:
            rendezvous = probe_port(self.ports[0])
            self.can_hear = rendezvous is not None
            if rendezvous is not None:
                self.heard = self.heard or rendezvous.is_listening
                elastic = self.layout.elastic
                if rendezvous.is_listening and rendezvous.connected >= (
                    elastic.min if elastic else self.layout.total
                ):
                    operator.on_rendezvous(now)
                    self.dirty = True
        late = operator.started is not None and now - operator.started > _RENDEZVOUS_PATIENCE
        if self.can_hear and not self.heard and (late or operator._has_condition("Succeeded")):
            self._flag(
                "rendezvous_never_happened", f"no process ever listened at 127.0.0.1:{self.ports[0]}", now
            )

    def _flag(self, code: str, text: str, now: float) -> None:
        if code not in self.flags:
            self.flags[code] = text
            self.dirty = True
            self.operator.events.append(Event(now, "Warning", code, self.layout.run, text))

    def _observation(self, now: float) -> Observation:
        operator = self.operator
        return Observation(
            run=self.layout.run,
            attempt=self.layout.attempt,
            generation=self.layout.generation,
            uid=self.plan["uid"],
            alive=True,
            conditions=operator.conditions,
            members=operator.seen(self.logs),
            restarts=operator.restarts,
            created=operator.created,
            started=operator.started,
            finished=operator.finished,
            suspended=operator.suspended,
            stop=operator.stop,
            stopped=operator.stopped,
            deleted=operator.removed,
            waiting=operator.waiting,
            stall=self._stall(),
            slow=self._slow(),
            doubts=self.doubts,
            phases=operator.phases(now),
            progress=self._progress_with_pauses(),
            flags=(*self.flags, *self._passing_flags()),
            notes=tuple(self.plan["notes"]),
        )

    def _progress_with_pauses(self) -> Progress:
        movement = self.hang.movement if self.hang is not None else None
        longest = max(self.progress.longest_pause, movement.longest if movement is not None else 0.0)
        return replace(self.progress, longest_pause=round(longest, 1))

    def _stall(self) -> Stall | None:
        """That it stands; at its end only where it was ended for that."""
        stall = self.hang.stall if self.hang is not None else None
        if stall is None or not self.operator.ended:
            return stall
        failed = (c for c in self.operator.conditions if c.type == "Failed" and c.status == "True")
        return stall if any(c.reason == stall.code for c in failed) else None

    def _slow(self) -> Slow | None:
        return self.slowness.slow if self.slowness is not None and not self.operator.ended else None

    def _passing_flags(self) -> tuple[str, ...]:
        """Those that go again when what they say has passed."""
        stall, slow, waits = self._stall(), self._slow(), self.operator.waiting is not None
        behind = self.copies is not None and self.copies.problem is not None
        hangs = stall is not None and stall.is_hang and stall.code
        codes = [hangs, slow and "slow_rank", waits and _WAITS, behind and _NOT_COPIED]
        return tuple(code for code in codes if code)

    def _write_state(self, force: bool = False, over: bool = False) -> None:
        now = self.clock.now()
        if not (
            force or (self.dirty and (now - self.wrote >= _STATE_EVERY or self.operator.ended or self.over))
        ):
            return
        if self.operator.ended:
            self._probe_rendezvous(now)
            self._judge_success(now, over)
            self._keep_flags(now)
        try:
            self._write_state_file(self._observation(now), now, over)
        except OSError as error:
            # A disk that is full, read-only or temporarily gone ends no run: the next round tries again.
            self._on_write_error(error, now)
            if over:
                self._write_final_state()
        else:
            self.dirty = False
        self.wrote = now

    def _write_state_file(self, seen: Observation, now: float, over: bool) -> None:
        self._write_events()
        body = {"version": 1, "boot": boot_id(), "written": now, "over": over, "seen": seen.to_dict()}
        body |= {"steady": now - self.clock.offset, "grouped": self.group is not None}
        if self.ticket is not None and not self.pool_fails:
            body["queued"] = self._waiting_place(self.ticket)
        if self.folder.path.is_dir():
            write_json(self.folder.state, body)
        state = state_of(seen)
        if state.is_final:
            self._write_outcome(state, now)

    def _waiting_place(self, ticket: Ticket) -> dict[str, Any]:
        """The data from which a reader computes why this run waits."""
        room, asked = ticket.entry.capacity, start_of(ticket.entry.claim)
        return {
            "pool": self.pool.path,
            "ticket": ticket.name,
            "needs": [asked.cpu, asked.memory, asked.gpu],
            "room": [room.cpu, room.memory, room.gpus],
        }

    def _write_final_state(self) -> None:
        """Write the final state, without which the run counts as lost. Waits for space if needed."""
        end = time.monotonic() + _LAST_WORD_PATIENCE
        while time.monotonic() < end:
            try:
                now = self.clock.now()
                self._write_state_file(self._observation(now), now, over=True)
            except OSError:
                time.sleep(0.5)
            else:
                return
        print("error: the end of the run could not be saved", file=sys.stderr, flush=True)

    def _on_write_error(self, error: OSError, now: float) -> None:
        self.folder.make_room()
        reason = f"{error.filename or self.folder.path}: {error.strerror}"
        self._flag("home_unusable", f"the state of the run cannot be written: {reason}", now)

    def _write_events(self) -> None:
        fresh = self.operator.events[self.written_events :]
        if not fresh:
            return
        lines = "".join(json.dumps(asdict(event), ensure_ascii=False) + "\n" for event in fresh)
        size = self.folder.events.stat().st_size if self.folder.events.exists() else 0
        try:
            with open_private(self.folder.events, "a") as file:
                file.write(lines)
        except OSError:
            with suppress(OSError):  # a partial write would repeat events
                os.truncate(self.folder.events, size)
            raise
        self.written_events += len(fresh)

    def _write_outcome(self, state: State, now: float) -> None:
        def ended(record: RunRecord) -> RunRecord:
            return record.ended(state, now) if record.uid == self.plan["uid"] else record

        with suppress(SiteError):  # a damaged record ends no run; readers report it
            records.change_record(self.run, ended)


def _abandoned(kind: str, patience: float) -> str:
    """Reason for which a run that nobody follows is stopped."""
    if kind == "attached":
        return (
            f"no client followed this attached run for {patience:g} s; use --detach to let a run go on alone"
        )
    return (
        f"nobody followed this run for {show_seconds(patience)}, neither a task nor a triggerer; "
        "the next try of its task resumes it"
    )


def _adoption(layout: Layout, plan: Mapping[str, Any]) -> Adoption | None:
    """Of a job whose checkpoints other libraries write, too; imported for those, before the first member."""
    if layout.saving is None or not layout.saving.is_of_others:
        return None
    from allaboard.backends.local.supervisor.adoption import Adoption

    return Adoption(layout, layout.saving, float(plan.get("since", plan["created"])))


def _copies(layout: Layout, plan: Mapping[str, Any]) -> Copies | None:
    """Of a job whose script saves into a folder, which the uri has copies of."""
    if layout.saving is None or layout.saving.folder is None:
        return None
    from allaboard.backends.local.supervisor.copies import Copies

    return Copies(layout.saving, float(plan.get("since", plan["created"])))


def _folder_of(uri: str | None) -> str | None:
    """The folder on a disk that a uri names; None: it is elsewhere."""
    place = place_of(uri, trusted=True) if uri is not None else None
    return place[1] if place is not None and not place[0] else None


def _read_request(path: Path) -> dict[str, Any]:
    """The content of a request; empty if it cannot be read, because no request may end a run."""
    try:
        body = read_json(path)
    except (AllaboardError, OSError):
        return {}
    return body if isinstance(body, dict) else {}


def main() -> int:
    """``allaboard.backends.local.supervisor ATTEMPT_FOLDER``, isolated: started by the backend, or again by
    `sleeper`, with what `Supervisor._sleep_small` wrote down, the reason, and when it was last followed.
    """
    folder = AttemptFolder(Path(sys.argv[1]))
    again = {"followed": float(sys.argv[4]), **json.loads(sys.argv[2])} if len(sys.argv) > 2 else None
    if again is None:
        try:
            detach()
        except SiteError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return 1
        live, wake = _take_lock(folder.live), os.open(folder.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    else:
        live, wake = again["live"], again["wake"]
        for fd in (live, wake):
            os.set_inheritable(fd, False)
    plan = {**(read_json(folder.plan) or {}), "live_fd": live}
    record = records.read_record(RunFolder(folder.path.parent))
    if record is None or record.uid != plan.get("uid") or record.outcome is not None:
        return 0  # this attempt was given up before it began
    if again is None:
        # Before this process is a subreaper: housekeeping must outlive it.
        housekeeping.start(folder.path.parents[2], os.environ)
    set_subreaper()
    for name in (signal.SIGHUP, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    clock = Clock(again["offset"] if again is not None else None)
    supervisor = Supervisor(folder, plan, wake, clock)

    def on_term(*_: object) -> None:
        """A shutdown, or a stop that could not be written down: the run stops as usual, with its grace."""
        supervisor.asked_to_end = True

    signal.signal(signal.SIGTERM, on_term)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if again is not None and sys.argv[3] == "sigterm":
        on_term()
    try:
        supervisor.main(again)
    except AllaboardError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _take_lock(path: Path) -> int:
    """Take the attempt's lock. Readers that test whether the supervisor lives hold it for a moment."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    deadline = time.monotonic() + _LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)
        else:
            return fd


if __name__ == "__main__":
    sys.exit(main())

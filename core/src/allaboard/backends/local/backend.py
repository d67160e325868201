"""The local backend: runs as real processes of this machine, one supervisor each.

All state is files below ``<home>/local/<machine>``; a client may die at any instruction. A launch holds the
record's lock from the decision until the supervisor has taken the attempt's own lock: readers wait in between
and then see the run.
"""

from __future__ import annotations

import errno
import os
import secrets as random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from allaboard.backends.base import (
    Cursor,
    Handle,
    LogLine,
    NotYours,
    Plan,
    Selection,
    StartedWith,
    Stopped,
)
from allaboard.backends.checkpoints import with_checkpoints
from allaboard.backends.data import Choice, choose_data, read_data
from allaboard.backends.local.host.arrivals import arrivals_in
from allaboard.backends.local.host.clock import Moment
from allaboard.backends.local.host.isolated import isolated_command
from allaboard.backends.local.host.machine import Capacity, boot_id, capacity, cpus, fingerprint
from allaboard.backends.local.host.processes import (
    Identity,
    continue_stopped,
    debugger_of,
    identity,
    is_alive,
    kill_run,
    pids_with_open_file,
    require_processes,
    send_signal,
    spawn_supervisor,
)
from allaboard.backends.local.host.shared_files import check_pool
from allaboard.backends.local.host.stacks import BETWEEN, look_twice
from allaboard.backends.local.pool.admission import shrink_to_fit
from allaboard.backends.local.pool.pool import Need, Pool, PoolView, default_path
from allaboard.backends.local.pool.waiting import FIRST_COME
from allaboard.backends.local.state import housekeeping, logs, records
from allaboard.backends.local.state.code import keep_code, kept_code
from allaboard.backends.local.state.paths import (
    CLAIMS,
    DAMAGED,
    EPHEMERAL,
    NEWER,
    AttemptFolder,
    RunFolder,
    damaged_error,
    discard,
    is_held,
    locked,
    make_private,
    open_plain,
    prepare,
    read_json,
    remove,
    runs_folder,
    translate_disk_errors,
    unreadable_error,
    wait_for_lock,
    write_json,
)
from allaboard.backends.local.supervisor.environment import (
    declared_names,
    expand,
    inherited_environment,
    unknown_references,
    why_not_startable,
)
from allaboard.backends.local.supervisor.probes import excerpt, tail
from allaboard.backends.local.supervisor.secrets import folder_of, locate_secrets, secret_texts, secret_value
from allaboard.backends.packing import is_to_be_packed, with_archive
from allaboard.backends.repository import is_to_be_pinned, with_commit
from allaboard.checking.files import shipped_code, sizes_of_code
from allaboard.diagnosis.stacks import ProcessLook, StacksSeen, Standing
from allaboard.diagnosis.stragglers import Arrival
from allaboard.engines import ENGINES, engine_of, other_version
from allaboard.errors import BadInput, OwnershipConflict, Problem, SiteError, SpecChanged, UnknownRun
from allaboard.follow import run_record
from allaboard.follow.loop import FollowPolicy
from allaboard.follow.progress import thrown_away
from allaboard.follow.run_record import Data, RunRecord
from allaboard.job.site import STORE, Site, home, in_pod, is_relative, place_job, resolve_uri, site_of
from allaboard.job.training_job import TrainingJob
from allaboard.render.labels import claim_name
from allaboard.runs.layout import Layout, Needs, lay_out, saving_of
from allaboard.runs.observation import (
    PHASES,
    Event,
    MemberSeen,
    Observation,
    Owner,
    Progress,
    State,
    Stop,
    in_order,
)
from allaboard.runs.setup import TOKEN_KEY, secret_of
from allaboard.runs.status import state_of
from allaboard.text.names import nearest, why_not_an_object_name
from allaboard.text.redaction import hide_known, secret_values
from allaboard.text.units import seconds as duration
from allaboard.text.units import show_seconds
from allaboard.text.untrusted import RECORDS, parse_json, read_value, show

ATTACHED_SECONDS = 600.0
ORCHESTRATED_SECONDS = 3600.0
"""As on clusters: longer than an orchestrator takes to be restarted or upgraded, and to notice that a worker
is gone and try again; shorter than a night.
"""
PATIENCE = "ALLABOARD_ORCHESTRATED_PATIENCE"
MEMBERS_AT_MOST = 1000
"""Members of a run on this machine: each is a process, two pipes and three files."""
START_LIMIT, NOTICE_AFTER = 300.0, 5.0
"""Seconds: the longest start of a living supervisor, and the time after which a notice about the wait is
printed.
"""
READ = 512 << 20
"""Bytes of the logs of all members that are read for a diagnosis; of each one a few MiB at least."""
_LONG_ENOUGH = 8
"""Characters of a secret of the environment that is looked for in texts."""
_LOCKED_WITHIN = 0.05
"""Seconds within which a launch locks the folder that it has made."""
_POLL = 0.02
HELD_AT_MOST = 30.0
"""Seconds that a debugger may hold a supervisor or a keeper that is asked to end."""
_STOPPED_EVERY = 1.0
"""Seconds between two looks whether a supervisor that is waited for is stopped."""
_NOT_FOUND = (
    "and so was its keeper; without a control group, a process that cleared its environment and left its "
    "session may still run (check with ps)"
)
_LOG_POLL = 0.3
"""Seconds between two reads of followed logs."""
_IGNORED_FIELDS = (
    "metadata", "image", "image_pull_policy", "service_account", "host_network", "security", "pod",
)  # fmt: skip
_IGNORED_OF_GROUPS = ("image", "pod")
_IGNORED_RESOURCES = ("gpu_type", "mig", "shared", "devices", "device_class", "device_selector")
_IGNORED_OF_VOLUMES = ("storage_class", "access")
_IGNORED_OF_SPOT = ("tolerate", "prefer")


Verb = TypeVar("Verb", bound=Callable[..., Any])


def _translate_disk_errors(verb: Verb) -> Verb:
    """Turn disk errors of a method into SiteError with one sentence."""

    @wraps(verb)
    def wrapper(self: LocalBackend, *args: Any, **named: Any) -> Any:
        with translate_disk_errors(self.home):
            return verb(self, *args, **named)

    return cast(Verb, wrapper)


class LocalBackend:
    """`allaboard.backends.base.Backend` on this machine. ``environ``: the caller's environment. A run that
    nobody follows for so many seconds is stopped, by what it was launched with: ``patience`` for attached
    runs, ``orchestrated_patience`` for orchestrated ones, which must be longer than the time to the next try
    (default: ALLABOARD_ORCHESTRATED_PATIENCE, else an hour). Whoever waits in `changes`, and whoever calls
    `watch_over` from time to time, follows a run.

    Reading (`observe`, `list`, `logs`, `events`) writes nothing: it works on a full or read-only disk and
    does not create a missing home. Raises SiteError for errors of the disk.
    """

    name = "local"
    pace = FollowPolicy()
    where = "on this machine"

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        site: Site | None = None,
        *,
        patience: float | None = None,
        orchestrated_patience: float | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise SiteError("the local backend does not run on Windows; use WSL, or a cluster")
        self.environ = dict(os.environ if environ is None else environ)
        self.site = site or site_of(self.environ)
        self.patience = ATTACHED_SECONDS if patience is None else patience
        self.orchestrated_patience = (
            _orchestrated_patience(self.environ) if orchestrated_patience is None else orchestrated_patience
        )
        self.home = home(self.environ)
        self.runs = runs_folder(self.home)
        self.on_silence: Callable[[str], None] | None = None
        """Called with a sentence about why a launch waits."""

    # Launching.

    @_translate_disk_errors
    def launch(self, plan: Plan, owner: Owner) -> Handle:
        """See `Backend.launch`. Raises BadInput before the start if this machine cannot run the job."""
        run_record.keep_seconds(self.environ)
        prepare(self.home)
        folder = RunFolder(self.runs / plan.run)
        if is_to_be_pinned(plan):
            plan = with_commit(plan, records.read_record(folder), self.environ)
        if is_to_be_packed(plan):
            plan = with_archive(plan, self.site, self.environ)
        uri, data = self._named_data(plan)

        def choose(record: RunRecord | None, state: State) -> Choice:
            if uri is None:
                return Choice()
            begun = run_record.begun_with(record, state, plan.after)
            return choose_data(uri, data, begun, plan.run, self.environ)

        while True:
            handle = self._try_launch(folder, plan, owner, choose)
            if handle is not None:
                self._touch(folder, handle)
                return replace(handle, notes=(*handle.notes, *housekeeping.take_unreported(self.runs.parent)))
            # A live run that is replaced by a new attempt was asked to stop. Wait for its end without the
            # lock.
            self._wait_until_gone(folder)

    def _try_launch(
        self,
        folder: RunFolder,
        plan: Plan,
        owner: Owner,
        choose: Callable[[RunRecord | None, State], Choice],
    ) -> Handle | None:
        with records.locked_record(folder) as transaction:
            record = transaction.record
            if record is not None and record.key != plan.key:
                raise BadInput(
                    f"the keys {record.key!r} and {plan.key!r} give the same run name {plan.run}; "
                    "use another key"
                )
            state = State.UNKNOWN if record is None else self._state_of_run(folder, record, locked=True)
            if record is not None and state.is_final:
                record = transaction.write(record.ended(state, time.time()))
            choice = choose(record, state)
            decision = run_record.decide(record, state, owner, plan.spec, choice.data)
            match decision:
                case run_record.Refuse(changes):
                    raise SpecChanged.of(plan.run, changes)
                case run_record.Adopt():
                    assert record is not None
                    transaction.write(replace(record, owner=owner))
                    folder.attempt(record.generation, record.attempt).wake_supervisor()
                    return _handle_of_record(record, adopted=True)
                case run_record.HandOver():
                    assert record is not None
                    transaction.write(replace(record, owner=owner))
                    return replace(_handle_of_record(record), hand_over=True)
                case run_record.StopFirst(_, reason):
                    assert record is not None
                    stop = Stop(
                        owner.id, f"started anew: {reason}" if reason else "started anew", time.time()
                    )
                    self._request_stop(
                        folder, transaction.write(replace(record, stop=record.stop or stop)), stop, False
                    )
                    return None
            return self._start(transaction, decision, plan, owner, choice)

    def data_of(self, plan: Plan) -> Data | None:
        """Data that a first attempt of this plan would train on; None: no data set, or an unknown one."""
        return self._named_data(plan)[1]

    def _named_data(self, plan: Plan) -> tuple[str | None, Data | None]:
        """The uri that this plan names, on this machine, and what is there."""
        uri = self._data_uri(plan, RunFolder(self.runs / plan.run))
        return uri, read_data(uri, plan.run, self.environ) if uri is not None else None

    def _data_uri(self, plan: Plan, folder: RunFolder) -> str | None:
        """Place of this plan's data on this machine; None: no data set, or an unknown place."""
        if "shards" not in (plan.job.get("data") or {}):
            return None
        with suppress(BadInput):  # raised again where the attempt is prepared
            placed = self._placed(plan, folder.attempt(1, 1))
            return plan.shards or str(placed.get("data")["shards"])
        return None

    def saves_of(self, plan: Plan, generation: int) -> str | None:
        """The folder that a run of this plan saves into in that generation, wherever it trains; None where it
        saves nowhere, or that is not known.
        """
        with suppress(BadInput):  # raised again where the attempt is prepared
            placed = self._placed(plan, RunFolder(self.runs / plan.run).attempt(1, 1))
            saving = saving_of(placed.get("checkpoints"), plan.run, generation)
            return None if saving is None else saving.uri
        return None

    def _start(
        self,
        transaction: records.Transaction,
        decision: run_record.Decision,
        plan: Plan,
        owner: Owner,
        choice: Choice,
    ) -> Handle:
        folder, old = transaction.folder, transaction.record
        uid, now = random.token_hex(8), time.time()
        spec, digest = plan.spec, plan.spec_hash
        notes: list[str] = []
        if isinstance(decision, run_record.NewAttempt) and old is not None:
            interrupted = plan.interrupted or _ended_with_machine(folder, old)
            record = old.next_attempt(uid, owner, spec, digest, interrupted=interrupted)
            notes.append(f"attempt {record.attempt} of {plan.run}: the one before {_outcome_word(old)}")
        elif isinstance(decision, run_record.NewGeneration) and old is not None:
            record = old.next_generation(uid, owner, spec, digest)
            notes.append(
                f"{plan.run}: {decision.reason}"
                if decision.reason
                else f"{plan.run} succeeded before and its result was taken; it trains again from scratch"
            )
        else:
            record = RunRecord(plan.run, plan.key, plan.job.name, spec, digest, owner, uid, now)
        further = record.going_on_after(plan.after, choice.data)
        if plan.after is not None and further is not record:
            reason = run_record.why_from_scratch(plan.after.data, choice.data)
            notes += [f"{plan.run}: {reason}"] if reason else []
        record = replace(further, data=choice.data, secrets=plan.secrets)
        if choice.data is not None:
            plan = replace(plan, shards=choice.data.uri)
        notes += [choice.note] if choice.note else []
        if isinstance(decision, (run_record.NewAttempt, run_record.NewGeneration)) and decision.changes:
            notes.append("the job has changed: " + "; ".join(decision.changes))
        attempt = folder.attempt(record.generation, record.attempt)
        layout, where, more = self._prepare(plan, record, attempt)
        notes += more
        check_pool(default_path(self.environ))
        code = shipped_code(plan.job)  # before anything is made: one of them may have gone meanwhile
        discard(attempt.path, folder.trash)  # left by a launch that was killed before it wrote the record
        for earlier in folder.attempts():
            for left in earlier.path.glob(f"{EPHEMERAL}*"):  # its supervisor was killed
                discard(left, folder.trash)
        attempt.make()
        for own in self._own_folders(plan, attempt).values():
            make_private(own)
        keep_code(attempt, code)
        write_json(
            attempt.plan,
            {
                "version": 1,
                "layout": layout.to_dict(),
                "uid": uid,
                "mark": uid,
                "created": now,
                "since": record.generation_began,
                "folder": where,
                "pool": default_path(self.environ),
                "secrets": locate_secrets(self.home, plan.job.get("secrets", ())),
                "code_secret": self._code_secret(plan),
                "progress": asdict(self._carried_progress(folder, old, record)),
                "attached_seconds": self._attached_seconds(owner),
                "orchestrated_seconds": self.orchestrated_patience,
                "notes": notes,
            },
        )
        transaction.write(record)
        try:
            self._spawn(attempt, record)
        except BaseException:
            transaction.restore(old)
            with suppress(SiteError):
                discard(attempt.path, folder.trash)
            raise
        return replace(_handle_of_record(record), notes=tuple(notes))

    def _attached_seconds(self, owner: Owner) -> float:
        """An orchestrated run without a further try counts as attached; nothing makes it live longer."""
        orchestrated = owner.kind == "orchestrated"
        return min(self.patience, self.orchestrated_patience) if orchestrated else self.patience

    @_translate_disk_errors
    def examine(self, plan: Plan) -> tuple[str, ...]:
        """The notes that a launch would print now; nothing is started. Raises BadInput with every problem."""
        attempt = RunFolder(self.runs / plan.run).attempt(1, 1)
        owner = Owner("nobody")
        record = RunRecord(plan.run, plan.key, plan.job.name, plan.spec, plan.spec_hash, owner, "", 0.0)
        problems: list[Problem] = []
        notes: list[str] = []
        try:
            notes = self._prepare(plan, record, attempt)[2]
        except BadInput as error:
            problems += error.problems or [Problem("", error.headline)]
        try:
            locate_secrets(self.home, plan.job.get("secrets", ()))
        except BadInput as error:
            problems += error.problems
        if problems:
            raise BadInput(f"job {plan.job.name!r} cannot run on this machine:", problems)
        return tuple(notes)

    def _carried_progress(self, folder: RunFolder, old: RunRecord | None, record: RunRecord) -> Progress:
        """The progress that a new attempt continues from, which keeps the count of lost steps. A new
        generation starts at zero.
        """
        seen = None if old is None else self._read_state(folder.attempt(old.generation, old.attempt))
        if old is None or seen is None:
            return Progress()
        if old.generation != record.generation:
            return thrown_away(seen.progress, old)
        return replace(seen.progress, result=None, heartbeat=None, resumed_from=None, pace_from=())

    def _prepare(
        self, plan: Plan, record: RunRecord, attempt: AttemptFolder
    ) -> tuple[Layout, str, list[str]]:
        """The layout for this machine, the folder in which members start, and notes for people."""
        require_processes()
        where = plan.job.folder or str(Path.cwd())
        own = self._own_folders(plan, attempt)
        job, champion_notes = self._with_champion(self._placed(plan, attempt))
        layout = lay_out(job, engine_of(job), record.run, record.attempt, record.generation)
        layout = layout.with_environment(plan.environment).with_data(plan.shards)
        layout, shrunk = self._fit_layout(layout, job.get("fit", self.site.fit))
        version = other_version(plan.job.source, engine_of(job))
        notes = [*([version] if version else []), *champion_notes, *shrunk]
        problems = [
            *_member_limit_problems(layout),
            *_command_problems(layout, where, self.environ, self.site),
            *sizes_of_code(plan.job)[1],
        ]
        problems += self._storage_problems(layout, [str(folder) for folder in own.values()])
        problems += [
            Problem(
                f"storage[{n}].host_path",
                f"{volume['host_path']} is no folder of this machine; make it, or map {volume['mount']} to "
                f"another one: --mount {volume['mount']}=./folder",
            )
            for n, volume in self._of_the_node(plan)
            if not Path(volume["host_path"]).is_dir()
        ]
        if problems:
            raise BadInput(f"job {plan.job.name!r} cannot run on this machine:", problems)
        more = [note for note in (_ignored_note(plan), _reference_note(plan, layout)) if note is not None]
        return layout, where, [*notes, *more]

    def _code_secret(self, plan: Plan) -> dict[str, Any] | None:
        """The secret with the password of the job's repository, and its folder. Raises BadInput."""
        if (name := secret_of(plan.job.as_mapping())) is None:
            return None
        secret = locate_secrets(self.home, [{"name": name}])[0]
        if secret_value(secret, TOKEN_KEY) is None:
            message = f"{name!r} has no key {TOKEN_KEY}; put the password into {secret['folder']}/{TOKEN_KEY}"
            raise BadInput("this job's secrets cannot be used:", [Problem("code.secret", message)])
        return secret

    def _placed(self, plan: Plan, attempt: AttemptFolder) -> TrainingJob:
        """The job with every place as it is on this machine. Raises BadInput."""
        own = self._own_folders(plan, attempt)
        folders = {volume["mount"].rstrip("/"): volume["host_path"] for _, volume in self._of_the_node(plan)}
        mounts = {**self.site.mounts, **{mount: str(folder) for mount, folder in own.items()}, **folders}
        for secret in plan.job.get("secrets", ()):
            if "mount" in secret:
                mounts[secret["mount"].rstrip("/")] = str(folder_of(self.home, secret["name"]))
        return place_job(plan.job, replace(self.site, mounts=mounts))

    def _with_champion(self, job: TrainingJob) -> tuple[TrainingJob, tuple[str, ...]]:
        if (job.get("checkpoints") or {}).get("start_from") != "champion":
            return job, ()
        from allaboard.promotion.champion import from_champion

        return from_champion(job, resolve_uri(f"{STORE}{job.name}", self.site), self.environ)

    def _fit_layout(self, layout: Layout, fit: str) -> tuple[Layout, list[str]]:
        """Shrink the gang to the machine, or leave it unchanged for ``fit: strict``."""
        stated = [g for g in layout.groups if g.needs != Needs()]
        if not stated:
            return layout, []
        room = capacity(self.environ, with_gpus=any(g.needs.gpu for g in stated))
        needs = [
            Need(g.needs.cpu, g.needs.memory, g.needs.gpu) for g in layout.groups for _ in range(g.replicas)
        ]
        minimum = layout.elastic.min if layout.elastic else None
        smaller, cuts = shrink_to_fit(needs, room, minimum)
        if cuts and fit == "strict":
            pod = in_pod(self.environ)
            here = "this pod" if pod else "this machine"
            advice = (
                "give the pod what the job asks for (the resources of its container)"
                if pod
                else "ask for less"
            )
            raise BadInput(
                f"job {layout.job!r} does not fit {here} ({_describe_capacity(room)}) and fit is strict"
                f"{', the default in a pod' if pod else ''}; {advice}, "
                "or let it run on what is there (fit: shrink in the job, or ALLABOARD_FIT=shrink):",
                [Problem("resources", cut.rpartition(": ")[0].replace("this machine", here)) for cut in cuts],
                code="never_fits",
            )
        members = dict(zip([m.group for m in layout.members][::-1], list(smaller)[::-1], strict=False))
        return layout.with_needs({r: Needs(n.cpu, n.memory, n.gpu) for r, n in members.items()}), list(cuts)

    def _of_the_node(self, plan: Plan) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The folders of the node that the job mounts, which are folders of this machine unless it maps the
        mount to another one.
        """
        for n, volume in enumerate(plan.job.get("storage", ())):
            if "host_path" in volume and volume["mount"].rstrip("/") not in self.site.mounts:
                yield n, volume

    def _own_folders(self, plan: Plan, attempt: AttemptFolder) -> dict[str, Path]:
        """Mount -> the folder that is made for it: scratch space of the attempt, a claim of the run (beside
        its attempts) or of the job (in the home). What this machine maps to a folder of its own is left out,
        but scratch space.
        """
        folders: dict[str, Path] = {}
        for n, volume in enumerate(plan.job.get("storage", ())):
            mount = volume["mount"].rstrip("/")
            if "empty_dir" in volume:
                folders[mount] = attempt.path / f"scratch-{n}"
            elif mount in self.site.mounts:
                continue
            elif "ephemeral" in volume:
                folders[mount] = attempt.path / f"{EPHEMERAL}{n}"
            elif "claim" in volume:
                kept = volume["claim"].get("keep") == "always"
                place = Path(self.home) if kept else attempt.path.parent
                folders[mount] = place / CLAIMS / claim_name(plan.job.name if kept else plan.run, mount)
        return folders

    def _storage_problems(self, layout: Layout, own: Sequence[str]) -> list[Problem]:
        """Problems of the places that the job reads and writes, checked before the start rather than at the
        first save.
        """
        from allaboard.backends.local.preflight import storage_problems

        return storage_problems(layout, self.environ, own)

    def _spawn(self, attempt: AttemptFolder, record: RunRecord) -> None:
        """Start the supervisor and wait until it holds its lock; this process holds the record's lock
        meanwhile. Leaves nothing behind when it raises.
        """
        argv = isolated_command("allaboard.backends.local.supervisor", str(attempt.path))
        environment = {**inherited_environment(self.environ), **_import_path(self.environ)}
        patient = _StartTimer(record.run, self.on_silence)
        who: Identity | None = None
        try:
            who = identity(spawn_supervisor(argv, environment, str(attempt.supervisor_log), patient))
            pause = 0.002
            while not attempt.is_live() and not attempt.state.exists():
                if who is None or not is_alive(who):
                    if attempt.state.exists():
                        return
                    last_line = tail(attempt.supervisor_log, 1) or "nothing"
                    raise SiteError(
                        f"the supervisor ended at once; its last line: {last_line}", code="no_supervisor"
                    )
                patient()
                time.sleep(pause)
                pause = min(2 * pause, _POLL)
        except BaseException:
            if who is not None:
                send_signal(who, signal.SIGKILL)
                while is_alive(who) or attempt.is_live():
                    time.sleep(_POLL)
            kill_run(record.uid)
            raise

    # Looking.

    @_translate_disk_errors
    def observe(self, run: str, evidence: bool = False) -> Observation:
        folder = self.find(run)
        record = self._read_record(folder)
        seen = self._observe_settled(folder, record)
        if evidence:
            seen = self._await_exit_codes(folder, record, seen)
            seen = self._with_evidence(folder, record, seen)
        return seen

    @_translate_disk_errors
    def find(self, run: str) -> RunFolder:
        """A run by its id, a unique prefix of it, or a job's name (its newest run). Raises UnknownRun."""
        # The word may not even be a legal file name.
        exact = RunFolder(self.runs / run) if why_not_an_object_name(run) is None else None
        if exact is not None and _exists(exact):
            return exact
        every = [folder for folder in self._run_folders() if folder.record.exists()]
        named = [f for f in every if f.name.rpartition("-")[0] == run]
        if named:
            return max(named, key=lambda f: (*_readable_and_created(f), f.name))
        begun = [f for f in every if run and f.name.startswith(run)]
        # A damaged run does not hide other runs.
        begun = [f for f in begun if len(begun) == 1 or _readable_and_created(f)[0]] or begun
        if len(begun) == 1:
            return begun[0]
        if begun:
            raise UnknownRun(
                f"{show(run)} matches {len(begun)} runs: {', '.join(sorted(f.name for f in begun)[:5])}; "
                "give a longer prefix"
            )
        near = nearest(run, [f.name for f in every] + [f.name.rpartition("-")[0] for f in every])
        hint = f"did you mean {near!r}?" if near else "`allaboard list` shows the runs of this machine"
        raise UnknownRun(f"there is no run {show(run)} here; {hint}")

    def _run_folders(self) -> list[RunFolder]:
        """The folders of all runs. Entries that cannot be a run's folder are skipped."""
        try:
            folders = [RunFolder(path) for path in self.runs.iterdir()]
        except FileNotFoundError:
            return []
        return [
            folder for folder in folders if _exists(folder) and why_not_an_object_name(folder.name) is None
        ]

    def _read_record(self, folder: RunFolder) -> RunRecord:
        record = records.read_record(folder)
        if record is None and _is_abandoned(folder):
            time.sleep(_LOCKED_WITHIN)
            record = records.read_record(folder)
            if record is None and _is_abandoned(folder):
                raise damaged_error(folder.path, "has no record.json")
        if record is None:
            raise UnknownRun(
                f"there is no run {folder.name!r} here; `allaboard list` shows the runs of this machine"
            )
        return record

    def _read_state(self, attempt: AttemptFolder) -> Observation | None:
        """State that the supervisor wrote last; None: it wrote no state."""
        written = _read_state_file(attempt)
        return None if written is None else written.seen

    def _read_live_state(self, attempt: AttemptFolder, glances: _PoolViews) -> Observation | None:
        """Like `_read_state`, for a live attempt. The file is written only at changes, so the current phase
        is extended to now.
        """
        written = _read_state_file(attempt)
        if written is None:
            return None
        seen = written.seen
        on = next((name for name in reversed(PHASES) if seen.phases.get(name) is not None), None)
        if on is None or seen.finished is not None or seen.suspended:
            return seen
        so_far = seen.phases[on] or 0.0
        if seen.waiting is not None and written.queued is not None:
            seen = replace(seen, waiting=_waiting_reason(written.queued, glances) or seen.waiting)
        age = written.age(now := Moment.now())
        age = max(0.0, now.wall - written.written) if age is None else age
        return replace(seen, phases={**seen.phases, on: so_far + age})

    def _observe_settled(
        self, folder: RunFolder, record: RunRecord, locked: bool = False, glances: _PoolViews | None = None
    ) -> Observation:
        """The observation from the record and the supervisor's state. A run without a supervisor and without
        a final state is lost; during a launch this waits for the record's lock first.
        """
        seen = self._merge_record(folder, record, glances)
        # `alive` is None once the final state is known.
        if locked or seen.alive is not False or state_of(replace(seen, alive=True)).is_final:
            return seen
        with wait_for_lock(folder.lock):
            now = records.read_record(folder)
            if now is None:
                raise UnknownRun(f"run {folder.name!r} has been deleted")
            return self._merge_record(folder, now)

    def _read_final_state(
        self, attempt: AttemptFolder, record: RunRecord
    ) -> tuple[Observation, bool | None] | None:
        """The final state that a supervisor wrote, and whether the supervisor is still ending."""
        if record.outcome is None or record.deleted:
            return None
        written = _read_state_file(attempt)
        if written is None or not written.over:
            return None
        seen = replace(written.seen, alive=None)
        return (seen, attempt.is_live() or None) if state_of(seen).is_final else None

    def _read_current_state(
        self, attempt: AttemptFolder, record: RunRecord, glances: _PoolViews | None
    ) -> tuple[Observation, bool | None]:
        # The lock before the state: a supervisor that ends in between has then written its final state.
        live = attempt.is_live()
        known = {} if glances is None else glances
        seen = (self._read_live_state(attempt, known) if live else self._read_state(attempt)) or Observation(
            record.run
        )
        return seen, live or (None if _is_final(seen) else False)

    def _merge_record(
        self, folder: RunFolder, record: RunRecord, glances: _PoolViews | None = None
    ) -> Observation:
        attempt = folder.attempt(record.generation, record.attempt)
        seen, alive = self._read_final_state(attempt, record) or self._read_current_state(
            attempt, record, glances
        )
        finished = seen.finished
        stopped = seen.stopped
        if alive is False:
            finished = record.outcome.at if record.outcome else finished or _state_file_time(attempt)
            stopped = stopped or record.stop is not None
        notes = seen.notes
        if alive is False and not stopped and not record.deleted:
            notes = (*notes, _loss_reason(attempt))
        return replace(
            seen,
            run=record.run,
            key=record.key,
            job=record.job,
            attempt=record.attempt,
            generation=record.generation,
            interruptions=record.interruptions,
            uid=record.uid,
            spec_hash=record.spec_hash,
            owner=record.owner,
            created=seen.created or record.created,
            alive=alive,
            finished=finished,
            stop=seen.stop or record.stop,
            stopped=stopped,
            deleted=record.deleted,
            recorded=record.outcome.state if record.deleted and record.outcome else None,
            notes=notes,
            handed_over=record.handed_over,
        )

    def _state_of_run(self, folder: RunFolder, record: RunRecord, locked: bool = False) -> State:
        return state_of(self._observe_settled(folder, record, locked))

    def _await_exit_codes(self, folder: RunFolder, record: RunRecord, seen: Observation) -> Observation:
        """Wait briefly for members that still end after the final state: an exit code says more than
        "running".
        """
        if not state_of(seen).is_final:
            return seen
        deadline = time.monotonic() + 1.5
        attempt = folder.attempt(record.generation, record.attempt)
        layout = _read_layout(attempt)
        if layout is not None and layout.policy.clean_pods == "none":
            return seen
        while (
            any(m.phase == "running" for m in seen.members)
            and attempt.is_live()
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL)
            seen = self._merge_record(folder, record)
        return seen

    def _with_evidence(self, folder: RunFolder, record: RunRecord, seen: Observation) -> Observation:
        attempt = folder.attempt(record.generation, record.attempt)
        secrets = self._secrets_of(record)
        most = max(READ // max(1, len(seen.members)), 4 << 20)
        # Hidden before anybody shortens or folds them: half of a secret is not found any more.
        tails = {m.name: hide_known(excerpt(Path(m.log), most), secrets) for m in seen.members if m.log}
        progress = self._with_checkpoints(attempt, seen.progress)
        times = {member.name: _written_at(member) for member in seen.members}
        wrote = {name: at for name, at in times.items() if at is not None}
        events = tuple(read_events(attempt))
        seen = replace(seen, events=events, tails=tails, progress=progress, looked=time.time(), wrote=wrote)
        return self._with_metrics(attempt, record, seen)

    def _with_metrics(self, attempt: AttemptFolder, record: RunRecord, seen: Observation) -> Observation:
        layout = _read_layout(attempt)
        if layout is None or layout.metrics is None:
            return seen
        from allaboard.backends.metric_files.reading import with_metrics

        place = layout.metrics
        if is_relative(place):  # the first member's own folder, into which its code was fetched
            folder = attempt.setup / layout.members[0].name
            place = str(next(folder.glob("code-*/"), folder) / place)
        return with_metrics(seen, place, record.generation_began, self.environ)

    def _with_checkpoints(self, attempt: AttemptFolder, progress: Progress) -> Progress:
        layout = _read_layout(attempt)
        saving = layout.saving if layout is not None else None
        return progress if saving is None else with_checkpoints(progress, saving, self.environ)

    @_translate_disk_errors
    def stacks(self, run: str, between: float = BETWEEN) -> tuple[ProcessLook, ...]:
        """Stacks of the processes of its members, by two looks ``between`` seconds apart; empty unless one
        of them runs Python, and on systems other than Linux.
        """
        return look_twice(self._read_record(self.find(run)).uid, between)

    @_translate_disk_errors
    def arrivals(self, run: str) -> Mapping[int, tuple[Arrival, ...]]:
        """Rank -> its last collectives over gloo; empty unless every rank of the run tells them."""
        return arrivals_in(self._read_record(self.find(run)).uid)

    def _silent_for(self, seen: Observation, now: float) -> float:
        """Seconds since any of its members wrote a line, or began; 0 where none has a log."""
        times = [m.started for m in seen.members if m.started is not None]
        times += [at for member in seen.members if (at := _written_at(member)) is not None]
        return max(0.0, now - max(times)) if times else 0.0

    def standing(self, run: str, at_least: float = 0.0) -> Standing:
        """For how long no member of a run has written, and where its processes are, unless one has written in
        the last ``at_least`` seconds.
        """
        silent = self._silent_for(self.observe(run), time.time())
        return Standing(silent, StacksSeen(self.stacks(run) if silent >= at_least else ()))

    @_translate_disk_errors
    def events(self, run: str) -> list[Event]:
        """The events of all attempts, oldest first."""
        return in_order(e for attempt in self.find(run).attempts() for e in read_events(attempt))

    @_translate_disk_errors
    def saving(self, run: str) -> str | None:
        """The run's own folder of checkpoints; None if its job has no checkpoints."""
        folder = self.find(run)
        record = self._read_record(folder)
        layout = _read_layout(folder.attempt(record.generation, record.attempt))
        if layout is None:
            raise BadInput(
                f"run {folder.name} was deleted, so the place of its checkpoints is unknown; "
                "give their folder instead"
            )
        return None if layout.saving is None else layout.saving.uri

    @_translate_disk_errors
    def secrets_of(self, run: str) -> tuple[str, ...]:
        """The secret values in its job, the present values of the secrets that it names, and those of the
        environment that members inherit from whoever launches on this machine.
        """
        return self._secrets_of(self._read_record(self.find(run)))

    def _secrets_of(self, record: RunRecord) -> tuple[str, ...]:
        named = [
            {"name": name, "folder": str(folder_of(self.home, name))}
            for secret in (*record.spec.get("secrets", ()), {"name": secret_of(record.spec)})
            if isinstance(name := secret.get("name"), str)
        ]
        return (
            *record.secret_values,
            *secret_texts(named),  # of what was removed meanwhile only the members know the values
            *self._inherited_secrets,
        )

    @cached_property
    def _inherited_secrets(self) -> tuple[str, ...]:
        values = secret_values({"environment": inherited_environment(self.environ)})
        # Nobody wrote them for this run: a short one may be a word of everybody's.
        return tuple(value for value in values if len(value) >= _LONG_ENOUGH)

    @_translate_disk_errors
    def started_with(self, run: str) -> StartedWith:
        folder = self.find(run)
        record = self._read_record(folder)
        return StartedWith(record.spec, kept_code(folder.attempt(record.generation, record.attempt)))

    @_translate_disk_errors
    def watch_over(self, run: str) -> None:
        """Show that this process follows a run now, as a client in `changes` does all the time: a follower
        that looks at a run by itself calls this at each look. Raises UnknownRun, SiteError.
        """
        folder = self.find(run)
        self._touch(folder, _handle_of_record(self._read_record(folder)))

    @contextmanager
    def changes(self, run: str) -> Iterator[_Changes]:
        folder = self.find(run)
        yield _Changes(self, folder)

    @_translate_disk_errors
    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None, *, follow: bool = False
    ) -> Iterator[LogLine | Cursor]:
        if follow:
            return self._follow_logs(run, selection, cursor)
        folder = self.find(run)
        record = self._read_record(folder)
        attempt = folder.attempt(record.generation, selection.attempt or record.attempt)
        if not attempt.path.is_dir():
            raise BadInput(
                f"run {folder.name} has no attempt {selection.attempt}; "
                f"its newest attempt is {record.attempt}"
            )
        seen = self._read_state(attempt)
        return self._read_logs(attempt, seen.members if seen else (), selection, cursor)

    def _read_logs(
        self,
        attempt: AttemptFolder,
        members: tuple[MemberSeen, ...],
        selection: Selection,
        cursor: Cursor | None,
    ) -> Iterator[LogLine | Cursor]:
        with translate_disk_errors(self.home):
            yield from logs.read_logs(attempt, members, selection, cursor)

    def _follow_logs(
        self, run: str, selection: Selection, cursor: Cursor | None
    ) -> Iterator[LogLine | Cursor]:
        attempt = selection.attempt or self.observe(run).attempt
        with self.changes(run) as changes:
            while True:
                # Observe first, then read the logs: no line written before the end is missed.
                seen = self.observe(run)
                living = any(m.phase == "running" for m in seen.members)
                for item in self.logs(run, replace(selection, attempt=attempt), cursor):
                    yield item
                    cursor = item if isinstance(item, dict) else cursor
                if seen.attempt != attempt or (state_of(seen).is_final and not living):
                    return
                changes.wait(_LOG_POLL)
                time.sleep(0.05)

    @_translate_disk_errors
    def list(self) -> list[Observation]:
        """See `Backend.list`. A run whose files cannot be read is `State.UNKNOWN`, with the flag `DAMAGED` or
        `NEWER`, a note and an event that say why.
        """
        runs = []
        glances: _PoolViews = {}
        for folder in self._run_folders():
            try:
                with translate_disk_errors(self.home):
                    runs.append(self._observe_settled(folder, self._read_record(folder), glances=glances))
            except UnknownRun:
                continue
            except SiteError as error:
                runs.append(_unreadable_observation(folder, error))
        return sorted(runs, key=lambda seen: seen.created or 0, reverse=True)

    # Owning and ending.

    @_translate_disk_errors
    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Handle:
        def swap(record: RunRecord) -> RunRecord:
            if record.uid != handle.uid:
                raise OwnershipConflict(
                    f"run {handle.run} is on attempt {record.attempt} now, not on {handle.attempt}"
                )
            if record.owner != old:
                raise OwnershipConflict(f"run {handle.run} belongs to {record.owner.id} now")
            return replace(record, owner=new)

        folder = self.find(handle.run)
        record = records.change_record(folder, swap)
        if record is None:
            raise UnknownRun(f"there is no run {handle.run!r} here")
        folder.attempt(record.generation, record.attempt).wake_supervisor()
        return replace(_handle_of_record(record), adopted=True)

    def stop_from(self, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool:
        try:
            if state_of(self.observe(handle.run)).is_final:
                return False
            self.adopt(handle, old, new)
        except (OwnershipConflict, UnknownRun):
            return False
        return isinstance(self.stop(handle, new, by, reason), Stopped)

    @_translate_disk_errors
    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        folder = self.find(handle.run)
        with records.locked_record(folder) as transaction:
            record = transaction.record
            if record is None or record.uid != handle.uid or record.owner.id != owner.id:
                return NotYours(record.owner.id if record is not None else "nobody")
            state = self._state_of_run(folder, record, locked=True)
            stop = Stop(by, reason, time.time())
            if state is State.LOST:
                kill_run(record.uid)  # what its supervisor and keeper left
            if state.is_final:
                self._request_stop(folder, record, stop, kill)  # members that live on under clean_pods: none
                return Stopped(already=True)
            stopped = replace(record, stop=record.stop or stop)
            attempt = folder.attempt(record.generation, record.attempt)
            try:
                self._request_stop(folder, transaction.write(stopped), stop, kill)
            except OSError:
                # This run itself may fill the disk.
                attempt.make_room()
                try:
                    self._request_stop(folder, transaction.write(stopped), stop, kill)
                except OSError as error:
                    if not attempt.is_live():
                        raise
                    _stop_by_signal(attempt, record.uid, kill)
                    if self.on_silence is not None:
                        self.on_silence(
                            f"the stop of {record.run} cannot be saved ({error.strerror}); its supervisor "
                            "gets a signal instead, and the end of the run may not be saved either"
                        )
        stuck = _Stuck(folder.attempt(record.generation, record.attempt), self.on_silence)
        while stuck.look():
            time.sleep(_POLL)
        if stuck.has_killed and not stuck.attempt.is_live():
            kill_run(record.uid)
        return Stopped()

    def _request_stop(self, folder: RunFolder, record: RunRecord, stop: Stop, kill: bool) -> None:
        attempt = folder.attempt(record.generation, record.attempt)
        if attempt.is_live():
            attempt.write_request(f"stop-{random.token_hex(4)}", {"do": "stop", **asdict(stop), "kill": kill})
            continue_stopped(str(attempt.live), kill=kill)

    @_translate_disk_errors
    def suspend(self, run: str) -> None:
        self._request_of_live(run, "suspend")

    @_translate_disk_errors
    def resume(self, run: str) -> None:
        self._request_of_live(run, "resume")

    def _request_of_live(self, run: str, request: str) -> None:
        folder = self.find(run)
        record = self._read_record(folder)
        state = self._state_of_run(folder, record)
        if state.is_final:
            raise BadInput(
                f"run {folder.name} {state}; only a live run can be "
                f"{request}{'d' if request == 'resume' else 'ed'}"
            )
        folder.attempt(record.generation, record.attempt).write_request(
            f"{request}-{random.token_hex(4)}", {"do": request}
        )

    @_translate_disk_errors
    def delete(self, run: str) -> None:
        """See `Backend.delete`. A run whose files are damaged goes as a whole, its record too."""
        folder = self.find(run)
        try:
            record = self._read_record(folder)
            state = self._state_of_run(folder, record)
        except SiteError as error:
            if error.code != DAMAGED:
                raise
            return self._delete_damaged(folder)
        if state is State.LOST:
            kill_run(record.uid)
        if not state.is_final or folder.attempt(record.generation, record.attempt).is_live():
            self.stop(_handle_of_record(record), record.owner, "delete", "the run is deleted")
            self._wait_until_gone(folder)
        with records.locked_record(folder) as transaction:
            if transaction.record is None or transaction.record.uid != record.uid:
                raise OwnershipConflict(f"run {folder.name} has been started anew; it was not deleted")
            self._remove(transaction, transaction.record, time.time())
            discard(folder.path / CLAIMS, folder.trash)

    def _remove(self, transaction: records.Transaction, record: RunRecord, now: float) -> None:
        """Remove the job's files, logs included; the record and the run's claims stay."""
        folder = transaction.folder
        deleted = replace(record.ended(state_of(self._merge_record(folder, record)), now), deleted=True)
        try:
            transaction.write(deleted)
        except OSError:
            # The files to remove may fill the disk.
            folder.attempt(record.generation, record.attempt).make_room()
            transaction.write(deleted)
        for attempt in folder.attempts():
            discard(attempt.path, folder.trash)

    def _delete_damaged(self, folder: RunFolder) -> None:
        """Delete a run whose record cannot be read. Its live attempt is unknown, so all
        attempts are ended.
        """
        if folder.path.is_symlink():
            return discard(folder.path, folder.trash)
        for attempt in folder.attempts():
            self._end_damaged(attempt)
        with locked(folder.lock):
            with suppress(SiteError):
                if records.read_record(folder) is not None and not any(
                    _is_unreadable(a) for a in folder.attempts()
                ):
                    raise OwnershipConflict(f"run {folder.name} is in order again; it was not deleted")
            discard(folder.path, folder.trash)

    def _end_damaged(self, attempt: AttemptFolder) -> None:
        stop = {"do": "stop", "by": "delete", "reason": "the run is deleted", "at": time.time()}
        if attempt.is_live():
            attempt.write_request(f"stop-{random.token_hex(4)}", stop)
        _wait_for_end(attempt, self.on_silence)
        with suppress(SiteError):
            plan = read_json(attempt.plan)
            if isinstance(plan, dict) and isinstance(plan.get("mark"), str) and plan["mark"]:
                kill_run(plan["mark"])

    @_translate_disk_errors
    def hand_over(self, handle: Handle) -> None:
        def taken(record: RunRecord) -> RunRecord:
            return replace(record, handed_over=True) if record.uid == handle.uid else record

        records.change_record(self.find(handle.run), taken)

    def enforce(self, run: str, owner: Owner) -> None:
        """Nothing to do: the run's own supervisor enforces every limit."""

    def housekeep(self, now: Moment | None = None) -> tuple[str, ...]:
        """Clean up overdue ttls, expired records, members that outlived supervisor and keeper, and unfinished
        removals. Returns sentences about what could not be removed.

        May be killed at any instruction, and may run in parallel with itself and with launches. Damaged runs
        are kept; `list` shows them.
        """
        now = now or Moment.now()
        keep = run_record.keep_seconds(self.environ)
        troubles = []
        for folder in self._run_folders():
            with suppress(UnknownRun, BlockingIOError):  # another process changes it just now
                try:
                    if self._needs_housekeeping(folder, now, keep):
                        self._housekeep_run(folder, now, keep)
                except SiteError as error:
                    if error.code == "not_removed":
                        troubles.append(str(error))
                except OSError as error:
                    if error.errno != errno.EAGAIN:
                        troubles.append(
                            f"run {folder.name}: {error.filename or folder.path}: {error.strerror}"
                        )
        with suppress(OSError):
            for leftover in sorted((self.runs.parent / "removed").iterdir()):
                try:
                    remove(leftover)
                except SiteError as error:
                    troubles.append(str(error))
        return tuple(dict.fromkeys(troubles))

    def _needs_housekeeping(self, folder: RunFolder, now: Moment, keep: float) -> bool:
        """Return whether a run may need housekeeping. Takes no lock, because most runs need no
        housekeeping.
        """
        record = records.read_record(folder)
        if record is None:
            return _is_abandoned(folder)
        attempt = folder.attempt(record.generation, record.attempt)
        if attempt.is_live():
            return False
        if record.outcome is None or _is_older(attempt, record.outcome.at, now, keep):
            return True
        return bool(folder.attempts()) and (record.deleted or _is_overdue(attempt, record.outcome.at, now))

    def _housekeep_run(self, folder: RunFolder, now: Moment, keep: float) -> None:
        """Housekeep one run under its record's lock, which a launch holds until its supervisor lives."""
        with records.locked_record(folder, wait=False) as transaction:
            record = transaction.record
            if record is None or not self._needs_housekeeping(folder, now, keep):
                return
            if record.outcome is None:
                kill_run(record.uid)
                state = self._state_of_run(folder, record, locked=True)
                if state.is_final:
                    transaction.write(record.ended(state, now.wall))
                return
            attempt = folder.attempt(record.generation, record.attempt)
            if _is_older(attempt, record.outcome.at, now, keep):
                discard(folder.path, folder.trash)
            else:
                self._remove(transaction, record, now.wall)

    def _wait_until_gone(self, folder: RunFolder) -> None:
        """Wait until no process of the run's attempt is left. The members' grace bounds the wait."""
        record = self._read_record(folder)
        attempt = folder.attempt(record.generation, record.attempt)
        _wait_for_end(attempt, self.on_silence)
        kill_run(record.uid)

    def _touch(self, folder: RunFolder, handle: Handle) -> None:
        with suppress(OSError):
            os.utime(folder.attempt(handle.generation, handle.attempt).client)

    @_translate_disk_errors
    def fingerprint(self, run: str) -> dict[str, str | int]:
        """The machine, pid namespace and folder of a run. A process with another fingerprint cannot follow
        it.
        """
        return fingerprint(str(self.find(run).path))

    @_translate_disk_errors
    def place(self) -> dict[str, str | int]:
        """The fingerprint of all runs of this home; the home is created if missing."""
        prepare(self.home)
        return fingerprint(str(self.runs))


def _written_at(member: MemberSeen) -> float | None:
    """The time of a member's last line, epoch seconds; None without a log, or an empty one."""
    with suppress(OSError):
        status = Path(member.log).stat() if member.log else None
        return status.st_mtime if status is not None and status.st_size else None
    return None


def _stop_by_signal(attempt: AttemptFolder, uid: str, kill: bool) -> None:
    """Have the supervisor stop its run, or kill it and all of the run, without a disk."""
    with suppress(OSError):
        info = attempt.live.stat()
        for pid in pids_with_open_file(info.st_dev, info.st_ino):
            if (who := identity(pid)) is not None and pid != os.getpid():
                send_signal(who, signal.SIGKILL if kill else signal.SIGTERM)  # the keeper ignores SIGTERM
    if kill:
        kill_run(uid)


def _wait_for_end(attempt: AttemptFolder, say: Callable[[str], None] | None) -> None:
    """Wait until neither supervisor nor keeper lives. One that is stopped meanwhile goes on."""
    stuck = _Stuck(attempt, say)
    while attempt.is_live():
        stuck.look()
        time.sleep(_POLL)


class _Stuck:
    """Looks after a supervisor and a keeper that are asked to end: one that is stopped goes on, one that a
    debugger holds is killed after `HELD_AT_MOST`, and ``say`` is told why that is waited for.
    """

    def __init__(self, attempt: AttemptFolder, say: Callable[[str], None] | None) -> None:
        self.attempt, self.say = attempt, say
        self.looked, self.held, self.has_killed = float("-inf"), False, False
        self.since: float | None = None

    def look(self) -> bool:
        """Return whether a debugger holds one of the processes. Reads the process table at intervals only."""
        now = time.monotonic()
        if now - self.looked < _STOPPED_EVERY:
            return self.held
        self.looked = now
        late = self.since is not None and now - self.since >= HELD_AT_MOST
        held = continue_stopped(str(self.attempt.live), kill=late)
        self.held, self.has_killed = bool(held), self.has_killed or (late and bool(held))
        if not held:
            self.since = None
        elif self.since is None:
            self.since = now
            if self.say is not None:
                run, pid = self.attempt.path.parent.name, held[0].pid
                self.say(
                    f"process {pid}, which must end {run}, is held by {debugger_of(pid)}: let it continue "
                    f"within {show_seconds(HELD_AT_MOST)}, or it is killed together with the members"
                )
        return self.held


class _StartTimer:
    """Called while a launch waits for its supervisor. Prints a notice after some seconds, and raises
    SiteError after `START_LIMIT`.
    """

    def __init__(self, run: str, say: Callable[[str], None] | None) -> None:
        self.run, self.say, self.begun = run, say, time.monotonic()

    def __call__(self) -> None:
        waited = time.monotonic() - self.begun
        if waited > START_LIMIT:
            raise SiteError(
                f"the supervisor of {self.run} has not started within {START_LIMIT:g} s ({_machine_load()}); "
                "nothing was started; try again when the machine is less busy",
                code="no_supervisor",
            )
        if waited > NOTICE_AFTER and self.say is not None:
            self.say(
                f"waiting for the supervisor of {self.run} to start, {START_LIMIT:g} s at most: "
                f"{_machine_load()}"
            )
            self.say = None


def _machine_load() -> str:
    return f"the machine has a load of {os.getloadavg()[0]:.1f} on {cpus():g} CPUs"


class _Changes:
    """Wakes when the supervisor writes its state. Also marks the run as followed."""

    def __init__(self, backend: LocalBackend, folder: RunFolder) -> None:
        self.backend, self.folder = backend, folder
        self.last = self._stamp()
        self.touched = 0.0

    def _stamp(self) -> tuple[int, ...]:
        stamps = []
        record = records.read_record(self.folder)
        paths = [self.folder.record]
        if record is not None:
            attempt = self.folder.attempt(record.generation, record.attempt)
            self.attempt: AttemptFolder | None = attempt
            paths.append(attempt.state)
        else:
            self.attempt = None
        for path in paths:
            try:
                stamps.append(path.stat().st_mtime_ns)
            except OSError:
                stamps.append(0)
        return tuple(stamps)

    def wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if now - self.touched > 15 and self.attempt is not None:
                self.touched = now
                with suppress(OSError):
                    os.utime(self.attempt.client)
            stamp = self._stamp()
            if stamp != self.last:
                self.last = stamp
                return True
            if self.attempt is not None and not self.attempt.is_live():
                return True
            if now >= end:
                return False
            time.sleep(min(_POLL, max(0.0, end - now)))


def _orchestrated_patience(environ: Mapping[str, str]) -> float:
    text = environ.get(PATIENCE)
    if not text:
        return ORCHESTRATED_SECONDS
    try:
        return duration(text)
    except ValueError as error:
        raise BadInput(f"{PATIENCE}={show(text)}: {error}; write it like 2h") from error


def read_events(attempt: AttemptFolder) -> list[Event]:
    """The events of one attempt."""
    events = []
    try:
        with open_plain(attempt.events) as file:
            lines = file.read(RECORDS.size).splitlines()
    except OSError:
        return []
    for line in lines:
        with suppress(ValueError):  # the last line may be half written
            events.append(read_value(Event, parse_json(line, RECORDS, spelling=False, any_text=True)))
    return events


_PoolViews = dict[str, PoolView]
"""Views of pools by path, so that a list of many runs reads each pool once."""


def _waiting_reason(written: Any, glances: _PoolViews) -> str | None:
    """Reason for which a run waits now. Computed here, because its supervisor sleeps until slots are free."""
    try:
        queued = read_value(_Queued, written)
        cpu, memory, gpus = queued.room
        needs = Need(*queued.needs)  # type: ignore[arg-type]
        room = Capacity(float(cpu), int(memory), tuple(map(str, gpus)))
    except (ValueError, TypeError):
        return None  # written by an older release, which kept a sentence instead
    with suppress(SiteError):
        if queued.pool not in glances:
            glances[queued.pool] = Pool(queued.pool, room).view()
        return glances[queued.pool].why_waiting(queued.ticket, needs, room)
    return None


def _exists(folder: RunFolder) -> bool:
    return folder.path.is_symlink() or folder.path.is_dir()


def _is_abandoned(folder: RunFolder) -> bool:
    """Return whether a folder without a record was abandoned. A launch in progress holds its lock."""
    return folder.path.is_dir() and not is_held(folder.lock)


def _readable_and_created(folder: RunFolder) -> tuple[bool, float]:
    """Return whether the files of a run can be read, and the time of its creation."""
    with suppress(SiteError, OSError):
        if record := records.read_record(folder):
            _read_state_file(folder.attempt(record.generation, record.attempt))
            return True, record.created
    return False, 0.0


@dataclass(frozen=True, slots=True)
class _Queued:
    """The data from which a reader computes why a run waits (`Supervisor._waiting_place`)."""

    pool: str
    ticket: str
    needs: tuple[int | float, ...]
    room: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _StateFile:
    """State file of a supervisor. ``queued`` of an older release is a sentence."""

    seen: Observation
    written: float
    boot: str | None = None
    over: bool = False
    queued: Any = None
    steady: float | None = None
    """Time of writing, in seconds since the boot."""
    grouped: bool = False
    """True if its members have a control group."""

    def age(self, now: Moment) -> float | None:
        """The seconds since it was written; None: not in this boot, or by an older release."""
        if self.steady is None or self.boot != boot_id():
            return None
        return max(0.0, now.steady - self.steady)


STATE_VERSION = 1


def _read_state_file(attempt: AttemptFolder) -> _StateFile | None:
    """The content of the state file; None if there is none. Raises SiteError for content that cannot be
    read.
    """
    body = read_json(attempt.state)
    if body is None:
        return None
    try:
        seen = Observation.from_dict(body["seen"])
        return replace(read_value(_StateFile, {**body, "seen": {"run": seen.run}}), seen=seen)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        trouble = f"is not the state of a run ({error})"
        raise unreadable_error(attempt.state, body, STATE_VERSION, trouble) from error


def _read_layout(attempt: AttemptFolder) -> Layout | None:
    """The layout of an attempt; None once it is removed. Raises SiteError for damaged content."""
    plan = read_json(attempt.plan)
    if plan is None:
        return None
    try:
        return Layout.from_dict(plan["layout"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        trouble = f"is not the plan of a run ({error})"
        raise unreadable_error(attempt.plan, plan, STATE_VERSION, trouble) from error


def _is_unreadable(attempt: AttemptFolder) -> bool:
    try:
        _read_state_file(attempt)
    except SiteError:
        return True
    return False


def _is_overdue(attempt: AttemptFolder, ended: float, now: Moment) -> bool:
    layout = _read_layout(attempt)
    ttl = layout.policy.ttl if layout is not None else None
    return ttl is not None and _since_end(attempt, ended, now) >= ttl


def _is_older(attempt: AttemptFolder, ended: float, now: Moment, seconds: float) -> bool:
    """Return whether a run ended before a moment. Its state is read only if the files are that old."""
    return now.wall - ended >= seconds and _since_end(attempt, ended, now) >= seconds


def _since_end(attempt: AttemptFolder, ended: float, now: Moment) -> float:
    """The seconds since a run has ended, at ``ended`` epoch seconds."""
    with suppress(SiteError):
        written = _read_state_file(attempt)
        age = written.age(now) if written is not None and written.over else None
        return now.wall - ended if age is None else age
    return now.wall - ended


def _unreadable_observation(folder: RunFolder, error: SiteError) -> Observation:
    """The observation of a run whose files are damaged, or of a newer version, for lists."""
    flag = NEWER if error.code == NEWER else DAMAGED
    event = Event(None, "Warning", flag, folder.name, str(error))
    job = folder.name.rpartition("-")[0]
    return Observation(folder.name, job=job, flags=(flag,), notes=(str(error),), events=(event,))


def _outcome_word(record: RunRecord) -> str:
    return record.outcome.state if record.outcome else "ended"


def _handle_of_record(record: RunRecord, adopted: bool = False) -> Handle:
    return Handle(
        record.run, record.attempt, record.generation, record.uid, adopted=adopted, data=record.data
    )


def _is_final(seen: Observation) -> bool:
    return state_of(replace(seen, alive=None, deleted=False)).is_final


def _state_file_time(attempt: AttemptFolder) -> float | None:
    """The time of the supervisor's last write; None if there was none."""
    try:
        return attempt.state.stat().st_mtime
    except OSError:
        return None


def _is_of_another_boot(attempt: AttemptFolder) -> bool:
    written = _read_state_file(attempt)
    return written is not None and written.boot != boot_id()


def _ended_with_machine(folder: RunFolder, record: RunRecord) -> bool:
    """Return whether the attempt of this record was lost because the machine was rebooted."""
    lost = record.outcome is not None and record.outcome.state == State.LOST
    return lost and _is_of_another_boot(folder.attempt(record.generation, record.attempt))


def _loss_reason(attempt: AttemptFolder) -> str:
    """Reason for which a run that has not ended has no supervisor."""
    if _is_of_another_boot(attempt):
        return "the machine was rebooted"
    last_line = tail(attempt.supervisor_log, 1)
    reason = f"its supervisor ended with: {last_line}" if last_line else "its supervisor was killed"
    return reason if _is_all_found(attempt) else f"{reason}, {_NOT_FOUND}"


def _is_all_found(attempt: AttemptFolder) -> bool:
    """Return whether every process of a run without a supervisor is gone, or can be found and ended."""
    written = _read_state_file(attempt)
    if written is None or written.grouped or not any(m.started for m in written.seen.members):
        return True
    with suppress(OSError), open_plain(attempt.live) as file:
        return bool(file.read(1))
    return False


def _member_limit_problems(layout: Layout) -> list[Problem]:
    count = len(layout.members)
    if count <= MEMBERS_AT_MOST:
        return []
    allowed = f"one machine holds {MEMBERS_AT_MOST:,} at most; give fewer, or run it on a cluster"
    return [Problem("groups" if len(layout.groups) > 1 else "workers", f"{count:,} members; {allowed}")]


def _command_problems(layout: Layout, where: str, environ: Mapping[str, str], site: Site) -> list[Problem]:
    problems = []
    idle = ENGINES[layout.engine].idle(layout.framework)
    if not all(group.command or group.role in idle for group in layout.groups):
        message = "is missing; a local run has no image with an entrypoint: give the program, like "
        problems.append(Problem("command", f"{message}[python, train.py]"))
    # What is fetched and installed first is not here yet.
    for group in layout.groups if not layout.setup else ():
        if not group.command:
            continue
        command = [expand(word, group.environment) for word in group.command]
        wrong = why_not_startable(command, where, {**environ, **group.environment})
        if wrong is not None:
            problem = Problem(f"command[{wrong[0]}]", wrong[1])
            if problem not in problems:
                problems.append(problem)
    return problems


def _reference_note(plan: Plan, layout: Layout) -> str | None:
    """One line with the references that name no variable of the job; None where there are none, or where its
    secrets may have them."""
    if any(secret.get("env") for secret in plan.job.get("secrets", ())):
        return None
    firsts = {member.group: member for member in reversed(layout.members)}
    unknown = [
        reference
        for group in layout.groups
        if group.role in firsts
        for reference in unknown_references(group, declared_names(layout, firsts[group.role], ()))
    ]
    if not unknown:
        return None
    return f"{', '.join(dict.fromkeys(unknown))}: not a variable of the job; left as it is, as in a pod"


def _ignored_note(plan: Plan) -> str | None:
    """One line with the fields that have no effect on one machine; None if there are none."""
    job = plan.job
    fields = [name for name in _IGNORED_FIELDS if job.get(name) is not None]
    played = engine_of(job).PLAYED
    fields += [f"engine_spec.{name}" for name in job.get("engine_spec") or {} if name not in played]
    fields += [
        f"groups.{role}.{name}"
        for role, group in (job.get("groups") or {}).items()
        for name in _IGNORED_OF_GROUPS
        if isinstance(group, Mapping) and group.get(name) is not None
    ]
    fields += [f"resources.{name}" for name in _IGNORED_RESOURCES if name in job.get("resources", {})]
    fields += [
        f"storage[{n}].{source}.{name}"
        for n, volume in enumerate(job.get("storage", ()))
        for source in ("claim", "ephemeral")
        for name in _IGNORED_OF_VOLUMES
        if name in volume.get(source, {})
    ]
    fields += [f"spot.{name}" for name in _IGNORED_OF_SPOT if (job.get("spot") or {}).get(name)]
    fields += ["policy.orphan"] if (job.get("policy") or {}).get("orphan") else []
    gang = [name for name, value in (job.get("gang") or {}).items() if value is not None]
    fields += [f"gang.{name}" for name in gang]
    if not fields:
        return None
    turn = f"; {FIRST_COME}" if {"queue", "priority"} & {*gang} else ""
    return f"{', '.join(fields)}: ignored on one machine{turn}"


def _describe_capacity(room: Capacity) -> str:
    return f"{room.cpu:g} CPUs, {room.memory / 2**30:.1f} GiB, {len(room.gpus)} GPUs"


def _import_path(environ: Mapping[str, str]) -> dict[str, str]:
    """A PYTHONPATH with which members import the same allaboard as their launcher."""
    import allaboard

    root = str(Path(allaboard.__file__).parent.parent)
    before = environ.get("PYTHONPATH")
    installed = any(root == str(Path(p)) for p in sys.path if p.endswith("site-packages"))
    if installed:
        return {}
    return {"PYTHONPATH": f"{root}{os.pathsep}{before}" if before else root}

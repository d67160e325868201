"""Work of a worker for one try of a task instance: launch or adopt the run, follow it or defer, finish.

`allaboard.follow.loop` decides, and `TaskTry` carries out its effects. A synchronous task answers a `Wait` by
waiting, and so does a deferrable one in its first seconds (`defaults.defer_after`); then it answers by
deferring. Everything else is the same, the end (`finish`) included.

The run record fences who may act (core/docs/contract.md, Owners). The owner is this try: in the phase
``worker`` while a worker follows, and ``deferred`` while a triggerer does. Each hand-over between them is a
compare-and-swap that comes first: before the deferral is asked for, and as the first act of a resumed worker.
So after a crash at any point the record tells the next try whether a worker died (adopt) or a person asked
for the task anew (stop, resume).
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from allaboard.backends.base import Backend, Changes, Handle, Plan
from allaboard.backends.local.host.machine import pid_namespace
from allaboard.errors import AllaboardError, BackendUnreachable, BadInput, OwnershipConflict, UnknownRun
from allaboard.follow.loop import (
    Answer,
    Effect,
    Enforce,
    Launch,
    Observe,
    Outcome,
    Wait,
    follow,
    run_sync,
)
from allaboard.follow.run_record import why_from_scratch
from allaboard.job.grid import point_of
from allaboard.report.last_good import last_good_line
from allaboard.running import follow_policy
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import state_of
from allaboard.text.redaction import redact_text, redact_texts, secret_values
from allaboard_provider import defaults, measures, outlets, plugin
from allaboard_provider.compat import (
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferralTimeout,
    conf,
    mask_secret,
)
from allaboard_provider.errors import (
    PlaceFailed,
    SpecRejected,
    TaskTimedOut,
    TrainingFailed,
    airflow_errors,
    taken_over,
    task_timed_out,
    worker_ended,
)
from allaboard_provider.executors import first_process, why_run_ends_with_worker
from allaboard_provider.homes import Ended
from allaboard_provider.identity import has_a_try_left, in_triggerer, key_of, on_worker
from allaboard_provider.masking import masked_in
from allaboard_provider.operators._elsewhere import Before, Homes
from allaboard_provider.operators._sweep import BY as STOPPED_BY_SWEEP
from allaboard_provider.operators._sweep import Sweep
from allaboard_provider.ownership import BY, expect_no_further_try
from allaboard_provider.pages import RUN_KEY, SNAPSHOT_KEY, Snapshots, goodput_in, outcome_of, snapshot
from allaboard_provider.places import Place, place_of
from allaboard_provider.results import failure_of, failure_text, read_end, result_of
from allaboard_provider.task_log import TaskLog, poll_delay, restart_warnings, state_home
from allaboard_provider.tracing import trace_environment
from allaboard_provider.triggerers import present, why_not_left
from allaboard_provider.triggers.train import TrainingJobTrigger, renamed, task_state

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from allaboard.backends.local.backend import LocalBackend
    from allaboard.job.training_job import TrainingJob
    from allaboard_provider.hooks.allaboard import AllaboardHook
    from allaboard_provider.lineage import Lineage

_STEP = 0.5
_UNTIL_SIGKILL = 4.0
_UNTIL_GONE = 90.0
_DEFERRED_AGAIN = 5
"""Times that a worker which cannot reach the cluster returns the run to the triggerer, which waits."""
_GIVEN_BACK = 10
"""Times that a worker which cannot see a local run returns it, until a triggerer gets it that can."""


class TrainingTask(Protocol):
    """Fields that a try needs of its operator: those of `TrainingJobOperator`."""

    deferrable: bool
    get_logs: bool
    kind: str
    killed: bool
    backstop: float
    executor: str | None
    queue: str
    execution_timeout: timedelta | None
    lineage: Callable[[], Lineage] | None
    stop_rest_when: str | Sequence[str] | None

    @property
    def hook(self) -> AllaboardHook: ...

    @property
    def log(self) -> Any: ...

    def training_job(self) -> TrainingJob: ...

    def prepared_shards(self, context: Context) -> str | None: ...

    def run_of(self, context: Mapping[str, Any]) -> str: ...

    @property
    def outlets(self) -> list[Any]: ...

    def result(self, status: dict[str, Any]) -> dict[str, Any]: ...

    def made(self, outcome: Outcome) -> Lineage: ...

    def announced(self, result: Mapping[str, Any]) -> str | None: ...

    def as_launched(self, plan: Plan, *, local: bool) -> Plan: ...

    def defer(
        self, *, trigger: BaseTrigger, method_name: str, timeout: timedelta | None = None
    ) -> NoReturn: ...


class TaskTry:
    """Work of a worker for one try, from `begin` or `resume` to a deferral, a result or an exception."""

    def __init__(self, operator: TrainingTask, context: Context) -> None:
        self.operator, self.log = operator, operator.log
        self.context: Any = context
        self.ti: Any = self.context["ti"]
        self.handle: Handle | None = None
        self.log_state: Mapping[str, Any] | None = None
        self.waits_here = not operator.deferrable
        self._defers_at = 0.0  # by time.monotonic

    @cached_property
    def place(self) -> Place:
        return place_of(self.operator.hook, self._pause)

    @cached_property
    def backend(self) -> Backend:
        return self.place.backend

    @cached_property
    def homes(self) -> Homes:
        """Of local runs."""
        store = self.context.get("task_state_store")
        backend = cast("LocalBackend", self.backend)
        return Homes(store, backend, self.log, self._pause, lambda gen: backend.saves_of(self.plan, gen))

    @cached_property
    def worker(self) -> Owner:
        return on_worker(self.ti, local=self.place.is_local)

    @cached_property
    def triggerer(self) -> Owner:
        return in_triggerer(self.ti.id)

    @cached_property
    def plan(self) -> Plan:
        job = self.operator.training_job()
        return Plan(
            job,
            key_of(self.context),
            environment=trace_environment(),
            shards=self.operator.prepared_shards(self.context),
            secrets=masked_in(job.as_mapping()),
        )

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of the run. From the first call on Airflow, too, hides them in the log of this task."""
        # The job of a run on a cluster, or on another machine, has all that is known here.
        here = self.handle is not None and self.place.is_local
        recorded = self.backend.secrets_of(self.plan.run) if here else ()
        values = (*secret_values(self.plan.job.as_mapping()), *self.plan.secrets, *recorded)
        for value in values:
            mask_secret(value)
        return values

    # The three entry points.

    def begin(self) -> dict[str, Any]:
        """Start a new try."""
        with airflow_errors(self._run_name), self._stop_on_timeout():
            defer_after = defaults.defer_after()
            if self.place.is_local:
                before = self.homes.settle(self.plan.run, first=self.ti.try_number <= 1)
                if before.result is not None and not self._data_has_changed_since(before):
                    self.log.info("run %s has succeeded on another host: its result is taken", self.plan.run)
                    return self._take(before.result, before.uid)
                self.plan = replace(self.plan, after=before.after)
                self._wait_for_stop()
            self._skip_if_reached()
            self._launch(self.plan)
            self._skip_if_reached()
            # A deferral takes longer than a short run. After a resume it is paid already.
            self._defers_at = time.monotonic() + defer_after
            return self._follow()

    @cached_property
    def _sweep(self) -> Sweep | None:
        when = self.operator.stop_rest_when
        return Sweep(when, self.ti, self.log) if when else None

    def _skip_if_reached(self) -> None:
        """Raises AirflowSkipException if another run of the sweep has reached what it is for."""
        reason = self._sweep.reached() if self._sweep is not None else None
        if reason is None:
            return
        if self.handle is not None:
            self._stop(reason)
        raise AirflowSkipException(reason)

    def _data_has_changed_since(self, before: Before) -> bool:
        then = before.after.data if before.after is not None else None
        return bool(why_from_scratch(then, self.homes.backend.data_of(self.plan)))

    def _launch(self, plan: Plan) -> None:
        plan = self.operator.as_launched(plan, local=self.place.is_local)
        self.handle = self.backend.launch(plan, self.worker)
        self._log_handle(self.handle)
        if self.place.is_local:
            self.homes.keep_home(self.handle, alone=self._why_run_ends_with_worker is not None)

    def resume(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on after an event of the trigger."""
        event = renamed(event)
        with airflow_errors(self._run_name), self._stop_on_timeout():
            self.handle = Handle(
                str(event["run"]),
                int(event.get("attempt", 1)),
                int(event.get("generation", 1)),
                str(event["uid"]),
                adopted=True,
            )
            self.log_state = event.get("log_state")
            if not self.place.is_here(self.handle.run, event.get("fingerprint")):
                return self._resume_from_afar(event)
            try:
                self._reclaim()
            except BackendUnreachable as error:
                self._return_to_triggerer(event, error)
            match event.get("status"):
                case "timeout" if not state_of(self.backend.observe(self.handle.run)).is_final:
                    self._out_of_time()
                case "elsewhere":
                    self.waits_here = True
                    self.log.info(
                        "the triggerer on %s cannot see this run; this worker on %s follows it to its end",
                        event.get("triggerer", "another machine"), socket.gethostname(),
                    )  # fmt: skip
                case "error":
                    self.waits_here = True
                    self.log.warning(
                        "the trigger could not go on (%s); this worker follows the run to its end",
                        event.get("error"),
                    )
            return self._follow()

    def rescue(self, error: BaseException) -> None:
        """Stop the run after its trigger timed out or died, for nobody follows it any more. The caller raises
        ``error``.
        """
        with airflow_errors(self._run_name), self._stop_on_timeout():
            try:
                seen = self.backend.observe(self.plan.run)
            except UnknownRun:
                return
            self.handle = Handle(seen.run, seen.attempt, seen.generation, seen.uid or "", adopted=True)
            if state_of(seen).is_final or seen.owner != self.triggerer:
                return
            self._reclaim()
            late = isinstance(error, TaskDeferralTimeout)
            self._stop("nobody followed it when its time was up" if late else f"its trigger failed: {error}")

    # Launching and handing over between worker and triggerer.

    def _wait_for_stop(self) -> None:
        """Wait until a run that the last try was made to stop has ended: the next attempt begins when the
        last member has had its grace. (On a cluster the launch itself waits for that.)
        """
        try:
            with self.backend.changes(self.plan.run) as changes:
                while state_of(self.backend.observe(self.plan.run)) is State.STOPPING:
                    self._leave_if_killed()
                    changes.wait(_STEP)
        except UnknownRun:
            return

    def _log_handle(self, handle: Handle) -> None:
        for warning in handle.warnings:
            self.log.warning("%s", warning)
        for note in handle.notes:
            self.log.info("%s", note)
        how = (
            "its result waits to be taken"
            if handle.hand_over
            else "adopted"
            if handle.adopted
            else "launched"
        )
        self.log.info(
            "run %s, attempt %d: %s; to look at it: %s",
            handle.run,
            handle.attempt,
            how,
            self.place.at.command("follow", handle.run),
        )
        known = {"run": handle.run, "attempt": handle.attempt, "uid": handle.uid, **self.place.address}
        if (point := point_of(self.plan.job)) is not None:
            known["point"] = redact_texts(point, self.secrets)
        self.ti.xcom_push(RUN_KEY, known)

    def _resume_from_afar(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on without seeing the run, which lives on another machine: with the end that its trigger saw, or
        by giving the run back to the triggerers, of which one sees it. Raises PlaceFailed, for which a try is
        used, when none does; the run is then stopped there.
        """
        assert self.handle is not None
        run, host = self.handle.run, event.get("host") or "another machine"
        self.handle = None
        if (end := read_end(event.get("end"))) is not None:
            state, result, error = end
            self.homes.keep_end(Ended(str(event["uid"]), state, result))
            if result is not None:
                self.log.info("run %s has succeeded on %s, as its trigger saw", run, host)
                return self._take(result, str(event["uid"]))
            raise error or TrainingFailed(f"run {run} has ended on {host}: {state}", run=run)
        deferrals = int(event.get("deferrals", 0)) + 1
        where = f"run {run} lives on {host}, and this worker is on {socket.gethostname()}"
        if event.get("status") == "timeout":
            self.homes.ask_to_stop(run)
            self._out_of_time()
        if deferrals > _GIVEN_BACK:
            self.homes.ask_to_stop(run)
            summary = (
                f"{where}: a local run can only be followed on its own machine, and no triggerer there took "
                "its trigger"
            )
            fix = "give its task a queue whose worker and triggerer run there, or deferrable=False"
            raise PlaceFailed(f"{summary}; {fix}", summary=summary, fix=fix, run=run, retryable=True)
        self.log.warning("%s: the task waits again, for a triggerer that sees it", where)
        names = ("run", "uid", "owner", "attempt", "generation", "fingerprint", "log_state")
        trigger = TrainingJobTrigger(
            **{name: event[name] for name in names if name in event},
            host=str(host),
            deadline=self._deadline(),
            get_logs=self.operator.get_logs,
            deferrals=deferrals,
        )
        self.operator.defer(trigger=trigger, method_name="execute_complete", timeout=self._backstop())

    def _reclaim(self) -> None:
        """Become the owner again: the first act of a resumed worker. From here on a crash is one of a worker,
        and the next try adopts the run.
        """
        assert self.handle is not None
        try:
            self.backend.adopt(self.handle, self.triggerer, self.worker)
        except OwnershipConflict as error:
            seen = self.backend.observe(self.handle.run)
            if seen.uid != self.handle.uid or seen.owner is None or seen.owner.id != self.worker.id:
                reason = f"{error}: another owner took the run over while this task was deferred"
                raise taken_over(self.handle.run, reason) from None

    def _return_to_triggerer(self, event: Mapping[str, Any], error: BackendUnreachable) -> NoReturn:
        """Defer again while the cluster does not answer. A failure of the task would not end its run, and the
        next try would take the run for one that a person asked to have anew.
        """
        deferrals = int(event.get("deferrals", 0)) + 1
        if event.get("status") == "timeout":
            self._out_of_time()
        if deferrals > _DEFERRED_AGAIN or not self.operator.deferrable:
            raise error
        self.log.warning("%s; the triggerer waits until it answers", error)
        self.operator.defer(
            trigger=self._trigger(deferrals=deferrals),
            method_name="execute_complete",
            timeout=self._backstop(),
        )

    def _defer(self) -> NoReturn:
        handle = self.handle
        assert handle is not None
        self._leave_if_killed()
        trigger, backstop = self._trigger(), self._backstop()
        if not self.place.is_local and self._seen is not None:
            # The trigger leaves none for a run on a cluster, which the API server reads by itself.
            self._leave_snapshot(outcome_of(self._seen), with_output=False)
        self.backend.adopt(handle, self.worker, self.triggerer)
        self.operator.defer(trigger=trigger, method_name="execute_complete", timeout=backstop)

    def _trigger(self, **more: Any) -> TrainingJobTrigger:
        handle = self.handle
        assert handle is not None
        return TrainingJobTrigger(
            run=handle.run,
            uid=handle.uid,
            owner=self.worker.id,
            attempt=handle.attempt,
            generation=handle.generation,
            deadline=self._deadline(),
            get_logs=self.operator.get_logs,
            log_state=self._task_log.saved_state,
            **self.place.for_trigger(handle.run),
            **more,
        )

    def _backstop(self) -> timedelta | None:
        """The timeout of the deferral. The trigger itself keeps the deadline; Airflow's timer, which asks no
        trigger, is for the case that no triggerer runs.
        """
        deadline = self._deadline()
        if deadline is None:
            return None
        return timedelta(seconds=max(1.0, deadline - time.time()) + self.operator.backstop)

    def _deadline(self) -> float | None:
        """Time at which this try must end, in epoch seconds. Its start date survives deferrals."""
        limit = self.operator.execution_timeout
        if limit is None:
            return None
        begun = self.ti.start_date
        return float((begun.timestamp() if begun is not None else time.time()) + limit.total_seconds())

    # Following.

    def _follow(self) -> dict[str, Any]:
        assert self.handle is not None
        self.waits_here = self.waits_here or self._run_ends_with_worker() or self._would_be_left_alone()
        attempts = (self.plan.job.get("policy") or {}).get("attempts", 1)
        run = self.handle.run
        # A task that defers at once needs no changes.
        with self.backend.changes(run) if self._seconds_here() else nullcontext() as self._changes:
            outcome = run_sync(follow(follow_policy(self.backend, attempts=attempts)), self._perform)
        return self.finish(outcome)

    def _seconds_here(self) -> float:
        """Seconds for which this worker waits itself before it defers."""
        return math.inf if self.waits_here else max(0.0, self._defers_at - time.monotonic())

    def _run_ends_with_worker(self) -> bool:
        """Return whether the run is local and ends with this worker when it defers."""
        reason = self._why_run_ends_with_worker if self.place.is_local else None
        if reason is not None:
            self.log.info(
                "this worker does not defer, and follows the run to its end: %s, and a local run ends "
                "with it (one on a cluster goes on)",
                reason,
            )
        return reason is not None

    @cached_property
    def _why_run_ends_with_worker(self) -> str | None:
        configured = conf.get("core", "executor", fallback="")
        return why_run_ends_with_worker(self.operator.executor, configured, os.environ, first_process())

    def _would_be_left_alone(self) -> bool:
        """Return whether the run is local, and no triggerer that sees it would take its trigger."""
        if not self.place.is_local:
            return False
        queues = conf.getboolean("triggerer", "queues_enabled", fallback=False)
        queue = self.operator.queue if queues else None
        here = present(self.homes.backend.home)
        reason = why_not_left(here, queue, pid_namespace(), socket.gethostname())
        if reason is not None:
            self.log.info("this worker does not defer, and follows the run to its end: %s", reason)
        return reason is not None

    _changes: Changes | None = None
    _seen: Observation | None = None
    _leaving = False

    @cached_property
    def _task_log(self) -> TaskLog:
        assert self.handle is not None
        return TaskLog(
            self.handle.run,
            self.worker.id,
            state=self.log_state,
            home=state_home(),
            output=self.operator.get_logs,
            at=self.place.at,
            secrets=self.secrets,
        )

    def _log_observation(self, seen: Observation) -> None:
        self._task_log.read(self.backend, seen, time.monotonic())
        for line in self._task_log.update(seen, time.time()):
            self.log.info("%s", line)
        for line in restart_warnings(self.backend, self._task_log, seen):
            self.log.warning("%s", line)

    @cached_property
    def _snapshots(self) -> Snapshots:
        return Snapshots()

    def _leave_snapshot(self, outcome: Outcome, **how: Any) -> dict[str, Any] | None:
        """Leave what the tab of this task tells where this run cannot be read, and return it. Its failure
        fails nothing.
        """
        began, left = time.monotonic(), None
        try:
            left = snapshot(
                self.backend, outcome, time.time(), at=self.place.at, kind=self.operator.kind, **how
            )
            self.ti.xcom_push(SNAPSHOT_KEY, left)
        except Exception as error:
            self._snapshots.failed()
            self.log.debug("no snapshot of run %s is left for the web page: %s", outcome.run, error)
        else:
            self._snapshots.left(str(outcome.state), time.monotonic() - began)
        return left

    def _perform(self, effect: Effect) -> Answer:
        match effect:
            case Observe(evidence):
                return self._observe(evidence)
            case Wait(seconds):
                here = self._seconds_here() if self._changes is not None else 0.0
                if not here:
                    self._defer()
                self._wait(min(seconds, here))
            case Enforce(reason):
                self.log.warning("run %s: %s", self.plan.run, reason)
                self.backend.enforce(self.plan.run, self.worker)
            case Launch(attempt, reason, interrupted):
                # This try of the task goes on: Airflow counts none of it.
                self.log.warning("attempt %d in this same try of the task: %s", attempt, reason)
                if self._seen is not None:
                    self._measure(self._seen, starts_again=True)
                self._launch(replace(self.plan, interrupted=interrupted))
        return None

    def _observe(self, evidence: bool) -> Answer:
        assert self.handle is not None
        try:
            seen = self.backend.observe(self.handle.run, evidence)
        except BackendUnreachable as error:
            return error
        self._log_observation(seen)
        self._seen = seen
        if seen.uid != self.handle.uid or (seen.owner is not None and seen.owner.id != self.worker.id):
            owner = seen.owner.id if seen.owner is not None else "nobody"
            raise taken_over(
                seen.run,
                f"run {seen.run} is on attempt {seen.attempt} now and belongs to {owner}: this try lost it",
            )
        state = state_of(seen)
        # The API server reads clusters by itself.
        if self.place.is_local and not state.is_final and self._snapshots.is_due(str(state)):
            self._leave_snapshot(outcome_of(seen))
        return seen

    def _wait(self, seconds: float) -> None:
        """Wait for a change, in steps short enough to notice that the task is being killed: SIGKILL follows
        in 5 s.
        """
        end = time.monotonic() + poll_delay(self.backend, self._seen, seconds, time.time())
        while True:
            self._leave_if_killed()
            remaining = end - time.monotonic()
            assert self._changes is not None
            if remaining <= 0 or self._changes.wait(min(remaining, _STEP)):
                return

    def _pause(self, seconds: float) -> None:
        """Sleep for a backend that waits, such as for the end of the last attempt."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            if not self._leaving:
                self._leave_if_killed()
            time.sleep(min(remaining, _STEP))

    # Ends from outside.

    def _leave_if_killed(self) -> None:
        """Raises TrainingFailed if the worker was asked to end. If a person or a time limit ended the task,
        the run is stopped first. If the task still counts as running, only this worker goes away (a restart,
        a drained node), and the run goes on for the next try.
        """
        if not self.operator.killed:
            return
        self._leaving = True
        ti = self.ti
        states = ti.get_task_states(
            dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
        )
        state = task_state(states, ti)
        run = self.handle.run if self.handle is not None else self.plan.run
        if state == "running" and has_a_try_left(ti):
            raise worker_ended(
                run,
                f"this worker was asked to end; run {run} goes on, and the next try of the task adopts it",
            )
        reason = (
            "the worker was asked to end, and no try is left"
            if state == "running"
            else f"the task was ended (its state is {state})"
        )
        self._stop(reason, _UNTIL_SIGKILL)
        raise worker_ended(run, f"run {run} is stopped: {reason}")

    def give_up(self) -> None:
        """Mark a local run as one without a further try: this try ends in a way that Airflow does not try
        again.
        """
        if "plan" not in self.__dict__ or "place" not in self.__dict__ or not self.place.is_local:
            return
        with suppress(AllaboardError):
            seen = self.backend.observe(self.plan.run)
            lost = self.handle is not None and seen.owner is not None and seen.owner.id != self.worker.id
            if not lost and not state_of(seen).is_final:
                expect_no_further_try(self.backend, seen)

    def _stop_on_timeout(self) -> _StopOnTimeout:
        return _StopOnTimeout(self)

    def _out_of_time(self) -> NoReturn:
        raise task_timed_out(self.operator.execution_timeout, self._run_name())

    def _run_name(self) -> str:
        return self.handle.run if self.handle is not None else self.operator.run_of(self.context)

    def _stop(self, reason: str, patience: float = _UNTIL_GONE) -> None:
        """Stop the run and wait for its end, while its last lines go into the log."""
        handle = self.handle
        if handle is None:
            try:
                seen = self.backend.observe(self.plan.run)
            except UnknownRun:
                return
            handle = self.handle = Handle(seen.run, seen.attempt, seen.generation, seen.uid or "")
        self.log.info("stopping run %s: %s", handle.run, reason)
        self.backend.stop(handle, self.worker, BY, reason)
        end = time.monotonic() + patience
        with self.backend.changes(handle.run) as changes:
            while time.monotonic() < end:
                seen = self.backend.observe(handle.run)
                self._log_observation(seen)
                if seen.uid != handle.uid or state_of(seen).is_final:
                    self._keep_end(seen)
                    break
                changes.wait(_STEP)

    # The end.

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        """The result of a run that succeeded. Raises TrainingFailed with the reason for any other."""
        for line in self._task_log.failure_lines(outcome):
            self.log.error("%s", line)
        self._task_log.forget()
        if line := last_good_line(self.backend, outcome.seen):
            self.log.error("%s", redact_text(line, self.secrets))
        self.operator.lineage = lambda: self._lineage_of(outcome)
        self._measure(outcome.seen, goodput=goodput_in(self._leave_snapshot(outcome)))
        for diagnosis in outcome.diagnoses:
            if outcome.ok:
                self.log.warning(
                    "%s: %s; %s",
                    diagnosis.code,
                    diagnosis.summary,
                    self.place.at.in_text(diagnosis.fix, outcome.run),
                )
        if outcome.ok:
            self.log.info("%s", redact_text(outcome.message, self.secrets))
            if self._sweep is not None:
                self._sweep.end(self.backend, self.plan.key, outcome.summary)
            return self._take(result_of(outcome), str(outcome.seen.uid))
        self._keep_end(outcome.seen)
        stop = outcome.seen.stop
        if outcome.state is State.STOPPED and stop is not None and stop.by == STOPPED_BY_SWEEP:
            raise AirflowSkipException(stop.reason)
        at = self.place.at
        error = failure_of(outcome, at, failure_text(outcome, at, self.secrets), self.secrets)
        if isinstance(error, SpecRejected):
            self.log.error("Airflow does not retry the task: only a change of the job can change the result")
        raise error

    def _measure(self, seen: Observation, **more: Any) -> None:
        try:
            measures.send(self.context, seen, **more)
        except Exception as error:  # whatever a site has set up, the training has ended as it has
            self.log.warning("the metrics of run %s were not sent: %s", seen.run, error)

    def _lineage_of(self, outcome: Outcome) -> Lineage:
        made = self.operator.made(outcome)
        return made._replace(facts=redact_texts(dict(made.facts), self.secrets))

    def _tell_outlets(self, result: Mapping[str, Any]) -> None:
        """Only a worker can: a trigger that ended the task itself would leave its outlets without events."""
        if not self.operator.outlets:
            return
        uri = self.operator.announced(result)
        facts = outlets.of_checkpoint(uri, metrics=result["metrics"], run=result["run"])
        extra = outlets.extra_of(facts, self.secrets)
        outlets.announce(self.operator, self.context, extra, outlets.folder_of(uri))

    def _take(self, status: Mapping[str, Any], uid: str) -> dict[str, Any]:
        """The result of an attempt that succeeded, here or elsewhere."""
        result = dict(redact_texts(self.operator.result(dict(status)), self.secrets))
        self._tell_outlets(result)
        self._hand_over(result, uid)
        return result

    def _hand_over(self, result: dict[str, Any], uid: str) -> None:
        """Hand the result over once Airflow has accepted the success of the task; see `plugin`."""
        handle, backend, is_local = self.handle, self.backend, self.place.is_local
        ended = Ended(uid, State.SUCCEEDED.value, result)
        if is_local:
            self.homes.keep_end(ended)

        def accepted() -> None:
            if handle is not None:
                backend.hand_over(handle)
            if is_local:
                self.homes.keep_end(replace(ended, result=None, accepted=True))

        if plugin.Listener.active:
            plugin.on_accepted[str(self.ti.id)] = accepted
        else:
            self.ti.xcom_push("return_value", result)
            accepted()

    def _keep_end(self, seen: Observation) -> None:
        """Say to a next try on another machine that this attempt has ended."""
        if self.place.is_local and seen.uid is not None and state_of(seen).is_final:
            self.homes.keep_end(Ended(seen.uid, state_of(seen).value), seen.generation)


class _StopOnTimeout:
    """Stops the run when Airflow's execution_timeout raises, wherever that happens, and closes the place:
    Airflow ends the process of a task without unwinding it.
    """

    def __init__(self, task_try: TaskTry) -> None:
        self.task_try = task_try

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, AirflowTaskTimeout):
            try:
                self.task_try._stop(
                    f"the task's execution_timeout of {self.task_try.operator.execution_timeout} has passed"
                )
            except AllaboardError as trouble:
                self.task_try.log.error("the run could not be stopped: %s", trouble)
        if isinstance(error, (BadInput, AirflowFailException)):
            self.task_try.give_up()
        if "place" in self.task_try.__dict__:
            self.task_try.place.close()
        if isinstance(error, AirflowTaskTimeout) and not isinstance(error, TaskTimedOut):
            limit = self.task_try.operator.execution_timeout
            raise task_timed_out(limit, self.task_try._run_name()) from error

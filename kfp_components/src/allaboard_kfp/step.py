"""One step of a pipeline that runs a job: launch or find it, follow it, obey whoever wants it ended.

The step's log is what people see while it runs, so it carries the states, the progress and what rank 0
writes. The run is stopped, and its members may save, when the step gets SIGTERM, Ctrl-C or SIGHUP, and when
whoever reads its output is gone: under kfp.local a pipeline that was killed leaves its steps behind, and
nobody would ever take their result. A step that is itself killed leaves the run to its next try, or to be
stopped as abandoned `PATIENCE` later (contract, section 1).
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allaboard.backends.base import Backend, Cursor, Handle, LogLine, Plan, Selection
from allaboard.errors import AllaboardError, BadInput
from allaboard.follow.loop import Outcome
from allaboard.observation import Observation
from allaboard.printable import last_state, visible
from allaboard.redaction import redact_text
from allaboard.report import localtime, words
from allaboard.report.attached_run import AttachedRun, FollowerLeft, Signals, event_source
from allaboard.report.exits import exit_code_of, untouched_on_error
from allaboard.report.plain import PlainView
from allaboard.report.terminal import silence_stdout
from allaboard.reportline import decode
from allaboard.running import backend_of, follow_policy
from allaboard.spec.job import TrainingJob
from allaboard.spec.loader import job_folder
from allaboard.spec.site import STORE, Site, resolve_uri, site_of
from allaboard.status import state_of
from allaboard.storage.scratch import own_folder
from allaboard.units import counted
from allaboard_kfp.given import as_written, on_cluster
from allaboard_kfp.identity import check_place, key_of, owner_of

LOOK_EVERY = 10.0  # seconds between two looks at the run at most
RANK0_EVERY = 0.5  # seconds between two looks at rank 0's output
LINES_PER_MINUTE = 300
LONGEST_LINE = 2000
PATIENCE = 60.0
"""Seconds that the run of a step which was itself killed waits for the next try, and trains on; then it is
stopped, and may save. A pod takes all that runs in it along when it ends.
"""
SILENCE = 60.0  # seconds after which the step says that it still lives: silent steps get killed by people


def say(text: str) -> None:
    """A line in the step's log, at once; one line, whatever a member wrote into it, and without secrets."""
    print(visible(redact_text(text), tabs=True), flush=True)


@contextmanager
def step_errors() -> Iterator[None]:
    """What goes wrong ends the step with a sentence and the exit code of contract 4, not with a traceback."""
    try:
        yield
    except AllaboardError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        if error.code == "never_fits" and on_cluster():
            print(_ASK, file=sys.stderr, flush=True)
        raise SystemExit(exit_code_of(error)) from None


_ASK = """\
Members run in this step's own pod, and get what the step asks for in the pipeline:
  train(...).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(4)
            .set_cpu_request("8").set_cpu_limit("8").set_memory_request("32G").set_memory_limit("32G")
or let them be pods of their own: train(..., backend="kubernetes")."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step works: its key, its site, and where relative paths start. ``lasting``: whether what is
    put into the store outlives the step, which it does not where a pod has nothing but its own disk.
    ``began``: when the step did, epoch seconds.
    """

    key: str
    site: Site
    folder: str
    lasting: bool = True
    runs: str = ""
    namespace: str = ""
    began: float = 0.0

    @classmethod
    def of(cls, output: str, store: str, folder: str = "", runs: str = "", namespace: str = "") -> Place:
        """Raises BadInput. ``output``: where one of the step's outputs goes; ``store``: what store:// is;
        ``runs``, ``namespace``: the backend of the step's runs, and where in a cluster they are.
        """
        check_place(output, os.environ)
        site = site_of(os.environ, store=as_written(store) or None)
        start = str(job_folder(as_written(folder) or ".").absolute())
        lasting = not on_cluster() or bool(store or os.environ.get("ALLABOARD_STORE"))
        return cls(
            key_of(output), site, start, lasting, as_written(runs), as_written(namespace), began(os.environ)
        )

    def uri(self, text: str) -> str:
        """The place that this names. Raises BadInput."""
        if text.startswith(STORE):
            self.check_store([text])
        return resolve_uri(text, self.site, self.folder)

    def check_store(self, value: Any) -> None:
        """Refuse what would be put onto the pod's own disk, and be gone with it."""
        if not self.lasting and STORE in json.dumps(value):
            raise BadInput(
                "store:// stands for nothing in this pod; give store, or set ALLABOARD_STORE in the image: "
                "s3://bucket/prefix, or the folder of a mounted volume"
            )

    def backend(self) -> Backend:
        """Where the step's runs live: on a cluster, in its own pod, or on this machine. Raises BadInput."""
        from allaboard.backends.local.backend import LocalBackend

        name = self.runs or os.environ.get("ALLABOARD_BACKEND") or "local"
        if name != "local":
            return backend_of(name, site=self.site, namespace=self.namespace or None)
        if self.namespace:
            raise BadInput("namespace: it has a meaning with the backend kubernetes alone; leave it out")
        environ = dict(os.environ)
        if on_cluster() and "ALLABOARD_HOME" not in environ:
            # The user of a pod may have no home that can be written, and what is there ends with the pod
            # anyway.
            environ["ALLABOARD_HOME"] = str(own_folder())
        backend = LocalBackend(environ, self.site, patience=PATIENCE)
        backend.on_silence = say
        return backend


def began(environ: Mapping[str, str]) -> float:
    """When this step began: its process, where kfp made one for it and the system tells; else now."""
    if environ.get("_KFP_RUNTIME") == "true":
        with suppress(OSError, ValueError, AttributeError):
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    return time.time()


def run_to_the_end(backend: Backend, job: TrainingJob, key: str) -> tuple[Outcome, Handle]:
    """Launch the job under this key, or take up what is there, and follow it to its end. The result is not
    handed over yet.

    Raises BadInput when it cannot start, BackendUnreachable, and SystemExit with the code of contract 4
    when the step was told twice to end. Retries are the pipeline's: one attempt, unless the job says
    otherwise.
    """
    plan = Plan(job, key)
    view = StepView(backend, plan.run)
    attempts = (job.get("policy") or {}).get("attempts", 1)
    with Interrupts() as signals:
        follower = Step(backend, plan, owner_of(backend), lambda: view, signals)
        # What rank 0 writes wakes nobody.
        poll = min(backend.pace.poll, LOOK_EVERY)
        try:
            follower.launch()
            with untouched_on_error(plan.run):
                outcome = follower.follow_to_end(follow_policy(backend, poll, attempts))
        except FollowerLeft as left:
            raise SystemExit(left.code) from None
        assert follower.handle is not None
        view.ended(outcome)
        return outcome, follower.handle


class Interrupts(Signals):
    """A hang-up stops the run too: there is no terminal from which anybody would go on watching it."""

    def _hang_up(self, *_: Any) -> None:
        self.interrupts.append("SIGHUP")


class Step(AttachedRun):
    """Follows like a person at a terminal, and notices when nobody reads what it says."""

    def _handle_signals(self) -> None:
        if nobody_reads():
            self.forsaken()
        super()._handle_signals()

    def forsaken(self) -> None:
        silence_stdout()
        os.dup2(1, 2)
        self.signals.interrupts.append("the pipeline that ran this step is gone")


def nobody_reads(fd: int = 1) -> bool:
    """Whether stdout is a pipe whose reader is gone. A file, a terminal and a closed stdout are not that."""
    looking = select.poll()
    try:
        looking.register(fd, 0)  # errors are told even when nothing is asked for
        return any(event & select.POLLERR for _, event in looking.poll(0))
    except (OSError, ValueError):
        return False


class StepView:
    """What the command line says where there is no terminal, with rank 0's own output between its lines."""

    def __init__(self, backend: Backend, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.plain = PlainView(event_source(backend, run), clock=clock)
        self.rank0 = Rank0(backend, run, clock)
        self.clock, self.spoke_at = clock, clock()
        self.known: object = None

    def launched(self, handle: Handle) -> None:
        with unread():
            self.plain.launched(handle)

    def seen(self, seen: Observation) -> None:
        with unread():
            wrote = list(self.rank0.news(seen))
            for line in wrote:
                say(line)
            self.plain.seen(seen)
            known, now = (state_of(seen), seen.progress.step, seen.members), self.clock()
            if wrote or known != self.known:
                self.known, self.spoke_at = known, now
            elif now - self.spoke_at >= SILENCE:
                self.spoke_at = now
                running = sum(member.phase == "running" for member in seen.members)
                at = time.time()
                members = f"{running} of {counted(len(seen.members), 'member')} running"
                say(
                    f"{localtime.clock(at)}  still {state_of(seen)} "
                    f"{words.duration_phrase(seen, at)}: {members}"
                )

    def say(self, text: str) -> None:
        with unread():
            self.plain.say(text)

    def ended(self, outcome: Outcome) -> None:
        with unread():
            for line in self.rank0.news(outcome.seen, last=True):
                say(line)
            self.plain.ended(outcome)

    def close(self) -> None:
        self.plain.close()


@contextmanager
def unread() -> Iterator[None]:
    """Lines that nobody reads any more are no error; `Step` notices that itself."""
    with suppress(BrokenPipeError):
        yield


class Rank0:
    """What rank 0 wrote since the last look, bounded: a training may write more than any log should hold."""

    def __init__(self, backend: Backend, run: str, clock: Callable[[], float]) -> None:
        self.backend, self.run, self.clock = backend, run, clock
        self.attempt: int | None = None
        self.cursor: Cursor | None = None
        self.looked_at = float("-inf")
        self.allowance, self.counted_at = float(LINES_PER_MINUTE), clock()
        self.left_out = 0

    def news(self, seen: Observation, last: bool = False) -> Iterator[str]:
        """The lines, marked as rank 0's. Lines for allaboard itself are left out: the progress tells them."""
        now = self.clock()
        if not last and now - self.looked_at < RANK0_EVERY:
            return
        self.looked_at = now
        self.allowance = min(
            LINES_PER_MINUTE, self.allowance + (now - self.counted_at) * LINES_PER_MINUTE / 60
        )
        self.counted_at = now
        if seen.attempt != self.attempt:
            self.attempt, self.cursor = seen.attempt, None
        for line in self._lines(seen, last):
            if self.allowance < 1:
                self.left_out += 1
                continue
            yield from self._left_out(seen)
            self.allowance -= 1
            yield f"[rank0] {last_state(line)[:LONGEST_LINE]}"
        if last:
            yield from self._left_out(seen)

    def _lines(self, seen: Observation, last: bool) -> Iterator[str]:
        try:
            for item in self.backend.logs(self.run, Selection(ranks=(0,), attempt=seen.attempt), self.cursor):
                if isinstance(item, LogLine):
                    if decode(item.text) is None:
                        yield item.text
                else:
                    self.cursor = item
        except AllaboardError as error:
            # What cannot be read now may be readable at the next look, if there is one.
            if last:
                yield f"… what it wrote cannot be read: {error}"

    def _left_out(self, seen: Observation) -> Iterator[str]:
        if self.left_out:
            where = next((m.log for m in seen.members if m.rank == 0 and m.log), None)
            yield f"[rank0] … {counted(self.left_out, 'line')} left out here" + (
                f"; all are in {where}" if where else ""
            )
            self.left_out = 0


def finish(outcome: Outcome) -> None:
    """End the step as the run ended: quietly when well, else with the exit code of contract 4. The reason
    has been said.
    """
    if not outcome.ok:
        message = visible(redact_text(outcome.message), newlines=True, tabs=True)
        print(f"error: {message}", file=sys.stderr, flush=True)
        raise SystemExit(outcome.exit_code)


def numbers_of(outcome: Outcome) -> Mapping[str, Any]:
    """What the run reported last: its result, else its newest progress; the speed is no result."""
    return {name: value for name, value in outcome.metrics.items() if name != "steps_per_second"}

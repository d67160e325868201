"""One step of a pipeline that runs a job: it launches or adopts the run, follows it, and stops it when told.

People watch the step's log while it runs, so the log carries the states, the progress and the output of rank
0. SIGTERM, Ctrl-C and SIGHUP stop the run, and its members may save. So does a stdout without a reader: a
pipeline that is killed under kfp.local leaves its steps behind, and nobody would take their result. A step
that is itself killed leaves the run to its next try; without one, the run is stopped as abandoned after
`PATIENCE` (core/docs/contract.md, Owners).
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
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from allaboard.backends.base import Backend, Handle, Plan
from allaboard.diagnosis.faults import SURE
from allaboard.errors import AllaboardError, BadInput
from allaboard.follow.loop import Outcome
from allaboard.job.loader import job_folder
from allaboard.job.site import STORE, Site, resolve_uri, site_of
from allaboard.job.training_job import TrainingJob
from allaboard.report import commands, localtime, phrases
from allaboard.report.attached_run import AttachedRun, FollowerLeft, Signals, event_source
from allaboard.report.exits import exit_code_of, untouched_on_error
from allaboard.report.output import OutputReader
from allaboard.report.plain import PlainView
from allaboard.report.terminal import shown, silence_stdout
from allaboard.running import ATTEMPTS, backend_of, follow_policy
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from allaboard.storage.scratch import own_folder
from allaboard.text.units import counted
from allaboard_kfp.identity import check_place, key_of, owner_of
from allaboard_kfp.inputs import as_written, inputs_as_written, on_cluster

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.local.backend import LocalBackend

P = ParamSpec("P")
R = TypeVar("R")
LONGEST_POLL = 10.0  # seconds between two observations of the run at most
RANK0_INTERVAL = 0.5  # seconds between two reads of rank 0's output
PATIENCE = 60.0
"""Seconds for which a local run goes on after its step was killed; the next try may adopt it. Then the run is
stopped, and may save. In a pod the run ends with the pod.
"""
MAY_PASS = 75
"""The exit code (EX_TEMPFAIL) of a step whose run failed by a cause that may pass: an interruption that
happened too often, a registry that did not answer. 1: another try would repeat it, or nobody knows, or it was
lost.
"""
TERMINATION_LOG = "/dev/termination-log"
LONGEST_REASON = 1000
"""Bytes. Kubernetes keeps 12 KiB for all containers of a pod; one with Argo's and KFP's own has four."""
AGAIN = "the next try of this step"
KEEPALIVE = 60.0  # seconds after which a silent step logs that it lives: people kill silent steps


def say(text: str) -> None:
    """Write one line into the step's log, at once: without line breaks of others and without secrets."""
    print(shown(text), flush=True)


@dataclass(slots=True)
class Errors:
    """``at``: where the step's runs are, as soon as it is known; errors may name commands."""

    at: commands.Place = commands.HERE


@contextmanager
def step_errors() -> Iterator[Errors]:
    """An error ends the step with one sentence and an exit code (core/docs/contract.md, Exit codes), without
    a traceback.
    """
    errors = Errors()
    try:
        yield errors
    except AllaboardError as error:
        message = errors.at.in_text(str(error))
        print(shown(f"error: {message}", lines=True), file=sys.stderr, flush=True)
        keep_reason(message)
        if error.code == "never_fits" and on_cluster():
            print(_RESOURCES_HINT, file=sys.stderr, flush=True)
        raise SystemExit(exit_code_of(error)) from None


def keep_reason(reason: str, path: str = TERMINATION_LOG) -> None:
    """Write why the step fails where the kubelet reads it into the status of its pod, and Argo into the
    message of its node. Elsewhere there is no such file, and none is made. Never raises.
    """
    if not on_cluster():
        return
    line = shown(" ".join(reason.split())).encode(errors="replace")
    if len(line) > LONGEST_REASON:
        line = line[: LONGEST_REASON - 3].decode(errors="ignore").encode() + b"..."
    with suppress(OSError):
        # Not blocking: a pipe without a reader is an error then.
        file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def with_inputs(run: Callable[P, R]) -> Callable[P, R]:
    """The step with its inputs as their author wrote them."""

    @wraps(run)
    def step(*args: P.args, **kwargs: P.kwargs) -> R:
        with step_errors():
            given: Any = inputs_as_written(kwargs)
        return run(*args, **given)

    return step


_RESOURCES_HINT = """\
Members run in this step's own pod and share its resources; ask for more in the pipeline:
  train(...).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(4)
            .set_cpu_request("8").set_cpu_limit("8").set_memory_request("32G").set_memory_limit("32G")
or give each member a pod of its own: train(..., backend="kubernetes")."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a step: its key, its site, and where relative paths start. ``durable``: whether the store
    outlives the step; a pod's own disk does not. ``backend``, ``namespace``: of the step's runs.
    ``started``: when the step did, epoch seconds.
    """

    key: str
    site: Site
    folder: str
    durable: bool = True
    backend: str = ""
    namespace: str = ""
    started: float = 0.0

    @classmethod
    def of(
        cls, output: str, *, store: str = "", folder: str = "", backend: str = "", namespace: str = ""
    ) -> Place:
        """The place of the step whose output goes to ``output``. ``store``: what store:// stands for. Raises
        BadInput.
        """
        check_place(output, os.environ)
        return cls(
            key=key_of(output),
            site=site_of(os.environ, store=as_written(store) or None),
            folder=str(job_folder(as_written(folder) or ".").absolute()),
            durable=not on_cluster() or bool(store or os.environ.get("ALLABOARD_STORE")),
            backend=as_written(backend),
            namespace=as_written(namespace),
            started=start_time(os.environ),
        )

    def uri(self, text: str) -> str:
        """The whole uri of a place. Raises BadInput."""
        if text.startswith(STORE):
            self.check_store([text])
        return resolve_uri(text, self.site, self.folder)

    def check_store(self, value: Any) -> None:
        """Raises BadInput for a store:// in ``value`` that would be the pod's own disk, and end with it."""
        if not self.durable and STORE in json.dumps(value):
            raise BadInput(
                "store:// stands for nothing in this pod; give store, or set ALLABOARD_STORE in the image: "
                "s3://bucket/prefix, or the folder of a mounted volume"
            )

    def open_backend(self) -> Backend:
        """The backend of the step's runs: a cluster, the step's own pod, or this machine. Raises BadInput."""
        from allaboard.backends.local.backend import LocalBackend

        name = self.backend or os.environ.get("ALLABOARD_BACKEND") or "local"
        if name != "local":
            return backend_of(name, site=self.site, namespace=self.namespace or None)
        if self.namespace:
            raise BadInput(
                "namespace: only the backend kubernetes has one; leave it out, or give backend='kubernetes'"
            )
        environ = dict(os.environ)
        if on_cluster() and "ALLABOARD_HOME" not in environ:
            # The user of a pod may have no writable home, and its files end with the pod anyway.
            environ["ALLABOARD_HOME"] = str(own_folder())
        backend = LocalBackend(environ, self.site, patience=PATIENCE)
        backend.on_silence = say
        return backend


def place_of(backend: Backend, environ: Mapping[str, str] = os.environ) -> commands.Place:
    """Place of the step's runs, for whoever reads its log elsewhere. Members in the step's own pod can only
    be asked inside of it.
    """
    if backend.name != "local":
        return commands.Place(
            backend=backend.name, namespace=cast("KubernetesBackend", backend).api.namespace
        )
    if not on_cluster(environ):
        return commands.Place()
    from allaboard.backends.kubernetes.client.loader import namespace_of_pod

    namespace = namespace_of_pod()
    where = ("-n", namespace) if namespace else ()
    home = f"ALLABOARD_HOME={cast('LocalBackend', backend).home}"
    inside = ("kubectl", "exec", environ["KFP_POD_NAME"], *where, "--", "env", home)
    return commands.Place(program=(*inside, "python3", "-m", "allaboard"))


def start_time(environ: Mapping[str, str]) -> float:
    """Start of this step, epoch seconds: its process, where kfp made one for it and the system knows;
    else now.
    """
    if environ.get("_KFP_RUNTIME") == "true":
        with suppress(OSError, ValueError, AttributeError):
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    return time.time()


def run_to_the_end(
    backend: Backend,
    job: TrainingJob,
    key: str,
    at: commands.Place,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Outcome, Handle]:
    """Launch the job under this key, or adopt its run, and follow it to its end. The result is not handed
    over yet. The job says how many attempts there are in all, else `attempts_of` its backend.
    ``environment``: variables beside the job's own.

    Raises BadInput when the run cannot start, BackendUnreachable, and SystemExit with a code of
    core/docs/contract.md, Exit codes, when the step was told twice to end.
    """
    plan = Plan(job, key, environment=environment)
    view = StepView(backend, plan.run, at)
    attempts = (job.get("policy") or {}).get("attempts") or attempts_of(backend)
    with Interrupts() as signals:
        follower = Step(backend, plan, owner_of(backend), lambda: view, signals, at, AGAIN)
        # No change of the run tells of new output of rank 0.
        poll = min(backend.pace.poll, LONGEST_POLL)
        try:
            follower.launch()
            with untouched_on_error(plan.run, at):
                outcome = follower.follow_to_end(follow_policy(backend, poll, attempts))
        except FollowerLeft as left:
            keep_reason(str(left))
            raise SystemExit(left.code) from None
        assert follower.handle is not None
        view.ended(outcome)
        return outcome, follower.handle


def attempts_of(backend: Backend, environ: Mapping[str, str] = os.environ) -> int:
    """The attempts of a job that names none: of members that are pods of their own `ATTEMPTS`, as Kubeflow's
    stock manifests try no failed step again, whatever ``set_retry`` says; else one.
    """
    return ATTEMPTS if backend.name != "local" and on_cluster(environ) else 1


class Interrupts(Signals):
    """SIGHUP stops the run too: a step has no terminal that could take it up again."""

    def _hang_up(self, *_: Any) -> None:
        self.interrupts.append("SIGHUP")


class Step(AttachedRun):
    """Follows as the command line does, and stops the run when stdout has no reader any more."""

    def _handle_signals(self) -> None:
        if reader_is_gone():
            self._stop_without_reader()
        super()._handle_signals()

    def _stop_without_reader(self) -> None:
        silence_stdout()
        os.dup2(1, 2)
        self.signals.interrupts.append("the pipeline that ran this step is gone")


def reader_is_gone(fd: int = 1) -> bool:
    """Return whether stdout is a pipe without a reader. A file, a terminal and a closed stdout are none."""
    poller = select.poll()
    try:
        poller.register(fd, 0)  # errors are reported even when nothing is asked for
        return any(event & select.POLLERR for _, event in poller.poll(0))
    except (OSError, ValueError):
        return False


class StepView:
    """The plain view of the command line, with rank 0's output between its lines."""

    def __init__(
        self, backend: Backend, run: str, at: commands.Place, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.plain = PlainView(event_source(backend, run), at, clock=clock)
        self.backend, self.run, self.at = backend, run, at
        self.rank0 = OutputReader()
        self.read_at = float("-inf")
        self.clock, self.last_line_at = clock, clock()
        self.shown: object = None

    def launched(self, handle: Handle) -> None:
        self.rank0.secrets = self.backend.secrets_of(handle.run)
        with no_broken_pipe():
            self.plain.launched(handle)

    def seen(self, seen: Observation) -> None:
        with no_broken_pipe():
            wrote = self._say_what_rank_0_wrote(seen)
            self.plain.seen(seen)
            shown, now = (state_of(seen), seen.progress.step, seen.members), self.clock()
            if wrote or shown != self.shown:
                self.shown, self.last_line_at = shown, now
            elif now - max(self.last_line_at, self.plain.line_at) >= KEEPALIVE:
                self.last_line_at = now
                running = sum(member.phase == "running" for member in seen.members)
                at = time.time()
                more = seen.held_by or f"{running} of {counted(len(seen.members), 'member')} running"
                lasting = phrases.duration_phrase(seen, at)
                say(f"{localtime.clock(at)}  still {state_of(seen)} {lasting}: {more}")

    def say(self, text: str) -> None:
        with no_broken_pipe():
            self.plain.say(text)

    def ended(self, outcome: Outcome) -> None:
        with no_broken_pipe():
            self._say_what_rank_0_wrote(outcome.seen, last=True)
            self.plain.ended(outcome)

    def close(self) -> None:
        self.plain.close()

    def _say_what_rank_0_wrote(self, seen: Observation, last: bool = False) -> bool:
        """Return whether there was anything to say. ``last``: no call follows."""
        now = self.clock()
        if not last and (now - self.read_at < RANK0_INTERVAL or not self.rank0.is_due(now)):
            return False
        self.read_at = now
        try:
            self.rank0.progress = seen.progress.expression
            self.rank0.read(self.backend, self.run, seen.attempt)
        except AllaboardError as error:
            # The next call may be able to read it, if there is one.
            if last:
                say(f"… the output of rank 0 cannot be read: {error}")
        lines = self.rank0.new_lines(self.run, self.at, last=last)
        for line in lines:
            say(f"[rank0] {line}")
        return bool(lines)


@contextmanager
def no_broken_pipe() -> Iterator[None]:
    """A line without a reader is no error; `Step` handles the missing reader."""
    with suppress(BrokenPipeError):
        yield


def finish(
    outcome: Outcome, at: commands.Place, since_last_good: str = "", *, may_fail: bool = False
) -> None:
    """Return if the run succeeded; else end the step with the first diagnosis, what was decided, what was
    changed ``since_last_good``, and an exit code (core/docs/contract.md, Exit codes), or `MAY_PASS`.
    ``may_fail``: tell all of it, and return.
    """
    if outcome.ok:
        return
    code: int = outcome.exit_code
    lines = [f"error: {outcome.message}"]
    if outcome.diagnoses and outcome.state in (State.FAILED, State.LOST):
        first = outcome.diagnoses[0]
        passes = first.retryable and first.confidence >= SURE
        verdict = "another try may succeed" if passes else "another try would repeat it"
        if first.code == "unknown":
            verdict = "whether another try would repeat it is not known"
        if passes and outcome.state is State.FAILED:
            code = MAY_PASS
        lines.append(f"cause: {first.code}; {verdict}; {at.in_text(first.fix, outcome.run)}")
    lines += [since_last_good] if since_last_good else []
    print(shown("\n".join(lines), lines=True), file=sys.stderr, flush=True)
    if not may_fail:
        keep_reason(outcome.message)
        raise SystemExit(code)


def numbers_of(outcome: Outcome) -> Mapping[str, Any]:
    """The metrics of the run, without its speed: of its result, else of its newest progress."""
    return {name: value for name, value in outcome.metrics.items() if name != "steps_per_second"}

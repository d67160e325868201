"""Waist 2: the observation of a run. Facts only; `allaboard.runs.status` computes what they mean.

Every backend builds this one value. Times are epoch seconds of the backend's own clock (the API server's on a
cluster). Absent is None: nothing here is guessed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from allaboard.text.untrusted import read_value

PHASES = ("admitted", "scheduled", "image", "rendezvous", "first_step", "training")


class State(StrEnum):
    """The state of a run, a string (core/docs/contract.md, States)."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def is_final(self) -> bool:
        """True if the run has ended: succeeded, failed, stopped, timed out or lost."""
        return self in _FINAL


_FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.TIMED_OUT, State.LOST})


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of the job object, as the operator writes it. ``status`` is ``True``, ``False`` or
    ``Unknown``.
    """

    type: str
    status: str
    reason: str
    message: str
    since: float | None = None


DISRUPTIONS = frozenset(
    {
        "EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC",
        "TerminationByKubelet",
    }
)  # fmt: skip
"""Reasons of a pod's condition DisruptionTarget: who took it away."""


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """One member. ``phase``: pending running succeeded failed deleted unknown. ``exit_code``: of the last try
    that ended; 128+n for signal n. ``log``: the path of its output, if readable; ``said``: the message about
    its program if that could not be started; ``image``: the digest of the image that it runs, as its node
    says; ``end_reason``: the cluster's word for how that try ended (OOMKilled), or for who took it away
    (EvictionByEvictionAPI), whatever it waits for since.
    """

    group: str
    index: int
    rank: int
    phase: str
    exit_code: int | None = None
    restarts: int = 0
    log: str | None = None
    reason: str | None = None
    started: float | None = None
    ended: float | None = None
    said: str | None = None
    image: str | None = None
    end_reason: str | None = None

    @property
    def name(self) -> str:
        """The group and the index in it, ``worker-0``."""
        return f"{self.group}-{self.index}"


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop of a run: by whom, the reason, the time. ``timed_out``: because a limit had passed; ``code``: of
    the obstacle that prevented the start for too long; the run has then failed.
    """

    by: str
    reason: str
    at: float
    timed_out: bool = False
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a run. ``id`` names the follower; ``phase``: worker, deferred or detached; ``kind``:
    attached (stopped after 10 minutes without a client), orchestrated (a local run is stopped after an hour
    without a follower, one on a cluster is an orphan then) or detached.
    """

    id: str
    phase: str = "worker"
    kind: str = "attached"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that rank 0 reported. ``lost_steps``: steps repeated after restarts, over all attempts;
    ``inputs``: what it trains with, such as ``torch`` -> its version, ``data <uri>`` -> what identifies what
    it holds; ``longest_pause``: seconds, the longest time between two signs of progress. ``format``: whose
    format the progress was read from, None where the script reports it itself; ``pace_from``: the step and
    time from which its speed is counted, where none is told or ``jumped``: its process went on from a
    checkpoint, and counts the steps before that into the speed that it tells; ``expression``: the field
    ``progress`` of its job; ``files``: ``step`` or the name of a metric that was read from a file -> that
    file.
    """

    step: int | None = None
    total: int | None = None
    lost_steps: int = 0
    heartbeat: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    checkpoint: str | None = None
    best_checkpoint: str | None = None
    resumed_from: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    longest_pause: float = 0.0
    format: str | None = None
    pace_from: tuple[float, ...] = ()
    jumped: bool = False
    expression: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics that a run has written into files. ``curves``: steps and values by name; ``last``: the newest
    value of each name, None for one that is not finite; ``files``: the file that it stands in; ``step``: the
    last one, ``step_file`` where it stands, and ``total`` where that file says how many there are;
    ``formats``: whose files they are; ``nonfinite``: steps and names; ``gaps``: sentences about what is not
    read.
    """

    curves: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    last: Mapping[str, float | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None
    total: int | None = None
    step_file: str = ""
    formats: tuple[str, ...] = ()
    nonfinite: tuple[tuple[int, str], ...] = ()
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an object of the run. ``id``: what it is known by where it is kept, and
    stays known by when it happens again; empty: by what it says.
    """

    time: float | None
    type: str
    reason: str
    object: str
    message: str
    id: str = field(default="", compare=False)

    @property
    def identity(self) -> Hashable:
        """Of two with the same, one is the other again."""
        return self.id or self


def in_order(events: Iterable[Event]) -> list[Event]:
    """Oldest first, each once; those of one moment stay in the order in which they came."""
    once: dict[Event, Event] = {}
    for event in events:
        once.setdefault(event, event)
    return sorted(once.values(), key=lambda event: event.time or 0.0)


RANKS_WAIT = "ranks_wait"
"""Code of ranks that wait for one that works: no hang, as long as nobody says how long it may take."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A run that makes no progress although its members run. ``code``: of the cause, a diagnosis;
    ``text``: one sentence; ``since``: of its last sign of progress; ``blame``: the rank to look at first;
    ``member``: the one that this rank belongs to. With the code `RANKS_WAIT` it is no hang.
    """

    code: str
    text: str
    since: float
    blame: str | None = None
    member: str | None = None

    @property
    def is_hang(self) -> bool:
        """False where ranks wait for one that works: nobody ends such a run."""
        return self.code != RANKS_WAIT


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that holds up the others in each step, while the run goes on. ``factor``: its own time by that
    of the others; ``text``: one sentence; ``since``: epoch seconds, ``step``: the step then, None: not known;
    ``member``: the one that the rank belongs to; ``shows``: what its process and its machine say.
    """

    rank: int
    factor: float
    text: str
    since: float | None = None
    step: int | None = None
    member: str | None = None
    shows: str = ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason to doubt a success. ``text``: one sentence; ``member``: the one that it is about; ``quote``:
    the line that shows it, else empty; ``retryable``: another try may do better.
    """

    text: str
    member: str
    quote: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that only a follower enforces. ``left``: seconds until it passes; act at zero and below.
    ``why``: the purpose in words. ``nudge``: the operator also knows the limit and may only need a wake-up.
    ``code``: of an obstacle that prevented the start for too long; the run has then failed.
    """

    left: float
    why: str
    nudge: bool = False
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Obstacle to the start of a run. ``code``: that of a diagnosis; ``text``: one sentence; ``never``:
    waiting does not help, a person must change something; ``member``: the first affected one; ``object``,
    ``field`` and ``said``: the source, and its message. ``consequence``: mostly caused by another obstacle.
    ``certain``: no node of the cluster can ever hold it, and nothing is there that adds any.
    """

    code: str
    text: str
    never: bool = False
    member: str | None = None
    object: str = ""
    field: str = ""
    said: str = ""
    consequence: bool = False
    certain: bool = False


NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
"""Reasons of a container whose program a runtime could not start."""


@dataclass(frozen=True, slots=True)
class Try:
    """One try of a container: ``state`` waiting, running, terminated or empty (not known); ``id``: the
    container's, of one that has begun.
    """

    state: str = ""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    id: str = ""

    @property
    def failed(self) -> bool:
        """True if the try ended with an exit code other than 0."""
        return self.state == "terminated" and self.exit_code not in (None, 0)

    @property
    def not_started(self) -> bool:
        """True if a container runtime could not start its program."""
        return self.reason in NOT_STARTED or (self.exit_code == 128 and bool(self.message))


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """One container of a pod. ``role``: main (it trains), init or sidecar; ``last``: the try before this
    one."""

    name: str
    role: str = "main"
    now: Try = Try()
    last: Try | None = None
    restarts: int = 0
    image: str = ""
    image_id: str = ""

    @property
    def start_failure(self) -> Try | None:
        """The try whose program could not be started; None: there is none, or it runs now."""
        tries = () if self.now.state == "running" else (self.now, self.last)
        return next((attempt for attempt in tries if attempt is not None and attempt.not_started), None)

    @property
    def ended_try(self) -> Try | None:
        """The newest try that ended without success."""
        return next((end for end in (self.now, self.last) if end is not None and end.failed), None)


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod, or a member of this machine told as one. ``name``: what it is called towards the reader; its log
    in `Observation.tails` has the same name. ``pod``: its name in the cluster; ``restart_policy``: Always,
    OnFailure or Never; ``claims``: those that it mounts; ``facts``: what its spec says, path -> scalar as
    text (`ObjectSeen`).
    """

    name: str
    pod: str = ""
    member: str | None = None
    uid: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    node: str = ""
    created: float | None = None
    deleted: float | None = None
    conditions: tuple[Condition, ...] = ()
    containers: tuple[ContainerSeen, ...] = ()
    restart_policy: str = "Always"
    claims: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, None where the pod has none."""
        return next((c for c in self.conditions if c.type == kind), None)

    @property
    def main(self) -> ContainerSeen | None:
        """The container that trains, None where it is not known."""
        return next((c for c in self.containers if c.role == "main"), None)

    @property
    def is_over(self) -> bool:
        """True if all of its containers have ended for good. It holds no place on a node any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def finds_no_place(self) -> bool:
        """True if a scheduler has said that it finds no node for the pod."""
        placed = self.condition("PodScheduled")
        return placed is not None and placed.status == "False" and placed.reason != "SchedulingGated"

    @property
    def restarts(self) -> int:
        """Restarts of all its containers."""
        return sum(c.restarts for c in self.containers)


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node. ``taints``: ``key=value:effect``; amounts as the cluster writes them."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    cordoned: bool = False
    conditions: tuple[Condition, ...] = ()
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """Any other object. ``facts``: what its spec and status say, like ``spec.queueName`` or
    ``spec.containers[0].image`` -> the scalar as text, bounded.
    """

    kind: str
    name: str
    created: float | None = None
    conditions: tuple[Condition, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, None where the object has none."""
        return next((c for c in self.conditions if c.type == kind), None)


@dataclass(frozen=True, slots=True)
class EventSeen:
    """An event with the object that it is about, as the cluster names it; ``uid``: of that object; ``id``:
    the event's own.
    """

    kind: str
    name: str
    reason: str
    message: str
    type: str = "Normal"
    time: float | None = None
    first: float | None = None
    count: int = 1
    uid: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer of an API server to a request that it refused."""

    message: str
    reason: str = ""
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects behind an observation, in our words. None: nobody looked for that kind; ``now``: the
    time of the look; not ``is_exact``: it is only known that it was then or later.
    """

    now: float | None = None
    is_exact: bool = True
    job: ObjectSeen | None = None
    refused: Refused | None = None
    pods: tuple[PodSeen, ...] = ()
    events: tuple[EventSeen, ...] = ()
    nodes: tuple[NodeSeen, ...] | None = None
    groups: tuple[ObjectSeen, ...] | None = None
    workloads: tuple[ObjectSeen, ...] | None = None
    queues: tuple[ObjectSeen, ...] | None = None
    claims: tuple[ObjectSeen, ...] | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything seen of one run at one moment. Times are epoch seconds of the backend's clock.

    :param run: the run's name.
    :param key: the key that identifies the run.
    :param job: the job's name.
    :param attempt: the number of the attempt, from 1.
    :param generation: the number of the generation, from 1. A generation begins from scratch.
    :param interruptions: how many attempts of this generation were interrupted, and do not count.
    :param uid: identifies this attempt; None if unknown.
    :param spec_hash: the hash of the spec that the attempt was started with.
    :param owner: who follows the run.
    :param alive: whether the supervisor or the operator of the job exists; None if unknown.
    :param conditions: the conditions of the job object.
    :param members: the members of this attempt.
    :param restarts: restarts of this attempt, as ``backoff_limit`` counts them.
    :param created: when the attempt was created.
    :param started: when the job began to run.
    :param finished: when the job ended.
    :param suspended: whether the job is suspended.
    :param stop: who has stopped the run, and why.
    :param stopped: whether the stop is complete.
    :param deleted: whether the run was deleted.
    :param recorded: the outcome in the run record, when nothing else is left of the run.
    :param waiting: why the run is not admitted yet, in the words of the queue.
    :param obstacle: what keeps members from starting, admitted or not.
    :param stall: that all members run and nothing moves.
    :param slow: that one rank is slower than the others.
    :param doubts: reasons to doubt the success of a run that succeeded.
    :param phases: seconds in each phase so far; None for a phase that was not seen.
    :param queued_before: the seconds of ``admitted`` before the queue took the run back last. The clock of
        that phase does not count them.
    :param elsewhere: the members run on another cluster, where nobody here sees them, and no phase has a
        clock.
    :param progress: the progress that rank 0 reported.
    :param limit: the next limit that a follower enforces.
    :param flags: codes of what looks wrong although the run goes on.
    :param notes: sentences for people about the run.
    :param events: the events of the run; only where evidence was asked for.
    :param tails: the last lines of each member's log, by its name; only where evidence was asked for.
    :param looked: when the run was looked at; only where evidence was asked for.
    :param wrote: when each member wrote its last line, by its name and the clock of its node; only where
        evidence was asked for.
    :param measured: what files of the run say, where its job names some and evidence was asked for. It is
        never written down.
    :param handed_over: whether the result of a run that succeeded was taken.
    :param objects: the objects behind the observation; None where nobody looked. It is never written down.
    """

    run: str
    key: str = ""
    job: str = ""
    attempt: int = 1
    generation: int = 1
    interruptions: int = 0
    uid: str | None = None
    spec_hash: str | None = None
    owner: Owner | None = None
    alive: bool | None = None
    conditions: tuple[Condition, ...] = ()
    members: tuple[MemberSeen, ...] = ()
    restarts: int = 0
    created: float | None = None
    started: float | None = None
    finished: float | None = None
    suspended: bool = False
    stop: Stop | None = None
    stopped: bool = False
    deleted: bool = False
    recorded: str | None = None
    waiting: str | None = None
    obstacle: Obstacle | None = None
    stall: Stall | None = None
    slow: Slow | None = None
    doubts: tuple[Doubt, ...] = ()
    phases: Mapping[str, float | None] = field(default_factory=dict)
    queued_before: float = 0.0
    elsewhere: bool = False
    progress: Progress = Progress()
    limit: Limit | None = field(default=None, compare=False)
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    tails: Mapping[str, str] = field(default_factory=dict)
    looked: float | None = None
    wrote: Mapping[str, float] = field(default_factory=dict)
    handed_over: bool = False
    objects: Objects | None = field(default=None, compare=False, repr=False)
    measured: Measured | None = field(default=None, compare=False, repr=False)

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, None where the job object has none."""
        return next((c for c in self.conditions if c.type == kind), None)

    def holds(self, kind: str) -> bool:
        """True if the condition is True. Looked up by type: the order of conditions means nothing."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"

    @property
    def held_by(self) -> str | None:
        """Return why the run makes no progress, in one sentence; None: no known reason."""
        if self.obstacle is not None:
            return self.obstacle.text
        if self.waiting is not None or self.stall is None or self.finished is not None:
            return self.waiting
        return self.stall.text

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; without ``objects`` and ``measured``."""
        data = asdict(replace(self, objects=None, measured=None))
        del data["objects"], data["measured"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Observation:
        """The inverse of `to_dict`; unknown fields of a newer writer are left out. Raises `Unreadable`, a
        ValueError, for what is no observation, AttributeError for what is no mapping.
        """
        progress = data.get("progress") or {}
        return read_value(cls, {**data, "objects": None, "measured": None, "progress": progress})

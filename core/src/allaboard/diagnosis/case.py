"""The input of the rules: an observation with its objects and logs, the same for a cluster, a machine and a
snapshot. Values in, values out.
"""

from __future__ import annotations

import datetime as _dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from allaboard.diagnosis.finding import Evidence
from allaboard.diagnosis.logs import Log
from allaboard.runs.observation import (
    DISRUPTIONS,
    Condition,
    ContainerSeen,
    EventSeen,
    MemberSeen,
    NodeSeen,
    Objects,
    ObjectSeen,
    Observation,
    PodSeen,
    State,
    Try,
)
from allaboard.runs.status import state_of

SHOWN = 300
"""Characters of a quotation."""
SEARCHED, SHORTEST, WHOLE = 4 << 20, 3 << 10, 16
"""Characters of all logs that are searched, of each one at least, and how many of more are looked at
whole."""
MEMBER_PHASES = {
    "pending": "Pending",
    "running": "Running",
    "succeeded": "Succeeded",
    "failed": "Failed",
    "unknown": "Unknown",
    "deleted": "",
}


def quote(text: str) -> str:
    """On one line, of bounded length."""
    plain = " ".join(text.split())
    return plain if len(plain) <= SHOWN else f"{plain[: SHOWN - 3]}..."


@dataclass(frozen=True, slots=True)
class JobMessage:
    """A message of an API server or a controller about the job as a whole."""

    object: str
    field: str
    text: str
    time: float | None = None

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.object, self.field, quote(self.text))


@dataclass(frozen=True)
class Case:
    """A run as rules see it, the same for pods and for processes of one machine. ``memo``: what rules have
    found out and other rules need, too.
    """

    seen: Observation
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def state(self) -> State:
        """The state of the run."""
        return state_of(self.seen)

    @cached_property
    def objects(self) -> Objects:
        """The objects behind the run; of a run on this machine, its members as pods."""
        return self.seen.objects or _told_as_objects(self.seen)

    @property
    def is_local(self) -> bool:
        """True if there are no objects: the run is on this machine, or nobody looked."""
        return self.seen.objects is None

    @cached_property
    def job(self) -> ObjectSeen | None:
        """The job object, None where nobody read it."""
        return self.objects.job

    @property
    def job_name(self) -> str:
        """``PyTorchJob/x``, or ``job/x`` where the kind is not known."""
        if self.job is not None and self.job.kind:
            return f"{self.job.kind}/{self.job.name}"
        return f"job/{self.seen.job or self.seen.run or 'it'}"

    @cached_property
    def pods(self) -> tuple[PodSeen, ...]:
        """Those of the job; and one that is nothing but a name for each further log."""
        known = {pod.name for pod in self.objects.pods} | {pod.member for pod in self.objects.pods}
        # Who cleans up after an end takes the pods away; how their members ended is remembered.
        gone = [
            _member_as_pod(member)
            for member in (self.seen.members if not self.is_local else ())
            if member.name not in known and member.exit_code is not None
        ]
        known |= {pod.name for pod in gone}
        rest = [PodSeen(name=name, pod=name, phase="") for name in self.seen.tails if name not in known]
        return (*self.objects.pods, *gone, *rest)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """Member -> its rank."""
        return {member.name: member.rank for member in self.seen.members}

    @cached_property
    def by_name(self) -> Mapping[str, PodSeen]:
        """The pods by their names in the cluster."""
        return {pod.pod or pod.name: pod for pod in self.pods}

    @cached_property
    def nodes(self) -> Mapping[str, NodeSeen]:
        """The nodes by name; empty where nobody read them."""
        return {node.name: node for node in self.objects.nodes or ()}

    @property
    def events(self) -> tuple[EventSeen, ...]:
        """The events of all objects."""
        return self.objects.events

    @cached_property
    def _events_by_object(self) -> Mapping[str, list[EventSeen]]:
        events_by_key: dict[str, list[EventSeen]] = {}
        for event in self.events:
            for key in {event.name, event.uid} - {""}:
                events_by_key.setdefault(key, []).append(event)
        return events_by_key

    def events_of(self, pod: PodSeen) -> list[EventSeen]:
        """Those of this pod, and not of one of the same name that was there before."""
        named = self._events_by_object.get(pod.pod or pod.name, ())
        meant = named or self._events_by_object.get(pod.uid, ())
        return [e for e in meant if e.kind in ("Pod", "") and not (e.uid and pod.uid and e.uid != pod.uid)]

    @cached_property
    def logs(self) -> Mapping[str, Log]:
        """The last lines of each pod's log, by the name of the pod."""
        year = _dt.datetime.fromtimestamp(self.now or 0, _dt.UTC).year if self.now is not None else 1970
        logs = {name: text for name, text in self.seen.tails.items() if text}
        if sum(map(len, logs.values())) <= SEARCHED:
            return {name: Log(text, year) for name, text in logs.items()}
        # Of very many, those whole that ended first; of the others the ends, where a process says why.
        bad = {pod.name: at for pod in self.pods if (at := self.went_bad(pod)) is not None}
        order = sorted(logs, key=lambda name: bad.get(name, float("inf")))
        share = max(SEARCHED // len(order), SHORTEST)
        whole = SEARCHED // WHOLE
        return {name: Log(logs[name], year, whole if n < WHOLE else share) for n, name in enumerate(order)}

    def log(self, pod: PodSeen) -> Log | None:
        """The log of a pod, None where it is not known."""
        return self.logs.get(pod.name)

    def has_written(self, pod: PodSeen) -> bool:
        """True if the log of the pod is known and is not empty."""
        log = self.log(pod)
        return log is not None and bool(log.body.strip())

    @cached_property
    def now(self) -> float | None:
        """The time of the look; None where nothing tells a time."""
        return self.objects.now if self.objects.now is not None else self.seen.finished

    def age(self, since: float | None) -> float | None:
        """Seconds since then, or more."""
        return None if since is None or self.now is None else self.now - since

    def is_younger(self, since: float | None, seconds: float) -> bool:
        """True if this moment is known to be less than ``seconds`` ago."""
        age = self.age(since)
        return self.objects.is_exact and age is not None and 0 <= age < seconds

    # --- what the job asks for ---------------------------------------------------------------------------

    def spec(self, pattern: str) -> dict[str, str]:
        """The facts of the job whose paths fit."""
        wanted = re.compile(pattern)
        return {k: v for k, v in (self.job.facts if self.job is not None else {}).items() if wanted.search(k)}

    @cached_property
    def limits(self) -> frozenset[str]:
        """The resources of which the job itself states a limit."""
        return frozenset(path.rpartition("limits.")[2] for path in self.spec(r"\blimits\.[\w./-]+$"))

    @cached_property
    def expected(self) -> int:
        """The number of pods that the job is to have; the number of its pods where no member is known."""
        own = len(self.seen.members)
        return own or len(self.objects.pods)

    @cached_property
    def is_suspended(self) -> bool:
        """True if the job is suspended."""
        suspend = self.spec(r"^spec\.(runPolicy\.)?suspend$")
        return self.seen.suspended or "true" in suspend.values()

    @cached_property
    def is_over(self) -> bool:
        """True if the job has ended."""
        return self.state.is_final or any(
            c.type in ("Failed", "Succeeded", "Complete") and c.status == "True" for c in self.conditions
        )

    @property
    def succeeded(self) -> bool:
        """True if the job has succeeded."""
        return self.state is State.SUCCEEDED or any(
            c.type in ("Succeeded", "Complete", "Completed") and c.status == "True" for c in self.conditions
        )

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of the job object, else those of the run."""
        return self.job.conditions if self.job is not None and self.job.conditions else self.seen.conditions

    @cached_property
    def running(self) -> list[PodSeen]:
        """The pods that run."""
        return [pod for pod in self.pods if is_running(pod)]

    @cached_property
    def restarts(self) -> int:
        """The number of restarts of members: as the run counts them, else as their containers do."""
        return self.seen.restarts or sum(c.restarts for pod in self.pods for c in pod.containers)

    @cached_property
    def missing(self) -> int:
        """The number of pods that the job lacks."""
        return max(0, self.expected - len(self.objects.pods))

    @cached_property
    def job_messages(self) -> list[JobMessage]:
        """Messages about the job as a whole: the refusal of its request, its conditions, its events."""
        messages = []
        if (refused := self.objects.refused) is not None:
            messages.append(JobMessage(self.job_name, "submit_error", refused.message or refused.reason))
        messages += [
            JobMessage(self.job_name, f"conditions.{c.type}", c.message, c.since)
            for c in self.conditions
            if c.message and c.status != "False"
        ]
        messages += [
            JobMessage(f"{e.kind or 'job'}/{e.name}", f"events.{e.reason}", e.message, e.time)
            for e in self.events
            if e.kind not in ("Pod", "Node", "PersistentVolumeClaim") and not self._is_over_with(e)
        ]
        return messages

    def _is_over_with(self, event: EventSeen) -> bool:
        """True if all members run and became ready after the event: its trouble is over."""
        ready = self.last_ready
        runs = ready is not None and 0 < self.expected <= len(self.running)
        return runs and event.time is not None and event.time < (ready or 0.0)

    @cached_property
    def last_ready(self) -> float | None:
        """The time when the last pod became ready; None if a pod is not ready."""
        times = [c.since for pod in self.pods if (c := pod.condition("Ready")) and c.status == "True"]
        known = [t for t in times if t is not None]
        return max(known) if known and len(known) == len(self.pods) else None

    # --- when a pod went bad -----------------------------------------------------------------------------

    def went_bad(self, pod: PodSeen) -> float | None:
        """The earliest time at which something happened to it: a disruption, a try that failed, its
        deletion."""
        times = [c.since for c in pod.conditions if c.type == "DisruptionTarget" and c.status == "True"]
        times += [
            tried.ended
            for c in pod.containers
            for tried in (c.last, c.now)
            if tried is not None and tried.failed
        ]
        return min((t for t in times if t is not None), default=pod.deleted)


OUTSIDE = {129: "SIGHUP", 130: "SIGINT", 137: "SIGKILL", 143: "SIGTERM"}
"""Exit code -> the signal by which somebody else ends a process."""

_CLAUSE = re.compile(r"[.;:,()\n]")
_DENIES = re.compile(
    r"\b(not|no|nor|never|without|cannot|unable|if|unless|may|might|could|would|to avoid|prevent(s|ed|"
    r"ing)?)\b|n't\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"^\W*((is|are|was|were|has|have|had|been|will|would|do|does|did)\s+)*(not|never|no longer|disabled|"
    r"skipped|"
    r"unnecessary|impossible)\b",
    re.IGNORECASE,
)


def asserted(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The first place where a text says that something is so: a clause that denies it, or that speaks of what
    might be ("Preemption is not helpful", "no victims were preempted"), says the contrary or nothing."""
    for match in pattern.finditer(text):
        begins = [m.end() for m in _CLAUSE.finditer(text, 0, match.start())]
        end = _CLAUSE.search(text, match.end())
        before = text[begins[-1] if begins else 0 : match.start()]
        after = text[match.end() : end.start() if end is not None else len(text)]
        if not _DENIES.search(before) and not _DENIED.match(after):
            return match
    return None


def is_running(pod: PodSeen) -> bool:
    main = pod.main
    state = main.now.state if main is not None else ""
    return pod.phase == "Running" and state in ("running", "") and pod.deleted is None


def has_run(pod: PodSeen) -> bool:
    """True if the container that trains has ever run."""
    main = pod.main
    if main is None:
        return False
    never = ("StartError", "ContainerCannotRun")
    tries = [tried for tried in (main.now, main.last) if tried is not None]
    return any(
        t.state == "running" or (t.state == "terminated" and t.reason not in never) for t in tries
    ) or (main.restarts > 0)


def exit_code(pod: PodSeen) -> int | None:
    """Of its container that trains, the last try that failed."""
    ended = pod.main.ended_try if pod.main is not None else None
    return ended.exit_code if ended is not None else None


def waiting(pod: PodSeen) -> Iterator[tuple[ContainerSeen, Try]]:
    """Containers that wait, the init containers first."""
    for container in pod.containers:
        if container.now.state == "waiting":
            yield container, container.now


def pod_object(pod: PodSeen) -> str:
    return f"pod/{pod.pod}" if pod.pod else f"member/{pod.name}"


def exit_evidence(pod: PodSeen) -> tuple[Evidence, ...]:
    code = exit_code(pod)
    return () if code is None else (Evidence(pod_object(pod), "exit_code", str(code)),)


# --- a run of this machine ---------------------------------------------------------------------------------


def _told_as_objects(seen: Observation) -> Objects:
    """The members of a run in the words of pods: the rules are the same."""
    pods = tuple(_member_as_pod(member) for member in seen.members)
    events = tuple(
        EventSeen(
            kind="Pod" if any(e.object == pod.name for pod in pods) else "",
            name=e.object,
            reason=e.reason,
            message=e.message,
            type=e.type,
            time=e.time,
            first=e.time,
        )
        for e in seen.events
    )
    return Objects(now=None, pods=pods, events=events)


def _member_as_pod(member: MemberSeen) -> PodSeen:
    ended = member.exit_code is not None or member.phase in ("failed", "succeeded")
    reason, message = member.reason or "", member.said or ""
    how = member.end_reason if member.end_reason not in DISRUPTIONS else None
    word = how or ("Error" if reason == "CrashLoopBackOff" else reason)
    last = Try("terminated", word, message, member.exit_code, member.started, member.ended) if ended else None
    now = last
    if member.reason == "CrashLoopBackOff":
        now = Try("waiting", reason, message)
    elif member.phase == "running":
        now = Try("running", started=member.started)
    elif member.phase == "pending" and last is None:
        now = Try("waiting", reason, message)
    main = ContainerSeen("main", "main", now or Try(), last if last is not now else None, member.restarts)
    taken = member.end_reason if member.end_reason in DISRUPTIONS else None
    return PodSeen(
        name=member.name,
        member=member.name,
        phase=MEMBER_PHASES.get(member.phase, ""),
        reason=reason if reason in _OF_PODS else "",
        message=message if reason in _OF_PODS else "",
        conditions=(Condition("DisruptionTarget", "True", taken, "", member.ended),) if taken else (),
        containers=(main,),
    )


_OF_PODS = frozenset({"Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated", "DeadlineExceeded"})
"""Reasons that a pod has, and not a container."""

"""Queueing and scheduling: pods are absent, gated, or Pending without a node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from allaboard.diagnosis.case import Case, asserted, is_running, pod_object, quote
from allaboard.diagnosis.complaints import complained, complaints, unplaced
from allaboard.diagnosis.finding import Evidence, Finding, Need
from allaboard.diagnosis.placement import (
    amount,
    asks,
    has,
    lacking,
    may_pass,
    passes_by_words,
    reasons_of,
    selected,
    tolerates,
)
from allaboard.diagnosis.rule import Place, rule, says
from allaboard.gangs.placement import SILENT
from allaboard.gangs.requests import quantity
from allaboard.runs.observation import Condition, ObjectSeen, PodSeen

_QUEUE_NEEDS = (Need.JOB, Need.QUEUES, Need.EVENTS)
_POD_NEEDS = (Need.PODS, Need.EVENTS, Need.NODES)
QUEUE_LABELS = ("kueue.x-k8s.io/queue-name",)
SCALING = 900.0
"""Seconds for which a node that is being added is waited for."""


# --- what the queue says -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queued:
    """A message of a queue about the job: the object, the condition or event, and its text."""

    object: str
    field: str
    reason: str
    text: str
    time: float | None = None

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return (
            Evidence(
                self.object, self.field, quote(f"{self.reason}: {self.text}" if self.text else self.reason)
            ),
        )


def queue_name(case: Case) -> str:
    """Of Kueue's label, the Workload or the gang."""
    job = case.job
    for label in QUEUE_LABELS:
        if job is not None and label in job.labels:
            return job.labels[label]
    for item in (*(case.objects.workloads or ()), *(case.objects.groups or ())):
        for key in ("spec.queueName", "spec.queue"):
            if key in item.facts:
                return item.facts[key]
    return next(iter(case.spec(r"schedulingPolicy\.queue$").values()), "")


def _workload(case: Case) -> ObjectSeen | None:
    every = case.objects.workloads or ()
    return max(every, key=lambda w: w.created or 0.0, default=None)


def _admitted(case: Case) -> bool:
    workload = _workload(case)
    admitted = workload.condition("Admitted") if workload is not None else None
    return admitted is not None and admitted.status == "True"


def _started(case: Case) -> bool:
    """True if members run: a queue holds nothing back any more."""
    return bool(case.running) or case.is_over


def _queue_texts(case: Case) -> list[Queued]:
    """The reasons that queues and gangs give for a wait; empty once members run."""
    if "queued" not in case.memo:
        case.memo["queued"] = [] if _started(case) else [*_read_queue_texts(case)]
    texts: list[Queued] = case.memo["queued"]
    return texts


def _read_queue_texts(case: Case) -> Iterator[Queued]:
    workload = _workload(case)
    if workload is not None:
        for c in workload.conditions:
            if c.type in ("QuotaReserved", "Admitted") and c.status != "True":
                yield Queued(
                    f"workload/{workload.name}", f"conditions.{c.type}", c.reason, c.message, c.since
                )
    for group in case.objects.groups or ():
        if group.facts.get("status.phase", "Pending") in ("Pending", ""):
            for c in group.conditions:
                if c.status != "False":
                    yield Queued(
                        f"podgroup/{group.name}", f"conditions.{c.type}", c.reason, c.message, c.since
                    )
    # Newer states are on the object itself; what the events add are the words of queues that write no other.
    for e in case.events:
        if e.kind in ("Workload", "PodGroup") or e.reason in ("Pending", "ErrWorkloadCompose"):
            yield Queued(f"{e.kind.lower()}/{e.name}", f"events.{e.reason}", e.reason, e.message, e.time)
    for pod, text in unplaced(case):
        if _BY_QUEUE.search(text):
            yield Queued(pod_object(pod), "conditions.PodScheduled", "Unschedulable", text)
            break
    for c in case.conditions:
        if c.type == "Suspended" or "queue" in c.message.lower():
            yield Queued(case.job_name, f"conditions.{c.type}", c.reason, c.message, c.since)


_BY_QUEUE = re.compile(
    r"over quota|Insufficient quotas|quota has reached the allowable limit|does not fit in queue|"
    r"exceeds .{0,40}quota",
    re.IGNORECASE,
)
"""Messages of a scheduler with queues of its own (KAI, YuniKorn) on the pods that it holds back."""
_OVER_LIMIT = re.compile(r"[Ll]imit is ([\d.]+) .{0,80}requested ([\d.]+)")
_IMPOSSIBLE = re.compile(
    r"insufficient quota (for|in)|> maximum capacity|exceeds? (the )?max(imum)? (capacity|quota)|"
    r"unavailable in ClusterQueue|ExceedsMaxQuota|NoMatchingFlavor|"
    r"exceeds? (the )?(queue'?s? )?(capability|real ?capability)|more than (the )?queue'?s? capability",
    re.IGNORECASE,
)
_MISCONFIGURED = re.compile(
    r"(LocalQueue|ClusterQueue)\S* \S+ (doesn't exist|does not exist|not found|is inactive|is stopped)|"
    r"namespace doesn't match|doesn't match ClusterQueue selector|FlavorNotFound|"
    r"(unable|failed|cannot) to find queue|queue \S+ (not found|does not exist|is not open|is closed)|"
    r"queue.{0,40}state is (Closed|Closing|Unknown)|ClusterQueue is (inactive|stopped)|can't submit to queue",
    re.IGNORECASE,
)
_PENDING = re.compile(
    r"insufficient unused quota|queue resource quota insufficient|WaitingForQuota|couldn't assign flavors|"
    r"waiting for quota|Pending the preemption|not enough quota|overused|Workload is waiting|"
    r"waiting for .{0,40}(other workloads|admission)|not admitted|AdmissionCheck|over quota|"
    r"quota has reached the allowable limit|does not fit in queue|Insufficient quotas",
    re.IGNORECASE,
)


_PROVISIONING = re.compile(
    r"provision|\bprov\b|prov-|\bdws\b|scal(e|ing).?up|not enough resources available|\bETA\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class OpenCheck:
    """An admission check of Kueue that is not ready."""

    object: str
    name: str
    state: str
    message: str

    @property
    def is_provisioning(self) -> bool:
        """True if the check waits for nodes that are being added."""
        return _PROVISIONING.search(f"{self.name} {self.message}") is not None


def open_checks(case: Case) -> list[OpenCheck]:
    """The admission checks for which a job waits whose quota is reserved."""
    workload = _workload(case)
    reserved = workload.condition("QuotaReserved") if workload is not None else None
    if workload is None or reserved is None or reserved.status != "True" or _admitted(case):
        return []
    checks = []
    for path, state in workload.facts.items():
        match = re.fullmatch(r"(status\.admissionChecks\[\d+\])\.state", path)
        if match is not None and state == "Pending":
            name, message = (workload.facts.get(f"{match[1]}.{field}", "") for field in ("name", "message"))
            checks.append(OpenCheck(f"workload/{workload.name}", name, state, message))
    return checks


_QUEUE_IN_WORDS = re.compile(r"in queue '([^']+)'|quotaName: ([\w.-]+)|([\w.-]+) quota (?:is|has)")


def _queue_finding(case: Case, code: str, queued: Queued, summary: str, **more: object) -> Finding:
    local, whole = queue_name(case), ""
    for queue in case.objects.queues or ():
        if queue.name == local:
            whole = queue.facts.get("spec.clusterQueue", "")
    named = _QUEUE_IN_WORDS.search(queued.text)
    name = local or (next(filter(None, named.groups())) if named is not None else "")
    blame = f"queue {name}" + (f" (ClusterQueue {whole})" if whole else "") if name else queued.object
    return Finding(code, summary, queued.evidence, blame, queued.time, confidence=0.9, **more)  # type: ignore[arg-type]


def _named(case: Case) -> str:
    name = queue_name(case)
    return f"queue {name}" if name else "its queue"


@rule(
    "job_suspended",
    "The job is suspended, and no queue did it",
    means="`suspend: true` stands in the job and no queue manages it: a person or a tool suspended it.",
    looks="spec.suspend or spec.runPolicy.suspend true, condition Suspended, no queue label, no Workload.",
    fix="set suspend to false: `allaboard resume`, or the field in the job",
    needs=(Need.JOB, Need.QUEUES),
)
def job_suspended(case: Case) -> Iterator[Finding]:
    if case.job is None or not case.is_suspended or case.is_over:
        return
    if _workload(case) is not None or any(label in case.job.labels for label in QUEUE_LABELS):
        return
    if case.seen.waiting is not None or case.running:
        return
    path, value = next(iter(case.spec(r"^spec\.(runPolicy\.)?suspend$").items()), ("status", "suspended"))
    yield Finding(
        "job_suspended",
        "the job is suspended, and nobody has resumed it",
        (Evidence(case.job_name, path, value),),
        case.job_name,
        confidence=0.9,
    )


@rule(
    "queue_quota_pending",
    "Its queue has no free quota now",
    means="The queue would admit the job, and others hold what it needs: it starts when they give it back.",
    looks="Kueue: QuotaReserved=False, `insufficient unused quota for R in flavor F, N more needed`. "
    "Volcano: PodGroup "
    "Pending, `queue resource quota insufficient`, no pods.",
    fix="wait, raise the job's priority, or take another queue",
    needs=_QUEUE_NEEDS,
    retryable=True,
)
def queue_quota_pending(case: Case) -> Iterator[Finding]:
    texts = _queue_texts(case)
    if any(_is_never(case, s) or _MISCONFIGURED.search(f"{s.reason} {s.text}") for s in texts):
        return
    for check in open_checks(case):
        if not check.is_provisioning:
            queued = Queued(check.object, f"admissionChecks[{check.name}]", check.state, check.message)
            summary = (
                f"{_named(case)} has reserved its quota, and admission check {check.name} is not ready yet"
            )
            yield _queue_finding(case, "queue_quota_pending", queued, summary)
        return
    for queued in texts:
        if _PENDING.search(f"{queued.reason} {queued.text}"):
            yield _queue_finding(
                case,
                "queue_quota_pending",
                queued,
                f"{_named(case)} has no free quota now: {quote(queued.text or queued.reason)}",
            )
            return
    workload = _workload(case)
    reserved = workload.condition("QuotaReserved") if workload is not None else None
    evicted = workload.condition("Evicted") if workload is not None else None
    waits = reserved is None or reserved.status != "True"
    if workload is not None and waits and not _started(case) and not (evicted and evicted.status == "True"):
        queued = Queued(
            f"workload/{workload.name}",
            "conditions.QuotaReserved",
            reserved.reason if reserved else "Pending",
            reserved.message if reserved else "",
        )
        yield _queue_finding(case, "queue_quota_pending", queued, f"{_named(case)} has not admitted it yet")


def _is_never(case: Case, queued: Queued) -> bool:
    text = f"{queued.reason} {queued.text}"
    over = _OVER_LIMIT.search(text)
    if over is not None:
        return float(over[2].rstrip(".")) > float(over[1].rstrip("."))
    return _IMPOSSIBLE.search(text) is not None and "insufficient unused" not in text


@rule(
    "queue_quota_impossible",
    "Its queue can never hold the job",
    means="The job asks for more of a resource than the queue may ever have, or for one that the queue "
    "does not know.",
    looks="Kueue: `insufficient quota ... > maximum capacity` (without the word unused), `resource R "
    "unavailable in "
    "ClusterQueue`, reasons ExceedsMaxQuota, NoMatchingFlavor. Volcano: capability below minResources.",
    fix="shrink the job, or have the queue's nominalQuota raised or the resource added",
    needs=_QUEUE_NEEDS,
)
def queue_quota_impossible(case: Case) -> Iterator[Finding]:
    for queued in _queue_texts(case):
        if _is_never(case, queued):
            yield _queue_finding(
                case,
                "queue_quota_impossible",
                queued,
                f"{_named(case)} can never hold the job: {quote(queued.text or queued.reason)}",
            )
            return
    yield from _above_capability(case)


def _above_capability(case: Case) -> Iterator[Finding]:
    """A gang of Volcano whose minResources its queue may never have."""
    if _started(case):
        return
    queues = {q.name: q for q in case.objects.queues or ()}
    for group in case.objects.groups or ():
        queue = queues.get(group.facts.get("spec.queue", "default"))
        if queue is None:
            continue
        for path, wanted in group.facts.items():
            resource = path.removeprefix("spec.minResources.")
            most = queue.facts.get(f"spec.capability.{resource}")
            if path == resource or most is None:
                continue
            own, limit = amount(wanted), amount(most)
            if own is not None and limit is not None and own > limit:
                text = f"minResources {resource}={wanted}, capability {most}"
                evidence = (
                    Evidence(f"podgroup/{group.name}", path, wanted),
                    Evidence(f"queue/{queue.name}", f"spec.capability.{resource}", most),
                )
                yield Finding(
                    "queue_quota_impossible",
                    f"queue {queue.name} can never hold the job: {text}",
                    evidence,
                    f"queue {queue.name}",
                )
                return


@rule(
    "queue_misconfigured",
    "The queue that the job names does not work",
    means="The queue does not exist, is stopped or inactive, does not admit this namespace, or the "
    "queueing system does "
    "not manage this kind of job.",
    looks="`LocalQueue X doesn't exist`, `ClusterQueue X is inactive`, ClusterQueue Active=False; "
    "Volcano `unable to "
    "find queue`, state Closed; a queue label and no Workload at all.",
    fix="correct the job's queue label, or have the queue repaired: kubectl get localqueues,clusterqueues",
    needs=_QUEUE_NEEDS,
)
def queue_misconfigured(case: Case) -> Iterator[Finding]:
    for queued in _queue_texts(case):
        if _MISCONFIGURED.search(f"{queued.reason} {queued.text}"):
            yield _queue_finding(
                case,
                "queue_misconfigured",
                queued,
                f"{_named(case)} does not admit jobs: {quote(queued.text or queued.reason)}",
            )
            return
    if _started(case):
        return
    name = queue_name(case)
    relevant = [
        q for q in case.objects.queues or () if not name or q.name == name or q.kind == "ClusterQueue"
    ]
    for queue in relevant:
        active = queue.condition("Active")
        state = queue.facts.get("status.state", "")
        if active is not None and active.status == "False":
            queued = Queued(
                f"{queue.kind.lower()}/{queue.name}",
                "conditions.Active",
                active.reason,
                active.message,
                active.since,
            )
            yield _queue_finding(
                case,
                "queue_misconfigured",
                queued,
                f"{queue.kind} {queue.name} is not active: {quote(active.message or active.reason)}",
            )
            return
        if state in ("Closed", "Closing", "Unknown"):
            queued = Queued(f"queue/{queue.name}", "status.state", state, "")
            yield _queue_finding(
                case,
                "queue_misconfigured",
                queued,
                f"queue {queue.name} is {state.lower()}: it admits nothing",
            )
            return
    yield from _absent_queue(case, name)


def _absent_queue(case: Case, name: str) -> Iterator[Finding]:
    job = case.job
    if not name or job is None:
        return
    labelled = any(label in job.labels for label in QUEUE_LABELS)
    queues = [q for q in case.objects.queues or () if q.kind in ("LocalQueue", "Queue", "")]
    if queues and all(q.name != name for q in queues):
        there = ", ".join(sorted(q.name for q in queues)[:5])
        evidence = Evidence(case.job_name, "queue", f"{name} is not among the queues: {there}")
        yield Finding(
            "queue_misconfigured",
            f"queue {name} does not exist here; there are: {there}",
            (evidence,),
            f"queue {name}",
        )
        return
    unseen = labelled and case.objects.workloads == () and case.is_suspended and not case.objects.pods
    if unseen and not case.is_younger(job.created, 60):
        evidence = Evidence(case.job_name, "metadata.labels", f"queue {name}, and no Workload was made")
        yield Finding(
            "queue_misconfigured",
            f"Kueue has made no Workload of it (queue {name}): does it manage {job.kind}s?",
            (evidence,),
            f"queue {name}",
            confidence=0.8,
        )


@rule(
    "queue_pods_ready_timeout",
    "Its queue took it back because its members were not ready in time",
    means="Kueue admits a job and gives its quota back when not all of its pods are ready within a "
    "time; a slow image "
    "or a pod without a node is the usual reason.",
    looks="Workload Evicted with reason PodsReadyTimeout, `Exceeded the PodsReady timeout`, "
    "RequeuingLimitExceeded.",
    fix="find out what kept the member from starting (pre-pull its image), or have the timeout raised",
    needs=(*_QUEUE_NEEDS, Need.PODS),
    retryable=True,
)
def queue_pods_ready_timeout(case: Case) -> Iterator[Finding]:
    eviction = evicted(case, re.compile(r"PodsReadyTimeout|PodsReady timeout|RequeuingLimitExceeded"))
    if eviction is None or len(case.running) == case.expected > 0:
        return
    slow = _slowest(case)
    summary = "its queue took it back: its members were not ready in time"
    evidence = eviction.evidence
    if slow is not None:
        summary += f"; {slow[0]} was the slowest ({slow[1].field.partition('.')[2] or 'it never started'})"
        evidence = (*evidence, slow[1])
    blame = slow[0] if slow is not None else eviction.object
    yield Finding("queue_pods_ready_timeout", summary, evidence, blame, eviction.time)


def evicted(case: Case, pattern: re.Pattern[str]) -> Queued | None:
    """The condition or event by which Kueue took the job's place back, for a reason that fits the pattern."""
    workload = _workload(case)
    for kind in ("Evicted", "Preempted", "Requeued"):
        c: Condition | None = workload.condition(kind) if workload is not None else None
        if (
            c is not None
            and c.status == "True"
            and (pattern.search(c.reason) or asserted(pattern, c.message))
            and workload is not None
        ):
            return Queued(f"workload/{workload.name}", f"conditions.{kind}", c.reason, c.message, c.since)
    for e in reversed(case.events):
        if e.kind not in ("Pod", "Node") and (pattern.search(e.reason) or asserted(pattern, e.message)):
            return Queued(f"{e.kind.lower()}/{e.name}", f"events.{e.reason}", e.reason, e.message, e.time)
    return None


def _slowest(case: Case) -> tuple[str, Evidence] | None:
    """The pod that was not ready, and what is known of it; its pod may be gone."""
    for pod in case.objects.pods:
        if not is_running(pod) and pod.phase != "Succeeded":
            reason = next((c.now.reason for c in pod.containers if c.now.reason), pod.phase)
            return pod.name, Evidence(pod_object(pod), f"status.{reason}", pod.phase)
    begun = {e.name for e in case.events if e.kind == "Pod" and e.reason in ("Started", "Pulled")}
    slow = [
        e
        for e in case.events
        if e.kind == "Pod" and e.name not in begun and e.reason not in ("Killing", "Scheduled")
    ]
    if not slow:
        return None
    last = max(slow, key=lambda e: e.time or 0.0)
    return last.name, Evidence(f"pod/{last.name}", f"events.{last.reason}", quote(last.message))


# --- what the scheduler says -------------------------------------------------------------------------------


_CONSTRAINT = re.compile(
    r"taint|didn't match|didn't satisfy|volume node affinity|PersistentVolume's node affinity|"
    r"available volume zone|topology spread|anti-affinity|too many pods|free ports|were unschedulable|"
    r"max volume count",
    re.IGNORECASE,
)
_AFTER_ROOM = re.compile(
    r"volume node affinity|PersistentVolume's node affinity|available volume zone|topology spread|"
    r"anti-affinity rules|max volume count",
    re.IGNORECASE,
)
"""Reasons of filters that run after the one for resources (default plugins of kube-scheduler: VolumeBinding,
VolumeZone, NodeVolumeLimits, PodTopologySpread and InterPodAffinity come after NodeResourcesFit): a node that
is refused for one of these has room.
"""
_GPU = re.compile(
    r"Insufficient (\S*(?:gpu|mig-|npu|tpu|neuron|gaudi|hccl|mlu|dcu|xpu|habana|ascend)\S*)", re.IGNORECASE
)


def _gpu_resource(text: str) -> str | None:
    for reason in reasons_of(text) or {text: 1}:
        match = _GPU.search(reason)
        if match is not None:
            return match[1].rstrip(".,")
    return None


def _default_scheduled(pod: PodSeen) -> bool:
    return pod.facts.get("schedulerName", "default-scheduler") in ("", "default-scheduler")


def _is_scaling(case: Case) -> EventLike | None:
    """The event that says that nodes are being added for this job, young enough to be waited for."""
    newest = None
    for e in case.events:
        if e.reason in ("TriggeredScaleUp", "Nominated", "ProvisioningRequestAccepted", "Provisioned") or (
            e.reason == "Provisioning" or "pod should schedule on" in e.message.lower()
        ):
            newest = e if newest is None or (e.time or 0) >= (newest.time or 0) else newest
    if newest is None:
        return None
    failed = [
        e
        for e in case.events
        if e.reason
        in ("NotTriggerScaleUp", "ScaleUpFailed", "FailedScaleUp", "FailedToScaleUpGroup", "ScaleUpTimedOut")
    ]
    if any((e.time or 0) > (newest.time or 0) for e in failed):
        return None
    age = case.age(newest.time)
    if age is not None and age > SCALING:
        return None
    return EventLike(f"{newest.kind.lower()}/{newest.name}", newest.reason, newest.message, newest.time)


@dataclass(frozen=True, slots=True)
class EventLike:
    object: str
    reason: str
    message: str
    time: float | None


def _has_gang(case: Case) -> bool:
    return (
        bool(case.objects.groups)
        or any(not _default_scheduled(pod) for pod in case.objects.pods)
        or any(
            "pod-group" in k or "group-name" in k or "podgroup" in k.lower()
            for pod in case.objects.pods
            for k in pod.labels
        )
    )


def _is_never_bound(text: str) -> bool:
    return "persistentvolumeclaim" in text.lower()


@rule(
    "gang_partial_scheduling",
    "Some members run and idle while others have no place",
    means="Without a gang scheduler pods are placed one by one: some hold their GPUs and wait in the "
    "rendezvous for "
    "others that do not fit. Two such jobs can block each other for ever.",
    looks="Some pods Running, others Pending with `Insufficient nvidia.com/gpu`, default scheduler, no "
    "PodGroup.",
    fix="delete the job to give its places back, and let a gang scheduler start all of it or nothing "
    "(gang.scheduler)",
    needs=(*_POD_NEEDS, Need.QUEUES),
    retryable=True,
)
def gang_partial_scheduling(case: Case) -> Iterator[Finding]:
    waits = [(pod, text) for pod, text in unplaced(case) if _gpu_resource(text) or "Insufficient" in text]
    placed = [pod for pod in case.objects.pods if pod.node and pod.phase in ("Running", "Pending")]
    if not waits or not placed or _has_gang(case) or case.succeeded:
        return
    if any(_never_fits(case, pod, text) or _never_fit_together(case, pod, text) for pod, text in waits):
        return
    if _is_scaling(case) is not None:
        return
    pod, text = waits[0]
    yield Finding(
        "gang_partial_scheduling",
        f"{len(placed)} of {case.expected} members hold their places and idle, {pod.name} finds none",
        (Evidence(pod_object(pod), "conditions.PodScheduled", quote(text)),),
        pod.name,
        confidence=0.9,
    )


@rule(
    "gang_unschedulable",
    "The gang as a whole finds no room",
    means="A gang scheduler knows the members as one gang, and there is no room for all of them at once.",
    looks="PodGroup Unschedulable, NotEnoughResources, `n/m tasks in gang unschedulable: pod group is "
    "not ready`, "
    "`PodGroup X gets rejected`, `cannot find enough sibling pods`.",
    fix="free capacity or ask for fewer members; with too few pods look at minAvailable and at what "
    "makes the pods",
    needs=(*_POD_NEEDS, Need.QUEUES),
    retryable=True,
)
def gang_unschedulable(case: Case) -> Iterator[Finding]:
    if case.is_over:
        return
    few = re.compile(
        r"NotEnoughTasks|sibling pods|not enough (tasks|pods)|NotEnoughPods|less than minMember",
        re.IGNORECASE,
    )
    gang = re.compile(
        r"in gang unschedulable|pod group is not ready|(PodGroup|Gang) \S+ gets rejected|NotEnoughResources|"
        r"gang.{0,40}unschedulable|minAvailable|Resources were found for \d+ pods while \d+ are required",
        re.IGNORECASE,
    )
    for object_, where, text, time in _gang_texts(case):
        if "quota insufficient" in text or _MISCONFIGURED.search(text):
            continue
        too_few = few.search(text) is not None
        if not too_few and not gang.search(text):
            continue
        if not too_few and len(case.running) >= case.expected > 0:
            continue
        summary = (
            "fewer members exist than its gang needs" if too_few else "the gang as a whole finds no room"
        )
        name = next((g.name for g in case.objects.groups or ()), "")
        blame = f"PodGroup {name}" if name else object_
        yield Finding(
            "gang_unschedulable",
            f"{summary}: {quote(text)}",
            (Evidence(object_, where, quote(text)),),
            blame,
            time,
            retryable=not too_few,
            confidence=0.9,
        )
        return


def _gang_texts(case: Case) -> Iterator[tuple[str, str, str, float | None]]:
    for group in case.objects.groups or ():
        if group.facts.get("status.phase") in ("Running", "Completed"):
            continue
        for c in group.conditions:
            if c.type in ("Unschedulable", "PodGroupInitiallyScheduled", "PodGroupScheduled") or c.reason in (
                "NotEnoughResources",
                "NotEnoughTasks",
            ):
                scheduled = c.type.endswith("cheduled") and c.type != "Unschedulable"
                if c.status == ("False" if scheduled else "True"):
                    text = f"{c.reason}: {c.message}"
                    yield f"podgroup/{group.name}", f"conditions.{c.type}", text, c.since
    for pod, text in unplaced(case):
        if text:
            yield pod_object(pod), "conditions.PodScheduled", text, None
    for e in case.events:
        if (e.kind == "PodGroup" and e.type != "Normal") or (
            e.reason in ("Unschedulable", "FailedScheduling") and e.kind == "PodGroup"
        ):
            yield f"podgroup/{e.name}", f"events.{e.reason}", f"{e.reason}: {e.message}", e.time


@rule(
    "gang_scheduler_missing",
    "No scheduler serves these pods",
    means="The pods name a scheduler that is not running here: nobody looks at them, and nothing is said.",
    looks="Pods Pending with neither a PodScheduled condition nor any event; schedulerName is not "
    "default-scheduler.",
    fix="start that scheduler, or correct schedulerName (gang.scheduler): `allaboard preflight` looks for it",
    needs=_POD_NEEDS,
    after=SILENT,
)
def gang_scheduler_missing(case: Case) -> Iterator[Finding]:
    for pod, text in unplaced(case):
        if (
            text
            or _default_scheduled(pod)
            or pod.condition("PodScheduled") is not None
            or case.events_of(pod)
        ):
            continue
        if any(key.startswith("schedulingGates") for key in pod.facts):
            continue
        if any(g.facts.get("status.phase") or g.conditions for g in case.objects.groups or ()):
            continue
        if case.is_younger(pod.created, SILENT):
            continue
        name = pod.facts.get("schedulerName", "")
        yield Finding(
            "gang_scheduler_missing",
            f"no scheduler has looked at its pods: is {name!r} running?",
            (Evidence(pod_object(pod), "spec.schedulerName", name),),
            f"schedulerName {name}",
            confidence=0.9,
        )
        return


def _never_fits(case: Case, pod: PodSeen, text: str) -> str:
    """The reason why no node could ever hold the pod; empty: a node could, or the nodes are not known."""
    for resource in lacking(text):
        most = _largest(case, resource)
        asked = asks(pod, resource)
        if case.nodes and asked > most > 0:
            return f"it asks for {quantity(asked)} {resource}, and the largest node has {quantity(most)}"
    return ""


def _largest(case: Case, resource: str) -> Decimal:
    """The most that a node has of a resource."""
    return max((has(n, resource) for n in case.nodes.values()), default=Decimal(0))


_OF_A_POOL = (
    "karpenter.sh/",
    "cloud.google.com/gke-",
    "eks.amazonaws.com/",
    "kubernetes.azure.com/agentpool",
)
"""Labels of nodes that belong to a pool of a cloud, which may grow."""


def _never_fit_together(case: Case, pod: PodSeen, text: str) -> str:
    """The reason why not all members would have a place on empty nodes; empty: they would, or that is not
    known.
    """
    resource = _gpu_resource(text)
    asked = asks(pod, resource) if resource is not None else Decimal(0)
    if resource is None or not case.nodes or asked <= 0:
        return ""
    if any(e.reason in ("TriggeredScaleUp", "FailedScaleUp") for e in case.events):
        return ""  # its autoscaler adds nodes
    if any(label.startswith(_OF_A_POOL) for n in case.nodes.values() for label in n.labels):
        return ""  # more of them may be made
    sizes = {asks(other, resource) for other in case.objects.pods} - {0}
    wanting = [other for other in case.objects.pods if asks(other, resource) > 0]
    # A snapshot may hold the pods of several jobs.
    if sizes != {asked} or len(wanting) != case.expected:
        return ""
    room = sum(int(has(n, resource) // asked) for n in case.nodes.values())
    if not 0 < room < len(wanting):
        return ""
    return (
        f"{room} of its {len(wanting)} members have a place at once, even on empty nodes: it can never start"
    )


def _lacks_gpu_altogether(case: Case, text: str) -> str | None:
    """The device that no node offers, though nodes are known."""
    resource = _gpu_resource(text)
    if resource is None or not case.nodes:
        return None
    if any(e.reason in ("TriggeredScaleUp", "FailedScaleUp") for e in case.events):
        return None  # its autoscaler knows nodes that have it
    return resource if _largest(case, resource) == 0 else None


@rule(
    "insufficient_gpu",
    "No node has enough free GPUs",
    means="All nodes that could hold a member have their GPUs in use; or a member asks for more than "
    "any node has.",
    looks="All pods Pending, FailedScheduling or PodScheduled=False with `n Insufficient nvidia.com/gpu`.",
    fix="wait until others give GPUs back, or ask for fewer per member",
    fix_for_good="ask for less per member, or have larger nodes added",
    needs=_POD_NEEDS,
    retryable=True,
    signs=(
        says(
            Place.PLACEMENT,
            "cannot allocate all claims",
            sentence="{who} waits for devices: no node has as many free ones of its class as it claims",
        ),
        says(Place.PLACEMENT, "resourceclaim", sentence="{who} waits for the claim of its devices"),
        says(
            Place.PLACEMENT,
            rf"nodes are (un)?available.*{_GPU.pattern}",
            but=_AFTER_ROOM.pattern,
            sentence="{who} waits: no node has enough free GPUs ({said})",
            last=True,
        ),
    ),
)
def insufficient_gpu(case: Case) -> Iterator[Finding]:
    if _is_scaling(case) is not None:
        return
    if any(complaint.code == "insufficient_gpu" and complaint.is_sure for complaint in complaints(case)):
        yield from complained(case, "insufficient_gpu", confidence=0.85)
        return
    for pod, text in unplaced(case):
        resource = _gpu_resource(text)
        if (
            resource is None
            or _is_never_bound(text)
            or _lacks_gpu_altogether(case, text)
            or _constrained(case, pod, text)
        ):
            continue
        if _GANG_ONLY.search(text) and _has_gang(case):
            continue
        never = _never_fits(case, pod, text)
        together = _never_fit_together(case, pod, text)
        summary = (
            f"{pod.name} can never start here: {never}"
            if never
            else together or f"no node has enough free {resource} for {pod.name}"
        )
        yield Finding(
            "insufficient_gpu",
            summary,
            (Evidence(pod_object(pod), "conditions.PodScheduled", quote(text)),),
            f"scheduler: {pod.name}",
            retryable=not (never or together),
            fix="ask for no more than the nodes have together, or add nodes: what runs meanwhile holds its "
            "GPUs for nothing"
            if together
            else None,
            confidence=0.85,
        )
        return


_GANG_ONLY = re.compile(
    r"in gang unschedulable|pod group is not ready|(PodGroup|Gang) \S+ gets rejected|sibling pods"
)


@rule(
    "gpu_not_advertised",
    "Nodes have GPUs and do not offer them",
    means="No node has the resource in its allocatable: the device plugin or GPU operator is down, or "
    "the resource has "
    "another name (a MIG profile).",
    looks="`Insufficient nvidia.com/gpu` while every node lacks `nvidia.com/gpu` in "
    "status.allocatable, or has 0.",
    fix="repair the device plugin or GPU operator, or ask for the resource that the nodes offer",
    needs=_POD_NEEDS,
    signs=(
        says(
            Place.PLACEMENT,
            r"device class (?P<name>\S{1,253}) does not exist",
            sentence="{who} cannot start: device class {name} does not exist",
        ),
    ),
)
def gpu_not_advertised(case: Case) -> Iterator[Finding]:
    yield from complained(case, "gpu_not_advertised", confidence=0.9)
    for pod, text in unplaced(case):
        resource = _lacks_gpu_altogether(case, text)
        if resource is None or _is_scaling(case) is not None:
            continue
        hosts = [n for n in case.nodes.values() if _has_gpu_hardware(n.labels, n.capacity)]
        node = next(iter(hosts or case.nodes.values()))
        offered = sorted(
            {k for n in case.nodes.values() for k in n.allocatable if "/" in k and "hugepages" not in k}
        )
        instead = f"; they offer {', '.join(offered[:4])}" if offered else ""
        yield Finding(
            "gpu_not_advertised",
            f"no node offers {resource}{instead}",
            (
                Evidence(pod_object(pod), "conditions.PodScheduled", quote(text)),
                Evidence(
                    f"node/{node.name}",
                    f"status.allocatable[{resource}]",
                    node.allocatable.get(resource, "absent"),
                ),
            ),
            f"node {', '.join(n.name for n in (hosts or [node])[:3])}",
            confidence=0.9,
        )
        return


def _has_gpu_hardware(labels: Mapping[str, str], capacity: Mapping[str, str]) -> bool:
    return any("gpu" in k.lower() or "pci-10de" in k for k in labels) or any("gpu" in k for k in capacity)


def _constrained(case: Case, pod: PodSeen, text: str) -> bool:
    """True if the nodes that could hold the pod are closed to it, so that waiting for GPUs does not help."""
    reasons = reasons_of(text)
    resource = _gpu_resource(text)
    closing = sum(n for reason, n in reasons.items() if _CONSTRAINT.search(reason))
    if any(_AFTER_ROOM.search(reason) for reason in reasons):
        return True
    if not reasons:
        return bool(_CONSTRAINT.search(text)) and resource is None
    if resource is None:
        return closing > 0
    if not closing:
        return False
    if not case.nodes:
        return False
    able = [n for n in case.nodes.values() if has(n, resource) >= max(Decimal(1), asks(pod, resource))]
    if not able:
        return False
    lacking = sum(n for reason, n in reasons.items() if resource in reason)
    # Nodes without that GPU are counted as lacking it; what is left are full nodes that could.
    without = len([n for n in case.nodes.values() if has(n, resource) < 1])
    closed = [
        n
        for n in able
        if n.cordoned or any(not tolerates(pod, taint) for taint in n.taints) or not selected(pod, n.labels)
    ]
    if closed and len(closed) == len(able):
        return True
    return not closed and lacking <= without - closing


@rule(
    "unschedulable_constraints",
    "The pod's own conditions exclude the nodes that have room",
    means="A taint that is not tolerated, a selector, the zone of a volume, spread or affinity rules "
    "keep the pod off "
    "the nodes that could hold it.",
    looks="`untolerated taint(s)`, `didn't match Pod's node affinity/selector`, `volume node affinity "
    "conflict`, "
    "`topology spread`, `anti-affinity`, `Too many pods`. The reason on nodes that could otherwise fit "
    "decides, not "
    "the largest count.",
    fix="wait until others give back what they hold; else ask for less, tolerate the taint, or correct the "
    "selector",
    fix_for_good="add the toleration, correct nodeSelector or affinity, ask for less, or move the claim to "
    "the zone of the nodes",
    needs=_POD_NEEDS,
    signs=(
        says(
            Place.PLACEMENT,
            r"nodes are (un)?available",
            but="PersistentVolumeClaim",
            passes=passes_by_words,
            sentence="{who} {starts}: no node takes it: {said}",
            last=True,
        ),
    ),
)
def unschedulable_constraints(case: Case) -> Iterator[Finding]:
    if _is_scaling(case) is not None:
        return
    for pod, text in unplaced(case):
        if not text or _is_never_bound(text) or _lacks_gpu_altogether(case, text):
            continue
        reasons = reasons_of(text)
        other = [r for r in reasons if r.startswith("Insufficient") and not _GPU.search(r)]
        if (
            _constrained(case, pod, text)
            or (other and not _gpu_resource(text))
            or (_CONSTRAINT.search(text) and not _gpu_resource(text))
        ):
            closing = [r for r in reasons if _CONSTRAINT.search(r)] or list(reasons) or [text]
            yield Finding(
                "unschedulable_constraints",
                f"{pod.name} is kept off the nodes: {quote('; '.join(closing[:3]))}",
                (Evidence(pod_object(pod), "conditions.PodScheduled", quote(text)),),
                _claim_of(pod, text) or f"{pod.name} pod spec{_kept_off_by(pod, text)}",
                retryable=not _never_fits(case, pod, text) and may_pass(case, pod, text),
                confidence=0.85,
            )
            return


def _kept_off_by(pod: PodSeen, text: str) -> str:
    """The part of the spec that the words are about."""
    if (taint := re.search(r"taint\(?s?\)? \{([^:}]+)", text)) is not None:
        return f": no toleration of {taint[1]}"
    if "topology spread" in text:
        return ": topologySpreadConstraints"
    if "anti-affinity" in text:
        return ": podAntiAffinity"
    if "node affinity/selector" in text or "node selector" in text:
        keys = [k.removeprefix("nodeSelector.") for k in pod.facts if k.startswith("nodeSelector.")]
        return f": nodeSelector {', '.join(keys)}" if keys else ": nodeAffinity"
    return ""


def _claim_of(pod: PodSeen, text: str) -> str | None:
    """The claim whose volume lies where the pod cannot run."""
    if "volume" not in text or ("node affinity" not in text and "volume zone" not in text):
        return None
    return f"claim {', '.join(pod.claims)} of {pod.name}" if pod.claims else None


@rule(
    "capacity_scaling_up",
    "Nodes are being added for it",
    means="An autoscaler has taken up the pods that find no place, and new nodes come within some minutes.",
    looks="Event TriggeredScaleUp, a ProvisioningRequest, or Karpenter's Nominated, younger than 15 minutes.",
    fix="wait; `allaboard events` shows when the nodes come",
    needs=_POD_NEEDS,
    retryable=True,
)
def capacity_scaling_up(case: Case) -> Iterator[Finding]:
    check = next((c for c in open_checks(case) if c.is_provisioning), None)
    if check is not None:
        yield Finding(
            "capacity_scaling_up",
            f"its quota is reserved, and nodes are being added for it: {quote(check.message or check.state)}",
            (Evidence(check.object, f"admissionChecks[{check.name}]", quote(check.message or check.state)),),
            f"admission check {check.name}",
            confidence=0.9,
        )
        return
    scaling = _is_scaling(case)
    waits = unplaced(case)
    if scaling is None or not waits:
        return
    yield Finding(
        "capacity_scaling_up",
        f"nodes are being added for {waits[0][0].name}",
        (Evidence(scaling.object, f"events.{scaling.reason}", quote(scaling.message)),),
        "karpenter (autoscaler)" if scaling.reason == "Nominated" else "cluster-autoscaler",
        scaling.time,
        confidence=0.9,
    )

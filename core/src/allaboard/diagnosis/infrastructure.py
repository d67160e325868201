"""Infrastructure while it runs: memory, nodes, disks, and whoever takes pods away."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allaboard.diagnosis.case import (
    OUTSIDE,
    Case,
    asserted,
    exit_code,
    exit_evidence,
    has_run,
    is_running,
    pod_object,
    quote,
)
from allaboard.diagnosis.finding import Evidence, Finding, Level, Need
from allaboard.diagnosis.logs import line_pattern
from allaboard.diagnosis.queue import evicted
from allaboard.diagnosis.reading import (
    SECONDARY,
    author,
    ended_by_signal,
    from_logs,
    log_evidence,
    readings,
    told_of,
)
from allaboard.diagnosis.rule import rule
from allaboard.runs.observation import Condition, EventSeen, PodSeen, State, Try
from allaboard.runs.status import state_of
from allaboard.text.units import rfc3339

_NEEDS = (Need.PODS, Need.EVENTS)
_LOG_NEEDS = (Need.PODS, Need.LOGS)
HARDWARE_XID = frozenset(
    {46, 48, 56, 57, 58, 62, 63, 64, 74, 78, 79, 92, 94, 95, 110, 119, 120, 121, 123, 140, 143, 149}
)
"""Xids of NVIDIA's driver that tell of hardware; 13, 31, 43 and 45 are mostly faults of the program."""


def disruption(pod: PodSeen) -> Condition | None:
    c = pod.condition("DisruptionTarget")
    return c if c is not None and c.status == "True" else None


def _said(pod: PodSeen) -> str:
    c = disruption(pod)
    return f"{pod.reason} {pod.message} {c.reason if c else ''} {c.message if c else ''}"


def _disrupted(
    case: Case,
    pod: PodSeen,
    code: str,
    words_: str,
    *,
    blame: str | None = None,
    confidence: float = 0.95,
    retryable: bool | None = None,
) -> Finding:
    c = disruption(pod)
    if c is not None:
        evidence = Evidence(pod_object(pod), "conditions.DisruptionTarget", quote(f"{c.reason}: {c.message}"))
    else:
        evidence = Evidence(pod_object(pod), "status.reason", quote(f"{pod.reason}: {pod.message}"))
    at = c.since if c is not None and c.since is not None else case.went_bad(pod)
    return Finding(
        code,
        words_,
        (evidence, *exit_evidence(pod)),
        blame or pod.name,
        at,
        confidence=confidence,
        retryable=retryable,
    )


# --- memory ------------------------------------------------------------------------------------------------

_KILLED_LOG = line_pattern(
    r"exitcode\s*: -9|exited on signal 9|exits with return code = -9|\b(Exit code|code) -9\b|"
    r"\boom_kill [1-9]|"
    r"DataLoader worker \(pid.{0,60}\) (exited unexpectedly|is killed "
    r"by signal: Killed)|"
    r"worker process .{0,60}terminated.{0,40}out of memory|Out of memory: Killed process|Memory cgroup "
    r"out of memory|"
    r"received signal 9|died with <Signals\.SIGKILL: 9>|process was killed.{0,40}(memory|OOM)|"
    r"\bSIGKILL\b.{0,60}(memory|OOM)"
)
_NODE_MEMORY = line_pattern(
    r"ray\.exceptions\.OutOfMemoryError|RayTaskError\(OutOfMemoryError\)|node running low on memory|"
    r"Workers? .{0,60}killed due to memory pressure|Worker exceeded .{0,40}memory budget|"
    r"KilledWorker\b|exceeds the memory usage threshold"
)
"""Lines of frameworks that watch the memory of a host themselves: Ray's memory monitor, Dask's nanny."""
_MEMORY_ERROR = line_pattern(
    r"^MemoryError|\[?Errno 12\]|\(os error 12\)|numpy\S*\._ArrayMemoryError|std::bad_alloc|Cannot allocate "
    r"memory|DefaultCPUAllocator: (can't allocate memory|"
    r"not enough memory)"
)


@rule(
    "oom_killed",
    "It used more memory than its limit",
    means="The kernel killed the container's process, or one of its children, because the memory limit "
    "was reached. A "
    "launcher or data loader may survive its child and hide it behind exit code 1. /dev/shm counts, too.",
    looks="terminated.reason OOMKilled with exit 137; torchrun `exitcode: -9`, mpirun `exited on "
    "signal 9`, `DataLoader "
    "worker .. Killed`; node event OOMKilling. OOMKilled beside exit 143 or 0 is stale.",
    fix="raise resources.memory, or use fewer data loader workers and smaller buffers",
    needs=(*_NEEDS, Need.LOGS),
)
def oom_killed(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        for container in pod.containers:
            for tried in (container.now, container.last):
                if tried is None or tried.reason != "OOMKilled" or tried.exit_code in (0, 143):
                    continue
                if disruption(pod) is not None or pod.reason == "Evicted":
                    continue
                init = f"init container {container.name} of " if container.role == "init" else ""
                if container.role == "sidecar":
                    init = f"container {container.name} of "
                yield Finding(
                    "oom_killed",
                    f"{init}{pod.name} used more memory than there is",
                    (
                        Evidence(
                            pod_object(pod),
                            "reason"
                            if case.is_local
                            else f"containerStatuses[{container.name}].terminated.reason",
                            f"OOMKilled (exit {tried.exit_code})",
                        ),
                    ),
                    pod.name,
                    tried.ended,
                    confidence=0.95,
                    fix=f"give {container.name} more memory (pod.spec.initContainers), or have it read less"
                    if container.role == "init"
                    else None,
                )
                break
    yield from _hidden_oom(case)


def _hidden_oom(case: Case) -> Iterator[Finding]:
    on_node = [e for e in case.events if e.reason in ("OOMKilling", "SystemOOM")]
    for reading in readings(case):
        pod = reading.pod
        if disruption(pod) is not None or pod.reason == "Evicted" or exit_code(pod) == 143:
            continue
        hits = [h for h in reading.log.hits(_KILLED_LOG) if "SIGTERM" not in h.text]
        if not hits or (
            reading.speaks
            and reading.fatal is not None
            and not _KILLED_LOG.pattern.search(reading.fatal.text)
            and "ProcessExited" not in reading.fatal.type
        ):
            continue
        hit = hits[0]
        node = next((e for e in on_node if e.name == pod.node), None)
        more = (Evidence(f"node/{pod.node}", f"events.{node.reason}", quote(node.message)),) if node else ()
        who = hit.rank if hit.rank is not None else _banner_rank(reading.log.body, hit.position)
        killed = told_of(case, pod, hit.text, who)
        yield Finding(
            "oom_killed",
            f"a process of {author(case, killed, who)} was killed "
            f"(SIGKILL), most likely for its memory: {quote(hit.text)}",
            (*log_evidence(pod, hit.text), *more),
            killed.name,
            hit.time or case.went_bad(pod),
            confidence=0.85 if more else 0.75,
            from_object=False,
            who=pod.name,
        )
    for e in on_node:
        if "Memory cgroup out of memory" in e.message or e.reason == "OOMKilling":
            spoke = {reading.pod.name for reading in readings(case) if reading.fatal is not None}
            own = [
                p for p in case.pods if p.node == e.name and exit_code(p) in (1, 137) and p.name not in spoke
            ]
            for pod_on in own[:1]:
                evidence = (
                    Evidence(f"node/{e.name}", f"events.{e.reason}", quote(e.message)),
                    *exit_evidence(pod_on),
                )
                yield Finding(
                    "oom_killed",
                    f"a process on {pod_on.name}'s node was killed for its memory",
                    evidence,
                    pod_on.name,
                    e.time,
                    confidence=0.75,
                )
    yield from from_logs(
        case,
        "oom_killed",
        _NODE_MEMORY,
        "its framework ended a process because the host's memory was nearly used up",
        anywhere=True,
        confidence=0.9,
        fix="ask for more memory (resources.memory), or have fewer processes on a member",
    )
    yield from from_logs(
        case,
        "oom_killed",
        _MEMORY_ERROR,
        "it used more memory than there is",
        but=line_pattern(r"CUDA|cuda|/dev/shm|shared memory"),
        confidence=0.7,
    )


def _banner_rank(text: str, position: int) -> int | None:
    """The rank that torchrun's banner names above an exit code."""
    match = re.search(r"rank\s*: (\d{1,6})[^\n]*\n[^\n]*$", text[max(0, position - 200) : position + 1])
    return int(match[1]) if match else None


# --- evictions ---------------------------------------------------------------------------------------------

_LIMIT = re.compile(
    r"ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit|Usage of "
    r"EmptyDir volume|"
    r"Container \S+ exceeded its local ephemeral",
    re.IGNORECASE,
)


_BY_KUBELET = re.compile(
    r"low on resource|had condition|Pressure\b|ephemeral|EmptyDir|exceed|shutdown|shutting down",
    re.IGNORECASE,
)
"""Messages of a kubelet that evicts; others write events of the same reason (Karpenter, the descheduler)."""


def _evictions(case: Case) -> Iterator[tuple[PodSeen, str, float | None]]:
    """Pods that their kubelet evicted, and its words."""
    for pod in case.pods:
        if pod.reason == "Evicted":
            c = disruption(pod)
            yield pod, f"{pod.message} {c.message if c else ''}", c.since if c else case.went_bad(pod)
            continue
        evictions = [e for e in case.events_of(pod) if _is_by_kubelet(e)]
        if evictions and pod.phase != "Running":
            yield pod, evictions[-1].message, evictions[-1].time
    known = {pod.pod or pod.name for pod in case.pods}
    own = (case.job.name if case.job is not None else None) or case.seen.job or ""
    for e in case.events:
        if _is_by_kubelet(e) and e.kind == "Pod" and e.name not in known and e.name.startswith(own):
            yield PodSeen(e.name, e.name, reason="Evicted", message=e.message), e.message, e.time


def _is_by_kubelet(event: EventSeen) -> bool:
    return event.reason == "Evicted" and (not event.message or _BY_KUBELET.search(event.message) is not None)


def _is_ephemeral(pod: PodSeen, text: str) -> bool:
    if _LIMIT.search(text):
        return True
    match = re.search(r"low on resource: ephemeral-storage", text)
    usage = re.search(r"was using (\d+)(\w*), request is (\w+)", text)
    if match is None or usage is None:
        return False
    # "Far above its request": its own doing, not the node's.
    scale = {"Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20, "": 1 / 1024}
    asked = re.fullmatch(r"(\d+)(\w*)", usage[3])
    used = int(usage[1][:15]) * scale.get(usage[2], 1)
    own = int(asked[1][:15]) * scale.get(asked[2], 1) if asked else 0
    return used > 4 * own + (5 << 20)


@rule(
    "evicted_node_pressure",
    "Its node ran short and evicted it",
    means="The node ran out of memory, disk or process ids, and its kubelet evicted pods, those first "
    "that use more than "
    "they requested.",
    looks="Pod reason Evicted, `The node was low on resource: memory`, `node had condition: [DiskPressure]`.",
    fix="set requests to what it really uses, or take another node",
    needs=_NEEDS,
    retryable=True,
)
def evicted_node_pressure(case: Case) -> Iterator[Finding]:
    under_pressure = False
    for pod, text, at in _evictions(case):
        if _is_ephemeral(pod, text) or re.search(r"shutdown", text):
            continue
        under_pressure = True
        evidence = Evidence(pod_object(pod), "status.reason", quote(f"Evicted: {text}"))
        yield Finding(
            "evicted_node_pressure",
            f"{pod.name} was evicted, its node ran short: {quote(text)}",
            (evidence, *exit_evidence(pod)),
            pod.name,
            at,
            confidence=0.95,
        )
    if under_pressure or any(True for _ in _evictions(case)):
        return
    for c in case.conditions:
        if "Evicted" in c.reason and c.status == "True":
            evicted = re.search(r"\b([\w-]*worker-\d+)\b", c.message)
            evidence = Evidence(case.job_name, f"conditions.{c.type}", quote(f"{c.reason}: {c.message}"))
            yield Finding(
                "evicted_node_pressure",
                f"a member was evicted: {quote(c.message)}",
                (evidence,),
                evicted[1] if evicted else case.job_name,
                c.since,
                confidence=0.75,
            )


@rule(
    "evicted_ephemeral_storage",
    "It wrote more to its node's disk than it may",
    means="A container, an emptyDir volume or the pod as a whole passed its limit of ephemeral "
    "storage, and was evicted.",
    looks='Evicted with `ephemeral local storage usage exceeds`, `Usage of EmptyDir volume "X" exceeds '
    "the limit`.",
    fix="write to a claim, or raise limits.ephemeral-storage or the emptyDir's sizeLimit",
    needs=_NEEDS,
)
def evicted_ephemeral_storage(case: Case) -> Iterator[Finding]:
    for pod, text, at in _evictions(case):
        if _is_ephemeral(pod, text):
            evidence = Evidence(pod_object(pod), "status.reason", quote(f"Evicted: {text}"))
            yield Finding(
                "evicted_ephemeral_storage",
                f"{pod.name} was evicted, it wrote more to its node's disk than it may: {quote(text)}",
                (evidence, *exit_evidence(pod)),
                pod.name,
                at,
                confidence=0.95,
            )


# --- nodes and whoever takes pods away ---------------------------------------------------------------------

_SHUTDOWN = re.compile(
    r"imminent node shutdown|NodeShutdown|node (is )?shutting down|node shutdown", re.IGNORECASE
)
_SPOT = re.compile(
    r"aws-node-termination|impending-node-termination|SpotInterrupted|SpotInterruption|spot "
    r"interruption|spot instance|"
    r"spot-itn|scheduled-maintenance|RebalanceRecommendation|preemptible.{0,40}(preempt|terminat)|"
    r"node\.cloudprovider\.kubernetes\.io/shutdown|compute\.instances\.preempted|PreemptScheduled|"
    r"VMEventScheduled|"
    r"ScheduledEvent.{0,40}Preempt|TerminationNotice",
    re.IGNORECASE,
)


def _spot_node(case: Case, name: str) -> Evidence | None:
    """Evidence that this node was shut down or taken back."""
    node = case.nodes.get(name)
    for taint in node.taints if node is not None else ():
        if _SPOT.search(taint):
            return Evidence(f"node/{name}", "spec.taints", taint)
    for e in case.events:
        if (
            e.kind == "Node"
            and e.name == name
            and (_SPOT.search(f"{e.reason} {e.message}") or e.reason in ("Shutdown", "NodeShutdown"))
        ):
            return Evidence(f"node/{name}", f"events.{e.reason}", quote(e.message))
    return None


_STUCK_CONDITIONS = ("KernelDeadlock", "ReadonlyFilesystem", "FilesystemCorruptionProblem", "HardwareFailure")
"""Conditions of a node problem detector that tell of a node on which nothing works any more."""


def _stuck_kernel(case: Case, pod: PodSeen) -> Evidence | None:
    """Reports of a node problem detector about a pod's node, if the pod ended, or fell silent, after them."""
    node = case.nodes.get(pod.node)
    for c in node.conditions if node is not None else ():
        if c.type in _STUCK_CONDITIONS and c.status == "True" and c.since is not None:
            bad = case.went_bad(pod)
            if any(reading.pod is pod and reading.speaks for reading in readings(case)):
                continue
            if (bad is not None and bad >= c.since) or (
                is_running(pod) and _is_silent_since(case, pod, c.since)
            ):
                return Evidence(f"node/{pod.node}", f"conditions.{c.type}", quote(c.message or c.reason))
    return None


@rule(
    "node_lost",
    "Its node is gone",
    means="The node's kubelet stopped answering: it crashed, lost its network or was removed. Its pods "
    "stay Terminating "
    "and the job may wait for them for ever.",
    looks="Node Ready=Unknown `Kubelet stopped posting node status`, DisruptionTarget "
    "DeletionByTaintManager or "
    "DeletionByPodGC, event NodeNotReady, a pod whose deletionTimestamp is long over.",
    fix="force-delete the pod, or set the out-of-service taint; where its operator makes no new one, start "
    "the job again: it resumes",
    needs=(*_NEEDS, Need.NODES),
    retryable=True,
)
def node_lost(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        if _SHUTDOWN.search(_said(pod)) or _spot_node(case, pod.node) is not None or pod.phase == "Succeeded":
            continue
        c = disruption(pod)
        evidence: list[Evidence] = []
        if c is not None and c.reason in ("DeletionByTaintManager", "DeletionByPodGC"):
            evidence.append(
                Evidence(pod_object(pod), "conditions.DisruptionTarget", quote(f"{c.reason}: {c.message}"))
            )
        elif c is not None:
            continue
        if pod.reason == "NodeLost":
            evidence.append(Evidence(pod_object(pod), "status.reason", quote(f"NodeLost: {pod.message}")))
        node = case.nodes.get(pod.node)
        ready = next((n for n in node.conditions if n.type == "Ready"), None) if node is not None else None
        dead = ready is not None and (
            ready.status == "Unknown"
            or (ready.status == "False" and is_running(pod) and _is_silent_since(case, pod, ready.since))
        )
        stuck = _stuck_kernel(case, pod)
        if stuck is not None:
            evidence.append(stuck)
        if node is not None and (dead or any("node.kubernetes.io/unreachable" in t for t in node.taints)):
            words_ = f"{ready.reason}: {ready.message}" if ready is not None else "unreachable"
            evidence.append(Evidence(f"node/{pod.node}", "conditions.Ready", quote(words_)))
        lost = [
            e
            for e in case.events_of(pod)
            if e.reason in ("NodeNotReady", "TaintManagerEviction", "NodeControllerEviction")
        ]
        own = [
            e
            for e in case.events
            if e.kind == "Node"
            and e.name == pod.node
            and e.reason in ("NodeNotReady", "RemovingNode", "DeletingNode")
        ]
        stays = pod.deleted is not None and pod.phase == "Running" and (case.age(pod.deleted) or 0) > 30
        unknown = any(
            t.reason == "ContainerStatusUnknown" for k in pod.containers for t in (k.now, k.last) if t
        )
        if lost or own:
            e = (lost or own)[-1]
            if evidence or stays or unknown or exit_code(pod) is None or pod.phase == "Unknown":
                ready_since = pod.condition("Ready")
                later = (
                    ready_since is not None
                    and ready_since.status == "True"
                    and (ready_since.since or 0) > (e.time or 0)
                )
                if not later or evidence:
                    evidence.append(
                        Evidence(f"{e.kind.lower()}/{e.name}", f"events.{e.reason}", quote(e.message))
                    )
        if not evidence:
            continue
        at = [
            c.since if c is not None else None,
            ready.since if dead and ready is not None else None,
            *(e.time for e in lost),
        ]
        begun = min((t for t in at if t is not None), default=None)
        since = f"since {rfc3339(begun)}" if begun is not None else "any more"
        yield Finding(
            "node_lost",
            f"node {pod.node or 'of it'} does not answer {since}, and {pod.name} is lost with it",
            tuple(evidence),
            f"{pod.name} on node {pod.node}" if pod.node else pod.name,
            begun if begun is not None else case.went_bad(pod),
            confidence=0.95 if len(evidence) > 1 else 0.85,
        )


_TAKEN_BACK = re.compile(
    r"\b(EvictedDueTo)?Preempted\b(?! (\d+|an?|the|other|lower|pods?|victims?|workloads?)\b)", re.IGNORECASE
)
"""An event of a pod that was preempted, not of a pod that preempted others."""


@rule(
    "preempted_by_priority",
    "Something of higher priority took its place",
    means="A scheduler or queue took the job's resources for a more important one.",
    looks="DisruptionTarget PreemptionByScheduler, event Preempted or Evict, Workload Evicted with "
    "reason Preempted and the "
    "job suspended again.",
    fix="it resumes from its checkpoint when there is room; a higher priority keeps its place",
    needs=(*_NEEDS, Need.QUEUES),
    retryable=True,
)
def preempted_by_priority(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        c = disruption(pod)
        if (
            (c is not None and c.reason == "PreemptionByScheduler")
            or pod.reason == "Preempting"
            or (c is not None and "preempt" in c.message.lower() and "critical" in c.message.lower())
        ):
            yield _disrupted(
                case, pod, "preempted_by_priority", f"{pod.name} was preempted by a pod of higher priority"
            )
        elif c is None:
            for e in case.events_of(pod):
                # Volcano writes Evict; of kube-scheduler the victim's event is Preempted.
                if (
                    e.reason in ("Preempted", "Evict", "Preempting")
                    and not _SPOT.search(e.message)
                    and pod.phase != "Succeeded"
                    and not is_running(pod)
                ):
                    evidence = Evidence(pod_object(pod), f"events.{e.reason}", quote(e.message))
                    yield Finding(
                        "preempted_by_priority",
                        f"{pod.name} was preempted: {quote(e.message)}",
                        (evidence, *exit_evidence(pod)),
                        pod.name,
                        e.time,
                    )
                    break
    known = {pod.pod for pod in case.pods}
    for e in case.events:
        if (
            e.kind == "Pod"
            and e.name not in known
            and (e.reason == "Preempted" or (e.reason == "Evict" and "preempt" in e.message.lower()))
        ):
            yield Finding(
                "preempted_by_priority",
                f"{e.name} was preempted: {quote(e.message)}",
                (Evidence(f"pod/{e.name}", f"events.{e.reason}", quote(e.message)),),
                e.name,
                e.time,
            )
    if case.running or case.succeeded:
        return
    taken = evicted(case, _TAKEN_BACK)
    if taken is not None and "PodsReady" not in f"{taken.reason} {taken.text}":
        yield Finding(
            "preempted_by_priority",
            f"its queue took it back for another job: {quote(taken.text or taken.reason)}",
            taken.evidence,
            taken.object,
            taken.time,
            confidence=0.95,
        )


@rule(
    "spot_or_node_shutdown",
    "Its node was taken back or shut down",
    means="A spot or preemptible machine was reclaimed, or the node was shut down in order; the pods "
    "got a short grace.",
    looks="Pod reason Terminated `imminent node shutdown`, NodeShutdown, DisruptionTarget "
    "TerminationByKubelet with that "
    "message; taints and events of termination handlers.",
    fix="start it again: it resumes from its newest checkpoint (spot.tolerate, spot.grace)",
    needs=(*_NEEDS, Need.NODES),
    retryable=True,
)
def spot_or_node_shutdown(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        if _SHUTDOWN.search(_said(pod)):
            node = f" ({pod.node})" if pod.node else ""
            yield _disrupted(
                case, pod, "spot_or_node_shutdown", f"the node of {pod.name} was shut down{node}"
            )
            continue
        c = disruption(pod)
        broken = (
            c is not None
            or exit_code(pod) is not None
            or pod.deleted is not None
            or pod.phase in ("Failed", "Unknown")
        )
        if (
            not broken
            or (
                c is not None
                and c.reason in ("PreemptionByScheduler", "EvictionByEvictionAPI")
                and not _spot_node(case, pod.node)
            )
            or pod.reason == "Evicted"
        ):
            continue
        notice = next((e for e in case.events_of(pod) if _SPOT.search(f"{e.reason} {e.message}")), None)
        evidence = _spot_node(case, pod.node) or (
            Evidence(pod_object(pod), f"events.{notice.reason}", quote(notice.message)) if notice else None
        )
        if evidence is not None:
            yield Finding(
                "spot_or_node_shutdown",
                f"the node of {pod.name} was taken back or shut down ({pod.node})",
                (evidence, *exit_evidence(pod)),
                pod.name,
                c.since if c is not None else case.went_bad(pod),
                confidence=0.9,
            )


@rule(
    "drained_by_eviction_api",
    "Its node was drained",
    means="Somebody drained the node, or an autoscaler (Karpenter, the cluster autoscaler) or the "
    "descheduler emptied it, through the eviction API.",
    looks="DisruptionTarget EvictionByEvictionAPI; events `Evicted pod: Drifted`, `Disrupting Node: ...`, "
    "`deleting pod for node scale down`, `pod evicted ... by sigs.k8s.io/descheduler`.",
    fix="start it again: it resumes; a PodDisruptionBudget makes drains wait",
    needs=(*_NEEDS, Need.NODES),
    retryable=True,
)
def drained_by_eviction_api(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        c = disruption(pod)
        if c is not None and c.reason == "EvictionByEvictionAPI" and _spot_node(case, pod.node) is None:
            where = f" from node {pod.node}" if pod.node else ""
            yield _disrupted(case, pod, "drained_by_eviction_api", f"{pod.name} was drained{where}")
        elif c is None and pod.phase != "Succeeded" and not is_running(pod) and pod.reason != "Evicted":
            yield from _drained_by_events(case, pod)
    known = {pod.pod or pod.name for pod in case.pods}
    own = (case.job.name if case.job is not None else None) or case.seen.job or ""
    for name in dict.fromkeys(e.name for e in case.events if e.kind == "Pod"):
        if own and name not in known and name.startswith(f"{own}-"):
            yield from _drained_by_events(case, PodSeen(name, name))


_DRAINED = re.compile(
    r"^Evicted pod\b|deleting pod for node scale ?down|evicted by \S*descheduler|evicted .{0,80}descheduler|"
    r"marked for deletion .{0,40}drain|node .{0,40}(is being|was) drained|evicted (due to|because of|for) "
    r"(node )?(drain|consolidation|scale ?down|maintenance|upgrade)",
    re.IGNORECASE,
)
_DRAINING = re.compile(r"^(DisruptionTerminating|NodeDrained?|Draining|Drain|ScaleDown)$")


def _drained_by_events(case: Case, pod: PodSeen) -> Iterator[Finding]:
    """By what those say who call the eviction API and leave no condition."""
    e = _drain_event(case, pod)
    if e is None or _spot_node(case, pod.node) is not None:
        return
    where = f" from node {pod.node}" if pod.node else ""
    yield Finding(
        "drained_by_eviction_api",
        f"{pod.name} was drained{where}: {quote(e.message)}",
        (Evidence(f"{e.kind.lower()}/{e.name}", f"events.{e.reason}", quote(e.message)), *exit_evidence(pod)),
        pod.name,
        e.time if e.kind == "Pod" else case.went_bad(pod),
        confidence=0.9,
    )


def _drain_event(case: Case, pod: PodSeen) -> EventSeen | None:
    for e in case.events_of(pod):
        text = f"{e.reason} {e.message}"
        is_evicted = e.reason == "Evicted" and not _is_by_kubelet(e) and "preempt" not in text.lower()
        if (is_evicted or asserted(_DRAINED, e.message)) and not _SPOT.search(text):
            return e
    ended = case.went_bad(pod)
    if ended is None or exit_code(pod) not in OUTSIDE:
        return None
    for e in case.events:
        its_own = e.kind == "Node" and e.name == pod.node and _DRAINING.match(e.reason) is not None
        if its_own and e.time is not None and 0 <= ended - e.time <= DRAIN_SECONDS:
            return e
    return None


DRAIN_SECONDS = 900.0
"""Within which a pod goes whose node is drained."""


# --- devices -----------------------------------------------------------------------------------------------

_HARDWARE = line_pattern(
    r"uncorrectable (NVLink|ECC)|uncorrectable ECC error|GPU has fallen off the bus|GPU is lost|"
    r"double.bit ECC|"
    r"row remap(ping)? (fail|pending)|NVLink.{0,60}(error|failure|fatal)|cudaErrorECCUncorrectable|"
    r"GPU requires reset|CUDA_ERROR_ECC|hardware failure|Unable to determine the device handle for GPU|"
    r"NVSwitch.{0,60}fatal|contained (ECC )?error|GSP.{0,40}timeout|RmInitAdapter failed|CUDA_ERROR_NVLINK"
)
_XID = line_pattern(r"\bXid\b[^\n]{0,80}?[:)]\s*\d{1,3}\b|\bXid (\(PCI[^)]*\)[: ]*)?\d{1,3}\b")


@rule(
    "gpu_hardware_error",
    "A GPU is sick",
    means="Memory errors, a lost bus or NVLink, or the driver's Xid of hardware. Xid 13, 31 and 43 "
    "alone are mostly "
    "faults of the program, and so is a device-side assert.",
    looks="`uncorrectable ECC error`, `GPU has fallen off the bus`, `GPU is lost`, Xid 48, 63, 64, 74, "
    "79, 94, 95, 119; the "
    "node's allocatable GPUs below its capacity; a condition of a node problem detector.",
    fix="cordon the node, start again elsewhere from the checkpoint, have the GPU checked",
    needs=(*_LOG_NEEDS, Need.NODES, Need.EVENTS),
    retryable=True,
)
def gpu_hardware_error(case: Case) -> Iterator[Finding]:
    def where(pod: PodSeen, text: str) -> str:
        return f"{pod.name} on node {pod.node}" if pod.node else pod.name

    yield from from_logs(
        case,
        "gpu_hardware_error",
        _HARDWARE,
        "a GPU is sick",
        anywhere=True,
        running=True,
        blame=where,
        secondary=True,
        confidence=0.95,
    )
    for reading in readings(case):
        for hit in reading.log.hits(_XID):
            number = int(
                (
                    re.findall(
                        r"\d{1,3}", re.sub(r"\([^)]*\)", "", hit.text[hit.match.start() : hit.match.end()])
                    )
                    or ["0"]
                )[-1]
            )
            if number in HARDWARE_XID:
                yield Finding(
                    "gpu_hardware_error",
                    f"a GPU is sick ({author(case, reading.pod, hit.rank)}), Xid {number}",
                    log_evidence(reading.pod, hit.text),
                    where(reading.pod, ""),
                    hit.time or case.went_bad(reading.pod),
                    from_object=False,
                    who=reading.pod.name,
                )
                break
    yield from _sick_nodes(case)


_XID_EVENT = re.compile(r"xid[^\d]{0,40}(\d{1,3})", re.IGNORECASE)
_SICK_CONDITION = re.compile(r"(Gpu|GPU|Xid|NVLink|Nvlink|ECC|Ecc|NVSwitch)", re.ASCII)


def _sick_nodes(case: Case) -> Iterator[Finding]:
    """Nodes of failed members whose conditions, events or devices tell of a sick GPU."""
    for pod in case.pods:
        node = case.nodes.get(pod.node)
        if not has_run(pod) or pod.phase == "Succeeded":
            continue
        has_failed = exit_code(pod) is not None or pod.phase == "Failed"
        text = ""
        at = None
        where = "conditions"
        for c in node.conditions if node is not None else ():
            healthy = "Healthy" in c.type or c.type.endswith("Ready")
            if (
                c.type not in ("Ready",)
                and _SICK_CONDITION.search(c.type)
                and c.status == ("False" if healthy else "True")
            ):
                text, at, where = f"{c.type}: {c.message or c.reason}", c.since, f"conditions.{c.type}"
        for e in case.events:
            if e.kind == "Node" and e.name == pod.node:
                match = _XID_EVENT.search(re.sub(r"\([^)]*\)", "", f"{e.reason} {e.message}"))
                if (match is not None and int(match[1]) in HARDWARE_XID) or _HARDWARE.pattern.search(
                    e.message
                ):
                    text, at, where = f"{e.reason}: {e.message}", e.time, f"events.{e.reason}"
        log = case.log(pod)
        broken = log is not None and log.has(
            line_pattern(
                r"unspecified launch failure|CUDA error|cudaError|misaligned address|an illegal instruction"
            )
        )
        if not text and node is not None and broken:
            for resource, full in node.capacity.items():
                left = node.allocatable.get(resource, "0")
                if "gpu" in resource and full.isdigit() and left.isdigit() and int(left[:9]) < int(full[:9]):
                    text, where = f"{resource}: allocatable {left} of {full}", "status.allocatable"
        # What trains on after its node said so has got over it.
        if text and (has_failed or _is_silent_since(case, pod, at)):
            yield Finding(
                "gpu_hardware_error",
                f"a GPU of {pod.name}'s node {pod.node} is sick: {quote(text)}",
                (Evidence(f"node/{pod.node}", where, quote(text)), *exit_evidence(pod)),
                f"{pod.name} on node {pod.node}",
                at or case.went_bad(pod),
                confidence=0.85,
            )


def _is_silent_since(case: Case, pod: PodSeen, at: float | None) -> bool:
    """True if a pod that runs has written nothing since then, as far as its lines tell their times."""
    log = case.log(pod)
    if at is None or case.is_younger(at, SILENT_SECONDS):
        return False
    if log is None or not log.body.strip():
        return True
    return log.last_time is not None and log.last_time <= at + SILENT_SECONDS


SILENT_SECONDS = 60.0
"""After a node's trouble, in which a pod may still write."""

_NVML = line_pattern(
    r"Failed to initialize NVML: Unknown Error|NVMLError_Unknown|nvmlInit\S* failed: Unknown Error|"
    r"/dev/nvidia\S*: Operation not permitted"
)


@rule(
    "gpu_lost_in_container",
    "A running container lost its GPUs",
    means="A reload of the node's services took away the container's rights to its devices: what runs "
    "on goes on, what "
    "starts anew finds no GPU.",
    looks="`Failed to initialize NVML: Unknown Error`, no CUDA device, hours after a good start.",
    fix="delete the pod so that a new one is made; for good: the CDI mode or the cgroupfs driver",
    needs=_LOG_NEEDS,
    retryable=True,
)
def gpu_lost_in_container(case: Case) -> Iterator[Finding]:
    for reading in readings(case):
        hit = next(iter(reading.log.hits(_NVML, 1)), None)
        if hit is None:
            continue
        worked = (
            re.search(r"(?i)\bstep\b|\bepoch\b|\biter|it/s|loss", reading.log.body[: hit.position])
            is not None
        )
        if not worked:
            continue
        yield Finding(
            "gpu_lost_in_container",
            f"{reading.pod.name} lost its GPUs while it ran",
            log_evidence(reading.pod, hit.text),
            reading.pod.name,
            hit.time or case.went_bad(reading.pod),
            from_object=False,
            who=reading.pod.name,
        )


# --- disks -------------------------------------------------------------------------------------------------

_SHM = line_pattern(
    r"insufficient shared memory|out of shared memory|/dev/shm.{0,200}No space left|No space "
    r"left.{0,200}/dev/shm|nccl-shm-|/dev/shm/nccl|"
    r"Bus error|exitcode\s*: -7|SIGBUS|shared memory \(shm\)|torch_\d+_\d+.{0,80}No space left"
)
_DISK = line_pattern(
    r"No space left on device|Disk quota exceeded|storage_full|StorageFull|PytorchStreamWriter failed "
    r"writing|"
    r"inline_container.{0,200}unexpected pos|\[?Errno 28\]?|\[?Errno 122\]?|\(os error (28|122)\)|disk "
    r"quota|file write "
    r"failed.{0,60}space"
)


@rule(
    "disk_full",
    "The disk is full",
    means="A volume or a store has no room: often checkpoints that nobody prunes. What was written "
    "last is truncated.",
    looks="`No space left on device`, `Disk quota exceeded`, `PytorchStreamWriter failed writing "
    "file`, `unexpected pos` on a "
    "checkpoint's path.",
    fix="free space or prune checkpoints (checkpoints.keep); the newest complete checkpoint is kept",
    needs=_LOG_NEEDS,
)
def disk_full(case: Case) -> Iterator[Finding]:
    for finding in from_logs(case, "disk_full", _DISK, "the disk is full", but=_SHM, confidence=0.92):
        log = case.logs.get(finding.who or "")
        # The line that names no path may belong to shared memory that another line names.
        if log is not None and log.has(line_pattern(r"/dev/shm/|nccl-shm-|insufficient shared memory")):
            continue
        yield finding


def _is_torn_down(case: Case, pod: PodSeen) -> bool:
    """True if another member failed by itself, and not after this one: it was ended with the rest."""
    mine = case.went_bad(pod)
    others = [p for p in case.pods if p is not pod and exit_code(p) not in (None, 0, *OUTSIDE)]
    return any(mine is None or (at := case.went_bad(p)) is None or at <= mine for p in others)


def _is_taken(pod: PodSeen) -> bool:
    """True if the pod is being deleted, or gone: who does not end within its grace is killed then."""
    return pod.deleted is not None or pod.phase == ""


@rule(
    "killed_externally",
    "Somebody killed it from outside",
    means="A process ended by SIGKILL or SIGTERM, and neither memory nor an eviction explains it: a "
    "deletion, an "
    "administrator, a script. Members that are torn down after a peer look the same.",
    looks="Exit 143, 137, 130 or 129 without OOMKilled, DisruptionTarget or eviction; `Received 15 death "
    "signal`, an exception that a handler of SIGTERM raised; a deletion.",
    fix="find out who killed it (out of memory? an administrator?), then start again: it resumes",
    needs=(*_NEEDS, Need.LOGS),
    retryable=True,
)
def killed_externally(case: Case) -> Iterator[Finding]:
    stop = case.seen.stop
    if stop is not None and stop.code is None and state_of(case.seen) in (State.STOPPING, State.STOPPED):
        yield Finding(
            "killed_externally",
            f"it was stopped by {quote(stop.by)}: {quote(stop.reason)}",
            (Evidence(f"run/{case.seen.run}", "record.stop", quote(stop.reason)),),
            quote(stop.by),
            stop.at,
            confidence=0.95,
            fix="start it again under its key: it resumes from its newest checkpoint",
        )
        return
    for pod in case.pods:
        code = exit_code(pod)
        tried: Try | None = pod.main.ended_try if pod.main is not None else None
        if (
            code not in OUTSIDE
            or tried is None
            or (tried.reason in ("OOMKilled", "DeadlineExceeded") and code == 137)
            or disruption(pod) is not None
            or pod.reason in ("Evicted", "Terminated")
            or ((code != 137 or _is_taken(pod)) and _is_torn_down(case, pod))
        ):
            continue
        signal = OUTSIDE[code]
        killings = [e for e in case.events_of(pod) if e.reason in ("Killing", "ExceededGracePeriod")]
        evidence = [*exit_evidence(pod)]
        if killings:
            evidence.append(
                Evidence(pod_object(pod), f"events.{killings[-1].reason}", quote(killings[-1].message))
            )
        alone = [p for p in case.pods if exit_code(p) == code and p is not pod]
        victim = (
            code != 137
            and bool(alone)
            and case.went_bad(pod) is not None
            and min((t for p in alone if (t := case.went_bad(p)) is not None), default=float("inf"))
            < (case.went_bad(pod) or 0)
        )
        log = case.log(pod)
        lost = log is not None and log.has(SECONDARY)
        level = Level.SYMPTOM if code != 137 or lost or victim else Level.CAUSE
        yield Finding(
            "killed_externally",
            f"{pod.name} was killed from outside ({signal})",
            tuple(evidence),
            pod.name,
            case.went_bad(pod),
            level,
            0.7,
            generic=True,
        )
    for reading in readings(case):
        if exit_code(reading.pod) not in OUTSIDE and (signalled := ended_by_signal(reading)) is not None:
            yield Finding(
                "killed_externally",
                f"{reading.pod.name} was ended from outside: {quote(signalled)}",
                log_evidence(reading.pod, signalled),
                reading.pod.name,
                case.went_bad(reading.pod),
                Level.SYMPTOM,
                0.7,
                from_object=False,
                who=reading.pod.name,
            )
    hits = line_pattern(r"Received 15 death signal|Received Signals\.SIGTERM death signal|got signal: 15")
    yield from from_logs(
        case,
        "killed_externally",
        hits,
        "it was ended from outside",
        level=Level.SYMPTOM,
        confidence=0.6,
        secondary=True,
    )
    for e in case.events:
        if e.reason in ("JobDeleted", "Deleted") or "deleted by user" in e.message.lower():
            yield Finding(
                "killed_externally",
                f"somebody deleted it: {quote(e.message)}",
                (Evidence(f"{e.kind.lower()}/{e.name}", f"events.{e.reason}", quote(e.message)),),
                e.name,
                e.time,
                Level.SYMPTOM,
                0.6,
            )
    if case.job is None or case.is_over:
        return
    for pod in case.objects.pods:
        if (
            pod.deleted is not None
            and disruption(pod) is None
            and exit_code(pod) is None
            and pod.reason == ""
            and (case.age(pod.deleted) or 0) <= 30
        ):
            yield Finding(
                "killed_externally",
                f"{pod.name} is being deleted",
                (Evidence(pod_object(pod), "metadata.deletionTimestamp", "set"),),
                pod.name,
                pod.deleted,
                Level.SYMPTOM,
                0.5,
                generic=True,
            )

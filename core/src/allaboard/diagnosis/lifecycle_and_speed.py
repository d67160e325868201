"""Lifecycle and speed: jobs that do not end, that ran out of tries or time, or that run slowly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from allaboard.diagnosis.case import Case, asserted, exit_code, is_running, pod_object, quote
from allaboard.diagnosis.communication import stalled_ranks
from allaboard.diagnosis.ends import known_doubts
from allaboard.diagnosis.finding import Evidence, Finding, Level, Need
from allaboard.diagnosis.health import health_of
from allaboard.diagnosis.logs import line_pattern
from allaboard.diagnosis.reading import log_evidence, readings, told_of
from allaboard.diagnosis.rule import rule
from allaboard.runs.observation import Doubt, State
from allaboard.runs.status import DOUBTFUL

_NEEDS = (Need.PODS, Need.LOGS)
_DONE = line_pattern(
    r"training (is )?(complete|completed|done|finished|ended)|finished training|train(ing)? (job )?(has "
    r")?(succeeded|successful)|completed training|"
    r"(final|last) (model|checkpoint|weights|results?) .{0,60}(saved|written|uploaded)|(results?|model) "
    r"saved to|all epochs (done|finished|completed)|"
    r"`?max_(steps|epochs)\S* (reached|=\S+ reached)|done training|destroy_process_group\(\) was not "
    r"called|wandb: (Run history|Waiting for|Synced|Run summary)|"
    r"\ball done\b.{0,20}(time|took|total)|"
    r"training took|end of training|train_runtime|saved final|Job finished|exiting main|main\(\) returned"
)
_PROGRESS = line_pattern(
    r"\bstep\b[ =:#\[(]*\d+|\biter(ation)?\b[ =:#\[(]*\d+|\d+%\||it/s|\bit \d+/\d+|\bepoch\b.{0,20}\[ *\d+/"
)


@rule(
    "process_not_exiting",
    "The script is done and its process does not end",
    means="Training is finished and saved, and something keeps the process: a thread that is no "
    "daemon, loader workers, a logger "
    "that waits, a process group that nobody destroyed.",
    looks="The log ends with its final words, and the container still runs; warnings about "
    "`destroy_process_group`. Or it is Completed and started again, over and over: restartPolicy Always.",
    fix="destroy_process_group, close loaders and loggers, sys.exit at the end; then delete the job or "
    "let it complete",
    needs=_NEEDS,
)
def process_not_exiting(case: Case) -> Iterator[Finding]:
    if case.is_over:
        return
    yield from _started_again(case)
    for reading in readings(case):
        if not is_running(reading.pod) or reading.fatal is not None:
            continue
        hit = reading.log.last(_DONE)
        if hit is None:
            continue
        later = reading.log.last(_PROGRESS)
        if later is not None and later.position > hit.position:
            continue
        if case.is_younger(hit.time, 60) and not reading.log.has(line_pattern(r"destroy_process_group")):
            continue
        yield Finding(
            "process_not_exiting",
            f"{reading.pod.name} is done and does not end: {quote(hit.text)}",
            log_evidence(reading.pod, hit.text),
            reading.pod.name,
            hit.time,
            confidence=0.85,
            from_object=False,
            who=reading.pod.name,
        )


AGAIN = 2
"""Restarts after a good end that are no accident."""


def _started_again(case: Case) -> Iterator[Finding]:
    """Members that end well and are started again: restartPolicy Always takes no end for one."""
    for pod in case.pods:
        main = pod.main
        last = main.last if main is not None else None
        if main is None or last is None or last.exit_code != 0 or main.restarts < AGAIN:
            continue
        yield Finding(
            "process_not_exiting",
            f"{pod.name} has ended well (exit 0) and is started again, {main.restarts} times so far: its "
            f"restartPolicy takes no end for one",
            (
                Evidence(
                    pod_object(pod),
                    f"containerStatuses[{main.name}].lastState.terminated",
                    f"{last.reason or 'Completed'} (exit 0), {main.restarts} restarts",
                ),
            ),
            pod.name,
            last.ended,
            confidence=0.9,
            fix="set restartPolicy to OnFailure or Never: with Always a member that is done is started again",
        )
        return


@rule(
    "sidecar_blocks_completion",
    "A sidecar keeps the finished pod alive",
    means="The container that trains has ended well, and another one of the pod runs on: the pod, and "
    "with it the job, never "
    "completes. Native sidecars (init containers with restartPolicy Always) do not do that.",
    looks="The training container terminated with 0, istio-proxy or a log shipper running, pod Running "
    "and NotReady.",
    fix="disable the sidecar's injection for the job, or make it a native sidecar",
    needs=(Need.PODS,),
)
def sidecar_blocks_completion(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        main = pod.main
        if (
            main is None
            or main.now.state != "terminated"
            or main.now.exit_code != 0
            or pod.phase != "Running"
        ):
            continue
        native = {
            k.split("]")[0]
            for k, v in pod.facts.items()
            if k.startswith("initContainers[") and k.endswith(".restartPolicy") and v == "Always"
        }
        names = {
            v
            for k, v in pod.facts.items()
            if k.startswith("initContainers[") and k.endswith(".name") and k.split("]")[0] in native
        }
        running = [
            c
            for c in pod.containers
            if c.role == "sidecar" and c.now.state == "running" and c.name not in names
        ]
        if running:
            yield Finding(
                "sidecar_blocks_completion",
                f"{pod.name} has finished, and its container {running[0].name} keeps it alive",
                (
                    Evidence(pod_object(pod), f"containerStatuses[{main.name}].terminated", "exit 0"),
                    Evidence(pod_object(pod), f"containerStatuses[{running[0].name}].state", "running"),
                ),
                f"{running[0].name} in {pod.name}",
                main.now.ended,
                confidence=0.95,
            )
            return


_BACKOFF = re.compile(
    r"specified backoff ?limit|BackoffLimitExceeded|ReachedMaxRestarts|FailedJobs|backoff limit",
    re.IGNORECASE,
)


@rule(
    "backoff_limit_exceeded",
    "It used up its restarts",
    means="The job was restarted as often as it may. That says nothing of why; it is told alone only "
    "where pods and logs are gone.",
    looks="Failed `has reached the specified backoff limit`, BackoffLimitExceeded, ReachedMaxRestarts, "
    "FailedJobs.",
    fix="run again with clean_pods: none (cleanPodPolicy: None) to keep the evidence of the next end, and "
    "mend what it shows",
    needs=(Need.JOB, Need.EVENTS),
)
def backoff_limit_exceeded(case: Case) -> Iterator[Finding]:
    for c in case.conditions:
        if c.type in ("Failed",) and c.status == "True" and _BACKOFF.search(f"{c.reason} {c.message}"):
            own = case.is_local or case.seen.key
            words_ = (
                f"policy.backoff_limit is reached; restarts so far: {case.restarts}"
                if own
                else f"it used up its restarts: {quote(c.message or c.reason)}"
            )
            fix = (
                "look at what its members wrote (`allaboard logs`), and mend that; raise "
                "policy.backoff_limit "
                "where it is what may pass"
                if own
                else None
            )
            yield Finding(
                "backoff_limit_exceeded",
                words_,
                (
                    Evidence(
                        case.job_name if not case.is_local else f"job/{case.seen.run}",
                        "conditions.Failed",
                        quote(c.message or c.reason),
                    ),
                ),
                None if own else case.job_name,
                c.since,
                Level.WRAPPER,
                0.7,
                fix=fix,
            )
            return
    for e in case.events:
        if e.reason in ("BackoffLimitExceeded", "ReachedMaxRestarts") and case.state is not State.SUCCEEDED:
            yield Finding(
                "backoff_limit_exceeded",
                f"it used up its restarts: {quote(e.message)}",
                (Evidence(f"{e.kind.lower()}/{e.name}", f"events.{e.reason}", quote(e.message)),),
                case.job_name,
                e.time,
                Level.WRAPPER,
                0.6,
            )
            return


_DEADLINE = re.compile(
    r"longer than (the )?specified deadline|DeadlineExceeded|MaximumExecutionTimeExceeded|"
    r"active ?deadline.{0,40}(exceed|pass|reach|expire)",
    re.IGNORECASE,
)


@rule(
    "deadline_exceeded",
    "It ran out of time",
    means="The job's deadline passed and its pods were killed. If it never ran, what held it in its "
    "queue is the cause.",
    looks="`active longer than specified deadline`, reason DeadlineExceeded, Kueue "
    "MaximumExecutionTimeExceeded.",
    fix="raise policy.deadline or the clock named, or find out what held it",
    needs=(Need.JOB, Need.PODS, Need.QUEUES),
)
def deadline_exceeded(case: Case) -> Iterator[Finding]:
    texts = [
        (case.job_name, f"conditions.{c.type}", f"{c.reason}: {c.message}", c.since)
        for c in case.conditions
        if c.status == "True"
    ]
    texts += [
        (f"workload/{w.name}", f"conditions.{c.type}", f"{c.reason}: {c.message}", c.since)
        for w in case.objects.workloads or ()
        for c in w.conditions
        if c.status == "True"
    ]
    texts += [
        (pod_object(p), "status.reason", f"{p.reason}: {p.message}", None)
        for p in case.pods
        if p.reason == "DeadlineExceeded"
    ]
    texts += [
        (f"{e.kind.lower()}/{e.name}", f"events.{e.reason}", f"{e.reason}: {e.message}", e.time)
        for e in case.events
        if e.kind not in ("Pod", "Node")
    ]
    for object_, where, text, at in texts:
        if (
            asserted(_DEADLINE, text)
            and "PodsReady" not in text
            and "context deadline" not in text
            and "ProgressDeadline" not in text
        ):
            yield Finding(
                "deadline_exceeded",
                f"it ran out of time: {quote(text)}",
                (Evidence(object_, where, quote(text)),),
                case.job_name,
                at,
                Level.CAUSE,
                0.9,
            )
            return


def _working(case: Case) -> bool:
    return bool(case.running) and not case.is_over and all(exit_code(pod) is None for pod in case.pods)


@rule(
    "slow_socket_fallback",
    "NCCL talks over plain TCP on nodes that have RDMA",
    means="The pods do not get at the fast network: no rdma resource, no libibverbs in the image, no "
    "IPC_LOCK. It works, slowly.",
    looks="NCCL `NET/IB : No device found`, `Using network Socket`, `Failed to open libibverbs` on "
    "nodes with RDMA.",
    fix="request the rdma resource, IPC_LOCK and an image with libibverbs; hostNetwork or Multus where "
    "the cluster needs it",
    needs=(*_NEEDS, Need.NODES),
)
def slow_socket_fallback(case: Case) -> Iterator[Finding]:
    if not _working(case):
        return
    pattern = line_pattern(
        r"NET/IB\s*: No device found|Using network Socket|Failed to open libibverbs|"
        r"NET/OFI.{0,80}(unable|no provider|not found)|Initialized NET plugin Socket|via NET/Socket|"
        r"NET/Socket\s*: Using|NCCL_IB_DISABLE set by environment to 1|"
        r"network device '\S+' is not available, please use"
    )
    for reading in readings(case):
        hits = reading.log.hits(pattern)
        if not hits or not any(
            any(
                word in h.text
                for word in ("Socket", "libibverbs", "No device", "IB_DISABLE", "network device")
            )
            for h in hits
        ):
            continue
        # A launcher prints what its workers say, whose nodes count.
        workers = case.objects.pods if reading.pod.member == "launcher-0" else (reading.pod,)
        nodes = [node for pod in workers if (node := case.nodes.get(pod.node)) is not None]
        rdma = next((label for node in nodes if (label := _rdma_of(node.labels, node.allocatable))), "")
        telling = any("libibverbs" in h.text or "No device" in h.text for h in hits)
        if case.nodes and not rdma:
            continue
        if not case.nodes and not telling:
            continue
        if len(case.objects.pods) < 2 and not case.is_local:
            continue
        more = (Evidence(f"node/{reading.pod.node}", "labels or allocatable", rdma),) if rdma else ()
        yield Finding(
            "slow_socket_fallback",
            f"NCCL uses plain TCP{' though the nodes have RDMA' if rdma else ''}: {quote(hits[0].text)}",
            (*log_evidence(reading.pod, hits[0].text), *more),
            f"CR spec ({case.job_name}): no {rdma.partition('=')[0] or 'RDMA'} for {reading.pod.name}",
            hits[0].time,
            Level.CAUSE,
            0.85 if rdma else 0.65,
            from_object=False,
            who=reading.pod.name,
        )
        return


_RDMA = re.compile(r"rdma|infiniband|\bhca|mlnx|efa\b|\broce", re.IGNORECASE)


def _rdma_of(labels: Mapping[str, str], allocatable: Mapping[str, str]) -> str:
    for name, value in [*labels.items(), *allocatable.items()]:
        if _RDMA.search(name) and value not in ("false", "0"):
            return f"{name}={value}"
    return ""


_TOPOLOGY_LABELS = re.compile(
    r"rack|block|spine|superpod|leaf|topology-domain|network-topology|/zone$|switch|capacity-block|hostgroup",
    re.IGNORECASE,
)
_TYPE_LABELS = (
    "node.kubernetes.io/instance-type",
    "nvidia.com/gpu.product",
    "beta.kubernetes.io/instance-type",
)


@rule(
    "slow_topology_placement",
    "The members are spread over the network",
    means="It runs, and the pods lie in several racks, blocks or zones, or one is on another type of "
    "node: each step waits for "
    "the slowest link or GPU.",
    looks="Node labels of racks, blocks or zones that differ; `GPU Direct RDMA Disabled`, PXB or SYS "
    "paths; throughput far below "
    "what was expected.",
    fix="ask for topology-aware placement (gang.topology), and pack the job into one block",
    needs=(*_NEEDS, Need.NODES),
    retryable=True,
)
def slow_topology_placement(case: Case) -> Iterator[Finding]:
    if not _working(case) or len(case.running) < 2:
        return
    nodes = {pod.name: case.nodes[pod.node] for pod in case.running if pod.node in case.nodes}
    if len({n.name for n in nodes.values()}) < 2:
        return
    for label in _TYPE_LABELS:
        types = {name: node.labels.get(label, "") for name, node in nodes.items() if "launcher" not in name}
        known = [v for v in types.values() if v]
        if len(set(known)) > 1:
            odd = min(types, key=lambda name: known.count(types[name]))
            yield _placed(
                case,
                nodes[odd].name,
                label,
                types[odd],
                f"{odd} runs on another type of node than the others",
                odd,
                0.8,
            )
            return
    names = sorted(
        {k for n in nodes.values() for k in n.labels if _TOPOLOGY_LABELS.search(k) and "hostname" not in k}
    )
    slow = line_pattern(r"GPU Direct RDMA Disabled|\bPXB\b|\bSYS\b|\bPHB\b")
    hit = next((h for reading in readings(case) for h in reading.log.hits(slow, 1)), None)
    for label in names:
        places = {node.labels.get(label, "") for node in nodes.values()} - {""}
        if len(places) > 1:
            widest = (
                f"its members lie in {len(places)} of {label.rpartition('/')[2]}: "
                f"{', '.join(sorted(places)[:4])}"
            )
            node = next(iter(nodes.values()))
            yield _placed(
                case,
                node.name,
                label,
                node.labels.get(label, ""),
                widest,
                "placement",
                0.7 if hit or len(places) == len(nodes) else 0.65,
            )
            return
    if hit is not None and "Disabled" in hit.text:
        reading = next(o for o in readings(case) if o.log.has(slow))
        yield Finding(
            "slow_topology_placement",
            f"its GPUs talk the long way: {quote(hit.text)}",
            log_evidence(reading.pod, hit.text),
            "placement",
            hit.time,
            Level.CAUSE,
            0.6,
            from_object=False,
        )


def _placed(
    case: Case, node: str, label: str, value: str, summary: str, blame: str, confidence: float
) -> Finding:
    named = f"placement: {blame} on {node}" if blame != "placement" else "placement"
    return Finding(
        "slow_topology_placement",
        summary,
        (Evidence(f"node/{node}", f"labels[{label}]", value),),
        named,
        None,
        Level.CAUSE,
        confidence,
    )


@rule(
    "rank_stalled",
    "One rank does not come, and the others wait for it",
    means="Every rank but one has entered a collective, and waits there for the one that is somewhere else: "
    "in a loader, a lock, a download, a computation of its own. Nothing fails before the collective does.",
    looks="All members run, none writes a line any more, and the stacks of the waiting ranks end in "
    "torch.distributed while that of one does not. A run that makes no progress is asked for them by itself, "
    "on a cluster by exec (`allaboard cluster --rbac stacks`) or by a file (`policy.hang.ask`); else it says "
    "which ranks are silent. Over NCCL torch's flight recorder tells who has not entered a collective. "
    "Horovod's stall inspector names the missing ranks.",
    fix="look at the line where that rank is; give what it waits for a time limit; policy.hang.then: restart "
    "starts all members again by itself",
    needs=(Need.STACKS,),
    retryable=True,
)
def rank_stalled(case: Case) -> Iterator[Finding]:
    # Stacks are asked for of a run that is live and silent: `allaboard.diagnosis.stacks` says it. Horovod's
    # stall inspector knows by itself who does not come.
    for reading in readings(case):
        stalled = stalled_ranks(reading.log)
        if stalled is None or stalled[2]:
            continue
        hit, missing, _ = stalled
        late = [told_of(case, reading.pod, "", rank) for rank in sorted(missing)]
        names = (
            ", ".join(dict.fromkeys(pod.name for pod in late if pod is not reading.pod)) or reading.pod.name
        )
        ranks = ", ".join(map(str, sorted(missing)[:8]))
        yield Finding(
            "rank_stalled",
            f"{'ranks' if len(missing) > 1 else 'rank'} {ranks} ({names}) "
            f"{'do' if len(missing) > 1 else 'does'} not come, and the others wait",
            (
                *log_evidence(reading.pod, hit.text),
                Evidence(f"log/{reading.pod.name}", "missing ranks", ranks),
            ),
            names,
            hit.time,
            confidence=0.85,
            from_object=False,
            who=reading.pod.name,
        )
        return


@rule(
    "ranks_wait",
    "The others wait for a rank that works",
    means="Every rank but one has entered a collective, and waits there for the one that computes, reads "
    "or downloads: it evaluates, saves, compiles or prepares data. Such a run goes on when that rank is "
    "done. An endless loop looks the same.",
    looks="The stacks of the waiting ranks end in torch.distributed. That of the other rank does not, and "
    "its process, one of its threads or a program that it has started computes or reads; or the run has "
    "been silent for as long before, and went on. Nobody ends such a run, unless `policy.hang.after` says "
    "how long it may be silent.",
    fix="wait until that rank is done; where it never is, look at the line where it is, and give "
    "policy.hang.after a time",
    needs=(Need.STACKS,),
    retryable=True,
)
def ranks_wait(case: Case) -> Iterator[Finding]:
    # Stacks are asked for of a run that is live and silent: `allaboard.diagnosis.stacks` says it.
    yield from ()


@rule(
    "slow_rank",
    "One rank is slower than the others",
    means="All ranks meet in each step, so that all are as slow as the slowest one: its data come later, its "
    "CPU or GPU is shared, throttled or broken, or it does something that the others do not.",
    looks="In step after step all other ranks wait in a collective for the same one. On one machine the "
    "ranks of gloo are asked for it every half minute to two minutes while they train, and by `allaboard "
    "doctor`; on a cluster `allaboard doctor` looks at all of them 40 times. "
    "What happens in a few steps, such as an evaluation on rank 0, is not told.",
    fix="look at the line where that rank is, and at what else its machine and its device do",
    needs=(Need.STACKS,),
    retryable=True,
)
def slow_rank(case: Case) -> Iterator[Finding]:
    # Arrivals are asked for of a run that is live: `allaboard.diagnosis.stragglers` says it.
    yield from ()


@rule(
    "run_newer",
    "A newer allaboard made the run",
    means="The files of the run are of a version that this allaboard does not know. Nothing is wrong with "
    "the run: it may go on, and the allaboard that made it shows, follows and stops it.",
    looks="`was made by a newer allaboard`, and the flag `run_newer` in `list --json`.",
    fix="use the allaboard that made it, or a later one: `pip install -U allaboard`, or the environment in "
    "which it was started",
    needs=(Need.JOB,),
)
def run_newer(case: Case) -> Iterator[Finding]:
    if "run_newer" in case.seen.flags:
        message = next((e.message for e in case.seen.events if e.reason == "run_newer"), "")
        yield Finding(
            "run_newer",
            "a newer allaboard made this run, and this one cannot read it",
            (Evidence(f"run/{case.seen.run}", "flags", message or "run_newer"),),
            level=Level.REFUSED,
            confidence=1.0,
        )


def _doubts(case: Case) -> tuple[Doubt, ...]:
    if "doubts" not in case.memo:
        case.memo["doubts"] = known_doubts(case.seen)
    known: tuple[Doubt, ...] = case.memo["doubts"]
    return known


@rule(
    "success_doubtful",
    "It ended with exit code 0, and did not do its work",
    means="The operator's word stands: the run has succeeded. Its end contradicts that: a signal or an "
    "eviction before the last step, a step below the total that nothing explains, a traceback or an error as "
    "last words, or a member that failed, or still waited for others that had ended.",
    looks="`Received SIGTERM` at step 40 of 100 and exit 0; a shell that goes on after a command failed "
    "(`;`, `|| true`, `set +e`, a pipe into tee); `try` around all of the script. `Early stopping`, "
    "`max_time reached` and the like explain a step below the total.",
    fix="look at its last lines (`allaboard logs`), and let the script end with another exit code where it "
    "fails: `set -eo pipefail` in a shell, `sys.exit(1)` after a signal",
    needs=(Need.JOB, Need.PODS, Need.LOGS),
)
def success_doubtful(case: Case) -> Iterator[Finding]:
    if not case.succeeded:
        return
    for doubt in _doubts(case):
        quoted = ((doubt.quote, f"log/{doubt.member}", "text"),) if doubt.quote else ()
        place = (doubt.text, f"run/{case.seen.run}" if case.seen.run else case.job_name, "success")
        yield Finding(
            DOUBTFUL,
            doubt.text,
            tuple(Evidence(where, field, quote(text)) for text, where, field in (quoted or (place,))),
            doubt.member,
            confidence=0.9,
            retryable=doubt.retryable,
        )


@rule(
    "healthy",
    "Nothing is wrong",
    means="The job makes progress, or has succeeded. Warnings that are older than its start have passed.",
    looks="All members run, and the last step is dated and recent by the clock of its member or node; no "
    "device of its nodes is sick, no failure repeats as a warning, no figure is NaN; nothing else on these "
    "pages fits.",
    fix="nothing to do",
    needs=(Need.JOB, Need.PODS),
)
def healthy(case: Case) -> Iterator[Finding]:
    if case.succeeded and _doubts(case):
        return
    if case.succeeded:
        done = next(
            (
                c
                for c in case.conditions
                if c.type in ("Succeeded", "Complete", "Completed") and c.status == "True"
            ),
            None,
        )
        text = (done.message or done.reason or done.type) if done is not None else "succeeded"
        yield Finding(
            "healthy",
            "it has succeeded",
            (Evidence(case.job_name, f"conditions.{done.type if done else 'state'}", quote(text)),),
            None,
            None,
            Level.NOISE,
            0.95,
        )
        return
    if case.is_over or not case.objects.pods:
        return
    good = [pod for pod in case.objects.pods if is_running(pod) or pod.phase == "Succeeded"]
    if (
        len(good) < len(case.objects.pods)
        or len(good) < case.expected
        or case.seen.waiting is not None
        or case.seen.obstacle is not None
    ):
        return
    health = health_of(case)
    if health.sign is not None and health.is_healthy:
        yield Finding(
            "healthy",
            f"it makes progress: {health.sign.text}",
            (health.sign.evidence,),
            None,
            None,
            Level.NOISE,
            0.9,
            from_object=False,
        )


@rule(
    "unknown",
    "Nothing explains it",
    means="No rule found evidence. A guess would send you the wrong way.",
    looks="A failure or a wait, and neither pods, events, nodes nor logs tell why; or they are gone.",
    fix="collect logs of containers before (`kubectl logs --previous`), events and the nodes' state: "
    "`allaboard snapshot`",
    needs=(),
)
def unknown(case: Case) -> Iterator[Finding]:
    # It is what is said when no other rule has anything to say: `allaboard.diagnosis.ranking` says it.
    yield from ()

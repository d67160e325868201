"""From an observation to its diagnoses: every rule looks, and what is found is ranked.

The ranking is the principle of the first failing rank: the first failure in time wins over the loudest, the
last and the one that the job names. What an object says outranks what a log suggests at about the same
time, what is specific outranks what is generic; a victim's words, a launcher's wrapper and what the rest
of a gang says when a peer went away never come first while a cause lies below. Without evidence the
diagnosis is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from allaboard.diagnosis.case import OUTSIDE, Case, exit_code, exit_evidence, quote
from allaboard.diagnosis.causes import all_rules
from allaboard.diagnosis.ends import known_doubts
from allaboard.diagnosis.finding import Diagnosis, Evidence, Finding, Level
from allaboard.diagnosis.health import health_of
from allaboard.diagnosis.reading import readings
from allaboard.diagnosis.rule import RULES
from allaboard.runs.observation import Observation, PodSeen, State
from allaboard.runs.status import CLOCK_IDLE, DOUBTFUL, state_of
from allaboard.text.redaction import redact_text

MOST_ALSO = 8
"""Other findings that a diagnosis mentions."""
MOST = 6
"""Diagnoses that are told."""
NEAR = 45.0
"""Seconds within which an object's word outranks a log's, and a specific cause a generic one."""

_EXPLAINS: Mapping[str, frozenset[str]] = {
    winner: frozenset(losers.split())
    for winner, losers in (
        ("gang_partial_scheduling", "insufficient_gpu unschedulable_constraints rendezvous_timeout"),
        ("gang_unschedulable", "insufficient_gpu unschedulable_constraints"),
        (
            "capacity_scaling_up",
            "insufficient_gpu unschedulable_constraints gang_partial_scheduling gang_unschedulable",
        ),
        (
            "resource_quota_exceeded",
            "gang_partial_scheduling gang_unschedulable operator_not_running insufficient_gpu",
        ),
        ("queue_quota_pending", "gang_unschedulable operator_not_running job_suspended"),
        (
            "queue_quota_impossible",
            "gang_unschedulable operator_not_running job_suspended queue_quota_pending",
        ),
        ("queue_misconfigured", "gang_unschedulable operator_not_running job_suspended queue_quota_pending"),
        (
            "queue_pods_ready_timeout",
            "queue_quota_pending queue_misconfigured job_suspended preempted_by_priority "
            "killed_externally image_pull_network",
        ),
        ("preempted_by_priority", "queue_quota_pending job_suspended killed_externally node_lost"),
        (
            "spot_or_node_shutdown",
            "node_lost drained_by_eviction_api killed_externally evicted_node_pressure",
        ),
        ("drained_by_eviction_api", "node_lost killed_externally oom_killed"),
        ("node_lost", "killed_externally"),
        ("evicted_ephemeral_storage", "evicted_node_pressure killed_externally oom_killed disk_full"),
        ("evicted_node_pressure", "killed_externally oom_killed"),
        ("deadline_exceeded", "killed_externally backoff_limit_exceeded"),
        ("oom_killed", "killed_externally native_crash"),
        ("kubelet_admission_rejected", "gpu_hardware_error"),
        ("gpu_hardware_error", "native_crash cuda_driver_mismatch device_side_assert"),
        ("device_side_assert", "native_crash"),
        ("shm_too_small", "disk_full native_crash oom_killed"),
        ("exec_format_error", "bad_entrypoint native_crash"),
        ("cuda_driver_mismatch", "gpu_runtime_broken bad_entrypoint"),
        ("gpu_runtime_broken", "bad_entrypoint missing_dependency pod_sandbox_failed"),
        ("gpu_lost_in_container", "gpu_runtime_broken"),
        ("wrong_container_name", "tf_config_error"),
        ("tf_config_error", "missing_dependency"),
        *(
            (
                code,
                "missing_dependency bad_entrypoint data_access_denied data_not_found python_exception "
                "data_endpoint_unreachable data_throttled filesystem_permission_denied "
                "master_unreachable_dns master_unreachable_network checkpoint_corrupt",
            )
            for code in (
                "code_not_fetched",
                "code_host_unreachable",
                "packages_not_installed",
                "package_index_unreachable",
            )
        ),
        ("clock_skew", "data_access_denied data_endpoint_unreachable image_pull_network"),
        ("data_throttled", "data_endpoint_unreachable data_access_denied"),
        ("data_access_denied", "data_not_found"),
        ("duplicate_gpu_mapping", "nccl_interface network_fabric_error"),
        ("checkpoint_write_nfs_lock", "filesystem_permission_denied disk_full"),
        ("disk_full", "checkpoint_corrupt"),
        ("checkpoint_taken_over", "checkpoint_corrupt checkpoint_mismatch"),
        ("mpi_ssh_auth", "mpi_ssh_unreachable filesystem_permission_denied"),
        ("mpi_ssh_unreachable", "master_unreachable_dns master_unreachable_network missing_dependency"),
        ("container_config_missing", "volume_mount_failed bad_entrypoint"),
        ("sidecar_blocks_completion", "process_not_exiting"),
        ("process_not_exiting", "slow_socket_fallback slow_topology_placement"),
        ("slow_socket_fallback", "slow_topology_placement"),
        (
            "partial_restart_hang",
            "oom_killed python_exception native_crash killed_externally nccl_timeout cuda_oom node_lost "
            "rendezvous_timeout port_in_use master_unreachable_network gpu_hardware_error "
            "network_fabric_error",
        ),
        ("collective_mismatch", "nccl_timeout"),
        ("world_size_mismatch", "rendezvous_timeout duplicate_gpu_mapping"),
    )
}
"""Cause -> what it explains where both are found: neighbours that see the same trouble from further away."""


def diagnose(seen: Observation, *, thorough: bool = False) -> tuple[Diagnosis, ...]:
    """All diagnoses, the cause first. Empty for a healthy run; with ``thorough`` it is `healthy` or
    `unknown` that is told then, and a run that goes on is looked at as closely as one that failed: what
    the doctor does when it is asked.
    """
    state = state_of(seen)
    first = [
        *(_stall_diagnoses(seen, state) if seen.stall is not None else ()),
        *(_slow_diagnoses(seen, state) if seen.slow is not None else ()),
        *_ending_diagnoses(seen, state, thorough),
        *(_obstacle_diagnoses(seen) if not state.is_final else ()),
    ]
    warnings = [*_warning_diagnoses(seen)]
    if thorough:
        diagnoses = _thorough(seen, state, [*first, *warnings])
    else:
        diagnoses = [*first, *(d for d in warnings if d.code not in {f.code for f in first})]
    return tuple(_without_secrets(d) for d in diagnoses)


def _thorough(seen: Observation, state: State, reported: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The findings of the rules and the diagnoses of the backend, as one list."""
    if state in (State.FAILED, State.LOST, State.TIMED_OUT) and seen.objects is None:
        return [*reported]
    examined = examine(seen)
    top = examined[0]
    never = seen.obstacle is not None and seen.obstacle.never
    agreed = seen.obstacle is not None and (top.code, top.retryable) == (seen.obstacle.code, False)
    if seen.obstacle is not None and never and not agreed and top.code in _NO_ROOM:
        # One verdict with `status`, which has looked at every node.
        verdict = [d for d in reported if d.code == seen.obstacle.code and not d.retryable]
        codes = {d.code for d in verdict}
        return [
            *verdict,
            *(d for d in (*examined, *reported) if d.code not in codes and d.code not in _NO_ROOM),
        ]
    if (seen.stall is not None or seen.slow is not None) and top.code in ("healthy", "unknown") and reported:
        return [*reported]
    if top.code in ("healthy", "unknown"):
        own = [d for d in reported if d.code != "unknown"]
        return (
            [*own, *(examined if not own else ())] if not own or top.code == "unknown" else [*examined, *own]
        )
    return [
        *examined,
        *(d for d in reported if d.code not in {f.code for f in examined} and d.code != "unknown"),
    ]


def examine(seen: Observation) -> list[Diagnosis]:
    """The diagnoses of the rules, the cause first; `healthy` or `unknown` if no rule finds a cause."""
    case = Case(seen)
    findings = [finding for entry in all_rules().values() for finding in entry.check(case)]
    return _told(case, findings)


def _told(case: Case, findings: Sequence[Finding]) -> list[Diagnosis]:
    refused = [f for f in findings if f.level is Level.REFUSED]
    if refused:
        findings = refused
    elif case.objects.refused is not None and not case.objects.pods:
        return [_unknown(case, findings)]
    good = [f for f in findings if f.code == "healthy"]
    bad = _without_explained([f for f in findings if f.code != "healthy"])
    causes = [f for f in bad if f.level is not Level.NOISE]
    doubted = [f for f in findings if f.code == DOUBTFUL]
    if case.succeeded and (good or doubted):
        return [_diagnosis((doubted or good)[0], doubted)]
    if not causes:
        return (
            [_diagnosis(good[0], [f for f in bad if f.confidence >= 0.5])] if good else [_no_cause(case, bad)]
        )
    order = sorted(causes, key=lambda f: _rank(case, f))
    if all(f.level is Level.WRAPPER for f in causes) and _says_nothing(case):
        return [_unknown(case, bad), *(_diagnosis(f, ()) for f in order[:1])]
    firsts: dict[str, Finding] = {}
    for finding in order:
        firsts.setdefault(finding.code, finding)
    top, *others = firsts.values()
    rest = [f for f in (*order[1:], *(f for f in findings if f not in order)) if f.code != "healthy"]
    beside = [f for f in others if f.level in (Level.REFUSED, Level.CAUSE, Level.WRAPPER)][: MOST - 1]
    codes = {f.code for f in beside}
    rest = [f for f in rest if f.code not in codes]
    return [_diagnosis(top, rest), *(_diagnosis(f, ()) for f in beside)]


_NO_ROOM = ("gang_partial_scheduling", "gang_unschedulable", "insufficient_gpu", "unschedulable_constraints")
"""Codes of a gang that has no room; an obstacle may know that it never will."""
_OF_OTHER_IMAGES = (
    "nccl_init_mismatch", "nccl_timeout", "native_crash", "python_exception", "rendezvous_timeout",
    "network_fabric_error", "nccl_interface",
)  # fmt: skip
"""Codes that members with different images may cause; beside any other cause the images do not matter."""
_MEETINGS = ("master_unreachable_dns", "master_unreachable_network", "rendezvous_timeout")


def _without_explained(findings: Sequence[Finding]) -> list[Finding]:
    """Without what another finding explains: a neighbour of the same trouble, or the generic word for it."""
    codes = {f.code for f in findings if f.level in (Level.REFUSED, Level.CAUSE)}
    explained = {loser for code in codes for loser in _EXPLAINS.get(code, ())}
    if any(f.level is Level.CAUSE and f.code not in _OF_OTHER_IMAGES for f in findings):
        explained.add("nccl_init_mismatch")
    specific = {f.who or f.blame for f in findings if f.level is Level.CAUSE and not f.generic}
    # Of an exception that says only that it did not meet the others.
    specific |= {
        f.who for f in findings if f.level is Level.SYMPTOM and f.code in _MEETINGS and f.who is not None
    }
    return [
        f for f in findings if f.code not in explained and not (f.generic and (f.who or f.blame) in specific)
    ]


def _rank(case: Case, finding: Finding) -> tuple[float, float, float, int]:
    """The smaller, the nearer to the root."""
    at = finding.at
    if at is None:
        # A state that holds now, as a pod that never ran: it was there before anything else could fail.
        begun = case.job.created if case.job is not None else None
        at = (begun or 0.0) if finding.from_object and not finding.generic else float("inf")
    at += NEAR if finding.generic else -NEAR if finding.from_object else 0.0
    return finding.level, at, -finding.confidence, [*RULES].index(finding.code)


def _diagnosis(finding: Finding, others: Sequence[Finding]) -> Diagnosis:
    cause = RULES[finding.code].cause
    retryable = cause.retryable if finding.retryable is None else finding.retryable
    also: dict[str, None] = {}
    for other in others:
        if (
            other is not finding
            and other.evidence
            and (other.code != finding.code or other.blame != finding.blame)
        ):
            also.setdefault(f"{other.code}: {quote(other.evidence[0].text)} ({other.evidence[0].object})")
    return Diagnosis(
        code=finding.code,
        summary=finding.summary,
        evidence=finding.evidence,
        blame=finding.blame,
        retryable=retryable,
        fix=finding.fix or cause.fix_of(retryable),
        confidence=round(finding.confidence, 2),
        also=tuple(also)[:MOST_ALSO],
    )


def _no_cause(case: Case, others: Sequence[Finding]) -> Diagnosis:
    """The diagnosis without a cause: of a run that trains it says what was looked at."""
    unknown = _unknown(case, others)
    if case.state is not State.RUNNING:
        return unknown
    health = health_of(case)
    text = f"it runs, and nothing shows that it goes well: {'; '.join(health.reasons)}"
    return replace(unknown, summary=quote(text), evidence=health.evidence)


def _unknown(case: Case, others: Sequence[Finding]) -> Diagnosis:
    failed = next((c for c in case.conditions if c.type == "Failed" and c.status == "True"), None)
    refused = case.objects.refused
    evidence: tuple[Evidence, ...]
    blame = None
    if refused is not None:
        text, evidence = refused.message, (Evidence(case.job_name, "submit_error", quote(refused.message)),)
    elif failed is not None:
        text, evidence = (
            failed.message or failed.reason,
            (Evidence(case.job_name, "conditions.Failed", quote(failed.message)),),
        )
    else:
        text, evidence = "nothing that was looked at explains it", ()
    if (first := _first_that_failed(case)) is not None:
        blame, evidence = first.name, (*evidence, *exit_evidence(first))
        if refused is None and case.has_written(first):
            text = f"{first.name} exited with {exit_code(first)}, and nothing that it wrote says why"
    also = tuple(
        dict.fromkeys(
            f"{f.code}: {quote(f.evidence[0].text)} ({f.evidence[0].object})" for f in others if f.evidence
        )
    )
    run = case.seen.run
    commands = f"`allaboard logs {run}` and `allaboard events {run}` show what was seen"
    fix = commands if run else RULES["unknown"].cause.fix
    return Diagnosis("unknown", quote(text), evidence, blame, False, fix, 0.5, also[:MOST_ALSO])


def _says_nothing(case: Case) -> bool:
    """True if the first member that failed, once, has written lines that no rule knows."""
    first = _first_that_failed(case)
    return first is not None and case.has_written(first) and not case.restarts


def _first_that_failed(case: Case) -> PodSeen | None:
    """Of the members that ended by themselves with another exit code than 0."""
    failed = [p for p in case.pods if exit_code(p) not in (None, 0, *OUTSIDE)]
    return min(failed, key=lambda p: case.went_bad(p) or float("inf"), default=None)


def _without_secrets(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis without secrets: its quotes go into logs, pages, metadata and messages to other
    people.
    """
    quoted = tuple(replace(e, text=redact_text(e.text)) for e in diagnosis.evidence)
    also = tuple(redact_text(text) for text in diagnosis.also)
    return replace(diagnosis, summary=redact_text(diagnosis.summary), evidence=quoted, also=also)


def _ending_diagnoses(seen: Observation, state: State, thorough: bool = False) -> Iterator[Diagnosis]:
    if state is State.LOST:
        yield _diagnose_lost(seen)
        return
    if state is State.TIMED_OUT and not (thorough and seen.objects is not None):
        yield _diagnose_timeout(seen)
        return
    if state is State.SUCCEEDED and not thorough and known_doubts(seen):
        yield from (d for d in examine(seen) if d.code == DOUBTFUL)
        return
    if state is not State.FAILED or _ended_by_stall(seen):
        return
    if seen.stop is not None and seen.stop.code is not None:
        if seen.stop.code in STALLS:
            yield _diagnose_stall(seen.stop.code, seen.stop.reason, f"run/{seen.run}", "record.stop", None)
        else:
            yield _diagnose_never_started(seen, seen.stop.code, seen.stop.reason)
        return
    if not (thorough and seen.objects is not None):
        yield from (d for d in examine(seen) if d.code != "healthy")


STALLS = frozenset({"rank_stalled", "collective_mismatch"})
"""Codes of a run that makes no progress (`allaboard.follow.stall`)."""


def _ended_by_stall(seen: Observation) -> bool:
    """True if the run was ended because it made no progress (policy.hang)."""
    failed = seen.condition("Failed")
    return failed is not None and seen.stall is not None and failed.reason == seen.stall.code


def _stall_diagnoses(seen: Observation, state: State) -> Iterator[Diagnosis]:
    """The reason why a run makes no progress, by the stacks of its ranks, while it lasts, or at its end."""
    stall = seen.stall
    goes_on = state in (State.RUNNING, State.RESTARTING)
    if stall is None or (not goes_on and not _ended_by_stall(seen)):
        return
    yield _diagnose_stall(stall.code, stall.text, f"run/{seen.run}", "stacks", stall.blame)


def _slow_diagnoses(seen: Observation, state: State) -> Iterator[Diagnosis]:
    """The rank that holds up the others, while the run goes on."""
    if seen.slow is not None and seen.stall is None and state is State.RUNNING:
        from allaboard.diagnosis.stragglers import diagnose_slow

        yield diagnose_slow(seen.slow, seen.run)


def _diagnose_stall(code: str, text: str, where: str, field: str, blame: str | None) -> Diagnosis:
    cause = all_rules()[code].cause
    return Diagnosis(
        code, text, (Evidence(where, field, text),), blame, cause.retryable, cause.fix, 0.8 if blame else 0.7
    )


_BY_LABEL = (
    "raise its label kueue.x-k8s.io/max-exec-time-seconds (metadata.labels), or have it train in parts"
)
"""The remedy if a queue ends a job by the time that the job itself gives it."""


def _fix_of(code: str, passes: bool, run: str) -> str:
    """The remedy for an obstacle that keeps a run from starting."""
    if code == "deadline_exceeded":
        return _BY_LABEL
    known = all_rules().get(code)
    if known is None or code == "unknown":
        return f"look at what the cluster says: `allaboard events {run}`"
    return known.cause.fix_of(passes)


def _obstacle_diagnoses(seen: Observation) -> Iterator[Diagnosis]:
    obstacle = seen.obstacle
    if obstacle is None:
        return
    fix = _fix_of(obstacle.code, not obstacle.never, seen.run)
    evidence = [Evidence(obstacle.object, obstacle.field, obstacle.said)] if obstacle.said else []
    if obstacle.field.startswith("initContainerStatuses"):
        case = Case(seen)
        last = [
            text
            for reading in readings(case)
            if reading.pod.member == obstacle.member
            for text in reading.log.last_lines[-1:]
        ]
        evidence += [Evidence(f"log/{obstacle.member}", "text", text) for text in last]
        if obstacle.code == "oom_killed":
            fix = "give that init container more memory (pod.spec.initContainers), or have it read less"
        else:
            fix = f"its log says why: `allaboard logs {seen.run} {obstacle.member}`"
    yield Diagnosis(obstacle.code, obstacle.text, tuple(evidence), obstacle.member, not obstacle.never, fix)


def _diagnose_never_started(seen: Observation, code: str, text: str) -> Diagnosis:
    """It was ended because it could never start."""
    fix = _fix_of(code, False, seen.run)
    return Diagnosis(code, text, (Evidence(f"run/{seen.run}", "record.stop", text),), None, False, fix)


def _diagnose_lost(seen: Observation) -> Diagnosis:
    note = seen.notes[-1] if seen.notes else "no process runs it any more"
    return Diagnosis(
        "killed_externally",
        f"what ran it is gone without a word: {note}",
        (Evidence(f"run/{seen.run}", "supervisor", note),),
        f"run/{seen.run}",
        True,
        "start it again under the same key: it resumes from its newest complete checkpoint",
    )


def _diagnose_timeout(seen: Observation) -> Diagnosis:
    failed = seen.condition("Failed")
    reason = seen.stop.reason if seen.stop is not None else "it ran out of time"
    text, where = (failed.message, "conditions.Failed") if failed else (reason, "record.stop")
    return Diagnosis(
        "deadline_exceeded",
        text,
        (Evidence(f"job/{seen.run}", where, text),),
        f"run/{seen.run}",
        False,
        "raise policy.deadline or the clock named, or find out what held it",
    )


_FLAGS = {
    CLOCK_IDLE: (
        "policy.clocks.training has not begun: the script has reported no step",
        "report steps (allaboard.inside.report), or bound the run with policy.deadline",
    ),
    "home_unusable": (
        "the disk of ALLABOARD_HOME could not be written for a while: what is shown may be behind",
        "free space there, or set ALLABOARD_HOME to another disk for the next run",
    ),
    "run_damaged": (
        "the files of the run cannot be read: nothing more is known of it",
        "restore the file that is named, or remove what is left of the run with `allaboard delete`",
    ),
    "checkpoint_elsewhere": (
        "a checkpoint was reported outside the run's own folder; it is not taken",
        "save to the folder that ALLABOARD_CHECKPOINTS names (allaboard.inside.Checkpointer does)",
    ),
    "checkpoints_not_copied": (
        "the newest checkpoint could not be copied to checkpoints.uri; it is tried again",
        "the events say why (`allaboard events`), on a cluster the log of rank 0: credentials, the bucket, "
        "the network, the disk",
    ),
    "too_many_metrics": (
        "the script reports more metrics than are kept",
        "report the ones that matter; write the rest to a file",
    ),
    "report_too_large": (
        "the script reported more than one line may hold; it is not kept",
        "report the numbers that matter; write the rest to a file",
    ),
    "nan_loss": ("the loss is not a finite number", "lower the learning rate, or skip the batch"),
    "checkpoint_corrupt": (
        "the newest checkpoint could not be read; the one before was used",
        "`allaboard checkpoints verify` names the torn one",
    ),
    "checkpoint_writers": (
        "two processes could write checkpoints into one folder at the same time",
        "keep them in a store with conditional writes (If-None-Match), or on a disk with hard links",
    ),
    "images_differ": (
        "members run different images under one name: collectives hang where their libraries differ",
        "pin the image by its digest (image@sha256:...), and start it again",
    ),
    "rendezvous_never_happened": (
        "several members ran, but none ever listened at the rendezvous: each trained alone",
        "call torch.distributed.init_process_group in the script, or use one member",
    ),
}


_WAITS: Mapping[str, tuple[str, bool, str | None]] = {
    "gang_partial_scheduling": (
        "gang_partial_scheduling",
        True,
        "give the places back (`allaboard stop {run}`); a gang scheduler starts all of it or nothing",
    ),
    "gang_unschedulable": (
        "gang_unschedulable",
        True,
        "it starts by itself when there is room; else ask for fewer or smaller members, or stop what "
        "holds the places (`allaboard list`)",
    ),
    "gang_bereft": (
        "gang_unschedulable",
        False,
        "it cannot go on: `allaboard stop {run}`, then run it again under its key; it resumes from its "
        "newest checkpoint",
    ),
    "slots_pending": (
        "queue_quota_pending",
        True,
        "it starts by itself when there is room; else ask for less, or stop what holds the slots "
        "(`allaboard queues`)",
    ),
    "gang_scheduler_missing": ("gang_scheduler_missing", False, None),
    "queue_quota_pending": ("queue_quota_pending", True, None),
    "queue_quota_impossible": ("queue_quota_impossible", False, None),
    "queue_misconfigured": ("queue_misconfigured", False, None),
    "queue_pods_ready_timeout": ("queue_pods_ready_timeout", True, None),
    "resource_quota_exceeded": ("resource_quota_exceeded", True, None),
}
"""Flags of what keeps a run from starting -> the code, whether it may pass by itself, and what to do; None:
what the cause says.
"""


def _wait_diagnosis(seen: Observation, flag: str) -> Diagnosis:
    """A diagnosis of a wait, in the words of the scheduler or queue, which say what is missing."""
    code, retryable, own = _WAITS[flag]
    summary = seen.waiting or "some members hold places and idle while others have none"
    evidence = (Evidence(f"run/{seen.run}", "waiting", summary),)
    fix = _fix_of(code, retryable, seen.run) if own is None else own.format(run=seen.run)
    return Diagnosis(code, summary, evidence, None, retryable, fix)


def _diagnose_node_lost(seen: Observation) -> Diagnosis:
    """A diagnosis of members on a lost node: which members, and where."""
    note = next(
        (n for n in seen.notes if "do not end" in n), "members do not end, though their grace is over"
    )
    return Diagnosis(
        "node_lost",
        note,
        (Evidence(f"run/{seen.run}", "members", note),),
        None,
        True,
        f"when their node is gone for good: `allaboard stop {seen.run} --now`",
    )


def _warning_diagnoses(seen: Observation) -> Iterator[Diagnosis]:
    for flag in seen.flags:
        if flag == "node_lost":
            yield _diagnose_node_lost(seen)
        if flag == "run_newer":
            yield from examine(seen)[:1]
        if flag in _WAITS:
            yield _wait_diagnosis(seen, flag)
        if flag in _FLAGS:
            summary, fix = _FLAGS[flag]
            message = next((e.message for e in seen.events if e.reason == flag), summary)
            yield Diagnosis(flag, summary, (Evidence(f"run/{seen.run}", "flags", message),), None, False, fix)

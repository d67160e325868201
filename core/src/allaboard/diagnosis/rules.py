"""Rules for what one machine can show: exit codes, log tails, the supervisor's own words.

The first failing member decides, in time, not the loudest: its specific text first, then its exit code. Text
that only says that a peer went away is secondary and never the top cause (torchrun's banner can name the
wrong rank).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from allaboard.diagnosis.start_errors import why_not_started
from allaboard.diagnosis.tracebacks import Line, RaisedException, strip_lines, uncaught_exceptions
from allaboard.observation import MemberSeen, Observation, State
from allaboard.redaction import redact_text
from allaboard.status import CLOCK_IDLE, state_of


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where it was seen, and the words."""

    object: str
    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``blame``: what to check first. ``retryable``: the same spec, unchanged, may succeed later."""

    code: str
    summary: str
    evidence: tuple[Evidence, ...]
    blame: str | None
    retryable: bool
    fix: str

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        data["evidence"] = list(data["evidence"])
        return data


@dataclass(frozen=True, slots=True)
class _Pattern:
    code: str
    pattern: re.Pattern[str]
    summary: str
    fix: str
    retryable: bool = False


def _pattern(code: str, pattern: str, summary: str, fix: str, retryable: bool = False) -> _Pattern:
    return _Pattern(code, re.compile(pattern, re.IGNORECASE), summary, fix, retryable)


# Specific before generic: the first pattern that a log tail shows wins, and python_exception is the last.
_LOG = (
    _pattern(
        "shm_too_small",
        r"insufficient shared memory|/dev/shm/\S+.*No space left|No space left.*/dev/shm",
        "shared memory is full",
        "give /dev/shm more room, or use fewer data loader workers",
    ),
    _pattern(
        "disk_full",
        r"No space left on device|Disk quota exceeded|storage_full|StorageFull|"
        r"PytorchStreamWriter failed writing",
        "the disk is full",
        "free space or prune checkpoints; the newest complete checkpoint is kept",
    ),
    _pattern(
        "checkpoint_corrupt",
        r"failed finding central directory|invalid header or archive is corrupted|Ran out of input|"
        r"invalid load key|does not match its manifest",
        "a checkpoint cannot be read",
        "resume from the one before: `allaboard checkpoints verify` names the torn one",
    ),
    _pattern(
        "checkpoint_mismatch",
        r"(Missing|Unexpected) key\(s\) in state_dict|size mismatch for|Weights only load failed",
        "the checkpoint does not fit the model",
        "load it with the model that wrote it, or start from scratch",
    ),
    _pattern(
        "data_access_denied",
        r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|Unable to locate credentials|StorageDenied.*s3://",
        "the store refused the credentials",
        "give the job credentials that may read and write there",
    ),
    _pattern(
        "data_not_found",
        r"NoSuchKey|NoSuchBucket|StorageMissing|FileNotFoundError",
        "a file or object that the script reads is not there",
        "check the path; `allaboard shards verify` checks a data set",
    ),
    _pattern(
        "data_endpoint_unreachable",
        r"Could not connect to the endpoint URL|StorageUnreachable|ConnectTimeout|EndpointConnectionError",
        "the store does not answer",
        "check the endpoint and the network, then start again: the run resumes",
        True,
    ),
    _pattern(
        "filesystem_permission_denied",
        r"PermissionError|Read-only file system|StorageDenied",
        "a folder may not be written",
        "give this user the right to write there, or another folder",
    ),
    _pattern(
        "port_in_use",
        r"EADDRINUSE|Address already in use",
        "the rendezvous port is taken",
        "leave MASTER_PORT to allaboard, which reserves a free one",
        True,
    ),
    _pattern(
        "cuda_oom",
        r"CUDA out of memory|OutOfMemoryError",
        "a GPU ran out of memory",
        "use a smaller batch, or more members",
    ),
    _pattern(
        "device_side_assert",
        r"device-side assert triggered",
        "a CUDA kernel's check failed",
        "check labels and indices against the model's sizes",
    ),
    _pattern(
        "rendezvous_timeout",
        r"RendezvousTimeoutError|Timed out after \d+ seconds waiting for clients|client socket has timed out",
        "the members did not all meet",
        "every member must call init_process_group; look for one that did not start",
        True,
    ),
    _pattern(
        "world_size_mismatch",
        r"rank .{0,20}>= world_size|invalid rank",
        "the script's world size is not the gang's",
        "take RANK and WORLD_SIZE from the environment",
    ),
    _pattern(
        "missing_dependency",
        r"ModuleNotFoundError|ImportError|cannot open shared object",
        "a module is not installed",
        "install it where the members run",
    ),
    _pattern(
        "bad_entrypoint",
        r"can't open file|command not found",
        "the program is not there",
        "check the command and the folder it starts in",
    ),
    _pattern(
        "nan_loss",
        r"loss is nan|FloatingPointError",
        "the loss is not a number",
        "lower the learning rate, or skip the batch",
    ),
    _pattern(
        "python_exception",
        r"^Traceback \(most recent call last\)|^(\w+\.)*\w*(Error|Exception|Interrupt)\b",
        "the training script raised an error",
        "fix the script; its log shows the traceback",
    ),
)

_SECONDARY = re.compile(
    r"Connection closed by (remote )?peer|Connection reset by peer|Broken pipe|remote process exited|"
    r"RendezvousClosedError|got signal: 15|Sending process \d+ closing signal|DistNetworkError|"
    r"recvValue failed|failed to recv, got 0 bytes|ProcessGroup.*(reset|closed)",
    re.IGNORECASE,
)
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def diagnose(seen: Observation) -> tuple[Diagnosis, ...]:
    """All diagnoses, the cause first. Empty for a healthy run."""
    state = state_of(seen)
    diagnoses = [*_ending_diagnoses(seen, state), *(_obstacle_diagnoses(seen) if not state.is_final else ())]
    others = (d for d in _warning_diagnoses(seen) if d.code not in {f.code for f in diagnoses})
    return tuple(_without_secrets(d) for d in (*diagnoses, *others))


def _without_secrets(diagnosis: Diagnosis) -> Diagnosis:
    """What a member or a cluster wrote is quoted in logs, pages, metadata and messages to other people."""
    quoted = tuple(replace(e, text=redact_text(e.text)) for e in diagnosis.evidence)
    return replace(diagnosis, summary=redact_text(diagnosis.summary), evidence=quoted)


def _ending_diagnoses(seen: Observation, state: State) -> Iterator[Diagnosis]:
    if state is State.LOST:
        yield _diagnose_lost(seen)
        return
    if state is State.TIMED_OUT:
        yield _diagnose_timeout(seen)
        return
    if state is not State.FAILED:
        return
    if seen.stop is not None and seen.stop.code is not None:
        yield _diagnose_never_started(seen, seen.stop.code, seen.stop.reason)
        return
    cause = _diagnose_first_failure(seen)
    yield cause
    failed = seen.condition("Failed")
    if failed is not None and ("backoff limit" in failed.message or failed.reason == "ReachedMaxRestarts"):
        yield Diagnosis(
            "backoff_limit_exceeded",
            f"policy.backoff_limit is reached; restarts so far: {seen.restarts}",
            (Evidence(f"job/{seen.run}", "conditions.Failed", failed.message),),
            cause.blame,
            False,
            "mend the cause above, or raise policy.backoff_limit",
        )


_STARTS: Mapping[str, str] = {
    "image_pull_auth": "correct image, or give the job the registry's credentials: pod.spec.imagePullSecrets",
    "image_not_found": "correct the job's image",
    "image_pull_rate_limited": "it is tried again by itself; credentials or a mirror avoid it",
    "image_pull_network": "it is tried again by itself; else ask whether the nodes reach that registry",
    "exec_format_error": "build the image for the processors of the nodes; begin scripts with #!",
    "bad_entrypoint": "correct the command, or the image",
    "container_config_missing": "create it in the job's namespace, or correct its name in the job",
    "run_as_nonroot_violation": "set pod.spec.securityContext.runAsUser, or an image with a USER",
    "pod_sandbox_failed": "it is tried again by itself; else tell who runs the nodes",
    "gpu_runtime_broken": "tell who runs the node; another may do",
    "pvc_not_bound": "create the claim, or look why no volume is made for it: kubectl describe pvc",
    "volume_multi_attach": "use a claim of ReadWriteMany, or wait until who has it lets go",
    "volume_mount_failed": "look at the volume and its server; storage names it in the job",
    "resource_quota_exceeded": "ask for less, or for more quota",
    "pod_security_denied": "set what it names in pod.spec.securityContext, or use another namespace",
    "openshift_scc_denied": "drop runAsUser, fsGroup and hostPath from pod, or bind an SCC",
    "limitrange_denied": "change resources of the job to what the LimitRange allows",
    "pod_reference_missing": "create it, or correct its name in the job",
    "webhook_unavailable": "it is tried again by itself; else tell who runs that webhook",
    "admission_webhook_denied": "follow its words, or ask whose policy it is",
    "rbac_forbidden": "ask who runs the operator: it may not make pods here",
    "job_spec_invalid": "correct the field that it names",
    "operator_not_running": "ask who runs the cluster to start it: `allaboard cluster` shows it",
    "master_unreachable_dns": "look at the master first",
    "insufficient_gpu": "ask for less per member, or have larger nodes added",
    "gpu_not_advertised": "ask for what the nodes offer, or have its device plugin installed",
    "unschedulable_constraints": "ask for less, tolerate the taint, or correct the selector in pod",
    "queue_quota_impossible": "ask for less, or take another queue; else its nominalQuota has to be raised",
    "queue_misconfigured": (
        "look at the queue: kubectl get localqueues,clusterqueues; then name one that admits it"
    ),
    "queue_pods_ready_timeout": "look at what kept its members from starting: allaboard events {run}",
    "deadline_exceeded": (
        "raise its label kueue.x-k8s.io/max-exec-time-seconds (metadata.labels), or have it train in parts"
    ),
}
"""Code of an obstacle -> what to do."""


def _obstacle_diagnoses(seen: Observation) -> Iterator[Diagnosis]:
    obstacle = seen.obstacle
    if obstacle is None:
        return
    fix = _STARTS.get(obstacle.code, "look at what the cluster says: allaboard events {run}")
    fix = fix.replace("{run}", seen.run)
    evidence = [Evidence(obstacle.object, obstacle.field, obstacle.said)] if obstacle.said else []
    if obstacle.field.startswith("initContainerStatuses"):
        last = [line.text for line in strip_lines(seen.tails.get(obstacle.member or "", "")) if line.text][
            -1:
        ]
        evidence += [Evidence(f"log/{obstacle.member}", "text", text) for text in last]
        if obstacle.code == "oom_killed":
            fix = "give that init container more memory (pod.spec.initContainers), or have it read less"
        else:
            fix = f"its log says why: allaboard logs {seen.run} {obstacle.member}"
    yield Diagnosis(obstacle.code, obstacle.text, tuple(evidence), obstacle.member, not obstacle.never, fix)


def _diagnose_never_started(seen: Observation, code: str, text: str) -> Diagnosis:
    """It was ended because it could never start."""
    fix = _STARTS.get(code, "mend it, then start it again under its key").replace("{run}", seen.run)
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


def _diagnose_first_failure(seen: Observation) -> Diagnosis:
    failing = sorted(
        (m for m in seen.members if m.exit_code not in (None, 0) or m.reason),
        key=lambda m: (_is_victim(seen, m), m.ended or float("inf"), m.rank),
    )
    if not failing:
        if (start := _start_error(seen)) is not None:
            return start
        failed = seen.condition("Failed")
        text = failed.message if failed else "the run failed"
        return Diagnosis(
            "unknown", text, (), None, False, "`allaboard logs` and `allaboard events` show what was seen"
        )
    member = failing[0]
    return (
        _diagnose_by_reason(seen, member)
        or _diagnose_by_log(seen, member)
        or _diagnose_by_exit_code(seen, member)
    )


_NOT_STARTED = re.compile(
    r"Error pod (?P<pod>\S+) container \S+ exitCode: 12[68] terminated message: (?P<said>.*)|"
    r"Error: (?P<own>failed to create (containerd task|shim task|.*OCI runtime).*)",
    re.DOTALL,
)


def _start_error(seen: Observation) -> Diagnosis | None:
    """The event that says why the program of a deleted member could not be started."""
    for event in reversed(seen.events):
        match = _NOT_STARTED.match(event.message)
        if match is not None and event.reason in ("Failed", "StartError", "ContainerCannotRun"):
            who = (match["pod"] or event.object).removeprefix(f"{event.object}-")
            code, words, passes = why_not_started(match["said"] or match["own"] or "")
            evidence = (Evidence(f"events/{event.object}", event.reason, event.message),)
            text = f"{who} could not be started: {words}"
            return Diagnosis(code, text, evidence, who, passes, _STARTS["bad_entrypoint"])
    return None


def _is_victim(seen: Observation, member: MemberSeen) -> bool:
    """Whether this member only reports that a peer went away."""
    if member.exit_code == 143:
        return True
    lines = strip_lines(seen.tails.get(member.name, ""))
    if _own_exception(lines) is not None:
        return False
    last = [line.text for line in lines if line.text][-12:]
    return any(_SECONDARY.search(line) for line in last)


def _own_exception(lines: Sequence[Line]) -> RaisedException | None:
    """The first uncaught exception that is not about a peer which went away."""
    return next(
        (exception for exception in uncaught_exceptions(lines) if not _SECONDARY.search(exception.text)), None
    )


def _diagnose_by_reason(seen: Observation, member: MemberSeen) -> Diagnosis | None:
    if member.said or member.reason in ("StartError", "ContainerCannotRun"):
        messages = (e.message for e in seen.events if e.object == member.name and e.reason == "Failed")
        code, words, passes = "bad_entrypoint", next(messages, ""), False
        text = member.said or words
        if member.said:
            code, words, passes = why_not_started(member.said)
        return Diagnosis(
            code,
            f"{member.name} could not be started: {words}",
            (Evidence(f"member/{member.name}", "start", text),),
            member.name,
            passes,
            "check the command and the folder it starts in",
        )
    if member.reason == "OOMKilled":
        return Diagnosis(
            "oom_killed",
            f"{member.name} used more memory than there is",
            (Evidence(f"member/{member.name}", "reason", "OOMKilled"),),
            member.name,
            False,
            "raise resources.memory, or use fewer data loader workers",
        )
    return None


def _diagnose_by_log(seen: Observation, member: MemberSeen) -> Diagnosis | None:
    lines = strip_lines(seen.tails.get(member.name, ""))
    own = _own_exception(lines)
    for rule in _LOG:
        if rule.code == "python_exception" and own is not None:
            return _diagnose_exception(seen, member, own, rule)
        for line in reversed(lines):
            if rule.pattern.search(line.text) and not _SECONDARY.search(line.text):
                quoted = _last_error(lines) if rule.code == "python_exception" else line.text.strip()
                who = own if own is not None and rule.pattern.search(own.text) else None
                return Diagnosis(
                    rule.code,
                    f"{rule.summary} ({_log_author(member, who, len(seen.members) == 1)}): "
                    f"{_shorten(quoted)}",
                    (Evidence(f"log/{member.name}", "text", quoted), *_traceback_place(member, who)),
                    member.name,
                    rule.retryable,
                    rule.fix,
                )
    return None


def _diagnose_exception(
    seen: Observation, member: MemberSeen, own: RaisedException, rule: _Pattern
) -> Diagnosis:
    """A diagnosis of an exception: type, message, the line of user code, and the member."""
    at = f" at {own.where}" if own.where is not None else ""
    return Diagnosis(
        rule.code,
        f"{rule.summary} ({_log_author(member, own, len(seen.members) == 1)}): {_shorten(own.text)}{at}",
        (Evidence(f"log/{member.name}", "text", own.text), *_traceback_place(member, own)),
        member.name,
        rule.retryable,
        f"fix the script; its log shows the traceback: allaboard logs {seen.run} {member.name}",
    )


def _log_author(member: MemberSeen, own: RaisedException | None, alone: bool) -> str:
    """``worker-0, rank 5``: the rank that a launcher named, else that of the member, if there are others."""
    if own is not None and own.rank is not None:
        return f"{member.name}, rank {own.rank}"
    if own is not None and own.local is not None:
        return f"{member.name}, local rank {own.local}"
    return f"{member.name}, rank {member.rank}" if not alone else member.name


def _traceback_place(member: MemberSeen, own: RaisedException | None) -> tuple[Evidence, ...]:
    where = own.where if own is not None else None
    evidence = () if where is None else (Evidence(f"log/{member.name}", "traceback", str(where)),)
    return (*evidence, _exit_evidence(member))


def _last_error(lines: Sequence[Line]) -> str:
    """The line with the exception: the last unindented one like ``SomeError: message``."""
    errors = [
        line.text.strip()
        for line in lines
        if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line.text)
    ]
    errors = [text for text in errors if not _SECONDARY.search(text)] or errors
    return errors[-1] if errors else "Traceback (most recent call last)"


def _diagnose_by_exit_code(seen: Observation, member: MemberSeen) -> Diagnosis:
    code = member.exit_code or 0
    evidence = (_exit_evidence(member),)
    signal = _SIGNALS.get(code - 128)
    if code in (126, 127):
        return Diagnosis(
            "bad_entrypoint",
            f"{member.name} exited with {code}: a program in its command is not there or may not run",
            evidence,
            member.name,
            False,
            "check the command",
        )
    if signal in ("SIGKILL", "SIGTERM"):
        return Diagnosis(
            "killed_externally",
            f"{member.name} was killed from outside ({signal})",
            evidence,
            member.name,
            True,
            "find out who killed it (out of memory? an administrator?), then start again: it resumes",
        )
    if signal:
        return Diagnosis(
            "native_crash",
            f"{member.name} crashed ({signal})",
            evidence,
            member.name,
            False,
            "run it with PYTHONFAULTHANDLER=1 to see where",
        )
    return Diagnosis(
        "python_exception",
        f"{member.name} exited with {code}",
        evidence,
        member.name,
        False,
        f"its log says why: allaboard logs {seen.run} {member.name}",
    )


def _exit_evidence(member: MemberSeen) -> Evidence:
    return Evidence(f"member/{member.name}", "exit_code", str(member.exit_code))


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


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
    "images_differ": (
        "members run different images under one name: collectives hang where their libraries differ",
        "pin the image by its digest (image@sha256:...), and start it again",
    ),
    "rendezvous_never_happened": (
        "several members ran, but none ever listened at the rendezvous: each trained alone",
        "call torch.distributed.init_process_group in the script, or use one member",
    ),
}


_WAITS = {
    "gang_partial_scheduling": (
        "gang_partial_scheduling",
        True,
        "give the places back (allaboard stop {run}); a gang scheduler starts all of it or nothing",
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
        "it cannot go on: allaboard stop {run}, then run it again under its key; it resumes from its newest "
        "checkpoint",
    ),
    "gang_scheduler_missing": (
        "gang_scheduler_missing",
        False,
        "start that scheduler, or choose another with gang.scheduler: `allaboard preflight` looks for it",
    ),
    "queue_quota_pending": (
        "queue_quota_pending",
        True,
        "it starts by itself when its queue admits it; else take another queue or a higher priority",
    ),
    "slots_pending": (
        "queue_quota_pending",
        True,
        "it starts by itself when there is room; else ask for less, or stop what holds the slots "
        "(`allaboard queues`)",
    ),
    "queue_quota_impossible": (
        "queue_quota_impossible",
        False,
        _STARTS["queue_quota_impossible"],
    ),
    "queue_misconfigured": (
        "queue_misconfigured",
        False,
        _STARTS["queue_misconfigured"],
    ),
    "queue_pods_ready_timeout": (
        "queue_pods_ready_timeout",
        True,
        _STARTS["queue_pods_ready_timeout"],
    ),
    "resource_quota_exceeded": (
        "resource_quota_exceeded",
        True,
        "it goes on when others give back what the quota counts; else ask for less, or for more quota",
    ),
}
"""Flags of what keeps a run from starting -> the code, whether it may pass by itself, and what to do."""


def _wait_diagnosis(seen: Observation, flag: str) -> Diagnosis:
    """A diagnosis of a wait, in the words of the scheduler or queue, which say what is missing."""
    code, retryable, fix = _WAITS[flag]
    words = seen.waiting or "some members hold places and idle while others have none"
    evidence = (Evidence(f"run/{seen.run}", "waiting", words),)
    return Diagnosis(code, words, evidence, None, retryable, fix.format(run=seen.run))


def _diagnose_node_lost(seen: Observation) -> Diagnosis:
    """A diagnosis of members on a lost node: which members, and where."""
    words = next(
        (n for n in seen.notes if "do not end" in n), "members do not end, though their grace is over"
    )
    return Diagnosis(
        "node_lost",
        words,
        (Evidence(f"run/{seen.run}", "members", words),),
        None,
        True,
        f"when their node is gone for good: allaboard stop {seen.run} --now",
    )


def _warning_diagnoses(seen: Observation) -> Iterator[Diagnosis]:
    for flag in seen.flags:
        if flag == "node_lost":
            yield _diagnose_node_lost(seen)
        if flag in _WAITS:
            yield _wait_diagnosis(seen, flag)
        if flag in _FLAGS:
            summary, fix = _FLAGS[flag]
            words = next((e.message for e in seen.events if e.reason == flag), summary)
            yield Diagnosis(flag, summary, (Evidence(f"run/{seen.run}", "flags", words),), None, False, fix)

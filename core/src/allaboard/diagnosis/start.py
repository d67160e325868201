"""Starting the pod: it has a node, and its container does not run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allaboard.diagnosis.case import Case, exit_code, exit_evidence, has_run, pod_object, quote, waiting
from allaboard.diagnosis.finding import Evidence, Finding, Need
from allaboard.diagnosis.logs import Log, words
from allaboard.diagnosis.queue import unplaced
from allaboard.diagnosis.reading import readings
from allaboard.diagnosis.rule import rule
from allaboard.diagnosis.start_errors import why_not_started
from allaboard.diagnosis.tracebacks import RaisedException
from allaboard.runs.observation import ContainerSeen, EventSeen, PodSeen, Try

_NEEDS = (Need.PODS, Need.EVENTS)
IMAGE_REASONS = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
        "RegistryUnavailable", "SignatureValidationFailed",
    }
)  # fmt: skip
START_REASONS = frozenset({"StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError"})
TRANSIENT = 2
"""Events of one kind that a start may show before it succeeds."""

# --- images ------------------------------------------------------------------------------------------------

_LIMITED = re.compile(
    r"\b429\b|toomanyrequests|too many requests|pull rate limit|pull QPS exceeded", re.IGNORECASE
)
_DENIED = re.compile(
    r"\b401\b|\b403\b|unauthorized|forbidden|access denied|authorization failed|no basic auth|"
    r"authentication required|may require authorization|insufficient_scope|denied: |invalid username|"
    r"(access|auth)\S* token (has expired|is expired)|token has expired",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"i/o timeout|no such host|connection refused|TLS handshake|connection reset|network is unreachable|"
    r"context deadline exceeded|server misbehaving|unexpected EOF|\bEOF$|x509|RegistryUnavailable|no "
    r"route to host|"
    r"Client\.Timeout|\b50[0234]\b|proxyconnect|Temporary failure in name resolution",
    re.IGNORECASE,
)
_ABSENT = re.compile(
    r"not found|manifest unknown|name unknown|no match for platform|no matching manifest|does not exist|"
    r"invalid reference format|couldn't parse image",
    re.IGNORECASE,
)


def _image_code(reason: str, text: str) -> str | None:
    if reason in ("InvalidImageName", "ErrImageNeverPull"):
        return "image_not_found"
    if reason == "SignatureValidationFailed":
        return "image_pull_auth"
    for code, pattern in (
        ("image_pull_rate_limited", _LIMITED),
        ("image_pull_auth", _DENIED),
        ("image_pull_network", _NETWORK),
        ("image_not_found", _ABSENT),
    ):
        if pattern.search(text):
            return code
    return "image_pull_network" if reason == "RegistryUnavailable" else None


def _pulls(case: Case) -> list[tuple[str, PodSeen, ContainerSeen, str]]:
    """(code, pod, container, words) of each image that cannot be had."""
    if "pulls" not in case.memo:
        case.memo["pulls"] = [*_read_pulls(case)]
    found: list[tuple[str, PodSeen, ContainerSeen, str]] = case.memo["pulls"]
    return found


def _read_pulls(case: Case) -> Iterator[tuple[str, PodSeen, ContainerSeen, str]]:
    for pod in case.pods:
        for container, now in waiting(pod):
            if now.reason not in IMAGE_REASONS:
                continue
            text = now.message
            said = [
                e.message for e in case.events_of(pod) if "pull" in e.message.lower() and e.type != "Normal"
            ]
            telling = [
                t
                for t in [text, *said]
                if _image_code("", t)
                and (not container.image or container.image.split("@")[0] in t or t == text)
            ]
            best = max(telling, key=len, default=text)
            code = _image_code(now.reason, best) or "image_pull_network"
            yield code, pod, container, f"{now.reason}: {best}" if best else now.reason


def _pull_findings(case: Case, code: str, why: str) -> Iterator[Finding]:
    every = [one for one in _pulls(case) if one[0] == code]
    if not every:
        return
    _, pod, container, text = every[0]
    others = f" (and so with {len(every) - 1} more)" if len(every) > 1 else ""
    who = f"init container {container.name} of {pod.name}" if container.role == "init" else pod.name
    names = "/".join(dict.fromkeys(p.name for _, p, _, _ in every[:4]))
    blame = f"{container.name} on {names}" if container.role != "main" else names.split("/")[0]
    blame += f" (image {container.image})" if container.image else ""
    yield Finding(
        code,
        f"{who} cannot start: its image {container.image} cannot be pulled, {why}{others}",
        (Evidence(pod_object(pod), f"containerStatuses[{container.name}].waiting", quote(text)),),
        blame,
        confidence=0.95 if _image_code("", text) else 0.6,
    )


@rule(
    "image_pull_auth",
    "The registry refuses the image",
    means="The node has no credentials that the registry accepts for this image, or the repository "
    "does not exist: "
    "registries often tell both in the same words.",
    looks="ErrImagePull or ImagePullBackOff with `401 Unauthorized`, `403 Forbidden`, `pull access "
    "denied`, `no basic "
    "auth credentials`.",
    fix="give the job the registry's credentials (pod.spec.imagePullSecrets), or correct the image's name",
    needs=_NEEDS,
)
def image_pull_auth(case: Case) -> Iterator[Finding]:
    yield from _pull_findings(case, "image_pull_auth", "the registry refuses it, or it does not exist")


@rule(
    "image_not_found",
    "There is no such image",
    means="The tag, the digest or the platform is not in the registry, or the name is no legal one.",
    looks="`: not found`, `manifest unknown`, `no match for platform`, InvalidImageName.",
    fix="correct the job's image: its tag, or build it for the processors of the nodes",
    needs=_NEEDS,
)
def image_not_found(case: Case) -> Iterator[Finding]:
    yield from _pull_findings(case, "image_not_found", "there is no such image, tag or platform")


@rule(
    "image_pull_rate_limited",
    "The registry limits how often images are pulled",
    means="Too many pulls from this address or account; the limit passes.",
    looks="`429 Too Many Requests`, `toomanyrequests`.",
    fix="it is tried again by itself; credentials or a mirror avoid it",
    needs=_NEEDS,
    retryable=True,
)
def image_pull_rate_limited(case: Case) -> Iterator[Finding]:
    yield from _pull_findings(
        case, "image_pull_rate_limited", "the registry limits how often it may be pulled"
    )


@rule(
    "image_pull_network",
    "The node does not reach the registry",
    means="Name resolution, a firewall, a proxy or the registry itself fails. In clusters without a "
    "way out it is often "
    "the image of an init container that the operator adds.",
    looks="`dial tcp .. i/o timeout`, `no such host`, `connection refused`, `TLS handshake timeout`.",
    fix="mirror the image where the nodes reach it, or open the way to the registry",
    needs=_NEEDS,
    retryable=True,
)
def image_pull_network(case: Case) -> Iterator[Finding]:
    yield from _pull_findings(case, "image_pull_network", "its registry cannot be reached from the node")


# --- the program -------------------------------------------------------------------------------------------

_EXEC_FORMAT = words(r"exec format error|cannot execute binary file")
_NO_PROGRAM = words(
    r"executable file not found in \$PATH|: (command )?not found\s*$|can't open file|No such file or "
    r"directory: '?torchrun|"
    r"exec: .{1,200}: (no such file or directory|not found)|exec .{1,200}: no such file or directory|"
    r"OCI runtime exec failed|"
    r"bash: .{1,200}: (No such file or directory|Permission denied)|sh: .{0,20}.{1,200}: (not found|"
    r"Permission denied)|"
    r"exec .{1,200}: permission denied|/entrypoint\S*: .{0,80}(No such file|Permission denied)|"
    r"Failed to spawn: |failed to (run|execute|exec) command|exec \S{1,200} failed: |Command not found: \S|"
    r"mpirun was unable to (launch|find) the specified|unable to find the specified executable|"
    r"could not (find|access or execute|be executed).{0,60}executable|line \d+: \S{1,200}: (command not "
    r"found|"
    r"Permission denied|No such file)"
)
_SHELL_SAYS = re.compile(r"^(?:/\S+/)?\w{0,6}sh[:\uff1a] ")


def _start_failures(case: Case) -> Iterator[tuple[PodSeen, ContainerSeen, Try, str]]:
    """Containers whose program a runtime could not start, with its words."""
    for pod in case.pods:
        for container in pod.containers:
            for one in (container.now, container.last):
                if one is None:
                    continue
                failed = one.reason in START_REASONS or (one.exit_code == 128 and one.message != "")
                if not failed or _config_text(one):
                    continue
                said = (
                    one.message
                    or next(
                        (
                            t.message
                            for t in (container.last, container.now)
                            if t and t.message and "back-off" not in t.message
                        ),
                        "",
                    )
                    or _event_text(case, pod, ("Failed", "FailedCreatePodContainer", "StartError"))
                )
                yield pod, container, one, said
                break
    for pod in case.pods:
        if case.is_local and pod.main is not None and pod.main.now.message and not pod.main.now.reason:
            yield pod, pod.main, pod.main.now, pod.main.now.message
    yield from _deleted_starts(case)


_TOLD_START = re.compile(
    r"Error pod (?P<pod>\S+) container \S+ exitCode: 12[68] terminated message: (?P<said>.*)|"
    r"Error: (?P<own>failed to create (containerd task|shim task|.*OCI runtime).*)",
    re.DOTALL,
)


def _deleted_starts(case: Case) -> Iterator[tuple[PodSeen, ContainerSeen, Try, str]]:
    """The event that says why the program of a pod that is gone could not be started."""
    for event in reversed(case.events):
        match = _TOLD_START.match(event.message) if "rror" in event.message[:10] else None
        if match is not None and event.reason in ("Failed", "StartError", "ContainerCannotRun"):
            who = (match["pod"] or event.name).removeprefix(f"{event.name}-")
            known = next((pod for pod in case.pods if who in (pod.name, pod.pod)), PodSeen(who, who))
            if has_run(known):
                continue
            said = match["said"] or match["own"] or ""
            yield known, ContainerSeen("main"), Try("terminated", event.reason, event.message), said
            return


def _event_text(case: Case, pod: PodSeen, reasons: tuple[str, ...]) -> str:
    return max((e.message for e in case.events_of(pod) if e.reason in reasons), key=len, default="")


@rule(
    "exec_format_error",
    "The program is built for another processor",
    means="The image's program does not fit the node's architecture, or a script has no #! line.",
    looks="`exec format error`; exit 1 or 255 within a second of the start, again and again.",
    fix="build the image for the nodes' architecture, or choose nodes by kubernetes.io/arch; begin "
    "scripts with #!",
    needs=(*_NEEDS, Need.LOGS, Need.NODES),
)
def exec_format_error(case: Case) -> Iterator[Finding]:
    for pod, _, one, said in _start_failures(case):
        if "exec format error" in said:
            yield _not_started(case, pod, one, said, "exec_format_error")
            return
    for reading in readings(case):
        pod = reading.pod
        hit = reading.log.last(_EXEC_FORMAT)
        if hit is not None and (exit_code(pod) is not None or not pod.containers):
            node = case.nodes.get(pod.node)
            arch = node.labels.get("kubernetes.io/arch", "") if node is not None else ""
            more = (Evidence(f"node/{pod.node}", "kubernetes.io/arch", arch),) if arch else ()
            yield Finding(
                "exec_format_error",
                f"{pod.name} cannot run: its program was built for another processor than that of its "
                f"node{f' ({arch})' if arch else ''}",
                (Evidence(f"log/{pod.name}", "text", quote(hit.text)), *exit_evidence(pod), *more),
                pod.name,
                case.went_bad(pod),
            )
            return


def _not_started(case: Case, pod: PodSeen, one: Try, said: str, code: str) -> Finding:
    found, sentence, passes = why_not_started(said)
    where = "start" if case.is_local else "containerStatuses"
    full = "no process could be made" in said
    return Finding(
        code,
        f"{pod.name} could not be started: {sentence}",
        (Evidence(pod_object(pod), where, quote(said)),),
        pod.name,
        one.ended or case.went_bad(pod),
        retryable=passes if code == found else None,
        fix="end other processes of this user, or raise the limit (ulimit -u)" if full else None,
    )


@rule(
    "bad_entrypoint",
    "The program of the command is not there",
    means="The command, its folder or its script does not exist in the image, or may not be executed.",
    looks="StartError, ContainerCannotRun, exit 126, 127 or 128; `executable file not found in $PATH`, "
    "`python: can't open file` (exit 2).",
    fix="correct the job's command, args or workingDir, or the image",
    needs=(*_NEEDS, Need.LOGS),
)
def bad_entrypoint(case: Case) -> Iterator[Finding]:
    for pod, _, one, said in _start_failures(case):
        if said and _runtime_is_broken(said):
            continue
        code = why_not_started(said)[0] if said else "bad_entrypoint"
        if code == "bad_entrypoint":
            yield _not_started(case, pod, one, said or one.reason, "bad_entrypoint")
    for pod in case.pods:
        for container in pod.containers:
            one_try = container.ended_try
            if one_try is None or one_try.reason in START_REASONS:
                continue
            yield from _missing_program(case, pod, container, one_try)


_RAISED = re.compile(r"\b[\w.]+(Error|Exception)\b: ")
_NO_LIBRARY = words(r"error while loading shared libraries|cannot open shared object")


def _missing_program(case: Case, pod: PodSeen, container: ContainerSeen, ended: Try) -> Iterator[Finding]:
    log = case.log(pod) if container.role == "main" else None
    spawn = log.fatal[-1] if log is not None and log.fatal and _is_spawn(log, log.fatal[-1]) else None
    hit = log.last(_NO_PROGRAM) if log is not None and ended.exit_code in (1, 2, 126, 127) else None
    raised = log is not None and (log.fatal or (hit is not None and _RAISED.search(hit.text)))
    if ended.exit_code == 1 and hit is not None and raised:
        hit = None
    if hit is None and spawn is None and ended.exit_code not in (126, 127):
        return
    if hit is None and log is not None and log.has(_NO_LIBRARY):
        return  # the program is there
    shell = [text for text in log.last_lines if _SHELL_SAYS.match(text)] if log is not None else []
    told = (
        spawn.text
        if spawn is not None
        else hit.text
        if hit is not None
        else shell[-1]
        if shell
        else ended.message
    )
    what = f": {quote(told)}" if told else ": a program in its command is not there or may not run"
    who = pod.name if container.role == "main" else f"container {container.name} of {pod.name}"
    evidence = (Evidence(f"log/{pod.name}", "text", quote(told)),) if told and told != ended.message else ()
    program = program_in(told)
    number = Evidence(pod_object(pod), "exit_code", str(ended.exit_code))
    yield Finding(
        "bad_entrypoint",
        f"{who} exited with {ended.exit_code}{what}",
        (*evidence, number),
        f"{program} ({pod.name})" if program else pod.name,
        case.went_bad(pod),
        confidence=0.9 if hit is not None or spawn is not None or ended.exit_code == 127 else 0.75,
        who=pod.name,
    )


def _is_spawn(log: Log, raised: RaisedException) -> bool:
    """Whether Python could not start another program: by the file that it looked for, which is a bare name or
    what its subprocess was to run."""
    if raised.type.rpartition(".")[2] not in ("FileNotFoundError", "PermissionError", "NotADirectoryError"):
        return False
    at = log.body.rfind(raised.text[:120])
    before = log.body[max(0, at - TRACE) : at]
    return _SPAWNS.search(before[before.rfind("Traceback (most recent call last)") :]) is not None


TRACE = 8000
"""Characters of a traceback before its last line in which the call is looked for."""
_SPAWNS = re.compile(
    r"in (_execute_child|execvpe?|_execvpe|_spawnvef|posix_spawnp?|create_subprocess_exec)\b"
)


def program_in(text: str) -> str:
    """The program that a shell, a runtime or a launcher names that cannot start it; "" where it names none. A
    shell says its own name first and the reason last, in whatever language."""
    quoted = re.search(r"[`'\"\u2018]([^`'\"\u2019]{1,200})[`'\"\u2019]", text)
    if quoted is not None:
        return quoted[1]
    parts = re.split(r"[:\uff1a]\s+", text)
    if _SHELL_SAYS.match(text) and len(parts) >= 3:
        return parts[-2].strip()
    match = re.search(r"exec:? (\S+?)(?: failed)?:|Command not found: (\S+)|line \d+: (\S+):", text)
    return next((g for g in match.groups() if g), "") if match is not None else ""


# --- what it needs of the cluster --------------------------------------------------------------------------

_LACKING = re.compile(
    r"(secret|configmap)s? \"?[\w./-]+\"? not found|couldn't find key \S+ in (ConfigMap|Secret) \S+|"
    r"references non-existent (secret|config) key|object \"[^\"]+\"/\"[^\"]+\" not registered",
    re.IGNORECASE,
)


def _config_text(one: Try) -> bool:
    return bool(_LACKING.search(one.message)) or "runAsNonRoot" in one.message


@rule(
    "container_config_missing",
    "A Secret or ConfigMap that the pod uses is not there",
    means="The kubelet cannot make the container: a Secret, a ConfigMap or one of their keys does not "
    "exist in the "
    "job's namespace.",
    looks='CreateContainerConfigError `secret "X" not found`, `couldn\'t find key K in ConfigMap`; '
    "FailedMount with the "
    "same words.",
    fix="create it in the job's namespace, or correct its name in the job",
    needs=_NEEDS,
)
def container_config_missing(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        texts: list[tuple[str, str]] = []
        for container, now in waiting(pod):
            if now.reason in ("CreateContainerConfigError", "CreateContainerError"):
                said = now.message or _event_text(case, pod, ("Failed",))
                texts.append((f"containerStatuses[{container.name}].waiting", said))
        texts += [(f"events.{e.reason}", e.message) for e in _mount_events(case, pod)]
        for where, said in texts:
            if (match := _LACKING.search(said)) is not None:
                yield Finding(
                    "container_config_missing",
                    f"{pod.name} cannot start: {quote(match[0])}",
                    (Evidence(pod_object(pod), where, quote(said)),),
                    _object_in(match[0]) or pod.name,
                    confidence=0.95,
                )
                return


def _object_in(text: str) -> str:
    match = re.search(r"(secret|configmap)s? \"?([\w./-]+?)\"?( not found|$)", text, re.IGNORECASE)
    if match is not None:
        return f"{match[1]} {match[2]}"
    match = re.search(r"in (ConfigMap|Secret) (\S+)", text, re.IGNORECASE)
    return f"{match[1]} {match[2]}" if match is not None else ""


@rule(
    "run_as_nonroot_violation",
    "The image runs as root where root is not allowed",
    means="runAsNonRoot is set, and neither the pod nor the image says a user other than root.",
    looks="CreateContainerConfigError `container has runAsNonRoot and image will run as root`.",
    fix="set securityContext.runAsUser in the pod template, or USER in the image",
    needs=_NEEDS,
)
def run_as_nonroot_violation(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        for container, now in waiting(pod):
            said = now.message or _event_text(case, pod, ("Failed",))
            if "runAsNonRoot" in said or "non-root" in said:
                yield Finding(
                    "run_as_nonroot_violation",
                    f"container {container.name} of {pod.name} cannot start: it may not run as root, "
                    f"and its image does",
                    (Evidence(pod_object(pod), f"containerStatuses[{container.name}].waiting", quote(said)),),
                    f"{pod.name} container {container.name}",
                    confidence=0.95,
                )
                return


def _is_preparing(pod: PodSeen) -> bool:
    """Whether none of its containers has ever run."""
    return (
        bool(pod.node)
        and pod.phase in ("Pending", "")
        and not any(
            c.now.state in ("running", "terminated") or c.restarts
            for c in pod.containers
            if c.role != "sidecar"
        )
    )


def _mount_events(case: Case, pod: PodSeen) -> list[EventSeen]:
    """Of a pod that still prepares; the ones that name the trouble first."""
    if not _is_preparing(pod):
        return []
    found = [
        e for e in case.events_of(pod) if e.reason in ("FailedMount", "FailedMapVolume", "FailedAttachVolume")
    ]
    return sorted(found, key=lambda e: "timed out waiting" in e.message or "unmounted volumes" in e.message)


_SANDBOX = re.compile(r"no runtime for|nvidia-container|RuntimeHandler|runtime handler", re.IGNORECASE)


@rule(
    "pod_sandbox_failed",
    "The node cannot set up the pod's network",
    means="Before any container, the node makes a sandbox with an address; its network plugin fails, "
    "again and again.",
    looks="FailedCreatePodSandBox: `failed to assign an IP address`, errors of the CNI plugin.",
    fix="another node may do; else tell who runs the nodes' network",
    needs=_NEEDS,
    retryable=True,
)
def pod_sandbox_failed(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        if not _is_preparing(pod):
            continue
        boxes = [e for e in case.events_of(pod) if e.reason in ("FailedCreatePodSandBox", "NetworkNotReady")]
        if sum(e.count for e in boxes) <= TRANSIENT and not _long(case, pod):
            continue
        said = boxes[-1].message if boxes else ""
        if not boxes or _SANDBOX.search(said):
            continue
        yield Finding(
            "pod_sandbox_failed",
            f"{pod.name} does not start: its node {pod.node} cannot set up its network",
            (Evidence(pod_object(pod), f"events.{boxes[-1].reason}", quote(said)),),
            f"node {pod.node}",
            boxes[-1].time,
        )
        return


def _long(case: Case, pod: PodSeen) -> bool:
    age = case.age(pod.created)
    return age is not None and age > 120


_CLAIM = re.compile(r"persistentvolumeclaim \"?([\w.-]+)\"? (not found|is being deleted)", re.IGNORECASE)


_LOST_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" bound to non-existent persistentvolume')


@rule(
    "pvc_not_bound",
    "A claim has no volume",
    means="A pod waits for a PersistentVolumeClaim that does not exist or for which no volume is made: "
    "no storage class, "
    "or a provisioner that fails. A claim that waits for its first consumer is no trouble.",
    looks='FailedScheduling `unbound immediate PersistentVolumeClaims`, `persistentvolumeclaim "X" not '
    "found`; claim "
    "Pending with ProvisioningFailed.",
    fix="create the claim, or correct its storage class: kubectl describe pvc says why",
    needs=(*_NEEDS, Need.CLAIMS),
)
def pvc_not_bound(case: Case) -> Iterator[Finding]:
    for pod, text in unplaced(case):
        absent, lost = _CLAIM.search(text), _LOST_CLAIM.search(text)
        unbound = "unbound immediate" in text or "unbound PersistentVolumeClaims" in text
        if absent is None and lost is None and not unbound:
            continue
        named = absent or lost
        claim = named[1] if named else _pending_claim(case, pod)
        words_ = f"claim {claim} does not exist" if absent else f"claim {claim or 'of it'} has no volume"
        if lost is not None:
            words_ = f"the volume of claim {claim} is gone"
        evidence = [
            Evidence(pod_object(pod), "conditions.PodScheduled", quote(text)),
            *_provisioning(case, claim),
        ]
        yield Finding(
            "pvc_not_bound",
            f"{pod.name} cannot start: {words_}",
            tuple(evidence),
            f"PVC {claim or pod.name}",
            confidence=0.95,
        )
        return
    for event in case.events:
        if (
            event.kind == "PersistentVolumeClaim"
            and event.reason in ("ProvisioningFailed", "FailedBinding", "ClaimLost")
            and not case.running
        ):
            claim_seen = next((c for c in case.objects.claims or () if c.name == event.name), None)
            if claim_seen is not None and claim_seen.facts.get("status.phase") == "Bound":
                continue
            evidence = [
                Evidence(
                    f"persistentvolumeclaim/{event.name}", f"events.{event.reason}", quote(event.message)
                )
            ]
            yield Finding(
                "pvc_not_bound",
                f"claim {event.name} gets no volume: {quote(event.message)}",
                tuple(evidence),
                f"PVC {event.name}",
            )
            return


def _pending_claim(case: Case, pod: PodSeen) -> str:
    own = [v for k, v in pod.facts.items() if k.endswith("persistentVolumeClaim.claimName")]
    pending = [c.name for c in case.objects.claims or () if c.facts.get("status.phase") == "Pending"]
    return next((name for name in own if name in pending), next(iter(own or pending), ""))


def _provisioning(case: Case, claim: str) -> Iterator[Evidence]:
    for e in case.events:
        if e.kind == "PersistentVolumeClaim" and e.name == claim and e.type != "Normal":
            yield Evidence(f"persistentvolumeclaim/{claim}", f"events.{e.reason}", quote(e.message))
            return


_ELSEWHERE = re.compile(
    r"Multi-Attach|already (exclusively )?attached|already being used by|RESOURCE_IN_USE_BY_ANOTHER_RESOURCE|"
    r"attached to (another|a different) (node|instance|VM)|VolumeInUse",
    re.IGNORECASE,
)


@rule(
    "volume_multi_attach",
    "A volume is attached to another node",
    means="A ReadWriteOnce volume can be on one node. Replicas of the same job that share it can never "
    "all start; one "
    "that a lost node still holds comes free later.",
    looks="FailedAttachVolume `Multi-Attach error ... already used by pod(s) X`, `already exclusively "
    "attached`.",
    fix="use a claim of ReadWriteMany or one per replica; of a stale attachment wait, or remove the "
    "pod on the lost node",
    needs=(*_NEEDS, Need.CLAIMS),
)
def volume_multi_attach(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        for e in _mount_events(case, pod):
            if not _ELSEWHERE.search(e.message):
                continue
            by = re.search(r"used by pod\(s\) (.+?)(?:$|\.|\n)", e.message)
            holders = [name for name in re.split(r"[,\s]+", by[1]) if name] if by else []
            own = [
                h for h in holders if h in case.by_name and case.by_name[h].deleted is None and h != pod.pod
            ]
            volume = re.search(r'volume "([^"]+)"', e.message)
            claim = next(
                (v for k, v in pod.facts.items() if k.endswith("persistentVolumeClaim.claimName")), ""
            )
            name = volume[1] if volume else claim
            shared = bool(own) or any(
                h.rsplit("-", 2)[0] == (pod.pod or "").rsplit("-", 2)[0] != "" and h in case.by_name
                for h in holders
            )
            why = f"{own[0]} of the same job has it" if own else "another node still holds it"
            yield Finding(
                "volume_multi_attach",
                f"{pod.name} cannot start: volume {name} can be on one node alone, and {why}",
                (Evidence(pod_object(pod), f"events.{e.reason}", quote(e.message)),),
                f"PVC {claim or name}",
                e.time,
                retryable=not shared,
                confidence=0.95,
            )
            return


_FINAL_MOUNT = re.compile(
    r"access denied|no such file or directory|does not exist|type check failed|not a directory|"
    r"permission denied|"
    r"wrong fs type|unknown filesystem|bad option|is not a block device|Operation not permitted",
    re.IGNORECASE,
)


@rule(
    "volume_mount_failed",
    "A volume cannot be mounted",
    means="The node reaches the claim's or server's volume, and the mount fails: the server does not "
    "answer, refuses "
    "this node, or has no such path.",
    looks="FailedMount `mount failed: exit status 32`, `Connection timed out`, `access denied by "
    "server`, `No such file "
    "or directory`; the pod stays ContainerCreating.",
    fix="look at the volume's server, its export and firewall; correct the path in the job",
    needs=_NEEDS,
    retryable=True,
)
def volume_mount_failed(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        for e in _mount_events(case, pod):
            if (
                _LACKING.search(e.message)
                or "Multi-Attach" in e.message
                or "exclusively attached" in e.message
                or _CLAIM.search(e.message)
            ):
                continue
            volume = re.search(r'volume "([^"]+)"', e.message) or re.search(
                r"unmounted volumes=\[([^\],\s]+)", e.message
            )
            name = volume[1] if volume else "of it"
            final = _FINAL_MOUNT.search(e.message) is not None and "timed out" not in e.message
            yield Finding(
                "volume_mount_failed",
                f"{pod.name} cannot start: volume {name} cannot be mounted",
                (Evidence(pod_object(pod), f"events.{e.reason}", quote(e.message)),),
                f"volume {name}",
                e.time,
                retryable=not final,
            )
            return


_RUNTIME = re.compile(
    r"nvidia-container-cli|no runtime for \"?nvidia|driver/library version|driver not loaded|"
    r"nvidia-container-runtime|failed to (inject|generate) CDI|unresolvable CDI devices",
    re.IGNORECASE,
)
_DRA = re.compile(
    r"DRA driver \S+ (is )?not registered|(DRA |dra )?plugin (name )?\S+ (is )?not (found|registered)|"
    r"not found in the list of registered DRA|NodePrepareResources? .{0,120}(fail|error|Unavailable)|"
    r"error preparing devices|unprepared .{0,40}CDI",
    re.IGNORECASE,
)
_NOT_READY = words(
    r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|Error 802"
)
_AT_START_NVML = words(
    r"Failed to initialize NVML|Driver/library version mismatch|libcuda\.so.{0,60}cannot open shared object"
)


def _runtime_is_broken(text: str) -> bool:
    return (
        _RUNTIME.search(text) is not None
        and "requirement error" not in text
        and "unsatisfied condition" not in text
    )


@rule(
    "gpu_runtime_broken",
    "The node's GPU runtime does not work",
    means="The container runtime cannot give the container its GPUs: the driver is not loaded, does "
    "not fit its library, "
    "the nvidia runtime is not configured, or the fabric manager is not up.",
    looks='StartError with `nvidia-container-cli: initialization error`, `no runtime for "nvidia"`; '
    "FailedPrepareDynamicResources `DRA driver .. is not registered`; in the script "
    "`Error 802: system not yet initialized`.",
    fix="tell who runs the node (cordon it, repair its driver); another node may do",
    needs=(*_NEEDS, Need.LOGS),
    retryable=True,
)
def gpu_runtime_broken(case: Case) -> Iterator[Finding]:
    for pod, _, one, said in _start_failures(case):
        if _runtime_is_broken(said):
            yield _broken(pod, Evidence(pod_object(pod), "containerStatuses", quote(said)), one.ended)
            return
    for pod in case.pods:
        boxes = [
            e
            for e in case.events_of(pod)
            if e.reason == "FailedCreatePodSandBox" and _RUNTIME.search(e.message)
        ]
        if boxes and _is_preparing(pod):
            yield _broken(
                pod,
                Evidence(pod_object(pod), "events.FailedCreatePodSandBox", quote(boxes[-1].message)),
                boxes[-1].time,
            )
            return
    for pod in case.pods:
        prepared = [
            e
            for e in case.events_of(pod)
            if e.reason in ("FailedPrepareDynamicResources", "FailedMount") and _DRA.search(e.message)
        ]
        if prepared and _is_preparing(pod):
            yield _broken(
                pod,
                Evidence(pod_object(pod), f"events.{prepared[-1].reason}", quote(prepared[-1].message)),
                prepared[-1].time,
            )
            return
    for reading in readings(case):
        pod, log = reading.pod, reading.log
        hits = log.hits(_NOT_READY, 1)
        hit = next((h for h in hits), None)
        if hit is None and exit_code(pod) is not None:
            early = log.hits(_AT_START_NVML, 1)
            hit = (
                early[0]
                if early and early[0].position < 4000 and not log.has(words(r"\bstep\b|\bepoch\b"))
                else None
            )
        if hit is not None:
            yield _broken(
                pod, Evidence(f"log/{pod.name}", "text", quote(hit.text)), hit.time or case.went_bad(pod)
            )
            return


def _broken(pod: PodSeen, evidence: Evidence, at: float | None) -> Finding:
    where = f"node {pod.node}" if pod.node else pod.name
    return Finding(
        "gpu_runtime_broken",
        f"{pod.name} cannot use its GPUs: the GPU runtime of {where} does not work",
        (evidence,),
        f"{where} ({pod.name})",
        at,
    )


REJECTED = re.compile(
    r"UnexpectedAdmissionError|OutOf\w+|NodeAffinity|NodePorts|TaintToleration|TopologyAffinityError|"
    r"InvalidNodeInfo|"
    r"PodOSNotSupported|PodFeatureUnsupported|VolumeAttachmentLimitExceeded|NodeSelectorMismatching|"
    r"AppArmor|OutOf\S+"
)


@rule(
    "kubelet_admission_rejected",
    "The node rejected the pod after it was placed there",
    means="The scheduler chose a node, and its kubelet did not take the pod: a device is gone, its "
    "resources are taken, "
    "its topology does not fit. No container ever ran, and operators count it as a failure.",
    looks="Pod Failed with reason UnexpectedAdmissionError, OutOfnvidia.com/gpu, OutOfcpu, NodeAffinity, "
    "TopologyAffinityError, and no container status.",
    fix="run it again, elsewhere than on that node; the same node again means that its hardware is sick",
    needs=_NEEDS,
    retryable=True,
)
def kubelet_admission_rejected(case: Case) -> Iterator[Finding]:
    for pod in case.pods:
        told = REJECTED.fullmatch(pod.reason) is not None or pod.message.startswith("Pod was rejected")
        if (
            pod.phase != "Failed"
            or not told
            or has_run(pod)
            or "shutdown" in f"{pod.reason} {pod.message}".lower()
        ):
            continue
        yield Finding(
            "kubelet_admission_rejected",
            f"node {pod.node or 'of it'} rejected {pod.name}: {quote(pod.message or pod.reason)}",
            (Evidence(pod_object(pod), "status.reason", quote(f"{pod.reason}: {pod.message}")),),
            f"node {pod.node} ({pod.name})" if pod.node else pod.name,
            case.went_bad(pod) or pod.created,
            confidence=0.95,
        )
        return

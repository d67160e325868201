"""Starting the pod: it has a node, and its container does not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from allaboard.diagnosis.case import Case, exit_code, exit_evidence, has_run, pod_object, quote
from allaboard.diagnosis.complaints import (
    MOUNTS,
    complained,
    complaints,
)
from allaboard.diagnosis.finding import Evidence, Finding, Need
from allaboard.diagnosis.logs import Log, line_pattern
from allaboard.diagnosis.reading import readings
from allaboard.diagnosis.rule import Place, rule, says
from allaboard.diagnosis.start_errors import suggestion, why_not_started
from allaboard.diagnosis.tracebacks import RaisedException
from allaboard.diagnosis.verdict import Verdict, verdict_of
from allaboard.runs.observation import NOT_STARTED, ContainerSeen, PodSeen, Try

_NEEDS = (Need.PODS, Need.EVENTS)

# --- images ------------------------------------------------------------------------------------------------

_NOT_PULLED = "{who} cannot start: its image {image} cannot be pulled, "


def _pulls(case: Case, code: str) -> Iterator[Finding]:
    every = [
        complaint
        for complaint in complaints(case)
        if complaint.place is Place.IMAGE and complaint.code == code
    ]
    if not every:
        return
    container = every[0].container
    assert container is not None
    names = "/".join(dict.fromkeys(complaint.pod.name for complaint in every[:4]))
    blame = f"{container.name} on {names}" if container.role != "main" else names.split("/")[0]
    blame += f" (image {container.image})" if container.image else ""
    yield from complained(case, code, blame=blame)


@rule(
    "image_pull_rate_limited",
    "The registry limits how often images are pulled",
    means="Too many pulls from this address or account; the limit passes.",
    looks="`429 Too Many Requests`, `toomanyrequests`.",
    fix="it is tried again by itself; credentials or a mirror avoid it",
    needs=_NEEDS,
    retryable=True,
    signs=(
        says(
            Place.IMAGE,
            r"toomanyrequests|too many requests|pull rate limit|pull QPS exceeded|quota exceeded|"
            r"RESOURCE_EXHAUSTED|status( ?code)?:? 429",
        ),
    ),
    sentence=_NOT_PULLED + "the registry limits how often it may be pulled",
)
def image_pull_rate_limited(case: Case) -> Iterator[Finding]:
    yield from _pulls(case, "image_pull_rate_limited")


@rule(
    "image_pull_auth",
    "The registry refuses the image",
    means="The node has no credentials that the registry accepts for this image, or the repository "
    "does not exist: "
    "registries often tell both in the same words. Or a policy of the registry holds the image back.",
    looks="ErrImagePull or ImagePullBackOff with `401 Unauthorized`, `403 Forbidden`, `pull access "
    "denied`, `no basic "
    "auth credentials`.",
    fix="give the job the registry's credentials (pod.spec.imagePullSecrets), or correct the image's name",
    needs=_NEEDS,
    signs=(
        says(
            Place.IMAGE,
            reasons=("SignatureValidationFailed",),
            sentence="{who} cannot start: the signature of its image {image} is not accepted",
        ),
        says(
            Place.IMAGE,
            r"unauthorized|403 Forbidden|\bforbidden\b|access denied|authorization failed|no basic auth|"
            r"authentication required|may require authorization|insufficient_scope|\bdenied\b|"
            r"not authorized|not allowed access|invalid username|token (has|is) expired|"
            r"status( ?code)?:? 40[13]",
        ),
        says(
            Place.IMAGE,
            r"412 Precondition Failed|cannot be pulled due to configured policy|not signed",
            sentence=_NOT_PULLED + "a policy of the registry holds it back: {said}",
        ),
    ),
    sentence=_NOT_PULLED + "the registry refuses it, or it does not exist",
)
def image_pull_auth(case: Case) -> Iterator[Finding]:
    yield from _pulls(case, "image_pull_auth")


@rule(
    "image_pull_network",
    "The node does not reach the registry",
    means="Name resolution, a firewall, a proxy or the registry itself fails. In clusters without a "
    "way out it is often "
    "the image of an init container that the operator adds.",
    looks="`dial tcp .. i/o timeout`, `no such host`, `connection refused`, `TLS handshake timeout`.",
    fix="it is tried again by itself; else mirror the image where the nodes reach it, or open the way to the "
    "registry",
    needs=_NEEDS,
    retryable=True,
    signs=(
        says(Place.IMAGE, reasons=("RegistryUnavailable",)),
        says(
            Place.IMAGE,
            r"i/o timeout|no such host|connection refused|TLS handshake|connection reset|network is "
            r"unreachable|context deadline exceeded|server misbehaving|unexpected EOF|: EOF$|x509|"
            r"no route to host|Client\.Timeout|\b50[0234] (Internal|Bad|Service|Gateway|Server)|"
            r"status( ?code)?:? 50[0234]|proxyconnect|Temporary failure in name resolution|"
            r"HTTP response to HTTPS client",
        ),
        says(
            Place.IMAGE,
            sentence="{who} does not start: its image {image} cannot be pulled ({said})",
            last=True,
        ),
    ),
    sentence=_NOT_PULLED + "its registry cannot be reached from the node",
)
def image_pull_network(case: Case) -> Iterator[Finding]:
    yield from _pulls(case, "image_pull_network")


@rule(
    "image_not_found",
    "There is no such image",
    means="The tag, the digest or the platform is not in the registry, or the name is no legal one.",
    looks="`: not found`, `manifest unknown`, `no match for platform`, InvalidImageName.",
    fix="correct the job's image: its tag, or build it for the processors of the nodes",
    needs=_NEEDS,
    signs=(
        says(
            Place.IMAGE,
            reasons=("InvalidImageName",),
            sentence="{who} cannot start: '{image}' is no legal name of an image",
        ),
        says(
            Place.IMAGE,
            reasons=("ErrImageNeverPull",),
            sentence="{who} cannot start: its image {image} is not on its node, and may not be pulled",
        ),
        says(
            Place.IMAGE,
            r"not found|manifest unknown|name unknown|no match for platform|no matching manifest|does not "
            r"exist|no image found in|invalid reference format|couldn't parse image",
        ),
    ),
    sentence=_NOT_PULLED + "there is no such image, tag or platform",
)
def image_not_found(case: Case) -> Iterator[Finding]:
    yield from _pulls(case, "image_not_found")


# --- the program -------------------------------------------------------------------------------------------

_EXEC_FORMAT = line_pattern(r"exec format error|cannot execute binary file")
_NO_PROGRAM = line_pattern(
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
    for complaint in complaints(case):
        if complaint.place is Place.START and complaint.container is not None:
            failed = complaint.container.start_failure or complaint.container.now
            yield complaint.pod, complaint.container, failed, complaint.text
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
            message = match["said"] or match["own"] or ""
            yield known, ContainerSeen("main"), Try("terminated", event.reason, event.message), message
            return


@rule(
    "exec_format_error",
    "The program is built for another processor",
    means="The image's program does not fit the node's architecture, or a script has no #! line.",
    looks="`exec format error`; exit 1 or 255 within a second of the start, again and again.",
    fix="build the image for the nodes' architecture, or choose nodes by kubernetes.io/arch; begin "
    "scripts with #!",
    needs=(*_NEEDS, Need.LOGS, Need.NODES),
    signs=(says(Place.START, "exec format error"),),
    sentence="{who} cannot start: its program was built for another processor, or has no #! line",
)
def exec_format_error(case: Case) -> Iterator[Finding]:
    for pod, _, tried, message in _start_failures(case):
        if _start_verdict(message, tried.reason).code == "exec_format_error":
            yield _not_started(case, pod, tried, message, "exec_format_error")
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


def _start_verdict(message: str, reason: str) -> Verdict:
    verdict = verdict_of(Place.START, message, reason)
    assert verdict is not None, "bad_entrypoint takes what no other cause knows"
    return verdict


def _not_started(case: Case, pod: PodSeen, tried: Try, message: str, code: str) -> Finding:
    verdict = _start_verdict(message, tried.reason)
    where = "start" if case.is_local else "containerStatuses"
    full = "no process could be made" in message
    return Finding(
        code,
        verdict.sentence(pod.name),
        (Evidence(pod_object(pod), where, quote(message)),),
        pod.name,
        tried.ended or case.went_bad(pod),
        retryable=verdict.passes if code == verdict.code else None,
        fix="end other processes of this user, or raise the limit (ulimit -u)" if full else None,
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
    signs=(
        *(
            says(
                place,
                r"nvidia-container-cli|no runtime for \"?nvidia|driver/library version|driver not loaded|"
                r"nvidia-container-runtime|failed to (inject|generate) CDI|unresolvable CDI devices",
                but="requirement error|unsatisfied condition",
                sentence="{who} does not start: the GPU runtime of its node does not work: {said}",
            )
            for place in (Place.START, Place.NODE)
        ),
        says(
            Place.NODE,
            r"DRA driver \S+ (is )?not registered|(DRA )?plugin (name )?\S+ (is )?not (found|registered)|"
            r"not found in the list of registered DRA|NodePrepareResources? .{0,120}(fail|error|Unavailable)|"
            r"error preparing devices|unprepared .{0,40}CDI",
            sentence="{who} does not start: its node cannot prepare its devices: {said}",
        ),
    ),
)
def gpu_runtime_broken(case: Case) -> Iterator[Finding]:
    for pod, _, tried, message in _start_failures(case):
        if _start_verdict(message, tried.reason).code == "gpu_runtime_broken":
            yield _broken(pod, Evidence(pod_object(pod), "containerStatuses", quote(message)), tried.ended)
            return
    for complaint in complaints(case):
        if complaint.place is Place.NODE and complaint.code == "gpu_runtime_broken":
            yield _broken(complaint.pod, complaint.evidence, complaint.time)
            return
    for reading in readings(case):
        pod, log = reading.pod, reading.log
        hits = log.hits(_NOT_READY, 1)
        hit = next((h for h in hits), None)
        if hit is None and exit_code(pod) is not None:
            early = log.hits(_AT_START_NVML, 1)
            hit = (
                early[0]
                if early and early[0].position < 4000 and not log.has(line_pattern(r"\bstep\b|\bepoch\b"))
                else None
            )
        if hit is not None:
            yield _broken(
                pod, Evidence(f"log/{pod.name}", "text", quote(hit.text)), hit.time or case.went_bad(pod)
            )
            return


@rule(
    "bad_entrypoint",
    "The program of the command is not there",
    means="The command, its folder or its script does not exist in the image, or may not be executed.",
    looks="StartError, ContainerCannotRun, exit 126, 127 or 128; `executable file not found in $PATH`, "
    "`python: can't open file` (exit 2).",
    fix="correct the job's command, args or workingDir, or the image",
    needs=(*_NEEDS, Need.LOGS),
    signs=(
        says(
            Place.CONTAINER,
            "no command specified",
            sentence="{who} cannot start: neither the job nor its image says what to run",
        ),
        says(
            Place.START,
            r"exec|no such file or directory|permission denied|chdir to cwd|starting container process",
            passes=lambda message: why_not_started(message)[2],
            sentence=lambda message: f"{{who}} cannot start: {why_not_started(message)[1]}",
        ),
        says(
            Place.START,
            passes=lambda message: why_not_started(message)[2],
            sentence=lambda message: f"{{who}} cannot start: {why_not_started(message)[1]}",
            last=True,
        ),
    ),
)
def bad_entrypoint(case: Case) -> Iterator[Finding]:
    for pod, _, tried, message in _start_failures(case):
        if _start_verdict(message or tried.reason, tried.reason).code == "bad_entrypoint":
            yield _not_started(case, pod, tried, message or tried.reason, "bad_entrypoint")
    for complaint in complaints(case):
        if complaint.place is Place.CONTAINER and complaint.code == "bad_entrypoint":
            yield from complained(case, "bad_entrypoint")
            break
    for pod in case.pods:
        for container in pod.containers:
            one_try = container.ended_try
            if one_try is None or one_try.reason in NOT_STARTED:
                continue
            yield from _missing_program(case, pod, container, one_try)


_RAISED = re.compile(r"\b[\w.]+(Error|Exception)\b: ")
_NO_LIBRARY = line_pattern(r"error while loading shared libraries|cannot open shared object")


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
    reason = (
        spawn.text
        if spawn is not None
        else hit.text
        if hit is not None
        else shell[-1]
        if shell
        else ended.message
    )
    shown = f": {quote(reason)}" if reason else ": a program in its command is not there or may not run"
    who = pod.name if container.role == "main" else f"container {container.name} of {pod.name}"
    evidence = (
        (Evidence(f"log/{pod.name}", "text", quote(reason)),) if reason and reason != ended.message else ()
    )
    program = program_in(reason)
    number = Evidence(pod_object(pod), "exit_code", str(ended.exit_code))
    meant = suggestion(program) if ended.exit_code == 127 else ""
    yield Finding(
        "bad_entrypoint",
        f"{who} exited with {ended.exit_code}{shown}{meant}",
        (*evidence, number),
        f"{program} ({pod.name})" if program else pod.name,
        case.went_bad(pod),
        confidence=0.9 if hit is not None or spawn is not None or ended.exit_code == 127 else 0.75,
        who=pod.name,
    )


def _is_spawn(log: Log, raised: RaisedException) -> bool:
    """True if Python could not start another program: by the file that it looked for, which is a bare name or
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
    signs=tuple(
        says(place, pattern, sentence=f"{begins}{lacks}")
        for place, begins in (
            (Place.CONTAINER, "{who} cannot start: "),
            (Place.NODE, "{who} cannot start: {volume} cannot be mounted, "),
        )
        for pattern, lacks in (
            (
                r"couldn't find key \"?(?P<key>[^\s\"]+)\"? in (?P<kind>ConfigMap|Secret) ([^\s/]+/)?"
                r"(?P<name>[^\s,]+)",
                "{kind} {name} has no key {key}",
            ),
            (r"secrets? \"?(?P<name>[\w.-]+)\"? not found", "Secret {name} does not exist in its namespace"),
            (
                r"configmaps? \"?(?P<name>[\w.-]+)\"? not found",
                "ConfigMap {name} does not exist in its namespace",
            ),
            (
                r"references non-existent (?P<kind>secret|config) key: (?P<key>\S+)",
                "the {kind} that it mounts has no key {key}",
            ),
        )
    ),
)
def container_config_missing(case: Case) -> Iterator[Finding]:
    first = next(
        (complaint for complaint in complaints(case) if complaint.code == "container_config_missing"), None
    )
    if first is not None:
        yield from complained(case, first.code, blame=_object_in(first.text) or first.pod.name)


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
    signs=(says(Place.CONTAINER, "runAsNonRoot|non-root"),),
    sentence="{who} cannot start: it may not run as root, and its image does",
)
def run_as_nonroot_violation(case: Case) -> Iterator[Finding]:
    first = next(
        (complaint for complaint in complaints(case) if complaint.code == "run_as_nonroot_violation"), None
    )
    if first is not None and first.container is not None:
        yield from complained(case, first.code, blame=f"{first.pod.name} container {first.container.name}")


@rule(
    "container_not_made",
    "The node's container runtime does not make the container",
    means="The image is there, and the runtime of the node is too slow or does not answer: its disk is busy, "
    "or it still "
    "works on the try before.",
    looks="CreateContainerError with `context deadline exceeded` or `name .. is reserved for ..`.",
    fix="it is tried again by itself; else tell who runs the node, or start elsewhere",
    needs=_NEEDS,
    retryable=True,
    signs=(
        says(
            Place.CONTAINER,
            r"is reserved for|failed to reserve container name|deadline ?exceeded|connection refused|"
            r"transport is closing|Unavailable|name .{0,200} is already in use",
            reasons=("CreateContainerError",),
        ),
    ),
    sentence="{who} does not start: the container runtime of its node does not make it ({said})",
)
def container_not_made(case: Case) -> Iterator[Finding]:
    first = next(
        (complaint for complaint in complaints(case) if complaint.code == "container_not_made"), None
    )
    if first is not None:
        node = f"node {first.pod.node} ({first.pod.name})" if first.pod.node else first.pod.name
        yield from complained(case, first.code, blame=node)


@rule(
    "pod_sandbox_failed",
    "The node cannot set up the pod's network",
    means="Before any container, the node makes a sandbox with an address; its network plugin fails, "
    "again and again.",
    looks="FailedCreatePodSandBox: `failed to assign an IP address`, errors of the CNI plugin.",
    fix="it is tried again by itself; another node may do, else tell who runs the nodes' network",
    needs=_NEEDS,
    retryable=True,
    signs=(says(Place.NODE, reasons=("FailedCreatePodSandBox", "NetworkNotReady"), last=True),),
    sentence="{who} does not start: its node cannot set up its network or runtime: {said}",
    times=3,
    after=120.0,
)
def pod_sandbox_failed(case: Case) -> Iterator[Finding]:
    first = next(
        (complaint for complaint in complaints(case) if complaint.code == "pod_sandbox_failed"), None
    )
    if first is not None:
        yield from complained(case, first.code, blame=f"node {first.pod.node}", confidence=0.9)


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
    signs=(
        *(
            says(
                place,
                r'persistentvolumeclaim "?(?P<claim>[\w.-]+)"? not found',
                sentence="{who} cannot start: claim {claim} does not exist",
            )
            for place in (Place.PLACEMENT, Place.NODE)
        ),
        says(
            Place.PLACEMENT,
            r'persistentvolumeclaim "?(?P<claim>[\w.-]+)"? is being deleted',
            sentence="{who} cannot start: claim {claim} is being deleted",
        ),
        says(
            Place.PLACEMENT,
            r'persistentvolumeclaim "?(?P<claim>[\w.-]+)"? bound to non-existent persistentvolume',
            sentence="{who} cannot start: the volume of claim {claim} is gone",
        ),
        says(
            Place.PLACEMENT,
            r"unbound (immediate )?PersistentVolumeClaims",
            passes=True,
            sentence="{who} waits: {claims} has no volume yet (kubectl describe pvc says why)",
        ),
    ),
)
def pvc_not_bound(case: Case) -> Iterator[Finding]:
    first = next((complaint for complaint in complaints(case) if complaint.code == "pvc_not_bound"), None)
    if first is not None and first.verdict is not None:
        claim = dict(first.verdict.values).get("claim") or _pending_claim(case, first.pod)
        reasons = [*_provisioning(case, claim)]
        (finding,) = complained(
            case,
            first.code,
            blame=f"PVC {claim or first.pod.name}",
            retryable=first.verdict.passes and not reasons,
        )
        yield replace(finding, evidence=(*finding.evidence, *reasons))
        return
    for event in case.events:
        if event.kind == "PersistentVolumeClaim" and event.reason in _GETS_NONE and not case.running:
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
    own = pod.claims
    pending = [c.name for c in case.objects.claims or () if c.facts.get("status.phase") == "Pending"]
    return next((name for name in own if name in pending), next(iter(own or pending), ""))


_GETS_NONE = ("ProvisioningFailed", "FailedBinding", "ClaimLost")


def _provisioning(case: Case, claim: str) -> Iterator[Evidence]:
    for e in case.events:
        if e.kind == "PersistentVolumeClaim" and e.name == claim and e.reason in _GETS_NONE:
            yield Evidence(f"persistentvolumeclaim/{claim}", f"events.{e.reason}", quote(e.message))
            return


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
    signs=(
        says(
            Place.NODE,
            r"Multi-Attach|already (exclusively )?attached|already being used by|VolumeInUse|"
            r"RESOURCE_IN_USE_BY_ANOTHER_RESOURCE|attached to (another|a different) (node|instance|VM)",
            passes=True,
        ),
        says(
            Place.PLACEMENT,
            "ReadWriteOncePod",
            passes=True,
            sentence="{who} waits: one pod at a time may mount {claims}, and another one does",
        ),
    ),
    sentence="{who} does not start: {volume} is attached to another node: {said}",
)
def volume_multi_attach(case: Case) -> Iterator[Finding]:
    first = next(
        (complaint for complaint in complaints(case) if complaint.code == "volume_multi_attach"), None
    )
    if first is None:
        return
    by = re.search(r"used by pod\(s\) (.+?)(?:$|\.|\n)", first.text)
    holders = [name for name in re.split(r"[,\s]+", by[1]) if name] if by else []
    pod = first.pod
    own = [h for h in holders if h in case.by_name and case.by_name[h].deleted is None and h != pod.pod]
    shared = bool(own) or any(
        h.rsplit("-", 2)[0] == (pod.pod or "").rsplit("-", 2)[0] != "" and h in case.by_name for h in holders
    )
    volume = re.search(r'volume "([^"]+)"', first.text)
    claim = next(iter(pod.claims), "")
    (finding,) = complained(
        case, first.code, blame=f"PVC {claim or (volume[1] if volume else '')}", retryable=not shared
    )
    holder = f"; {own[0]} of the same job has it" if own else ""
    yield replace(finding, summary=f"{finding.summary}{holder}")


_MOUNTS = tuple(sorted(MOUNTS))
_ONLY_LATE = "timed out waiting|unmounted volumes"
"""A message that says only that mounting takes long, and gives no reason."""


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
    signs=(
        says(
            Place.NODE,
            r"access denied|no such file or directory|does not exist|type check failed|not a directory|"
            r"permission denied|wrong fs type|unknown filesystem|bad option|is not a block device|Operation "
            r"not permitted",
            but="timed out",
            reasons=_MOUNTS,
            passes=False,
        ),
        says(Place.NODE, "not registered|failed to sync (secret|configmap) cache", reasons=_MOUNTS),
        says(Place.NODE, but=_ONLY_LATE, reasons=_MOUNTS),
        says(Place.NODE, reasons=_MOUNTS, last=True),
        says(Place.CONTAINER, "subPath"),
    ),
    sentence="{who} {starts}: {volume} cannot be mounted: {said}",
)
def volume_mount_failed(case: Case) -> Iterator[Finding]:
    first = next(
        (complaint for complaint in complaints(case) if complaint.code == "volume_mount_failed"), None
    )
    if first is not None:
        volume = re.search(r'volume "([^"]+)"|unmounted volumes=\[([^\],\s]+)', first.text)
        name = (volume[1] or volume[2]) if volume else "of it"
        yield from complained(case, first.code, blame=f"volume {name}", confidence=0.9)


_NOT_READY = line_pattern(
    r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|Error 802"
)
_AT_START_NVML = line_pattern(
    r"Failed to initialize NVML|Driver/library version mismatch|libcuda\.so.{0,60}cannot open shared object"
)


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
        rejected = REJECTED.fullmatch(pod.reason) is not None or pod.message.startswith("Pod was rejected")
        if (
            pod.phase != "Failed"
            or not rejected
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

"""What keeps members from starting, in one sentence and with the code of a cause (core/docs/causes.md): an
image that cannot be had, a Secret that is not there, a program that does not exist, a volume that does not
mount, a pod that admission refuses, a request that no node can ever hold. Values in, values out.

`never` says that waiting does not help: a person must change the job or the cluster first. Such a run is
ended by its follower after the clock of the phase that it is in (`policy.clocks`), or after `PATIENCE` where
the job says nothing; and at the first look where no node can ever hold it and nothing is there that changes
that (`Obstacle.certain`): others wait for the places that it holds. What may pass by itself (a registry that
limits, a full cluster) waits without end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from allaboard.backends.kubernetes.discovery import capacity
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.diagnosis.start_errors import last_clause, why_not_started
from allaboard.engines import engine_of_object
from allaboard.engines.base import AddedContainer
from allaboard.gangs.placement import condition
from allaboard.gangs.requests import amount, requested
from allaboard.job.gpus import nearest_device
from allaboard.runs.observation import Obstacle
from allaboard.text.units import counted, from_rfc3339

Json = Mapping[str, Any]
PATIENCE = 600.0
"""Seconds for which a run that can never start is left alone where its job has no clock for the phase."""
SETTLED = 60.0
"""Seconds after which a job that no operator has written to counts as unattended."""
SANDBOX_TRIES = 3
"""Failures to make a pod's sandbox that are more than the moment of a busy node."""
INIT_TRIES = 5
"""Restarts after which an init container that fails is taken to fail for ever. The operator counts those of
running pods alone, and would let it go on without end.
"""
LONGEST = 400

_IMAGE = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
        "RegistryUnavailable", "SignatureValidationFailed",
    }
)  # fmt: skip
_START = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
_MOUNT = frozenset({"FailedMount", "FailedMapVolume", "FailedAttachVolume"})
_MOUNTED = frozenset({"Pulling", "Pulled", "Created", "Started"})
STALE = 300.0
"""Seconds after which a kubelet that still fails to mount has said so again."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is looked at. ``container``: the one that trains; ``pods``: of each member that has one, in rank
    order; ``events``: of the job and these pods; ``nodes``: None when they are not known; ``total``: members
    in all.
    """

    job: Json
    container: str
    pods: Mapping[str, Json]
    now: float
    total: int
    needed: int
    events: Sequence[Json] = ()
    nodes: Sequence[Node] | None = None
    has_status: bool = True
    suspended: bool = False


def obstacle_of(scene: Scene) -> Obstacle | None:
    """What tells the most: what never passes first, then what keeps pods from being made, then the first
    rank's.
    """
    going = sum(
        (pod.get("status") or {}).get("phase") in ("Running", "Succeeded") for pod in scene.pods.values()
    )
    if scene.suspended or (going >= scene.needed > 0 and not _stuck_at_start(scene)):
        return None
    obstacles = [*_refused(scene), *_unattended(scene)]
    for member, pod in scene.pods.items():
        obstacles += _of_pod(member, pod, scene)
    if not obstacles:
        obstacles += _too_large_together(scene)
    if not obstacles:
        return None
    chosen = min(obstacles, key=lambda one: (one.consequence, not one.never))
    same = sorted({o.member for o in obstacles if o.code == chosen.code and o.member} - {chosen.member})
    if chosen.member is None or not same:
        return chosen
    more = f"{len(same)} more member{'s' if len(same) > 1 else ''}"
    return replace(chosen, text=f"{chosen.text} (and so with {more})")


def _stuck_at_start(scene: Scene) -> bool:
    """Whether a pod runs for its kubelet alone: its program could not be started."""
    return any(
        ((c.get("lastState") or {}).get("terminated") or {}).get("reason") in _START
        and (c.get("state") or {}).get("waiting")
        for pod in scene.pods.values()
        for c in _statuses(pod)
    )


def _of_pod(member: str, pod: Json, scene: Scene) -> Iterator[Obstacle]:
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in (pod.get("metadata") or {}):
        return
    if not (pod.get("spec") or {}).get("nodeName"):
        yield from _unplaced(member, pod, scene)
        return
    said = [*_containers(member, pod, scene)]
    yield from said
    if not said and not any((c.get("state") or {}).get("running") for c in _statuses(pod)):
        yield from _preparing(member, pod, scene)


def _statuses(pod: Json) -> list[Json]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _made(member: str, pod: Json, where: str, said: str, code: str, text: str, never: bool) -> Obstacle:
    name = str((pod.get("metadata") or {}).get("name", ""))
    return Obstacle(code, text, never, member, f"pod/{name}", where, _short(said))


# --- containers ---------------------------------------------------------------------------------------------


def _containers(member: str, pod: Json, scene: Scene) -> Iterator[Obstacle]:
    inits = {c.get("name") for c in (pod.get("status") or {}).get("initContainerStatuses") or ()}
    for status in _statuses(pod):
        name = str(status.get("name", ""))
        is_init = name in inits
        who = member
        if is_init:
            who = f"{member}'s init container {name}"
        elif name != scene.container:
            who = f"{member}'s container {name}"
        state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
        waiting, over = state.get("waiting") or {}, state.get("terminated") or {}
        reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in _IMAGE:
            text = message if _tells(message) else _event_text(pod, scene, "Failed") or message
            yield _image(member, who, pod, name, reason, text, _image_of(pod, name))
        elif reason in ("CreateContainerConfigError", "CreateContainerError"):
            yield _config(member, who, pod, name, reason, message or _event_text(pod, scene, "Failed"))
        elif not state.get("running") and (reason in _START or (over or last).get("reason") in _START):
            ended = over or last
            text = str(ended.get("message") or message or _event_text(pod, scene, "Failed"))
            yield _start(member, who, pod, name, text)
        elif is_init and reason != "PodInitializing" and (over or last).get("exitCode") not in (None, 0):
            added = _added(scene.job, name)
            if added is not None:
                yield _waits(member, pod, added, over or last)
            else:
                yield _init(member, pod, name, over or last, int(status.get("restartCount") or 0))


def _tells(message: str) -> bool:
    """Whether it says more than that pulling is put off."""
    return bool(message) and not re.fullmatch(r'Back-off pulling image "[^"]*"\.?', message.strip())


def _image_of(pod: Json, container: str) -> str:
    spec = pod.get("spec") or {}
    every = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return next((str(c.get("image") or "") for c in every if c.get("name") == container), "")


_NETWORK = re.compile(
    r"i/o timeout|no such host|connection refused|TLS handshake|connection reset|network is unreachable|"
    r"context deadline exceeded|server misbehaving|unexpected EOF|x509|RegistryUnavailable|"
    r"5\d\d (Internal|Bad|Service|Gateway)",
    re.IGNORECASE,
)
_LIMITED = re.compile(r"\b429\b|toomanyrequests|too many requests", re.IGNORECASE)
_ABSENT = re.compile(r"not found|manifest unknown|name unknown|no match for platform", re.IGNORECASE)
_DENIED = re.compile(
    r"\b401\b|\b403\b|unauthorized|forbidden|access denied|authorization failed|no basic auth|"
    r"authentication required",
    re.IGNORECASE,
)


def _image(member: str, who: str, pod: Json, name: str, reason: str, said: str, image: str) -> Obstacle:
    where = f"containerStatuses[{name}].waiting"
    quoted = f"{reason}: {said}" if said else reason
    if reason == "InvalidImageName":
        text = f"{who} cannot start: {image!r} is no legal name of an image"
        return _made(member, pod, where, quoted, "image_not_found", text, True)
    if reason == "ErrImageNeverPull":
        text = f"{who} cannot start: its image {image} is not on its node, and may not be pulled"
        return _made(member, pod, where, quoted, "image_not_found", text, True)
    if reason == "SignatureValidationFailed":
        text = f"{who} cannot start: the signature of its image {image} is not accepted"
        return _made(member, pod, where, quoted, "image_pull_auth", text, True)
    kinds = (
        (_LIMITED, "image_pull_rate_limited", "the registry limits how often it may be pulled", False),
        (_NETWORK, "image_pull_network", "its registry cannot be reached from the node", False),
        (_DENIED, "image_pull_auth", "the registry refuses it, or it does not exist", True),
        (_ABSENT, "image_not_found", "there is no such image, tag or platform", True),
    )
    for pattern, code, words, never in kinds:
        if pattern.search(said):
            text = f"{who} cannot start: its image {image} cannot be pulled, {words}"
            return _made(member, pod, where, quoted, code, text, never)
    text = f"{who} does not start: its image {image} cannot be pulled"
    more = f" ({_short(said)})" if _tells(said) else ""
    return _made(member, pod, where, quoted, "image_pull_network", text + more, False)


_OBJECT = re.compile(r'(secret|configmap)s? (?:"([^"]+)"|(\S+)) not found', re.IGNORECASE)
_KEY = re.compile(r"couldn't find key (\S+) in (ConfigMap|Secret) (\S+)", re.IGNORECASE)
_UNKNOWN_KEY = re.compile(r"references non-existent (secret|config) key: (\S+)", re.IGNORECASE)


def _lacking_object(said: str) -> str | None:
    """What it says is not there, in words."""
    if match := _KEY.search(said):
        return f"{match[2]} {match[3].rpartition('/')[2]} has no key {match[1].strip(chr(34))}"
    if match := _OBJECT.search(said):
        kind = "ConfigMap" if match[1].lower() == "configmap" else "Secret"
        return f"{kind} {(match[2] or match[3]).strip(chr(34))} does not exist"
    if match := _UNKNOWN_KEY.search(said):
        return f"the {match[1].lower()} that it mounts has no key {match[2]}"
    return None


def _config(member: str, who: str, pod: Json, name: str, reason: str, said: str) -> Obstacle:
    where, quoted = f"containerStatuses[{name}].waiting", f"{reason}: {said}"
    if (lacks := _lacking_object(said)) is not None:
        text = (
            f"{who} cannot start: {lacks} in {(pod.get('metadata') or {}).get('namespace', 'its namespace')}"
        )
        return _made(member, pod, where, quoted, "container_config_missing", text, True)
    if "runAsNonRoot" in said or "non-root" in said:
        text = f"{who} cannot start: it may not run as root, and its image does"
        return _made(member, pod, where, quoted, "run_as_nonroot_violation", text, True)
    if "subPath" in said:
        text = f"{who} cannot start: {_short(said)}"
        return _made(member, pod, where, quoted, "volume_mount_failed", text, False)
    if "no command specified" in said:
        text = f"{who} cannot start: neither the job nor its image says what to run"
        return _made(member, pod, where, quoted, "bad_entrypoint", text, True)
    text = f"{who} does not start: {_short(said) or reason}"
    return _made(member, pod, where, quoted, "unknown", text, False)


def _start(member: str, who: str, pod: Json, name: str, said: str) -> Obstacle:
    code, words, passes = why_not_started(said)
    where = f"containerStatuses[{name}]"
    return _made(member, pod, where, said, code, f"{who} cannot start: {words}", not passes)


def _added(job: Json, name: str) -> AddedContainer | None:
    """The init container of this name that the operator of a job adds; None: the operator adds none."""
    engine = engine_of_object(job)
    return next((one for one in engine.ADDED if one.name == name), None) if engine is not None else None


def _waits(member: str, pod: Json, added: AddedContainer, ended: Json) -> Obstacle:
    text = f"{member} waits for {added.waits_for}"
    where, quoted = f"initContainerStatuses[{added.name}]", _end_of(ended)
    return replace(_made(member, pod, where, quoted, "master_unreachable_dns", text, False), consequence=True)


def _end_of(ended: Json) -> str:
    code, said = int(ended.get("exitCode") or 0), str(ended.get("message") or "").strip()
    return f"exitCode {code}" + (f": {said}" if said else "")


def _init(member: str, pod: Json, name: str, ended: Json, restarts: int) -> Obstacle:
    code, said = int(ended.get("exitCode") or 0), str(ended.get("message") or "").strip()
    lines = [line for line in said.splitlines() if line.strip()]
    more = f": {_short(lines[-1])}" if lines else ""
    where, quoted = f"initContainerStatuses[{name}]", _end_of(ended)
    reason = str(ended.get("reason") or "")
    why = f" ({reason})" if reason not in _PLAIN_ENDS else ""
    again = f" ({counted(restarts, 'restart')})" if restarts else ""
    text = f"{member} does not start: its init container {name} exited with {code}{why}{more}{again}"
    return _made(member, pod, where, quoted, _code_of(code, reason, said), text, restarts >= INIT_TRIES)


_PLAIN_ENDS = frozenset({"", "Error", "Completed"})
"""Reasons of an end that say no more than its exit code."""


def _code_of(code: int, reason: str, said: str) -> str:
    if reason == "OOMKilled":
        return "oom_killed"
    if code in (126, 127):
        return "bad_entrypoint"
    return "python_exception" if "Traceback" in said else "unknown"


# --- before containers --------------------------------------------------------------------------------------


def _about(pod: Json, scene: Scene) -> list[Json]:
    uid = (pod.get("metadata") or {}).get("uid")
    return [e for e in scene.events if (e.get("involvedObject") or {}).get("uid") == uid]


def _event_text(pod: Json, scene: Scene, reason: str) -> str:
    messages = [str(e.get("message") or "") for e in _about(pod, scene) if e.get("reason") == reason]
    return max(messages, key=len, default="")


def _preparing(member: str, pod: Json, scene: Scene) -> Iterator[Obstacle]:
    """A pod that has a node, and none of whose containers was made yet: volumes and network come first."""
    about = _about(pod, scene)
    over = max((when(e) or 0.0 for e in about if e.get("reason") in _MOUNTED), default=0.0)
    mounts = [e for e in about if e.get("reason") in _MOUNT and (when(e) or 0.0) > over]
    mounts = [e for e in mounts if scene.now - (when(e) or 0.0) < STALE]
    if mounts:
        # Of several the one that names the trouble: the others only say that it takes long.
        mounts.sort(key=lambda e: "timed out waiting" in str(e.get("message")))
        event = mounts[0]
        reason, said = str(event.get("reason")), str(event.get("message") or "")
        code, words, never = _mount(said)
        text = f"{member} cannot start: {words}" if never else f"{member} does not start: {words}"
        yield _made(member, pod, f"events.{reason}", said, code, text, never)
        return
    boxes = [e for e in about if e.get("reason") == "FailedCreatePodSandBox"]
    if sum(int(e.get("count") or 1) for e in boxes) >= SANDBOX_TRIES:
        said = str(boxes[-1].get("message") or "")
        broken = "no runtime for" in said
        code = "gpu_runtime_broken" if broken else "pod_sandbox_failed"
        text = f"{member} does not start: its node cannot set up its network or runtime: {last_clause(said)}"
        yield _made(member, pod, "events.FailedCreatePodSandBox", said, code, text, False)


def _mount(said: str) -> tuple[str, str, bool]:
    volume = re.search(r'for volume "([^"]+)"', said)
    named = f"volume {volume[1]}" if volume else "a volume"
    if (lacks := _lacking_object(said)) is not None:
        return "container_config_missing", f"{named} cannot be mounted, {lacks}", True
    if "Multi-Attach" in said or "already exclusively attached" in said:
        return "volume_multi_attach", f"{named} is attached to another node: {last_clause(said)}", False
    if re.search(r"persistentvolumeclaim \S+ not found", said, re.IGNORECASE):
        return "pvc_not_bound", f"{named}: {last_clause(said)}", True
    final = re.search(
        r"access denied|no such file or directory|does not exist|type check failed|not a directory|"
        r"permission denied|wrong fs type|unknown filesystem",
        said,
        re.IGNORECASE,
    )
    return "volume_mount_failed", f"{named} cannot be mounted: {last_clause(said)}", final is not None


# --- pods that are refused ----------------------------------------------------------------------------------

_REFUSALS: tuple[tuple[str, str, bool], ...] = (
    ("violates PodSecurity", "pod_security_denied", True),
    ("security context constraint", "openshift_scc_denied", True),
    (" usage per ", "limitrange_denied", True),
    ("max limit to request ratio", "limitrange_denied", True),
    ("error looking up service account", "pod_reference_missing", True),
    ("no PriorityClass", "pod_reference_missing", True),
    ("failed calling webhook", "webhook_unavailable", False),
    ("denied the request", "admission_webhook_denied", True),
    ("cannot create resource", "rbac_forbidden", True),
    (" is invalid", "job_spec_invalid", True),
    ("not found", "pod_reference_missing", True),
)
_QUOTA = re.compile(r"exceeded quota: (\S+), requested: (.*?), used: (.*?), limited: (.*)", re.DOTALL)


def _refused(scene: Scene) -> Iterator[Obstacle]:
    said = refusal(scene.events)
    if said is None or len(scene.pods) >= scene.needed or scene.suspended:
        return
    code, never = why_refused(said)
    missing = scene.total - len(scene.pods)
    text = f"{missing} of {scene.total} members cannot be made: {_short(said)}"
    name = str((scene.job.get("metadata") or {}).get("name", ""))
    yield Obstacle(code, text, never, None, f"job/{name}", "events.FailedCreatePod", _short(said))


def why_refused(said: str) -> tuple[str, bool]:
    """(code, whether waiting does not help) of what the API server said when a pod was to be made."""
    if "failed quota" in said and "must specify" in said:
        return "resource_quota_exceeded", True
    if (quota := _QUOTA.search(said)) is not None:
        wanted, limit = _amounts(quota[2]), _amounts(quota[4])
        return "resource_quota_exceeded", any(v > limit.get(n, v) for n, v in wanted.items())
    if "exceeded quota" in said:
        return "resource_quota_exceeded", False
    return next(((code, never) for words, code, never in _REFUSALS if words in said), ("unknown", False))


def _amounts(text: str) -> dict[str, Decimal]:
    """``requests.cpu=4,pods=2``"""
    amounts = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            amounts[name] = amount(value)
        except (ValueError, ArithmeticError):
            continue
    return amounts


def refusal(events: Iterable[Json]) -> str | None:
    """What the API server said last when the operator made a pod."""
    every = list(events)
    refusals = [e for e in every if e.get("reason") in ("FailedCreatePod", "FailedCreate")]
    made = [e for e in every if e.get("reason") in ("SuccessfulCreatePod", "SuccessfulCreate")]
    newest = max(refusals, key=lambda e: when(e) or 0.0, default=None)
    if newest is None or any((when(e) or 0.0) > (when(newest) or 0.0) for e in made):
        return None
    return str(newest.get("message", "")).strip()


def when(event: Json) -> float | None:
    """When it happened last. Recorders of events.k8s.io fill eventTime and series alone."""
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    times = [series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")]
    times += [event.get("firstTimestamp"), metadata.get("creationTimestamp")]
    return next((from_rfc3339(t) for t in times if t), None)


def _unattended(scene: Scene) -> Iterator[Obstacle]:
    """A job that no operator has written to."""
    created = from_rfc3339((scene.job.get("metadata") or {}).get("creationTimestamp"))
    engine = engine_of_object(scene.job)
    managed = None if engine is None else engine.managed_by(scene.job)
    if scene.has_status or scene.pods or scene.suspended or managed or created is None:
        return
    if scene.now - created >= SETTLED and not scene.events:
        name = str((scene.job.get("metadata") or {}).get("name", ""))
        kind = scene.job.get("kind", "job")
        text = f"no operator has taken up the {kind} for {scene.now - created:.0f} s: is it running?"
        yield Obstacle("operator_not_running", text, False, None, f"job/{name}", "status", "")


# --- pods without a node ------------------------------------------------------------------------------------


def is_unschedulable(pod: Json) -> bool:
    """Whether a scheduler has said that it finds no place for it."""
    scheduled = condition(pod, "PodScheduled")
    return (
        scheduled is not None
        and scheduled.get("status") == "False"
        and scheduled.get("reason") != "SchedulingGated"
    )


def _unplaced(member: str, pod: Json, scene: Scene) -> Iterator[Obstacle]:
    if not is_unschedulable(pod):
        return
    said = str((condition(pod, "PodScheduled") or {}).get("message") or "")
    if "persistentvolumeclaim" in said.lower():
        yield from _claims(member, pod, said)
        return
    if "device class" in said or "resourceclaim" in said or "all claims" in said:
        yield from _devices(member, pod, said)
    if scene.nodes is None:
        return
    if (reason := impossible(pod.get("spec") or {}, scene.nodes)) is not None:
        code, words = reason
        grows = _may_grow(scene)
        text = f"{member} can never start here: {words}"
        if grows:
            text = f"{member} does not start: {words}; a node may be added"
        one = _made(member, pod, "conditions.PodScheduled", said, code, text, not grows)
        most = _at_most(scene)
        yield replace(one, certain=most is not None and impossible(pod.get("spec") or {}, most) is not None)


def _claims(member: str, pod: Json, said: str) -> Iterator[Obstacle]:
    absent = re.search(r'persistentvolumeclaim "([^"]+)" not found', said, re.IGNORECASE)
    claims = [*_claims_of(pod)]
    where = "conditions.PodScheduled"
    if "ReadWriteOncePod" in said:
        text = f"{member} waits: one pod at a time may mount claim {', '.join(claims)}, and another one does"
        yield _made(member, pod, where, said, "volume_multi_attach", text, False)
    elif "waiting for ephemeral volume controller" in said:
        return  # it is made for the pod this moment
    elif absent is not None:
        text = f"{member} cannot start: claim {absent[1]} does not exist"
        yield _made(member, pod, where, said, "pvc_not_bound", text, True)
    elif "unbound immediate" in said:
        named = f"claim {', '.join(claims)}" if claims else "a claim"
        text = f"{member} waits: {named} has no volume yet (kubectl describe pvc says why)"
        yield _made(member, pod, where, said, "pvc_not_bound", text, False)


def _claims_of(pod: Json) -> Iterator[str]:
    """The claims that a pod mounts; those of its ephemeral volumes are called after it."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            yield str(claim.get("claimName"))
        elif volume.get("ephemeral"):
            yield f"{(pod.get('metadata') or {}).get('name')}-{volume.get('name')}"


_NO_CLASS = re.compile(r"device class (\S{1,253}) does not exist")


def _devices(member: str, pod: Json, said: str) -> Iterator[Obstacle]:
    """Claims of devices (DRA), which are no resources of nodes (kube-scheduler, dynamicresources.go)."""
    where = "conditions.PodScheduled"
    if (absent := _NO_CLASS.search(said)) is not None:
        text = f"{member} cannot start: device class {absent[1]} does not exist"
        yield _made(member, pod, where, said, "gpu_not_advertised", text, True)
    elif "cannot allocate all claims" in said:
        text = f"{member} waits for devices: no node has as many as it claims that are free and fit its class"
        yield _made(member, pod, where, said, "insufficient_gpu", text, False)
    elif "resourceclaim" in said:
        text = f"{member} waits for the claim of its devices"
        yield _made(member, pod, where, said, "insufficient_gpu", text, False)


def _may_grow(scene: Scene) -> bool:
    """Whether nodes are made on demand, or just now: what is not there may come."""
    return any(node.grows for node in scene.nodes or ()) or any(
        e.get("reason") in ("TriggeredScaleUp", "Nominated") for e in scene.events
    )


def _at_most(scene: Scene) -> list[Node] | None:
    """The nodes with all that they can ever offer; None where that is not known: something may add nodes, one
    is not ready, or has come just now, without its devices maybe. A device plugin that is started again
    offers none for a moment; the capacity stays.
    """
    nodes = scene.nodes or ()
    settled = all(
        node.grows is False and node.ready and (node.joined is None or scene.now - node.joined >= PATIENCE)
        for node in nodes
    )
    if not nodes or not settled:
        return None
    return [
        replace(node, cordoned=False, allocatable={**node.allocatable, **node.capacity}) for node in nodes
    ]


def impossible(spec: Json, nodes: Sequence[Node]) -> tuple[str, str] | None:
    """(code, words) when no node could hold a pod of this spec, were it empty, ready and open; None: one
    could, or there are no nodes at all.
    """
    if not nodes:
        return None
    asked = {name: value for name, value in requested(spec).items() if value > 0}
    for name, value in asked.items():
        most = max((amount(n.allocatable.get(name, 0)) for n in nodes), default=Decimal(0))
        device = "/" in name
        if device and not most:
            offered = sorted({r for n in nodes for r, v in n.allocatable.items() if "/" in r and amount(v)})
            near = nearest_device(name, offered)
            meant = f"; did you mean {near}?" if near else ""
            return "gpu_not_advertised", f"no node offers {name}, of which it asks for {value}{meant}"
        if value > most:
            has = f"the largest node has {capacity.show(name, most)}"
            words = f"it asks for {capacity.show(name, value)} {name}, and {has}"
            return "insufficient_gpu" if device else "unschedulable_constraints", words
    reasons: dict[str, int] = {}
    for node in nodes:
        willing = replace(node, ready=True, cordoned=False)
        why = capacity.why_not(spec, willing) or next(iter(capacity.lacking(spec, node)), None)
        if why is None:
            return None
        reasons[why] = reasons.get(why, 0) + 1
    sentences = [
        f"{why} ({n} of {len(nodes)} nodes)" for why, n in sorted(reasons.items(), key=lambda i: -i[1])[:3]
    ]
    return "unschedulable_constraints", f"no node takes it: {'; '.join(sentences)}"


def _too_large_together(scene: Scene) -> Iterator[Obstacle]:
    """Members that each fit a node, and not all of them at once, were all nodes empty."""
    nodes = scene.nodes
    waits = [member for member, pod in scene.pods.items() if is_unschedulable(pod)]
    if nodes is None or not nodes or not waits or len(scene.pods) < scene.needed:
        return
    willing = [replace(node, ready=True, cordoned=False) for node in nodes]
    groups = [capacity.Pods(member, 1, pod.get("spec") or {}, {}) for member, pod in scene.pods.items()]
    fits = capacity.room(groups, willing)
    if fits >= scene.needed or _may_grow(scene):
        return
    pod = scene.pods[waits[0]]
    said = str((condition(pod, "PodScheduled") or {}).get("message") or "")
    gpus = any("/" in name for group in groups for name in requested(group.spec))
    text = (
        f"{fits} of its {scene.needed} members have a place at once, even on empty nodes: it can never start"
    )
    code = "insufficient_gpu" if gpus else "unschedulable_constraints"
    one = _made(waits[0], pod, "conditions.PodScheduled", said, code, text, True)
    most = _at_most(scene)
    yield replace(one, certain=most is not None and capacity.room(groups, most) < scene.needed)


# --- words --------------------------------------------------------------------------------------------------


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 3]}..."

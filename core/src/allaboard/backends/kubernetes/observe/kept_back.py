"""Obstacles that keep the members of a run from starting, by the rules of the causes and the nodes of the
cluster. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from allaboard.backends.kubernetes.discovery import capacity
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.discovery.pod_specs import pod_spec
from allaboard.backends.kubernetes.observe.objects import (
    from_nodes,
    object_seen,
)
from allaboard.backends.kubernetes.observe.scene import PATIENCE, Scene, refusal
from allaboard.diagnosis.case import Case
from allaboard.diagnosis.causes import all_rules
from allaboard.diagnosis.complaints import Complaint, of_pod
from allaboard.diagnosis.placement import is_closed
from allaboard.diagnosis.verdict import refusal_verdict
from allaboard.engines import engine_of_object
from allaboard.engines.base import AddedContainer
from allaboard.gangs.requests import amount
from allaboard.job.gpus import nearest_device
from allaboard.runs.observation import ContainerSeen, Objects, Observation, Obstacle, PodSeen, Try
from allaboard.text.units import counted

Json = Mapping[str, Any]
INIT_TRIES = 5
"""Restarts after which a failing init container is taken to fail for ever. The operator counts the restarts
of running pods alone, and would let it go on without end.
"""
LONGEST = 400


def obstacle_in(scene: Scene) -> Obstacle | None:
    """The most telling obstacle: one that never passes first, then one that keeps pods from being made, then
    that of the first rank.
    """
    case = _case(scene)
    obstacles = [*_refused(scene, case), *_unattended(scene, case)]
    for member, pod in scene.pods.items():
        obstacles += _of_pod(member, pod, case, scene)
    if not obstacles:
        obstacles += _too_large_together(scene)
    if not obstacles:
        return None
    chosen = min(obstacles, key=lambda obstacle: (obstacle.consequence, not obstacle.never))
    same = sorted({o.member for o in obstacles if o.code == chosen.code and o.member} - {chosen.member})
    if chosen.member is None or not same:
        return chosen
    more = f"{len(same)} more member{'s' if len(same) > 1 else ''}"
    return replace(chosen, text=f"{chosen.text} (the same holds for {more})")


def _case(scene: Scene) -> Case:
    """The scene as a case for the rules."""
    job, nodes = object_seen(scene.job), from_nodes(scene.nodes)
    objects = Objects(scene.now, True, job, None, tuple(scene.pods.values()), tuple(scene.events), nodes)
    return Case(Observation("", objects=objects))


def _of_pod(member: str, pod: PodSeen, case: Case, scene: Scene) -> Iterator[Obstacle]:
    if pod.phase in ("Succeeded", "Failed") or pod.deleted is not None:
        return
    complaints = [*of_pod(case, pod)]
    if not pod.node:
        yield from _unplaced(member, pod, complaints, case, scene)
        return
    yield from (_told(member, complaint) for complaint in complaints)
    for container in pod.containers:
        if container.role == "init" and not any(complaint.container is container for complaint in complaints):
            yield from _init(member, pod, container, scene)


def _told(member: str, complaint: Complaint) -> Obstacle:
    """The obstacle of a complaint, as the live view shows it."""
    quoted, object_name = short(complaint.quoted), f"pod/{complaint.pod.pod}"
    if complaint.verdict is None:
        text = f"{complaint.who} does not start: {short(complaint.text) or complaint.reason}"
        return Obstacle("unknown", text, False, member, object_name, complaint.field, quoted)
    return Obstacle(
        complaint.code,
        short(complaint.sentence),
        not complaint.verdict.passes,
        member,
        object_name,
        complaint.field,
        quoted,
    )


# --- init containers ----------------------------------------------------------------------------------------


def _init(member: str, pod: PodSeen, container: ContainerSeen, scene: Scene) -> Iterator[Obstacle]:
    """An init container that fails, also while it runs again."""
    tries = (t for t in (container.now, container.last) if t is not None)
    ended = next((t for t in tries if t.state == "terminated"), None)
    if ended is None or not ended.failed or container.now.reason == "PodInitializing":
        return
    added = _added(scene.job, container.name)
    if added is not None:
        yield _waits(member, pod, added, ended)
    else:
        yield _failed(member, pod, container, ended)


def _added(job: Json, name: str) -> AddedContainer | None:
    """The init container of this name that the operator of a job adds; None: the operator adds none."""
    engine = engine_of_object(job)
    return next((added for added in engine.ADDED if added.name == name), None) if engine is not None else None


def _waits(member: str, pod: PodSeen, added: AddedContainer, ended: Try) -> Obstacle:
    text = f"{member} waits for {added.waits_for}"
    where, code = f"initContainerStatuses[{added.name}]", "master_unreachable_dns"
    quoted, object_name = short(_end_of(ended)), f"pod/{pod.pod}"
    return Obstacle(code, text, False, member, object_name, where, quoted, consequence=True)


def _end_of(ended: Try) -> str:
    message = ended.message.strip()
    return f"exitCode {ended.exit_code or 0}" + (f": {message}" if message else "")


def _failed(member: str, pod: PodSeen, container: ContainerSeen, ended: Try) -> Obstacle:
    code, restarts = ended.exit_code or 0, container.restarts
    lines = [line for line in ended.message.splitlines() if line.strip()]
    more = f": {short(lines[-1])}" if lines else ""
    reason = f" ({ended.reason})" if ended.reason not in _PLAIN_ENDS else ""
    again = f" ({counted(restarts, 'restart')})" if restarts else ""
    how = f"exited with {code}{reason}{more}{again}"
    text = f"{member} does not start: its init container {container.name} {how}"
    where, quoted = f"initContainerStatuses[{container.name}]", short(_end_of(ended))
    object_name = f"pod/{pod.pod}"
    return Obstacle(_code_of(ended), text, restarts >= INIT_TRIES, member, object_name, where, quoted)


_PLAIN_ENDS = frozenset({"", "Error", "Completed"})
"""Reasons of an end that add nothing to its exit code."""


def _code_of(ended: Try) -> str:
    if ended.reason == "OOMKilled":
        return "oom_killed"
    if ended.exit_code in (126, 127):
        return "bad_entrypoint"
    return "python_exception" if "Traceback" in ended.message else "unknown"


# --- pods that are refused ----------------------------------------------------------------------------------


def _refused(scene: Scene, case: Case) -> Iterator[Obstacle]:
    message = refusal(case.events)
    if message is None or len(scene.pods) >= scene.needed:
        return
    verdict = refusal_verdict(message, limits=case.limits)
    missing = scene.total - len(scene.pods)
    text = f"{missing} of {scene.total} members cannot be made: {short(message)}"
    code, never = ("unknown", False) if verdict is None else (verdict.code, not verdict.passes)
    yield Obstacle(code, text, never, None, f"job/{_name(case)}", "events.FailedCreatePod", short(message))


def _name(case: Case) -> str:
    return case.job.name if case.job is not None else ""


def _unattended(scene: Scene, case: Case) -> Iterator[Obstacle]:
    """A job that no operator has written to."""
    if scene.has_status or scene.pods or scene.events:
        return
    engine, job = engine_of_object(scene.job), case.job
    managed = None if engine is None else engine.managed_by(scene.job)
    if managed or job is None or job.created is None:
        return
    cause = all_rules()["operator_not_running"].cause
    if (age := scene.now - job.created) >= cause.after:
        text = f"no operator has taken up the {job.kind or 'job'} for {age:.0f} s: is it running?"
        yield Obstacle(cause.code, text, False, None, f"job/{job.name}", "status", "")


# --- pods without a node ------------------------------------------------------------------------------------


def _unplaced(
    member: str, pod: PodSeen, complaints: Sequence[Complaint], case: Case, scene: Scene
) -> Iterator[Obstacle]:
    if not pod.finds_no_place:
        return
    judged = [complaint for complaint in complaints if complaint.verdict is not None]
    if any(complaint.is_sure for complaint in judged):
        yield from (_told(member, complaint) for complaint in judged)
        return
    grows = _may_grow(scene)
    message = next((complaint.text for complaint in complaints), "")
    if scene.nodes is not None and (reason := impossible(scene.specs[member], scene.nodes)) is not None:
        code, trouble = reason
        text = f"{member} can never start here: {trouble}"
        if grows:
            text = f"{member} does not start: {trouble}; a node may be added"
        most = _at_most(scene)
        certain = most is not None and impossible(scene.specs[member], most) is not None
        yield _without_place(member, pod, code, text, message, never=not grows, certain=certain)
    elif judged and not grows and is_closed(case, pod, message):
        # Nodes may not be read, or do not show where volumes lie: the scheduler knows.
        yield _without_place(member, pod, judged[0].code, judged[0].sentence, message, never=True)


def _without_place(
    member: str, pod: PodSeen, code: str, text: str, message: str, *, never: bool, certain: bool = False
) -> Obstacle:
    where = "conditions.PodScheduled"
    return Obstacle(
        code, short(text), never, member, f"pod/{pod.pod}", where, short(message), certain=certain
    )


def _may_grow(scene: Scene) -> bool:
    """True when nodes are made on demand, or are being made: a missing node may come."""
    return any(node.grows for node in scene.nodes or ()) or any(
        e.reason in ("TriggeredScaleUp", "Nominated") for e in scene.events
    )


def _at_most(scene: Scene) -> list[Node] | None:
    """The nodes with all that they can ever offer; None where that is not known: something may add nodes, a
    node is not ready, or has come just now, maybe without its devices. A device plugin that is started again
    offers no device for a moment; the capacity stays.
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
    """(code, sentence) when no node could hold a pod of this spec, were it empty, ready and open; None: a
    node could, or there are no nodes at all.
    """
    if not nodes:
        return None
    pod = pod_spec(spec)
    asked = {name: value for name, value in pod.requests.items() if value > 0}
    for name, value in asked.items():
        most = max((amount(n.allocatable.get(name, 0)) for n in nodes), default=Decimal(0))
        device = "/" in name
        if device and not most:
            offered = sorted({r for n in nodes for r, v in n.allocatable.items() if "/" in r and amount(v)})
            near = nearest_device(name, offered)
            meant = f"; did you mean {near}?" if near else ""
            return "gpu_not_advertised", f"no node offers {name}, and it asks for {value}{meant}"
        if value > most:
            has = f"the largest node has {capacity.show(name, most)}"
            trouble = f"it asks for {capacity.show(name, value)} {name}, and {has}"
            return "insufficient_gpu" if device else "unschedulable_constraints", trouble
    reasons: dict[str, int] = {}
    for node in nodes:
        willing = replace(node, ready=True, cordoned=False)
        obstacle = capacity.misfit(pod, willing) or next(iter(capacity.lacking(pod, node)), None)
        if obstacle is None:
            return None
        reasons[obstacle] = reasons.get(obstacle, 0) + 1
    sentences = [
        f"{obstacle} ({n} of {len(nodes)} nodes)"
        for obstacle, n in sorted(reasons.items(), key=lambda i: -i[1])[:3]
    ]
    return "unschedulable_constraints", f"no node takes it: {'; '.join(sentences)}"


def _too_large_together(scene: Scene) -> Iterator[Obstacle]:
    """Members that each fit a node, and not all of them at once, were all nodes empty."""
    nodes = scene.nodes
    waits = [member for member, pod in scene.pods.items() if pod.finds_no_place]
    if nodes is None or not nodes or not waits or len(scene.pods) < scene.needed:
        return
    willing = [replace(node, ready=True, cordoned=False) for node in nodes]
    groups = [capacity.Pods(member, 1, scene.specs[member], {}) for member in scene.pods]
    fits = capacity.room(groups, willing)
    if fits >= scene.needed or _may_grow(scene):
        return
    pod = scene.pods[waits[0]]
    scheduled = pod.condition("PodScheduled")
    gpus = any("/" in name for group in groups for name in group.pod.requests)
    text = (
        f"{fits} of its {scene.needed} members have a place at once, even on empty nodes: it can never start"
    )
    code = "insufficient_gpu" if gpus else "unschedulable_constraints"
    most = _at_most(scene)
    certain = most is not None and capacity.room(groups, most) < scene.needed
    message = scheduled.message if scheduled is not None else ""
    yield _without_place(waits[0], pod, code, text, message, never=True, certain=certain)


# --- text ---------------------------------------------------------------------------------------------------


def short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 3]}..."

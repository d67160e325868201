"""Reader of a cluster's objects, into the values of an observation (`allaboard.runs.observation.Objects`).
Fields that are missing or of the wrong kind are left out: nothing here raises. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from allaboard.backends.kubernetes.client.values import (
    MOST_ITEMS,
    Json,
    as_text,
    at,
    dicts,
    is_scalar,
    mapping,
    moment,
    text,
    texts,
    whole,
)
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.engines import Engine
from allaboard.job.helper import as_start_error
from allaboard.runs.observation import (
    Condition,
    ContainerSeen,
    EventSeen,
    NodeSeen,
    Objects,
    ObjectSeen,
    PodSeen,
    Refused,
    Try,
)

MOST_FACTS, DEEPEST = 600, 14
"""Scalars of one object that are kept, and how deep they may lie."""
MOST_KNOWN = 4096
"""Pods whose values are kept between looks."""
TRAINS = frozenset({"pytorch", "tensorflow", "xgboost", "paddle", "jax", "mpi", "mxnet", "node", "trainer"})
"""Containers that train, by the names that operators give them."""


def objects_of(
    *,
    now: float | None,
    job: Any = None,
    refused: Any = None,
    pods: Any = (),
    events: Any = (),
    nodes: Any = None,
    groups: Any = None,
    workloads: Any = None,
    queues: Any = None,
    claims: Any = None,
    engine: Engine | None = None,
    by_member: bool = False,
) -> Objects:
    """Read all objects. ``by_member``: pods have the names of their members, else their own."""
    return Objects(
        now=now,
        job=object_seen(job) if isinstance(job, Mapping) else None,
        refused=_refused(refused),
        pods=tuple(_pod(pod, engine, by_member) for pod in dicts(pods)),
        events=tuple(event_seen(event) for event in dicts(events, MOST_ITEMS * 5)),
        nodes=None if nodes is None else tuple(_node(node) for node in dicts(nodes)),
        groups=_objects(groups),
        workloads=_objects(workloads),
        queues=_objects(queues),
        claims=_objects(claims),
    )


def _facts(value: Any, path: str = "") -> dict[str, str]:
    facts: dict[str, str] = {}
    for name, scalar in _leaves(value, path, 0):
        if len(facts) >= MOST_FACTS:
            break
        facts[name] = scalar
    return facts


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if is_scalar(value):
        yield path, as_text(value)
    elif depth > DEEPEST:
        return
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "managedFields":
                yield from _leaves(inner, f"{path}.{str(key)[:200]}" if path else str(key)[:200], depth + 1)
    elif isinstance(value, list | tuple):
        for n, inner in enumerate(value[:200]):
            yield from _leaves(inner, f"{path}[{n}]", depth + 1)


class Lazily(Mapping[str, str]):
    """Texts of a large part of an object, read on first use: most looks need none of them."""

    __slots__ = ("_read", "_known")

    def __init__(self, read: Callable[[], dict[str, str]]) -> None:
        self._read = read
        self._known: dict[str, str] | None = None

    @property
    def _all(self) -> dict[str, str]:
        known = self._known = self._read() if self._known is None else self._known
        return known

    def __getitem__(self, key: str) -> str:
        return self._all[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)


# --- objects -----------------------------------------------------------------------------------------------


def _conditions(value: Any) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            text(c.get("type")),
            text(c.get("status")),
            text(c.get("reason")),
            text(c.get("message")),
            moment(c.get("lastTransitionTime")),
        )
        for c in dicts(value, 100)
    )


def _objects(value: Any) -> tuple[ObjectSeen, ...] | None:
    return None if value is None else tuple(object_seen(body) for body in dicts(value))


def object_seen(body: Json) -> ObjectSeen:
    metadata = mapping(body.get("metadata"))

    def parts() -> dict[str, str]:
        return _facts({"spec": body.get("spec"), "status": _without_conditions(body.get("status"))})

    return ObjectSeen(
        kind=text(body.get("kind")),
        name=text(at(metadata, "name")),
        created=moment(at(metadata, "creationTimestamp")),
        conditions=_conditions(at(body, "status", "conditions")),
        labels=Lazily(lambda: _labels(metadata)),
        facts=Lazily(parts),
    )


def _without_conditions(status: Any) -> Any:
    return {k: v for k, v in status.items() if k != "conditions"} if isinstance(status, Mapping) else None


def _refused(status: Any) -> Refused | None:
    if isinstance(status, str):
        return Refused(text(status))
    if not isinstance(status, Mapping) or not (status.get("message") or status.get("reason")):
        return None
    return Refused(text(status.get("message")), text(status.get("reason")), whole(status.get("code")))


def _pod(pod: Json, engine: Engine | None, by_member: bool) -> PodSeen:
    member = _member(pod, engine)
    seen = pod_seen(pod, engine.CONTAINER if engine is not None else "", member)
    return seen if by_member and member else replace(seen, name=seen.pod)


_KNOWN: dict[tuple[int, str, str | None], tuple[Json, str, PodSeen]] = {}
"""(id of a pod's object, ...) -> the object, its version, and the value that was read from it."""


def pod_seen(pod: Json, trains: str = "", member: str | None = None) -> PodSeen:
    """Read a pod. ``trains``: the name of the container that trains; ``member``: the member's name. A pod
    that has not changed is read once: the watch hands out the same object at every look.
    """
    version = text(mapping(pod.get("metadata")).get("resourceVersion"))
    key = (id(pod), trains, member)
    known = _KNOWN.get(key)
    if known is not None and version and known[0] is pod and known[1] == version:
        return known[2]
    seen = _read_pod(pod, trains, member)
    if version:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = (pod, version, seen)
    return seen


def _read_pod(pod: Json, trains: str, member: str | None) -> PodSeen:
    metadata, spec, status = map(mapping, (pod.get("metadata"), pod.get("spec"), pod.get("status")))
    name = text(metadata.get("name"))
    return PodSeen(
        name=member or name,
        pod=name,
        member=member,
        uid=text(metadata.get("uid")),
        phase=text(status.get("phase")),
        reason=text(status.get("reason")),
        message=text(status.get("message")),
        node=text(spec.get("nodeName")),
        created=moment(metadata.get("creationTimestamp")),
        deleted=moment(metadata.get("deletionTimestamp")),
        conditions=_conditions(status.get("conditions")),
        containers=tuple(_containers(spec, status, trains)),
        restart_policy=text(spec.get("restartPolicy")) or "Always",
        claims=tuple(_claims(name, spec)),
        labels=Lazily(lambda: _labels(metadata)),
        facts=Lazily(lambda: _facts(spec)),
    )


def _labels(metadata: Json) -> dict[str, str]:
    """Labels, and annotations of other names."""
    return {**texts(metadata.get("annotations")), **texts(metadata.get("labels"))}


def _claims(pod: str, spec: Json) -> Iterator[str]:
    """The claims that a pod mounts; those of its ephemeral volumes are called after it."""
    for volume in dicts(spec.get("volumes"), 200):
        if claim := text(at(volume, "persistentVolumeClaim", "claimName")):
            yield claim
        elif isinstance(volume.get("ephemeral"), Mapping):
            yield f"{pod}-{text(volume.get('name'))}"


def _member(pod: Json, engine: Engine | None) -> str | None:
    try:
        return engine.member_of(pod) if engine is not None else None
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        return None


def _containers(spec: Json, status: Json, trains: str) -> Iterator[ContainerSeen]:
    """All containers, also those of the spec without a status, the init containers first."""
    inits, init_statuses = _named(spec.get("initContainers")), _named(status.get("initContainerStatuses"))
    for name in {**inits, **init_statuses}:
        stays = mapping(inits.get(name)).get("restartPolicy") == "Always"
        role = "sidecar" if stays else "init"
        yield _container(name, role, mapping(init_statuses.get(name)), mapping(inits.get(name)))
    mains, statuses = _named(spec.get("containers")), _named(status.get("containerStatuses"))
    names = [*{**mains, **statuses}]
    main = trains if trains in names else next((n for n in names if n in TRAINS), next(iter(names), None))
    for name in names:
        role = "main" if name == main else "sidecar"
        yield _container(name, role, mapping(statuses.get(name)), mapping(mains.get(name)))


def _named(containers: Any) -> dict[str, Json]:
    return {text(container.get("name")): container for container in dicts(containers, 50)}


def _container(name: str, role: str, status: Json, spec: Json) -> ContainerSeen:
    last = mapping(mapping(status.get("lastState")).get("terminated"))
    return ContainerSeen(
        name=name,
        role=role,
        now=_try(mapping(status.get("state")), text(status.get("containerID"))),
        last=_tried("terminated", last) if last else None,
        restarts=max(0, whole(status.get("restartCount")) or 0),
        image=text(spec.get("image")) or text(status.get("image")),
        image_id=text(status.get("imageID")),
    )


def _try(state: Json, id: str) -> Try:
    for word in ("terminated", "running", "waiting"):
        if isinstance(details := state.get(word), Mapping):
            return _tried(word, details, id if word == "running" else "")
    return Try()


def _tried(word: str, details: Json, id: str = "") -> Try:
    details = as_start_error(details)
    return Try(
        word,
        text(details.get("reason")),
        text(details.get("message")),
        whole(details.get("exitCode")),
        moment(details.get("startedAt")),
        moment(details.get("finishedAt")),
        id or text(details.get("containerID")),
    )


def _node(node: Json) -> NodeSeen:
    metadata, spec, status = node.get("metadata"), node.get("spec"), node.get("status")
    return NodeSeen(
        name=text(at(metadata, "name")),
        labels=texts(at(metadata, "labels")),
        taints=tuple(
            f"{text(t.get('key'))}={text(t.get('value'))}:{text(t.get('effect'))}"
            for t in dicts(at(spec, "taints"), 50)
        ),
        cordoned=at(spec, "unschedulable") is True,
        conditions=_conditions(at(status, "conditions")),
        capacity=texts(at(status, "capacity")),
        allocatable=texts(at(status, "allocatable")),
    )


def from_nodes(nodes: Iterable[Node] | None) -> tuple[NodeSeen, ...] | None:
    """Read nodes that were listed for the places on them; they have no conditions."""
    if nodes is None:
        return None
    return tuple(
        NodeSeen(
            name=node.name,
            labels=node.labels,
            taints=tuple(f"{t.get('key')}={t.get('value') or ''}:{t.get('effect')}" for t in node.taints),
            cordoned=node.cordoned,
            allocatable=node.allocatable,
        )
        for node in nodes
    )


def event_seen(event: Json) -> EventSeen:
    about = event.get("involvedObject") or event.get("regarding")
    series, metadata = event.get("series"), event.get("metadata")
    times = (
        series and at(series, "lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        at(metadata, "creationTimestamp"),
    )
    return EventSeen(
        kind=text(at(about, "kind")),
        name=text(at(about, "name")),
        reason=text(event.get("reason")),
        message=text(event.get("message")) or text(event.get("note")),
        type=text(event.get("type")) or "Normal",
        time=next((when for t in times if t and (when := moment(t)) is not None), None),
        first=moment(event.get("firstTimestamp") or event.get("eventTime")),
        count=max(1, whole(series and at(series, "count")) or whole(event.get("count")) or 1),
        uid=text(at(about, "uid")),
        id=text(at(metadata, "uid")),
    )


def latest(objects: Objects) -> float | None:
    """The newest time in these objects: they were read then, or soon after."""
    return max(_times(objects), default=None)


def _times(objects: Objects) -> Iterator[float]:
    things: Iterable[ObjectSeen] = (
        *((objects.job,) if objects.job is not None else ()),
        *(objects.groups or ()),
        *(objects.workloads or ()),
        *(objects.queues or ()),
    )
    for seen in things:
        yield from (t for t in (seen.created, *(c.since for c in seen.conditions)) if t is not None)
    for pod in objects.pods:
        every = [pod.created, *(c.since for c in pod.conditions)]
        every += [
            t
            for c in pod.containers
            for shown in (c.now, c.last)
            if shown
            for t in (shown.started, shown.ended)
        ]
        yield from (t for t in every if t is not None)
    yield from (e.time for e in objects.events if e.time is not None)

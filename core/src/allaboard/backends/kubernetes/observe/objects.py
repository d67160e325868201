"""Objects of a cluster in the words of an observation (`allaboard.runs.observation.Objects`). Whatever is
missing or of the wrong kind is left out: nothing here raises, whoever wrote the objects. Values in, values
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
from allaboard.text.units import from_rfc3339

Json = Mapping[str, Any]
LONGEST = 4096
"""Characters of a text that are kept."""
MOST_FACTS, DEEPEST = 600, 14
"""Scalars of one object that are kept, and how deep they may lie."""
MOST_KNOWN = 4096
"""Pods of which is remembered what was read."""
MOST_ITEMS = 2000
"""Objects of one kind that are looked at; of events five times as many."""
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
    """``by_member``: pods are called as the members that they are, else by their own names."""
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


# --- hostile values ----------------------------------------------------------------------------------------


def dicts(value: Any, most: int = MOST_ITEMS) -> list[Json]:
    """The mappings of a list, or of a List object."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = value.get("items")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [item for item in value[:most] if type(item) is dict or isinstance(item, Mapping)]


_NOTHING: Json = {}


def mapping(value: Any) -> Json:
    """A mapping; an empty one in the place of anything else."""
    return value if type(value) is dict or isinstance(value, Mapping) else _NOTHING


def at(value: Any, *path: str) -> Any:
    """What lies at a path of mappings; None where it is not there."""
    for key in path:
        if type(value) is not dict and not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def text(value: Any) -> str:
    return value[:LONGEST] if isinstance(value, str) else ""


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31 else None


def moment(value: Any) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return from_rfc3339(value)
    except (ValueError, OverflowError):
        return None


def texts(value: Any) -> dict[str, str]:
    """The scalars of a mapping as text."""
    if not isinstance(value, Mapping):
        return {}
    pairs = list(value.items())[:MOST_FACTS]
    return {str(k)[:300]: _scalar(v) for k, v in pairs if _is_scalar(v)}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) > 1 << 63:
        return ""
    return str(value)[:LONGEST]


def _facts(value: Any, path: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, scalar in _leaves(value, path, 0):
        if len(found) >= MOST_FACTS:
            break
        found[name] = scalar
    return found


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if _is_scalar(value):
        yield path, _scalar(value)
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
    """What a large part of an object says, read when somebody asks: most looks ask for none of it."""

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
    return None if value is None else tuple(object_seen(one) for one in dicts(value))


def object_seen(thing: Json) -> ObjectSeen:
    metadata = mapping(thing.get("metadata"))

    def parts() -> dict[str, str]:
        return _facts({"spec": thing.get("spec"), "status": _without_conditions(thing.get("status"))})

    return ObjectSeen(
        kind=text(thing.get("kind")),
        name=text(at(metadata, "name")),
        created=moment(at(metadata, "creationTimestamp")),
        conditions=_conditions(at(thing, "status", "conditions")),
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
"""What was read of a pod that is still the same object, and the same version of it."""


def pod_seen(pod: Json, trains: str = "", member: str | None = None) -> PodSeen:
    """``trains``: the name of the container that trains; ``member``: what the pod is called, too. A pod that
    has not changed is read once: the watch hands out the same object at every look.
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
    """Those of the spec that have no status yet included, the init containers first."""
    inits, told = _named(spec.get("initContainers")), _named(status.get("initContainerStatuses"))
    for name in {**inits, **told}:
        stays = inits.get(name, _NOTHING).get("restartPolicy") == "Always"
        role = "sidecar" if stays else "init"
        yield _container(name, role, told.get(name, _NOTHING), inits.get(name, _NOTHING))
    mains, said = _named(spec.get("containers")), _named(status.get("containerStatuses"))
    names = [*{**mains, **said}]
    main = trains if trains in names else next((n for n in names if n in TRAINS), next(iter(names), None))
    for name in names:
        role = "main" if name == main else "sidecar"
        yield _container(name, role, said.get(name, _NOTHING), mains.get(name, _NOTHING))


def _named(containers: Any) -> dict[str, Json]:
    return {text(one.get("name")): one for one in dicts(containers, 50)}


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
        if isinstance(one := state.get(word), Mapping):
            return _tried(word, one, id if word == "running" else "")
    return Try()


def _tried(word: str, one: Json, id: str = "") -> Try:
    one = as_start_error(one)
    return Try(
        word,
        text(one.get("reason")),
        text(one.get("message")),
        whole(one.get("exitCode")),
        moment(one.get("startedAt")),
        moment(one.get("finishedAt")),
        id or text(one.get("containerID")),
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
    """The same of nodes that were read for the places on them; they have told no conditions."""
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
    """The newest time that any of these objects tells: when they were looked at, or soon before."""
    return max(_times(objects), default=None)


def _times(objects: Objects) -> Iterator[float]:
    things: Iterable[ObjectSeen] = (
        *((objects.job,) if objects.job is not None else ()),
        *(objects.groups or ()),
        *(objects.workloads or ()),
        *(objects.queues or ()),
    )
    for thing in things:
        yield from (t for t in (thing.created, *(c.since for c in thing.conditions)) if t is not None)
    for pod in objects.pods:
        every = [pod.created, *(c.since for c in pod.conditions)]
        every += [
            t for c in pod.containers for one in (c.now, c.last) if one for t in (one.started, one.ended)
        ]
        yield from (t for t in every if t is not None)
    yield from (e.time for e in objects.events if e.time is not None)

"""The queues of a namespace: Kueue's LocalQueues, Volcano's Queues, and the quotas of the namespace itself.

Kueue tells the positions of those who wait in an API of its own (visibility.kueue.x-k8s.io), which may be
off or away; without it they are in the order in which Kueue takes them, by priority and age, and have no
number: there may be others of other namespaces between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import (
    EVENTS,
    PODGROUPS_VOLCANO,
    PODS,
    RESOURCEQUOTAS,
    Resource,
)
from allaboard.backends.kubernetes.client.values import (
    at,
    dicts,
    mapping,
    moment,
    quantity,
    text,
    texts,
    whole,
)
from allaboard.backends.kubernetes.discovery.components import (
    CLUSTERQUEUES,
    KUEUE_WORKLOADS,
    LOCALQUEUES,
    VOLCANO_QUEUES,
)
from allaboard.backends.kubernetes.discovery.installed import served
from allaboard.backends.kubernetes.discovery.kueue_objects import (
    ClusterQueue,
    LocalQueue,
    cluster_queue,
    local_queue,
)
from allaboard.backends.kubernetes.observe.objects import event_seen, pod_seen
from allaboard.backends.kubernetes.observe.queues import read_positions
from allaboard.gangs import volcano
from allaboard.gangs.base import GangView
from allaboard.gangs.kueue import boost_of, condition_of, why_held
from allaboard.runs.observation import EventSeen, PodSeen
from allaboard.runs.queues import Amount, Queue, Waiter

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

MOST = 1000
"""Waiting jobs of a namespace, and events, that are read."""


def read_queues(api: Api, namespace: str) -> tuple[list[Queue], list[str]]:
    """The queues of a namespace, and what could not be read of them."""
    kinds = served(api)
    now = api.server_time()
    notes: list[str] = []
    queues: list[Queue] = []
    if (local := _served_as(LOCALQUEUES, kinds)) is not None:
        queues += _of_kueue(api, local, namespace, now, notes)
    if (of_volcano := _served_as(VOLCANO_QUEUES, kinds)) is not None:
        queues += _of_volcano(api, of_volcano, now, notes)
    quotas = _listed(api, RESOURCEQUOTAS, notes, "quotas of the namespace")
    return [*queues, *map(_quota, quotas)], notes


def _served_as(resource: Resource, kinds: Iterable[str]) -> Resource | None:
    """This kind in the newest version that is served; None: it is not there."""
    for kind in sorted(kinds, reverse=True):
        group, version, name = kind.split("/")[-3:]
        if (group, name) == (resource.group, resource.kind):
            return Resource(group, version, resource.plural, name, resource.namespaced)
    return None


def _listed(api: Api, resource: Resource, notes: list[str], label: str) -> Sequence[Json]:
    try:
        return tuple(api.list(resource, at_most=MOST)[0])
    except Missing:
        return ()
    except Forbidden:
        notes.append(f"{label} may not be listed here")
        return ()


# Kueue.


def _of_kueue(api: Api, local: Resource, namespace: str, now: float, notes: list[str]) -> list[Queue]:
    local_queues = [*map(local_queue, _listed(api, local, notes, "LocalQueues"))]
    workloads: Sequence[Json] = ()
    if local_queues:
        of_it = Resource(local.group, local.version, KUEUE_WORKLOADS.plural, KUEUE_WORKLOADS.kind)
        workloads = _listed(api, of_it, notes, "jobs that wait (workloads)")
    queues = []
    for queue in local_queues:
        above = _cluster_queue(api, local.version, queue.parent, notes)
        positions = read_positions(api, queue.name, namespace)
        queues.append(_local_queue(queue, above, workloads, positions, now))
    return queues


def _cluster_queue(api: Api, version: str, name: str, notes: list[str]) -> ClusterQueue | None:
    resource = Resource(
        CLUSTERQUEUES.group, version, CLUSTERQUEUES.plural, CLUSTERQUEUES.kind, namespaced=False
    )
    try:
        return cluster_queue(api.get(resource, name))
    except Missing:
        return None
    except Forbidden:
        note = (
            "ClusterQueues may not be read here (get clusterqueues.kueue.x-k8s.io; `allaboard cluster "
            "--rbac capacity` allows it): the amounts in use are those of the LocalQueue alone"
        )
        if note not in notes:
            notes.append(note)
        return None


def _local_queue(
    queue: LocalQueue,
    above: ClusterQueue | None,
    workloads: Iterable[Json],
    positions: Mapping[str, int],
    now: float,
) -> Queue:
    """A LocalQueue. ``above``: its ClusterQueue, None where it may not be read; ``workloads``: those of the
    namespace; ``positions``: of Workloads, by name, 0 is next.
    """
    waiting = [w for w in workloads if _waits_in(w, queue.name)]
    waiting.sort(key=lambda w: (positions.get(w["metadata"]["name"], MOST), *_order(w)))
    return Queue(
        name=queue.name,
        kind="LocalQueue",
        amounts=tuple(_amounts(queue, above)),
        parent=queue.parent or None,
        cohort=(above.cohort or None) if above is not None else None,
        running=queue.running,
        waiting=queue.waiting,
        waiters=tuple(_waiter(w, queue.name, positions, now) for w in waiting),
        closed=queue.closed,
    )


def _waits_in(workload: Json, queue: str) -> bool:
    over = condition_of(workload, "Finished").get("status") == "True"
    admitted = condition_of(workload, "Admitted").get("status") == "True"
    return at(workload, "spec", "queueName") == queue and not over and not admitted


def _order(workload: Json) -> tuple[int, str]:
    """The sort key of Kueue in a queue: the highest priority first, its boost added, then the oldest."""
    priority = (whole(at(workload, "spec", "priority")) or 0) + (boost_of(workload) or 0)
    return -priority, str(workload["metadata"].get("creationTimestamp") or "")


def _waiter(workload: Json, queue: str, positions: Mapping[str, int], now: float) -> Waiter:
    metadata = workload["metadata"]
    since = moment(metadata.get("creationTimestamp"))
    position = positions.get(metadata["name"])
    return Waiter(
        name=_owner(metadata),
        since=since,
        position=None if position is None else position + 1,
        priority=whole(at(workload, "spec", "priority")),
        boost=boost_of(workload),
        why=why_held(queue, workload, 0.0 if since is None else now - since, now, position).text,
    )


def _amounts(queue: LocalQueue, above: ClusterQueue | None) -> Iterator[Amount]:
    """The amounts of its ClusterQueue; without that, those that it has used itself."""
    used, quotas = (queue.reserved, {}) if above is None else (above.reserved, above.quotas)
    for flavor, resource in dict.fromkeys([*quotas, *used]):
        key = (flavor, resource)
        yield Amount(resource, float(used.get(key, 0)), _number(quotas.get(key)), flavor)


# Volcano.


def _of_volcano(api: Api, resource: Resource, now: float, notes: list[str]) -> list[Queue]:
    queues = _listed(api, resource, notes, "queues of Volcano")
    groups = _listed(api, PODGROUPS_VOLCANO, notes, "PodGroups")
    waiting = [g for g in groups if _phase(g) in ("", "Pending", "Inqueue", "Unknown")]
    pods = [*map(pod_seen, _listed(api, PODS, notes, "pods"))] if waiting else []
    events = [*map(event_seen, _listed(api, EVENTS, notes, "events"))] if waiting else []
    names = {q["metadata"]["name"] for q in queues} if queues else {_queue_of(g) for g in waiting}
    by_name = {q["metadata"]["name"]: q for q in queues}
    return [_volcano_queue(n, by_name.get(n), waiting, pods, events, now) for n in sorted(names)]


def _volcano_queue(
    name: str,
    queue: Json | None,
    waiting: Iterable[Json],
    pods: Sequence[PodSeen],
    events: Sequence[EventSeen],
    now: float,
) -> Queue:
    """A Queue of Volcano; None: it may not be read. ``waiting``: PodGroups that do; ``pods`` and ``events``:
    those of the namespace.
    """
    status = mapping(at(queue, "status"))
    used, quotas = (_numbers(at(queue, *path)) for path in (("status", "allocated"), ("spec", "capability")))
    own = [g for g in waiting if _queue_of(g) == name]
    own.sort(key=lambda g: text(g["metadata"].get("creationTimestamp")))
    state = text(status.get("state")) or "Open"
    counts = [whole(status.get(word)) for word in ("pending", "inqueue", "unknown")]
    return Queue(
        name=name,
        kind="Queue",
        amounts=tuple(
            Amount(n, used.get(n) or 0.0, quotas.get(n))
            for n in dict.fromkeys([*quotas, *used])
            if n != "pods" or n in quotas
        ),
        parent=text(at(queue, "spec", "parent")) or None,
        running=whole(status.get("running")) or 0 if queue is not None else None,
        waiting=sum(filter(None, counts)) if queue is not None else None,
        waiters=tuple(_waiting_group(g, pods, events, now) for g in own),
        closed=None if state == "Open" else f"it is {state.lower()}",
    )


def _waiting_group(group: Json, pods: Sequence[PodSeen], events: Sequence[EventSeen], now: float) -> Waiter:
    metadata = group["metadata"]
    members = {pod.pod: pod for pod in pods if pod.labels.get(volcano.GROUP) == metadata["name"]}
    about = {metadata.get("uid"), *(pod.uid for pod in members.values())}
    needed = whole(at(group, "spec", "minMember")) or 1
    view = GangView(
        needed=needed,
        total=max(needed, len(members)),
        now=now,
        pods=members,
        groups=(group,),
        events=sorted((e for e in events if e.uid in about), key=lambda e: e.time or 0.0),
    )
    since = moment(metadata.get("creationTimestamp"))
    return Waiter(_owner(metadata), since, why=volcano.read(view))


def _phase(group: Json) -> str:
    return text(at(group, "status", "phase"))


def _queue_of(group: Json) -> str:
    return text(at(group, "spec", "queue")) or volcano.DEFAULT_QUEUE


def _owner(metadata: Mapping[str, Any]) -> str:
    """The job that something belongs to; its own name where it belongs to none."""
    owners = dicts(metadata.get("ownerReferences"))
    return next((text(o.get("name")) for o in owners if o.get("controller")), "") or text(metadata["name"])


# Quotas.


def _quota(quota: Json) -> Queue:
    """A ResourceQuota: nothing waits in it, for it refuses the pods of whatever is too large."""
    hard = _numbers(at(quota, "status", "hard")) or _numbers(at(quota, "spec", "hard"))
    used = _numbers(at(quota, "status", "used"))
    amounts = tuple(Amount(n, used.get(n) or 0.0, most) for n, most in hard.items())
    return Queue(quota["metadata"]["name"], "ResourceQuota", amounts)


def _numbers(value: Any) -> dict[str, float | None]:
    """Resource -> amount; None for a text that is no quantity."""
    return {name: _number(quantity(amount)) for name, amount in texts(value).items()}


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)

"""The queues of a namespace: Kueue's LocalQueues, Volcano's Queues, and the quotas of the namespace itself.

Kueue tells the positions of those who wait in an API of its own (visibility.kueue.x-k8s.io), which may be
off or away; without it they are in the order in which Kueue takes them, by priority and age, and have no
number: there may be others of other namespaces between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from allaboard.backends.kubernetes.discovery.components import (
    CLUSTERQUEUES,
    KUEUE_WORKLOADS,
    LOCALQUEUES,
    VOLCANO_QUEUES,
)
from allaboard.backends.kubernetes.discovery.installed import served
from allaboard.backends.kubernetes.observe.objects import event_seen, pod_seen
from allaboard.backends.kubernetes.observe.queues import read_positions
from allaboard.gangs import volcano
from allaboard.gangs.base import GangView
from allaboard.gangs.kueue import boost_of, condition_of, why_held
from allaboard.gangs.requests import amount
from allaboard.runs.queues import Amount, Queue, Waiter
from allaboard.text.units import from_rfc3339

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
    local_queues = _listed(api, local, notes, "LocalQueues")
    workloads: Sequence[Json] = ()
    if local_queues:
        of_it = Resource(local.group, local.version, KUEUE_WORKLOADS.plural, KUEUE_WORKLOADS.kind)
        workloads = _listed(api, of_it, notes, "jobs that wait (workloads)")
    queues = []
    for queue in local_queues:
        parent = str((queue.get("spec") or {}).get("clusterQueue") or "")
        above = _cluster_queue(api, local.version, parent, notes)
        positions = read_positions(api, queue["metadata"]["name"], namespace)
        queues.append(local_queue(queue, above, workloads, positions, now))
    return queues


def _cluster_queue(api: Api, version: str, name: str, notes: list[str]) -> Json | None:
    resource = Resource(
        CLUSTERQUEUES.group, version, CLUSTERQUEUES.plural, CLUSTERQUEUES.kind, namespaced=False
    )
    try:
        return api.get(resource, name)
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


def local_queue(
    queue: Json, above: Json | None, workloads: Iterable[Json], positions: Mapping[str, int], now: float
) -> Queue:
    """A LocalQueue. ``above``: its ClusterQueue, None where it may not be read; ``workloads``: those of the
    namespace; ``positions``: of Workloads, by name, 0 is next.
    """
    name, status = queue["metadata"]["name"], queue.get("status") or {}
    spec = (above or {}).get("spec") or {}
    waiting = [w for w in workloads if _waits_in(w, name)]
    waiting.sort(key=lambda w: (positions.get(w["metadata"]["name"], MOST), *_order(w)))
    active = condition_of(queue, "Active")
    return Queue(
        name=name,
        kind="LocalQueue",
        amounts=tuple(_amounts(queue, above)),
        parent=str((queue.get("spec") or {}).get("clusterQueue") or "") or None,
        cohort=spec.get("cohortName") or spec.get("cohort") or None,
        running=_whole(status.get("reservingWorkloads")),
        waiting=_whole(status.get("pendingWorkloads")),
        waiters=tuple(_waiter(w, name, positions, now) for w in waiting),
        closed=_words(active) if active.get("status") == "False" else None,
    )


def _waits_in(workload: Json, queue: str) -> bool:
    over = condition_of(workload, "Finished").get("status") == "True"
    admitted = condition_of(workload, "Admitted").get("status") == "True"
    return (workload.get("spec") or {}).get("queueName") == queue and not over and not admitted


def _order(workload: Json) -> tuple[int, str]:
    """The sort key of Kueue in a queue: the highest priority first, its boost added, then the oldest."""
    priority = (_whole((workload.get("spec") or {}).get("priority")) or 0) + (boost_of(workload) or 0)
    return -priority, str(workload["metadata"].get("creationTimestamp") or "")


def _waiter(workload: Json, queue: str, positions: Mapping[str, int], now: float) -> Waiter:
    metadata, spec = workload["metadata"], workload.get("spec") or {}
    since = from_rfc3339(metadata.get("creationTimestamp"))
    position = positions.get(metadata["name"])
    return Waiter(
        name=_owner(metadata),
        since=since,
        position=None if position is None else position + 1,
        priority=_whole(spec.get("priority")),
        boost=boost_of(workload),
        why=why_held(queue, workload, 0.0 if since is None else now - since, now, position).text,
    )


def _amounts(queue: Json, above: Json | None) -> Iterator[Amount]:
    """The amounts of its ClusterQueue; without that, those that it has used itself."""
    used = _reserved(above if above is not None else queue)
    quotas = {
        (str(flavor.get("name")), str(each.get("name"))): _number(each.get("nominalQuota"))
        for group in ((above or {}).get("spec") or {}).get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
        for each in flavor.get("resources") or ()
    }
    for flavor, resource in dict.fromkeys([*quotas, *used]):
        key = (flavor, resource)
        yield Amount(resource, used.get(key) or 0.0, quotas.get(key), flavor)


def _reserved(queue: Json) -> dict[tuple[str, str], float | None]:
    """(flavor, resource) -> what is taken: also by those that are not admitted yet."""
    status = queue.get("status") or {}
    return {
        (str(flavor.get("name")), str(each.get("name"))): _number(each.get("total"))
        for flavor in status.get("flavorsReservation") or ()
        for each in flavor.get("resources") or ()
    }


# Volcano.


def _of_volcano(api: Api, resource: Resource, now: float, notes: list[str]) -> list[Queue]:
    queues = _listed(api, resource, notes, "queues of Volcano")
    groups = _listed(api, PODGROUPS_VOLCANO, notes, "PodGroups")
    waiting = [g for g in groups if _phase(g) in ("", "Pending", "Inqueue", "Unknown")]
    pods = _listed(api, PODS, notes, "pods") if waiting else ()
    events = _listed(api, EVENTS, notes, "events") if waiting else ()
    names = {q["metadata"]["name"] for q in queues} if queues else {_queue_of(g) for g in waiting}
    by_name = {q["metadata"]["name"]: q for q in queues}
    return [volcano_queue(n, by_name.get(n), waiting, pods, events, now) for n in sorted(names)]


def volcano_queue(
    name: str,
    queue: Json | None,
    waiting: Iterable[Json],
    pods: Iterable[Json],
    events: Sequence[Json],
    now: float,
) -> Queue:
    """A Queue of Volcano; None: it may not be read. ``waiting``: PodGroups that do; ``pods`` and ``events``:
    those of the namespace.
    """
    spec, status = (queue or {}).get("spec") or {}, (queue or {}).get("status") or {}
    used = {n: _number(v) for n, v in (status.get("allocated") or {}).items()}
    quotas = {n: _number(v) for n, v in (spec.get("capability") or {}).items()}
    own = [g for g in waiting if _queue_of(g) == name]
    own.sort(key=lambda g: str(g["metadata"].get("creationTimestamp") or ""))
    state = str(status.get("state") or "Open")
    counts = [_whole(status.get(word)) for word in ("pending", "inqueue", "unknown")]
    return Queue(
        name=name,
        kind="Queue",
        amounts=tuple(
            Amount(n, used.get(n) or 0.0, quotas.get(n))
            for n in dict.fromkeys([*quotas, *used])
            if n != "pods" or n in quotas
        ),
        parent=spec.get("parent") or None,
        running=_whole(status.get("running")) or 0 if queue is not None else None,
        waiting=sum(filter(None, counts)) if queue is not None else None,
        waiters=tuple(_waiting_group(g, pods, events, now) for g in own),
        closed=None if state == "Open" else f"it is {state.lower()}",
    )


def _waiting_group(group: Json, pods: Iterable[Json], events: Sequence[Json], now: float) -> Waiter:
    metadata = group["metadata"]
    name, uid = metadata["name"], metadata.get("uid")
    members = {p["metadata"]["name"]: p for p in pods if _group_of(p) == name}
    about = {uid, *(p["metadata"].get("uid") for p in members.values())}
    own_events = [e for e in events if (e.get("involvedObject") or {}).get("uid") in about]
    needed = _whole((group.get("spec") or {}).get("minMember")) or 1
    view = GangView(
        needed=needed,
        total=max(needed, len(members)),
        now=now,
        pods={name: pod_seen(pod) for name, pod in members.items()},
        groups=(group,),
        events=sorted(map(event_seen, own_events), key=lambda e: e.time or 0.0),
    )
    since = from_rfc3339(metadata.get("creationTimestamp"))
    return Waiter(_owner(metadata), since, why=volcano.read(view))


def _phase(group: Json) -> str:
    return str((group.get("status") or {}).get("phase") or "")


def _queue_of(group: Json) -> str:
    return str((group.get("spec") or {}).get("queue") or volcano.DEFAULT_QUEUE)


def _group_of(pod: Json) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(volcano.GROUP)


def _owner(metadata: Mapping[str, Any]) -> str:
    """The job that something belongs to; its own name where it belongs to none."""
    owners = metadata.get("ownerReferences") or ()
    return str(next((o["name"] for o in owners if o.get("controller")), metadata["name"]))


# Quotas.


def _quota(quota: Json) -> Queue:
    """A ResourceQuota: nothing waits in it, for it refuses the pods of whatever is too large."""
    status = quota.get("status") or {}
    hard = status.get("hard") or (quota.get("spec") or {}).get("hard") or {}
    used = status.get("used") or {}
    amounts = tuple(Amount(n, _number(used.get(n)) or 0.0, _number(v)) for n, v in hard.items())
    return Queue(quota["metadata"]["name"], "ResourceQuota", amounts)


def _number(quantity: Any) -> float | None:
    try:
        return None if quantity is None else float(amount(quantity))
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _words(condition: Mapping[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or "it admits nothing")

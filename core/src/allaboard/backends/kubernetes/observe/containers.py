"""Tries of the members' containers, read from their pods: each has a log. Values in, values out.

A node keeps two tries of a container: the current (or last) one and the one before it (``previous``). The
logs of earlier tries, and those of deleted pods, exist only where a follower has read them in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allaboard.backends.base import Selection
from allaboard.backends.kubernetes.client.values import at
from allaboard.backends.kubernetes.observe.objects import pod_seen
from allaboard.runs.observation import ContainerSeen, PodSeen, Try

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodRole:
    """Role of a pod: the member, its node rank, and the name of the container that trains."""

    member: str
    rank: int
    container: str


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One try of one container, an instance of it in the words of kubectl. ``id``: the container's; ``init``:
    an init container; ``previous``: its log is asked for with ``previous``. ``final``: no container is
    started in its place any more, so an answer is surely its own log; else the answer may be that of the next
    try. ``code``: its exit code; ``begun`` and ``finished``: epoch seconds. ``leaving``: the cluster is
    deleting its pod. ``message``: the message of its status when it has ended, for pods of allaboard the last
    80 lines of its log or 2 KiB of them.
    """

    id: str
    pod: str
    uid: str
    container: str
    init: bool
    member: str
    rank: int
    restart: int
    previous: bool
    running: bool
    final: bool
    begun: float | None = None
    finished: float | None = None
    code: int | None = None
    leaving: bool = False
    message: str = ""

    @property
    def failed(self) -> bool:
        return self.code not in (None, 0)


def container_runs(pods: Iterable[Json], roles: Mapping[str, PodRole]) -> list[ContainerRun]:
    """Every try that can be read, by rank; those of one pod in the order in which they ran. Sidecars are
    left out: they do not train, and they write for as long as the pod lives.
    """
    runs: list[tuple[tuple[Any, ...], list[ContainerRun]]] = []
    for body in pods:
        pod = pod_seen(body)
        role = roles.get(pod.pod)
        if role is not None:
            order = (role.rank, role.member, pod.created or 0.0, pod.pod)
            runs.append((order, list(_of_pod(pod, role))))
    return [instance for _, group in sorted(runs, key=lambda item: item[0]) for instance in group]


def _of_pod(pod: PodSeen, role: PodRole) -> Iterator[ContainerRun]:
    for container in pod.containers:
        if container.role == "init" or container.name == role.container:
            yield from _of_container(pod, role, container)


def _of_container(pod: PodSeen, role: PodRole, container: ContainerSeen) -> Iterator[ContainerRun]:
    now, last, init = container.now, container.last, container.role == "init"
    leaving = any(c.type == "DisruptionTarget" and c.status == "True" for c in pod.conditions)
    goes = now.state == "running"
    final = not goes and not _may_start_again(pod, now, init=init)

    def make_run(shown: Try, restart: int, *, previous: bool) -> ContainerRun:
        running = shown.state == "running"
        return ContainerRun(
            id=shown.id,
            pod=pod.pod,
            uid=pod.uid,
            container=container.name,
            init=init,
            member=role.member,
            rank=role.rank,
            restart=restart,
            previous=previous,
            running=running,
            final=final and not running,
            begun=shown.started,
            finished=shown.ended,
            code=shown.exit_code,
            leaving=leaving,
            message="" if running else shown.message,
        )

    if last is not None and last.id and last.id != now.id:
        # While a container waits to be started again, the count is still that of the try which ended last.
        before = max(0, container.restarts - 1) if now.id else container.restarts
        yield make_run(last, before, previous=True)
    if now.id:
        yield make_run(now, container.restarts, previous=False)


def is_over(pod: Json) -> bool:
    """True when all of its containers have ended for good. It holds no place on a node any more."""
    return at(pod, "status", "phase") in ("Succeeded", "Failed")


def _may_start_again(pod: PodSeen, now: Try, *, init: bool) -> bool:
    """True when a container of this pod that has just ended may be started again."""
    if pod.is_over:
        return False
    code = now.exit_code if now.state == "terminated" else None
    policy = pod.restart_policy
    return code != 0 if policy == "OnFailure" or (init and policy == "Always") else policy == "Always"


def is_still_there(pod: Json, instance: ContainerRun) -> bool:
    """True when a request for this try's log is still answered with its own."""
    role, seen = PodRole(instance.member, instance.rank, instance.container), pod_seen(pod)
    named = [c for c in seen.containers if c.name == instance.container and seen.uid == instance.uid]
    return any(
        (now.id, now.previous) == (instance.id, instance.previous)
        for container in named
        for now in _of_container(seen, role, container)
    )


def select_runs(tries: Sequence[ContainerRun], selection: Selection) -> list[ContainerRun]:
    """The selected tries."""
    return [
        instance
        for instance in tries
        if is_selected(instance.member, instance.rank, instance.restart, selection)
    ]


def is_selected(member: str, rank: int, restart: int, selection: Selection) -> bool:
    return (
        (selection.members is None or member in selection.members)
        and (selection.ranks is None or rank in selection.ranks)
        and (selection.restart is None or restart == selection.restart)
    )

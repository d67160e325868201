"""Which logs there are: every try of every container of the members, made of their pods. Values in, values
out.

A node keeps two tries of a container: the one that runs (or ran last) and the one before it (``previous``).
What came before those two, and what a pod wrote that is gone, is nowhere but with those who read it in
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allaboard.backends.base import Selection
from allaboard.text.units import from_rfc3339

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodRole:
    """What a pod is: the member, its node rank, and the name of the container that trains."""

    member: str
    rank: int
    container: str


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One try of one container. ``id``: the container's; ``init``: it only prepares; ``previous``: how it
    must be asked for. ``final``: no container is started in its place any more, so an answer is surely its
    own; else, by the time it is asked for, it may be the next one's. ``code``: how it ended; ``begun`` and
    ``finished``: epoch seconds. ``leaving``: the cluster is taking its pod away. ``words``: what its status
    says of its end, for pods of ours the last 80 lines of its log or 2 KiB of them.
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
    words: str = ""

    @property
    def failed(self) -> bool:
        return self.code not in (None, 0)


def container_runs(pods: Iterable[Json], roles: Mapping[str, PodRole]) -> list[ContainerRun]:
    """Every try that can be read, by rank; those of one pod in the order in which they ran. Sidecars are
    left out: they do not train, and they write for as long as the pod lives.
    """
    runs: list[tuple[tuple[Any, ...], list[ContainerRun]]] = []
    for pod in pods:
        metadata = pod["metadata"]
        role = roles.get(metadata["name"])
        if role is not None:
            order = (role.rank, role.member, metadata.get("creationTimestamp") or "", metadata["name"])
            runs.append((order, list(_of_pod(pod, role))))
    return [one for _, group in sorted(runs, key=lambda item: item[0]) for one in group]


def _of_pod(pod: Json, role: PodRole) -> Iterator[ContainerRun]:
    status = pod.get("status") or {}
    preparing = [
        c["name"] for c in pod["spec"].get("initContainers") or () if c.get("restartPolicy") != "Always"
    ]
    inits = {s["name"]: s for s in status.get("initContainerStatuses") or ()}
    for name in preparing:
        if name in inits:
            yield from _of_container(pod, role, inits[name], init=True)
    for status_of_container in status.get("containerStatuses") or ():
        if status_of_container["name"] == role.container:
            yield from _of_container(pod, role, status_of_container, init=False)


def _of_container(pod: Json, role: PodRole, status: Json, *, init: bool) -> Iterator[ContainerRun]:
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    running, terminated = state.get("running"), state.get("terminated") or {}
    restarts = int(status.get("restartCount") or 0)
    leaving = any(
        c.get("type") == "DisruptionTarget" and c.get("status") == "True"
        for c in (pod.get("status") or {}).get("conditions") or ()
    )

    def one(id: str, restart: int, at: Json, *, previous: bool, running: bool) -> ContainerRun:
        return ContainerRun(
            id=id,
            pod=pod["metadata"]["name"],
            uid=pod["metadata"].get("uid") or "",
            container=status["name"],
            init=init,
            member=role.member,
            rank=role.rank,
            restart=restart,
            previous=previous,
            running=running,
            final=final and not running,
            begun=from_rfc3339(at.get("startedAt")),
            finished=from_rfc3339(at.get("finishedAt")),
            code=at.get("exitCode"),
            leaving=leaving,
            words="" if running else at.get("message") or "",
        )

    goes = running is not None
    final = not goes and not _may_start_again(pod, terminated.get("exitCode"), init=init)
    current = (status if goes else terminated).get("containerID") or ""
    if last.get("containerID") and last["containerID"] != current:
        # While a container waits to be started again, the count is still that of the try which ended last.
        before = max(0, restarts - 1) if current else restarts
        yield one(last["containerID"], before, last, previous=True, running=False)
    if current:
        yield one(current, restarts, running or terminated, previous=False, running=goes)


def is_over(pod: Json) -> bool:
    """Whether all of its containers have ended for good. It holds no place on a node any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _may_start_again(pod: Json, code: int | None, *, init: bool) -> bool:
    """Whether a container of this pod that has just ended may be started again."""
    if is_over(pod):
        return False
    policy = pod["spec"].get("restartPolicy") or "Always"
    return code != 0 if policy == "OnFailure" or (init and policy == "Always") else bool(policy == "Always")


def is_still_there(pod: Json, one: ContainerRun) -> bool:
    """Whether this try is still the one that is asked for in this way."""
    role = PodRole(one.member, one.rank, one.container)
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    matching = (s for s in statuses if s["name"] == one.container and pod["metadata"].get("uid") == one.uid)
    return any(
        (now.id, now.previous) == (one.id, one.previous)
        for status in matching
        for now in _of_container(pod, role, status, init=one.init)
    )


def select_runs(tries: Sequence[ContainerRun], selection: Selection) -> list[ContainerRun]:
    """Those that are asked for."""
    return [one for one in tries if is_selected(one.member, one.rank, one.restart, selection)]


def is_selected(member: str, rank: int, restart: int, selection: Selection) -> bool:
    return (
        (selection.members is None or member in selection.members)
        and (selection.ranks is None or rank in selection.ranks)
        and (selection.restart is None or restart == selection.restart)
    )

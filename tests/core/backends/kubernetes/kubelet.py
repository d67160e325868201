"""Nodes that hold the logs of pods, in memory, and serve them as a kubelet does behind the API server:
whole seconds in ``sinceTime``, cuts in the middle of lines, two tries of a container and no more, logs that
are rotated, pods that go.

    node = Node()
    worker = node.pod("worker-0", rank=1)
    worker.writes("step 1")
    worker.restarts()
    lines = list(read(node.api(), None, tries(node.pods(), node.seats()), Selection()))
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from allaboard.backends.kubernetes.client.errors import Invalid, Missing
from allaboard.backends.kubernetes.logs.parsing import SECOND
from allaboard.backends.kubernetes.observe.containers import PodRole
from allaboard.errors import BackendUnreachable
from allaboard.text.units import from_rfc3339, rfc3339

NOON = 1_795_262_400 * SECOND
"""2026-11-21T12:00:00Z"""


def written(at: int, text: str) -> bytes:
    """A line as a kubelet sends it."""
    moment = str(rfc3339(at // SECOND))[:19]
    return f"{moment}.{at % SECOND:09d}Z {text}\n".encode()


@dataclass
class Container:
    """One try of a container. ``lines``: all that it ever wrote; ``rotated``: how many of them are gone."""

    id: str
    name: str
    begun: int
    restart: int = 0
    lines: list[tuple[int, str]] = field(default_factory=list)
    rotated: int = 0
    ended: int | None = None
    exit_code: int = 0
    tail: str = ""
    removed: bool = False
    words: str = ""

    def text(self, since: int | None) -> bytes:
        kept = self.lines[self.rotated :]
        found = b"".join(written(at, text) for at, text in kept if since is None or at >= since)
        return found + (written(self.begun, self.tail)[:-1] if self.tail else b"")

    def state(self) -> dict[str, Any]:
        begun = {"startedAt": rfc3339(self.begun // SECOND)}
        if self.ended is None:
            return {"running": begun}
        end = {"finishedAt": rfc3339(self.ended // SECOND), "exitCode": self.exit_code}
        words = {"message": self.words} if self.words else {}
        return {"terminated": {**begun, **end, **words, "containerID": self.id}}


class Pod:
    """A pod and its one training container, with ``inits`` before it."""

    def __init__(self, node: Node, name: str, rank: int, inits: int = 0) -> None:
        self.node, self.name, self.rank = node, name, rank
        self.uid = node.fresh("uid")
        self.created = node.now
        self.inits = [Container(node.fresh("init"), f"prepare-{n}", node.now) for n in range(inits)]
        self.tries = [] if inits else [Container(node.fresh("c"), "pytorch", node.now)]
        self.waiting = False
        self.final = False
        self.here = True

    @property
    def now(self) -> Container:
        return self.tries[-1] if self.tries else self.inits[-1]

    def writes(self, *texts: str, at: int | None = None) -> None:
        for text in texts:
            self.now.lines.append((self.node.now if at is None else at, text))
        self.node.wake()

    def starts(self) -> None:
        """The init containers are through."""
        for one in self.inits:
            one.ended = self.node.now
        self.tries.append(Container(self.node.fresh("c"), "pytorch", self.node.now))

    def ends(self, code: int = 0, *, final: bool = True) -> None:
        """``final``: it will not be started again."""
        self.now.ended, self.now.exit_code = self.node.now, code
        self.final = final
        self.node.wake()

    def crashes(self) -> None:
        """It ended and waits to be started again."""
        self.ends(1, final=False)
        self.waiting = True

    def restarts(self) -> None:
        if self.now.ended is None:
            self.ends(1, final=False)
        self.waiting = False
        before = self.now
        self.tries.append(Container(self.node.fresh("c"), "pytorch", self.node.now, before.restart + 1))

    def goes(self) -> None:
        self.here = False
        if self.now.ended is None:
            self.ends(137)
        self.node.wake()

    def object(self) -> dict[str, Any]:
        def status(tries: list[Container], waits: bool) -> dict[str, Any]:
            now, before = tries[-1], tries[-2] if len(tries) > 1 else None
            if waits:
                reason = {"waiting": {"reason": "CrashLoopBackOff"}}
                return {
                    "name": now.name,
                    "restartCount": now.restart,
                    "state": reason,
                    "lastState": now.state(),
                }
            last = {"lastState": before.state()} if before else {}
            return {
                "name": now.name,
                "containerID": now.id,
                "restartCount": now.restart,
                "state": now.state(),
                **last,
            }

        return {
            "metadata": {
                "name": self.name,
                "uid": self.uid,
                "creationTimestamp": rfc3339(self.created // SECOND),
            },
            "spec": {
                "restartPolicy": "OnFailure",
                "initContainers": [{"name": one.name} for one in self.inits],
                "containers": [{"name": "pytorch"}, {"name": "sidecar"}],
            },
            "status": {
                "phase": ("Failed" if self.now.exit_code else "Succeeded") if self.final else "Running",
                "initContainerStatuses": [status([one], False) for one in self.inits],
                "containerStatuses": [
                    *([status(self.tries, self.waiting)] if self.tries else []),
                    {"name": "sidecar", "containerID": f"side-{self.uid}", "state": {"running": {}}},
                ],
            },
        }


class Node:
    """Every pod, one clock. ``tick`` seconds pass with `passes`."""

    def __init__(self, seed: int = 0) -> None:
        self.now = NOON
        self.all: list[Pod] = []
        self.random = random.Random(seed)
        self.asked: list[dict[str, Any]] = []
        self.dead: set[str] = set()
        self.before_log: Callable[[Pod], None] | None = None
        self.changed = threading.Condition()
        self.breaks = 0
        """So many answers are cut after their first 300 bytes."""
        self._numbers = 0

    def fresh(self, kind: str) -> str:
        self._numbers += 1
        return f"{kind}://{self._numbers}"

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def passes(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def pod(self, name: str, rank: int, inits: int = 0) -> Pod:
        found = Pod(self, name, rank, inits)
        self.all.append(found)
        return found

    def pods(self) -> list[dict[str, Any]]:
        return [pod.object() for pod in self.all if pod.here]

    def seats(self) -> dict[str, PodRole]:
        return {pod.name: PodRole(pod.name, pod.rank, "pytorch") for pod in self.all}

    def _container(self, name: str, container: str, previous: bool) -> tuple[Pod, Container]:
        pod = next((p for p in self.all if p.name == name and p.here), None)
        if pod is None:
            raise Missing(f'pods "{name}" not found', status=404)
        if self.before_log is not None:
            self.before_log(pod)
        if name in self.dead:
            raise BackendUnreachable(f"answers 500: Get https://10.0.0.1:10250/containerLogs/ns/{name}")
        for one in pod.inits:
            if one.name == container:
                return pod, one
        if previous:
            tries = pod.tries if pod.waiting else pod.tries[:-1]
            if not tries:
                raise Invalid(f'previous terminated container "{container}" not found', status=400)
            return pod, tries[-1]
        if not pod.tries:
            raise Invalid(f'container "{container}" is waiting to start: PodInitializing', status=400)
        return pod, pod.tries[-1]

    def answer(self, pod: str, **options: Any) -> bytes:
        """The body of one bounded request."""
        self.asked.append({"pod": pod, **options})
        _, one = self._container(pod, options["container"], options.get("previous", False))
        if one.removed:
            return b"unable to retrieve container logs for " + one.id.encode()
        since = options.get("since")
        body = one.text(None if since is None else int(from_rfc3339(since) or 0) * SECOND)
        if options.get("tail") is not None:
            lines = body.splitlines(keepends=True)
            body = b"".join(lines[len(lines) - options["tail"] :] if options["tail"] else [])
        limit = options.get("limit_bytes")
        return body if limit is None else body[:limit]

    def api(self) -> Any:
        return FakeLogs(self)


class Body:
    """What `Api.log` returns."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces
        self.closed = False

    def __iter__(self) -> Body:
        return self

    def __next__(self) -> bytes:
        if self.closed:
            raise StopIteration
        return next(self.pieces)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class FakeLogs:
    """The part of `Api` that serves logs. Answers come in pieces of any size."""

    def __init__(self, node: Node, cuts: float = 0.0) -> None:
        self.node, self.cuts = node, cuts
        self.body: Body | None = None

    def log(self, pod: str, namespace: str | None = None, *, follow: bool = False, **options: Any) -> Any:
        options.pop("silence", None)
        if not follow:
            return Body(self._pieces(self.node.answer(pod, **options)))
        _, one = self.node._container(pod, options["container"], options.get("previous", False))
        self.node.asked.append({"pod": pod, "follow": True, **options})
        body = Body(iter(()))
        body.pieces = self._followed(one, options.get("since"), body)
        return body

    def get(self, resource: Any, name: str, namespace: str | None = None) -> dict[str, Any]:
        for pod in self.node.all:
            if pod.name == name and pod.here:
                return pod.object()
        raise Missing(f'pods "{name}" not found', status=404)

    def _pieces(self, body: bytes) -> Iterator[bytes]:
        left = len(body) - 300 if self.node.breaks and len(body) > 300 else 0
        while body:
            if left and len(body) <= left:
                self.node.breaks -= 1
                raise BackendUnreachable("the connection was cut")
            size = self.node.random.randint(1, 40)
            yield body[:size]
            body = body[size:]

    def _followed(self, one: Container, since: str | None, body: Body) -> Iterator[bytes]:
        sent = 0
        while not body.closed:
            # Whether it has ended first, its lines second: none that was written before the end is missed.
            ended = one.ended is not None
            text = one.text(None if since is None else int(from_rfc3339(since) or 0) * SECOND)
            fresh, sent = text[sent:], len(text)
            for piece in self._pieces(fresh):
                yield piece
                if self.node.random.random() < self.cuts:
                    return
            if ended and not fresh:
                return
            with self.node.changed:
                self.node.changed.wait(0.01)


def until(what: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)

"""Captures: the end of the log of a pod that may be gone the moment after, and the try that wrote it.

A node gives the log of the container that is there when it is asked. By then the failed container may have
been started again, or another pod may have its name. So a pod is read again after its log was, and an answer
that more than one try can have written is dropped: `collector`, which knows the tries, can still read the log
of a pod that is not gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.logs.parsing import SECOND, LogGap, LogParser, Stamped
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole, container_runs, is_over
from allaboard.errors import AllaboardError

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

Json = dict[str, Any]
SECONDS = 10.0
AT_A_TIME = 8
"""Requests that are made at the same time."""
TAIL = 200
"""Lines of a log that are asked for."""
LARGEST_TAIL = 1 << 20
REPLAY = 2.0
"""Seconds within which the events of one pod must be replayed."""


class PodCapture(NamedTuple):
    """Data of a pod that were read before it went. ``objects``: the pod at each look, in order of time, and
    behind them another pod which had its name by then; ``data``: the end of its log. ``settled``: every try
    that can have written the log is in ``objects``; ``over``: the pod had ended before its log was asked for.
    """

    pod: str
    objects: tuple[Json, ...] = ()
    data: bytes | None = None
    settled: bool = False
    over: bool = False

    @property
    def latest(self) -> Json | None:
        """The pod at the last look."""
        uids = [body["metadata"].get("uid") for body in self.objects]
        own = [body for body, uid in zip(self.objects, uids, strict=True) if uid == uids[0]]
        return own[-1] if own else None

    def tries(self, role: PodRole) -> list[ContainerRun]:
        """Tries that can have written its log, each as of the last look. Init containers are left out once
        the container that trains has started.
        """
        here = {
            instance.id: instance
            for body in self.objects
            for instance in container_runs([body], {self.pod: role})
        }
        return [instance for instance in here.values() if not instance.init] or [*here.values()]


def parse_tail(data: bytes) -> list[Stamped] | None:
    """The lines of the end of a log; None when the node had none to give."""
    parser = LogParser(whole=False)
    lines = [*parser.feed(data), *parser.close()]
    return None if parser.refused is not None else [line for line in lines if not isinstance(line, LogGap)]


def writer_of(
    lines: Sequence[Stamped], known: Sequence[ContainerRun], *, settled: bool
) -> ContainerRun | None:
    """The only try that can have written these lines; None where there are several. ``settled``: as of
    `PodCapture`. The beginning and the end of a try are known in whole seconds, and its last line may bear
    the second after.
    """
    if not lines:
        return known[0] if settled and len(known) == 1 else None
    first = lines[0].at
    can = [
        instance
        for instance in known
        if not is_before(first, instance.begun) and not _is_after(first, instance.finished)
    ]
    # A try that was never seen began when these had ended, or later.
    if settled or any(is_before(first, instance.finished) for instance in can):
        return can[0] if len(can) == 1 else None
    return None


def is_before(at: int, moment: float | None) -> bool:
    """True when a line was surely written before the second of this moment. ``at``: in nanoseconds."""
    return moment is not None and at < int(moment) * SECOND


def _is_after(at: int, moment: float | None) -> bool:
    return moment is not None and at >= (int(moment) + 2) * SECOND


# --- reading ------------------------------------------------------------------------------------------------


def capture_pod(
    api: Api,
    namespace: str | None,
    pod: str,
    container: str | None = None,
    *,
    version: str | None = None,
    goes_from: str = "",
) -> PodCapture:
    """Read a pod and the end of its log. Without ``container``: the log of its only container.

    ``version``: a resource version at which the pod had failed, "" where the version is not known; then the
    log is read at once, and the pod is also looked for in the events since. None: the pod may be well.
    ``goes_from``: a version at which it was well; a pod that is gone is looked for in the events since.
    """
    objects: list[Json] = []
    beside = threading.Thread(
        target=lambda: objects.extend(_read_pod(api, namespace, pod, version, goes_from)), daemon=True
    )
    beside.start()
    if version is None:
        beside.join(SECONDS)
    over = version is not None or any(map(is_over, objects))
    data = None
    with suppress(AllaboardError), api.log(pod, namespace, container=container, tail=TAIL) as stream:
        data = b"".join(stream)[-LARGEST_TAIL:]
    beside.join(SECONDS)
    seen = (*objects,)
    if data is None or any(map(_is_settled, seen)):
        return PodCapture(pod, seen, data, data is not None, over)
    since = _read_pod(api, namespace, pod, version)
    return PodCapture(pod, (*seen, *since), data, bool(since), over)


def _read_pod(
    api: Api, namespace: str | None, pod: str, version: str | None, goes_from: str = ""
) -> list[Json]:
    """The pod; before it, where it is gone or has not failed as expected, a deleted pod of the same name."""
    pods: list[Json] = []
    with suppress(AllaboardError):
        pods.append(api.get(PODS, pod, namespace))
    if start := _replay_start(pods, version, goes_from):
        since = _since(pod, start)
        with suppress(AllaboardError), closing(api.watch(PODS, namespace, **since)) as events:
            pods[:0] = next(([body] for kind, body in events if kind == "DELETED"), [])
    return pods


def _replay_start(pods: Sequence[Json], version: str | None, goes_from: str) -> str:
    """The version from which to look for a deleted pod; "" where there is no need."""
    if version:
        return "" if any(map(_has_failed, pods)) else version
    return "" if pods else goes_from


def _has_failed(pod: Json) -> bool:
    """True when this pod has failed; False may mean that another pod of this name has taken its place."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    ended = [end for c in containers for end in (c.get("state"), c.get("lastState")) if end]
    return status.get("phase") == "Failed" or any("terminated" in end for end in ended)


def _is_settled(pod: Json) -> bool:
    """True when no container of it is started any more: a node starts none of a pod that is being deleted."""
    return is_over(pod) or ("deletionTimestamp" in pod["metadata"] and not _has_failed(pod))


def _since(pod: str, version: str) -> dict[str, Any]:
    return {"fields": f"metadata.name={pod}", "resource_version": version, "timeout": REPLAY}


def capture_pods(
    api: Api, namespace: str | None, pods: Sequence[tuple[str, str, str | None]]
) -> list[PodCapture]:
    """Captures of several pods (name, container, version), read side by side."""
    captures: list[PodCapture] = []

    def capture(pod: str, container: str, version: str | None) -> None:
        captures.append(capture_pod(api, namespace, pod, container, version=version))

    run_within(SECONDS, [partial(capture, *asked) for asked in pods])
    return [*captures]


def run_within(seconds: float, jobs: Sequence[Callable[[], None]]) -> None:
    """Run jobs side by side, with the deadline of the caller. Jobs that are not done after ``seconds`` go on
    alone.
    """
    turn = threading.Semaphore(AT_A_TIME)

    def work(job: Callable[[], None]) -> None:
        with turn:
            job()

    threads = [threading.Thread(target=copy_context().run, args=(work, job), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))

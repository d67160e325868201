"""The end of the log of a pod that may be gone the moment after, and whose it is.

A node gives the log of the container that is there when it is asked. By then the one that failed may have
been started again, or another pod may have its name. So a pod is read again after its log was, and an answer
that more than one try can have written is dropped: what is not gone can still be read by `collector`, which
knows the tries.
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
    """What could be had of a pod before it went. ``things``: its object at each look, in order of time, and
    behind them that of another pod which had its name by then; ``data``: the end of its log. ``settled``: no
    try has written that which is not in ``things``; ``over``: it had ended before its log was asked for.
    """

    pod: str
    things: tuple[Json, ...] = ()
    data: bytes | None = None
    settled: bool = False
    over: bool = False

    @property
    def thing(self) -> Json | None:
        """Its object as it was last."""
        uids = [thing["metadata"].get("uid") for thing in self.things]
        own = [thing for thing, uid in zip(self.things, uids, strict=True) if uid == uids[0]]
        return own[-1] if own else None

    def tries(self, role: PodRole) -> list[ContainerRun]:
        """Those that can have written its log, each as it was seen last. The containers that prepare are of
        no interest once the one that trains was there.
        """
        here = {one.id: one for thing in self.things for one in container_runs([thing], {self.pod: role})}
        return [one for one in here.values() if not one.init] or [*here.values()]


def parse_tail(data: bytes) -> list[Stamped] | None:
    """The lines of the end of a log; None when the node had none to give."""
    parser = LogParser(whole=False)
    lines = [*parser.feed(data), *parser.close()]
    return None if parser.refused is not None else [line for line in lines if not isinstance(line, LogGap)]


def writer_of(
    lines: Sequence[Stamped], known: Sequence[ContainerRun], *, settled: bool
) -> ContainerRun | None:
    """The one try that can have written these lines; None where there are several. ``settled``: as of
    `PodCapture`. Of the beginning and the end of a try whole seconds are known, and its last line may bear
    the second after.
    """
    if not lines:
        return known[0] if settled and len(known) == 1 else None
    first = lines[0].at
    can = [one for one in known if not is_before(first, one.begun) and not _is_after(first, one.finished)]
    # One that was never seen began when these had ended, or later.
    if settled or any(is_before(first, one.finished) for one in can):
        return can[0] if len(can) == 1 else None
    return None


def is_before(at: int, moment: float | None) -> bool:
    """Whether a line was surely written before the second of this moment. ``at``: in nanoseconds."""
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
    """A pod and the end of its log. Without ``container``: of its only one.

    ``version``: one at which the pod had failed, "" where that is not known; then there is no time to lose,
    and the pod is looked for in what has happened since, too. None: it may be well. ``goes_from``: a version
    at which it was well; it is looked for in what has happened since if it is gone.
    """
    things: list[Json] = []
    beside = threading.Thread(
        target=lambda: things.extend(_read_pod(api, namespace, pod, version, goes_from)), daemon=True
    )
    beside.start()
    if version is None:
        beside.join(SECONDS)
    over = version is not None or any(map(is_over, things))
    data = None
    with suppress(AllaboardError), api.log(pod, namespace, container=container, tail=TAIL) as stream:
        data = b"".join(stream)[-LARGEST_TAIL:]
    beside.join(SECONDS)
    seen = (*things,)
    if data is None or any(map(_is_settled, seen)):
        return PodCapture(pod, seen, data, data is not None, over)
    since = _read_pod(api, namespace, pod, version)
    return PodCapture(pod, (*seen, *since), data, bool(since), over)


def _read_pod(
    api: Api, namespace: str | None, pod: str, version: str | None, goes_from: str = ""
) -> list[Json]:
    """The pod; before it, where it is gone or has not failed as it should, one of its name that is gone."""
    pods: list[Json] = []
    with suppress(AllaboardError):
        pods.append(api.get(PODS, pod, namespace))
    if start := _replay_start(pods, version, goes_from):
        since = _since(pod, start)
        with suppress(AllaboardError), closing(api.watch(PODS, namespace, **since)) as events:
            pods[:0] = next(([thing] for kind, thing in events if kind == "DELETED"), [])
    return pods


def _replay_start(pods: Sequence[Json], version: str | None, goes_from: str) -> str:
    """The version from which to look for a pod that is gone; "" where there is no need."""
    if version:
        return "" if any(map(_has_failed, pods)) else version
    return "" if pods else goes_from


def _has_failed(pod: Json) -> bool:
    """Or has another of this name taken its place?"""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    ended = [end for c in containers for end in (c.get("state"), c.get("lastState")) if end]
    return status.get("phase") == "Failed" or any("terminated" in end for end in ended)


def _is_settled(pod: Json) -> bool:
    """Whether no container of it is started any more: a node starts none of a pod that is being deleted."""
    return is_over(pod) or ("deletionTimestamp" in pod["metadata"] and not _has_failed(pod))


def _since(pod: str, version: str) -> dict[str, Any]:
    return {"fields": f"metadata.name={pod}", "resource_version": version, "timeout": REPLAY}


def capture_pods(
    api: Api, namespace: str | None, pods: Sequence[tuple[str, str, str | None]]
) -> list[PodCapture]:
    """The same of several (name, container, version), side by side."""
    captures: list[PodCapture] = []

    def one(pod: str, container: str, version: str | None) -> None:
        captures.append(capture_pod(api, namespace, pod, container, version=version))

    run_within(SECONDS, [partial(one, *asked) for asked in pods])
    return [*captures]


def run_within(seconds: float, jobs: Sequence[Callable[[], None]]) -> None:
    """Run these side by side, with the deadline of who asks. Those that are not done after ``seconds`` are
    left to themselves.
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

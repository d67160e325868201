"""Streams of the logs of members while a run is followed, kept for when their pods are gone.

An operator deletes pods in the moment in which rank 0 is done (``clean_pods``), and a pod that has ended is
gone at once: a later request for its log fails. So a follower has a stream open for each member whose pod
will go, and keeps the end of its lines. A stream brings the last lines of a process even when its pod is
deleted meanwhile. While nothing is written, it makes no request, but is opened anew after a long silence.

`Listened` is one try, and decides; `start` reads it in a thread. `MOST` members of one run have a stream, the
first by rank, and `TOGETHER` of all runs of a process; the logs of others are read when their pods go, if
there is time (`capture`, `collector`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from allaboard.backends.kubernetes.client.errors import Missing
from allaboard.backends.kubernetes.client.process import PROCESS
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.logs.cache import AttemptLogs
from allaboard.backends.kubernetes.logs.capture import TAIL
from allaboard.backends.kubernetes.logs.parsing import SECOND, LogGap, LogParser, Stamped, stamp
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole, container_runs
from allaboard.errors import AllaboardError, BackendUnreachable

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

Json = dict[str, Any]
MOST, TOGETHER = 32, 128
"""Streams of one run, and of all runs that this process follows."""
SILENCE = 300.0
"""Seconds without a line after which a stream is opened anew; load balancers cut it sooner or later."""
BURST = 2.0
"""Seconds in which the lines come that were written before a stream was opened."""
REST, LONGEST_REST = 0.3, 60.0
"""Seconds between the end of a stream and a look at its pod; they double while streams end at once."""
LIVED = 10.0
"""A stream that was open for so many seconds did not end at once."""
SURE = 2.0
"""A pod that is gone so many seconds after its stream ended wrote nothing more."""


class Room:
    """Count of the streams that this process has open. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, held: int) -> bool:
        """Take the place of one more stream for a run that holds ``held``; False: there is no room. `leave`
        gives it back. The more streams a run has, the more room must be left: many runs have a few each,
        before a few have many.
        """
        with self._lock:
            if TOGETHER - self._taken <= held:
                return False
            self._taken += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._taken -= 1


def room() -> Room:
    return PROCESS.get(Room, None, Room)


def to_listen(
    tries: Sequence[ContainerRun], heard: Collection[str], open_streams: int, *, rank_0: bool
) -> list[ContainerRun]:
    """The tries for which a stream is to be opened. ``heard``: the ids of tries that have or had a stream;
    ``rank_0``: the pod of rank 0, whose reports are read anyway, goes like the others.
    """
    fresh = [
        instance
        for instance in tries
        if instance.running
        and not instance.init
        and not instance.previous
        and instance.id not in heard
        and (instance.rank or rank_0)
    ]
    return fresh[: max(0, MOST - open_streams)]


class Listened:
    """One try that has a stream; its lines go to ``logs``. ``now`` is any clock that does not go back."""

    def __init__(self, instance: ContainerRun, logs: AttemptLogs) -> None:
        self.instance, self.logs = instance, logs
        self._parser = LogParser(whole=False)
        self._begun = self._last = 0.0
        self._ended: float | None = None
        self._known: Stamped | None = None
        self._tail: int | None = None
        self._lines = 0
        self._held: list[Stamped] = []
        self._proven = False
        self._rest = REST

    def begin(self, now: float) -> dict[str, Any]:
        """The arguments of `Api.log` for a new stream: from the last line that is known on."""
        self._known = self.logs.last_line(self.instance)
        self._parser, self._held, self._proven = LogParser(whole=False), [], False
        self._begun = self._last = now
        self._tail, self._lines = (TAIL, 0) if self._known is None else (None, 0)
        since = None if self._known is None else stamp(self._known.at // SECOND * SECOND)
        more = {"container": self.instance.container, "follow": True, "silence": SILENCE}
        return {"since": since, "tail": self._tail, **more}

    def feed(self, data: bytes, now: float) -> bool:
        """Take data of the stream; True: `prove` must follow. The container may have been replaced since it
        was seen, and then the data are those of the next one.
        """
        self._last = now
        self._held += [line for line in self._parser.feed(data) if not isinstance(line, LogGap)]
        if self._held and self._known is not None and self._held[0].at <= self._known.at:
            self._proven = True  # a line that is known already
        if self._proven:
            self._keep()
        return bool(self._held)

    def prove(self, pod: Json | None) -> bool:
        """True when the data are its own, by its pod; ``pod`` None: it is gone since."""
        now = self.seen_in(pod)
        self._proven = pod is None or (now is not None and not now.previous)
        if self._proven:
            self._keep()
        return self._proven

    def _keep(self) -> None:
        lines, self._held = self._held, []
        # A stream that begins behind the known lines lacks those between: the node has rotated the log.
        self.logs.add(self.instance, lines, cut=self._tail is None and self._lines == 0)
        self._lines += len(lines)
        if self._tail is not None and self._lines >= self._tail and self._last - self._begun < BURST:
            self.logs.mark_cut(self.instance)
            self._tail = None

    def end(self, now: float) -> float:
        """End the stream. Returns the seconds to rest before its pod is looked at; 0: it was only silent, and
        is opened anew at once.
        """
        if now - self._last >= SILENCE - 2:
            return 0.0
        self._ended = now
        return self.rest(now)

    def rest(self, now: float) -> float:
        """Seconds to rest after a stream that is over, or was refused."""
        if now - self._begun >= LIVED:
            self._rest = REST
        rest, self._rest = self._rest, min(LONGEST_REST, 2 * self._rest)
        return rest

    def goes_on(self, pod: Json | None, now: float) -> bool:
        """True when it still runs, by its pod; ``pod`` None: it is gone. Else the lines that are known are
        all that it wrote, where the stream has just ended with it; the node of a failed try is asked
        nevertheless.
        """
        seen = self.seen_in(pod)
        if seen is not None and seen.running:
            return True
        if seen is not None:
            self.logs.update([seen])
        goes = pod is None or "deletionTimestamp" in pod["metadata"]
        is_end = self._ended is not None and now - self._ended <= SURE
        if is_end and (goes or (seen is not None and seen.code == 0)):
            self._held += [line for line in self._parser.close() if not isinstance(line, LogGap)]
            self._keep()
            self.logs.add(self.instance, (), whole=True)
        return False

    def seen_in(self, pod: Json | None) -> ContainerRun | None:
        """This try as it is now."""
        role = PodRole(self.instance.member, self.instance.rank, self.instance.container)
        tries = [] if pod is None else container_runs([pod], {self.instance.pod: role})
        return next((instance for instance in tries if instance.id == self.instance.id), None)


# --- reading ------------------------------------------------------------------------------------------------


class Listener:
    """Listens in a thread of its own, until the try has ended or `cancel` is called."""

    def __init__(self, api: Api, listened: Listened) -> None:
        self._api, self._listened = api, listened
        self._cancelled = threading.Event()
        self._stream: Any = None
        name = f"listener-{listened.instance.pod}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def cancel(self) -> None:
        self._cancelled.set()
        if self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        try:
            with suppress(AllaboardError):
                while self._listen():
                    pass
        finally:
            room().leave()

    def _listen(self) -> bool:
        """Read one stream; True: another is to follow."""
        listened, pod = self._listened, self._listened.instance.pod
        options = listened.begin(time.monotonic())
        try:
            with self._api.log(pod, **options) as self._stream:
                for data in self._stream:
                    if self._cancelled.is_set():
                        return False
                    if listened.feed(data, time.monotonic()) and not listened.prove(self._pod()):
                        return False
            rest = listened.end(time.monotonic())
        except BackendUnreachable:
            rest = listened.rest(time.monotonic())
        except Missing:
            return listened.goes_on(None, time.monotonic())
        if self._cancelled.wait(rest):
            return False
        return not rest or listened.goes_on(self._pod(), time.monotonic())

    def _pod(self) -> Json | None:
        try:
            return self._api.get(PODS, self._listened.instance.pod)
        except Missing:
            return None


def start(api: Api, instance: ContainerRun, logs: AttemptLogs, held: int) -> Listener | None:
    """Open a stream of this try, of a run that has ``held`` streams; None: there is no room."""
    if not room().take(held):
        return None
    try:
        return Listener(api, Listened(instance, logs))
    except RuntimeError:  # no room for another thread
        room().leave()
        return None

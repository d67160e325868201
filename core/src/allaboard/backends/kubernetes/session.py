"""Sessions: the knowledge of this process about the runs that it looks at. `FollowSession` is one run;
`FollowSessions` holds those of one backend.

A session begins with the first look at a run or with its first follower. It stays while the run is followed.
Of the others those that were used last stay: `LIVE` of them, or `ENDED` where the run has ended or captures
wait for a look that may never come. What a session held of logs goes with it (`logs.cache`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.logs.cache import LogCache
from allaboard.backends.kubernetes.logs.capture import PodCapture
from allaboard.backends.kubernetes.logs.collector import EvidenceCollector
from allaboard.backends.kubernetes.logs.history import AttemptHistory
from allaboard.backends.kubernetes.logs.listening import Listener, to_listen
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole
from allaboard.backends.kubernetes.observe.lookup import AttemptObjects
from allaboard.backends.kubernetes.observe.observation import Memory, remembered
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.backends.kubernetes.watch.informer import AsyncChanges, Changes
from allaboard.follow.run_record import RunRecord
from allaboard.gangs.placement import condition
from allaboard.text.units import from_rfc3339

LIVE, ENDED = 20_000, 100
"""Sessions of runs that are not followed, as above."""
ATTEMPTS = 20
"""Attempts of one run of which something is known."""
CAPTURES, ALL_CAPTURES = 8, 64
"""Pods of one run, and of all runs, that are captured at one time. The logs of others are read with the next
look, if they are still there.
"""
SOON, SELDOM = 5.0, 600.0
"""Seconds between two times at which it is asked why a run goes no further while no row of it changes: a
tenth of its age, within these.
"""


@dataclass(frozen=True, slots=True)
class CachedObservation:
    """The result of the last look at a run. It is as good as a new one while no row has told of a change.
    ``asked``: when it was last asked why the run goes no further, by the API server's clock.
    """

    objects: AttemptObjects
    notes: tuple[str, ...] = ()
    asked: float = 0.0

    def explains(self, now: float) -> bool:
        """True while the notes are still good."""
        age = now - max(self.objects.record.created, _newest_pod(self.objects))
        return now - self.asked < min(SELDOM, max(SOON, age / 10))


def _newest_pod(objects: AttemptObjects) -> float:
    """The time at which its newest pod was made or got its node: what keeps it shows soon after that."""
    times = [pod["metadata"].get("creationTimestamp") for pod in objects.pods]
    times += [(condition(pod, "PodScheduled") or {}).get("lastTransitionTime") for pod in objects.pods]
    return max((from_rfc3339(at) or 0.0 for at in times if at), default=0.0)


class FollowSession:
    """One run in one backend: its follower and the last look, the history of its attempts with what was read
    of their logs, and the captures of pods that go. Several threads may use it.
    """

    __slots__ = (
        "_attempts", "_cached", "_captures", "_changes", "_listening", "_lock", "_log_cache",
        "_progress_every", "capturing", "has_ended", "run", "threads",
    )  # fmt: skip

    def __init__(self, run: str, progress_every: float, log_cache: LogCache) -> None:
        self.run = run
        self.has_ended = False
        self.capturing = 0
        self.threads: tuple[threading.Thread, ...] = ()
        self._progress_every, self._log_cache = progress_every, log_cache
        self._lock = threading.Lock()
        self._changes: Changes | AsyncChanges | None = None
        self._cached: CachedObservation | None = None
        self._attempts: dict[tuple[int, int], AttemptHistory] = {}
        self._captures: tuple[tuple[str, PodCapture, PodRole], ...] = ()
        self._listening: Mapping[str, Listener] = {}  # by the id of the try; those that are over, too

    # The follower, and the last look.

    def follow(self, changes: Changes | AsyncChanges) -> None:
        """From now on this follower is told of changes."""
        with self._lock:
            self._changes, self._cached = changes, None

    def unfollow(self, changes: Changes | AsyncChanges) -> None:
        """This follower has left. Another one may have come meanwhile."""
        with self._lock:
            if self._changes is changes:
                self._changes = self._cached = None

    @property
    def is_followed(self) -> bool:
        return self._changes is not None

    @property
    def cached(self) -> CachedObservation | None:
        """The last look, while it stands."""
        with self._lock:
            return self._cached if self._changes is not None and self._changes.quiet else None

    def begin_look(self) -> CachedObservation | None:
        """The same for a new look: what is told from here on comes after it. Until it has succeeded none
        stands.
        """
        with self._lock:
            if self._changes is None:
                return None
            cached, self._cached = self._cached, None
            return cached if self._changes.settle() else None

    def end_look(self, cached: CachedObservation | None) -> None:
        with self._lock:
            if self._changes is not None:
                self._cached = cached

    def forget_look(self) -> None:
        """This process has done something to the run."""
        if self._cached is not None:
            with self._lock:
                self._cached = None

    # What was seen.

    def history(self, stored: Stored) -> AttemptHistory:
        """The history of the attempt that a record means."""
        record = stored.record
        with self._lock:
            history = self._attempts.get((record.generation, record.attempt))
            return history or self._keep(
                record, record.attempt, AttemptHistory.of(stored, self._progress_every, self._log_cache)
            )

    def earlier_history(self, record: RunRecord, attempt: int) -> AttemptHistory:
        """The history of an attempt before that of the record."""
        with self._lock:
            history = self._attempts.get((record.generation, attempt))
            return history or self._keep(
                record,
                attempt,
                AttemptHistory(Memory(), EvidenceCollector(progress_every=0, cache=self._log_cache)),
            )

    def _keep(self, record: RunRecord, attempt: int, history: AttemptHistory) -> AttemptHistory:
        self._attempts[record.generation, attempt] = history
        if len(self._attempts) > ATTEMPTS:
            del self._attempts[next(iter(self._attempts))]
        return history

    def add_look(self, objects: AttemptObjects) -> AttemptHistory:
        """The history of this attempt with a look at its objects."""
        history = self.history(objects.stored)
        here = {pod["metadata"]["uid"] for pod in objects.pods}
        if gone := [pod for pod in self._take_captures(objects.record.uid, history) if _uid(pod) not in here]:
            # As it was before others came in their place.
            names = {pod["metadata"]["name"] for pod in gone}
            others = [pod for pod in objects.pods if pod["metadata"]["name"] not in names]
            history.memory = remembered(history.memory, objects.job, [*gone, *others])
        workload = objects.workload.body if objects.workload is not None else None
        history.memory = remembered(history.memory, objects.job, objects.pods, workload=workload)
        return history

    # Captures.

    def add_captures(self, uid: str, captures: Iterable[PodCapture], roles: Mapping[str, PodRole]) -> None:
        """Captures of pods of the attempt with this uid, for the next look. ``roles``: by the pod's name."""
        with self._lock:
            self._captures += tuple((uid, capture, roles[capture.pod]) for capture in captures)

    def has_captures(self, uid: str) -> bool:
        """True if captures of this attempt came since the last look."""
        return any(of == uid for of, _, _ in self._captures)

    @property
    def holds_captures(self) -> bool:
        return bool(self._captures)

    def history_with_captures(self, stored: Stored) -> AttemptHistory:
        """The history with the logs that were captured since the last look. The next look takes the captures
        for its members, too.
        """
        history = self.history(stored)
        for uid, capture, role in self._captures:
            if uid == stored.record.uid:
                history.collector.add_capture(capture, role)
        return history

    def _take_captures(self, uid: str, history: AttemptHistory) -> Iterator[Json]:
        """The pods of the captures, whose logs go to the history. Those of other attempts are dropped."""
        with self._lock:
            captures, self._captures = self._captures, ()
        for of, capture, role in captures:
            if of == uid:
                history.collector.add_capture(capture, role)
                if capture.latest is not None:
                    yield capture.latest

    def add_thread(self, thread: threading.Thread) -> None:
        """A capture that is under way."""
        with self._lock:
            self.threads = (*(t for t in self.threads if t.is_alive()), thread)

    def join_captures(self, seconds: float) -> None:
        """Wait for what is just being read of pods that may be gone."""
        for thread in self.threads:
            thread.join(seconds)

    # Members that are listened to.

    def to_listen(self, tries: Sequence[ContainerRun], *, rank_0: bool) -> list[ContainerRun]:
        """`listening.to_listen` for this run."""
        return to_listen(tries, self._listening.keys(), len(self.live_listening()), rank_0=rank_0)

    def add_listening(
        self, tries: Iterable[ContainerRun], start: Callable[[ContainerRun, int], Listener | None]
    ) -> None:
        """Listen to these from now on, as far as there is room. ``start`` is told how many streams there
        are.
        """
        held = len(self.live_listening())
        for container_run in tries:
            if (task := start(container_run, held)) is None:
                return
            self._listening = {**self._listening, container_run.id: task}
            held += 1

    def live_listening(self) -> list[Listener]:
        return [listener for listener in self._listening.values() if not listener.done()]

    def stop_listening(self) -> None:
        for listener in self.live_listening():
            listener.cancel()
        self._listening = {}


def _uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


class FollowSessions:
    """The sessions of one backend, by the ids of their runs. Several threads may use it. ``progress_every``:
    seconds between two looks at what rank 0 reports; 0: none. ``log_cache``: the budget of all logs.
    """

    def __init__(self, progress_every: float, log_cache: LogCache) -> None:
        self.progress_every, self.log_cache = progress_every, log_cache
        self._lock = threading.Lock()
        self._capturing = 0
        self._live: OrderedDict[str, FollowSession] = OrderedDict()
        self._ended: OrderedDict[str, FollowSession] = OrderedDict()

    def get(self, run: str) -> FollowSession | None:
        """The session of a run, if there is one. ``run``: its id."""
        return self._live.get(run) or self._ended.get(run)

    def of(self, run: str, *, has_ended: bool | None = None) -> FollowSession:
        """The session of a run, made where there is none. ``has_ended``: None where that is not known."""
        with self._lock:
            session = self._live.pop(run, None) or self._ended.pop(run, None)
            session = session or FollowSession(run, self.progress_every, self.log_cache)
            if has_ended is not None:
                session.has_ended = has_ended
            return self._put(session)

    def follow(self, run: str, changes: Changes | AsyncChanges) -> FollowSession:
        session = self.of(run)
        session.follow(changes)
        return session

    def unfollow(self, session: FollowSession, changes: Changes | AsyncChanges) -> None:
        """Ends what `follow` began; captures that are still under way end by themselves."""
        session.unfollow(changes)
        if not session.is_followed:
            session.stop_listening()
        session.threads = ()
        self.of(session.run)  # its place may be another now

    def forget_looks(self) -> None:
        """This process has done something to a run."""
        for session in [*self._live.values(), *self._ended.values()]:
            session.forget_look()

    def _put(self, session: FollowSession) -> FollowSession:
        is_few = session.has_ended or (session.holds_captures and not session.is_followed)
        sessions, most = (self._ended, ENDED) if is_few else (self._live, LIVE)
        sessions[session.run] = session
        if len(sessions) > most:
            idle = next((run for run, s in sessions.items() if not s.is_followed and s is not session), None)
            if idle is not None:
                del sessions[idle]
        return session

    def begin_capture(self, session: FollowSession) -> bool:
        """True if one more pod of this run may be captured now; `end_capture` gives its place back."""
        with self._lock:
            if session.capturing >= CAPTURES or self._capturing >= ALL_CAPTURES:
                return False
            session.capturing += 1
            self._capturing += 1
            return True

    def end_capture(self, session: FollowSession) -> None:
        with self._lock:
            session.capturing -= 1
            self._capturing -= 1

"""Handling of a local run of a worker's task that lives on another host.

A next try never trains beside it: the run is asked to stop there, and is waited for, at most as long as a run
goes on that nobody follows. A resume hands over what the trigger saw of the end, or gives the run back to the
triggerer that can see it.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allaboard.backends.base import Handle, handle_of
from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import AllaboardError, UnknownRun
from allaboard.follow.news import Said, news
from allaboard.follow.run_record import Reached
from allaboard.report.commands import Place
from allaboard.text.untrusted import Unreadable, parse_json
from allaboard_provider import defaults
from allaboard_provider.compat import conf
from allaboard_provider.errors import PlaceFailed
from allaboard_provider.homes import ENDED, HOME, STOP, Ended, Home, order, read_ended, read_home

if TYPE_CHECKING:
    from allaboard.storage.base import Store

_EVERY = 3.0
"""Seconds between two looks at what the other host has left."""
_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Before:
    """Work of other hosts for this task. ``after``: the progress of its run there; ``result``: of an
    attempt, ``uid``, that succeeded there and was not handed over.
    """

    after: Reached | None = None
    result: Mapping[str, Any] | None = None
    uid: str = ""


def cut_off_worker() -> float:
    """Seconds for which a worker that is cut off from Airflow may follow its run after Airflow has given its
    try to another one, by Airflow's configuration; 0 with its defaults.
    """
    beats = conf.getint("workers", "max_failed_heartbeats", fallback=3)
    every = conf.getfloat("workers", "min_heartbeat_interval", fallback=5.0)
    tries = conf.getint("workers", "execution_api_retries", fallback=5)
    longest = conf.getfloat("workers", "execution_api_retry_wait_max", fallback=90.0)
    pauses = sum(min(2.0**n, longest) for n in range(tries - 1))
    request = tries * conf.getfloat("workers", "execution_api_timeout", fallback=5.0) + pauses
    given_up = conf.getfloat("scheduler", "task_instance_heartbeat_timeout", fallback=300.0)
    return float(max(0.0, beats * (every + request) - given_up))


class Homes:
    """Messages between the tries of a task about the home of its run. ``store``: the task's own; None
    where Airflow has none. ``pause``: sleeps, and raises when this worker is asked to end. ``saves``: the uri
    of the run's folder of checkpoints in this generation; None where it has none.
    """

    def __init__(
        self,
        store: Any,
        backend: LocalBackend,
        log: Any,
        pause: Callable[[float], None],
        saves: Callable[[int], str | None],
    ) -> None:
        self.store, self.backend, self.log, self.pause, self.saves = store, backend, log, pause, saves
        self.host = socket.gethostname()
        self._folders: dict[int, Store | None] = {}

    def keep_home(self, handle: Handle, *, alone: bool) -> None:
        """Say that the run lives here. ``alone``: it ends with this worker."""
        place = self.backend.place()
        patience = self.backend.orchestrated_patience + cut_off_worker()
        home = Home(
            handle.run, handle.uid, handle.attempt, handle.generation, self.host, patience, place, alone,
            handle.data,
        )  # fmt: skip
        self._set(HOME, home.as_json())

    def keep_end(self, ended: Ended, generation: int | None = None) -> None:
        """Say how the run has ended here. Airflow does not listen to the worker of a try whose task was
        cleared meanwhile; with its ``generation`` that is left beside the checkpoints then, where a next try
        on any host looks, too.
        """
        if not self._set(ENDED, ended.as_json()) and generation is not None:
            self._leave_end(ended, generation)

    def ask_to_stop(self, run: str) -> None:
        """Ask for the end of the run at its home, if that is known."""
        home = read_home(self._get(HOME))
        if home is not None and home.run == run:
            self._set(STOP, order(home, self.host))

    def settle(self, run: str, *, first: bool) -> Before:
        """Wait until the last attempt of the run, if it was on another host, has surely ended. Raises
        PlaceFailed where ``[allaboard] elsewhere`` says so, SiteError where that is no word for it.
        ``first``: this is the first try of the task.
        """
        policy = defaults.elsewhere()
        if self.store is None and not first and not self._knows(run):
            self.log.warning(
                "tasks of this Airflow keep no state: a run that another try of this task left on another "
                "host is not known on %s; give the task a queue of one worker, or upgrade Airflow to 3.3",
                self.host,
            )
        home = read_home(self._get(HOME))
        if home is None or home.run != run:
            return Before()
        if self._is_here(home):
            return Before()
        ended = self._end_of(home)
        if ended is None and not home.alone:
            ended = self._wait_for_end(home, policy)
        if ended is not None and ended.state == "succeeded":
            if ended.accepted:
                return Before(Reached(home.generation + 1, 0))
            if ended.result is not None:
                return Before(home.reached, ended.result, ended.uid)
        return Before(home.reached)

    def _knows(self, run: str) -> bool:
        try:
            return bool(self.backend.observe(run))
        except UnknownRun:
            return False

    def _is_here(self, home: Home) -> bool:
        try:
            seen = self.backend.observe(home.run)
        except UnknownRun:
            return self.backend.place() == home.place
        if seen.uid != home.uid:
            return self.backend.place() == home.place
        ended = self._end_of(home)
        if ended is not None and ended.accepted and not seen.handed_over:
            with suppress(AllaboardError):
                self.backend.hand_over(handle_of(seen))  # by a worker elsewhere
        return True

    def _end_of(self, home: Home) -> Ended | None:
        ended = read_ended(self._get(ENDED))
        if ended is None or ended.uid != home.uid:
            ended = self._left_end(home)
        return ended if ended is not None and ended.uid == home.uid else None

    def _leave_end(self, ended: Ended, generation: int) -> None:
        try:
            if (folder := self._folder(generation)) is not None:
                folder.write(_beside_saves(ended.uid), json.dumps(ended.as_json()).encode())
        except AllaboardError as error:
            self.log.warning("the facts for the next try are not saved beside the checkpoints: %s", error)

    def _left_end(self, home: Home) -> Ended | None:
        from allaboard.storage.base import read_small

        try:
            folder = self._folder(home.generation)
            if folder is None:
                return None
            return read_ended(parse_json(read_small(folder, _beside_saves(home.uid), _LARGEST)))
        except (AllaboardError, Unreadable):
            return None

    def _folder(self, generation: int) -> Store | None:
        """The run's folder of checkpoints, opened once: a wait asks it every few seconds."""
        from allaboard.storage import open_store

        if generation not in self._folders:
            uri = self.saves(generation)
            self._folders[generation] = None if uri is None else open_store(uri)
        return self._folders[generation]

    def _wait_for_end(self, home: Home, policy: str) -> Ended | None:
        where = f"run {home.run}, attempt {home.attempt}, lives on {home.host}; this worker is on {self.host}"
        if policy == "fail":
            summary = f"{where}: a second training is not started beside it ([allaboard] elsewhere is fail)"
            fix = f"`{Place().command('stop', home.run)}` on {home.host} ends it, and the next try resumes"
            raise PlaceFailed(f"{summary}; {fix}", summary=summary, fix=fix, run=home.run, retryable=True)
        self._set(STOP, order(home, self.host))
        self.log.warning(
            "%s: it is asked to stop there, and resumes here once it has ended, within %.0f min",
            where, home.bound() / 60,
        )  # fmt: skip
        begun = time.monotonic()
        logged = news(Said(), "waits", home.uid, None, begun) or Said()
        while (waited := time.monotonic() - begun) < home.bound():
            if (ended := self._end_of(home)) is not None:
                self.log.info("run %s has ended on %s: %s", home.run, home.host, ended.state)
                return ended
            line = (
                f"still waits for the end of run {home.run} on {home.host}, "
                f"{(home.bound() - waited) / 60:.0f} min at most"
            )
            if (heard := news(logged, "waits", home.uid, line, begun + waited)) is not None:
                logged = heard
                self.log.info("%s", line)
            self.pause(_EVERY)
        self.log.warning(
            "run %s on %s does not answer; nobody has followed it for %.0f min, so it has ended",
            home.run, home.host, home.bound() / 60,
        )  # fmt: skip
        return None

    def _get(self, key: str) -> Any:
        try:
            return None if self.store is None else self.store.get(key)
        except Exception as error:
            self.log.warning("cannot read the task state of the last try (%s): %s", key, error)
            return None

    def _set(self, key: str, value: Any) -> bool:
        """Store a value for the next try; return whether Airflow keeps it."""
        try:
            if self.store is not None:
                self.store.set(key, value)
        except Exception as error:
            self.log.warning("cannot save the task state for the next try (%s): %s", key, error)
            return False
        return self.store is not None


def _beside_saves(uid: str) -> str:
    return f"ended/{uid}.json"

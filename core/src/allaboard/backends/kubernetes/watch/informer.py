"""One list and watch for each (cluster, credential, namespace, kind) of a process, shared by all followers of
runs there; and one for the pods of those runs. `reflector` decides the steps of a feed; a thread or a task
carries them out here, from the first follower to the last.

    with hub_of(api).changes(run, resource_of(job)) as changes:
        changes.wait(300)

A wake is only a wake-up: look, and wait again. Wakes of one run are a second apart, after the first few. An
alarm (``changes.on_alarm``) comes at once, from the thread that watches, and must not block it.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from allaboard.backends.kubernetes.client.api import Api, AsyncApi, Stream
from allaboard.backends.kubernetes.client.process import PROCESS
from allaboard.backends.kubernetes.client.protocol import Json, Patience
from allaboard.backends.kubernetes.client.resources import PODS, Resource
from allaboard.backends.kubernetes.watch.reflector import (
    Feed,
    List,
    NameFeed,
    ObjectFeed,
    PodAlarm,
    Rest,
    Watch,
    space_wakes,
)
from allaboard.errors import AllaboardError, BackendUnreachable
from allaboard.render import labels

READY_SECONDS = 10.0
"""Seconds for which a new follower waits for the first list; then it polls."""
PATIENCE = Patience(budget=10.0)
"""A feed waits between its own requests, so each request gives up soon."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Target of a feed."""

    namespace: str
    resource: Resource
    labels: str | None
    fields: str | None
    names: bool = False
    """Keep the names of the objects."""


@lru_cache(maxsize=64)
def _watches_of_run(resource: Resource, namespace: str) -> tuple[Watched, ...]:
    """The targets of a run of allaboard: its job object and its pods, by label."""
    return tuple(Watched(namespace, kind, labels.selector(), None) for kind in (resource, PODS))


def _watches_of_object(name: str, resource: Resource, namespace: str) -> tuple[Watched, ...]:
    """The target of any object, by its name."""
    return (Watched(namespace, resource, None, f"metadata.name={name}"),)


# --- blocking -----------------------------------------------------------------------------------------------


class Changes:
    """A follower that blocks."""

    __slots__ = ("run", "on_alarm", "_feeds", "_gate", "_due", "_numbers", "_number", "_settled")

    def __init__(self, run: str, feeds: tuple[Feed, ...]) -> None:
        self.run = run
        self.on_alarm: Callable[[PodAlarm], None] | None = None
        self._feeds = feeds
        self._gate = threading.Lock()  # open when there is something to look at
        self._gate.acquire()
        self._due = 0.0
        # Every wake has its own number: one that comes while another is noted is not lost.
        self._numbers = itertools.count(1)
        self._number, self._settled = 0, -1

    def wake(self) -> None:
        # Called with the feed's lock held, but by several feeds, and while a follower looks.
        self._number = next(self._numbers)
        with suppress(RuntimeError):
            self._gate.release()

    def alarm(self, alarm: PodAlarm) -> None:
        if self.on_alarm is not None:
            self.on_alarm(alarm)

    def wait(self, seconds: float, spaced: bool = True) -> bool:
        """True when something may have changed: a row did, or no watch works at present and it is time to
        poll. False after ``seconds``. ``spaced``: of many wakes some are held back, as every look costs
        requests.
        """
        now = time.monotonic()
        deadline = now + seconds
        while not self._gate.acquire(timeout=max(0.0, min(_poll(self._feeds), deadline - now))):
            now = time.monotonic()
            if now >= deadline:
                return False
            if _blind(self._feeds):
                return True
        if not spaced:
            return True
        now = time.monotonic()
        self._due, pause = space_wakes(self._due, now)
        time.sleep(max(0.0, min(pause, deadline - now)))
        # The same look sees the changes of the wait.
        self._gate.acquire(blocking=False)
        return True

    @property
    def quiet(self) -> bool:
        """True when nothing has changed since the last `settle`: the watches work, and no row has come."""
        return self._number == self._settled and _hear(self._feeds)

    def settle(self) -> bool:
        """`quiet`, read before a look: rows from this moment on count as later than the look."""
        number, blind, quiet = self._number, _blind(self._feeds), self.quiet
        # While a watch does not work, changes after this look stay unknown.
        self._settled = -1 if blind else number
        return quiet

    @property
    def trouble(self) -> AllaboardError | None:
        """The error of a watch that does not work; None: all work."""
        return next((feed.trouble for feed in self._feeds if feed.trouble), None)


class Copy:
    """All objects of a kind, as a watch keeps them up to date."""

    def __init__(self, thread: _Thread, feed: ObjectFeed, changes: Changes) -> None:
        self._thread, self._feed, self._changes = thread, feed, changes

    def objects(self) -> list[Json]:
        """The objects as the watch last sent them, for reading only."""
        with self._thread.lock:
            return [*self._feed.objects.values()]

    def wait(self, seconds: float) -> bool:
        """As `Changes.wait`, but at once: a look at the copy costs no request."""
        return self._changes.wait(seconds, spaced=False)

    @property
    def trouble(self) -> AllaboardError | None:
        """The error for which the copy is not up to date; None: it is."""
        return self._changes.trouble


class Hub:
    """Feeds of one cluster as one user; `hub_of` gives it. May be used by several threads. The default
    namespace is the client's.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._feeds: dict[Watched, _Thread] = {}

    @contextmanager
    def changes(self, run: str, resource: Resource, namespace: str | None = None) -> Iterator[Changes]:
        """Wakes for a run of allaboard: its job, and its pods."""
        with self._follow(run, _watches_of_run(resource, self._in(namespace))) as follower:
            yield follower

    @contextmanager
    def changes_of(self, resource: Resource, name: str, namespace: str | None = None) -> Iterator[Changes]:
        """Wakes for one object, whoever made it."""
        with self._follow(name, _watches_of_object(name, resource, self._in(namespace))) as follower:
            yield follower

    @contextmanager
    def copy(self, resource: Resource, namespace: str | None = None) -> Iterator[Copy]:
        """All objects of a kind in a namespace, ``""``: in all namespaces. The copy is not shared: a process
        has a single reader of it.
        """
        feed = ObjectFeed(random.random)
        thread = _Thread(self._api, Watched(self._in(namespace), resource, None, None), feed)
        changes = Changes("", (feed,))
        thread.join(changes)
        try:
            thread.ready.wait(READY_SECONDS)
            yield Copy(thread, feed, changes)
        finally:
            thread.leave(changes)
            thread.close()

    @property
    def open(self) -> int:
        """The number of feeds."""
        return len(self._feeds)

    def _in(self, namespace: str | None) -> str:
        return self._api.namespace if namespace is None else namespace

    @contextmanager
    def _follow(self, run: str, watched: tuple[Watched, ...]) -> Iterator[Changes]:
        with self._lock:
            feeds = tuple(self._feeds.setdefault(target, _Thread(self._api, target)) for target in watched)
            follower = Changes(run, tuple(feed.feed for feed in feeds))
            for feed in feeds:
                feed.join(follower)
        try:
            deadline = time.monotonic() + READY_SECONDS
            for feed in feeds:
                feed.ready.wait(max(0.0, deadline - time.monotonic()))
            yield follower
        finally:
            self._leave(follower, watched)

    def _leave(self, follower: Changes, watched: tuple[Watched, ...]) -> None:
        with self._lock:
            for target in watched:
                feed = self._feeds[target]
                if not feed.leave(follower):
                    feed.close()
                    del self._feeds[target]
            if not self._feeds:
                self._api.close()


class _Thread:
    """A feed and the thread that serves it, which runs from the first `join` on. ``feed``: a feed of whole
    objects; None: a new feed of their rows.
    """

    def __init__(self, api: Api, watched: Watched, feed: ObjectFeed | None = None) -> None:
        self.feed = feed or Feed(random.random, expected=watched.resource != PODS)
        self.ready = threading.Event()
        self._api, self._watched, self._table = api, watched, feed is None
        self.lock = threading.Lock()
        self._closed = threading.Event()
        self._stream: Stream[tuple[str, Json]] | None = None
        self._thread: threading.Thread | None = None

    def join(self, follower: Changes) -> None:
        with self.lock:
            self.feed.join(follower)
        if self._thread is None:
            name = f"allaboard-watch-{self._watched.resource.plural}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()

    def leave(self, follower: Changes) -> bool:
        """Remove a follower; True: others are left."""
        with self.lock:
            self.feed.leave(follower)
            return self.feed.followed

    def close(self) -> None:
        with self.lock:
            self._closed.set()
            stream = self._stream
        if stream is not None:
            stream.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            with self.lock:
                step = self.feed.next_step(time.monotonic())
            error: AllaboardError | None = None
            try:
                if isinstance(step, Rest):
                    self._closed.wait(step.seconds)
                    continue
                if isinstance(step, List):
                    self._list()
                    continue
                self._watch(step)
            except AllaboardError as trouble:
                error = trouble
            except Exception as bug:
                # A thread that died would leave its followers waiting for nothing.
                error = _unforeseen(bug)
            with self.lock:
                self.feed.mark_ended(error, time.monotonic())
                if self.feed.trouble is not None:
                    self.ready.set()

    def _list(self) -> None:
        target = self._watched
        rows, version = self._api.list(
            target.resource, target.namespace, labels=target.labels, fields=target.fields, table=self._table
        )
        with self.lock:
            self.feed.add_list(rows, version)
        self.ready.set()

    def _watch(self, step: Watch) -> None:
        target = self._watched
        stream = self._api.watch(
            target.resource,
            target.namespace,
            labels=target.labels,
            fields=target.fields,
            resource_version=step.version,
            table=self._table,
        )
        with stream:
            with self.lock:
                if self._closed.is_set():
                    return
                self._stream = stream
                self.feed.mark_opened(time.monotonic())
            for kind, body in stream:
                with self.lock:
                    self.feed.add_event(kind, body)
            with self.lock:
                self._stream = None


# --- async --------------------------------------------------------------------------------------------------


_WAKES = itertools.count(1)


class AsyncChanges:
    """A follower in a loop, from ``async with`` on. 10,000 of them wait at once, so each is small: no frames
    of generators, no parts of its own that could be shared.
    """

    __slots__ = (
        "run",
        "on_alarm",
        "_hub",
        "_watched",
        "_woken",
        "_waiter",
        "_due",
        "_number",
        "_settled",
    )

    def __init__(self, hub: AsyncHub, run: str, watched: tuple[Watched, ...]) -> None:
        self.run = run
        self.on_alarm: Callable[[PodAlarm], None] | None = None
        self._hub, self._watched = hub, watched
        self._woken = False
        self._waiter: asyncio.Future[None] | None = None
        self._due = 0.0
        self._number, self._settled = 0, -1

    async def __aenter__(self) -> Self:
        await self._hub.join(self, self._watched)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._hub.leave(self, self._watched)

    def wake(self) -> None:
        # The loop wakes, and a thread settles: with numbers none of it is lost.
        self._number = next(_WAKES)
        self._woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def alarm(self, alarm: PodAlarm) -> None:
        if self.on_alarm is not None:
            self.on_alarm(alarm)

    async def wait(self, seconds: float) -> bool:
        """As `Changes.wait`."""
        loop = self._hub.loop
        deadline = loop.time() + seconds
        if not self._woken:
            waiter = self._waiter = loop.create_future()
            timer = loop.call_later(seconds, _time_is_up, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                timer.cancel()
        if not self._woken:
            return False
        now = loop.time()
        self._due, pause = space_wakes(self._due, now)
        if (pause := min(pause, deadline - now)) > 0:
            await asyncio.sleep(pause)
        self._woken = False
        return True

    @property
    def quiet(self) -> bool:
        """As `Changes.quiet`."""
        return self._number == self._settled and self._hub.hears(self._watched)

    def settle(self) -> bool:
        """As `Changes.settle`; a thread may call it."""
        number, blind, quiet = self._number, self._hub.blind(self._watched), self.quiet
        self._settled = -1 if blind else number
        return quiet

    @property
    def trouble(self) -> AllaboardError | None:
        return self._hub.trouble(self._watched)


class AsyncNames(AsyncChanges):
    """A follower of the names of all objects of a kind, as a watch keeps them up to date."""

    __slots__ = ()

    @property
    def names(self) -> frozenset[str] | None:
        """The names as the watch last sent them; None: no watch works at present."""
        feeds = self._hub.feeds_of(self._watched)
        if feeds is None or _blind(feeds):
            return None
        return frozenset().union(*(feed.names for feed in feeds if isinstance(feed, NameFeed)))


def _time_is_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AsyncHub:
    """Feeds of one cluster as one user, in one event loop; `async_hub_of` gives it."""

    def __init__(self, api: AsyncApi) -> None:
        self.loop = asyncio.get_running_loop()
        self._api = api
        self._feeds: dict[Watched, _Task] = {}

    def changes(self, run: str, resource: Resource, namespace: str | None = None) -> AsyncChanges:
        """``async with hub.changes(...) as changes``: wakes for a run of allaboard: its job, and its pods."""
        return AsyncChanges(self, run, _watches_of_run(resource, self._in(namespace)))

    def changes_of(self, resource: Resource, name: str, namespace: str | None = None) -> AsyncChanges:
        """Wakes for one object, whoever made it."""
        return AsyncChanges(self, name, _watches_of_object(name, resource, self._in(namespace)))

    def names_of(self, resource: Resource, labels: str, namespace: str | None = None) -> AsyncNames:
        """The names of all objects of a kind with these labels, and wakes for each that comes or goes."""
        return AsyncNames(self, "", (Watched(self._in(namespace), resource, labels, None, names=True),))

    @property
    def open(self) -> int:
        return len(self._feeds)

    def _in(self, namespace: str | None) -> str:
        return self._api.namespace if namespace is None else namespace

    def blind(self, watched: tuple[Watched, ...]) -> bool:
        """True when a change may not bring a row."""
        feeds = self.feeds_of(watched)
        return feeds is None or _blind(feeds)

    def hears(self, watched: tuple[Watched, ...]) -> bool:
        """True when every change brings a row."""
        feeds = self.feeds_of(watched)
        return feeds is not None and _hear(feeds)

    def feeds_of(self, watched: tuple[Watched, ...]) -> tuple[Feed, ...] | None:
        """The feeds of these targets; None when any is missing."""
        tasks = [self._feeds.get(target) for target in watched]
        return None if None in tasks else tuple(task.feed for task in tasks if task is not None)

    def trouble(self, watched: tuple[Watched, ...]) -> AllaboardError | None:
        """The error of a watch that does not work; None: all work."""
        tasks = (self._feeds.get(target) for target in watched)
        return next((task.feed.trouble for task in tasks if task and task.feed.trouble), None)

    async def join(self, follower: AsyncChanges, watched: tuple[Watched, ...]) -> None:
        """Add a follower; returns when a change would wake it, or after `READY_SECONDS`."""
        tasks = [self._feeds.setdefault(target, _Task(self._api, target)) for target in watched]
        for task in tasks:
            task.join(follower)
        try:
            for task in tasks:
                await task.ready.wait()
        except BaseException:
            await self.leave(follower, watched)
            raise

    async def leave(self, follower: AsyncChanges, watched: tuple[Watched, ...]) -> None:
        closed = []
        for target in watched:
            task = self._feeds.get(target)
            if task is not None and not task.leave(follower):
                del self._feeds[target]
                closed.append(task)
        for task in closed:
            await task.close()
        if closed and not self._feeds:
            await self._api.close()


class _Task:
    """A feed and the task that serves it, which runs from the first `join` on."""

    def __init__(self, api: AsyncApi, watched: Watched) -> None:
        self.feed = (
            NameFeed(random.random)
            if watched.names
            else Feed(random.random, expected=watched.resource != PODS)
        )
        self.ready = asyncio.Event()
        self._api, self._watched = api, watched
        self._clock = asyncio.get_running_loop().time
        self._task: asyncio.Task[None] | None = None
        self._blind: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None

    def join(self, follower: AsyncChanges) -> None:
        self.feed.join(follower)
        if self._task is None:
            loop = asyncio.get_running_loop()
            # An empty context: that of the first follower (in a triggerer, its task log) would be kept,
            # and used for all of them, for as long as the feed lives.
            self._task = loop.create_task(self._serve(), context=contextvars.Context())
            # One timer for all who wait for the first list.
            self._patience = loop.call_later(READY_SECONDS, self.ready.set)

    def leave(self, follower: AsyncChanges) -> bool:
        self.feed.leave(follower)
        return self.feed.followed

    async def close(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        tasks = [task for task in (self._task, self._blind) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self) -> None:
        while True:
            step = self.feed.next_step(self._clock())
            error: AllaboardError | None = None
            try:
                if isinstance(step, Rest):
                    await asyncio.sleep(step.seconds)
                    continue
                if isinstance(step, List):
                    await self._list()
                    continue
                await self._watch(step)
            except AllaboardError as trouble:
                error = trouble
            except Exception as bug:
                error = _unforeseen(bug)
            self.feed.mark_ended(error, self._clock())
            if self.feed.trouble is not None:
                self.ready.set()
            if not self.feed.live and (self._blind is None or self._blind.done()):
                self._blind = asyncio.get_running_loop().create_task(self._poll_fallback())

    async def _poll_fallback(self) -> None:
        """Wake the followers one after the other to poll, while no watch works."""
        while _blind((self.feed,)) and (everyone := self.feed.followers()):
            for follower in everyone:
                await asyncio.sleep(self.feed.poll() / len(everyone))
                if not _blind((self.feed,)):
                    return
                follower.wake()

    async def _list(self) -> None:
        target = self._watched
        rows, version = await self._api.list(
            target.resource, target.namespace, labels=target.labels, fields=target.fields, table=True
        )
        self.feed.add_list(rows, version)
        self.ready.set()

    async def _watch(self, step: Watch) -> None:
        target = self._watched
        events = self._api.watch(
            target.resource,
            target.namespace,
            labels=target.labels,
            fields=target.fields,
            resource_version=step.version,
            table=True,
            on_open=lambda: self.feed.mark_opened(self._clock()),
        )
        async with aclosing(events):
            async for kind, body in events:
                self.feed.add_event(kind, body)


# --- one for all --------------------------------------------------------------------------------------------


def hub_of(api: Api) -> Hub:
    """The hub of this process for this user, cluster and namespace."""
    # Threads do not survive a fork; a child begins anew.
    key = (os.getpid(), api.identity, api.namespace)
    return PROCESS.get(Hub, key, lambda: Hub(api.twin(PATIENCE)))


def async_hub_of(api: Api) -> AsyncHub:
    """The hub of the running loop for this user, cluster and namespace."""
    key = (api.identity, api.namespace)
    return PROCESS.get_in_loop(AsyncHub, key, lambda: AsyncHub(api.in_loop(PATIENCE)))


def _blind(feeds: tuple[Feed, ...]) -> bool:
    """True when a change may not bring a row."""
    return not all(feed.live for feed in feeds)


def _hear(feeds: tuple[Feed, ...]) -> bool:
    """True when every change brings a row."""
    return all(feed.hears for feed in feeds)


def _poll(feeds: tuple[Feed, ...]) -> float:
    """Seconds until the next check for a blind feed."""
    return min(feed.poll() for feed in feeds)


def _unforeseen(bug: Exception) -> AllaboardError:
    return BackendUnreachable(f"the watch failed on an unexpected error ({type(bug).__name__}: {bug})")

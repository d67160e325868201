"""Blocking operations for an event loop: few threads, a deadline, and nobody waits for them at the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from allaboard.backends.kubernetes import backend as backend_module
from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend
from allaboard.backends.kubernetes.client.deadline import ends_at, seconds_left
from allaboard.backends.kubernetes.client.errors import Missing
from allaboard.backends.kubernetes.client.pool import ThreadPool
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.logs.capture import run_within
from allaboard.errors import BackendUnreachable
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.testing.cluster import Died
from tests.core.backends.kubernetes.scripted import Handler, Scripted, refused, says

LONG = Patience()


class Busy:
    """How many are at it, and how many were at most."""

    def __init__(self) -> None:
        self.now = self.most = self.begun = 0
        self._lock = threading.Lock()

    def work(self, seconds: float = 0.02) -> str:
        with self._lock:
            self.now += 1
            self.begun += 1
            self.most = max(self.most, self.now)
        time.sleep(seconds)
        with self._lock:
            self.now -= 1
        return threading.current_thread().name


def test_no_more_threads_than_it_may_have_and_none_of_the_loops() -> None:
    pool, busy = ThreadPool("few", 3), Busy()

    async def main() -> list[str]:
        return await asyncio.gather(*(pool.run(30, busy.work) for _ in range(30)))

    names = asyncio.run(main())
    assert busy.most == 3 and {*names} == {"few-1", "few-2", "few-3"}


def test_what_waits_for_a_thread_at_its_deadline_is_never_begun() -> None:
    pool, busy = ThreadPool("few", 1), Busy()

    async def main() -> None:
        first = asyncio.create_task(pool.run(30, partial(busy.work, 0.5)))
        await asyncio.sleep(0.05)
        late = [asyncio.create_task(pool.run(0.1, busy.work)) for _ in range(5)]
        for task in late:
            with pytest.raises(TimeoutError):
                await task
        await first
        assert await pool.run(30, partial(busy.work, 0)) == "few-1"

    asyncio.run(main())
    assert busy.begun == 2


def test_who_is_cancelled_is_so_at_once_and_what_has_begun_goes_on_to_its_end() -> None:
    pool, busy = ThreadPool("few", 1), Busy()
    ended = threading.Event()

    def slow() -> None:
        busy.work(1.0)
        ended.set()

    async def main() -> None:
        begun, waits = (asyncio.create_task(pool.run(30, do)) for do in (slow, busy.work))
        await asyncio.sleep(0.05)
        for task in (begun, waits):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not ended.is_set()
        assert await asyncio.to_thread(ended.wait, 30)
        await pool.run(30, partial(busy.work, 0))

    asyncio.run(main())
    assert busy.begun == 2, "what waited was not begun"


@pytest.mark.parametrize("error", [BackendUnreachable("away"), ValueError("odd"), Died("killed")])
def test_errors_come_to_who_waits_and_the_thread_stays(error: BaseException) -> None:
    pool = ThreadPool("few", 1)

    def fail() -> None:
        raise error

    async def main() -> str:
        with pytest.raises(type(error)) as caught:
            await pool.run(30, fail)
        assert caught.value is error
        return await pool.run(30, lambda: threading.current_thread().name)

    assert asyncio.run(main()) == "few-1"


def test_a_process_ends_although_a_thread_is_at_work() -> None:
    program = """
import asyncio, time
from allaboard.backends.kubernetes.client.errors import Missing
from allaboard.backends.kubernetes.client.pool import ThreadPool
async def main():
    task = asyncio.create_task(ThreadPool("few", 2).run(600, lambda: time.sleep(600)))
    await asyncio.sleep(0.1)
    task.cancel()
asyncio.run(main())
print("over")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


# --- the deadline of an operation


def silent(seconds: float = 30.0) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return answer


@pytest.mark.parametrize(
    "trouble", [silent(), refused(503, message="not now"), refused(429, retry_after="20")]
)
def test_no_request_outlasts_the_deadline(server: Scripted, trouble: Any) -> None:
    """However patient the client is otherwise."""
    server.otherwise = trouble
    api, began = server.api(LONG), time.monotonic()
    with pytest.raises(BackendUnreachable, match=server.url), ends_at(time.monotonic() + 1.0):
        api.get(PODS, "a")
    assert time.monotonic() - began < 12.0, "a read may be silent for 15 s"
    asked = len(server.asked)
    with pytest.raises(BackendUnreachable, match="no time left"), ends_at(time.monotonic() - 1.0):
        api.get(PODS, "a")
    assert len(server.asked) == asked and seconds_left() == float("inf")
    server.otherwise = says({"kind": "Pod"})
    assert api.get(PODS, "a") == {"kind": "Pod"}


def test_what_an_operation_asks_side_by_side_has_its_deadline(server: Scripted) -> None:
    left: list[float] = []
    with ends_at(time.monotonic() + 7.0):
        run_within(5.0, [lambda: left.append(seconds_left())] * 3)
    assert len(left) == 3 and all(6.0 < one <= 7.0 for one in left)


def test_no_more_requests_are_under_way_than_it_is_said(server: Scripted) -> None:
    busy = Busy()

    def slow(handler: Handler) -> None:
        busy.work()
        says({"kind": "Pod"})(handler)

    server.otherwise = slow
    api = server.api(LONG)
    limited = type(api)(api.settings, patience=LONG, concurrency=3)
    with ThreadPoolExecutor(12) as threads:
        assert len([*threads.map(lambda _: limited.get(PODS, "a"), range(36))]) == 36
    assert busy.most <= 3 and busy.begun == 36


# --- an outage


@pytest.mark.thorough
def test_an_outage_fills_no_pool(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds look while the server is silent: each is told in time, and whoever comes when it is back need
    not wait until the looks of before are through.
    """
    monkeypatch.setattr(backend_module, "SECONDS", 4.0)
    server.otherwise = silent()
    backend = AsyncKubernetesBackend(server.api(LONG), facts=ClusterFacts(), environ={})

    async def look() -> None:
        with pytest.raises(BackendUnreachable, match=server.url):
            await backend.observe("a-run")

    async def main() -> None:
        await asyncio.gather(*(look() for _ in range(300)))
        server.otherwise = refused(404, "NotFound", 'configmaps "a" not found', {"name": "a"})
        with pytest.raises(Missing):  # the server speaks
            await backend.observe("a-run")

    before = {*threading.enumerate()}  # the pools of other tests
    asyncio.run(main())
    assert len(server.asked) < 100, "what could not begin in time was never begun"
    ours = [t for t in threading.enumerate() if t not in before and t.name.startswith("allaboard-api")]
    assert 0 < len(ours) <= 16 and all(thread.daemon for thread in ours)

"""Both clients, in one shape: a test is written once and run against the blocking and the async one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.api import Api, AsyncApi
from allaboard.backends.kubernetes.client.protocol import Reply, Request
from allaboard.backends.kubernetes.logs.collector import EvidenceCollector
from tests.core.backends.kubernetes.kubelet import Node
from tests.core.backends.kubernetes.scripted import Scripted, scripted

pytest.importorskip("urllib3", reason="the Kubernetes backend needs urllib3")
pytest.importorskip("aiohttp", reason="the async client needs aiohttp")


class Loop:
    """An event loop in a thread, for tests that block."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, what: Coroutine[Any, Any, Any], timeout: float = 60.0) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(timeout)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Awaited(Api):
    """An `Api` that asks through an `AsyncApi`: what that cannot do itself, its transport can."""

    def __init__(self, api: AsyncApi, loop: Loop) -> None:
        super().__init__(api.settings, patience=api.patience)
        self.api, self._loop = api, loop

    def _exchange(self, request: Request) -> Reply:
        try:
            reply: Reply = self._loop.do(self.api._exchange(request))
            return reply
        finally:
            self._ahead = self.api._ahead

    def list(self, *args: Any, **options: Any) -> Any:
        return self._loop.do(self.api.list(*args, **options))

    def execute(self, *args: Any, **options: Any) -> Any:
        return self._loop.do(self.api.execute(*args, **options))

    def watch(self, *args: Any, **options: Any) -> Any:
        generator = self.api.watch(*args, **options)
        try:
            while True:
                try:
                    yield self._loop.do(generator.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._loop.do(generator.aclose())

    def close(self) -> None:
        self._loop.do(self.api.close())


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as found:
        yield found


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def collector() -> EvidenceCollector:
    return EvidenceCollector(progress_every=0)


@pytest.fixture
def loop() -> Iterator[Loop]:
    found = Loop()
    yield found
    found.close()


@pytest.fixture(params=["blocking", "async"])
def client(request: pytest.FixtureRequest, loop: Loop) -> Iterator[Callable[..., Any]]:
    """``client(server, **changes)`` makes one of either kind; changes are of its settings."""
    made: list[Any] = []

    def make(server: Scripted, **changes: Any) -> Any:
        if request.param == "blocking":
            api: Any = server.api(**changes)
        else:

            async def build() -> Any:
                return server.async_api(**changes)

            api = Awaited(loop.do(build()), loop)
        made.append(api)
        return api

    yield make
    for api in made:
        api.close()

"""Both clients, in one shape: a test is written once and run against the blocking and the async one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

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


class Blocking:
    """An `AsyncApi` that looks like an `Api`."""

    def __init__(self, api: Any, loop: Loop) -> None:
        self._api, self._loop = api, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if name in ("watch", "log"):
            return lambda *args, **options: self._iterate(found(*args, **options))
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            return self._loop.do(found(*args, **options))

        return call

    def _iterate(self, generator: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.do(generator.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._loop.do(generator.aclose())


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

            api = Blocking(loop.do(build()), loop)
        made.append(api)
        return api

    yield make
    for api in made:
        api.close()

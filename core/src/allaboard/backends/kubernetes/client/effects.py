"""What is done on a cluster, written once and carried out blocking or async.

An *operation* is a generator that asks for requests and is given their answers; it ends with a result. What a
backend method does is an operation, in which nothing is sent, slept or awaited: `run_sync` and `run_async` do
that. An error of the API is raised inside the operation, where it can be met like any other.

A client may be killed between any two requests, and then nothing of its operation is carried out any more, no
``finally`` either; so an operation has none, and each request leaves the cluster as the next reader can
understand it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from allaboard.backends.kubernetes.client.protocol import JSON
from allaboard.backends.kubernetes.client.resources import Resource
from allaboard.errors import AllaboardError

T = TypeVar("T")
Json = dict[str, Any]


class Client(Protocol):
    """What operations ask of `Api` and `AsyncApi`; the second one answers with awaitables."""

    def get(self, resource: Resource, name: str) -> Any: ...
    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int | None = None,
        at_most: int | None = None,
    ) -> Any: ...
    def create(self, resource: Resource, body: Json, *, dry_run: bool = False) -> Any: ...
    def replace(self, resource: Resource, body: Json) -> Any: ...
    def patch(
        self,
        resource: Resource,
        name: str,
        body: Json,
        namespace: str | None = None,
        *,
        sub: str | None = None,
        dry_run: bool = False,
    ) -> Any: ...
    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        grace: int | None = None,
    ) -> Any: ...
    def raw(self, method: str, path: str, body: Any = None, *, accept: str = JSON) -> Any: ...
    def server_time(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request, by whichever client carries the operation out."""

    send: Callable[[Client], Any]


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Blocking:
    """Something of this machine that may take a moment: reading the files of a job, asking a store."""

    do: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class StreamIO:
    """What is more than requests and answers, such as streams read side by side: it is given the client, and
    has a form for each.
    """

    blocking: Callable[[Any], Any]
    awaiting: Callable[[Any], Awaitable[Any]]


Effect = ApiCall | Sleep | Blocking | StreamIO
Operation = Generator[Effect, Any, T]


def get(resource: Resource, name: str) -> Operation[Json]:
    """Raises Missing."""
    return _json((yield ApiCall(lambda api: api.get(resource, name))))


def list_all(
    resource: Resource,
    *,
    namespace: str | None = None,
    labels: str | None = None,
    fields: str | None = None,
    limit: int = 500,
    at_most: int | None = None,
) -> Operation[list[Json]]:
    """All of them, page by page of ``limit``; ``at_most``: the first so many are enough."""
    items, _ = yield ApiCall(
        lambda api: api.list(resource, namespace, labels=labels, fields=fields, limit=limit, at_most=at_most)
    )
    return list(items)


def create(resource: Resource, body: Json) -> Operation[Json]:
    """Raises Exists, Invalid, Forbidden."""
    return _json((yield ApiCall(lambda api: api.create(resource, body))))


def create_dry_run(resource: Resource, body: Mapping[str, Any]) -> Operation[Json]:
    """What `create` would give or raise; nothing is made."""
    return _json((yield ApiCall(lambda api: api.create(resource, dict(body), dry_run=True))))


def replace(resource: Resource, body: Json) -> Operation[Json]:
    """Compare-and-swap by the resourceVersion in the body. Raises Conflict or Missing."""
    return _json((yield ApiCall(lambda api: api.replace(resource, body))))


def patch(
    resource: Resource,
    name: str,
    body: Json,
    *,
    namespace: str | None = None,
    sub: str | None = None,
    dry_run: bool = False,
) -> Operation[Json]:
    """A merge patch; ``metadata.uid`` in it is a precondition. Raises Conflict or Missing."""
    return _json(
        (yield ApiCall(lambda api: api.patch(resource, name, body, namespace, sub=sub, dry_run=dry_run)))
    )


def delete(
    resource: Resource,
    name: str,
    *,
    uid: str | None = None,
    version: str | None = None,
    propagation: str = "Background",
    grace: int | None = None,
) -> Operation[None]:
    """What is gone already is no error. Raises Conflict when a precondition does not hold."""
    yield ApiCall(
        lambda api: api.delete(
            resource, name, uid=uid, resource_version=version, propagation=propagation, grace=grace
        )
    )


def raw(method: str, path: str, *, accept: str = JSON) -> Operation[Any]:
    """What is no object: ``/version``, ``/apis``."""
    return (yield ApiCall(lambda api: api.raw(method, path, accept=accept)))


def server_time() -> Operation[float]:
    """Epoch seconds by the API server's clock."""
    return float((yield ApiCall(lambda api: api.server_time())))


def sleep(seconds: float) -> Operation[None]:
    yield Sleep(seconds)


def work(do: Callable[[], T]) -> Operation[T]:
    result: T = yield Blocking(do)
    return result


def run_sync(operation: Operation[T], api: Client, pause: Callable[[float], None] = time.sleep) -> T:
    """Carry out an operation with a blocking client. ``pause`` sleeps."""

    def answer(ask: Effect) -> Any:
        match ask:
            case ApiCall(send):
                return send(api)
            case Sleep(seconds):
                return pause(seconds)
            case Blocking(do):
                return do()
            case StreamIO(blocking, _):
                return blocking(api)

    ended, step = _begin(operation)
    while not ended:
        try:
            reply = answer(step)
        except AllaboardError as error:
            ended, step = _throw(operation, error)
        else:
            ended, step = _send(operation, reply)
    result: T = step
    return result


async def run_async(operation: Operation[T], api: Client, pause: Callable[[float], Any] = asyncio.sleep) -> T:
    """The same operation with an async client."""

    async def answer(ask: Effect) -> Any:
        match ask:
            case ApiCall(send):
                return await send(api)
            case Sleep(seconds):
                return await pause(seconds)
            case Blocking(do):
                return await asyncio.to_thread(do)
            case StreamIO(_, awaiting):
                return await awaiting(api)

    ended, step = _begin(operation)
    while not ended:
        try:
            reply = await answer(step)
        except AllaboardError as error:
            ended, step = _throw(operation, error)
        else:
            ended, step = _send(operation, reply)
    result: T = step
    return result


# What the operation asks next, or (True, its result). Apart from `answer`, whose own StopIteration must not
# look like the end.


def _begin(operation: Operation[Any]) -> tuple[bool, Any]:
    return _send(operation, None)


def _send(operation: Operation[Any], reply: Any) -> tuple[bool, Any]:
    try:
        return False, operation.send(reply)
    except StopIteration as end:
        return True, end.value


def _throw(operation: Operation[Any], error: AllaboardError) -> tuple[bool, Any]:
    try:
        return False, operation.throw(error)
    except StopIteration as end:
        return True, end.value


def _json(answer: Any) -> Json:
    body: Json = answer
    return body

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
from dataclasses import dataclass, field
from typing import Any, TypeVar

from allaboard.backends.kubernetes.client.resources import Resource
from allaboard.errors import AllaboardError

T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A method of `Api` or `AsyncApi` with these arguments."""

    method: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


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
    return _json((yield ApiCall("get", (resource, name))))


def list_all(
    resource: Resource,
    *,
    labels: str | None = None,
    fields: str | None = None,
    limit: int = 500,
) -> Operation[list[Json]]:
    """All of them, page by page."""
    options = {"labels": labels, "fields": fields, "limit": limit}
    items, _ = yield ApiCall("list", (resource,), options)
    return list(items)


def create(resource: Resource, body: Json) -> Operation[Json]:
    """Raises Exists, Invalid, Forbidden."""
    return _json((yield ApiCall("create", (resource, body))))


def replace(resource: Resource, body: Json) -> Operation[Json]:
    """Compare-and-swap by the resourceVersion in the body. Raises Conflict or Missing."""
    return _json((yield ApiCall("replace", (resource, body))))


def patch(resource: Resource, name: str, body: Json, *, sub: str | None = None) -> Operation[Json]:
    """A merge patch; ``metadata.uid`` in it is a precondition. Raises Conflict or Missing."""
    return _json((yield ApiCall("patch", (resource, name, body), {"sub": sub})))


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
    options = {"uid": uid, "resource_version": version, "propagation": propagation, "grace": grace}
    yield ApiCall("delete", (resource, name), options)


def server_time() -> Operation[float]:
    """Epoch seconds by the API server's clock."""
    return float((yield ApiCall("server_time")))


def sleep(seconds: float) -> Operation[None]:
    yield Sleep(seconds)


def work(do: Callable[[], T]) -> Operation[T]:
    found: T = yield Blocking(do)
    return found


def run_sync(operation: Operation[T], api: Any, pause: Callable[[float], None] = time.sleep) -> T:
    """Carry out an operation with a blocking client. ``pause`` sleeps."""

    def answer(ask: Effect) -> Any:
        match ask:
            case ApiCall(method, args, options):
                return getattr(api, method)(*args, **options)
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
    found: T = step
    return found


async def run_async(operation: Operation[T], api: Any, pause: Callable[[float], Any] = asyncio.sleep) -> T:
    """The same operation with an async client."""

    async def answer(ask: Effect) -> Any:
        match ask:
            case ApiCall(method, args, options):
                return await getattr(api, method)(*args, **options)
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
    found: T = step
    return found


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
    found: Json = answer
    return found

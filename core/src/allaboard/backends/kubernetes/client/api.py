"""Blocking and async clients of the API server. All operations use `Api`, which blocks. `AsyncApi` lists,
watches and runs commands in an event loop, to wake thousands of followers of one process. Both share the
rules of `protocol`. Objects go and come as plain JSON mappings.

Both stand on what the Kubernetes clients themselves stand on (urllib3; aiohttp), not on the clients: those
build a TLS context each and read the CA bundle for it (25 ms), import for a third of a second, drop fields
that their models do not know, and hide the header that says when to come back. From 29 to 37 what is below
them did not change.

``namespace``: None is the one that the settings name, ``""`` is all of them. Every method raises `ApiError`
for what the server refuses, and `BackendUnreachable` when no answer came within the patience. No wait is
without an end.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from allaboard.backends.kubernetes.client import protocol
from allaboard.backends.kubernetes.client.config import Secret, Settings, Source
from allaboard.backends.kubernetes.client.deadline import seconds_left
from allaboard.backends.kubernetes.client.echo import Echo
from allaboard.backends.kubernetes.client.errors import Gone, Missing, Silent
from allaboard.backends.kubernetes.client.protocol import (
    Broken,
    ExecReader,
    Executed,
    Json,
    Patience,
    Reply,
    Request,
)
from allaboard.backends.kubernetes.client.resources import Resource
from allaboard.backends.kubernetes.client.tls import context_of
from allaboard.errors import AllaboardError, BackendUnreachable
from allaboard.text.units import show_seconds

if TYPE_CHECKING:
    import aiohttp
    import urllib3

CONNECT_SECONDS = 8.0
LEAST_SECONDS = 0.5
"""Seconds that an answer may take at least, should a deadline pass meanwhile."""
TELL_AFTER = 3.0
PAGE = 500
WATCH_SECONDS = 50
"""Seconds for which the server keeps a watch open. Load balancers cut a connection that is silent for 60 s,
some without notice. The server sends a bookmark once a minute and one just before the end, so a stream that
it ends sooner is never silent that long.
"""
WATCH_GRACE = 6.0
"""Seconds past the end that the server was asked for, after which a silent watch counts as lost."""
CHUNK = 1 << 16
EXEC_SECONDS = 15.0
FAREWELL_SECONDS = 1.0
"""Seconds that a WebSocket may take to close."""

T = TypeVar("T")
Listed = tuple[list[Json], str]
"""Objects, and the version of the list."""
Steps = Generator[Request, Reply, T]
"""A method in several requests: yields each, is given its reply, returns the result."""


class _Client:
    """The state of both clients: the server, the user, and the time there."""

    def __init__(self, source: Source | Settings, *, patience: Patience | None = None) -> None:
        self._source = source if callable(source) else lambda: source
        self.settings = self._source()
        self.patience = patience or Patience()
        self._ahead: float | None = None
        self._noted = 0.0
        self._granted: set[str] = set()
        """The rights by which requests succeeded: a few kinds in a few namespaces."""
        self._echo = Echo()

    @property
    def server(self) -> str:
        return self.settings.server

    @property
    def namespace(self) -> str:
        """The namespace of a method that is given none."""
        return self.settings.namespace

    @property
    def identity(self) -> str:
        """Equal for clients that see the same: one server, one source of credentials."""
        return self.settings.identity

    def _in(self, namespace: str | None) -> str:
        return self.namespace if namespace is None else namespace

    def _talk(
        self, request: Request, patience: Patience
    ) -> Generator[protocol.Effect, protocol.Answer, Reply]:
        return protocol.exchange(
            request,
            server=self.server,
            started=time.monotonic(),
            chance=random.random,
            patience=patience,
            granted=self._granted,
            source=self.settings.source,
        )

    def _was_granted(self, request: Request) -> None:
        if request.right:
            self._granted.add(request.right)

    def _headers(self, request: Request, secret: Secret) -> dict[str, str]:
        from allaboard import __version__

        headers = {**request.headers(), "user-agent": f"allaboard/{__version__}"}
        if secret.authorization:
            headers["authorization"] = secret.authorization
        self._echo.shown((*secret.secret_texts(), *self.settings.secret_texts()))
        return headers

    def _reply(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply:
        """The reply. A refusal or a redirect may quote the credential that it was shown, so its body is
        scrubbed.
        """
        return Reply(status, headers, body if status < 300 else self._echo.body(body))

    def _note_time(self, headers: Mapping[str, str]) -> None:
        now = time.monotonic()
        if self._ahead is not None and now - self._noted < 1.0:
            return  # as good as it gets
        with suppress(KeyError, ValueError, TypeError):
            # The header is cut to seconds: half of one is what it is late in the mean.
            there = parsedate_to_datetime(headers["date"]).timestamp() + 0.5
            self._ahead, self._noted = there - now, now

    def _reload(self) -> None:
        """Settings read anew, where that is possible; what is refused now is said by the next answer."""
        self.settings.credentials.renew()
        with suppress(AllaboardError):
            self.settings = self._source()


class Stream(Iterator[T]):
    """A body that comes piece by piece. `close` may be called by another thread: it ends the iteration."""

    def __init__(self, response: urllib3.BaseHTTPResponse, items: Iterator[T]) -> None:
        self._response = response
        self._items = items
        self._reading = self._closed = False

    def __next__(self) -> T:
        self._reading = True
        try:
            if not self._closed:
                return next(self._items)
        except BackendUnreachable:
            if not self._closed:
                self._response.close()
                raise
        except BaseException:
            self._response.close()
            raise
        finally:
            self._reading = False
        self._response.close()
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        sock: Any = getattr(getattr(self._response, "_connection", None), "sock", None)
        with suppress(OSError, AttributeError):
            # A reader that waits in recv() sees the end; closing alone would leave it there.
            sock.shutdown(socket.SHUT_RDWR)
        if not self._reading:
            self._response.close()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Api(_Client):
    """Blocks. May be used by several threads at once. ``concurrency``: how many requests are under way at
    most; watches and followed logs are not counted. ``on_silence``: told in a sentence, once until there is
    an answer, that a request has waited `TELL_AFTER` seconds for one; and that there is one again.
    ``pause``: sleeps for an operation that waits. Within a deadline (`deadline.ends_at`) no request outlasts
    it.
    """

    def __init__(
        self, source: Source | Settings, *, patience: Patience | None = None, concurrency: int | None = None
    ) -> None:
        super().__init__(source, patience=patience)
        self.on_silence: Callable[[str], None] | None = None
        self.pause: Callable[[float], None] = time.sleep
        self._turn: AbstractContextManager[Any] = (
            nullcontext() if concurrency is None else threading.BoundedSemaphore(concurrency)
        )
        self._silent = False
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager | None = None
        self._host: urllib3.HTTPConnectionPool | urllib3.PoolManager | None = None
        self._pool_of: tuple[Settings, tuple[str, str] | None] | None = None

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.clear()
            self._pool, self._host, self._pool_of = None, None, None

    def twin(self, patience: Patience) -> Api:
        """Another client of the same server, as the same user, with connections of its own."""
        return Api(self._source, patience=patience)

    def in_loop(self, patience: Patience) -> AsyncApi:
        """An async client of the same server, for the running event loop."""
        return AsyncApi(self._source, patience=patience)

    # --- reading

    def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        query: Mapping[str, Any] | None = None,
    ) -> Json:
        """Raises `Missing`."""
        return self._json(protocol.get(resource, name, self._in(namespace), query))

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int | None = PAGE,
        resource_version: str | None = None,
        at_most: int | None = None,
        table: bool = False,
    ) -> Listed:
        """All of them, page by page of ``limit``, and the version that the list is of. ``table``: no objects,
        but their printed columns, ``{"Name": ..., "State": ...}``. ``at_most``: the first so many are enough.
        """
        return self._steps(
            _pages(resource, self._in(namespace), labels, fields, limit, resource_version, at_most, table)
        )

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        resource_version: str,
        table: bool = False,
        timeout: float = WATCH_SECONDS,
    ) -> Stream[tuple[str, Json]]:
        """The events after a version, as (ADDED | MODIFIED | DELETED | BOOKMARK, object), until the server
        ends the stream after ``timeout`` seconds (`WATCH_SECONDS` at most). With ``table`` an object is
        ``{"metadata": {"resourceVersion"}, "rows": [{"Name": ..., "State": ...}]}``. Raises `Gone` when the
        version is too old, and BackendUnreachable when the stream is cut or falls silent.
        """
        request = _watch(resource, self._in(namespace), labels, fields, resource_version, table, timeout)
        response = self._exchange(request).stream
        return Stream(response, _read_events(self._chunks(response, request), table, self._echo))

    def log(
        self,
        pod: str,
        namespace: str | None = None,
        *,
        container: str | None = None,
        since: str | None = None,
        tail: int | None = None,
        limit_bytes: int | None = None,
        previous: bool = False,
        follow: bool = False,
        timestamps: bool = True,
        silence: float = WATCH_SECONDS,
    ) -> Stream[bytes]:
        """Lines with their ends (one of more than a MiB comes in pieces). ``since``: RFC 3339, taken to the
        second. Following ends with the container, when the stream is cut, and after ``silence`` seconds
        without a line: the caller then asks again from where it is. Raises `Invalid` while the container has
        not started.
        """
        request = protocol.log(
            pod,
            self._in(namespace),
            container=container,
            since=since,
            tail=tail,
            limit_bytes=limit_bytes,
            previous=previous,
            follow=follow,
            timestamps=timestamps,
            silence=silence if follow else protocol.READ_SECONDS,
        )
        response = self._exchange(request).stream
        return Stream(response, self._lines(response, request, follow))

    def execute(
        self,
        pod: str,
        command: Sequence[str],
        namespace: str | None = None,
        *,
        container: str | None = None,
        given: bytes = b"",
        most: int = CHUNK,
        seconds: float = EXEC_SECONDS,
    ) -> Executed:
        """`AsyncApi.execute` in a loop of its own, as urllib3 has no WebSockets; not for a thread that runs
        one.
        """

        async def run() -> Executed:
            async with AsyncApi(self.settings, patience=self.patience) as api:
                return await api.execute(
                    pod,
                    command,
                    self._in(namespace),
                    container=container,
                    given=given,
                    most=most,
                    seconds=seconds,
                )

        return asyncio.run(run())

    # --- writing

    def create(
        self, resource: Resource, body: Json, namespace: str | None = None, *, dry_run: bool = False
    ) -> Json:
        """The object as it is now there. Raises `Exists`, `Invalid` and `Forbidden`."""
        return self._json(protocol.create(resource, body, self._in(namespace), dry_run=dry_run))

    def replace(
        self, resource: Resource, body: Json, namespace: str | None = None, *, sub: str | None = None
    ) -> Json:
        """Compares and swaps by the resourceVersion of ``body``. Raises `Conflict`."""
        return self._json(protocol.replace_with(resource, body, self._in(namespace), sub=sub))

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        kind: str = "merge",
        sub: str | None = None,
        dry_run: bool = False,
    ) -> Json:
        """``kind``: merge, json, strategic or apply."""
        return self._json(
            protocol.patch(resource, name, body, self._in(namespace), kind=kind, sub=sub, dry_run=dry_run)
        )

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        grace: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete an object; one that is not there counts as deleted. Raises `Conflict` when another object
        has the name (uid), or this one changed (resource_version).
        """
        request = protocol.delete(
            resource,
            name,
            self._in(namespace),
            uid=uid,
            resource_version=resource_version,
            propagation=propagation,
            grace=grace,
            dry_run=dry_run,
        )
        with suppress(Missing):
            self._exchange(request)

    # --- anything else

    def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        accept: str = protocol.JSON,
    ) -> Any:
        """Discovery, reviews, ``/readyz``: JSON as it is, anything else as text."""
        return _content(self._exchange(_raw(method, path, body, query, accept)))

    def server_time(self) -> float:
        """Epoch seconds by the API server's clock, good to a second."""
        if self._ahead is None:
            self.raw("GET", "/version")
        assert self._ahead is not None, "every HTTP answer is dated"
        return time.monotonic() + self._ahead

    # --- the driver

    def _json(self, request: Request) -> Json:
        return _object(self._exchange(request))

    def _steps(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                try:
                    reply = self._exchange(request)
                except AllaboardError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    def _exchange(self, request: Request) -> Reply:
        left, began = seconds_left(), time.monotonic()
        if not left:
            raise BackendUnreachable(
                f"API server {self.server} took too long; no time left for: {request.subject}"
            )
        patience = replace(self.patience, budget=min(self.patience.budget, left))
        operation = self._talk(request, patience)
        ask = next(operation)
        while True:
            answer: Reply | Broken | None = None
            if isinstance(ask, protocol.Send):
                with self._turn:
                    answer = self._send(ask.request)
            elif isinstance(ask, protocol.Pause):
                self._tell_silence(ask.reason, time.monotonic() - began)
                time.sleep(min(ask.seconds, seconds_left()))
            else:
                self._reload()
            try:
                ask = operation.send((answer, time.monotonic()))
            except StopIteration as end:
                reply: Reply = end.value
                self._was_granted(request)
                if self._silent and self.on_silence is not None:
                    self.on_silence("the API server answers again")
                self._silent = False
                return reply

    def _tell_silence(self, reason: str, waited: float) -> None:
        if self.on_silence is not None and not self._silent and waited >= TELL_AFTER:
            self._silent = True
            # Each request has that time for itself; a run that is followed is asked about again and again.
            self.on_silence(f"{reason}; each request is tried again for {show_seconds(self.patience.budget)}")

    def _send(self, request: Request) -> Reply | Broken:
        import urllib3

        left = max(LEAST_SECONDS, seconds_left())
        settings = self.settings
        secret = settings.credentials.current(time.time())
        pool = self._pool_for(settings, secret)
        try:
            response = pool.urlopen(
                request.method,
                (settings.server if settings.proxy else urlsplit(settings.server).path) + request.path,
                body=request.body,
                headers=self._headers(request, secret),
                preload_content=False,
                retries=False,
                redirect=False,
                enforce_content_length=True,  # the default since urllib3 2
                timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, left), read=min(request.silence, left)),
            )
            headers = {name.lower(): value for name, value in response.headers.items()}
            self._note_time(headers)
            if request.stream and response.status < 400:
                return Reply(response.status, headers, stream=response)
            body = _whole(response)
            if body is None:
                response.close()
                return TOO_LARGE
            response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return _broken_by(error, request)
        return self._reply(response.status, headers, body)

    def _pool_for(
        self, settings: Settings, secret: Secret
    ) -> urllib3.HTTPConnectionPool | urllib3.PoolManager:
        """The connections to the server, or through its proxy; others when certificates changed."""
        wanted = (settings, secret.certificate)
        with self._lock:
            if self._pool is None or self._host is None or self._pool_of != wanted:
                self._pool, self._pool_of = _pool(settings, secret), wanted
                # A manager looks for the host anew with each request.
                self._host = self._pool if settings.proxy else self._pool.connection_from_url(settings.server)
            return self._host

    def _chunks(self, response: urllib3.BaseHTTPResponse, request: Request) -> Iterator[bytes]:
        import urllib3

        try:
            for chunk in response.stream(CHUNK, decode_content=True):
                yield chunk
                if not seconds_left():
                    raise BackendUnreachable(
                        f"API server {self.server} took too long during: {request.subject}"
                    )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _cut(self.server, _broken_by(error, request), request) from error

    def _lines(self, response: urllib3.BaseHTTPResponse, request: Request, follow: bool) -> Iterator[bytes]:
        splitter = protocol.Splitter()
        try:
            for chunk in self._chunks(response, request):
                yield from self._echo.lines(splitter.feed(chunk))
        except BackendUnreachable:
            if not follow:
                raise
            # Half a line is left for the next asking, which begins before it.
            return
        if splitter.rest:
            yield self._echo.lines([splitter.rest])[0]


class AsyncApi(_Client):
    """For an event loop: lists, watches, and commands in containers."""

    def __init__(self, source: Source | Settings, *, patience: Patience | None = None) -> None:
        super().__init__(source, patience=patience)
        self._lock = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._context: ssl.SSLContext | None = None

    async def __aenter__(self) -> AsyncApi:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int | None = PAGE,
        resource_version: str | None = None,
        at_most: int | None = None,
        table: bool = False,
    ) -> Listed:
        return await self._steps(
            _pages(resource, self._in(namespace), labels, fields, limit, resource_version, at_most, table)
        )

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        resource_version: str,
        table: bool = False,
        timeout: float = WATCH_SECONDS,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """As `Api.watch`, which returns when the server has taken the watch; here ``on_open`` is called
        then.
        """
        request = _watch(resource, self._in(namespace), labels, fields, resource_version, table, timeout)
        response = (await self._exchange(request)).stream
        if on_open is not None:
            on_open()
        reader = _EventReader(table, self._echo)
        try:
            async for chunk in self._chunks(response, request):
                for event in reader.feed(chunk):
                    yield event
        finally:
            response.close()

    async def execute(
        self,
        pod: str,
        command: Sequence[str],
        namespace: str | None = None,
        *,
        container: str | None = None,
        given: bytes = b"",
        most: int = CHUNK,
        seconds: float = EXEC_SECONDS,
    ) -> Executed:
        """Run a command in a container, with ``given`` as its stdin, which is not closed. ``most``: bytes of
        what it writes; ``seconds``: after which nobody waits for its end any more. Raises `Forbidden`.
        """
        import aiohttp

        request = protocol.execute(pod, self._in(namespace), command, container=container)
        reader = ExecReader(most)
        try:
            async with asyncio.timeout(seconds):
                socket = (await self._exchange(request)).stream
                try:
                    await socket.send_bytes(bytes([protocol.STDIN]) + given)
                    async for message in socket:
                        if not isinstance(message.data, bytes) or not reader.feed(message.data):
                            break
                finally:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FAREWELL_SECONDS):
                            await socket.close()
        except TimeoutError:
            return replace(reader.ended(), trouble=f"it did not end within {seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            raise _cut(self.server, _broken_by(error, request), request) from error
        return reader.ended()

    # --- the driver

    async def _steps(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                try:
                    reply = await self._exchange(request)
                except AllaboardError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _exchange(self, request: Request) -> Reply:
        operation = self._talk(request, self.patience)
        ask = next(operation)
        while True:
            answer: Reply | Broken | None = None
            if isinstance(ask, protocol.Send):
                answer = await self._send(ask.request)
            elif isinstance(ask, protocol.Pause):
                await asyncio.sleep(ask.seconds)
            else:
                await asyncio.to_thread(self._reload)
            try:
                ask = operation.send((answer, time.monotonic()))
            except StopIteration as end:
                reply: Reply = end.value
                self._was_granted(request)
                return reply

    async def _send(self, request: Request) -> Reply | Broken:
        import aiohttp
        import yarl

        settings = self.settings
        secret = await self._secret(settings)
        session = await self._session_for(settings, secret)
        try:
            if request.protocols:
                return await self._open(session, settings, request, self._headers(request, secret))
            response = await session.request(
                request.method,
                yarl.URL(settings.server + request.path, encoded=True),
                data=request.body,
                headers=self._headers(request, secret),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_SECONDS, sock_read=request.silence
                ),
                proxy=settings.proxy,
                server_hostname=settings.tls_name,
            )
            headers = {name.lower(): value for name, value in response.headers.items()}
            self._note_time(headers)
            if request.stream and response.status < 400:
                return Reply(response.status, headers, stream=response)
            async with response:
                body = await _awhole(response)
            if body is None:
                return TOO_LARGE
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return _broken_by(error, request)
        return self._reply(response.status, headers, body)

    async def _open(
        self, session: aiohttp.ClientSession, settings: Settings, request: Request, headers: dict[str, str]
    ) -> Reply | Broken:
        """A WebSocket, or what was answered instead."""
        import aiohttp
        import yarl

        name: dict[str, Any] = {"server_hostname": settings.tls_name} if settings.tls_name else {}
        try:
            opening = session.ws_connect(
                yarl.URL(settings.server + request.path, encoded=True),
                protocols=request.protocols,
                headers=headers,
                proxy=settings.proxy,
                **name,
            )
        except TypeError:  # its first releases do not know server_hostname here
            return Broken("has a tls-server-name, for which exec needs a newer aiohttp", passing=False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS + request.silence):
                socket = await opening
        except aiohttp.WSServerHandshakeError as error:
            if error.status < 400:
                return Broken("is behind a proxy that opens no WebSocket", passing=False)
            return self._reply(error.status, {n.lower(): v for n, v in (error.headers or {}).items()}, b"")
        return Reply(101, {}, stream=socket)

    async def _secret(self, settings: Settings) -> Secret:
        credentials = settings.credentials
        if not credentials.due(time.time()):
            return credentials.current(time.time())
        # One asks (a plugin may take seconds), all others wait for what it brings.
        async with self._lock:
            return await asyncio.to_thread(credentials.current, time.time())

    async def _session_for(self, settings: Settings, secret: Secret) -> aiohttp.ClientSession:
        """The pool of connections; another one when certificates changed."""
        import aiohttp

        context = context_of(settings.authority, settings.verify, secret.certificate)
        if self._session is None or self._session.closed or context is not self._context:
            old = self._session
            connector = aiohttp.TCPConnector(limit=0, ssl=context)
            self._session, self._context = aiohttp.ClientSession(connector=connector), context
            if old is not None:
                await old.close()
        return self._session

    async def _chunks(self, response: aiohttp.ClientResponse, request: Request) -> AsyncIterator[bytes]:
        import aiohttp

        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _cut(self.server, _broken_by(error, request), request) from error


# --- shared, without a network ------------------------------------------------------------------------------


def _pages(
    resource: Resource,
    namespace: str,
    labels: str | None,
    fields: str | None,
    limit: int | None,
    resource_version: str | None,
    at_most: int | None,
    table: bool,
) -> Steps[Listed]:
    """A whole list. When the token for its next page has become too old, it begins again; the third time in
    one page.
    """
    for size in (limit, limit, None):
        try:
            pages = yield from _pages_of(
                resource, namespace, labels, fields, size, resource_version, at_most, table
            )
        except Gone:
            if size is None:
                raise
            continue
        return pages
    raise AssertionError("the last size is None, which returns or raises")


def _pages_of(
    resource: Resource,
    namespace: str,
    labels: str | None,
    fields: str | None,
    limit: int | None,
    resource_version: str | None,
    at_most: int | None,
    table: bool,
) -> Steps[Listed]:
    items: list[Json] = []
    tables = protocol.Tables()
    token: str | None = None
    while True:
        reply = yield protocol.page(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            limit=limit,
            resource_version=resource_version,
            token=token,
            table=table,
        )
        body = _object(reply)
        items += tables.rows(body) if table else _items(body)
        token = protocol.as_mapping(body.get("metadata")).get("continue")
        if not token or (at_most is not None and len(items) >= at_most):
            return items[:at_most], protocol.version_of(body)


def _items(body: Json) -> list[Json]:
    """Items of a list say neither what they are nor of which version; on their own they do."""
    kind = str(body.get("kind", "")).removesuffix("List")
    type_fields = {"apiVersion": body.get("apiVersion"), "kind": kind}
    return [{**type_fields, **item} for item in protocol.as_list(body.get("items")) if isinstance(item, dict)]


def _watch(
    resource: Resource,
    namespace: str,
    labels: str | None,
    fields: str | None,
    resource_version: str,
    table: bool,
    timeout: float,
) -> Request:
    # Watches that began together shall not end together.
    seconds = max(1, round(timeout * random.uniform(0.9, 1.0)))
    return protocol.watch(
        resource,
        namespace,
        labels=labels,
        fields=fields,
        resource_version=resource_version,
        table=table,
        seconds=seconds,
        silence=seconds + WATCH_GRACE,
    )


class _EventReader:
    """Lines of a watch to events. Raises what an ERROR event means."""

    def __init__(self, table: bool, echo: Echo) -> None:
        self._echo = echo
        self._splitter = protocol.Splitter(protocol.LONGEST_EVENT)
        self._tables = protocol.Tables() if table else None

    def feed(self, chunk: bytes) -> Iterator[tuple[str, Json]]:
        for line in self._splitter.feed(chunk):
            if line.strip():
                yield self._event(line)

    def _event(self, line: bytes) -> tuple[str, Json]:
        try:
            event = protocol.parse_body(line)
            kind, body = event["type"], event["object"]
        except (ValueError, KeyError, TypeError) as error:
            raise BackendUnreachable("the API server sent an incomplete watch event") from error
        if not isinstance(kind, str) or not isinstance(body, dict):
            raise BackendUnreachable("the API server sent a malformed watch event")
        if kind == "ERROR":
            raise _error_of_event(self._echo.value(body))
        if self._tables is None:
            return kind, body
        rows = self._tables.rows(body)
        return kind, {"metadata": {"resourceVersion": protocol.version_of(body)}, "rows": rows}


def _error_of_event(status: Json) -> AllaboardError:
    error = protocol.error_of_status(status)
    if error.status == 429 or error.status >= 500 or not error.status:
        return BackendUnreachable(f"the API server ended the watch: {error.message}")
    return error


def _read_events(chunks: Iterator[bytes], table: bool, echo: Echo) -> Iterator[tuple[str, Json]]:
    reader = _EventReader(table, echo)
    for chunk in chunks:
        yield from reader.feed(chunk)


def _raw(method: str, path: str, body: Any, query: Mapping[str, Any] | None, accept: str) -> Request:
    return Request(
        method.upper(),
        protocol.url(path, query or {}),
        None if body is None else protocol.as_bytes(body),
        accept=accept,
        silence=protocol.READ_SECONDS if method.upper() == "GET" else protocol.WRITE_SECONDS,
        subject=path,
    )


def _content(reply: Reply) -> Any:
    if "json" in reply.headers.get("content-type", ""):
        return reply.json()
    return reply.body.decode("utf-8", "replace")


def _object(reply: Reply) -> Json:
    """The object in an answer. A proxy's page of 200 is not one."""
    flaw = "is no JSON object"
    try:
        body = reply.json()
    except ValueError as error:
        body, flaw = None, str(error)
    if not isinstance(body, dict):
        raise BackendUnreachable(
            f"unexpected response, which {flaw}; is this a Kubernetes API server? Look at the server's URL "
            "and at proxies"
        )
    return body


def _pool(settings: Settings, secret: Secret) -> urllib3.PoolManager:
    import urllib3

    options: dict[str, Any] = {"maxsize": 32, "num_pools": 4}
    if settings.server.startswith("https:"):
        # urllib3 1.26 compares names itself, and cannot have OpenSSL do it for an address.
        itself = not hasattr(urllib3, "BaseHTTPResponse")
        options["ssl_context"] = context_of(
            settings.authority, settings.verify, secret.certificate, compares_name=not itself
        )
        if settings.tls_name:
            options["server_hostname"] = settings.tls_name
        if not settings.verify:
            options["cert_reqs"] = ssl.CERT_NONE
            # The kubeconfig asks for it: insecure-skip-tls-verify.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    if not settings.proxy:
        return urllib3.PoolManager(**options)
    proxy = urllib3.util.parse_url(settings.proxy)
    if proxy.auth:
        options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=proxy.auth)
    return urllib3.ProxyManager(proxy._replace(auth=None).url, **options)


TOO_LARGE = Broken(
    f"sends more than the {protocol.LARGEST_ANSWER:,} bytes that are read of an answer", passing=False
)


def _whole(response: urllib3.BaseHTTPResponse) -> bytes | None:
    """None for one that is too large."""
    body = bytearray()
    for chunk in response.stream(CHUNK, decode_content=True):
        body += chunk
        if len(body) > protocol.LARGEST_ANSWER:
            return None
    return bytes(body)


async def _awhole(response: aiohttp.ClientResponse) -> bytes | None:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > protocol.LARGEST_ANSWER:
            response.close()
            return None
    return bytes(body)


def _broken_by(error: BaseException, request: Request) -> Broken:
    """The failure below HTTP as text. The libraries' own messages show URLs of proxies, with passwords."""
    chain = _chain(error)
    # OpenSSL's own is the innermost; that of urllib3 1.26 is about the name.
    untrusted = [
        link for link in chain if type(link).__name__.endswith(("CertificateError", "CertVerificationError"))
    ]
    if untrusted:
        flaw = getattr(untrusted[-1], "verify_message", "it is for another name")
        return Broken(
            f"shows a certificate that is not trusted ({flaw}); look at certificate-authority-data and "
            "tls-server-name of the cluster in the kubeconfig",
            passing=False,
        )
    kinds = {kind.__name__ for link in chain for kind in type(link).__mro__}
    system = next((link for link in reversed(chain) if isinstance(link, OSError) and link.errno), None)
    reason = os.strerror(system.errno).lower() if system and system.errno else type(chain[-1]).__name__
    if kinds & {"ProxyError", "ClientProxyConnectionError", "ClientHttpProxyError"}:
        return Broken(f"cannot be reached through its proxy ({reason})")
    if kinds & {"gaierror", "NameResolutionError", "ClientConnectorDNSError"}:
        return Broken("has a name that cannot be resolved")
    if isinstance(system, ConnectionRefusedError):
        return Broken("refuses connections")
    if isinstance(system, ssl.SSLError):
        return Broken(f"fails the TLS handshake ({system.reason})")
    # urllib3 calls every connection that it did not get a time-out of connecting, too.
    if kinds & {"ConnectTimeoutError", "ConnectionTimeoutError"} and "NewConnectionError" not in kinds:
        return Broken(f"did not answer within {CONNECT_SECONDS:.0f} s")
    if kinds & {"ReadTimeoutError", "SocketTimeoutError", "TimeoutError"}:
        return Broken(f"was silent for {request.silence:.0f} s", silent=True)
    return Broken(f"cut the connection ({reason})")


def _cut(server: str, broken: Broken, request: Request) -> BackendUnreachable:
    kind = Silent if broken.silent else BackendUnreachable
    return kind(f"API server {server} {broken.text}; during: {request.subject}")


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what it was made from, outermost first."""
    errors: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in errors:
        errors.append(link)
        nested = getattr(link, "reason", None) or getattr(link, "os_error", None)
        inner = next((a for a in link.args if isinstance(a, BaseException)), None)
        link = (
            (nested if isinstance(nested, BaseException) else None)
            or inner
            or link.__cause__
            or link.__context__
        )
    return errors

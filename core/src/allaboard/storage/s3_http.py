"""One HTTP request and its answer, bounded, by the standard library: TLS, proxies, time limits.

Each request has a connection of its own: nothing is shared by threads or left stale, and a request may be
given up at any moment.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from allaboard.storage.s3_errors import HTTPClientError, ReadTimeoutError, ResponseStreamingError, SSLError

CONNECT_SECONDS = 5.0
CHUNK = 2**18
_MOST_LEFT = 2**16
"""Bytes of an answer that are read to the end of it before its connection is closed."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Stream:
    """The body of an answer, as it comes. ``headers``: names are in lower case."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes; empty: the end. Raises ReadTimeoutError, ResponseStreamingError."""
        try:
            data = self._response.read() if size < 0 else self._response.read(size)
        except socket.timeout:  # noqa: UP041  (another class before Python 3.10)
            raise ReadTimeoutError("Read timeout on the body of an answer") from None
        except (OSError, http.client.HTTPException) as error:
            raise ResponseStreamingError(f"An answer broke off: {_reason(error)}") from None
        # http.client takes an end that comes too early for the end, when it is asked for so many bytes.
        if not data and size != 0 and self._response.length:
            raise ResponseStreamingError(f"An answer broke off: {self._response.length} bytes are missing")
        return data

    def bounded(self, most: int) -> bytes:
        """The whole body. Raises as `read` does, and ResponseStreamingError for one that is longer."""
        parts, size = [], 0
        while part := self.read(CHUNK):
            size += len(part)
            if size > most:
                raise ResponseStreamingError(f"An answer is longer than {most} bytes")
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        self._connection.close()


def fetch(
    settings: Mapping[str, str],
    url: str,
    method: str,
    headers: Mapping[str, str],
    body: bytes,
    most: int,
    seconds: float = 10.0,
) -> Answer:
    """The answer, whose body has at most ``most`` bytes. Raises as `send` and `Stream.read` do."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    stream = send(settings, url, target, method, headers, [body] if body else (), len(body), seconds)
    try:
        return Answer(stream.status, stream.headers, stream.bounded(most))
    finally:
        stream.close()


def send(
    settings: Mapping[str, str],
    url: str,
    target: str,
    method: str,
    headers: Mapping[str, str],
    body: Iterable[bytes],
    length: int,
    seconds: float,
) -> Stream:
    """The answer to a request, whose body is to be read and closed. ``url``: of the server; ``target``: path
    and query, encoded; ``body``: ``length`` bytes; ``seconds``: of silence that are waited for. Raises
    HTTPClientError, and what ``body`` raises.
    """
    parts = urlsplit(url)
    proxy = _proxy(settings, parts.scheme, parts.hostname or "")
    connection = _connection(settings, parts, proxy)
    if proxy and parts.scheme == "http":
        target = f"http://{parts.netloc.rpartition('@')[2]}{target}"
        headers = {**headers, **_proxy_headers(proxy)}
    try:
        _connect(connection, url, seconds)
        with _failures(url):
            connection.putrequest(method, target, skip_accept_encoding=True, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.putheader("Connection", "close")
            if length or method in ("PUT", "POST"):
                connection.putheader("Content-Length", str(length))
            connection.endheaders()
        for part in body:
            with _failures(url):
                if not _is_sent(connection, part):
                    break
        with _failures(url):
            return Stream(connection, connection.getresponse())
    except BaseException:
        connection.close()
        raise


def _connect(connection: http.client.HTTPConnection, url: str, seconds: float) -> None:
    try:
        connection.connect()
        connection.sock.settimeout(seconds)
    except ssl.SSLError as error:
        raise SSLError(f"SSL validation failed for {shown_url(url)} {_reason(error)}") from None
    except OSError as error:
        text = f'Could not connect to the endpoint URL: "{shown_url(url)}" ({_reason(error)})'
        raise HTTPClientError(text) from None


def _is_sent(connection: http.client.HTTPConnection, part: bytes) -> bool:
    """False: the server takes no more; it may have answered."""
    try:
        connection.send(part)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


@contextmanager
def _failures(url: str) -> Iterator[None]:
    """Turn errors of a connection into HTTPClientError."""
    try:
        yield
    except socket.timeout:  # noqa: UP041  (another class before Python 3.10)
        raise ReadTimeoutError(f'Read timeout on endpoint URL: "{shown_url(url)}"') from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed(error, url) from None


def _failed(error: BaseException, url: str) -> HTTPClientError:
    text = f'Connection was closed before we received a valid response from endpoint URL: "{shown_url(url)}"'
    return HTTPClientError(f"{text} ({_reason(error)})")


def _reason(error: BaseException) -> str:
    text = (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
    return str(text) if str(text).isprintable() else type(error).__name__


def shown_url(url: str) -> str:
    """The address of a server without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _connection(settings: Mapping[str, str], parts: Any, proxy: str | None) -> http.client.HTTPConnection:
    host, port = parts.hostname, parts.port
    if parts.scheme == "https":
        context = _context(settings)
        if proxy is None:
            return http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=context)
        through = urlsplit(proxy)
        tunnel = http.client.HTTPSConnection(
            through.hostname or "", through.port or 80, timeout=CONNECT_SECONDS, context=context
        )
        tunnel.set_tunnel(host, port or 443, dict(_proxy_headers(proxy)))
        return tunnel
    if proxy is not None:
        through = urlsplit(proxy)
        host, port = through.hostname, through.port or 80
    return http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    bundle = settings.get("AWS_CA_BUNDLE") or None
    try:
        return ssl.create_default_context(cafile=bundle)
    except OSError as error:
        raise SSLError(f"the certificates of AWS_CA_BUNDLE cannot be read: {_reason(error)}") from None


def _proxy(settings: Mapping[str, str], scheme: str, host: str) -> str | None:
    """The proxy for this host, as the variables name it."""
    named = (settings.get(f"{scheme}_proxy"), settings.get(f"{scheme.upper()}_PROXY"))
    proxy = next((value for value in named if value), None)
    not_for = settings.get("no_proxy") or settings.get("NO_PROXY") or ""
    if proxy is None or proxy_bypass_environment(host, {"no": not_for}):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _proxy_headers(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    both = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {b64encode(both).decode()}"}


def drain(stream: Stream) -> None:
    """Read what is left of a short answer, and close it. Raises nothing."""
    with suppress(Exception):
        stream.bounded(_MOST_LEFT)
    stream.close()

"""Requests to an API server and the reading of its answers: paths, queries, errors, and when to try again.
Values in, values out; the blocking and the async client share all of it.

One request is a conversation (`exchange`): it asks to send, to pause, to renew the credentials, and ends with
a reply or an error. Tried again is what may pass:

- no answer (refused, reset, timed out): the request may have been carried out. Every write here may be sent
  twice: a create meets itself as `Exists`, a replace as `Conflict` (both then say ``retried``), a delete
  names the uid, a patch says the same thing again.
- 429 (the server says when, in Retry-After), 408, 500, 502, 503, 504.
- 409 of a write that compares nothing: a quota, or the server's own storage, was just being changed.
- 401, once, with new credentials: a token may have run out on the way. Who was let in before is let in again,
  once the service that checks tokens answers the server: that is waited for like the server.
- 403 from the authorizer, of what was allowed before: an API server that has just started answers before it
  has read its roles. For some seconds; then it is an answer.

Everything else is an answer. Pauses double from a quarter second to eight, each drawn between half and all of
itself, so that clients which were cut together do not come back together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from allaboard.backends.kubernetes.client.errors import (
    ApiError,
    Cause,
    Conflict,
    Exists,
    Forbidden,
    Gone,
    Invalid,
    Missing,
    Unauthorized,
)
from allaboard.backends.kubernetes.client.resources import Resource
from allaboard.errors import BackendUnreachable, SiteError
from allaboard.text.untrusted import ANSWERS, parse_json

Json = dict[str, Any]

PATCHES: Mapping[str, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
FIELD_MANAGER = "allaboard"

READ_SECONDS = 15.0
"""Seconds for which an answer to a read may be silent."""
WRITE_SECONDS = 32.0
"""The same for writes: admission webhooks may take 30 s."""
DOUBT = 10.0
"""Seconds for which it is not believed that what was allowed before is forbidden now."""
SMALL_ERROR = 64 * 1024
"""Bytes of an error's body that are read."""
LARGEST_ANSWER = ANSWERS.size
"""Bytes of an answer that are read, unpacked."""


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` with its query; ``silence``: seconds without a byte after which the answer counts as lost;
    ``stream``: the body is not read but handed over; ``protocols``: it opens a WebSocket that speaks one of
    them, which is handed over. ``right``: what must be allowed for it, equal for all requests that need the
    same; empty: not known. ``what``: for errors, in words.
    """

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    content_type: str = JSON
    accept: str = JSON
    silence: float = READ_SECONDS
    stream: bool = False
    protocols: tuple[str, ...] = ()
    compares: bool = False
    right: str = ""
    subject: str = ""

    def headers(self) -> dict[str, str]:
        """All but the credentials."""
        # Compressed are large lists alone, and there it is 20 times less. A watch must not wait in a buffer.
        headers = {"accept": self.accept, "accept-encoding": "identity" if self.stream else "gzip"}
        if self.body is not None:
            headers["content-type"] = self.content_type
        return headers


_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_body(data: bytes) -> Any:
    """The value of an answer's JSON, within the `ANSWERS` limits. Half of a surrogate pair, which no API
    server writes, becomes U+FFFD, as Go reads it. Raises ValueError.
    """
    value = parse_json(data, ANSWERS, nonfinite=True, spelling=False, any_text=True, unique=False)
    return _whole_characters(value) if _HALF_PAIR.search(data) else value


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Reply:
    """``headers`` with lower-case names; ``stream``: the open body of a stream that began well."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    stream: Any = None
    retried: bool = False

    def json(self) -> Any:
        return parse_body(self.body) if self.body else None


@dataclass(frozen=True, slots=True)
class Broken:
    """No answer, or half of one. ``text``: why, without credentials. ``passing``: False when it is no matter
    of time: the server's certificate is not trusted. ``silent``: nothing came for too long.
    """

    text: str
    passing: bool = True
    silent: bool = False


# --- what is asked ------------------------------------------------------------------------------------------


def get(resource: Resource, name: str, namespace: str, query: Mapping[str, Any] | None = None) -> Request:
    return Request(
        "GET",
        url(resource.path(namespace, name), query or {}),
        right=_right("get", resource, namespace),
        subject=f"{resource.name} {name}",
    )


def page(
    resource: Resource,
    namespace: str,
    *,
    labels: str | None,
    fields: str | None,
    limit: int | None,
    resource_version: str | None,
    token: str | None,
    table: bool,
) -> Request:
    """One page of a list."""
    query = {
        "labelSelector": labels,
        "fieldSelector": fields,
        "limit": limit,
        "continue": token,
        # A continued list is of the version that it began with.
        "resourceVersion": None if token else resource_version,
        "includeObject": "None" if table else None,
    }
    return Request(
        "GET",
        url(resource.path(namespace), query),
        accept=f"{TABLE},{JSON}" if table else JSON,
        right=_right("list", resource, namespace),
        subject=f"list {resource.name}",
    )


def watch(
    resource: Resource,
    namespace: str,
    *,
    labels: str | None,
    fields: str | None,
    resource_version: str,
    table: bool,
    seconds: int,
    silence: float,
) -> Request:
    query = {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": seconds,
        "labelSelector": labels,
        "fieldSelector": fields,
        "includeObject": "None" if table else None,
    }
    return Request(
        "GET",
        url(resource.path(namespace), query),
        accept=f"{TABLE},{JSON}" if table else JSON,
        silence=silence,
        stream=True,
        right=_right("watch", resource, namespace),
        subject=f"watch {resource.name}",
    )


def create(resource: Resource, body: Json, namespace: str, *, dry_run: bool = False) -> Request:
    return _write("POST", resource, namespace, body, name=None, dry_run=dry_run)


def replace_with(resource: Resource, body: Json, namespace: str, *, sub: str | None = None) -> Request:
    request = _write("PUT", resource, namespace, body, name=body["metadata"]["name"], sub=sub)
    return replace(request, compares=_compares(body))


def patch(
    resource: Resource,
    name: str,
    body: Any,
    namespace: str,
    *,
    kind: str = "merge",
    sub: str | None = None,
    dry_run: bool = False,
) -> Request:
    request = _write(
        "PATCH", resource, namespace, body, name=name, sub=sub, content_type=PATCHES[kind], dry_run=dry_run
    )
    return replace(request, compares=kind in ("json", "apply") or _compares(body))


def delete(
    resource: Resource,
    name: str,
    namespace: str,
    *,
    uid: str | None = None,
    resource_version: str | None = None,
    propagation: str = "Background",
    grace: int | None = None,
    dry_run: bool = False,
) -> Request:
    conditions = {
        **({"uid": uid} if uid else {}),
        **({"resourceVersion": resource_version} if resource_version else {}),
    }
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": propagation,
        **({"preconditions": conditions} if conditions else {}),
        **({"gracePeriodSeconds": grace} if grace is not None else {}),
        **({"dryRun": ["All"]} if dry_run else {}),
    }
    return Request(
        "DELETE",
        resource.path(namespace, name),
        as_bytes(options),
        silence=WRITE_SECONDS,
        compares=bool(conditions),
        right=_right("delete", resource, namespace),
        subject=f"{resource.name} {name}",
    )


def log(
    pod: str,
    namespace: str,
    *,
    container: str | None,
    since: str | None,
    tail: int | None,
    limit_bytes: int | None,
    previous: bool,
    follow: bool,
    timestamps: bool,
    silence: float,
) -> Request:
    from allaboard.backends.kubernetes.client.resources import PODS

    query = {
        "container": container,
        "sinceTime": since,
        "tailLines": tail,
        "limitBytes": limit_bytes,
        "previous": previous or None,
        "follow": follow or None,
        "timestamps": timestamps or None,
    }
    return Request(
        "GET",
        url(PODS.path(namespace, pod, "log"), query),
        accept="*/*",
        silence=silence,
        stream=True,
        right=_right("get", PODS, namespace, "log"),
        subject=f"log of pod {pod}",
    )


def execute(pod: str, namespace: str, command: Sequence[str], *, container: str | None) -> Request:
    """A command with stdin, stdout and stderr in a container that runs."""
    from allaboard.backends.kubernetes.client.resources import PODS

    query = {"command": list(command), "container": container, "stdin": True, "stdout": True, "stderr": True}
    return Request(
        "GET",
        url(PODS.path(namespace, pod, "exec"), query),
        accept="*/*",
        protocols=EXEC_PROTOCOLS,
        right=_right("get", PODS, namespace, "exec"),
        subject=f"exec in pod {pod}",
    )


def url(path: str, query: Mapping[str, Any]) -> str:
    """The path with those parts of the query that are not None."""
    given = {k: ("true" if v is True else v) for k, v in query.items() if v is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _right(verb: str, resource: Resource, namespace: str, sub: str | None = None) -> str:
    return f"{verb} {resource.path(namespace)}{f'/{sub}' if sub else ''}"


def _compares(body: Json) -> bool:
    """True if a write names its object, or the version of it: a conflict is then an answer."""
    metadata = body.get("metadata") or {}
    return "resourceVersion" in metadata or "uid" in metadata


def as_bytes(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _write(
    method: str,
    resource: Resource,
    namespace: str,
    body: Any,
    *,
    name: str | None,
    sub: str | None = None,
    content_type: str = JSON,
    dry_run: bool = False,
) -> Request:
    # Without Strict a misspelt field is dropped in silence, and the job trains as if it had not been written.
    query = {
        "fieldValidation": "Strict",
        "fieldManager": FIELD_MANAGER,
        "dryRun": "All" if dry_run else None,
    }
    return Request(
        method,
        url(resource.path(namespace, name, sub), query),
        as_bytes(body),
        content_type=content_type,
        silence=WRITE_SECONDS,
        right=_right(method, resource, namespace, sub),
        subject=f"{resource.name} {name or body.get('metadata', {}).get('name', '')}".strip(),
    )


# --- the conversation of one request ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    request: Request


@dataclass(frozen=True, slots=True)
class Pause:
    """``why``: what was heard instead of an answer, for a person who waits."""

    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Renew:
    """The server no longer knows who asks, or we no longer know it: read settings and credentials anew. The
    answer is None.
    """


Effect = Send | Pause | Renew
Answer = tuple[Reply | Broken | None, float]
"""The answer, and its time (seconds of a clock that only grows)."""


@dataclass(frozen=True, slots=True)
class Patience:
    """``budget``: seconds after which a request that gets no answer is given up; one try more than the first
    is always made.
    """

    budget: float = 45.0
    first: float = 0.25
    longest: float = 8.0


@dataclass(frozen=True, slots=True)
class Retry:
    after: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """``final``: it is an answer, and would be the same again; else patience has run out."""

    final: bool


def retry(
    request: Request,
    answer: Reply | Broken,
    *,
    tries: int,
    elapsed: float,
    chance: float,
    patience: Patience,
    granted: Collection[str] = (),
    doubted: float = 0.0,
) -> Retry | GiveUp:
    """Decide if a request that failed is sent again, after ``tries`` of them. ``chance`` in [0, 1);
    ``granted``: the rights by which this client has got answers before; ``doubted``: for how long one of them
    has been denied.
    """
    if _is_doubted(request, answer, granted):
        pause = min(1.0, patience.first * 2 ** (tries - 1)) * (0.5 + chance / 2)
        return Retry(pause) if doubted + pause < min(DOUBT, patience.budget) else GiveUp(final=True)
    if not _may_pass(request, answer, granted):
        return GiveUp(final=True)
    pause = min(patience.longest, patience.first * 2 ** (tries - 1)) * (0.5 + chance / 2)
    if isinstance(answer, Reply):
        # Asked to wait, all clients would return at the same moment.
        pause = max(pause, _retry_after(answer) * (1 + chance / 4))
    if elapsed + pause > patience.budget and (tries > 1 or pause > patience.budget):
        return GiveUp(final=False)
    return Retry(pause)


def _may_pass(request: Request, answer: Reply | Broken, granted: Collection[str]) -> bool:
    if isinstance(answer, Broken):
        return answer.passing
    if answer.status in (408, 429, 500, 502, 503, 504) or (answer.status == 401 and granted):
        return True
    return (
        answer.status == 409
        and request.method in ("POST", "PUT", "PATCH")
        and not request.compares
        and _status(answer).get("reason") == "Conflict"
    )


def _is_doubted(request: Request, answer: Reply | Broken, granted: Collection[str]) -> bool:
    """True if the authorizer forbids what it allowed before. Quotas and policies answer 403, too."""
    return (
        isinstance(answer, Reply)
        and answer.status == 403
        and request.right in granted
        and " cannot " in str(_status(answer).get("message"))
    )


def _refused(answer: Reply | Broken) -> bool:
    """True if new credentials, or a CA read anew, may help."""
    return answer.status == 401 if isinstance(answer, Reply) else not answer.passing


def _retry_after(reply: Reply) -> float:
    seconds = reply.headers.get("retry-after", "")
    return float(seconds) if seconds.isdigit() else 0.0


def exchange(
    request: Request,
    *,
    server: str,
    started: float,
    chance: Callable[[], float],
    patience: Patience,
    granted: Collection[str] = (),
    source: str = "",
) -> Generator[Effect, Answer, Reply]:
    """The conversation of one request. ``granted``: as `retry` knows it; ``source``: where the credentials
    are from. Raises `ApiError` for what the
    server refuses, and `BackendUnreachable` (SiteError where no time will mend it), naming the server and
    what was last heard.
    """
    tries, renewed, lost = 0, False, False
    denied: float | None = None
    while True:
        tries += 1
        answer, now = yield Send(request)
        assert answer is not None
        if isinstance(answer, Reply) and answer.status < 400:
            return replace(answer, retried=lost) if lost else answer
        if not renewed and _refused(answer):
            renewed = True
            yield Renew()
            continue
        if denied is None and _is_doubted(request, answer, granted):
            denied = now
        decision = retry(
            request,
            answer,
            tries=tries,
            elapsed=now - started,
            chance=chance(),
            patience=patience,
            granted=granted,
            doubted=0.0 if denied is None else now - denied,
        )
        if isinstance(decision, GiveUp):
            if isinstance(answer, Reply) and decision.final and answer.status == 401:
                raise _unknown_to(server, source, answer)
            if isinstance(answer, Reply) and decision.final:
                raise error_of(answer, request, retried=lost)
            if decision.final:
                raise SiteError(_unreachable(server, answer, request, tries, now - started))
            raise BackendUnreachable(_unreachable(server, answer, request, tries, now - started))
        # A gateway's 502 or 504 tells nothing about what the server behind it did.
        lost = lost or isinstance(answer, Broken) or answer.status in (500, 502, 504)
        yield Pause(decision.after, f"API server {server} {_heard(answer)}")


def _unknown_to(server: str, source: str, answer: Reply) -> ApiError:
    message = _status(answer).get("message") or _text(answer)
    return Unauthorized(
        f"API server {server} does not accept the credentials of {source or 'this client'} ({message}); "
        "log in again, or use another --context",
        status=401,
        reason="Unauthorized",
    )


def _unreachable(server: str, answer: Reply | Broken, request: Request, tries: int, elapsed: float) -> str:
    how = f" ({tries} tries in {elapsed:.0f} s)" if tries > 1 else ""
    return f"API server {server} {_heard(answer)}{how}; asked for: {request.subject or request.path}"


def _heard(answer: Reply | Broken) -> str:
    if isinstance(answer, Broken):
        return answer.text
    return f"answers {answer.status}: {_status(answer).get('message') or _text(answer)}"


# --- errors -------------------------------------------------------------------------------------------------


def error_of(reply: Reply, request: Request | None = None, *, retried: bool = False) -> ApiError:
    """The error that an answer of 400 and above means."""
    return error_of_status(
        {"message": _text(reply), **_status(reply), "code": reply.status},
        subject=request.subject if request else "",
        retried=retried,
    )


def error_of_status(status: Json, *, subject: str = "", retried: bool = False) -> ApiError:
    """The error that a Status object means; watches send them as events too."""
    http_code = status.get("code")
    code = http_code if isinstance(http_code, int) else 0
    reason = str(status.get("reason") or "")
    message = _short(str(status.get("message") or reason or f"HTTP {code}"))
    details = as_mapping(status.get("details"))
    causes = _causes(details, message)
    kind = _kind(code, reason)
    if any(cause.field == "metadata.uid" and "immutable" in cause.message for cause in causes):
        kind = Conflict  # a patch that names a uid, and the object of this name is another
    error = kind(
        message, status=code, reason=reason, causes=causes, retried=retried, subject=_prefix(subject, message)
    )
    if isinstance(error, Missing):
        error.absent = (str(details.get("kind") or ""), str(details.get("name") or ""))
        # A kind that is not served is answered by the router: plain text, or a Status that names no object.
        error.unserved = not error.absent[1]
    return error


def _kind(code: int, reason: str) -> type[ApiError]:
    if code == 409:
        return Exists if reason == "AlreadyExists" else Conflict
    return {
        400: Invalid,
        401: Unauthorized,
        403: Forbidden,
        404: Missing,
        410: Gone,
        422: Invalid,
    }.get(code, ApiError)


def _prefix(subject: str, message: str) -> str:
    """Most of the server's sentences name their object."""
    name = subject.rpartition(" ")[2]
    return "" if not name or re.search(rf"\b{re.escape(name)}\b", message) else subject


_STRICT = re.compile(r'(unknown|duplicate) field "((?:[^"\\]|\\.)*)"')
_LONG_VALUE = re.compile(r'Invalid value: "((?:[^"\\]|\\.){200,})"')


def _short(message: str) -> str:
    """Without the whole objects, data of secrets and all, that the server quotes when a patch is refused."""
    return _LONG_VALUE.sub("Invalid value", message)


def _causes(details: Mapping[str, Any], message: str) -> tuple[Cause, ...]:
    # Strict validation names its fields in the sentence alone.
    _, strict, listing = message.partition("strict decoding error")
    if strict and (fields := _STRICT.findall(listing)):
        return tuple(Cause(path, f"{how} field", f"{how.title()}Field") for how, path in fields)
    return tuple(
        Cause(str(c.get("field") or ""), _short(str(c.get("message") or "")), str(c.get("reason") or ""))
        for c in map(as_mapping, as_list(details.get("causes")))
    )


def as_mapping(value: Any) -> Json:
    """An object as it is; an empty one in the place of any other value."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A list as it is; an empty one in the place of any other value."""
    return value if isinstance(value, list) else []


def _status(reply: Reply) -> Json:
    """The Status object of an answer; empty when there is none: a gateway, or the router, spoke."""
    try:
        status = parse_body(reply.body)
    except ValueError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}


def _text(reply: Reply) -> str:
    """The start of the first line of a body that is no Status, without HTML."""
    text = re.sub(r"<[^>]*>", " ", reply.body[:SMALL_ERROR].decode("utf-8", "replace"))
    line = " ".join(text.split())
    return line[:200] or f"HTTP {reply.status}"


# --- exec ---------------------------------------------------------------------------------------------------


EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""The first byte of each message names its channel; from 1.30 on v5, which also closes them."""
STDIN, STDOUT, STDERR, RESULT = range(4)
LONGEST_RESULT = 1 << 16


@dataclass(frozen=True, slots=True)
class Executed:
    """The end of a command. ``code``: its exit code, None where it did not run or nobody waited for its end;
    ``trouble``: the reason, then.
    """

    code: int | None
    out: bytes = b""
    err: bytes = b""
    trouble: str = ""


class ExecReader:
    """Messages of an exec to what the command wrote; ``most`` bytes of it are taken."""

    def __init__(self, most: int) -> None:
        self.most, self.is_full = most, False
        self._told = {STDOUT: bytearray(), STDERR: bytearray(), RESULT: bytearray()}

    def feed(self, message: bytes) -> bool:
        """True if more is wanted: no result came, and there is room."""
        channel, data = (message[0], message[1:]) if message else (STDIN, b"")
        if channel in self._told:
            self._told[channel] += data
        self.is_full = sum(map(len, self._told.values())) > self.most + LONGEST_RESULT
        return not self.is_full and not self._told[RESULT]

    def ended(self) -> Executed:
        out, err = bytes(self._told[STDOUT]), bytes(self._told[STDERR])
        if self.is_full:
            return Executed(None, out, err, f"it wrote more than {self.most:,} bytes")
        try:
            result = as_mapping(parse_body(bytes(self._told[RESULT])))
        except ValueError:
            return Executed(None, out, err, "the connection ended before the command did")
        if result.get("status") == "Success":
            return Executed(0, out, err)
        codes = [
            str(cause.get("message"))
            for cause in map(as_mapping, as_list(as_mapping(result.get("details")).get("causes")))
            if cause.get("reason") == "ExitCode"
        ]
        if codes and codes[0].isdecimal() and len(codes[0]) < 10:
            return Executed(int(codes[0]), out, err)
        return Executed(None, out, err, str(result.get("message") or "it failed"))


# --- reading ------------------------------------------------------------------------------------------------


LONGEST_LINE = 1 << 20
LONGEST_EVENT = 1 << 26


@dataclass(slots=True)
class Splitter:
    """Cuts a stream into lines with their ends, holding back (in ``rest``) the one that has none yet; a piece
    of ``longest`` bytes without an end is handed on as it is.
    """

    longest: int = LONGEST_LINE
    rest: bytes = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        whole_lines = [line + b"\n" for line in lines]
        if len(self.rest) > self.longest:
            whole_lines.append(self.rest)
            self.rest = b""
        return whole_lines


@dataclass(slots=True)
class Tables:
    """Reads Tables, of which a watch sends the columns with the first alone. A row becomes
    ``{"Name": ..., "State": ...}``.
    """

    columns: tuple[str, ...] = ()

    def rows(self, table: Json) -> list[dict[str, Any]]:
        if definitions := as_list(table.get("columnDefinitions")):
            self.columns = tuple(str(as_mapping(column).get("name")) for column in definitions)
        cells = (as_list(as_mapping(row).get("cells")) for row in as_list(table.get("rows")))
        return [dict(zip(self.columns, row, strict=False)) for row in cells]


def version_of(body: Json) -> str:
    return str(as_mapping(body.get("metadata")).get("resourceVersion") or "")

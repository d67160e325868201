"""Signature Version 4 of AWS, for S3. Values in, values out; standard library only."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

UNSIGNED = "UNSIGNED-PAYLOAD"
"""Stands for the sum of a body that TLS protects."""
_ALGORITHM, _SERVICE = "AWS4-HMAC-SHA256", "s3"
_NOT_SIGNED = frozenset({"expect", "transfer-encoding", "user-agent", "x-amzn-trace-id"})
"""Headers that a proxy may change."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials. ``expires``: epoch seconds; None: they do not."""

    access: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request before it is signed. ``path``: as `encoded_path` gives it; ``query``: not encoded;
    ``digest``: the SHA-256 of the body in hexadecimal digits, or `UNSIGNED`.
    """

    method: str
    host: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    digest: str


def encoded_path(path: str) -> str:
    """A path as it is sent and signed: S3 signs it once encoded, and never joins its slashes or dots."""
    return quote(path, safe="/~")


def encoded_query(query: Sequence[tuple[str, str]]) -> str:
    """A query as it is sent and signed."""
    return "&".join(f"{name}={value}" for name, value in sorted((_encoded(n), _encoded(v)) for n, v in query))


def signed_headers(request: Request, keys: Keys, region: str, moment: str) -> dict[str, str]:
    """All headers of the request, its signature among them. ``moment``: of now in UTC, as
    ``20261127T213000Z``.
    """
    headers = {**request.headers, "X-Amz-Date": moment, "X-Amz-Content-SHA256": request.digest}
    if keys.token is not None:
        headers["X-Amz-Security-Token"] = keys.token
    lowered = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    signed = {**lowered, "host": request.host}
    names = sorted(name for name in signed if name not in _NOT_SIGNED)
    canonical = "\n".join(
        [
            request.method,
            request.path,
            encoded_query(request.query),
            *(f"{name}:{signed[name]}" for name in names),
            "",
            ";".join(names),
            request.digest,
        ]
    )
    scope = f"{moment[:8]}/{region}/{_SERVICE}/aws4_request"
    text = f"{_ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret}".encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    by = f"Credential={keys.access}/{scope}, SignedHeaders={';'.join(names)}"
    headers["Authorization"] = f"{_ALGORITHM} {by}, Signature={signature}"
    return headers


def _encoded(text: str) -> str:
    return quote(text, safe="~")

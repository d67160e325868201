"""A client of S3 of the standard library alone, where boto3 is not: in pods whose image lacks it.

It has those methods of boto3's client that `allaboard.storage.s3` calls, with their arguments, answers and
names of errors, so that everything above is one. It moves one request at a time and holds no file in memory.
"""

from __future__ import annotations

import hashlib
import io
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote_plus, urlsplit
from xml.sax.saxutils import escape

from allaboard.storage.s3_credentials import Credentials, domain_of
from allaboard.storage.s3_errors import (
    ClientError,
    HTTPClientError,
    RequestFailed,
    ResponseStreamingError,
    S3DownloadFailedError,
)
from allaboard.storage.s3_http import CHUNK, Stream, drain, send
from allaboard.storage.s3_signing import UNSIGNED, Request, encoded_path, encoded_query, signed_headers
from allaboard.storage.s3_xml import Element, Malformed, parse_xml
from allaboard.text.printable import visible

Progress = Callable[[int], None]
"""As of `allaboard.storage.base`."""
MOST_PARTS = 10_000
_LONGEST_PAUSE = 20.0
_LARGEST = 2**23
"""Bytes of a listing: a thousand of the longest keys, encoded."""
_LONGEST = 500
"""Characters of a server's message that are kept."""
_BUSY_STATUSES = frozenset({429, 500, 502, 503, 504})
_BUSY_CODES = frozenset(
    {
        "InternalError", "PriorRequestNotComplete", "RequestLimitExceeded", "RequestThrottled",
        "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable", "SlowDown", "Throttling",
        "ThrottlingException", "TooManyRequestsException",
    }
)  # fmt: skip
_VIRTUAL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Names of buckets that can be part of a host's name, under one certificate."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017  (an old Python)


@dataclass(frozen=True, slots=True)
class Limits:
    """``attempts`` of a request; ``seconds`` of silence; bytes of a ``part``; ``streams``: attempts to read
    an answer that breaks off.
    """

    attempts: int
    seconds: float
    part: int
    streams: int


def pause(tries: int) -> float:
    """Seconds before the next try, after ``tries`` of them."""
    return min(_LONGEST_PAUSE, random.random() * float(2 ** (tries - 1)))


class PlainClient:
    """``settings``: variables, as boto3 knows them."""

    def __init__(self, settings: Mapping[str, str], limits: Limits, credentials: Credentials) -> None:
        self._settings, self._limits, self._credentials = settings, limits, credentials
        self._region = settings.get("AWS_REGION") or settings.get("AWS_DEFAULT_REGION") or "us-east-1"
        self._regions: dict[str, str] = {}
        self._place = settings.get("AWS_ENDPOINT_URL_S3") or settings.get("AWS_ENDPOINT_URL") or None

    @property
    def endpoint(self) -> str:
        return self._place or f"https://s3.{self._region}.{domain_of(self._region)}"

    # As boto3's.

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        stream, tries = self._answered("HeadObject", "HEAD", Bucket, Key)
        drain(stream)
        return _object(stream.headers, tries)

    def get_object(self, *, Bucket: str, Key: str, Range: str | None = None) -> dict[str, Any]:
        headers = {} if Range is None else {"Range": Range}
        stream, tries = self._answered("GetObject", "GET", Bucket, Key, headers=headers)
        answer = {**_object(stream.headers, tries), "Body": _Body(stream, _last_byte(Range, stream.status))}
        if "content-range" in stream.headers:
            answer["ContentRange"] = stream.headers["content-range"]
        return answer

    def put_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Body: bytes,
        IfNoneMatch: str | None = None,
        Metadata: Mapping[str, str] | None = None,
    ) -> None:
        headers = {} if IfNoneMatch is None else {"If-None-Match": IfNoneMatch}
        self._put(Bucket, Key, _Piece.of(Body), {**headers, **_metadata(Metadata)}, None)

    def delete_object(self, *, Bucket: str, Key: str) -> None:
        self._done("DeleteObject", "DELETE", Bucket, Key)

    def delete_objects(self, *, Bucket: str, Delete: Mapping[str, Any]) -> dict[str, Any]:
        for item in Delete["Objects"]:
            self.delete_object(Bucket=Bucket, Key=item["Key"])
        return {}

    def list_objects_v2(
        self,
        *,
        Bucket: str,
        Prefix: str = "",
        Delimiter: str | None = None,
        MaxKeys: int | None = None,
        ContinuationToken: str | None = None,
    ) -> dict[str, Any]:
        wanted = {
            "prefix": Prefix,
            "delimiter": Delimiter,
            "max-keys": None if MaxKeys is None else str(MaxKeys),
            "continuation-token": ContinuationToken,
        }
        query = [("list-type", "2"), ("encoding-type", "url")]
        query += [(name, value) for name, value in wanted.items() if value is not None]
        return _listing(self._done("ListObjectsV2", "GET", Bucket, "", query=query))

    def get_paginator(self, _: str) -> PlainClient:
        return self

    def paginate(self, **how: Any) -> Iterator[dict[str, Any]]:
        """The pages of `list_objects_v2`."""
        token = None
        while True:
            page = self.list_objects_v2(**how, ContinuationToken=token)
            yield page
            if not page["NextContinuationToken"] or page["NextContinuationToken"] == token:
                return
            token = page["NextContinuationToken"]

    # Transfers.

    def upload(
        self,
        source: str | io.BytesIO,
        bucket: str,
        key: str,
        metadata: Mapping[str, str],
        progress: Progress | None,
    ) -> None:
        """Send a file of any size; in parts where it is large, which are taken back when anything fails."""
        with _opened(source) as file:
            size = file.seek(0, io.SEEK_END)
            if size <= self._limits.part:
                self._put(bucket, key, _Piece(file, 0, size), _metadata(metadata), progress)
            else:
                self._upload_parts(file, size, bucket, key, _metadata(metadata), progress)

    def _upload_parts(
        self,
        file: BinaryIO,
        size: int,
        bucket: str,
        key: str,
        headers: Mapping[str, str],
        progress: Progress | None,
    ) -> None:
        begun = self._done(
            "CreateMultipartUpload", "POST", bucket, key, query=[("uploads", "")], headers=headers
        )
        upload = [("uploadId", begun.text_of("UploadId"))]
        try:
            length = max(self._limits.part, -(-size // MOST_PARTS))
            tags = []
            for number, start in enumerate(range(0, size, length), 1):
                piece = _Piece(file, start, min(length, size - start))
                stream, _ = self._answered(
                    "UploadPart",
                    "PUT",
                    bucket,
                    key,
                    query=[("partNumber", str(number)), *upload],
                    body=piece,
                    progress=progress,
                )
                drain(stream)
                tags.append(stream.headers.get("etag", ""))
            parts = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
                for number, tag in enumerate(tags, 1)
            )
            space = "http://s3.amazonaws.com/doc/2006-03-01/"
            document = f'<CompleteMultipartUpload xmlns="{space}">{parts}</CompleteMultipartUpload>'
            self._done(
                "CompleteMultipartUpload",
                "POST",
                bucket,
                key,
                query=upload,
                body=_Piece.of(document.encode()),
            )
        except BaseException:
            with suppress(RequestFailed):
                self._done("AbortMultipartUpload", "DELETE", bucket, key, query=upload)
            raise

    def download(
        self,
        bucket: str,
        key: str,
        file: BinaryIO,
        size: int,
        etag: str | None,
        progress: Progress | None,
    ) -> None:
        """Write an object of ``size`` bytes to a file; where an answer breaks off, from there on again."""
        tries, at = 0, 0
        while at < size or tries == 0:
            headers = {**({"Range": f"bytes={at}-"} if at else {}), **({"If-Match": etag} if etag else {})}
            before = at
            try:
                for part in self._pieces(bucket, key, headers, at):
                    file.write(part)
                    at += len(part)
                    if progress is not None:
                        progress(len(part))
                if at != size:
                    raise ResponseStreamingError(f"{at} of {size} bytes came")
            except (ResponseStreamingError, HTTPClientError):
                tries = 1 if at > before else tries + 1
                if at > size or tries >= self._limits.streams:
                    raise
                time.sleep(pause(tries))
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 412:
                    raise S3DownloadFailedError("the object was replaced") from None
                raise
            else:
                return

    def _pieces(self, bucket: str, key: str, headers: Mapping[str, str], at: int) -> Iterator[bytes]:
        stream, _ = self._answered("GetObject", "GET", bucket, key, headers=headers)
        # A server that knows no ranges sends all of it.
        skipped = at if stream.status == 200 else 0
        try:
            while part := stream.read(CHUNK):
                rest, skipped = part[skipped:], max(0, skipped - len(part))
                if rest:
                    yield rest
        finally:
            stream.close()

    def copy(self, bucket: str, source: str, key: str) -> None:
        """Have the server copy an object, which it does up to 5 GiB."""
        origin = {"x-amz-copy-source": encoded_path(f"{bucket}/{source}")}
        self._done("CopyObject", "PUT", bucket, key, headers=origin)

    # Requests.

    def _put(
        self, bucket: str, key: str, body: _Piece, headers: Mapping[str, str], progress: Progress | None
    ) -> None:
        drain(
            self._answered("PutObject", "PUT", bucket, key, headers=headers, body=body, progress=progress)[0]
        )

    def _done(self, operation: str, method: str, bucket: str, key: str, **more: Any) -> Element:
        """The document that answers a request."""
        stream, tries = self._answered(operation, method, bucket, key, **more)
        try:
            body = stream.bounded(_LARGEST)
        finally:
            stream.close()
        if not body.strip():
            return Element("")
        try:
            document = parse_xml(body)
        except Malformed as error:
            raise ResponseStreamingError(str(error)) from None
        if document.name == "Error":  # the server had begun to answer before it failed
            raise _client_error(operation, 500, document, tries)
        return document

    def _answered(
        self,
        operation: str,
        method: str,
        bucket: str,
        key: str,
        *,
        query: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: _Piece | None = None,
        progress: Progress | None = None,
    ) -> tuple[Stream, int]:
        """(the answer, whose body is to be read; the tries it took). Raises RequestFailed."""
        piece = _Piece.of(b"") if body is None else body
        for tries in range(1, self._limits.attempts + 1):
            is_last = tries == self._limits.attempts
            sent = _Sent(piece, progress)
            try:
                stream = self._asked(method, bucket, key, [*query], headers or {}, piece, sent)
            except HTTPClientError:
                if is_last:
                    raise
            else:
                if stream.status < 300:
                    sent.complete()
                    return stream, tries
                error = self._refused(operation, stream, tries)
                if is_last or not (self._learns_region(bucket, stream) or _may_pass(error)):
                    raise error
            sent.take_back()
            time.sleep(pause(tries))
        raise AssertionError("unreachable")

    def _asked(
        self,
        method: str,
        bucket: str,
        key: str,
        query: list[tuple[str, str]],
        headers: Mapping[str, str],
        piece: _Piece,
        sent: _Sent,
    ) -> Stream:
        region = self._regions.get(bucket, self._region)
        server, path = self._address(bucket, key, region)
        parts = urlsplit(server)
        default = {"http": 80, "https": 443}[parts.scheme]
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        host = host if parts.port in (None, default) else f"{host}:{parts.port}"
        digest = UNSIGNED if parts.scheme == "https" and piece.length else piece.digest()
        request = Request(method, host, path, query, headers, digest)
        moment = (_EPOCH + timedelta(seconds=time.time())).strftime("%Y%m%dT%H%M%SZ")
        signed = signed_headers(request, self._credentials.keys(), region, moment)
        signed = {"Host": host, "User-Agent": "allaboard", **signed}
        target = path + (f"?{encoded_query(query)}" if query else "")
        return send(self._settings, server, target, method, signed, sent, piece.length, self._limits.seconds)

    def _address(self, bucket: str, key: str, region: str) -> tuple[str, str]:
        """(server, path): a server of AWS knows a bucket by its host, any other by its path."""
        server = self._place or f"https://s3.{region}.{domain_of(region)}"
        base = urlsplit(server).path.rstrip("/")
        server = server[: len(server) - len(urlsplit(server).path)] if urlsplit(server).path else server
        if self._place is None and _VIRTUAL.fullmatch(bucket):
            return server.replace("https://", f"https://{bucket}.", 1), encoded_path(f"/{key}")
        return server, encoded_path(f"{base}/{bucket}" + (f"/{key}" if key else ""))

    def _refused(self, operation: str, stream: Stream, tries: int) -> ClientError:
        document = Element("")
        with suppress(RequestFailed, Malformed):
            document = parse_xml(stream.bounded(2**16))
        stream.close()
        return _client_error(operation, stream.status, document, tries)

    def _learns_region(self, bucket: str, stream: Stream) -> bool:
        """True if AWS has told that the bucket is in another region than the one that was asked."""
        region = stream.headers.get("x-amz-bucket-region", "")
        known = self._regions.get(bucket, self._region)
        is_other = stream.status in (301, 307, 400) and self._place is None and region not in ("", known)
        if is_other and re.fullmatch(r"[a-z0-9-]{1,40}", region):
            self._regions[bucket] = region
            return True
        return False


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a file that are sent."""

    file: BinaryIO
    start: int
    length: int

    @classmethod
    def of(cls, data: bytes) -> _Piece:
        return cls(io.BytesIO(data), 0, len(data))

    def chunks(self) -> Iterator[bytes]:
        self.file.seek(self.start)
        left = self.length
        while left and (part := self.file.read(min(CHUNK, left))):
            left -= len(part)
            yield part

    def digest(self) -> str:
        total = hashlib.sha256()
        for part in self.chunks():
            total.update(part)
        return total.hexdigest()


class _Sent:
    """The chunks of a piece, as they are sent, with their progress."""

    def __init__(self, piece: _Piece, progress: Progress | None) -> None:
        self._piece, self._progress, self._count = piece, progress, 0

    def __iter__(self) -> Iterator[bytes]:
        for part in self._piece.chunks():
            yield part
            self._moved(len(part))

    def complete(self) -> None:
        """All of it is there, as the server says."""
        self._moved(self._piece.length - self._count)

    def take_back(self) -> None:
        self._moved(-self._count)

    def _moved(self, count: int) -> None:
        self._count += count
        if count and self._progress is not None:
            self._progress(count)


class _Body:
    """A body of which ``most`` bytes are read at most; None: all."""

    def __init__(self, stream: Stream, most: int | None) -> None:
        self._stream, self._most = stream, most

    def read(self) -> bytes:
        parts, size = [], 0
        try:
            while self._most is None or size < self._most:
                part = self._stream.read(CHUNK if self._most is None else min(CHUNK, self._most - size))
                if not part:
                    break
                parts.append(part)
                size += len(part)
        finally:
            self._stream.close()
        return b"".join(parts)


def _last_byte(asked: str | None, status: int) -> int | None:
    """The bytes of an answer that matter: those of the range, or all up to its end from a server that knows
    no ranges. None: no end was asked for.
    """
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked or "")
    if match is None:
        return None
    return int(match[2]) + 1 - (int(match[1]) if status == 206 else 0)


@contextmanager
def _opened(source: str | io.BytesIO) -> Iterator[BinaryIO]:
    if isinstance(source, io.BytesIO):
        yield source
    else:
        with Path(source).open("rb") as file:
            yield file


def _metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    return {f"x-amz-meta-{name}": value for name, value in (metadata or {}).items()}


def _object(headers: Mapping[str, str], tries: int) -> dict[str, Any]:
    """The facts of an object, by the headers of an answer."""
    length, mark = headers.get("content-length", ""), "x-amz-meta-"
    if not length.isdigit():
        raise ResponseStreamingError("The server does not say how long the object is")
    try:
        modified = parsedate_to_datetime(headers["last-modified"])
    except (KeyError, ValueError, TypeError):
        modified = _EPOCH
    return {
        "ContentLength": int(length),
        "LastModified": modified,
        "ETag": headers.get("etag"),
        "Metadata": {name[len(mark) :]: value for name, value in headers.items() if name.startswith(mark)},
        "ResponseMetadata": {"RetryAttempts": tries - 1},
    }


def _listing(document: Element) -> dict[str, Any]:
    decode: Callable[[str], str] = unquote_plus if document.text_of("EncodingType") == "url" else str
    is_cut = document.text_of("IsTruncated") == "true"
    try:
        contents = [
            {
                "Key": decode(item.text_of("Key")),
                "Size": int(item.text_of("Size")),
                "LastModified": _time(item.text_of("LastModified")),
            }
            for item in document.all("Contents")
        ]
    except ValueError:
        raise ResponseStreamingError("A listing has an object without a size or a time") from None
    return {
        "Contents": contents,
        "CommonPrefixes": [
            {"Prefix": decode(item.text_of("Prefix"))} for item in document.all("CommonPrefixes")
        ],
        "NextContinuationToken": document.text_of("NextContinuationToken") if is_cut else "",
    }


def _time(text: str) -> datetime:
    """Of RFC 3339, whose fractions old Pythons read in one form alone."""
    return datetime.fromisoformat(re.sub(r"(\.\d+)?Z$", "", text) + "+00:00")


def _client_error(operation: str, status: int, document: Element, tries: int) -> ClientError:
    error = document if document.name == "Error" else Element("")
    code = error.text_of("Code") or str(status)
    return ClientError(
        {
            "Error": {
                "Code": visible(code, most=100),
                "Message": visible(error.text_of("Message"), most=_LONGEST),
            },
            "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": tries - 1},
        },
        operation,
    )


def _may_pass(error: ClientError) -> bool:
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status in _BUSY_STATUSES or error.response["Error"]["Code"] in _BUSY_CODES

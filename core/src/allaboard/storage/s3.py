"""A store that is a prefix in an S3 bucket, on AWS or on any server that speaks its protocol.

S3 shows an object whole or not at all by itself; large files go up in parts that become an object with the
last request, and are taken back when anything fails. What is left to do here: bounded waiting, errors in
our words, and three things that S3 does not give.

**A lost answer.** A request may be carried out and its answer lost; the library then sends it again, and
the second try fails because of the first. So what we create or complete carries a random mark, and before
we believe such a failure we look at the mark.

**Exclusive create** needs a server that honours ``If-None-Match: *``. Some ignore it and overwrite. Since
an ignored condition looks like success, the first create in a bucket tries it out on an object of its own,
twice: a server that lets the second one pass is refused.

**One client** per set of settings and process: clients are dear to make and safe to share between threads,
not across a fork. It is boto3's where that is installed, else that of `allaboard.storage.s3_client`, which
has the same methods: everything here holds for both.

Uploads of a *client* that was killed leave parts that no listing shows and that cost money: give buckets
the life-cycle rule AbortIncompleteMultipartUpload.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from allaboard.errors import (
    BadInput,
    StorageConflict,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageMissing,
    StorageUnreachable,
    StorageUnsupported,
)
from allaboard.storage import disk
from allaboard.storage.base import (
    OWN,
    Entry,
    Progress,
    checked_key,
    checked_prefix,
    checked_range,
    key_trouble,
    shown,
)
from allaboard.text.redaction import redact_text

if TYPE_CHECKING:
    from s3transfer.manager import TransferManager

    from allaboard.storage.s3_client import PlainClient

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0  # silence, not the length of a transfer
ATTEMPTS = 4  # with pauses of up to 1, 2 and 4 seconds: after some two minutes a request gives up
STREAM_ATTEMPTS = 3  # to read an answer that breaks off
PART = 32 * 2**20
PARTS_AT_ONCE = 4


class S3Store:
    """Everything below ``s3://bucket/prefix``. Nothing is asked before the first use."""

    def __init__(self, bucket: str, prefix: str = "", environ: Mapping[str, str] | None = None) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._environ = None if environ is None else dict(environ)

    @classmethod
    def at(cls, uri: str, environ: Mapping[str, str] | None = None) -> S3Store:
        """The store at ``s3://bucket/prefix``. `BadInput` when that names no bucket or no prefix."""
        address = uri.split(":", 1)[1]
        bucket, _, rest = address[2 if address.startswith("//") else 0 :].partition("/")
        prefix = rest.strip("/")
        if "@" in bucket:  # never repeat the probe
            raise BadInput(
                "an s3:// address holds no credentials; write s3://bucket/prefix and set AWS_PROFILE, "
                "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if not uri.lower().startswith("s3://") or not bucket:
            raise BadInput(f"store {uri!r}: the name of the bucket is missing; write s3://bucket/prefix")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}", bucket):
            raise BadInput(
                f"store {uri!r}: {bucket!r} is not a bucket name; use 3 to 63 of a-z, 0-9, '.' and '-'"
            )
        trouble = key_trouble(prefix) if prefix else None
        if trouble:
            raise BadInput(
                f"store {uri!r}: the prefix is not a folder, {trouble}; write s3://bucket/folder/folder"
            )
        return cls(bucket, prefix, environ)

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        return self._entries(checked_prefix(prefix))

    def _entries(self, prefix: str) -> Iterator[Entry]:
        objects = (
            _entry(self._short_key(item["Key"]), item["Size"], item)
            for page in self._pages(prefix)
            for item in page.get("Contents", ())
        )
        # Sorted by most servers already, which costs nothing then; not by all. Other keys are left out: the
        # markers that consoles make for folders ('x/'), and the probes of this module.
        yield from sorted(
            (entry for entry in objects if not key_trouble(entry.key)), key=lambda entry: entry.key
        )

    def folders(self, prefix: str = "") -> list[str]:
        prefix = checked_prefix(prefix)
        names = (
            self._short_key(item["Prefix"])[:-1].rpartition("/")[2]
            for page in self._pages(prefix, Delimiter="/")
            for item in page.get("CommonPrefixes", ())
        )
        return sorted({name for name in names if not key_trouble(name)})

    def _pages(self, prefix: str, **how: str) -> Iterator[dict[str, Any]]:
        with self._translate_errors(prefix, "listing") as client:
            start = self._full_key(f"{prefix}/" if prefix else "")
            yield from client.s3.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=start, **how
            )

    def stat(self, key: str) -> Entry | None:
        head = self._head(checked_key(key))
        return _entry(key, head["ContentLength"], head) if head else None

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        checked_range(start, length)
        with self._translate_errors(checked_key(key), "reading") as client:
            where = {"Bucket": self._bucket, "Key": self._full_key(key)}
            if length == 0:
                if self._head(key) is None:
                    raise StorageMissing(f"{self._uri_of(key)}: there is no such object; {_LOOK}")
                return b""
            if start or length is not None:
                where["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
            return _body(client, where, start, length)

    def write(self, key: str, data: bytes) -> None:
        with self._translate_errors(checked_key(key), "writing") as client:
            if len(data) > PART:
                self._send(client, io.BytesIO(data), key, None)
            else:
                client.s3.put_object(Bucket=self._bucket, Key=self._full_key(key), Body=data)

    def create(self, key: str, data: bytes) -> None:
        with self._translate_errors(checked_key(key), "creating") as client:
            if not self._creates_exclusively(client, key):
                raise StorageUnsupported(
                    f"{self._uri_of(key)}: the server at {client.endpoint} does not honour conditional "
                    "writes (If-None-Match), so two writers could both win; nothing was written; use a "
                    "server that does, or make sure that there is a single writer and say so"
                )
            self._put_if_absent(client, key, data)

    def _put_if_absent(self, client: _Client, key: str, data: bytes) -> None:
        mark = _new_marker()
        for pause in (0.1, 0.2, 0.4, 0.8, None):
            try:
                client.s3.put_object(
                    Bucket=self._bucket, Key=self._full_key(key), Body=data, IfNoneMatch="*", Metadata=mark
                )
                return
            except client.ClientError as error:
                if _status(error) == 409 and pause:  # another request to this key is on its way
                    time.sleep(pause)
                elif _status(error) in (409, 412) and self._has_marker(key, mark):
                    return
                else:
                    raise

    def _creates_exclusively(self, client: _Client, key: str) -> bool:
        if self._bucket not in client.exclusive:
            folder, slash, _ = key.rpartition("/")
            probe = self._full_key(f"{folder}{slash}{OWN}probe-{secrets.token_hex(8)}")
            client.exclusive[self._bucket] = _honours_if_none_match(client, self._bucket, probe)
        return client.exclusive[self._bucket]

    def upload(self, path: Path, key: str, progress: Progress | None = None) -> None:
        key = checked_key(key)
        with disk.translate_os_errors(path, "reading"), path.open("rb"):
            pass  # checked before anything is sent
        with self._translate_errors(key, "writing") as client, _translate_file_errors(path, "reading"):
            self._send(client, str(path), key, progress)

    def _send(self, client: _Client, source: str | io.BytesIO, key: str, progress: Progress | None) -> None:
        mark = _new_marker()
        try:
            client.transfers.upload(source, self._bucket, self._full_key(key), mark, progress)
        except client.ClientError as error:
            completing = error.operation_name == "CompleteMultipartUpload"
            lost = completing and (_code(error) == "NoSuchUpload" or _status(error) >= 500)
            if not (lost and self._has_marker(key, mark)):
                raise

    def download(self, key: str, path: Path, progress: Progress | None = None) -> None:
        head = self._head(checked_key(key))
        if head is None:
            raise StorageMissing(f"{self._uri_of(key)}: there is no such object; {_LOOK}")
        with self._translate_errors(key, "reading") as client, disk.replace_on_success(path) as file:
            with _translate_file_errors(path, "writing"):
                where = (self._bucket, self._full_key(key))
                client.transfers.download(*where, file, head["ContentLength"], head.get("ETag"), progress)
                file.flush()
            got, size = os.fstat(file.fileno()).st_size, head["ContentLength"]
            if got != size:
                raise StorageUnreachable(
                    f"{self._uri_of(key)}: {got} of {size} bytes came from {client.endpoint}; "
                    f"{path} was not written; try again"
                )

    def copy(self, source: str, key: str) -> None:
        if self._head(checked_key(source)) is None:
            raise StorageMissing(f"{self._uri_of(source)}: there is no such object; {_LOOK}")
        with self._translate_errors(checked_key(key), "copying to") as client:
            client.transfers.copy(self._bucket, self._full_key(source), self._full_key(key))

    def delete(self, keys: Iterable[str]) -> None:
        wanted = [checked_key(key) for key in keys]
        for some in (wanted[at : at + 1000] for at in range(0, len(wanted), 1000)):
            with self._translate_errors(some[0], "deleting") as client:
                try:
                    self._delete_together(client, some)
                except client.ClientError as error:
                    if _code(error) not in _NO_BATCHES:
                        raise
                    for key in some:
                        client.s3.delete_object(Bucket=self._bucket, Key=self._full_key(key))

    def _delete_together(self, client: _Client, keys: Iterable[str]) -> None:
        request = {"Objects": [{"Key": self._full_key(key)} for key in keys], "Quiet": True}
        answer = client.s3.delete_objects(Bucket=self._bucket, Delete=request)
        for refused in answer.get("Errors", ()):
            if refused.get("Code") != "NoSuchKey":
                raise client.ClientError({"Error": refused}, "DeleteObjects")

    def below(self, prefix: str) -> S3Store:
        return S3Store(self._bucket, self._full_key(checked_prefix(prefix)).rstrip("/"), self._environ)

    def above(self) -> S3Store:
        if not self._prefix:
            raise BadInput(f"store {self.uri!r}: no prefix holds it; give one below it")
        return S3Store(self._bucket, self._prefix.rpartition("/")[0], self._environ)

    def local_path(self, key: str = "") -> None:
        checked_prefix(key)

    def _full_key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _short_key(self, full: str) -> str:
        return full[len(self._prefix) + 1 :] if self._prefix else full

    def _uri_of(self, key: str) -> str:
        return f"{self.uri}/{key}".rstrip("/")

    def _head(self, key: str) -> dict[str, Any] | None:
        """Answer of the server about the object; None: it is absent from a bucket that exists."""
        with self._translate_errors(key, "looking at") as client:
            where = {"Bucket": self._bucket, "Key": self._full_key(key)}
            try:
                return dict(client.s3.head_object(**where))
            except client.ClientError as error:
                if _status(error) == 404:
                    self._bucket_must_exist(client)
                    return None
                if _status(error) not in (500, 502, 503, 504):
                    # An answer to HEAD has no body and no reason; an answer to GET has one.
                    client.s3.get_object(**where, Range="bytes=0-0")
                raise

    def _bucket_must_exist(self, client: _Client) -> None:
        if self._bucket not in client.seen:
            try:
                client.s3.list_objects_v2(Bucket=self._bucket, Prefix=self._full_key(""), MaxKeys=1)
            except client.ClientError as error:
                if (
                    _code(error) != "AccessDenied"
                ):  # without permission to list, the answer about the object counts
                    raise
            client.seen.add(self._bucket)

    def _has_marker(self, key: str, mark: dict[str, str]) -> bool:
        head = self._head(key)
        return head is not None and mark.items() <= head.get("Metadata", {}).items()

    @contextmanager
    def _translate_errors(self, key: str, doing: str) -> Iterator[_Client]:
        """Turn errors of S3 and its library into StorageError. This is the only place that does."""
        client = None
        try:
            client = _client(self._environ)
            yield client
        except _foreign_errors() as error:
            if client and _code(error) in _STALE:
                _forget_client(client)
            raise _translated(error, self._uri_of(key), doing, client) from error


@contextmanager
def _translate_file_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn errors of the local file of a transfer into StorageError, apart from errors of the server."""
    try:
        yield
    except OSError as error:  # which some errors of the library are as well
        if isinstance(error, _foreign_errors()):
            raise
        raise disk.translate_error(error, path, doing) from error


def _entry(key: str, size: int, answer: Mapping[str, Any]) -> Entry:
    # Whole seconds: the same object's time has fractions in some listings and in no header.
    return Entry(key, size, float(int(answer["LastModified"].timestamp())))


def _body(client: _Client, where: dict[str, str], start: int, length: int | None) -> bytes:
    for tries_left in reversed(range(STREAM_ATTEMPTS)):
        try:
            answer = client.s3.get_object(**where)
        except client.ClientError as error:
            if _status(error) == 416:
                return b""  # it ends before start
            raise
        try:
            data: bytes = answer["Body"].read()
        except client.broken_streams:  # the library repeats requests, but not the reading of their answers
            if not tries_left:
                raise
        else:
            whole = "ContentRange" not in answer  # not asked for a range, or a server that knows none
            return data[start : None if length is None else start + length] if whole else data
    raise AssertionError("unreachable")


def _honours_if_none_match(client: _Client, bucket: str, probe: str) -> bool:
    made = False
    try:
        client.s3.put_object(Bucket=bucket, Key=probe, Body=b"", IfNoneMatch="*")
        made = True
        client.s3.put_object(Bucket=bucket, Key=probe, Body=b"", IfNoneMatch="*")
    except client.ClientError as error:
        if _status(error) in (409, 412):
            made = True
            return True
        if _code(error) in _UNKNOWN_CONDITION:
            return False
        raise
    finally:
        if made:  # without permission to delete, an empty object stays that is never listed
            with suppress(*_foreign_errors()):
                client.s3.delete_object(Bucket=bucket, Key=probe)
    return False


def _new_marker() -> dict[str, str]:
    return {"allaboard-write": secrets.token_hex(8)}


@dataclass(eq=False)
class _Client:
    """A client with known facts about its server. Shared by all stores with the same settings. ``secrets``:
    what is never to be shown, as it is now.
    """

    s3: Any
    transfers: _Boto3Transfers | PlainClient
    endpoint: str
    secrets: Callable[[], tuple[str, ...]]
    ClientError: Any
    broken_streams: tuple[type[Exception], ...]
    exclusive: dict[str, bool] = field(default_factory=dict)  # bucket -> honours If-None-Match
    seen: set[str] = field(default_factory=set)  # buckets that exist


class _Boto3Transfers:
    """Files by boto3's client, in parts beside each other."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3

    def upload(
        self,
        source: str | io.BytesIO,
        bucket: str,
        key: str,
        metadata: Mapping[str, str],
        progress: Progress | None,
    ) -> None:
        with self._manager() as manager:
            extra, watchers = {"Metadata": dict(metadata)}, _subscribers(progress)
            manager.upload(source, bucket, key, extra_args=extra, subscribers=watchers).result()

    def download(
        self, bucket: str, key: str, file: Any, size: int, etag: str | None, progress: Progress | None
    ) -> None:
        with self._manager() as manager:
            manager.download(bucket, key, file, subscribers=_subscribers(progress, size, etag)).result()

    def copy(self, bucket: str, source: str, key: str) -> None:
        with self._manager() as manager:
            manager.copy({"Bucket": bucket, "Key": source}, bucket, key).result()

    def _manager(self) -> TransferManager:
        from s3transfer.manager import TransferConfig, TransferManager

        return TransferManager(
            self._s3,
            TransferConfig(
                multipart_threshold=PART,
                multipart_chunksize=PART,
                max_request_concurrency=PARTS_AT_ONCE,
                max_in_memory_upload_chunks=PARTS_AT_ONCE,
                io_chunksize=2**20,
                num_download_attempts=STREAM_ATTEMPTS,
            ),
        )


def _subscribers(progress: Progress | None, size: int | None = None, etag: str | None = None) -> list[Any]:
    from s3transfer.subscribers import BaseSubscriber

    class Watcher(BaseSubscriber):  # type: ignore[misc]
        def on_queued(self, future: Any, **_: Any) -> None:
            if size is not None:  # of a download: all pieces must be of the same object
                future.meta.provide_transfer_size(size)
                future.meta.provide_object_etag(etag)

        def on_progress(self, future: Any, bytes_transferred: int, **_: Any) -> None:
            if progress:
                progress(bytes_transferred)

    return [Watcher()]


_lock = threading.Lock()
_clients: dict[frozenset[tuple[str, str]], _Client] = {}


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    _clients.clear()  # connections belong to the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _client(environ: Mapping[str, str] | None) -> _Client:
    settings = os.environ if environ is None else environ
    key = frozenset(
        (name, value) for name, value in settings.items() if name.startswith("AWS_") or name == "HOME"
    )
    with _lock:
        if key not in _clients:
            _clients[key] = _new_client(environ)
        return _clients[key]


def _forget_client(client: _Client) -> None:
    """Its credentials ran out: the next use reads them again."""
    with _lock:
        for key in [key for key, value in _clients.items() if value is client]:
            del _clients[key]


def _new_client(environ: Mapping[str, str] | None) -> _Client:
    if _has_boto3():
        return _boto3_client(environ)
    return _plain_client(os.environ if environ is None else environ)


def _has_boto3() -> bool:
    """True if boto3 1.39 or later is installed; with an older one a download may mix two objects."""
    try:
        import botocore.session  # noqa: F401
        from s3transfer.futures import TransferMeta
    except Exception:  # not installed, or broken in an image
        return False
    return hasattr(TransferMeta, "provide_object_etag")


def _plain_client(settings: Mapping[str, str]) -> _Client:
    """A client of the standard library alone."""
    from allaboard.storage import s3_errors
    from allaboard.storage.s3_client import Limits, PlainClient
    from allaboard.storage.s3_credentials import Credentials

    _check_address(settings)
    own = dict(settings)
    tries = own.get("AWS_MAX_ATTEMPTS", "")
    attempts = int(tries) if tries.isdigit() and 0 < int(tries[:4]) < 100 else ATTEMPTS
    credentials = Credentials(own)
    client = PlainClient(own, Limits(attempts, READ_SECONDS, PART, STREAM_ATTEMPTS), credentials)
    with suppress(s3_errors.RequestFailed):  # a request says it
        credentials.keys()
    _check_blanks(credentials.secrets())
    return _Client(
        s3=client,
        transfers=client,
        endpoint=shown(client.endpoint),
        secrets=credentials.secrets,
        ClientError=s3_errors.ClientError,
        broken_streams=(s3_errors.ReadTimeoutError, s3_errors.ResponseStreamingError),
    )


def _check_address(settings: Mapping[str, str]) -> None:
    """Raises BadInput for an endpoint that is no URL."""
    endpoint = settings.get("AWS_ENDPOINT_URL_S3") or settings.get("AWS_ENDPOINT_URL") or ""
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if endpoint and (not is_address or not endpoint.isprintable() or " " in endpoint):
        raise _bad_endpoint(endpoint)


def _bad_endpoint(endpoint: str) -> BadInput:
    return BadInput(
        f"AWS_ENDPOINT_URL {shown(endpoint)!r} is not a server address; write it like http://127.0.0.1:9000"
    )


def _check_blanks(secrets: Iterable[str]) -> None:
    if any(value != value.strip() for value in secrets):
        raise StorageDenied(
            "the S3 credentials begin or end with a blank or a line break, which no request can carry; write "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN without it"
        )


def _boto3_client(environ: Mapping[str, str] | None) -> _Client:
    from botocore import exceptions
    from botocore.config import Config

    settings = os.environ if environ is None else environ
    session, place = _session(environ)
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={
            "mode": settings.get("AWS_RETRY_MODE") or "standard",
            "total_max_attempts": session.get_config_variable("max_attempts") or ATTEMPTS,
        },
        max_pool_connections=4 * PARTS_AT_ONCE,
        # The newer default adds trailers to every upload that many servers other than AWS refuse.
        request_checksum_calculation=settings.get("AWS_REQUEST_CHECKSUM_CALCULATION") or "when_required",
        response_checksum_validation=settings.get("AWS_RESPONSE_CHECKSUM_VALIDATION") or "when_required",
        user_agent_extra="allaboard",
        ignore_configured_endpoint_urls=True if environ is not None else None,
    )
    known = _secrets(session)
    _check_blanks(known)
    try:
        s3 = session.create_client("s3", config=config, **place)
    except ValueError as error:  # botocore's error for an endpoint that is no URL
        endpoint = settings.get("AWS_ENDPOINT_URL_S3") or settings.get("AWS_ENDPOINT_URL") or "of the profile"
        raise _bad_endpoint(endpoint) from error
    return _Client(
        s3=s3,
        transfers=_Boto3Transfers(s3),
        endpoint=shown(s3.meta.endpoint_url),
        secrets=lambda: known,
        ClientError=exceptions.ClientError,
        broken_streams=(
            exceptions.ReadTimeoutError,
            exceptions.IncompleteReadError,
            exceptions.ResponseStreamingError,
        ),
    )


def _session(environ: Mapping[str, str] | None) -> tuple[Any, dict[str, str | None]]:
    """The library's session and where its client goes: by the process's environment, or by ``environ`` in
    its stead.
    """
    from botocore.session import Session

    if environ is None:
        session = Session()
        # The library reads AWS_DEFAULT_REGION only; the other kits of AWS read AWS_REGION first.
        return session, {"region_name": os.environ.get("AWS_REGION") or None}
    session = Session(
        {
            "profile": (None, None, environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE"), None),
            "config_file": (None, None, environ.get("AWS_CONFIG_FILE") or "~/.aws/config", None),
            "credentials_file": (
                None,
                None,
                environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
                None,
            ),
            "ca_bundle": ("ca_bundle", None, environ.get("AWS_CA_BUNDLE"), None),
            "region": ("region", None, None, None),
        }
    )
    session.get_component("credential_provider").get_provider("env").environ = dict(environ)
    return session, {
        "region_name": environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"),
        "endpoint_url": environ.get("AWS_ENDPOINT_URL_S3")
        or environ.get("AWS_ENDPOINT_URL")
        or session.get_scoped_config().get("endpoint_url"),
    }


def _secrets(session: Any) -> tuple[str, ...]:
    with suppress(*_foreign_errors()):
        known = session.get_credentials()
        if known:
            frozen = known.get_frozen_credentials()
            return tuple(filter(None, (frozen.secret_key, frozen.token, frozen.access_key)))
    return ()


def _foreign_errors() -> tuple[type[BaseException], ...]:
    from allaboard.storage.s3_errors import RequestFailed

    try:
        from botocore.exceptions import BotoCoreError, ClientError
        from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError, S3UploadFailedError
    except ImportError:
        return (RequestFailed,)
    own = (RetriesExceededError, S3DownloadFailedError, S3UploadFailedError)
    return (RequestFailed, BotoCoreError, ClientError, *own)


def _translate_client_error(error: BaseException) -> dict[str, Any]:
    """Answer of the server; empty if the server sent none."""
    return getattr(error, "response", None) or {}


def _code(error: BaseException) -> str:
    return str(_translate_client_error(error).get("Error", {}).get("Code", ""))


def _status(error: BaseException) -> int:
    return int(_translate_client_error(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _translated(error: BaseException, place: str, doing: str, client: _Client | None) -> StorageError:
    """The StorageError for ``error``: the place, the operation and server, the server's message,
    what to do.
    """
    error = getattr(error, "last_exception", None) or error
    kind, advice = _judged(error)
    answer = _translate_client_error(error)
    message = answer.get("Error", {}).get("Message", "") if answer else str(error)
    code = _code(error) or type(error).__name__
    retries = answer.get("ResponseMetadata", {}).get("RetryAttempts", 0)
    again = f" (tried {retries + 1} times)" if retries else ""
    known = client.secrets() if client else ()
    text = redact_text(code if message in ("", "Unknown") else f"{code}: {message}", known)
    where = f" at {client.endpoint}" if client else ""
    return kind(f"{place}: {text.rstrip('.')}{again} while {doing} it{where}; {advice}")


def _judged(error: BaseException) -> tuple[type[StorageError], str]:
    code, status = _code(error), _status(error)
    if code:
        known = _ADVICE.get(code) or _ADVICE.get(str(status))
        return known or (_BUSY if status >= 500 or status in (408, 429) else _UNKNOWN)
    for name in (kind.__name__ for kind in type(error).__mro__):
        if name in _LIBRARY:
            return _LIBRARY[name]
    return _UNKNOWN


_LOOK = "check the name and the prefix"
_UNKNOWN = (StorageError, "see what the server says about this request")
_BUSY = (StorageUnreachable, "the server has trouble; this may pass, try again")
_KEYS = (
    StorageDenied,
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile in AWS_PROFILE, for this endpoint",
)
_OVER = (StorageDenied, "these credentials have run out; renew them (AWS_SESSION_TOKEN or the profile)")
_RIGHTS = (
    StorageDenied,
    "allow these credentials s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there (without "
    "the last, a missing object looks forbidden)",
)
_REGION = (StorageError, "set AWS_REGION to the region of the bucket")
_FULL = (StorageFull, "free some space or ask for more")
_CANNOT = (StorageUnsupported, "this server does not support this request; use another server")
_NO_ANSWER = (
    StorageUnreachable,
    "no answer; check AWS_ENDPOINT_URL and the network, then try again; nothing half-written stays",
)
_BROKEN_OFF = (
    StorageUnreachable,
    "the answer broke off; this may pass, try again; nothing half-written stays",
)

# The server's error code, or the HTTP status of an answer without a body -> the error class, and the advice.
_ADVICE: dict[str, tuple[type[StorageError], str]] = {
    "NoSuchBucket": (StorageMissing, "make the bucket, or correct its name or AWS_ENDPOINT_URL"),
    "NoSuchKey": (StorageMissing, _LOOK),
    "NoSuchUpload": (StorageUnreachable, "the server has forgotten the parts that were sent; try again"),
    "404": (StorageMissing, _LOOK),
    "InvalidAccessKeyId": _KEYS,
    "XAdminUserNotFound": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "AuthorizationHeaderMalformed": _REGION,
    "401": _KEYS,
    "ExpiredToken": _OVER,
    "ExpiredTokenException": _OVER,
    "InvalidToken": _OVER,
    "TokenRefreshRequired": _OVER,
    "RequestTimeTooSkewed": (
        StorageDenied,
        "the clocks differ by more than 15 minutes; set the clock of this machine",
    ),
    "AccessDenied": _RIGHTS,
    "403": _RIGHTS,
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "301": _REGION,
    "307": _REGION,
    "PreconditionFailed": (StorageConflict, "it exists already and was left as it is"),
    "412": (StorageConflict, "it exists already and was left as it is"),
    "409": (StorageUnreachable, "another request to it is on its way; try again"),
    "InternalError": _BUSY,
    "SlowDown": _BUSY,
    "ServiceUnavailable": _BUSY,
    "QuotaExceeded": _FULL,
    "StorageFull": _FULL,
    "XMinioStorageFull": _FULL,
    "XMinioAdminBucketQuotaExceeded": _FULL,
    "507": _FULL,
    "EntityTooLarge": (StorageFull, "the server takes no object of this size; ask for a higher limit"),
    "NotImplemented": _CANNOT,
    "MethodNotAllowed": _CANNOT,
    "501": _CANNOT,
    "405": _CANNOT,
}
# Trouble on this side of the wire, by the library's class or the nearest class above it.
_LIBRARY: dict[str, tuple[type[StorageError], str]] = {
    "NoCredentialsError": (
        StorageDenied,
        "give credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in AWS_PROFILE",
    ),
    "PartialCredentialsError": _KEYS,
    "CredentialRetrievalError": _KEYS,
    "ProfileNotFound": (StorageDenied, "correct AWS_PROFILE, or add the profile to ~/.aws/config"),
    "SSOError": _OVER,
    "TokenRetrievalError": _OVER,
    "LoginError": _OVER,
    "SSLError": (StorageUnreachable, "check AWS_ENDPOINT_URL (http or https?) and AWS_CA_BUNDLE"),
    "ResponseStreamingError": _BROKEN_OFF,
    "IncompleteReadError": _BROKEN_OFF,
    "ReadTimeoutError": _NO_ANSWER,
    "ConnectionError": _NO_ANSWER,
    "HTTPClientError": _NO_ANSWER,
    "S3DownloadFailedError": (StorageUnreachable, "it was replaced while it was read; try again"),
    "S3UploadFailedError": _BROKEN_OFF,
    "RetriesExceededError": _BROKEN_OFF,
    "OSError": _BROKEN_OFF,  # of a socket: errors of files were handled before
}
_STALE = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
_NO_BATCHES = {
    "NotImplemented",
    "MethodNotAllowed",
    "MissingContentMD5",
    "InvalidRequest",
    "MalformedXML",
    "501",
    "405",
}
_UNKNOWN_CONDITION = {"NotImplemented", "501", "InvalidArgument", "InvalidRequest", "MethodNotAllowed", "405"}

"""The interface of a store, the same for disks and buckets.

A store is everything below one folder or one S3 prefix. A **key** names an object in it: parts joined by
``/``, relative, no part empty, ``.`` or ``..``. A **folder** is nothing but the shared beginning of keys:
it exists while an object is below it, is never made by hand, and a prefix always means a whole folder
(``step-1`` is not the beginning of ``step-10/manifest.json``).

Whoever reads sees a whole object or none, whatever was killed when. Names that begin with ``.allaboard-``
belong to the stores themselves (half-written files, probes): they are never listed and cannot be used as
the last part of a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from allaboard.errors import BadInput
from allaboard.text import filenames
from allaboard.text.redaction import redact_text, redact_url
from allaboard.text.untrusted import LIMITS

OWN = filenames.OWN
"""Prefix of names that stores use for themselves."""

Progress = Callable[[int], None]
"""Called with the bytes moved since the last call, from any thread. Negative when a piece is sent again;
the sum ends at the size.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: its key below the store, its size in bytes, when it was last written (epoch seconds)."""

    key: str
    size: int
    modified: float


class Store(Protocol):
    """Everything below one folder or S3 prefix. Safe to use from several threads, after a fork, and to
    pickle.

    Every method raises the `StorageError` that fits (denied, missing, full, unreachable ...), which names
    the place and what to do, and `BadInput` for a key that is not one.
    """

    @property
    def uri(self) -> str:
        """Address with which `open_store` opens this store again; no slash at the end."""
        ...

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Every object below the folder ``prefix``, however deep, sorted by key. A folder that is missing
        holds nothing.
        """
        ...

    def folders(self, prefix: str = "") -> list[str]:
        """The names of the folders right below ``prefix``, sorted."""
        ...

    def stat(self, key: str) -> Entry | None:
        """The object's entry, None when there is no such object."""
        ...

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes from ``start`` on, ``length`` at most (None: to the end); empty behind the end.
        `StorageMissing` when absent.
        """
        ...

    def write(self, key: str, data: bytes) -> None:
        """The object is ``data`` from now on, or still what it was. Durable when this returns."""
        ...

    def create(self, key: str, data: bytes) -> None:
        """Like `write`, but only one caller ever wins: `StorageConflict` when the object exists.

        `StorageUnsupported` when this store cannot make sure of that; then nothing was written.
        """
        ...

    def upload(self, path: Path, key: str, progress: Progress | None = None) -> None:
        """`write` from the file ``path``, any size, without holding it in memory."""
        ...

    def download(self, key: str, path: Path, progress: Progress | None = None) -> None:
        """Write the object to the file ``path``, which appears whole or not at all; its folder is made when
        it is missing.
        """
        ...

    def copy(self, source: str, key: str) -> None:
        """``key`` is what ``source`` is now: by a link where a disk knows links, by the server of a bucket.
        For objects that are replaced, never changed. `StorageMissing` when ``source`` is absent.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove these objects; what is absent already is fine. On a disk, folders left empty go as well."""
        ...

    def below(self, prefix: str) -> Store:
        """The store of what is below the folder ``prefix``."""
        ...

    def above(self) -> Store:
        """The store of the folder that holds this one. `BadInput` where there is none."""
        ...

    def local_path(self, key: str = "") -> Path | None:
        """Path of the object on this machine's disk; None: the store is not a disk."""
        ...


def key_trouble(key: str) -> str | None:
    """Return why ``key`` cannot name an object; None: it can."""
    parts = key.split("/")
    if not key:
        return "it is empty"
    if "\0" in key:
        return "it holds a NUL character"
    if key.startswith("/"):
        return "it starts with '/'"
    if ".." in parts or "." in parts:
        return "it holds the part '.' or '..'"
    if "" in parts:
        return "it holds an empty part ('//' or a '/' at the end)"
    if parts[-1].startswith(OWN):
        return f"names that begin with {OWN!r} are kept for unfinished files"
    return None


def checked_key(key: str) -> str:
    """``key`` itself. `BadInput` when it cannot name an object."""
    trouble = key_trouble(key)
    if trouble:
        raise BadInput(
            f"storage key {key!r}: {trouble}; write it like 'run-1/step-000000000120/manifest.json'"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """``prefix`` without a slash at its end; empty means the whole store. `BadInput` when it is not a
    folder of the store.
    """
    return checked_key(prefix[: -1 if prefix.endswith("/") else None]) if prefix else ""


def checked_range(start: int, length: int | None) -> None:
    if start < 0 or (length is not None and length < 0):
        raise ValueError(f"start {start} and length {length} must not be negative")


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def scheme_of(uri: str) -> str:
    """``s3`` for ``s3://bucket``, ``file`` for a URI of a file, empty for a plain path."""
    match = _SCHEME.match(uri)
    return match[1].lower() if match else ""


def shown(uri: str) -> str:
    """``uri``, or a text with one, without passwords and signatures."""
    return redact_text(redact_url(uri))


def join(uri: str, *parts: str) -> str:
    """``uri`` with ``parts`` below it: ``join("s3://b/models", "run-1", "step-000000000120")``.

    Empty parts are left out; a part may hold several levels. `BadInput` for a part that leads elsewhere
    ('..', a leading '/').
    """
    inner = [checked_prefix(part) for part in parts if part]
    if scheme_of(uri) == "file":  # the only scheme in which a '%' is an escape
        inner = [quote(part) for part in inner]
    if not inner:
        return uri
    start = uri if uri.endswith("/") else f"{uri}/"
    return start + "/".join(inner)


def read_small(store: Store, key: str, most: int = LIMITS.size) -> bytes:
    """The bytes of an object that is small if it is right. Of a larger one ``most`` and one more are read,
    which no reader of `allaboard.text.untrusted` takes.
    """
    return store.read(key, 0, most + 1)

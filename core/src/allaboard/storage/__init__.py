"""Storage of bytes: a folder or an S3 bucket behind one interface. A folder needs only the standard library.

store = open_store("s3://bucket/models")  # or a path, or file:///data/models
store.write("run-1/note.txt", b"all aboard")
[entry.key for entry in store.entries("run-1")]
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from allaboard.errors import BadInput
from allaboard.job.homes import expand_home
from allaboard.storage.base import Entry, Progress, Store, join, scheme_of, shown
from allaboard.storage.disk import DiskStore

__all__ = ["Entry", "Progress", "Store", "join", "open_store"]

_ALLOWED = "write s3://bucket/prefix, file:///folder or a plain path"


def open_store(uri: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> Store:
    """The store at ``uri``: ``s3://bucket/prefix``, ``file:///folder`` or a plain path (``~`` and relative
    paths become absolute now).

    Nothing is accessed before the first use. ``environ`` stands in for the process's environment when the
    place, the credentials and the region of S3 are looked up. `BadInput` when ``uri`` is none of these.
    """
    if isinstance(uri, os.PathLike):
        return DiskStore(_folder(os.fspath(uri), environ))
    if not uri.strip() or "\0" in uri:
        raise BadInput(f"store {uri!r} names no place; {_ALLOWED}")
    scheme = scheme_of(uri)
    if scheme == "s3":
        return _bucket(uri, environ)
    if scheme == "file":
        return DiskStore(_folder(_path_of(uri), environ))
    if scheme or re.match(r"(s3|gs|file|https?):", uri, re.IGNORECASE):
        raise BadInput(
            f"store {shown(uri)!r}: {scheme or uri.split(':')[0]!r} is not a kind of store; {_ALLOWED}"
        )
    return DiskStore(_folder(uri, environ))


def _bucket(uri: str, environ: Mapping[str, str] | None) -> Store:
    from allaboard.storage.s3 import S3Store

    return S3Store.at(uri, environ)


def _path_of(uri: str) -> str:
    rest = uri.split(":", 1)[1]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise BadInput(f"store {uri!r}: the folder must be absolute; write file:///{host}{slash}{path}")
        rest = f"/{path}"
    if "?" in rest or "#" in rest:
        raise BadInput(
            f"store {uri!r}: '?' and '#' have a meaning in a file URI; write %3F and %23 for the characters"
        )
    return unquote(rest)


def _folder(path: str, environ: Mapping[str, str] | None) -> Path:
    home = (environ or {}).get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    # Not resolve(): the name that people gave stays, links in it included.
    return Path(os.path.abspath(expand_home(path)))  # noqa: PTH100

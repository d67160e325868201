"""Content of `index.json`: the shards of one prepared data set. Values in, values out; nothing is read here.

    {"version": 1, "samples": 1797, "shards": [{"name": "shard-000000-0b1c2d3e4f50.tar", "size": 2979840,
     "samples": 1797, "sha256": "0b1c..."}], "created": "2026-11-21T12:00:00.250Z",
     "fingerprint": "files:v1:9a8b..."}

A data set without a valid index does not exist: the index is written last, in one piece. Names of shards hold
the start of their own checksum, so the same name never has other bytes.

A place holds **versions** of a data set, each whole by itself in a folder of its own, and an index of the
newest one, which says ``"folder": "version-9a8b7c6d5e4f3210"`` and names its shards below that folder. A data
set without such a folder lies in the place itself, as earlier releases prepared it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from allaboard.errors import Corrupt
from allaboard.storage.base import join
from allaboard.text.filenames import RelativeName, Sha256, relative_name, sha256
from allaboard.text.untrusted import RECORDS, Unreadable, parse_json

INDEX = "index.json"
VERSION = 1
VERSION_NAME = re.compile(r"version-[0-9a-f]{16}")
"""The folder of a version. It follows from the fingerprint of files, and is drawn for an iterable."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One tar file: its name below the data set's uri, bytes, samples and checksum (lower-case hex)."""

    name: RelativeName
    size: int
    samples: int
    sha256: Sha256

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Shard:
        """Raises KeyError, TypeError or ValueError when a field is missing or makes no sense.

        Name and checksum become paths in the reader's folders; here is where they are checked.
        """
        return cls(
            relative_name(fields["name"]),
            _count(fields["size"], "size"),
            _count(fields["samples"], "number of samples"),
            sha256(fields["sha256"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """The shard as the index has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Index:
    """A prepared data set.

    ``fingerprint`` identifies the source (`prepare` compares it); ``created`` is RFC 3339 UTC; ``folder``:
    of the version, below which all shards are named; empty where the index stands in that folder itself.
    """

    shards: tuple[Shard, ...]
    fingerprint: str
    created: str
    folder: str = ""

    @property
    def samples(self) -> int:
        """The number of samples in all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.shards)

    @property
    def content(self) -> str:
        """Identifies the samples and their order, however they were made; a reader's position needs this."""
        return content_of(self.shards)

    def urls(self, uri: str) -> list[str]:
        """Addresses of all shards, in order, as ``webdataset.WebDataset`` takes them."""
        return [f"{uri.rstrip('/')}/{shard.name}" for shard in self.shards]

    def version_uri(self, uri: str) -> str:
        """Address of this version, whatever is prepared later; ``uri``: that of the index."""
        return join(uri, self.folder)

    def within(self, folder: str) -> Index:
        """The index of the version in ``folder``, as it stands in the place."""
        return replace(self, folder=folder, shards=_renamed(self.shards, lambda name: f"{folder}/{name}"))

    @property
    def own(self) -> Index:
        """The index as it stands in the folder of its version."""
        start = len(self.folder) + 1 if self.folder else 0
        return replace(self, folder="", shards=_renamed(self.shards, lambda name: name[start:]))

    def to_dict(self) -> dict[str, Any]:
        """The index as plain JSON."""
        return {
            "version": VERSION,
            "samples": self.samples,
            "shards": [shard.to_dict() for shard in self.shards],
            "created": self.created,
            "fingerprint": self.fingerprint,
            **({"folder": self.folder} if self.folder else {}),
        }

    def to_bytes(self) -> bytes:
        """The bytes of ``index.json``."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Index:
        """The index in these bytes; ``where`` names the file in errors.

        Unknown fields are ignored, and a newer version is read if it has the required fields. Raises
        `Corrupt` otherwise.
        """
        try:
            body = parse_json(data, RECORDS, spelling=False)
            version = _count(body["version"], "version")
        except Unreadable as error:
            raise Corrupt(
                f"{where} is not an index of shards: it {error}; prepare the data set again"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{where} is not an index of shards ({error}); prepare the data set again"
            ) from error
        try:
            shards = tuple(Shard.from_dict(fields) for fields in _listed(body["shards"]))
            folder = _folder(body.get("folder"), shards)
            index = cls(shards, str(body["fingerprint"]), str(body["created"]), folder)
            if index.samples != body["samples"]:
                raise ValueError(f"its shards hold {index.samples} samples, its head says {body['samples']}")
        except (ValueError, KeyError, TypeError) as error:
            if version > VERSION:
                raise Corrupt(
                    f"{where} has version {version}, newer than {VERSION}; upgrade allaboard"
                ) from error
            raise Corrupt(f"{where} is damaged ({error}); prepare the data set again") from error
        return index


def place_of(uri: str) -> str:
    """The place of a data set, given its uri or that of one of its versions."""
    place, slash, name = uri.rstrip("/").rpartition("/")
    return place if slash and VERSION_NAME.fullmatch(name) else uri


def _renamed(shards: tuple[Shard, ...], rename: Callable[[str], str]) -> tuple[Shard, ...]:
    return tuple(replace(shard, name=relative_name(rename(shard.name))) for shard in shards)


def _folder(value: Any, shards: tuple[Shard, ...]) -> str:
    """The folder of the version; empty unless all shards are named below it."""
    if not isinstance(value, str) or not VERSION_NAME.fullmatch(value):
        return ""
    return value if all(shard.name.startswith(f"{value}/") for shard in shards) else ""


def _count(value: Any, kind: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**63:
        raise ValueError(f"{value!r} is no {kind}")
    return value


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("its shards are not a list")
    return value


def content_of(shards: tuple[Shard, ...] | list[Shard]) -> str:
    """``content:v1:<hex>``: one checksum over the shards' own."""
    digest = hashlib.sha256("".join(f"{shard.sha256} {shard.samples}\n" for shard in shards).encode())
    return f"content:v1:{digest.hexdigest()}"

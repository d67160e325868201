"""The journal of an unfinished preparation, from which the next one continues.

It lies next to the shards until the index is written:

    {"version": 1, "fingerprint": str | null, "shards": [...]}

It lists only complete and durable shards. An unreadable journal is ignored: work is repeated, nothing else is
lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from allaboard.errors import StorageMissing
from allaboard.shards.index import Shard
from allaboard.storage.base import Store, read_small
from allaboard.text.filenames import relative_name
from allaboard.text.untrusted import RECORDS, parse_json

JOURNAL = "journal.json"
VERSION = 1
# The journal is saved when the shards that it does not know yet are worth eight times its own size, so that
# writing it over and over costs little, however many shards there are.
_WORTH = 8
_ENTRY = 150  # bytes for each shard, about


@dataclass(slots=True)
class Journal:
    """``fingerprint`` of the files that the shards are made of; None when they come from an iterable."""

    store: Store
    fingerprint: str | None = None
    shards: list[Shard] = field(default_factory=list)
    _unsaved: int = 0

    @classmethod
    def read(cls, store: Store) -> Journal | None:
        try:
            body = parse_json(read_small(store, JOURNAL, RECORDS.size), RECORDS, spelling=False)
            if body["version"] != VERSION:
                return cls(store)
            shards = [Shard.from_dict(fields) for fields in body["shards"]]
            fingerprint = body["fingerprint"]
            return cls(store, fingerprint if isinstance(fingerprint, str) else None, shards)
        except StorageMissing:
            return None
        except (ValueError, KeyError, TypeError):
            return cls(store)

    def within(self, folder: str) -> list[Shard]:
        """The shards as they are named above the folder of their version."""
        start = f"{folder}/" if folder else ""
        return [replace(shard, name=relative_name(f"{start}{shard.name}")) for shard in self.shards]

    def add(self, shard: Shard, written: bool) -> None:
        """``shard`` is complete. A lost entry costs its work alone, so many small shards share one save."""
        self.shards.append(shard)
        if written:
            self._unsaved += shard.size
        if self._unsaved >= _WORTH * _ENTRY * len(self.shards):
            self.save()

    def save(self) -> None:
        """Write down what is new, if anything."""
        if self._unsaved:
            self.store.write(JOURNAL, self._bytes())
            self._unsaved = 0

    def _bytes(self) -> bytes:
        body = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "shards": [shard.to_dict() for shard in self.shards],
        }
        return json.dumps(body, ensure_ascii=False).encode()

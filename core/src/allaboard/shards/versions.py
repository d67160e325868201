"""The versions of a data set below one place: who uses which, and which of them may go.

    <place>/index.json                           the newest; its shards are named <version>/shard-...
    <place>/version-9a8b7c6d5e4f3210/index.json  a version, whole by itself
    <place>/version-9a8b7c6d5e4f3210/holds/<who>.json  somebody used it when this was written

What reads a version never sees another: a preparation writes to the folder of its own version alone, and the
index of the place is the switch for those who come later.

**What nobody uses goes.** Every preparation removes the versions, finished or not, to which nothing was
written for `KEEP`, holds included; the newest always stays. A launch holds the version that it trains on, a
reader renews its hold every hour, and the newest version is held once more when another one takes its place.
Ages are measured by the clock of the store. Who may not write holds nothing, and has that time from the
moment at which the version was replaced.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from allaboard.errors import BadInput, StorageError, StorageMissing
from allaboard.shards.index import INDEX, VERSION_NAME, Index
from allaboard.shards.journal import JOURNAL
from allaboard.shards.write import SHARD_NAME
from allaboard.storage.base import Entry, Store, read_small
from allaboard.text.units import seconds
from allaboard.text.untrusted import RECORDS

HOLDS = "holds"
KEEP = "7d"
RENEW_SECONDS = 3600.0
_VERSION = 1
_IN_PLACE = ""
"""The data set that an earlier release prepared in the place itself."""


def keep_seconds(environ: Mapping[str, str]) -> float:
    """Seconds for which an unused version is kept: ``ALLABOARD_KEEP_SHARDS``, default 7 days. Raises
    BadInput.
    """
    text = environ.get("ALLABOARD_KEEP_SHARDS") or KEEP
    try:
        return seconds(text)
    except ValueError as error:
        raise BadInput(f"ALLABOARD_KEEP_SHARDS: {error}") from None


class Hold:
    """Tells that ``who`` uses the version in this store. Does nothing where this process may not write."""

    def __init__(self, store: Store, who: str = "") -> None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", who or f"on-{socket.gethostname()}").strip(".-")
        self._store, self.key = store, f"{HOLDS}/{name[:100] or 'somebody'}.json"
        self._renewed: float | None = None

    @property
    def is_due(self) -> bool:
        return self._renewed is None or time.monotonic() - self._renewed >= RENEW_SECONDS

    def renew(self) -> None:
        """Write it, unless it was written within the last hour."""
        if not self.is_due:
            return
        self._renewed = time.monotonic()
        with suppress(StorageError):
            there = self._store.stat(self.key)
            if there is None or time.time() - there.modified >= RENEW_SECONDS:
                self.write()

    def write(self) -> float:
        """Write it now. Returns the time by the clock of the store. Raises StorageError."""
        self._store.write(self.key, json.dumps({"version": _VERSION}).encode() + b"\n")
        there = self._store.stat(self.key)
        return there.modified if there is not None else time.time()


def versions(place: Store) -> dict[str, list[Entry]]:
    """Every version below the place, finished or not, with its files."""
    entries: dict[str, list[Entry]] = {}
    for entry in place.entries():
        folder, slash, _ = entry.key.partition("/")
        if slash and VERSION_NAME.fullmatch(folder):
            entries.setdefault(folder, []).append(entry)
        elif folder == HOLDS if slash else SHARD_NAME.fullmatch(folder) or folder == JOURNAL:
            entries.setdefault(_IN_PLACE, []).append(entry)
    return entries


def remove_unused(
    place: Store, keep: Collection[str], unused_for: float, clock: Callable[[], float]
) -> list[str]:
    """Remove the versions that are not among ``keep`` and to which nothing was written for so many seconds;
    their names. ``clock``: the time by the clock of the store, asked when there is another version.
    """
    others = {folder: files for folder, files in versions(place).items() if folder not in keep}
    now = clock() if others else 0.0
    return [
        folder
        for folder, files in others.items()
        if now - _last_use(files) >= unused_for and _remove(place, folder, files)
    ]


def _last_use(files: Iterable[Entry]) -> float:
    return max(entry.modified for entry in files)


def _remove(place: Store, folder: str, files: Collection[Entry]) -> bool:
    """Take a version away, its index first. False when somebody began to use it meanwhile."""
    if folder == _IN_PLACE:
        place.delete(entry.key for entry in files)
        return True
    index = f"{folder}/{INDEX}"
    body = b""
    with suppress(StorageMissing):
        body = read_small(place, index, RECORDS.size)
        place.delete([index])
    # Who begins to use it holds it first and reads the index then: either we see the hold, or they find no
    # index.
    if _last_use([*place.entries(f"{folder}/{HOLDS}"), *files]) > _last_use(files):
        if body:
            place.write(index, body)
        return False
    place.delete(entry.key for entry in files)
    return True


def pinned(store: Store, index: Index) -> tuple[Store, Index]:
    """The store of the version that this index is of, and the index as it stands there."""
    return (store.below(index.folder), index.own) if index.folder else (store, index)

"""Choice of the version of its data set that an attempt trains on.

A job names one version, or a place whose newest version may be another tomorrow. A launch chooses the version
when a generation begins and the record keeps it: a retry trains on the version that the generation began
with, even if the place has a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from allaboard.errors import AllaboardError
from allaboard.follow.run_record import Data
from allaboard.shards.index import VERSION_NAME, place_of


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of a version. ``data``: None where the job names no data set, or nothing is known about it;
    ``note``: a sentence for people where the place holds a newer version by now.
    """

    data: Data | None = None
    note: str = ""


def choose_data(
    uri: str, named: Data | None, begun: Data | None, run: str, environ: Mapping[str, str]
) -> Choice:
    """Data that a launch trains on. ``uri``: the place or the version that its job names; ``named``: the
    result of `read_data` there; ``begun``: the data that the run began with (`run_record.begun_with`).
    """
    if begun is None or begun == named or uri not in (begun.uri, place_of(begun.uri)):
        return Choice(named)
    if named is None:
        return Choice(begun)
    if begun.uri == uri:
        return Choice(named)
    kept = read_data(begun.uri, run, environ)
    if kept is None or kept.content != begun.content:
        return Choice(named)  # it was removed
    return Choice(
        kept,
        f"{uri} has a newer version ({named.short}); {run} continues with the version that it began with "
        f"({kept.short}): to train on the newer version, name it in data.shards",
    )


def read_data(uri: str, run: str, environ: Mapping[str, str]) -> Data | None:
    """The version at this uri, or the newest in this place, which is held for the run. None where nothing can
    be read.
    """
    from allaboard.shards.verify import load_index
    from allaboard.shards.versions import Hold, pinned
    from allaboard.storage import open_store

    is_version = VERSION_NAME.fullmatch(uri.rstrip("/").rpartition("/")[2]) is not None
    with suppress(AllaboardError):
        store = open_store(uri, environ=environ)
        index = load_index(store)
        version, own = pinned(store, index)
        Hold(version, run).renew()
        if is_version:
            own = load_index(version)  # it was held after it was read, and may have been removed in between
        return Data(index.version_uri(uri), own.content, is_version or bool(index.folder))
    return Data(uri, None, True) if is_version else None

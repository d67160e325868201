"""Changes in the places where a run saves, seen by names and times alone: a look that costs next to nothing,
by a process that imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice

from allaboard.checkpoints.names import OURS, RUN_FOLDER, step_of

_LEVELS, _MOST_NAMES = 3, 2000


def times_below(*folders: str) -> list[tuple[str, int, int]]:
    """(path, time, size) of what is in these folders, some levels deep; without what we write ourselves.
    Equal lists: no checkpoint was written in between. Raises nothing.
    """
    return [*islice(chain.from_iterable(_times(folder, _LEVELS) for folder in folders), _MOST_NAMES)]


def _times(folder: str, levels: int) -> Iterator[tuple[str, int, int]]:
    try:
        with os.scandir(folder) as listing:
            items = sorted(listing, key=lambda item: item.name)[:_MOST_NAMES]
    except OSError:
        return
    for item in items:
        if step_of(item.name) is not None or RUN_FOLDER.fullmatch(item.name) or item.name in OURS:
            continue
        with suppress(OSError):
            status = item.stat(follow_symlinks=False)
            yield item.path, status.st_mtime_ns, status.st_size
            if levels > 1 and item.is_dir(follow_symlinks=False):
                yield from _times(item.path, levels - 1)

"""Preparations that are killed: it forks writers, kills them, and looks at what they left.

    python killing.py points KIND FOLDER EVERY  kill -9 before the 1st, 2nd, ... change of the file system, or
                                                before each so many-th
    python killing.py chain KIND FOLDER         the same, each in the place that the one before left
    python killing.py random KIND FOLDER N      killed N times at random moments, then left alone
    python killing.py bucket KIND URI FOLDER    killed before the 1st, 3rd, ... request to the store

KIND is ``files`` or ``iterable``. Prints one JSON object. Forking keeps one trial at some milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allaboard.errors import StorageMissing
from allaboard.shards import Index, load_index, prepare, verify
from allaboard.storage import open_store
from allaboard.storage.base import Store

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
REQUESTS = {"http.client.send"}


class Source:
    """Two versions of a source of 24 samples in 6 shards; 12 samples are the same in both."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        for version in (1, 2):
            for name, data in self._samples(version):
                path = folder / f"v{version}" / f"{name}.bin"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                os.utime(path, (1_700_000_000 + version, 1_700_000_000 + version))

    def prepare(self, version: int, into: Store, told: list[str] | None = None) -> Index:
        notice = (told if told is not None else []).append
        if self._kind == "files":
            return prepare(self._folder / f"v{version}", into, samples_per_shard=4, notice=notice)
        items = ({"__key__": name, "bin": data} for name, data in self._samples(version))
        return prepare(items, into, samples_per_shard=4, notice=notice)

    def _samples(self, version: int) -> list[tuple[str, bytes]]:
        common = [(f"{number:03d}", random.Random(number).randbytes(3000)) for number in range(12)]
        rest = [
            (f"{number:03d}", random.Random(100 * version + number).randbytes(3000))
            for number in range(12, 24)
        ]
        return common + rest


def died(do: Callable[[], Any], events: set[str], count: int) -> bool:
    """Do it in a child that is killed before its ``count``-th event; whether it came to that."""
    child = os.fork()
    if child == 0:
        die_before(events, count)
        do()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a preparation ended with {code}")
    return code != 0


def die_before(events: set[str], count: int) -> None:
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if event in events or (writes and events is CHANGES):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def torn(store: Store, allowed: list[Index | None]) -> list[str]:
    """What a reader would stumble over now."""
    try:
        index: Index | None = load_index(store)
    except StorageMissing:
        index = None
    if all((index and index.own.shards) != (one and one.own.shards) for one in allowed):
        return ["the index is neither the old one nor the new one"]
    return verify(store) if index else []


def left_over(store: Store, index: Index) -> list[str]:
    """Files in the place, or in the folder of this version, that belong to neither. Versions that did not
    come to their end stay until nobody can need them.
    """
    path = store.local_path()
    if path:
        names = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    else:
        names = {entry.key for entry in store.entries()}
    others = {name for name in names if re.match(r"version-[0-9a-f]{16}/", name)}
    own = {name for name in others if name.startswith(f"{index.folder}/")}
    known = {"index.json", f"{index.folder}/index.json", *(shard.name for shard in index.shards)}
    return sorted({name for name in names - (others - own) - known if "/holds/" not in name})


class Trials:
    def __init__(self, kind: str, folder: Path) -> None:
        self.source = Source(kind, folder / "raw")
        self.wanted = {v: self.source.prepare(v, open_store(folder / f"wanted-{v}")) for v in (1, 2)}
        self.seen: dict[str, Any] = {"killed": 0, "continued": 0, "problems": []}

    def trial(self, store: Store, before: bool, events: set[str], point: int) -> bool:
        """One preparation killed at this point, over an older data set or nothing, then one left alone."""
        old = self.source.prepare(1, store) if before else None
        killed = died(lambda: self.source.prepare(2, store), events, point)
        self.seen["killed"] += killed
        self.note(point, torn(store, [old, self.wanted[2]]))
        self.finish(store, point)
        return killed

    def finish(self, store: Store, point: int) -> None:
        told: list[str] = []
        index = self.source.prepare(2, store, told)
        self.seen["continued"] += any(line.startswith(("going on", "reading the source")) for line in told)
        self.note(
            point,
            []
            if index.own.shards == self.wanted[2].own.shards
            else ["the shards differ from the undisturbed ones"],
        )
        self.note(point, [*verify(store), *(f"{name} was left over" for name in left_over(store, index))])

    def note(self, point: int, problems: list[str]) -> None:
        self.seen["problems"] += [f"point {point}: {problem}" for problem in problems]


def at_points(kind: str, folder: Path, every: int) -> dict[str, Any]:
    trials = Trials(kind, folder)
    for before in (False, True):
        point = 1
        while trials.trial(open_store(folder / f"out-{before}-{point}"), before, CHANGES, point):
            point += every * (3 if before else 1)
    return trials.seen


def in_a_chain(kind: str, folder: Path) -> dict[str, Any]:
    trials = Trials(kind, folder)
    store, point = open_store(folder / "out"), 1
    while died(lambda: trials.source.prepare(2, store), CHANGES, point):
        trials.seen["killed"] += 1
        trials.note(point, torn(store, [None, trials.wanted[2]]))
        point += 1
    trials.finish(store, point)
    return trials.seen


def at_random(kind: str, folder: Path, count: int) -> dict[str, Any]:
    trials, rng, seen = Trials(kind, folder), random.Random(5), 0
    while seen < count:
        store = open_store(folder / f"out-{seen}")
        began = time.monotonic()
        trials.source.prepare(2, open_store(folder / f"timed-{seen}"))
        took = time.monotonic() - began
        for _ in range(5):
            child = os.fork()
            if child == 0:
                trials.source.prepare(2, store)
                os._exit(0)
            time.sleep(rng.uniform(0, took))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            seen += 1
            trials.seen["killed"] += 1
            trials.note(seen, torn(store, [None, trials.wanted[2]]))
        trials.finish(store, seen)
    return trials.seen


def in_a_bucket(kind: str, uri: str, folder: Path) -> dict[str, Any]:
    trials = Trials(kind, folder)
    for before in (False, True):
        point = 1
        while trials.trial(open_store(f"{uri}/{before}/{point}"), before, REQUESTS, point):
            point += 5 if before else 3
    unfinished = list((Path(os.environ["TMPDIR"]) / f"allaboard-{os.getuid()}" / "unfinished").iterdir())
    trials.note(0, [f"{path} was left over" for path in unfinished])
    return trials.seen


if __name__ == "__main__":
    way, kind, folder, *rest = sys.argv[1:]
    if way == "points":
        print(json.dumps(at_points(kind, Path(folder), int(rest[0]))))
    elif way == "chain":
        print(json.dumps(in_a_chain(kind, Path(folder))))
    elif way == "random":
        print(json.dumps(at_random(kind, Path(folder), int(rest[0]))))
    else:
        print(json.dumps(in_a_bucket(kind, folder, Path(rest[0]))))

"""Saves that are killed: as a process of its own, it forks writers, kills them, and looks at what they left.

    python crashing.py random URI TRIALS SEED SPAN     kill -9 within SPAN seconds of a loop of saves
    python crashing.py points FOLDER                   die before the 1st, 2nd, ... change of the file system

Prints one JSON object. Forking keeps one trial at some milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from allaboard.checkpoints import Manifest, latest, prune, save, scan, verify
from allaboard.checkpoints.saving import STAGING
from allaboard.storage import open_store
from allaboard.storage.base import Store

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}


def one_save(store: Store, step: int, rng: random.Random) -> None:
    parts = {name: rng.randbytes(rng.randrange(1, 1 << 16)) for name in ("model.bin", "optimizer.bin")}
    save(store, Manifest(step=step), parts)
    prune(store, 2, None, time.time(), parts_after=0.0)


def keep_saving(uri: str, first: int, seed: int, told: int) -> None:
    store, rng, step = open_store(uri), random.Random(seed), first
    while True:
        for _ in range(2):  # every step twice: a rerun after a resume saves a step that is there
            one_save(store, step, rng)
            os.write(told, step.to_bytes(8, "big"))
        step += 1


def at_random(uri: str, trials: int, seed: int, span: float) -> dict[str, Any]:
    store, rng = open_store(uri), random.Random(seed)
    seen: dict[str, Any] = {"trials": 0, "acknowledged": 0, "killed_inside_a_save": 0, "problems": []}
    for trial in range(trials):
        before = latest(store)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                keep_saving(uri, before.step + 1 if before else 1, seed + trial, writing)
            finally:
                os._exit(1)
        os.close(writing)
        saved = os.read(reading, 8)  # at least one save is done; from here on any moment is fair
        time.sleep(rng.uniform(0, span))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(reading, 1 << 16):
            saved += more
        os.close(reading)
        told = [int.from_bytes(saved[i : i + 8], "big") for i in range(0, len(saved), 8)]
        seen["trials"] += 1
        seen["acknowledged"] += len(told)
        seen["killed_inside_a_save"] += (Path(uri) / STAGING).exists()
        seen["problems"] += looked_at(store, max(told))
    return {**seen, "left": tidy(store)}


def looked_at(store: Store, acknowledged: int) -> list[str]:
    """What is wrong: the newest must be whole, and not older than the last save that was said to be done."""
    found = latest(store)
    if found is None:
        return ["no checkpoint is left"]
    problems = [problem for item in scan(store) for problem in verify_any(store, item.step)]
    if found.step < acknowledged:
        problems.append(f"step {acknowledged} was saved, the newest is {found.step}")
    return problems


def verify_any(store: Store, step: int) -> list[str]:
    return [f"step {step}: {problem}" for problem in verify(store, step)]


def tidy(store: Store) -> list[str]:
    """What is left after one more save that nobody kills: files that no checkpoint needs."""
    found = latest(store)
    one_save(store, found.step + 1 if found else 1, random.Random(0))
    prune(store, 1, None, time.time() + 100_000, parts_after=0.0)
    newest = latest(store)
    assert newest is not None
    needed = {"manifest.json", *(part.name for part in newest.manifest.parts)}
    return [entry.key for entry in store.entries() if entry.key.rpartition("/")[2] not in needed]


def scenario(store: Store) -> None:
    rng = random.Random(7)
    one_save(store, 20, rng)
    one_save(store, 30, rng)
    prune(store, 1, None, time.time(), parts_after=0.0)


def at_every_point(base: str) -> dict[str, Any]:
    points, problems, left = 0, [], []
    while True:
        uri = f"{base}/{points}"
        store = open_store(uri)
        save(store, Manifest(step=10), {"model.bin": b"ten"})
        save(store, Manifest(step=20), {"model.bin": b"twenty"})
        child = os.fork()
        if child == 0:
            die_before_change(points + 1)
            scenario(store)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        problems += [f"point {points}: {problem}" for problem in looked_at(store, 20)]
        left += [f"point {points}: {key}" for key in tidy(store)]
        shutil.rmtree(uri)
        if os.waitstatus_to_exitcode(status) != 9:
            return {
                "points": points,
                "exit": os.waitstatus_to_exitcode(status),
                "problems": problems,
                "left": left,
            }
        points += 1


def die_before_change(count: int) -> None:
    """End this process just before its ``count``-th change of the file system."""
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if event in CHANGES or writes:
            seen += 1
            if seen == count:
                os._exit(9)

    sys.addaudithook(hook)


if __name__ == "__main__":
    if sys.argv[1] == "random":
        print(json.dumps(at_random(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))))
    else:
        print(json.dumps(at_every_point(sys.argv[2])))

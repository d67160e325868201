"""Injects hangs at random places into real gangs over gloo, and measures how soon and how well they are told.

    python -m tests.core.backends.local.hangs [HOW_MANY] [SEED] [MINUTES]

Prints a line per hang and a table; exits with 1 where less than 95 % were found within 15 s of their limit,
or less than 90 % with the right rank, collective and line.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.runs.observation import Event, Owner
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended

AFTER = 4.0
"""Seconds without progress after which a run here counts as hung."""
SOON, PATIENCE = 15.0, 120.0
SCRIPT = """
import fcntl
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

KIND, WHO, AT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, index):
        if self.hangs and index >= AT:
            time.sleep(3600)  # loader loader_worker
        return torch.ones(4)


def sleeps():
    time.sleep(3600)  # sleep_before sleep_after first


def locks():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # lock


def locks_file():
    files = [open(f"lock-{WHO}", "w") for _ in range(2)]
    fcntl.flock(files[0], fcntl.LOCK_EX)
    fcntl.flock(files[1], fcntl.LOCK_EX)  # file_lock


def polls_lock():
    while True:
        time.sleep(0.05)  # polled_lock


def loops():
    n = 1
    while n:  # loop
        n = (3 * n + 1) % 1000003 + 1  # loop


def receives():
    dist.recv(torch.ones(1), src=(WHO + 1) % dist.get_world_size())  # receive


PLACES = {
    "first": sleeps,
    "sleep_before": sleeps,
    "sleep_after": sleeps,
    "lock": locks,
    "file_lock": locks_file,
    "polled_lock": polls_lock,
    "loop": loops,
    "receive": receives,
}


def hang():
    PLACES[KIND]()


dist.init_process_group("gloo")
rank = dist.get_rank()
mine = rank == WHO
samples = Samples()
samples.hangs = mine and KIND.startswith("loader")
workers = 1 if KIND == "loader_worker" else 0
batches = iter(torch.utils.data.DataLoader(samples, batch_size=1, num_workers=workers))
for step in range(100000):
    batch = next(batches)
    if mine and step == AT:
        if KIND == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif KIND == "mismatch":
            dist.all_gather([torch.ones(4) for _ in range(dist.get_world_size())], batch[0])  # mismatch
        elif KIND != "sleep_after" and not KIND.startswith("loader"):
            hang()
    dist.all_reduce(batch)
    if mine and step == AT and KIND == "sleep_after":
        hang()
    print("step", step, flush=True)
    time.sleep(0.02)
"""
KINDS = (
    "sleep_before", "sleep_after", "lock", "loader", "loader_worker", "loop", "receive", "mismatch", "stop",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hang:
    """One hang to inject: rank ``who`` of ``ranks`` hangs at step ``at``."""

    kind: str
    ranks: int
    who: int
    at: int


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of it. ``late``: seconds after its limit, None: never; ``right``: rank and line."""

    hang: Hang
    late: float | None
    right: bool
    text: str


def some_hangs(how_many: int, seed: int) -> Iterator[Hang]:
    """Hangs of all kinds in turn, at random ranks and steps."""
    chance = random.Random(seed)
    for n in range(how_many):
        ranks = chance.choice((2, 3, 4))
        yield Hang(KINDS[n % len(KINDS)], ranks, chance.randrange(ranks), chance.randrange(1, 60))


def lines_of(kind: str) -> list[int]:
    """The lines of the script where this kind of hang stands."""
    return [n for n, line in enumerate(SCRIPT.splitlines(), 1) if kind in line.partition("  # ")[2].split()]


def is_right(hang: Hang, text: str, code: str) -> bool:
    """Whether the sentence names the rank, the number of the collective and the line."""
    who, places = f"rank {hang.who} ", [f":{line} `" for line in lines_of(hang.kind)]
    if hang.kind == "stop":
        return f"{who}has not entered all_reduce number {hang.at + 1}: it is stopped" in text
    if hang.kind in ("mismatch", "receive"):
        return code == "collective_mismatch" and any(
            part.startswith(who) and any(place in part for place in places)
            for part in text.replace("places: ", "; ").split("; ")
        )
    number = hang.at + (2 if hang.kind == "sleep_after" else 1)  # the script has one collective in each step
    told = f"{who}has not entered all_reduce number {number}: "
    return code == "rank_stalled" and told in text and any(p in text for p in places)


def told_of(backend: LocalBackend, folder: Path, hang: Hang) -> Told:
    """Run one gang until its hang is told."""
    name = f"{hang.kind}-{hang.ranks}-{hang.who}-{hang.at}-{time.monotonic_ns()}"
    plan = a_plan(
        folder,
        SCRIPT,
        key=name,
        workers=hang.ranks,
        args=[hang.kind, str(hang.who), str(hang.at)],
        policy={"hang": {"after": f"{AFTER:g}s"}},
        environment={"OMP_NUM_THREADS": "1"},
    )
    owner = Owner("test")
    handle = backend.launch(plan, owner)
    try:
        return _watched(backend, handle, hang)
    finally:
        backend.stop(handle, owner, "test", "it was told", kill=True)
        ended(backend, handle.run)


def _watched(backend: LocalBackend, handle: Handle, hang: Hang) -> Told:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not state_of(seen := backend.observe(handle.run)).is_final:
        if (stall := seen.stall) is not None:
            at = _said_at(backend.events(handle.run), stall.code)
            return Told(hang, at - stall.since - AFTER, is_right(hang, stall.text, stall.code), stall.text)
        time.sleep(0.1)
    return Told(hang, None, False, f"nothing was told; the run is {state_of(backend.observe(handle.run))}")


def _said_at(events: Sequence[Event], code: str) -> float:
    return next(event.time or 0.0 for event in events if event.reason == code)


def all_told(backend: LocalBackend, folder: Path, hangs: Sequence[Hang], until: float) -> Iterator[Told]:
    """What is told of each, two gangs at a time; those that would begin after ``until`` are left out."""

    def one(hang: Hang) -> Told | None:
        if time.monotonic() > until:
            return None
        own = folder / f"gang-{threading.get_ident()}"
        own.mkdir(exist_ok=True)
        return told_of(backend, own, hang)

    with ThreadPoolExecutor(2) as pool:
        yield from (told for told in pool.map(one, hangs) if told is not None)


def table(told: Sequence[Told]) -> list[str]:
    """What was found, by kind."""
    rows = [f"{'hang':<14} {'in all':>6} {'in 15 s':>8} {'right':>6}   late: median, worst"]
    for kind in (*KINDS, "all"):
        mine = [one for one in told if kind in (one.hang.kind, "all")]
        late = sorted(one.late for one in mine if one.late is not None)
        soon = sum(seconds <= SOON for seconds in late)
        right = sum(one.right for one in mine)
        times = f"{late[len(late) // 2]:.1f} s, {late[-1]:.1f} s" if late else "-"
        rows.append(f"{kind:<14} {len(mine):>6} {soon:>8} {right:>6}   {times}")
    return rows


def good_enough(told: Sequence[Told]) -> bool:
    soon = sum(one.late is not None and one.late <= SOON for one in told)
    right = sum(one.right for one in told)
    return bool(told) and soon >= 0.95 * len(told) and right >= 0.9 * len(told)


def main() -> int:
    numbers = [int(word) for word in sys.argv[1:]]
    how_many, seed, minutes = (*numbers, *(100, 1, 15)[len(numbers) :])
    told = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = {"ALLABOARD_HOME": str(folder / "home"), "ALLABOARD_POOL": str(folder / "pool")}
        backend = LocalBackend({**os.environ, **places})
        for one in all_told(backend, folder, [*some_hangs(how_many, seed)], time.monotonic() + 60 * minutes):
            told.append(one)
            late = "never" if one.late is None else f"{one.late:.1f} s"
            print(f"{'right' if one.right else 'WRONG'}  {late:>7}  {one.hang}  {one.text}", flush=True)
    print("\n".join(table(told)))
    print("kinds that were told wrong:", dict(Counter(one.hang.kind for one in told if not one.right)))
    return 0 if good_enough(told) else 1


if __name__ == "__main__":
    sys.exit(main())

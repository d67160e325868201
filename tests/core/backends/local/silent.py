"""Gangs over gloo that never print a line: hung at random places, and healthy for longer than their limit.

    python -m tests.core.backends.local.silent [HOW_MANY] [SEED] [MINUTES] [AFTER] [AT_ONCE]

As many healthy ones are run as hung ones. Prints a line per gang and the figures; exits with 1 where
less than 95 % of the hangs were found within 15 s of their limit, less than 90 % with the right rank and
line, or where a healthy gang was called hung. An endless loop is not among them: it looks like a compilation.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from allaboard.backends.local.backend import LocalBackend
from allaboard.runs.observation import Owner
from allaboard.runs.status import state_of
from tests.core.backends.local.hangs import SCRIPT as SPOKEN
from tests.core.backends.local.hangs import SOON, Hang, is_right
from tests.core.backends.local.helpers import a_plan, ended

AFTER = 20.0
"""Seconds without progress after which a run here may count as hung."""
LASTS = 2.0
"""A healthy gang is silent for so many times its limit."""
KINDS = (
    "first",
    "sleep_before",
    "sleep_after",
    "lock",
    "file_lock",
    "polled_lock",
    "loader",
    "loader_worker",
    "receive",
    "mismatch",
    "stop",
    "rendezvous",
)
HEALTHY = (
    "compiles",
    "compiles_elsewhere",
    "loads",
    "evaluates",
    "evaluates_in_thread",
    "prepares",
    "downloads",
    "downloads_in_threads",
    "trains",
    "slow_rank",
)
SCRIPT = SPOKEN.replace('    print("step", step, flush=True)\n', "").replace(
    'dist.init_process_group("gloo")\n',
    'KIND == "rendezvous" and os.environ["RANK"] == str(WHO) and time.sleep(3600)'
    ' or dist.init_process_group("gloo")  # rendezvous\n',
    1,
)
GOOD = """
import multiprocessing, os, socket, subprocess, sys, threading, time
import torch, torch.distributed as dist

KIND, SECONDS, AT = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
end = time.monotonic() + SECONDS


def computes():
    n = 1
    while time.monotonic() < end:
        n = (3 * n + 1) % 1000003 + 1


def sends(to):
    while time.monotonic() < end:
        to.sendall(b"x" * 1000)
        time.sleep(0.002)
    to.close()


def downloads():
    here, there = socket.socketpair()
    threading.Thread(target=sends, args=(there,), daemon=True).start()
    while here.recv(1000):
        pass


def compiles_elsewhere():
    subprocess.run(["sh", "-c", f"timeout {SECONDS} sh -c 'while :; do :; done' | cat"])


def in_threads(does, count):
    threads = [threading.Thread(target=does) for _ in range(count)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def prepares():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(computes)


ALONE = {
    "compiles_elsewhere": compiles_elsewhere,
    "evaluates": computes,
    "evaluates_in_thread": lambda: in_threads(computes, 1),
    "prepares": prepares,
    "downloads": downloads,
    "downloads_in_threads": lambda: in_threads(downloads, 3),
}
if KIND == "compiles":
    computes()
elif KIND == "loads":
    time.sleep(SECONDS)
elif KIND in ALONE and rank == AT:
    ALONE[KIND]()
while KIND in ("trains", "slow_rank"):
    if KIND == "slow_rank" and rank == 1:
        time.sleep(1)
    time.sleep(0.05)
    more = torch.tensor([float(time.monotonic() < end)])
    dist.all_reduce(more, op=dist.ReduceOp.MIN)
    if not more.item():
        break
dist.barrier()
"""


@dataclass(frozen=True, slots=True)
class Watched:
    """``late``: seconds from the limit to the moment when the hang was told, None: it was not."""

    gang: Hang
    late: float | None
    right: bool
    text: str

    @property
    def is_healthy(self) -> bool:
        return self.gang.kind in HEALTHY

    @property
    def is_good(self) -> bool:
        """A hang that was found in time, or a healthy gang that was left alone."""
        return self.late is None if self.is_healthy else self.late is not None and self.late <= SOON


def gangs(how_many: int, seed: int) -> Iterator[Hang]:
    """Hung and healthy gangs in turn."""
    chance = random.Random(seed)
    for n in range(how_many):
        ranks, kind = chance.choice((2, 3)), KINDS[n % len(KINDS)]
        yield Hang(kind, ranks, chance.randrange(ranks), 0 if kind == "first" else chance.randrange(1, 60))
        yield Hang(HEALTHY[n % len(HEALTHY)], 2, chance.randrange(2), 0)


def watch(backend: LocalBackend, folder: Path, gang: Hang, after: float) -> Watched:
    """Run one gang until its hang is told, or it has ended."""
    healthy = gang.kind in HEALTHY
    place = [str(LASTS * after), str(gang.who)] if healthy else [str(gang.who), str(gang.at)]
    plan = a_plan(
        folder,
        GOOD if healthy else SCRIPT,
        key=f"{gang.kind}-{gang.ranks}-{gang.who}-{gang.at}-{time.monotonic_ns()}",
        workers=gang.ranks,
        args=[gang.kind, *place],
        policy={"hang": {"after": f"{after:g}s"}},
        environment={"OMP_NUM_THREADS": "1"},
    )
    owner = Owner("test")
    handle = backend.launch(plan, owner)
    until = time.monotonic() + 3 * after + 60
    try:
        while time.monotonic() < until and not state_of(seen := backend.observe(handle.run)).is_final:
            if (stall := seen.stall) is not None:
                codes = ("rank_stalled", "collective_mismatch")
                at = next(e.time or 0.0 for e in backend.events(handle.run) if e.reason in codes)
                return Watched(
                    gang, at - stall.since - after, names(gang, stall.text, stall.code), stall.text
                )
            time.sleep(0.1)
        return Watched(gang, None, healthy, f"{state_of(backend.observe(handle.run))}")
    finally:
        backend.stop(handle, owner, "test", "it was watched", kill=True)
        ended(backend, handle.run)


def names(gang: Hang, text: str, code: str) -> bool:
    """Whether the sentence names the rank and its line."""
    if gang.kind != "rendezvous":
        return is_right(gang, text, code)
    line = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# rendezvous"))
    return f"rank {gang.who} has not entered" in text and f":{line} `" in text


def watch_all(
    backend: LocalBackend,
    folder: Path,
    several: Sequence[Hang],
    after: float,
    until: float,
    at_once: int = 2,
) -> Iterator[Watched]:
    """``at_once`` gangs at a time; those that would begin after ``until`` are left out."""

    def each(gang: Hang) -> Watched | None:
        if time.monotonic() > until:
            return None
        own = folder / f"gang-{threading.get_ident()}"
        own.mkdir(exist_ok=True)
        return watch(backend, own, gang, after)

    with ThreadPoolExecutor(at_once) as pool:
        yield from (watched for watched in pool.map(each, several) if watched is not None)


def figures(watched: Sequence[Watched]) -> tuple[str, bool]:
    """A sentence with what was found, and whether that is good enough."""
    hung, healthy = [w for w in watched if not w.is_healthy], [w for w in watched if w.is_healthy]
    soon, right = sum(w.is_good for w in hung), sum(w.right for w in hung)
    false = sum(not w.is_good for w in healthy)
    text = (
        f"{len(hung)} hangs: {soon} in {SOON:g} s, {right} right; {len(healthy)} healthy: {false} called hung"
    )
    return text, bool(hung) and soon >= 0.95 * len(hung) and right >= 0.9 * len(hung) and not false


def main() -> int:
    numbers = [float(word) for word in sys.argv[1:]]
    how_many, seed, minutes, after, at_once = (*numbers, *(100.0, 1.0, 100.0, AFTER, 2.0)[len(numbers) :])
    watched = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = {"ALLABOARD_HOME": str(folder / "home"), "ALLABOARD_POOL": str(folder / "pool")}
        backend = LocalBackend({**os.environ, **places})
        until = time.monotonic() + 60 * minutes
        several = [*gangs(int(how_many), int(seed))]
        for each in watch_all(backend, folder, several, after, until, int(at_once)):
            watched.append(each)
            late = "never" if each.late is None else f"{each.late:.1f} s"
            verdict = "good" if each.is_good and (each.right or each.is_healthy) else "WRONG"
            print(f"{verdict:<6}{late:>8}  {each.gang}  {each.text}", flush=True)
    text, good = figures(watched)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

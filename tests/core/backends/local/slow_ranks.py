"""Injects slow ranks at random places into real gangs over gloo, and counts how often the right one is told;
and gangs in which all is well, of which nothing may be told.

    python -m tests.core.backends.local.slow_ranks [HOW_MANY] [SEED] [PARALLEL]

Prints a line per gang and a table; exits with 1 where less than 90 % were told with the right rank, or one
was told of a gang in which all was well.
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
from allaboard.runs.observation import Owner, Slow
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended

STEP = 0.04
"""Seconds of own work in each step of a rank that is not slow."""
PATIENCE, WATCHED = 150.0, 75.0
"""Seconds after which a slow rank counts as not found, and for which a gang in which all is well is watched:
two looks at least.
"""
SCRIPT = f"""
import random
import sys
import time

import torch
import torch.distributed as dist

from allaboard.inside import report

KIND, WHO, AT, FACTOR = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
dist.init_process_group("gloo")
rank = dist.get_rank()
chance = random.Random(rank)


def works(seconds):
    time.sleep(seconds * chance.uniform(0.9, 1.1))


def computes(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def slows(step):
    if KIND == "jitter":
        return {STEP} * chance.expovariate(1.0)
    if KIND == "evaluates":
        return 1.5 if rank == 0 and step % 40 == 39 else 0.0
    if KIND == "loads":
        return 0.5 if chance.random() < 0.04 else 0.0
    if KIND == "saves":
        return 3.0 if step % 100 == 99 and rank == 0 else 0.0
    return {STEP} * (FACTOR - 1) if rank == WHO and step >= AT else 0.0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1))

    def forward(self, batch):
        works({STEP})
        if KIND == "computes" and rank == WHO and step >= AT:
            computes({STEP} * (FACTOR - 1))
        elif KIND == "shakes" and rank == WHO and step >= AT:
            time.sleep({STEP} * (FACTOR - 1) * chance.uniform(0.4, 1.6))
        else:
            time.sleep(slows(step))
        return self.layers(batch).sum()


parallel = KIND not in ("sum", "two sums")
model = Model()
if parallel:
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for step in range(1000000):
    loss = model(torch.randn(8, 32))
    optimizer.zero_grad()
    loss.backward()
    if not parallel:
        for parameter in list(model.parameters())[: 2 if KIND == "two sums" else 1]:
            dist.all_reduce(parameter.grad)
    optimizer.step()
    report(step)
"""
SLOW = ("sleeps", "computes", "shakes", "sum", "two sums")
WELL = ("steady", "jitter", "evaluates", "loads", "saves")


@dataclass(frozen=True, slots=True)
class Gang:
    """Rank ``who`` of ``ranks`` takes ``factor`` times as long from step ``at``; None: all is well."""

    kind: str
    ranks: int
    who: int | None
    at: int
    factor: float


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of it, and how many seconds after its start; None: nothing."""

    gang: Gang
    slow: Slow | None
    after: float

    @property
    def right(self) -> bool:
        return (None if self.slow is None else self.slow.rank) == self.gang.who


def some_gangs(how_many: int, seed: int) -> Iterator[Gang]:
    """Two of three with a slow rank, of all kinds in turn, at random ranks and steps."""
    chance = random.Random(seed)
    for n in range(how_many):
        ranks, well = chance.choice((2, 3, 4)), n % 3 == 2
        kind = WELL[n // 3 % len(WELL)] if well else SLOW[(n - n // 3) % len(SLOW)]
        who, at, factor = chance.randrange(ranks), chance.randrange(400), chance.uniform(1.5, 3.0)
        yield Gang(kind, ranks, None if well else who, at, factor)


def told_of(backend: LocalBackend, folder: Path, gang: Gang) -> Told:
    """Run one gang until its slow rank is told, or it was watched for long enough."""
    plan = a_plan(
        folder,
        SCRIPT,
        key=f"slow-{time.monotonic_ns()}",
        workers=gang.ranks,
        args=[gang.kind, str(-1 if gang.who is None else gang.who), str(gang.at), f"{gang.factor:.2f}"],
        environment={"OMP_NUM_THREADS": "1"},
    )
    owner = Owner("test")
    begun = time.monotonic()
    handle = backend.launch(plan, owner)
    try:
        while time.monotonic() < begun + (WATCHED if gang.who is None else PATIENCE):
            seen = backend.observe(handle.run)
            assert not state_of(seen).is_final, seen.tails
            if seen.slow is not None:
                return Told(gang, seen.slow, time.monotonic() - begun)
            time.sleep(0.2)
        return Told(gang, None, time.monotonic() - begun)
    finally:
        backend.stop(handle, owner, "test", "it was told", kill=True)
        ended(backend, handle.run)


def all_told(backend: LocalBackend, folder: Path, gangs: Sequence[Gang], parallel: int) -> Iterator[Told]:
    """What is told of each, ``parallel`` gangs at a time."""

    def one(gang: Gang) -> Told:
        own = folder / f"gang-{threading.get_ident()}"
        own.mkdir(exist_ok=True)
        return told_of(backend, own, gang)

    with ThreadPoolExecutor(parallel) as pool:
        yield from pool.map(one, gangs)


def table(told: Sequence[Told]) -> list[str]:
    """What was found, by kind."""
    rows = [
        f"{'gang':<12} {'in all':>6} {'right':>6} {'wrong rank':>10} {'factor off':>10} {'since off':>10}"
    ]
    for kind in (*SLOW, *WELL):
        mine = [one for one in told if one.gang.kind == kind]
        wrong = sum(one.slow is not None and not one.right for one in mine)
        known = [(one.slow, one.gang) for one in mine if one.slow is not None and one.right]
        factors = sorted(abs(slow.factor - gang.factor) for slow, gang in known)
        steps = sorted(abs(slow.step - gang.at) for slow, gang in known if slow.step is not None)
        off = f"{factors[len(factors) // 2]:.2f}" if factors else "-"
        since = f"{steps[len(steps) // 2]} steps" if steps else "-"
        right = sum(one.right for one in mine)
        rows.append(f"{kind:<12} {len(mine):>6} {right:>6} {wrong:>10} {off:>10} {since:>10}")
    return rows


def good_enough(told: Sequence[Told]) -> bool:
    slow = [one for one in told if one.gang.who is not None]
    well = [one for one in told if one.gang.who is None]
    return bool(told) and sum(one.right for one in slow) >= 0.9 * len(slow) and all(one.right for one in well)


def main() -> int:
    numbers = [int(word) for word in sys.argv[1:]]
    how_many, seed, parallel = (*numbers, *(100, 1, 2)[len(numbers) :])
    told = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = {"ALLABOARD_HOME": str(folder / "home"), "ALLABOARD_POOL": str(folder / "pool")}
        backend = LocalBackend({**os.environ, **places})
        for one in all_told(backend, folder, [*some_gangs(how_many, seed)], parallel):
            told.append(one)
            text = f"{one.slow.text}; {one.slow.shows}" if one.slow is not None else "nothing"
            print(f"{'right' if one.right else 'WRONG'}  {one.after:5.1f} s  {one.gang}  {text}", flush=True)
    print("\n".join(table(told)))
    return 0 if good_enough(told) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Real gangs over gloo in which all is well, however long they wait, load, compile, evaluate and save:
whatever is told of one is a false alarm.

    python -m tests.core.backends.local.healthy [MINUTES]

One gang of each kind trains for so many minutes (12: an hour of gangs), and one waits in the queue
meanwhile. Each is asked every few seconds for its state and its diagnosis. Prints a line per alarm and a
table; exits with 1 where there was any.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.diagnosis import diagnose
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended

PATIENCE = 40
"""Seconds that each may be silent, by its policy. No kind is silent for longer than `PAUSE`."""
PAUSE = 25.0
EVERY = 5.0
KINDS = ("steady", "loads", "compiles", "evaluates", "saves")
SCRIPT = f"""
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from allaboard.inside import report

KIND = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.001)


def save(step):
    file = Path(f"saved-{{os.environ['ALLABOARD_RUN']}}")
    for part in range(5):
        time.sleep({PAUSE} / 5)
        file.write_bytes(os.urandom(1 << 20))


begun = time.monotonic()
for step in range(10**9):
    if KIND == "loads" and step % 400 == 0:
        time.sleep({PAUSE} * (rank + 1) / dist.get_world_size())
    if KIND == "compiles" and step == 1:
        time.sleep({PAUSE})
    loss = model(torch.randn(8, 32)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step)
    time.sleep(0.05)
    if KIND == "evaluates" and step % 300 == 299 and rank == 0:
        time.sleep({PAUSE})
    if KIND == "saves" and step % 300 == 299 and rank == 0:
        save(step)
"""


@dataclass
class Watched:
    """A gang that is watched: in which states it was, and what was told of it that is not so."""

    kind: str
    handle: Handle
    states: Counter[str] = field(default_factory=Counter)
    alarms: list[str] = field(default_factory=list)

    def look(self, backend: LocalBackend) -> None:
        seen = backend.observe(self.handle.run)
        state, first = state_of(seen), diagnose(seen, thorough=True)[:1]
        self.states[state.value] += 1
        waits = self.kind == "queue" and all(d.code.startswith(("queue", "insufficient")) for d in first)
        told = (
            [f"state {state.value}"]
            if state.is_final or (state is State.QUEUED and self.kind != "queue")
            else []
        )
        told += [f"{seen.stall.text}"] if seen.stall is not None else []
        told += [f"{seen.slow.text}"] if seen.slow is not None else []
        told += [f"{d.code}: {d.summary}" for d in first if d.code != "healthy" and not waits]
        self.alarms += [text for text in told if text not in self.alarms]


def watch(backend: LocalBackend, folder: Path, seconds: float) -> list[Watched]:
    """Gangs of all kinds, watched for so long, and then stopped."""
    owner, watched = Owner("test", "detached", "detached"), []
    cpus = os.cpu_count() or 1
    for kind in (*KINDS, "queue"):
        own = folder / kind
        own.mkdir()
        plan = a_plan(
            own,
            SCRIPT,
            key=f"healthy-{kind}",
            name=kind,
            args=[kind],
            policy={"hang": {"after": f"{PATIENCE}s"}},
            environment={"OMP_NUM_THREADS": "1"},
            # The last one needs the whole machine, of which others have a part.
            resources={"cpu": cpus / 2 if kind == "queue" else cpus / 20},
        )
        watched.append(Watched(kind, backend.launch(plan, owner)))
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(EVERY)
            for one in watched:
                one.look(backend)
    finally:
        for one in watched:
            backend.stop(one.handle, owner, "test", "it was watched", kill=True)
        for one in watched:
            ended(backend, one.handle.run)
    return watched


def table(watched: Sequence[Watched]) -> list[str]:
    rows = [f"{'gang':<12} {'alarms':>6}   states, of so many looks"]
    for one in watched:
        states = ", ".join(f"{count} {state}" for state, count in one.states.items())
        rows.append(f"{one.kind:<12} {len(one.alarms):>6}   {states}")
    return rows


def main() -> int:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 12.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = {"ALLABOARD_HOME": str(folder / "home"), "ALLABOARD_POOL": str(folder / "pool")}
        watched = watch(LocalBackend({**os.environ, **places}), folder, 60 * minutes)
    for one in watched:
        for text in one.alarms:
            print(f"ALARM  {one.kind}: {text}")
    print("\n".join(table(watched)))
    return 1 if any(one.alarms for one in watched) else 0


if __name__ == "__main__":
    sys.exit(main())

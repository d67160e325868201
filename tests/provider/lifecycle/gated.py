"""A training that goes on until it is told to stop: what the lifecycle tests follow, kill and resume.

python gated.py GATE        GATE: a folder; ``finish`` in it ends the training well, ``fail-2`` ends its
second attempt badly

Every member notes its start in ``starts``: pid, attempt, generation, rank, and the step it resumed from.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from allaboard.inside import Checkpointer, context, report, result


def main() -> None:
    gate = Path(os.environ["GATES"]) / sys.argv[1]
    gate.mkdir(parents=True, exist_ok=True)
    here = context()
    saves = Checkpointer(every=5)
    found = saves.resume()
    step = found.step if found else 0
    note = {
        "pid": os.getpid(),
        "attempt": here.attempt,
        "generation": here.generation,
        "rank": here.rank,
        "step": step,
    }
    with (gate / "starts").open("a") as starts:
        starts.write(json.dumps(note) + "\n")
    while not (gate / "finish").exists():
        step += 1
        report(step, 1_000_000)
        saves.step(step, lambda: b"the state")
        if step % 10 == 0:
            print(f"rank {here.rank} works at step {step}", flush=True)
        if (gate / f"fail-{here.attempt}").exists():
            raise RuntimeError("this attempt was told to fail")
        time.sleep(0.05)
    result(steps=step)


if __name__ == "__main__":
    main()

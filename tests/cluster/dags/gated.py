"""A training that goes on until there is an object ``finish`` below ``GATE``. Each member notes its start
there."""

from __future__ import annotations

import json
import os
import time

from allaboard.inside import Checkpointer, context, report, result
from allaboard.storage import open_store


def main() -> None:
    gate, here = open_store(os.environ["GATE"]), context()
    saves = Checkpointer(every=5)
    found = saves.resume()
    step = found.step if found else 0
    note = {"attempt": here.attempt, "generation": here.generation, "rank": here.rank, "step": step}
    gate.write(f"start-{here.attempt}-{here.rank}", json.dumps({"pid": os.getpid(), **note}).encode())
    while gate.stat("finish") is None:
        step += 1
        report(step, 1_000_000)
        saves.step(step, lambda: b"the state")
        print(f"rank {here.rank} works at step {step}", flush=True)
        time.sleep(0.5)
    result(steps=step)


if __name__ == "__main__":
    main()

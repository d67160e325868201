"""A training that tells which data it really reads: every sample has the name of its data set in it.

python sided.py GATE        GATE: a folder; ``finish`` in it ends the training well

What was read goes into every checkpoint, as it goes into the weights of a real model: a training that resumes
has it from there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from allaboard.inside import Checkpointer, ShardReader, context, report, result


def main() -> None:
    gate = Path(os.environ["GATES"]) / sys.argv[1]
    gate.mkdir(parents=True, exist_ok=True)
    here = context()
    reader = ShardReader(batch_size=1, epochs=1_000_000)
    saves = Checkpointer(every=5)
    found = saves.resume()
    step, read = 0, set[str]()
    if found:
        saved = json.loads(found.load())
        step, read = found.step, set(saved["read"])
        reader.load_state_dict(saved["data"])
    note = {"pid": os.getpid(), "attempt": here.attempt, "generation": here.generation}
    with (gate / "starts").open("a") as starts:
        starts.write(json.dumps({**note, "rank": here.rank, "step": step}) + "\n")

    def state() -> bytes:
        return json.dumps({"read": sorted(read), "data": reader.state_dict()}).encode()

    for batch in reader:
        if (gate / "finish").exists():
            print("stopped early: the test has ended this training", flush=True)
            break
        step += 1
        read |= {sample["txt"].decode() for sample in batch}
        report(step, 1_000_000)
        saves.step(step, state, metrics={"score": 1.0})
        if (gate / f"fail-{here.attempt}").exists():
            raise RuntimeError("this attempt was told to fail")
        time.sleep(0.05)
    saves.save(step, state(), metrics={"score": 1.0})
    result(steps=step, score=1.0)


if __name__ == "__main__":
    main()

"""A training that goes on until it is told to stop, and writes down what it really does.

python journaled.py GATE [DATA]    GATE: a folder below $GATES, which all hosts share; ``finish`` in it ends
the training well, ``fail-2`` ends its second attempt badly. DATA: read a sample of the job's data in each
step; the texts that were read so far are the state in each checkpoint, as in the weights of a real model

Every member appends its lines to a file of its own in ``journal``: host, process and attempt, and, several
times a second, the step and the time. From those it is judged what trained when; no record of allaboard or
Airflow has a say.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from pathlib import Path

from allaboard.inside import Checkpointer, ShardReader, context, report, result

PACE = 0.1


def main() -> None:
    gate = Path(os.environ["GATES"]) / sys.argv[1]
    (gate / "journal").mkdir(parents=True, exist_ok=True)
    here = context()
    saves = Checkpointer(every=10)
    found = saves.resume()
    step = found.step if found else 0
    read = set(json.loads(found.load())) if found else set[str]()
    data = iter(ShardReader(batch_size=1, epochs=1_000_000)) if "DATA" in sys.argv else None
    about = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "attempt": here.attempt,
        "generation": here.generation,
        "rank": here.rank,
        "run": os.environ.get("ALLABOARD_RUN", ""),
    }
    with (gate / "journal" / f"{about['host']}-{secrets.token_hex(4)}").open("a") as journal:

        def note(what: str) -> None:
            line = {**about, "what": what, "step": step, "time": time.time(), "read": sorted(read)}
            journal.write(json.dumps(line) + "\n")
            journal.flush()

        note("start")
        while not (gate / "finish").exists():
            step += 1
            report(step, 1_000_000)
            if data is not None:
                read.update(sample["txt"].decode() for sample in next(data))
            saves.step(step, json.dumps(sorted(read)).encode)
            note("step")
            if step % 50 == 0:
                print(f"rank {here.rank} on {about['host']} works at step {step}", flush=True)
            if (gate / f"fail-{here.attempt}").exists():
                note("fail")
                raise RuntimeError("this attempt was told to fail")
            time.sleep(PACE)
        note("end")
    result(steps=step)


if __name__ == "__main__":
    main()

"""A training with curves: python curves.py "well SEED" | badly | on | "score SEED" """

from __future__ import annotations

import math
import os
import socket
import sys
import time
from pathlib import Path

from allaboard.inside import Checkpointer, context, report, result

STEPS = 240


def main() -> None:
    how, _, seed = sys.argv[1].partition(" ")
    if how == "score":
        result(accuracy=0.9 + 0.02 * int(seed), loss=0.3 / int(seed))
        return
    rank = context().rank
    if rank == 0:  # as torch's rendezvous does
        listener = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        listener.listen()
    saves = Checkpointer(every=40)
    saves.resume()
    stop = Path(os.environ["GATES"]) / "finish"
    step, better = 0, 1 / int(seed or 1)
    while how == "on" or step < STEPS:
        step += 1
        noise = 0.06 * math.sin(step * 12.9898) * math.cos(step * 78.233)
        loss = 2.3 * math.exp(-step / 70) + 0.12 * better + noise * math.exp(-step / 200)
        numbers = {
            "loss": loss,
            "lr": 1e-3 * (1 - step / STEPS) if step < STEPS else 0.0,
            "grad_norm": 3 * loss,
        }
        report(step, STEPS if how != "on" else 1_000_000, **numbers)
        saves.step(step, lambda: b"x" * 50_000, metrics={"val_loss": loss + 0.02, "accuracy": 1 - loss / 2.6})
        if step % 20 == 0:
            print(f"rank {rank}: epoch {step // 20}, loss {loss:.4f}", flush=True)
        if how == "badly" and step == 90 and rank == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if stop.exists() and how == "on":
            break
        time.sleep(0.02)
    result(loss=loss, accuracy=1 - loss / 2.6)


if __name__ == "__main__":
    main()

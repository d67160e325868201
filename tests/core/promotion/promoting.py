"""One of several promoters, as a process of its own: promotes one candidate after the other, at full speed.

    python promoting.py STORE CANDIDATE NAME FIRST COUNT STEP [better]

The i-th time its accuracy is FIRST + i * STEP; with ``better`` a gate asks for more than the champion's.
Waits for a line on stdin before it starts. Prints one JSON object: the numbers it won and how many races it
lost.
"""

from __future__ import annotations

import json
import sys
import time

from allaboard.promotion.champion import promote
from allaboard.promotion.gate import Gate
from allaboard.storage import open_store


def main(uri: str, candidate: str, name: str, first: str, count: str, step: str, *rest: str) -> None:
    store, gate = open_store(uri), Gate("accuracy", "max") if rest else None
    print("ready", flush=True)
    sys.stdin.readline()
    won, lost = [], 0
    for i in range(int(count)):
        metrics = {"accuracy": float(first) + i * float(step)}
        done = promote(store, candidate, metrics, gate, now=time.time(), by=name, run=f"{name}-{i}")
        lost += done.lost
        if done.promotion:
            won.append(done.promotion.number)
    print(json.dumps({"won": won, "lost": lost}))


if __name__ == "__main__":
    main(*sys.argv[1:])

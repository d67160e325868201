"""A training of ten steps without torch, and its evaluation: python learn.py, python learn.py judge"""

from __future__ import annotations

import sys

from allaboard.inside import Checkpointer, open_checkpoint, report, result

if sys.argv[1:] == ["judge"]:
    checkpoint = open_checkpoint()
    result(accuracy=0.9, step=checkpoint.step)
else:
    saves = Checkpointer(every=5)
    for step in range(1, 11):
        report(step, 10, loss=1 / step)
        saves.step(step, lambda step=step: str(step).encode(), metrics={"loss": 1 / step})
    result(loss=0.1)

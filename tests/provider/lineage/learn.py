"""A training of some steps that ends as accurate as it is told: python learn.py 0.9"""

from __future__ import annotations

import sys

from allaboard.inside import Checkpointer, report, result

saves = Checkpointer(every=5)
for step in range(1, 11):
    report(step, 10, loss=1 / step)
    saves.step(step, lambda step=step: f"{sys.argv[1]} {step}".encode(), metrics={"loss": 1 / step})
if float(sys.argv[1]) < 0:
    raise ValueError("it was told to be worse than nothing")
result(accuracy=float(sys.argv[1]), token="hf_" + "q7" * 17, confused=float("nan"))

"""A training of a second, without torch: it counts, reports, saves, resumes, and misbehaves on demand.

TOTAL=N      so many steps (10)
HOLD=FILE    wait at step 3 until that file is there
FAIL_AT=N    exit with 7 at that step
TALK=N       print so many lines first
DIARY=FILE   a line per start: the step it went on from
ODD=1        report a loss that is NaN
LEAK=NAME    report a NaN as the loss of what the variable NAME holds, and end with 0 after a traceback
"""

import os
import sys
import time
import traceback
from pathlib import Path

from allaboard.inside import Checkpointer, context, report, result

total, hold = int(os.environ.get("TOTAL", "10")), os.environ.get("HOLD")
fail_at, diary = int(os.environ.get("FAIL_AT", "0")), os.environ.get("DIARY")

checkpoints = Checkpointer() if os.environ.get("ALLABOARD_CHECKPOINTS") else None
found = checkpoints.resume() if checkpoints else None
done = found.step if found else 0

if context().rank == 0:
    print("rank 0 is here", flush=True)
    for n in range(int(os.environ.get("TALK", "0"))):
        print(f"line {n}")
    if os.environ.get("WORDS"):
        Path(os.environ["WORDS"]).write_text("\n".join(sys.argv[1:]))
    if diary:
        with Path(diary).open("a") as file:
            file.write(f"{done}\n")

for step in range(done + 1, total + 1):
    loss = float("nan") if os.environ.get("ODD") and step == total else 1 / step
    report(step, total, loss=loss)
    if leak := os.environ.get("LEAK"):
        report(step, total, **{"loss of " + os.environ[leak]: float("nan")})
    if checkpoints:
        checkpoints.step(step, lambda step=step: str(step).encode(), metrics={"val_loss": 1 / step})
    once = os.environ.get("ONCE")
    if step == fail_at and not (once and Path(once).exists()):
        if once:
            Path(once).touch()
        print("the data is not what it should be", file=sys.stderr, flush=True)
        sys.exit(7)
    while hold and step >= 3 and not Path(hold).exists():
        time.sleep(0.05)
        if checkpoints:
            checkpoints.step(step, lambda step=step: str(step).encode(), metrics={"val_loss": 1 / step})
result(val_loss=float("nan") if os.environ.get("ODD") else 1 / total, accuracy=0.99, words="fine")
if os.environ.get("LEAK"):
    try:
        raise RuntimeError("could not upload")
    except RuntimeError:
        traceback.print_exc()

"""An evaluation without torch: the checkpoint's own number, or what ACCURACY says."""

import os

from allaboard.inside import open_checkpoint, result

found = open_checkpoint()
step = int(found.load())
result(accuracy=float(os.environ.get("ACCURACY", "0.98")), step=step, nested={"loss": 1 / step})

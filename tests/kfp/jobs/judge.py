"""An evaluation without torch: the checkpoint's own number, or what ACCURACY says; PICTURES: JSON of more
results.
"""

import json
import os

from allaboard.inside import open_checkpoint, result

found = open_checkpoint()
step = int(found.load())
more = json.loads(os.environ.get("PICTURES", "{}"))
result(accuracy=float(os.environ.get("ACCURACY", "0.98")), step=step, nested={"loss": 1 / step}, **more)

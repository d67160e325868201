"""``python -m allaboard.checkpoints.foreign JSON``: adopts what a run has saved, as a process of its own.

JSON: ``own`` (the run's folder), ``job`` (whether the folder above belongs to it), ``since`` and ``manifest``
(fields of the manifests). Prints a JSON object: ``added``, with step, uri, metrics and bytes of each.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from allaboard.checkpoints.foreign.adopting import Places, adopt, report_fields
from allaboard.checkpoints.manifest import Manifest
from allaboard.errors import AllaboardError
from allaboard.storage import open_store


def main() -> int:
    given = json.loads(sys.argv[1])
    with suppress(OSError):
        os.nice(10)
    places = Places(open_store(given["own"]), bool(given["job"]), float(given["since"]))
    try:
        adopted = adopt(places, Manifest(step=0, **given["manifest"]))
    except AllaboardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"added": [report_fields(item) for item in adopted.added]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

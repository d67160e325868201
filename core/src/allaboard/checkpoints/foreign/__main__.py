"""``python -m allaboard.checkpoints.foreign JSON``: work on the checkpoints of a run, in a process of its own
of a low priority, which ends when its stdin does.

JSON: ``do``; ``own``, the run's folder on a disk or in a bucket; for adopt and fetch ``job``, whether the
folder above belongs to it, too, and of that what is written ``since`` (epoch seconds).

    adopt    ``manifest``, fields of the manifests    -> ``added``: step, uri, metrics and bytes of each
    copy     ``bucket``, ``keep``, ``best``           -> ``added``: the newest as it is there; ``passed``
    fetch    ``bucket``                               -> ``files``, ``step``, ``notes``

Prints a JSON object; the sentence of an error goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from allaboard.checkpoints.foreign.adopting import Places, adopt, report_fields
from allaboard.checkpoints.foreign.mirroring import copy_newest, fetch_newest
from allaboard.checkpoints.manifest import Manifest
from allaboard.errors import AllaboardError
from allaboard.storage import open_store


def main() -> int:
    given = json.loads(sys.argv[1])
    with suppress(OSError):
        os.nice(10)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = _DO[given["do"]](given)
    except AllaboardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


def _adopt(given: Mapping[str, Any]) -> dict[str, Any]:
    adopted = adopt(_places(given), Manifest(step=0, **given["manifest"]))
    return {"added": [report_fields(item) for item in adopted.added]}


def _copy(given: Mapping[str, Any]) -> dict[str, Any]:
    best = tuple(given["best"]) if given["best"] else None
    copied = copy_newest(
        open_store(given["own"]), open_store(given["bucket"]), given["keep"], best, time.time
    )
    added = [] if copied.checkpoint is None else [report_fields(copied.checkpoint)]
    return {"added": added, "passed": list(copied.passed)}


def _fetch(given: Mapping[str, Any]) -> dict[str, Any]:
    fetched = fetch_newest(_places(given), open_store(given["bucket"]), time.time)
    return {"files": fetched.files, "step": fetched.step, "notes": list(fetched.notes)}


_DO = {"adopt": _adopt, "copy": _copy, "fetch": _fetch}


def _places(given: Mapping[str, Any]) -> Places:
    return Places(open_store(given["own"]), bool(given["job"]), float(given["since"]))


def _end_with_parent() -> None:
    """Nobody takes the answer any more, and another process may begin the same."""
    with suppress(OSError, ValueError):
        while os.read(0, 4096):
            pass
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

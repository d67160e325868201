"""Judges checkpoints of other libraries in a pod: each command is a process of its own that ends at once.

    python -E -s -S checkpoints.zip start    words and variables (JSON) on stdin -> filled in, on stdout
    python -E -s -S checkpoints.zip adopt    manifests beside what is whole; a report line for each

The archive holds this file and those modules of allaboard that judge checkpoints (`lifecycle/helper.py` of
the backend says which). Everything else is in the variables that a member has on a cluster.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

TYPE_CHECKING = False  # slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036  (of an image)
    import old_python  # type: ignore[import-not-found]

    old_python.complete()

PATIENCE, EVERY = 30.0, 0.5
"""Seconds that a member waits for the choice of rank 0, and between two looks."""
_GROUP = re.compile(r"[^:,]+:(\d{1,6})")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9.-]{0,199}")


def main(command: str) -> int:
    from allaboard.errors import AllaboardError

    try:
        return {"start": _start, "adopt": _adopt}[command]()
    except AllaboardError as error:
        print(json.dumps({"error": str(error)}))
        return 1


def _start() -> int:
    """Fill in what is started. Prints ``command``, ``environment``, ``leads`` and ``lines`` for the log."""
    from allaboard.checkpoints.foreign.starting import Starter, choose
    from allaboard.runs.resume_template import fill_command, fill_environment

    given = json.loads(sys.stdin.read())
    leads = is_leader(os.environ)
    name = os.environ.get("ALLABOARD_MEMBER", "")
    me = Starter(name if _MEMBER.fullmatch(name) else "member", _number("ALLABOARD_ATTEMPT"), leads)
    start_from = os.environ.get("ALLABOARD_START_FROM") or None
    handed = choose(_places(), me, start_from, _patience(time.monotonic, time.sleep))
    lines = list(handed.moved) if leads else []
    if leads and handed.files is not None:
        lines.append(f"goes on from {handed.files} (step {handed.step})")
    filled = {
        "command": fill_command(given["command"], handed.files),
        "environment": fill_environment(given["environment"], handed.files),
    }
    print(json.dumps(dict(filled, leads=leads, lines=lines)))
    return 0


def _adopt() -> int:
    from allaboard.checkpoints.foreign.adopting import adopt, report_fields
    from allaboard.checkpoints.manifest import Manifest
    from allaboard.text.reportline import encode

    template = Manifest(
        step=0,
        run=os.environ.get("ALLABOARD_RUN"),
        attempt=_number("ALLABOARD_ATTEMPT"),
        generation=_number("ALLABOARD_GENERATION"),
        world_size=world_size(os.environ.get("ALLABOARD_GROUPS", "")),
    )
    for checkpoint in adopt(_places(), template).added:
        # One write for a line, which a pipe takes whole beside other writers.
        os.write(1, (encode("checkpoint", **report_fields(checkpoint)) + "\n").encode())
    return 0


def is_leader(environ: Mapping[str, str]) -> bool:
    """True for rank 0; among members to whom nothing tells a rank, for the first."""
    from allaboard.inside.context import ranks

    index = environ.get("ALLABOARD_INDEX") or environ.get("JOB_COMPLETION_INDEX") or "0"
    return ranks(environ)[0] == 0 and index == "0"


def world_size(groups: str) -> int | None:
    """Number of members: 4 of ``master:1,worker:3``."""
    counts = [_GROUP.fullmatch(group) for group in groups.split(",")]
    return sum(int(match[1]) for match in counts if match) or None


def _places() -> Any:
    from allaboard.checkpoints.foreign.adopting import Places
    from allaboard.checkpoints.foreign.starting import began
    from allaboard.storage import open_store

    own = open_store(os.environ["ALLABOARD_CHECKPOINTS"])
    return Places(own, True, began(own))


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else 1


def _patience(now: Callable[[], float], sleep: Callable[[float], None]) -> Callable[[], bool]:
    end = now() + PATIENCE

    def wait() -> bool:
        sleep(EVERY)
        return now() < end

    return wait


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Judges checkpoints of other libraries in a pod: each command is a process of its own that ends at once.

    checkpoints.zip start LOG        words and variables (JSON) on stdin -> filled in, on stdout
    checkpoints.zip adopt [again]    manifests beside what is whole; a report line for each

LOG is the descriptor of the container's log; ``again``: the process before failed. All by
``python -E -s -S``.
The archive holds this file and those modules of allaboard that judge checkpoints (`lifecycle/helper.py` of
the backend says which). Everything else is in the variables that a member has on a cluster. With
``checkpoints.folder`` a start fetches from the copies, and the newest that is adopted is copied.
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
EVERY_IN_BUCKET = 2.0
PATIENCE_FOR_BUCKET, AGAIN = 300.0, 5.0
"""Seconds for which a start waits for a place that fails, and between two tries."""
COPIES, SHARED = "ALLABOARD_HELP_COPIES", "ALLABOARD_HELP_SHARED"
NOT_COPIED = 75
"""As of `keep`."""
_GROUP = re.compile(r"[^:,]+:(\d{1,6})")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9.-]{0,199}")


def main(command: str, *arguments: str) -> int:
    from allaboard.errors import AllaboardError

    try:
        return _start(*arguments) if command == "start" else _adopt(*arguments)
    except AllaboardError as error:
        print(json.dumps({"error": str(error)}))
        return 1


def _start(log: str) -> int:
    """Fill in what is started. Prints ``command``, ``environment``, ``leads`` and ``lines`` for the log."""
    from allaboard.checkpoints.foreign.starting import Starter, choose
    from allaboard.runs.resume_template import fill_command, fill_environment

    given = json.loads(sys.stdin.read())
    leads = is_leader(os.environ)
    name = os.environ.get("ALLABOARD_MEMBER", "")
    me = Starter(name if _MEMBER.fullmatch(name) else "member", _number("ALLABOARD_ATTEMPT"), leads)
    start_from = os.environ.get("ALLABOARD_START_FROM") or None
    if os.environ.get(COPIES):
        handed = _start_with_copies(me, start_from, lambda text: _log(int(log), text))
    else:
        handed = choose(_places(), me, start_from, _Patience(PATIENCE, EVERY))
    lines = list(handed.moved) if leads else []
    if leads and handed.files is not None:
        lines.append(f"goes on from {handed.files} (step {handed.step})")
    filled = {
        "command": fill_command(given["command"], handed.files),
        "environment": fill_environment(given["environment"], handed.files),
    }
    print(json.dumps(dict(filled, leads=leads, lines=lines)))
    return 0


def _start_with_copies(me: Any, start_from: str | None, say: Callable[[str], None]) -> Any:
    from allaboard.checkpoints.foreign.copied import beats, start

    places, copying = _places(), _copying()
    patience = _Patience(PATIENCE, EVERY if copying.is_shared else EVERY_IN_BUCKET)
    wait = beats(copying.starts(places), patience, patience.restart)
    return start(places, copying, me, start_from, wait, _Patience(PATIENCE_FOR_BUCKET, AGAIN), say)


def _adopt(again: str = "") -> int:
    from allaboard.checkpoints.foreign.adopting import adopt

    if os.environ.get(COPIES):
        return _adopt_and_copy(bool(again))
    for checkpoint in adopt(_places(), _template()).added:
        _report(checkpoint)
    return 0


def _adopt_and_copy(is_again: bool) -> int:
    """Report each copy. A failure is told once."""
    from allaboard.checkpoints.foreign.adopting import adopt
    from allaboard.checkpoints.foreign.mirroring import copy_newest
    from allaboard.errors import AllaboardError

    copying = _copying()
    try:
        places = _places()
        adopt(places, copying.template)
        copied = copy_newest(places.own, copying.bucket, copying.keep, copying.best, copying.clock)
    except AllaboardError as error:
        if not is_again:
            _log(1, f"{copying.bucket.uri}: the newest checkpoint is not copied: {error}; it is tried again")
        return NOT_COPIED
    if is_again:
        _log(1, f"{copying.bucket.uri} takes copies again")
    if copied.passed and copied.is_new:
        steps = ", ".join(map(str, copied.passed[:50]))
        _log(1, f"copies to {copying.bucket.uri} fall behind the training: no copy of step {steps}")
    if copied.checkpoint is not None and copied.is_new:
        _report(copied.checkpoint)
    return 0


def _report(checkpoint: Any) -> None:
    from allaboard.checkpoints.foreign.adopting import report_fields
    from allaboard.text.reportline import encode

    # One write for a line, which a pipe takes whole beside other writers.
    os.write(1, (encode("checkpoint", **report_fields(checkpoint)) + "\n").encode())


def _log(descriptor: int, text: str) -> None:
    from allaboard.text.printable import visible

    os.write(descriptor, f"allaboard: {visible(text, most=1000)}\n".encode("utf-8", "backslashreplace"))


def _add_packages() -> None:
    """Find the packages of the image, of which boto3 knows more kinds of credentials than the client of ours;
    without what their .pth files start.
    """
    import site
    from pathlib import Path

    prefix = str(Path(sys.executable).parent.parent)  # of a virtual environment, too
    sys.path.extend(path for path in site.getsitepackages([prefix, sys.prefix]) if path not in sys.path)


def _copying() -> Any:
    """The copies of this run, by the variables."""
    _add_packages()
    from allaboard.checkpoints.foreign.copied import Copying
    from allaboard.storage import open_store

    metric, _, mode = os.environ.get("ALLABOARD_CHECKPOINT_BEST", "").rpartition(":")
    keep = os.environ.get("ALLABOARD_CHECKPOINT_KEEP", "")
    return Copying(
        bucket=open_store(os.environ[COPIES]),
        is_shared=os.environ.get(SHARED) == "on",
        keep=int(keep) if keep.isdigit() and int(keep) > 0 else None,
        best=(metric, mode) if metric else None,
        template=_template(),
        clock=time.time,
    )


def _template() -> Any:
    from allaboard.checkpoints.manifest import Manifest

    return Manifest(
        step=0,
        run=os.environ.get("ALLABOARD_RUN"),
        attempt=_number("ALLABOARD_ATTEMPT"),
        generation=_number("ALLABOARD_GENERATION"),
        world_size=world_size(os.environ.get("ALLABOARD_GROUPS", "")),
    )


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


class _Patience:
    """A wait of ``every`` seconds, which is False once ``seconds`` are over."""

    def __init__(self, seconds: float, every: float) -> None:
        self._seconds, self._every = seconds, every
        self.restart()

    def restart(self) -> None:
        self._end = time.monotonic() + self._seconds

    def __call__(self) -> bool:
        time.sleep(self._every)
        return time.monotonic() < self._end


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

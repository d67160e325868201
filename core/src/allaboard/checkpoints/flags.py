"""The flags of a run beside its checkpoints, written at its end: a gate reads them after the run is
forgotten.

    <uri>/<run>/flags.json

    {"version": 1, "run": "digits-1f0c9a77", "attempt": 1, "generation": 1, "state": "succeeded",
     "flags": {"success_doubtful": "master-0 exited with 0 after a signal at step 40 of 100"},
     "written": "2026-11-21T12:00:00.250Z"}

A file that cannot be read, or is of another shape, says nothing of its run. Then what an earlier step of an
orchestrator hands on counts (`handed_flags`); the file always goes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allaboard.errors import AllaboardError
from allaboard.storage.base import Store, read_small
from allaboard.text.printable import visible
from allaboard.text.reportline import OF_OBSERVERS
from allaboard.text.untrusted import Unreadable, parse_json

FLAGS = "flags.json"
VERSION = 1
MOST = 100
HARMLESS = frozenset(
    {
        "checkpoint_elsewhere",
        "checkpoints_not_copied",
        "report_too_large",
        "slow_rank",
        "too_many_metrics",
    }
)
"""Flags that say nothing about a model."""
_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LONGEST = 500
"""Characters of a sentence that are kept."""


@dataclass(frozen=True, slots=True)
class RunFlags:
    """``state``: the state that the run ended in; ``flags``: code -> sentence, empty where none is known."""

    run: str
    state: str
    flags: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    generation: int = 1
    written: str | None = None

    @property
    def serious(self) -> Mapping[str, str]:
        """The flags that a gate refuses. Those that only an observer raises tell of the place of the run:
        members that do not meet, a node that is lost. A run that succeeds all the same has its model.
        """
        return {
            code: text
            for code, text in self.flags.items()
            if code not in HARMLESS and not OF_OBSERVERS.match(code)
        }

    def encode(self) -> bytes:
        """The bytes of the file."""
        body = {
            "version": VERSION,
            "run": self.run,
            "attempt": self.attempt,
            "generation": self.generation,
            "state": self.state,
            "flags": {code: text[:_LONGEST] for code, text in [*self.flags.items()][:MOST]},
            "written": self.written,
        }
        return (json.dumps(body, indent=1) + "\n").encode()


def read_flags(store: Store, handed: RunFlags | None = None) -> RunFlags | None:
    """The flags in a run's folder of checkpoints, else those that were ``handed`` on; None: nothing is known
    of the run's end.
    """
    raw = flags_file(store)
    known = None if raw is None else decode_flags(raw)
    return handed if known is None else known


def handed_flags(result: object) -> RunFlags | None:
    """The flags in what an earlier step hands on: a run's status object (`allaboard status --json`), or what
    `collect` says. For a folder without the file, as a run on a cluster leaves one on a volume. None: it says
    nothing of a run's end.
    """
    if not isinstance(result, Mapping) or not isinstance(result.get("flags"), (list, tuple)):
        return None
    value = result.get("diagnoses")
    diagnoses = value if isinstance(value, (list, tuple)) else ()
    sentences = {
        diagnosis.get("code"): diagnosis.get("summary")
        for diagnosis in diagnoses
        if isinstance(diagnosis, Mapping) and isinstance(diagnosis.get("code"), str)
    }
    flags = {code: sentences.get(code, "") for code in result["flags"] if isinstance(code, str)}
    names = ("run", "state", "attempt")
    body = {**{name: result.get(name) for name in names}, "written": result.get("finished"), "flags": flags}
    return decode_flags(json.dumps(body, default=str).encode())


def flags_file(store: Store) -> bytes | None:
    """The bytes of the file in a run's folder; None: there is none, or the store does not answer."""
    try:
        return read_small(store, FLAGS)
    except AllaboardError:
        return None


def decode_flags(raw: bytes) -> RunFlags | None:
    """The inverse of `RunFlags.encode`; None for anything else, which anybody may have put there."""
    try:
        body = parse_json(raw, spelling=False)
    except Unreadable:
        return None
    if not isinstance(body, dict) or not isinstance(body.get("flags"), dict):
        return None
    state, run, written = (_text(body.get(name)) for name in ("state", "run", "written"))
    flags = {
        code: _text(text)
        for code, text in [*body["flags"].items()][:MOST]
        if isinstance(code, str) and _CODE.fullmatch(code)
    }
    attempt, generation = (_count(body.get(name)) for name in ("attempt", "generation"))
    return RunFlags(run, state, flags, attempt, generation, written or None)


def _text(value: Any) -> str:
    return visible(value, most=_LONGEST) if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1

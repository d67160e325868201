"""Home of the local run of a task instance, for its next tries, which may begin on another host.

A local run is known on its own machine alone. So a task keeps three values in its own state store, which
survives retries and clears: where its run lives (`HOME`, by the worker that launched it), that it shall stop
there (`STOP`, by a next try elsewhere), and how it has ended there (`ENDED`, by the worker that saw its end,
or by the reconciler of a triggerer there). A store that has lost them, or cannot be read, is no reason to
fail: the run ends by itself when nobody follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from allaboard.follow.run_record import Data, Reached
from allaboard.text.names import why_not_an_object_name
from allaboard.text.printable import visible

HOME, STOP, ENDED = "allaboard_home", "allaboard_stop", "allaboard_ended"
VERSION = 1
MARGIN = 120.0
"""Seconds that a run may need to end, beyond those for which it goes on without a follower: for the one who
notices, and for the grace of its members.
"""


@dataclass(frozen=True, slots=True)
class Home:
    """Home of a run. ``patience``: seconds for which it goes on there once Airflow has given up its
    worker, which may be cut off. ``place``: the fingerprint of the runs of its home. ``alone``: it ends with
    the worker that launched it. ``data``: what its attempt trains on; None: unknown.
    """

    run: str
    uid: str
    attempt: int
    generation: int
    host: str
    patience: float
    place: Mapping[str, Any]
    alone: bool = False
    data: Data | None = None

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @property
    def reached(self) -> Reached:
        return Reached(self.generation, self.attempt, self.data)

    def bound(self) -> float:
        """Seconds after which it has ended, whatever has become of its host."""
        return self.patience + MARGIN


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a run. ``result``: of a run that succeeded, as its task returns it. ``accepted``: Airflow
    has accepted the success of the task.
    """

    uid: str
    state: str
    result: Mapping[str, Any] | None = None
    accepted: bool = False

    def as_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def read_home(value: Any) -> Home | None:
    """A kept `Home`; None for anything else."""
    try:
        home = Home(
            str(value["run"]),
            str(value["uid"]),
            int(value["attempt"]),
            int(value["generation"]),
            visible(str(value["host"]))[:255],
            min(max(float(value["patience"]), 0.0), 86400.0),
            dict(value["place"]),
            value.get("alone") is True,
            _read_data(value.get("data")),
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    return home if why_not_an_object_name(home.run) is None else None


def _read_data(value: Any) -> Data | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("uri"), str):
        return None
    content = value.get("content")
    return Data(value["uri"], content if isinstance(content, str) else None, value.get("fixed") is True)


def read_ended(value: Any) -> Ended | None:
    """A kept `Ended`; None for anything else."""
    try:
        result = value.get("result")
        return Ended(
            str(value["uid"]),
            str(value["state"]),
            result if isinstance(result, Mapping) else None,
            value.get("accepted") is True,
        )
    except (AttributeError, KeyError, TypeError):
        return None


def order(home: Home, host: str) -> dict[str, Any]:
    """Order to stop that a next try on ``host`` leaves for the process that follows the run at its home."""
    return {"version": VERSION, "uid": home.uid, "run": home.run, "host": host}


def ordered_by(value: Any, uid: str) -> str | None:
    """The host whose try wants this attempt to stop; None: nobody does."""
    if not isinstance(value, Mapping) or value.get("uid") != uid:
        return None
    return visible(str(value.get("host") or "another host"))[:255]

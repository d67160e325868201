"""Results of the look-ups for the checks. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allaboard.errors import AllaboardError

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lookup:
    """Another object that the job names. ``body``: None when it is not there; ``known``: whether it may be
    read.
    """

    body: Json | None = None
    known: bool = True


HIDDEN = Lookup(known=False)


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """A dry run of the creation of an object, and what the API server said to it."""

    subject: str
    error: AllaboardError | None = None

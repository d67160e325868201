"""The condition algebra of the Training Operator, v1 (pkg/util/status.go, release 1.9.4). Values in, values
out.

1. Nothing is set once Failed is True. 2. Same type, status and reason: the first occurrence stays as it is.
3. Otherwise the old one of that type goes and the new one is appended. 4. Running removes Restarting and the
reverse. 5. Succeeded and Failed turn an existing Running to False where it stands, keeping its reason,
message and times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allaboard.runs.observation import Condition

_EXCLUDES = {"Running": "Restarting", "Restarting": "Running"}


def with_condition(conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """The conditions after the operator set ``new``."""
    if any(c.type == "Failed" and c.status == "True" for c in conditions):
        return conditions
    if any((c.type, c.status, c.reason) == (new.type, new.status, new.reason) for c in conditions):
        return conditions
    excluded = {new.type}
    if new.status == "True" and new.type in _EXCLUDES:
        excluded.add(_EXCLUDES[new.type])
    remaining = tuple(c for c in conditions if c.type not in excluded)
    if new.type in ("Succeeded", "Failed") and new.status == "True":
        remaining = tuple(replace(c, status="False") if c.type == "Running" else c for c in remaining)
    return (*remaining, new)

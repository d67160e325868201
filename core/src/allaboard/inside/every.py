"""Interval between two saves of a script that trains."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from allaboard.errors import BadInput
from allaboard.text.units import seconds


@dataclass(frozen=True, slots=True)
class Every:
    """Interval between saves, in steps or in seconds; neither: only on request."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, value: str | int | None) -> Every:
        """``50`` and ``"50"`` are steps, ``"10m"`` and ``"600s"`` are time. Raises BadInput."""
        if value is None:
            return cls()
        text = str(value).strip()
        every = cls()
        if text.isdecimal():
            every = cls(steps=int(text))
        elif text[-1:].isalpha():  # 2.5 is ambiguous
            with suppress(ValueError):
                every = cls(seconds=seconds(text))
        if not (every.steps or every.seconds):
            raise BadInput(
                f"every {value!r} is neither steps nor time; write 50 for 50 steps, or 10m for ten minutes"
            )
        return every

    def due(self, step: int, last_step: int, now: float, last_time: float) -> bool:
        """True if a boundary was crossed since the last save (or the start)."""
        if step <= last_step:
            return False
        if self.steps is not None:
            return step // self.steps > last_step // self.steps
        return self.seconds is not None and now - last_time >= self.seconds

"""Local times for readers: the zone is that of the variable TZ, else of the machine.

An hour that comes twice, when clocks go back, shows its offset. If TZ names an unknown zone, times are UTC
and end with Z. pendulum is imported on the first use only.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from allaboard.runs.observation import Event

if TYPE_CHECKING:
    from pendulum import DateTime, Timezone


def clock(epoch: float | None) -> str:
    """``12:00:02``"""
    return "--:--:--" if epoch is None else format_time(epoch, "HH:mm:ss")


def moment(epoch: float | None, now: float) -> str:
    """``12:00:02`` today, ``11-20 12:00`` before."""
    if epoch is None:
        return "-"
    return format_time(epoch, "HH:mm:ss" if is_same_day(epoch, now) else "MM-DD HH:mm")


def event_row(event: Event) -> tuple[str, str, str, str]:
    """Time, object, reason, message."""
    return clock(event.time), event.object, event.reason, event.message


def format_time(epoch: float, form: str) -> str:
    """``02:30:00``; ``02:30:00+02:00`` in an hour that comes twice; ``00:30:00Z`` where the zone is not
    known. ``form``: pendulum's.
    """
    moment, known = _local_datetime(epoch)
    if not known:
        return moment.format(form) + "Z"
    zone, plain = moment.tzinfo, moment.naive()
    assert zone is not None
    twice = zone.utcoffset(plain.replace(fold=0)) != zone.utcoffset(plain.replace(fold=1))
    return moment.format(form + "Z" if twice else form)


def is_same_day(first: float, second: float) -> bool:
    """True if both times are on the same local day."""
    return _local_datetime(first)[0].date() == _local_datetime(second)[0].date()


def _local_datetime(epoch: float) -> tuple[DateTime, bool]:
    import pendulum

    zone = _parse_timezone(os.environ.get("TZ"))
    return pendulum.from_timestamp(epoch, tz=zone or pendulum.UTC), zone is not None


@lru_cache(maxsize=4)
def _parse_timezone(tz: str | None) -> Timezone | None:
    """The zone of a TZ, as the C library reads it (a name, or the path of a file, after an optional colon),
    but for the rules that can be spelt out in it; None for what is not known. Without one: the machine's.
    """
    import pendulum
    from pendulum.tz.local_timezone import get_local_timezone

    try:
        if tz is None:
            return cast("Timezone", get_local_timezone())
        name = tz.removeprefix(":")
        if not name.startswith("/"):
            return pendulum.Timezone(name)
        with Path(name).open("rb") as file:
            return pendulum.Timezone.from_file(file, key=name)
    except (OSError, ValueError, RuntimeError):  # pendulum's InvalidTimezone is a ValueError
        return None

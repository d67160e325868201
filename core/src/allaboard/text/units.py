"""Durations, quantities and times as people write them. Values in, values out; no clock is read here.

Quantities follow Kubernetes (`resource.Quantity`): ``500m`` CPU is half a core, ``32Gi`` is 32 * 2**30 bytes,
``1G`` is 10**9. Durations are ``90``, ``90s``, ``10m``, ``1h30m``, ``2d``; bare numbers are seconds.
"""

from __future__ import annotations

import datetime as _dt
import math
import re
from decimal import Decimal

from allaboard.text.untrusted import plain_number, show

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|K|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?")
_FACTORS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


MOST_SECONDS = 2**31 - 1
"""The longest duration: what Kubernetes keeps in its fields of seconds, 68 years."""
MOST_BYTES = 2**63 - 1
MOST_CORES = 1_000_000


def seconds(value: str | int | float) -> float:
    """``"1h30m"`` -> 5400.0. Raises ValueError, naming what is allowed."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a duration; write 90s, 10m, 12h or 1d")
    if isinstance(value, (int, float)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{_shown(value)} is not a duration; give 0 or more seconds")
        return _check_seconds(float(min(value, 10**15)), value)
    text = value.strip()
    if len(text) > _LONGEST or not text.isascii():
        raise ValueError(f"{show(value)} is not a duration; write 90s, 10m, 12h, 1d or 1h30m")
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return _check_seconds(float(text), value)
    parts = _DURATION.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{show(value)} is not a duration; write 90s, 10m, 12h, 1d or 1h30m")
    return _check_seconds(float(sum(float(n) * _SECONDS[u] for n, u in parts)), value)


def _check_seconds(amount: float, written: str | int | float) -> float:
    if amount > MOST_SECONDS:
        raise ValueError(f"{_shown(written)} is too long; Kubernetes counts up to 24855d, which is 68 years")
    return amount


def size(value: str | int | float) -> int:
    """``"32Gi"`` -> bytes. Raises ValueError, naming what is allowed."""
    number, unit = _quantity(value, "a size", "512Mi, 32Gi or a number of bytes")
    if unit == "m":
        raise ValueError(f"{_shown(value)} is not a size; write 512Mi, 32Gi or a number of bytes")
    amount = int(number * _FACTORS[unit])
    if amount > MOST_BYTES:
        raise ValueError(
            f"{_shown(value)} is too large; Kubernetes counts up to {MOST_BYTES} bytes, just below 8Ei"
        )
    return amount


def cores(value: str | int | float) -> float:
    """``"500m"`` -> 0.5 cores. Raises ValueError, naming what is allowed."""
    number, unit = _quantity(value, "a number of cores", "2, 0.5 or 500m")
    if unit not in ("", "m"):
        raise ValueError(f"{_shown(value)} is not a number of cores; write 2, 0.5 or 500m")
    amount = float(number / 1000 if unit == "m" else number)
    if amount > MOST_CORES:
        raise ValueError(f"{_shown(value)} is too many; give {MOST_CORES} cores or fewer")
    return amount


def quantity(amount: int) -> str:
    """Bytes as Kubernetes writes them, exactly: ``32Gi``, ``1G``, ``1234567``."""
    for unit in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki", "E", "P", "T", "G", "M", "k"):
        if amount and amount % _FACTORS[unit] == 0:
            return f"{amount // _FACTORS[unit]}{unit}"
    return str(amount)


def millicores(cores: float) -> str:
    """Cores as Kubernetes writes them: ``8``, ``500m``."""
    thousandths = max(1, round(cores * 1000))
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


_LONGEST = 40
"""Characters of a number with its unit; no right one has as many."""


def _quantity(value: str | int | float, kind: str, allowed: str) -> tuple[Decimal, str]:
    """(number, unit). Decimal: a size is exact to its last byte."""
    if not isinstance(value, bool):
        text = value if isinstance(value, str) else _shown(value)
        match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST and text.isascii() else None
        if match:
            return Decimal(match.group(1)), match.group(2) or ""
    raise ValueError(f"{_shown(value)} is not {kind}; write {allowed}")


def _shown(value: str | int | float) -> str:
    if isinstance(value, str):
        return show(value)
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"a number of some {int(value.bit_length() * 0.301)} digits"
    return str(plain_number(value))


def show_seconds(value: float | None) -> str:
    """For people: ``-``, ``0.4 s``, ``12 s``, ``3m 05s``, ``2h 03m``, ``1d 04h``."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def show_bytes(value: float | None) -> str:
    """For people: ``-``, ``512 B``, ``1.5 KiB``, ``32.0 GiB``."""
    if value is None:
        return "-"
    number = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError("unreachable")


def counted(count: int, noun: str) -> str:
    """``1 member``, ``2 members``, ``12,000 samples``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def place_in_line(before: int | None) -> str:
    """Continuation of a sentence about a queue: ``, next in line``, ``, 3 before it``; empty if the place is
    not known.
    """
    return "" if before is None else f", {before} before it" if before else ", next in line"


def rfc3339(epoch: float | None) -> str | None:
    """Epoch seconds -> ``2026-11-21T12:00:00.250Z``; None stays None."""
    if epoch is None:
        return None
    moment = _dt.datetime.fromtimestamp(epoch, _dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def from_rfc3339(text: str | None) -> float | None:
    """The inverse of `rfc3339`; any offset is accepted."""
    if text is None:
        return None
    return _dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()

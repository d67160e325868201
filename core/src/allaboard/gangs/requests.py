"""Resources that a pod requests of its node, as Kubernetes counts them. Values in, values out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([numkKMGTPE]i?))?")
FACTORS: Mapping[str, Decimal] = {
    **{prefix: Decimal(1000) ** power for power, prefix in enumerate("kMGTPE", 1)},
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", 1)},
    "m": Decimal("0.001"),
    "u": Decimal("0.000001"),
    "n": Decimal("0.000000001"),
}
"""Suffix of a quantity -> what it stands for."""


def amount(quantity: Any) -> Decimal:
    """A Kubernetes quantity: ``500m``, ``32Gi``, ``1e3``. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity")
    number, exponent, suffix = match.groups()
    return Decimal(number + (exponent or "")) * FACTORS.get(suffix or "", Decimal(1))


def quantity(value: Decimal) -> str:
    """The canonical quantity of an amount: ``4``, ``1500m``."""
    whole = value.to_integral_value()
    if whole == value:
        return f"{whole:f}"
    return f"{(value * 1000).to_integral_value(rounding=ROUND_CEILING):f}m"


def requested(spec: Mapping[str, Any], which: str = "requests") -> dict[str, Decimal]:
    """Requests of one pod: all containers together, sidecars included, or the largest init container beside
    the sidecars that were started before it; and the overhead of its runtime. ``which``: requests (limits
    where a container has none of that name) or limits.
    """
    total: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    start: dict[str, Decimal] = {}
    for container in spec.get("containers") or ():
        _add(total, _of_container(container, which))
    for container in spec.get("initContainers") or ():
        own = _of_container(container, which)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, own)
            own = {}
        for name in (*own, *sidecars):
            here = own.get(name, Decimal(0)) + sidecars.get(name, Decimal(0))
            start[name] = max(start.get(name, Decimal(0)), here)
    _add(total, sidecars)
    for name, value in start.items():
        total[name] = max(total.get(name, Decimal(0)), value)
    _add(total, {name: amount(value) for name, value in (spec.get("overhead") or {}).items()})
    return total


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, Decimal(0)) + value


def _of_container(container: Mapping[str, Any], which: str) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    quantities = stated if which == "requests" else resources.get("limits") or {}
    return {name: amount(value) for name, value in quantities.items()}

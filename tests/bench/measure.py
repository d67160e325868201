"""Measuring side by side: contenders alternate within one run, figures are medians, what counts are ratios.

A machine is noisy: the spread is printed with each ratio, and a ratio is only called shown when the peers'
own spread is below half of the claimed gain.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figures:
    """Seconds of one contender."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """(max - min) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def alternate(
    contenders: Mapping[str, Callable[[], float]], rounds: int, warmups: int = 1
) -> dict[str, Figures]:
    """Run the contenders A B C A B C ... and keep what each returns, in seconds."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for n in range(warmups + rounds):
        for name, measure in contenders.items():
            seconds = measure()
            if n >= warmups:
                found[name].append(seconds)
            print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    return {name: Figures(name, tuple(values)) for name, values in found.items()}


RAW: list[dict[str, Any]] = []
"""What was measured for each table so far, in seconds: for `--json`."""


def table(title: str, figures: Mapping[str, Figures], against: str) -> None:
    """One row per contender: median, minimum, spread, ratio of medians and median of the paired ratios."""
    base = figures[against]
    RAW.append({"title": title, "against": against, "seconds": {f.name: f.seconds for f in figures.values()}})
    print(f"\n{title}  (rounds: {len(base.seconds)}; ratio against {against!r})")
    print(f"  {'':34} {'median':>10} {'min':>10} {'spread':>7} {'ratio':>7} {'paired':>7}")
    for f in figures.values():
        paired = statistics.median(a / b for a, b in zip(f.seconds, base.seconds, strict=True))
        print(
            f"  {f.name:34} {f.median * 1000:8.1f}ms {min(f.seconds) * 1000:8.1f}ms {f.spread:7.0%} "
            f"{f.median / base.median:7.2f} {paired:7.2f}"
        )

"""Curves as they are read from files, within bounds; and the curves of several files put together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from posixpath import basename, dirname

from allaboard.runs.observation import Measured
from allaboard.runs.points import thin_out
from allaboard.text.reportline import whole

MOST_CURVES = 200
MOST_POINTS = 5000
MOST_NONFINITE = 1000
_LONGEST_NAME = 100
_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class Series:
    """Named curves of one file, at most `MOST_CURVES` of `MOST_POINTS` to twice as many points. ``last``: the
    newest value of each, None for one that is not finite; ``nonfinite``: the steps and names of those.
    """

    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    last: dict[str, float | None] = field(default_factory=dict)
    nonfinite: list[tuple[int, str]] = field(default_factory=list)

    def add(self, name: str, step: int | float, value: float | None) -> None:
        """Take in a value; None is one that is not finite. At a step that is not after the last one of its
        name, the values from there on are replaced: a training went back.
        """
        place = whole(step)
        if place is None or not self._is_kept(name):
            return
        points = self.curves.setdefault(name, [])
        while points and points[-1][0] >= place:
            points.pop()
        if value is None or not math.isfinite(value):
            self.last[name] = None
            if len(self.nonfinite) < MOST_NONFINITE:
                self.nonfinite.append((place, name))
            return
        self.last[name] = float(value)
        points.append((place, float(value)))
        if len(points) > 2 * MOST_POINTS:
            points[:] = thin_out(points, MOST_POINTS)

    def _is_kept(self, name: str) -> bool:
        is_name = 0 < len(name) <= _LONGEST_NAME and name.isprintable()
        return name in self.curves or (is_name and len(self.curves) < MOST_CURVES)


@dataclass(frozen=True, slots=True)
class FileRead:
    """One file as it was read. ``key``: its path below the place; ``format``: whose; ``began``: when its
    first value was written, in epoch seconds, else when its last was; ``total``: steps in all, where it says.
    """

    key: str
    format: str
    series: Series
    began: float
    total: int | None = None

    @property
    def lineage(self) -> str:
        """The path that all files of one writer share, whichever try of it wrote them: numbers of a version,
        a date or a checkpoint do not count.
        """
        folder, name = dirname(self.key), basename(self.key)
        if name.endswith(".json") and re.search(r"-\d+$", folder):
            folder = dirname(folder)
        name = "" if "tfevents" in name else name
        return _NUMBER.sub("#", f"{folder}/{name}")


def put_together(files: Iterable[FileRead], gaps: Iterable[str] = ()) -> Measured:
    """The curves of all files. Of the files of one lineage a later one goes on from an earlier one, whose
    values it replaces from its own first step on. A name that several lineages have begins with their place.
    """
    lineages: dict[str, list[FileRead]] = {}
    for file in sorted(files, key=lambda file: (file.began, file.key)):
        if file.series.last:
            lineages.setdefault(file.lineage, []).append(file)
    owners: dict[str, set[str]] = {}
    for lineage, members in lineages.items():
        for name in (name for file in members for name in file.series.last):
            owners.setdefault(name, set()).add(lineage)
    labels = _labels({lineage: members[-1].key for lineage, members in lineages.items()})
    made = Measured(gaps=tuple(gaps))
    curves: dict[str, tuple[tuple[int, float], ...]] = {}
    last: dict[str, float | None] = {}
    sources: dict[str, str] = {}
    nonfinite: list[tuple[int, str]] = []
    newest: FileRead | None = None
    for lineage, members in lineages.items():
        for file in members:
            newest = file if newest is None or _last_step(file) >= _last_step(newest) else newest
            for name, value in file.series.last.items():
                shown = name if len(owners[name]) == 1 else f"{labels[lineage]}/{name}"
                if shown not in last and len(last) >= MOST_CURVES:
                    continue
                points = tuple(file.series.curves.get(name, ()))
                before = curves.get(shown, ())
                kept = tuple(point for point in before if not points or point[0] < points[0][0])
                curves[shown] = tuple(thin_out((*kept, *points), MOST_POINTS))
                last[shown], sources[shown] = value, file.key
                nonfinite += [(step, shown) for step, bad in file.series.nonfinite if bad == name]
    if newest is None:
        return made
    return Measured(
        curves={name: points for name, points in curves.items() if points},
        last=last,
        files=sources,
        step=_last_step(newest),
        total=newest.total,
        step_file=newest.key,
        formats=tuple(dict.fromkeys(file.format for members in lineages.values() for file in members)),
        nonfinite=tuple(nonfinite[:MOST_NONFINITE]),
        gaps=tuple(gaps),
    )


def _last_step(file: FileRead) -> int:
    ends = [points[-1][0] for points in file.series.curves.values() if points]
    return max((*ends, *(step for step, _ in file.series.nonfinite)), default=0)


def _labels(keys: Mapping[str, str]) -> dict[str, str]:
    """A short name for each lineage, by the parts of its path that not all have."""
    parts = {lineage: key.split("/") for lineage, key in keys.items()}
    common = 0
    while len({tuple(path[: common + 1]) for path in parts.values()}) == 1:
        common += 1
        if common >= min(len(path) for path in parts.values()):
            break
    labels = {}
    for lineage, path in parts.items():
        own = path[common:-1] if "tfevents" in path[-1] else [*path[common:-1], path[-1].rpartition(".")[0]]
        labels[lineage] = "/".join(own)[-60:] or "."
    return labels

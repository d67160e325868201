"""Guides to install components: the rows of guides.toml, each with the day on which its sources were read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Any

WAYS: Mapping[str, str] = {
    "openshift": "OpenShift",
    "kubectl": "kubectl",
    "helm": "Helm",
    "flags": "flags of the control plane",
    "commands": "its own commands",
}
"""The ways to install, and what they are called."""


@dataclass(frozen=True, slots=True)
class Guide:
    """``ways``: a name of `WAYS` -> lines to paste; ``version``: the release that they install; ``checked``:
    the day on which they were compared with ``sources``; None: not known; ``needs``: what must be there or be
    known before, in sentences.
    """

    ways: Mapping[str, tuple[str, ...]]
    version: str | None = None
    checked: date | None = None
    needs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def fitting(self, openshift: bool) -> Mapping[str, tuple[str, ...]]:
        """The ways that fit a cluster: on OpenShift its own alone, where there is one."""
        if openshift and "openshift" in self.ways:
            return {"openshift": self.ways["openshift"]}
        return {name: lines for name, lines in self.ways.items() if name != "openshift"}

    def shortest(self, openshift: bool) -> str:
        """The first command of the way that fits best, on one line."""
        lines = next(iter(self.fitting(openshift).values()))
        return next((line for line in lines if not line.startswith("#") and "\n" not in line), "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "checked": self.checked.isoformat() if self.checked is not None else None,
            "needs": list(self.needs),
            "ways": {name: list(lines) for name, lines in self.ways.items()},
            "sources": list(self.sources),
        }


def guide_of(name: str) -> Guide | None:
    """The guide of this name; None: there is none."""
    return guides().get(name)


@cache
def guides() -> Mapping[str, Guide]:
    """All of them, by name."""
    text = resources.files(__package__).joinpath("guides.toml").read_text(encoding="utf-8")
    return {name: _guide(row) for name, row in tomllib.loads(text).items()}


def _guide(row: Mapping[str, Any]) -> Guide:
    version = str(row["version"])

    def filled(lines: list[str]) -> tuple[str, ...]:
        # Not str.format: patches are JSON.
        number = version.removeprefix("v")
        return tuple(
            line.strip("\n").replace("{version}", version).replace("{number}", number) for line in lines
        )

    return Guide(
        {name: filled(row[name]) for name in row if name in WAYS},
        version,
        row["checked"],
        tuple(row.get("needs", ())),
        tuple(row.get("sources", ())),
    )

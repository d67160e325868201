"""All causes that are known: the rules of every room."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from allaboard.diagnosis.rule import RULES, Rule

ROOMS = (
    "submit",
    "queue",
    "start",
    "infrastructure",
    "communication",
    "code_and_data",
    "lifecycle_and_speed",
)
"""The modules of the rules, in the order in which a job meets them."""


@cache
def _read() -> None:
    for room in ROOMS:
        import_module(f"{__package__}.{room}")


def all_rules() -> Mapping[str, Rule]:
    """Code -> rule, by where it happens. They are read when the first run is to be explained: a DAG file or a
    follower of healthy runs needs none of their patterns."""
    _read()
    return RULES

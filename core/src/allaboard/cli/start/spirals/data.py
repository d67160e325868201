"""Points on three arms of a spiral, a little off their place: which arm is each on?

    allaboard shards prepare data:samples store://spirals/shards

Two sets that never mix: `samples` to train on, and `held_out`, which nobody sees before the evaluation. They
follow from their seeds alone: the same on every machine, for ever.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

ARMS = 3


def samples() -> Iterator[dict[str, Any]]:
    """Samples for shards, on which a model is trained."""
    return points(1200, seed=1)


def held_out() -> Iterator[dict[str, Any]]:
    """Samples on which a trained model is evaluated."""
    return points(600, seed=2)


def points(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """``json``: where a point is. ``cls``: its arm."""
    chance = random.Random(seed)
    for number in range(count):
        arm, along = number % ARMS, chance.random()
        turn = 4.2 * along + 2 * math.pi * arm / ARMS + chance.gauss(0, 0.3)
        place = [along * math.sin(turn), along * math.cos(turn)]
        yield {"__key__": f"{number:05d}", "json": json.dumps(place).encode(), "cls": arm}

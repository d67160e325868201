"""The handwritten digits that ship with scikit-learn, as samples for shards, in three parts that never mix.

    allaboard shards prepare dags_examples/digits/prepare.py:samples store://digits/shards

1,797 pictures of 8 x 8 pixels. Some seven tenths are `samples`, for training; a tenth is for `validation`,
which chooses the best checkpoint; two tenths are `held_out` and seen by nobody until the evaluation. Which
digit belongs where follows from its number alone: the same on every machine, in every run, for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

Sample = dict[str, Any]
"""``pgm``: the picture, a file that image viewers and WebDataset open. ``cls``: which digit it is."""


def samples() -> Iterator[Sample]:
    """What a model is trained on."""
    return _part("train")


def validation() -> Iterator[Sample]:
    """What tells, during the training, which checkpoint is the best."""
    return _part("validation")


def held_out() -> Iterator[Sample]:
    """What a trained model is judged by."""
    return _part("held-out")


def _part(wanted: str) -> Iterator[Sample]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.data, digits.target, strict=True)):
        if _part_of(number) == wanted:
            yield {"__key__": f"{number:04d}", "pgm": _picture(pixels), "cls": int(label)}


def _part_of(number: int) -> str:
    # Not every fifth one: they were written in order, 0 1 2 3 4 5 6 7 8 9, and that would pick 4s and 9s.
    drawn = hashlib.sha256(f"digit {number}".encode()).digest()[0] / 256
    return "held-out" if drawn < 0.2 else "validation" if drawn < 0.3 else "train"


def _picture(pixels: Any) -> bytes:
    """PGM: a header, then a byte per pixel, 0 to 16, row by row."""
    return b"P5 8 8 16\n" + bytes(int(pixel) for pixel in pixels)

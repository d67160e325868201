"""torch.distributed.checkpoint: ``.metadata`` appears by a rename once every rank has written its file.

It names, for each tensor, the file, the place in it and the length. It is a pickle: its words are read,
nothing is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from allaboard.checkpoints.foreign.pickled import Word, pickle_words
from allaboard.checkpoints.foreign.unit import (
    Facts,
    NotKnown,
    NotWhole,
    Unit,
    check_last,
    name_epoch,
    name_step,
)

FORMAT = "torch-dcp"
_META = ".metadata"
_RANK = re.compile(r"(?:.*/)?__(\d+)_\d+\.distcp")


def claims(unit: Unit) -> bool:
    return _META in unit.files or any("/" not in name for name, _ in unit.matching(_RANK))


def facts(unit: Unit) -> Facts:
    if _META not in unit.files:
        raise NotWhole(f"{_META} is missing, which is written last")
    check_dcp(unit)
    check_last(unit, [_META])
    ranks = {name: int(match[1]) for name, match in unit.matching(_RANK)}
    return Facts(name_step(unit.base), name_epoch(unit.base), ranks=ranks)


def check_dcp(unit: Unit) -> None:
    """Every folder of this format within a unit has the files that its metadata names, as long as they must
    be.
    """
    folders = {name[: -len(_META)] for name in unit.files if name.rpartition("/")[2] == _META}
    loose = [
        name
        for name, _ in unit.matching(_RANK)
        if name[: name.rindex("/") + 1 if "/" in name else 0] not in folders
    ]
    if loose:
        raise NotWhole(f"{loose[0]} has no {_META} beside it")
    for folder in folders:
        _check_folder(unit, folder)


def _check_folder(unit: Unit, folder: str) -> None:
    raw = unit.read(f"{folder}{_META}")
    if len(raw) < unit.size(f"{folder}{_META}"):
        raise NotKnown(f"{folder}{_META} is too large to look at")
    content, is_complete = pickle_words(raw)
    if not is_complete:
        raise NotWhole(f"{folder}{_META} is cut")
    stored = [*_stored(content)]
    if not stored:
        raise NotKnown(f"{folder}{_META} names no files in a way that is known")
    for name, end in stored:
        if f"{folder}{name}" not in unit.files:
            raise NotWhole(f"{folder}{name} is missing, which {_META} names")
        if unit.size(f"{folder}{name}") < end:
            raise NotWhole(
                f"{folder}{name} has {unit.size(f'{folder}{name}')} bytes, {_META} says {end} at least"
            )


def _stored(content: Sequence[Word]) -> Iterator[tuple[str, int]]:
    """(file, end of a tensor in it) for each ``relative_path, NAME, offset, N, length, N``."""
    for at in range(len(content) - 5):
        path, name, start, offset, extent, length = content[at : at + 6]
        if (path, start, extent) == ("relative_path", "offset", "length") and (
            isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)
        ):
            yield name, offset + length

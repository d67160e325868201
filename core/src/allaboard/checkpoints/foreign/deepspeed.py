"""A checkpoint of DeepSpeed: ``global_step500/``. The file ``latest`` beside it names it once all ranks are
done.

A folder whose name says a later step than ``latest`` has not come to its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from allaboard.checkpoints.foreign.files import check_files, check_torch, torch_words
from allaboard.checkpoints.foreign.pickled import Word, count_after
from allaboard.checkpoints.foreign.unit import Facts, NotKnown, NotWhole, Unit, check_last, name_step
from allaboard.errors import StorageMissing

FORMAT = "deepspeed"
LATEST = "latest"
_FOLDER = re.compile(r"global_step\d+")
_MODEL = re.compile(r"(?:zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt|layer_\d+-.*model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


def claims(unit: Unit) -> bool:
    return (
        any(unit.matching(_MODEL))
        or any(unit.matching(_OPTIMIZER))
        or _FOLDER.fullmatch(unit.base) is not None
    )


def facts(unit: Unit) -> Facts:
    models = [name for name, _ in unit.matching(_MODEL)]
    if not models:
        raise NotWhole("the states of the model are missing")
    check_files(unit)
    content = torch_words(check_torch(unit, models[0]))
    ranks = _check_ranks(unit, content)
    step = name_step(unit.base)
    _check_latest(unit, step)
    return Facts(step if step is not None else count_after(content, "global_steps"), ranks=ranks)


def _check_ranks(unit: Unit, content: Sequence[Word]) -> dict[str, int]:
    files = [(name, int(match[1]), int(match[2])) for name, match in unit.matching(_OPTIMIZER)]
    if not files and ("optimizer", None) in pairwise(content):
        raise NotWhole("the states of the optimizer are missing")
    if not files:
        return {}
    data_parallel = count_after(content, "dp_world_size")
    world = data_parallel or 1 + max(rank for _, rank, _ in files)
    for model_rank in {model for _, _, model in files}:
        there = {rank for _, rank, model in files if model == model_rank}
        missing = next((rank for rank in range(world) if rank not in there), None)
        if missing is not None:
            raise NotWhole(f"the optimizer's state of rank {missing} is missing")
    return {name: rank for name, rank, _ in files}


def _check_latest(unit: Unit, step: int | None) -> None:
    folder = unit.name.rpartition("/")[0]
    key = f"{folder}/{LATEST}" if folder else LATEST
    try:
        tag = unit.store.read(key, 0, 256).decode(errors="replace").strip()
        entry = unit.store.stat(key)
    except StorageMissing:
        raise NotWhole(f"the file {LATEST} is missing beside it, which is written last") from None
    if tag == unit.base and entry is not None:
        check_last(unit, (), entry.modified)
        return
    newest = name_step(tag)
    if step is None or newest is None:
        raise NotKnown(f"the file {LATEST} names another one, whose order is not known")
    if step > newest:
        raise NotWhole(f"the file {LATEST} names an earlier one")

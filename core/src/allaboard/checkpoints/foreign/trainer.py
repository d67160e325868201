"""A checkpoint of Hugging Face's Trainer: ``checkpoint-500/``. ``trainer_state.json`` is written last.

Weights come first, then optimizer, scheduler and the random states of each rank, then the state. Where
``training_args.bin`` says that more than the model is saved, the optimizer and the random states must be
there. A file that is newer than the state belongs to a save that has not come to its end, or to a copy that
did not keep times.
"""

from __future__ import annotations

import re

from allaboard.checkpoints.foreign.dcp import check_dcp
from allaboard.checkpoints.foreign.files import check_files, check_torch, torch_words
from allaboard.checkpoints.foreign.pickled import value_after
from allaboard.checkpoints.foreign.pretrained import STATE, check_weights, state_facts
from allaboard.checkpoints.foreign.unit import Facts, NotWhole, Unit, check_last, name_step, ranks_of

FORMAT = "huggingface-trainer"
FOLDER = re.compile(r"checkpoint-\d+")
_RANDOM = re.compile(r"rng_state_(\d+)\.pth")
_OPTIMIZER = re.compile(r"optimizer.*|global_step\d+/.+")
_MODEL_ELSEWHERE = re.compile(r"(?:global_step\d+|pytorch_model_fsdp_0)/.+")


def claims(unit: Unit) -> bool:
    return STATE in unit.files or FOLDER.fullmatch(unit.base) is not None


def facts(unit: Unit) -> Facts:
    if STATE not in unit.files:
        raise NotWhole(f"{STATE} is missing, which is written last")
    if not any(unit.matching(_MODEL_ELSEWHERE)):
        check_weights(unit)
    check_files(unit)
    check_dcp(unit)
    ranks = ranks_of(unit, _RANDOM)
    _check_state_of_training(unit)
    read = state_facts(unit)
    named = name_step(unit.base) if FOLDER.fullmatch(unit.base) else None
    if named is not None and named != read.step:
        raise NotWhole(f"{STATE} says step {read.step}, the folder's name {named}")
    check_last(unit, {STATE, *ranks}, unit.files[STATE].modified)
    return Facts(read.step, read.epoch, read.metrics, ranks)


def _check_state_of_training(unit: Unit) -> None:
    if "training_args.bin" not in unit.files:
        raise NotWhole("training_args.bin is missing")
    if value_after(torch_words(check_torch(unit, "training_args.bin")), "save_only_model") is not False:
        return
    if not any(unit.matching(_OPTIMIZER)):
        raise NotWhole("the state of the optimizer is missing")
    if not any(name.startswith("rng_state") for name in unit.files):
        raise NotWhole("the random states are missing")
    if "optimizer.pt" in unit.files and "scheduler.pt" not in unit.files:
        raise NotWhole("scheduler.pt is missing")

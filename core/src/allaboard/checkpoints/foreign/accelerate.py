"""A state of Accelerate (`save_state`): ``checkpoint_0/``. The random states of each rank are written after
weights, optimizers, schedulers and samplers; what the script registered itself comes behind them.
"""

from __future__ import annotations

import re

from allaboard.checkpoints.foreign.dcp import check_dcp
from allaboard.checkpoints.foreign.files import check_files
from allaboard.checkpoints.foreign.pretrained import check_weights
from allaboard.checkpoints.foreign.unit import Facts, NotWhole, Unit, check_last, name_step, ranks_of

FORMAT = "accelerate"
_FOLDER = re.compile(r"checkpoint_\d+")
_CUSTOM = "custom_checkpoint_"
_RANDOM = re.compile(r"random_states_(\d+)\.pkl")
_OTHERS = re.compile(r"(?:optimizer|scheduler|sampler)(?:_\d+)?\.bin")
"""Parts that no other library calls so, in a folder of any name: its examples save into ``step_500``."""
_MODEL_ELSEWHERE = re.compile(r"pytorch_model(?:_fsdp_\d+)?/.+")


def claims(unit: Unit) -> bool:
    is_part = any(unit.matching(_RANDOM)) or any(unit.matching(_OTHERS))
    return is_part or _FOLDER.fullmatch(unit.base) is not None


def facts(unit: Unit) -> Facts:
    ranks = ranks_of(unit, _RANDOM)
    if not ranks:
        raise NotWhole("the random states are missing, which are written last")
    if not any(unit.matching(_MODEL_ELSEWHERE)):
        check_weights(unit)
    check_files(unit)
    check_dcp(unit)
    custom = [name for name in unit.files if name.startswith(_CUSTOM)]
    check_last(unit, {*ranks, *custom}, max(unit.files[name].modified for name in ranks))
    return Facts(name_step(unit.base), ranks=ranks)

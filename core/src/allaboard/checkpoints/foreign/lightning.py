"""A checkpoint of Lightning: one ``.ckpt`` of `torch.save`, made by a rename."""

from __future__ import annotations

from allaboard.checkpoints.foreign.files import check_torch, torch_words
from allaboard.checkpoints.foreign.pickled import count_after
from allaboard.checkpoints.foreign.unit import Facts, NotKnown, Unit, name_metrics

FORMAT = "lightning"


def claims(unit: Unit) -> bool:
    return unit.is_file and unit.base.endswith(".ckpt")


def facts(unit: Unit) -> Facts:
    content = torch_words(check_torch(unit, unit.base))
    if "pytorch-lightning_version" not in content:
        raise NotKnown(f"{unit.base} was not written by Lightning")
    epoch = count_after(content, "epoch")
    return Facts(count_after(content, "global_step"), epoch, name_metrics(unit.base))

"""A file of `torch.save`: a zip archive, whose directory stands at its end."""

from __future__ import annotations

from allaboard.checkpoints.foreign.files import check_torch, torch_words
from allaboard.checkpoints.foreign.pickled import count_after
from allaboard.checkpoints.foreign.unit import Facts, Unit, name_epoch, name_metrics, name_step

FORMAT = "torch"


def claims(unit: Unit) -> bool:
    return unit.is_file and unit.base.rpartition(".")[2] in ("pt", "pth", "ckpt")


def facts(unit: Unit) -> Facts:
    content = torch_words(check_torch(unit, unit.base))
    step = count_after(content, "global_step", "step", "iteration")
    epoch = count_after(content, "epoch")
    name = unit.base
    return Facts(
        step if step is not None else name_step(name),
        epoch if epoch is not None else name_epoch(name),
        name_metrics(name),
    )

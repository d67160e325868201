"""Weights as `save_pretrained` writes them: safetensors, in shards with an index, or an adapter of PEFT.

The index names every shard, the header of each file its length. Weights of PEFT come before
``adapter_config.json``. Folders of safetensors alone are read the same way.
"""

from __future__ import annotations

import re

from allaboard.checkpoints.foreign.files import as_mapping, check_by_ending, check_files, check_shards
from allaboard.checkpoints.foreign.unit import (
    Facts,
    Judgement,
    NotWhole,
    Unit,
    Verdict,
    name_epoch,
    name_step,
)
from allaboard.checkpoints.metrics import plain
from allaboard.errors import BadInput

FORMAT = "safetensors"
STATE = "trainer_state.json"
_INDEX = re.compile(r"(?:.*/)?[^/]+\.(?:safetensors|bin)\.index\.json")
_SHARD = re.compile(r"(.*)-\d+-of-(\d+)\.(?:safetensors|bin)")
_WEIGHTS = re.compile(
    r"(?:(?:diffusion_pytorch_|adapter_)?model[^/]*|[^/]+-\d+-of-\d+)\.safetensors"
    r"|pytorch_model[^/]*\.bin|adapter_model\.bin"
)
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


def claims(unit: Unit) -> bool:
    names = unit.files.keys()
    return any(_WEIGHTS.fullmatch(n) or _INDEX.fullmatch(n) for n in names) or _ADAPTER[0] in names


def facts(unit: Unit) -> Facts:
    check_weights(unit)
    check_files(unit)
    if STATE in unit.files:
        return state_facts(unit)
    return Facts(name_step(unit.base), name_epoch(unit.base))


def is_bare(item: Judgement) -> bool:
    """True for whole weights in a numbered folder without what `save_pretrained` writes beside them: a
    configuration, or an index.
    """
    names = item.unit.files.keys()
    is_saved = any(name.endswith("config.json") or _INDEX.fullmatch(name) for name in names)
    is_whole = item.format == FORMAT and item.verdict is Verdict.WHOLE
    return is_whole and not is_saved and name_step(item.unit.base) is not None


def check_weights(unit: Unit) -> None:
    """The weights of a folder are there, with all that their index names. Raises NotWhole, NotKnown."""
    indexes = [name for name, _ in unit.matching(_INDEX)]
    for index in indexes:
        check_shards(unit, index)
    shards = [match for _, match in unit.matching(_SHARD)]
    if shards and not indexes:
        raise NotWhole("the index of the shards is missing")
    if any(name in unit.files for name in _ADAPTER):
        if not any(name in unit.files for name in _ADAPTER[1:]):
            raise NotWhole("the weights of the adapter are missing")
        if _ADAPTER[0] not in unit.files:
            raise NotWhole(f"{_ADAPTER[0]} is missing")
    weights = [name for name, _ in unit.matching(_WEIGHTS)]
    if not weights:
        raise NotWhole("the weights are missing")
    for name in weights:
        check_by_ending(unit, name)


def state_facts(unit: Unit) -> Facts:
    """Step, epoch and metrics of a ``trainer_state.json``: those that were logged at its step."""
    state = as_mapping(unit.json(STATE))
    step, epoch = state.get("global_step"), state.get("epoch")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 10**12:
        raise NotWhole(f"{STATE} says no global_step")
    history = state.get("log_history")
    entries = [as_mapping(entry) for entry in history] if isinstance(history, list) else []
    metrics = {
        name: value
        for entry in entries
        if entry.get("step") == step
        for name, value in entry.items()
        if name not in ("step", "epoch") and isinstance(value, (int, float))
    }
    try:
        metrics = plain(metrics)[0]
    except BadInput:
        metrics = {}
    return Facts(step, float(epoch) if isinstance(epoch, (int, float)) else None, metrics)

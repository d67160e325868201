"""The operators. Each module is imported on first use, so a DAG file pays only for what it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allaboard_provider.operators.checkpoints import CollectCheckpointOperator
    from allaboard_provider.operators.evaluate import EvaluateOperator
    from allaboard_provider.operators.pick import PickBestOperator
    from allaboard_provider.operators.promote import PromoteOperator
    from allaboard_provider.operators.shards import PrepareShardsOperator
    from allaboard_provider.operators.train import TrainingJobOperator

_WHERE = {
    "CollectCheckpointOperator": "checkpoints",
    "EvaluateOperator": "evaluate",
    "PickBestOperator": "pick",
    "PrepareShardsOperator": "shards",
    "PromoteOperator": "promote",
    "TrainingJobOperator": "train",
}

__all__ = [
    "PrepareShardsOperator",
    "TrainingJobOperator",
    "PickBestOperator",
    "CollectCheckpointOperator",
    "EvaluateOperator",
    "PromoteOperator",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)

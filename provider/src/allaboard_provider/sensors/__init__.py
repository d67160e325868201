"""The sensors: they wait for runs and checkpoints of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allaboard_provider.sensors.checkpoints import CheckpointSensor
    from allaboard_provider.sensors.train import TrainingJobSensor

_WHERE = {"CheckpointSensor": "checkpoints", "TrainingJobSensor": "train"}

__all__ = ["TrainingJobSensor", "CheckpointSensor"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)

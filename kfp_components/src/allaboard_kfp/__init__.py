"""allaboard for Kubeflow Pipelines: components over the allaboard core, and what a pipeline needs to chain
them.

    from allaboard_kfp import collect_checkpoint, evaluate, prepare_shards, promote, train

The components run the same under ``kfp.local`` and on a cluster. Importing this package imports nothing of
kfp: a step needs only `allaboard_kfp.runtime` and the core.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allaboard_kfp.components import (
        IMAGE,
        clean_up,
        collect_checkpoint,
        evaluate,
        import_checkpoint,
        make_clean_up,
        make_collect_checkpoint,
        make_evaluate,
        make_import_checkpoint,
        make_pick_best,
        make_prepare_shards,
        make_promote,
        make_train,
        pick_best,
        prepare_shards,
        promote,
        train,
        train_function,
    )
    from allaboard_kfp.identity import identified
    from allaboard_kfp.local_run import start_local

__version__ = "0.1.0"

__all__ = [
    "prepare_shards",
    "train",
    "train_function",
    "collect_checkpoint",
    "import_checkpoint",
    "evaluate",
    "pick_best",
    "promote",
    "clean_up",
    "make_prepare_shards",
    "make_train",
    "make_collect_checkpoint",
    "make_import_checkpoint",
    "make_evaluate",
    "make_pick_best",
    "make_promote",
    "make_clean_up",
    "IMAGE",
    "start_local",
    "identified",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"start_local": "local_run", "identified": "identity"}.get(name, "components")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

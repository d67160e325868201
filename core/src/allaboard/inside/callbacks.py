"""Callbacks for loops that are not the script's own. They report; on SIGTERM they have the library save, and
end the process with exit code 143.

    from allaboard.inside import TrainerCallback, LightningCallback, AccelerateTracker

    transformers.Trainer(..., callbacks=[TrainerCallback()])
    lightning.Trainer(..., callbacks=[LightningCallback()])
    tracker = AccelerateTracker(save=lambda: accelerator.save_state())
    accelerator = Accelerator(log_with=[tracker])     # and accelerator.log({...}, step=step) on all ranks

The classes are made when they are asked for: each imports its library.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from allaboard.inside.context import ranks
from allaboard.inside.report import _RESERVED, report, write_report
from allaboard.inside.shutdown import exit_at_once, shutdown


def _is_asked_to_end() -> bool:
    """Return whether any rank has got SIGTERM: all ranks ask together, and get one answer."""
    if ranks()[1] < 2:
        return shutdown.requested
    torch, dist = sys.modules["torch"], sys.modules["torch.distributed"]
    if not dist.is_initialized():
        return shutdown.requested
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    asked = torch.tensor(int(shutdown.requested), device=device)
    dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    return bool(asked.item())


def _numbers(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of what a library logs, that which is a number and no field of the line."""
    numbers = {}
    for name, value in (values or {}).items():
        number = value
        if hasattr(value, "item"):  # a scalar of torch or numpy
            try:
                number = value.item()
            except (TypeError, ValueError, RuntimeError):
                continue
        if isinstance(number, (int, float)) and not isinstance(number, bool) and name.isidentifier():
            numbers[name] = number
    return {name: value for name, value in numbers.items() if name not in ("step", "total", *_RESERVED)}


def _total(steps: Any) -> int | None:
    is_count = isinstance(steps, (int, float)) and math.isfinite(steps) and steps > 0
    return int(steps) if is_count else None


@cache
def _trainer_callback() -> type:
    base: Any = import_module("transformers").TrainerCallback

    class TrainerCallback(base):  # type: ignore[misc]
        """Of Hugging Face's Trainer."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            shutdown.install(ranks)
            if state.global_step:
                write_report("resumed", step=state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if state.global_step:
                report(state.global_step, _total(state.max_steps), **_numbers(logs))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if _is_asked_to_end():
                control.should_save = control.should_training_stop = True

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if control.should_training_stop and _is_asked_to_end():
                exit_at_once()

    return TrainerCallback


@cache
def _lightning_callback() -> type:
    base: Any = import_module("lightning.pytorch").Callback

    class LightningCallback(base):  # type: ignore[misc]
        """Of Lightning's Trainer. On SIGTERM it saves where ModelCheckpoint does, else in its root."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            shutdown.install(ranks)
            if trainer.global_step:
                write_report("resumed", step=trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            step = trainer.global_step
            total = _total(trainer.max_steps) or _total(trainer.estimated_stepping_batches)
            report(step, total, **_numbers(trainer.callback_metrics))
            if _is_asked_to_end():
                saver = trainer.checkpoint_callback
                folder = (saver.dirpath if saver is not None else None) or trainer.default_root_dir
                name = f"epoch={trainer.current_epoch}-step={step}.ckpt"
                trainer.save_checkpoint(Path(folder) / name)
                exit_at_once()

    return LightningCallback


@cache
def _accelerate_tracker() -> type:
    tracking: Any = import_module("accelerate.tracking")

    class AccelerateTracker(tracking.GeneralTracker):  # type: ignore[misc]
        """Of Accelerate: `Accelerator.log` reports; on SIGTERM ``save`` is called by all ranks."""

        name = "allaboard"
        requires_logging_directory = False
        main_process_only = False

        def __init__(self, save: Callable[[], Any] | None = None) -> None:
            super().__init__()
            self._save = save
            shutdown.install(ranks)

        @property
        def tracker(self) -> Any:
            return self

        def store_init_configuration(self, values: Any) -> None:
            """Nothing is kept: the job says it."""

        def log(self, values: Any, step: int | None = None, **_: Any) -> None:
            if step is not None:
                report(step, **_numbers(values))
            if _is_asked_to_end():
                if self._save is not None:
                    self._save()
                exit_at_once()

    return AccelerateTracker


_CLASSES: dict[str, Callable[[], type]] = {
    "TrainerCallback": _trainer_callback,
    "LightningCallback": _lightning_callback,
    "AccelerateTracker": _accelerate_tracker,
}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _CLASSES[name]()

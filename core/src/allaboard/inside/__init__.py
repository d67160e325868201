"""Optional help for a training script; a script that uses none of it still runs.

    from allaboard.inside import Checkpointer, ShardReader, context, report, result

Standard library only, torch where the script uses it; works with ``pip install --no-deps allaboard``, and
without allaboard around the process: then there is no run to speak of, and everything else behaves the same.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Light, and not lazy: imported later, these modules would take the place of the functions of the same name.
from allaboard.inside.context import context
from allaboard.inside.report import report, result

if TYPE_CHECKING:
    from allaboard.inside.checkpointer import Checkpointer
    from allaboard.inside.reader import ShardReader
    from allaboard.inside.resumed_checkpoint import open_checkpoint

    AccelerateTracker: Any
    """Tracker of Accelerate: ``Accelerator(log_with=[AccelerateTracker(save=...)])`` reports what is logged,
    and calls ``save`` once the process is asked to end. Raises ImportError without accelerate.
    """
    LightningCallback: Any
    """Callback of a Lightning ``Trainer``: reports steps and metrics, and saves once the process is asked to
    end. Raises ImportError without lightning.
    """
    TrainerCallback: Any
    """Callback of a ``transformers.Trainer``: reports steps and metrics, and saves once the process is asked
    to end. Raises ImportError without transformers.
    """

#: Without the callbacks, which need their libraries.
__all__ = ["Checkpointer", "ShardReader", "context", "open_checkpoint", "report", "result"]

if os.environ.get("ALLABOARD_RUN"):
    # Where the interpreter did not see allaboard's .pth: from an archive, or a folder on PYTHONPATH.
    import_module("allaboard.inside.startup.sitecustomize")

_LAZY = {
    "AccelerateTracker": "allaboard.inside.callbacks",
    "LightningCallback": "allaboard.inside.callbacks",
    "TrainerCallback": "allaboard.inside.callbacks",
    "Checkpointer": "allaboard.inside.checkpointer",
    "ShardReader": "allaboard.inside.reader",
    "open_checkpoint": "allaboard.inside.resumed_checkpoint",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

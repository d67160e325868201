"""allaboard schedules distributed training: all of a gang or nothing, followed, explained, its checkpoints
handed back.

>>> import allaboard
>>> outcome = allaboard.run("job.yaml")            # doctest: +SKIP
>>> outcome.state, outcome.metrics                 # doctest: +SKIP

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allaboard.errors import AllaboardError, BackendUnreachable, BadInput, Problem, TrainingFailed
    from allaboard.follow.loop import Outcome
    from allaboard.inspection import check
    from allaboard.observation import Observation, State
    from allaboard.running import attach, run, submit
    from allaboard.spec.job import TrainingJob

__version__ = "0.1.0"

_WHERE = {
    "AllaboardError": "errors",
    "BackendUnreachable": "errors",
    "BadInput": "errors",
    "Observation": "observation",
    "Outcome": "follow.loop",
    "Problem": "errors",
    "State": "observation",
    "TrainingFailed": "errors",
    "TrainingJob": "spec.job",
    "attach": "running",
    "check": "inspection",
    "run": "running",
    "submit": "running",
}

__all__ = [
    "AllaboardError",
    "BackendUnreachable",
    "BadInput",
    "Observation",
    "Outcome",
    "Problem",
    "State",
    "TrainingFailed",
    "TrainingJob",
    "attach",
    "check",
    "run",
    "submit",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

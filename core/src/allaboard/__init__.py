"""allaboard schedules distributed training: all of a gang or nothing, followed, explained, its checkpoints
handed back.

>>> import allaboard
>>> outcome = allaboard.run("job.yaml")            # doctest: +SKIP
>>> outcome.state, outcome.metrics                 # doctest: +SKIP

Nothing heavy is imported until it is used.

The rooms, top to bottom; each imports from lower lines alone (pyproject.toml, checked by `make check`)::

    cli                        the command line
    report                     what people are told of a run: lines, words, its page
    running   testing          run, submit, attach · fakes for the tests of users
    backends                   where members run: `local` (processes here) · `kubernetes`
    inside                     what a training script calls
    promotion                  which checkpoint is good enough, and which is the champion
    checkpoints   shards       files with a manifest, made complete or not at all
    storage                    a folder or S3
    inspection   checking      what is wrong with a job
    render                     from a job to the objects of a cluster
    gangs   engines            one file per gang scheduler, per operator's job
    follow                     what was seen becomes meaning: progress, record, restarts, outcome
    diagnosis                  why it waits or failed
    status                     what an observation means: one state
    layout   observation       the two waists: a job laid out · what is seen of a run
    spec                       what a person asks for: job, fields, identity, site
    errors  units  names  ...  words
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allaboard._version import __version__ as __version__

if TYPE_CHECKING:
    from allaboard.errors import AllaboardError, BackendUnreachable, BadInput, Problem, TrainingFailed
    from allaboard.follow.loop import Outcome
    from allaboard.inspection import check
    from allaboard.observation import Observation, State
    from allaboard.running import attach, run, submit
    from allaboard.spec.job import TrainingJob

_LAZY = {
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
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

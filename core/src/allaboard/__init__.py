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
    follow                     a run over time: progress, record, restarts, outcome
    diagnosis                  why a run waits or failed
    convert   lint             manifests become jobs · advice about jobs and manifests
    checking                   all problems of a job
    render                     from a job to the objects of a cluster
    gangs   engines            one file per gang scheduler, per operator's job
    runs                       the two values in the middle: a job laid out, a run observed
    job                        what a person asks for: fields, identity, where it is read from
    errors   text              every error · untrusted text, secrets, names, units
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from allaboard.checking.files import check
    from allaboard.errors import AllaboardError, BackendUnreachable, BadInput, Problem, TrainingFailed
    from allaboard.follow.loop import Outcome
    from allaboard.job.grid import grid
    from allaboard.job.training_job import TrainingJob
    from allaboard.running import attach, run, submit
    from allaboard.runs.observation import Observation, State

_LAZY = {
    "AllaboardError": "errors",
    "BackendUnreachable": "errors",
    "BadInput": "errors",
    "Observation": "runs.observation",
    "Outcome": "follow.loop",
    "Problem": "errors",
    "State": "runs.observation",
    "TrainingFailed": "errors",
    "TrainingJob": "job.training_job",
    "attach": "running",
    "check": "checking.files",
    "grid": "job.grid",
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
    "grid",
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

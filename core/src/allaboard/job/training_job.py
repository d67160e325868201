"""The training job as a person writes it: in Python, YAML or JSON, all the same thing.

`TrainingJob` holds exactly the fields that its author set, in the order of `FIELDS`; defaults are filled in
by `allaboard.runs.layout`, so that a hash of the job does not change when a default does. The constructor
refuses unknown fields (naming the nearest); values are checked by `allaboard.checking.job`, because a
templating tool may still have to fill them in. What each field is, `allaboard.job.vocabulary` says. Importing
this module is cheap (DAG files do it): no third-party module, no types of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from allaboard.errors import BadInput, Problem
from allaboard.text.untrusted import SpelledFloat, SpelledInt, plain_number, show, size_flaw

SOURCES = ("pvc", "claim", "empty_dir", "ephemeral", "host_path", "volume")
"""The fields of `Storage` of which each volume has one."""
CODE_LIMIT = 2**20
"""Bytes of all files that a job ships: what a ConfigMap may hold (Kubernetes: MaxSecretSize)."""
PACKED = "store://code"
"""Place of packed folders, unless the job names another one."""
ORPHAN_AFTER_MIN, ORPHAN_AFTER_MAX = 60.0, 86_400.0
"""Seconds. A client that lives is seen three times in the shortest; the Lease of one that died is kept for
the longest.
"""
UNLIMITED = 2**31 - 1
"""Number of ``unlimited`` restarts in a layout: the most that Kubernetes counts (int32)."""
FIELDS: tuple[str, ...] = (
    "name", "metadata", "framework", "engine", "image", "image_pull_policy", "command", "args", "workers",
    "groups", "resources", "processes_per_member", "elastic", "gang", "policy", "storage", "checkpoints",
    "data", "spot", "progress", "metrics", "code", "packages", "environment", "secrets", "service_account",
    "host_network", "security", "inject", "pod", "engine_spec", "fit",
)  # fmt: skip
"""Names of the fields of `allaboard.job.vocabulary.Fields`, in their order."""


class TrainingJob:
    """A training job. Two jobs are equal when their authors set the same fields. A job never changes; `with_`
    makes another.

    >>> TrainingJob(name="digits", command=["python", "train.py"], workers=2)
    TrainingJob(name='digits', command=['python', 'train.py'], workers=2)

    The fields are those of a job file (core/docs/job.md; ``allaboard explain FIELD``). Raises `BadInput` for
    a field that does not exist; `check` tells every other problem.
    """

    __slots__ = ("_fields", "folder", "source")
    __version__: ClassVar[int] = 1
    """Of what `serialize` gives."""

    def __init__(self, *, folder: str | None = None, source: str | None = None, **fields: Any) -> None:
        """``folder``: where relative paths of the job start (the job file's own folder); ``source``: the
        engine of the manifest that it was read from. Neither is part of the job.
        """
        unknown = [_unknown_field(name) for name in fields if name not in FIELDS]
        if unknown:
            raise BadInput("this job cannot be read:", unknown)
        # Copying what holds itself would never end.
        if (flaw := size_flaw(fields)) is not None:
            raise BadInput("this job cannot be read:", [Problem(*flaw)])
        self._fields = {name: copied(fields[name]) for name in FIELDS if fields.get(name) is not None}
        self.folder, self.source = folder, source

    @classmethod
    def of(cls, job: TrainingJob | Mapping[Any, Any], folder: str | None = None) -> TrainingJob:
        """The job itself, or the job that a mapping of fields says. Raises BadInput for anything else."""
        if isinstance(job, TrainingJob):
            return job
        if not isinstance(job, Mapping):
            raise BadInput(
                f"a job is a mapping of fields, not {type(job).__name__}; "
                "`allaboard schema` says what it may hold"
            )
        bad = [
            Problem(show(repr(k), quote=False), "a field's name is text; quote it")
            for k in job
            if not isinstance(k, str)
        ]
        if bad:
            raise BadInput("this job cannot be read:", bad)
        return cls(folder=folder, **job)

    @classmethod
    def of_function(
        cls,
        function: Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        *,
        folder: str | None = None,
        **fields: Any,
    ) -> TrainingJob:
        """The job in which every member calls a Python function, whose source is shipped in the command.

        >>> def train(lr, epochs=3):
        ...     import torch
        ...     return {"loss": 0.1}
        >>> job = TrainingJob.of_function(train, {"lr": 3e-4}, workers=4)  # doctest: +SKIP

        :param function: stands by itself: it imports and defines inside its body what it uses. Decorators and
            annotations are left out.
        :param arguments: JSON values by parameter; for the others the function has defaults.
        :param fields: of the job; its ``name`` is the function's unless it is given.

        What the function returns is the result of the run: a mapping of metrics, or one value as ``result``.
        With several GPUs or ``processes_per_member`` torchrun starts one process for each. Raises BadInput
        for a function that uses what a member does not have, with its names.
        """
        from allaboard.job.function import command_of_function
        from allaboard.text.names import as_job_name

        if taken := [name for name in ("command", "args", "groups") if fields.get(name) is not None]:
            raise BadInput(f"{taken[0]} is given beside a function, which is the command; leave it out")
        resources = fields.get("resources") or {}
        several = resources.get("gpu") not in (None, 0, 1, "0", "1")
        torchrun = several or fields.get("processes_per_member") not in (None, 1, "1")
        command = command_of_function(function, arguments or {}, torchrun)
        own = {"name": as_job_name(getattr(function, "__name__", "")), **fields, "command": command}
        return cls(folder=folder, **own)

    def with_(self, **changes: Any) -> TrainingJob:
        """Another job with some fields changed; None removes a field."""
        return TrainingJob(folder=self.folder, source=self.source, **{**self._fields, **changes})

    def as_mapping(self) -> dict[str, Any]:
        """The fields set, in fixed order: plain values, safe to change, ready for JSON or YAML."""
        return {name: copied(value, spelling=False) for name, value in self._fields.items()}

    def serialize(self) -> dict[str, Any]:
        """The job as plain JSON, all values and its folder included: how it goes from task to task."""
        return {"fields": self.as_mapping(), "folder": self.folder}

    @staticmethod
    def deserialize(data: Mapping[str, Any], version: int) -> TrainingJob:
        """The inverse of `serialize`. Raises BadInput for a value that is not a serialized job, or is one of
        a newer release that this one cannot read.
        """
        fields, folder = (data.get(name) for name in ("fields", "folder"))
        if version > TrainingJob.__version__ or not isinstance(fields, Mapping):
            raise BadInput(
                f"a TrainingJob in form {version} cannot be read; forms up to {TrainingJob.__version__} can: "
                "install the same release of allaboard wherever tasks run"
            )
        return TrainingJob.of(fields, folder if isinstance(folder, str) else None)

    def as_written(self) -> dict[str, Any]:
        """The same, with numbers that know how they were spelled: what `allaboard.checking.job` reads."""
        return {name: copied(value) for name, value in self._fields.items()}

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field as its author set it, else ``default``."""
        return self._fields.get(name, default)

    @property
    def name(self) -> str:
        """The field ``name``; empty where it is not set."""
        return str(self._fields.get("name", ""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainingJob) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(repr(self._fields))

    def __repr__(self) -> str:
        return f"TrainingJob({', '.join(f'{k}={v!r}' for k, v in self._fields.items())})"


def copied(value: Any, *, spelling: bool = True) -> Any:
    """The value in lists and dictionaries of its own; ``spelling``: numbers keep theirs."""
    if isinstance(value, Mapping):
        return {k: copied(v, spelling=spelling) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(v, spelling=spelling) for v in value]
    return (
        value if spelling else plain_number(value) if isinstance(value, (SpelledInt, SpelledFloat)) else value
    )


def _unknown_field(name: str) -> Problem:
    from allaboard.text.names import nearest

    return Problem(show(name, quote=False), "no such field", nearest(name, FIELDS))


def member_count(job: Mapping[str, Any]) -> int:
    """Members in all, by the rules of `workers`, `groups` and `elastic` (plain, checked values)."""
    groups = job.get("groups")
    if groups is not None:
        return sum(g.get("replicas", 1) if isinstance(g, Mapping) else g for g in groups.values())
    elastic = job.get("elastic") or {}
    return int(job.get("workers", elastic.get("max", elastic.get("min", 1))))


def shipped_files(job: TrainingJob) -> list[str]:
    """The files that a job ships from its folder."""
    code = job.get("code")
    return [] if code is None or isinstance(code, Mapping) else list(code)


def is_shared(job: TrainingJob, path: str) -> bool:
    """True if a path lies in a volume that all members on a cluster see and that outlives them."""
    shared = [s["mount"] for s in job.get("storage", ()) if {"pvc", "claim", "volume"} & {*s}]
    return any(is_below(path, mount) for mount in shared)


def is_below(path: str, mount: str) -> bool:
    """True if a path is a mount, or lies within it."""
    return path == mount.rstrip("/") or path.startswith(f"{mount.rstrip('/')}/")

"""The training job as a person writes it: in Python, YAML or JSON, all the same thing.

`TrainingJob` holds exactly the fields that its author set, in the order of `FIELDS`; defaults are filled in
by `allaboard.layout`, so that a hash of the job does not change when a default does. The constructor refuses
unknown fields (naming the nearest); values are checked by `allaboard.checking`, because a templating tool may
still have to fill them in. The typed dictionaries below are the vocabulary: `check` and `schema` are both
derived from them, so a field is described once. Importing this module is cheap (DAG files do it): no
third-party module, no class is built twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from allaboard.errors import BadInput, Problem

Framework = Literal["pytorch", "tensorflow", "mpi", "xgboost", "paddle", "jax", "mxnet"]
RestartWord = Literal["never", "on_failure", "always", "exit_code"]
CleanWord = Literal["none", "running", "all"]
FitWord = Literal["shrink", "strict"]


class Resources(TypedDict, total=False):
    """What each member needs. Only what is stated counts."""

    cpu: Annotated[str | int | float, "cores", "cores per member: 2, 0.5 or 500m"]
    memory: Annotated[str | int, "size", "memory per member: 512Mi, 32Gi"]
    gpu: Annotated[int, "count0", "GPUs per member"]
    gpu_type: Annotated[str, "text", "the node label value of the GPU, or label=value"]
    mig: Annotated[str, "text", "a MIG profile, e.g. 1g.10gb"]
    shared: Annotated[bool, "bool", "share GPUs with other pods (time slicing, MPS)"]


class Group(TypedDict, total=False):
    """Equal members of one role; what it sets overrides the job's."""

    replicas: Annotated[int, "count1", "how many members"]
    resources: Annotated[Resources, "group", "what each member of this group needs"]
    command: Annotated[list[str], "command", "the command of this group's members"]
    environment: Annotated[dict[str, str], "environment", "added to the job's environment"]


class Elastic(TypedDict, total=False):
    """The gang may lose and gain members between ``min`` and ``max`` (torchrun)."""

    min: Annotated[int, "count1", "members needed to train"]
    max: Annotated[int, "count1", "members at most"]
    max_restarts: Annotated[int, "count0", "worker restarts that torchrun allows (PET_MAX_RESTARTS)"]
    rendezvous: Annotated[Literal["c10d", "etcd", "etcd-v2"], "choice", "torchrun's rendezvous backend"]
    rendezvous_conf: Annotated[dict[str, str], "environment", "more of torchrun's --rdzv-conf"]


class Topology(TypedDict, total=False):
    require: Annotated[str, "text", "all members within one such domain: rack, block, zone"]
    prefer: Annotated[str, "text", "the same, if possible"]


class Gang(TypedDict, total=False):
    """Who starts all of it or nothing, on a cluster."""

    scheduler: Annotated[str, "text", "auto, none, or a gang scheduler: coscheduling, workload"]
    queue: Annotated[str, "text", "the queue"]
    priority: Annotated[str, "text", "the priority class"]
    timeout: Annotated[str | int | float, "duration", "give up waiting for the gang after this long"]
    topology: Annotated[Topology, "group", "how close together"]


class Clocks(TypedDict, total=False):
    """Limits of phases. Each stands still while an earlier phase holds it; none by default, but that on a
    cluster what can never start has failed after 10 minutes.
    """

    admitted: Annotated[str | int | float, "duration", "from the submission until the queue lets it in"]
    scheduled: Annotated[str | int | float, "duration", "until every member has a place"]
    image: Annotated[str | int | float, "duration", "until every image is there"]
    rendezvous: Annotated[str | int | float, "duration", "until the members have met"]
    first_step: Annotated[str | int | float, "duration", "until the first step is reported"]
    training: Annotated[str | int | float, "duration", "until the end"]


class Policy(TypedDict, total=False):
    """What happens when members end, and when the whole job ends."""

    restart: Annotated[RestartWord, "choice", "when a member is started again"]
    backoff_limit: Annotated[int, "count0", "restarts in all before the job fails; 3 when absent"]
    deadline: Annotated[str | int | float, "duration", "fail when it has been active this long"]
    ttl: Annotated[str | int | float, "duration", "delete the ended job, logs included, after this long"]
    clean_pods: Annotated[CleanWord, "choice", "which members are removed at the end"]
    suspend: Annotated[bool, "bool", "start suspended"]
    attempts: Annotated[int, "count1", "tries of the whole job when it may be retried"]
    clocks: Annotated[Clocks, "group", "limits of phases"]


class Storage(TypedDict, total=False):
    mount: Annotated[str, "path", "where the members see it"]
    pvc: Annotated[str, "text", "a PersistentVolumeClaim"]
    empty_dir: Annotated[Literal["memory", "disk"], "choice", "scratch space of each member"]
    size: Annotated[str | int, "size", "the size of empty_dir"]
    read_only: Annotated[bool, "bool", "mounted read-only"]


class Best(TypedDict, total=False):
    metric: Annotated[str, "text", "the metric that decides"]
    mode: Annotated[Literal["min", "max"], "choice", "which end is better"]


class Checkpoints(TypedDict, total=False):
    uri: Annotated[
        str, "text", "a folder or s3://bucket/prefix; store://name hangs off the connection's store"
    ]
    every: Annotated[str | int, "every", "50 (steps) or 10m"]
    keep: Annotated[int, "count1", "how many of the newest are kept"]
    best: Annotated[Best, "group", "which one is the best"]
    start_from: Annotated[
        str, "text", "none, champion (what store://<name> has promoted last) or the uri of a checkpoint"
    ]


class Data(TypedDict, total=False):
    shards: Annotated[str, "text", "where the shards are: a folder, s3:// or store://"]


class Spot(TypedDict, total=False):
    tolerate: Annotated[bool, "bool", "may run where members are taken away"]
    grace: Annotated[str | int | float, "duration", "time between SIGTERM and SIGKILL"]


class Secret(TypedDict, total=False):
    name: Annotated[str, "text", "the secret"]
    env: Annotated[bool, "bool", "every key becomes an environment variable"]
    mount: Annotated[str, "path", "every key becomes a file in this folder"]


class Fields(TypedDict, total=False):
    """Every field of a job."""

    name: Annotated[str, "job_name", "the job's name; its runs are called <name>-<hash>"]
    framework: Annotated[Framework, "choice", "what trains"]
    engine: Annotated[str, "text", "auto, or the kind of job object"]
    image: Annotated[str, "text", "the container image"]
    command: Annotated[list[str], "command", "program and arguments of every member"]
    workers: Annotated[
        int, "count1", "members in all: 1 master and the rest workers, or workers alone when elastic"
    ]
    groups: Annotated[dict[str, int | Group], "groups", "members by role: {master: 1, worker: 2}"]
    resources: Annotated[Resources, "group", "what each member needs"]
    processes_per_member: Annotated[str | int, "processes", "auto, cpu, gpu or a number"]
    elastic: Annotated[Elastic, "group", "members may come and go"]
    gang: Annotated[Gang, "group", "all or nothing, on a cluster"]
    policy: Annotated[Policy, "group", "restarts, limits, clean-up"]
    storage: Annotated[list[Storage], "list", "volumes"]
    checkpoints: Annotated[Checkpoints, "group", "where the state is kept"]
    data: Annotated[Data, "group", "what is trained on"]
    spot: Annotated[Spot, "group", "members may be taken away"]
    code: Annotated[list[str], "paths", "small files shipped with the job"]
    environment: Annotated[dict[str, str], "environment", "variables of every member"]
    secrets: Annotated[list[Secret], "list", "secrets, by reference"]
    pod: Annotated[
        dict[str, Any], "any", "merged over the pod template last, on a cluster: metadata and spec"
    ]
    engine_spec: Annotated[
        dict[str, Any], "any", "spec of the engine's own object, on a cluster: what no other field says"
    ]
    fit: Annotated[FitWord, "choice", "on one machine: shrink to what is there, or refuse"]


FIELDS: tuple[str, ...] = tuple(Fields.__annotations__)


class TrainingJob:
    """A training job. Equal when the fields set are equal; never changed, `with_` makes another.

    >>> TrainingJob(name="digits", command=["python", "train.py"], workers=2)
    TrainingJob(name='digits', command=['python', 'train.py'], workers=2)

    Raises `BadInput` for a field that does not exist. Everything else is said by `allaboard.checking`.
    """

    __slots__ = ("_fields", "folder")

    def __init__(self, *, folder: str | None = None, **fields: Any) -> None:
        """``folder``: where relative paths of the job start (the job file's own folder); not part of the
        job.
        """
        unknown = [_unknown_field(name) for name in fields if name not in Fields.__annotations__]
        if unknown:
            raise BadInput("this job cannot be read:", unknown)
        self._fields = {n: _plain(fields[n], n in _PATCHES) for n in FIELDS if fields.get(n) is not None}
        self.folder = folder

    @classmethod
    def of(cls, job: TrainingJob | Mapping[Any, Any], folder: str | None = None) -> TrainingJob:
        """The job itself, or the job that a mapping says."""
        if isinstance(job, TrainingJob):
            return job
        if not isinstance(job, Mapping):
            raise BadInput(
                f"a job is a mapping of fields, not {type(job).__name__}; "
                "`allaboard schema` says what it may hold"
            )
        bad = [Problem(str(k), "a field's name is text") for k in job if not isinstance(k, str)]
        if bad:
            raise BadInput("this job cannot be read:", bad)
        return cls(folder=folder, **job)

    def with_(self, **changes: Any) -> TrainingJob:
        """Another job with some fields changed; None removes a field."""
        return TrainingJob(folder=self.folder, **{**self._fields, **changes})

    def as_mapping(self) -> dict[str, Any]:
        """The fields set, in fixed order: plain values, safe to change, ready for JSON or YAML."""
        return {name: _plain(value, name in _PATCHES) for name, value in self._fields.items()}

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(name, default)

    @property
    def name(self) -> str:
        return str(self._fields.get("name", ""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainingJob) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(repr(self._fields))

    def __repr__(self) -> str:
        return f"TrainingJob({', '.join(f'{k}={v!r}' for k, v in self._fields.items())})"


_PATCHES = frozenset({"pod", "engine_spec"})
"""Fields that are merged over objects: there null removes what stands below it."""


def _plain(value: Any, nulls: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v, nulls) for k, v in value.items() if nulls or v is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(v, nulls) for v in value]
    return value


def _unknown_field(name: str) -> Problem:
    from allaboard.names import nearest

    return Problem(name, "no such field", nearest(name, FIELDS))


def member_count(job: Mapping[str, Any]) -> int:
    """Members in all, by the rules of `workers`, `groups` and `elastic` (plain, checked values)."""
    groups = job.get("groups")
    if groups is not None:
        return sum(g.get("replicas", 1) if isinstance(g, Mapping) else g for g in groups.values())
    elastic = job.get("elastic") or {}
    return int(job.get("workers", elastic.get("max", elastic.get("min", 1))))

"""The training job as a person writes it: in Python, YAML or JSON, all the same thing.

`TrainingJob` holds exactly the fields that its author set, in the order of `FIELDS`; defaults are filled in
by `allaboard.runs.layout`, so that a hash of the job does not change when a default does. The constructor
refuses unknown fields (naming the nearest); values are checked by `allaboard.checking.job`, because a
templating tool may still have to fill them in. The typed dictionaries below are the vocabulary: `check`
and `schema` are both derived from them, so a field is described once. Importing this module is cheap (DAG
files do it): no third-party module, no class is built twice.

A field is ``Annotated[type, kind, doc, example, default]``. ``kind`` says how `allaboard.job.fields` reads
it; ``example`` is a right value, None for fields that are explained one by one; ``default`` is what an absent
one means, in words, left out where that is: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypedDict

from allaboard.errors import BadInput, Problem
from allaboard.text.untrusted import SpelledFloat, SpelledInt, plain_number, show, size_flaw

Framework = Literal["pytorch", "tensorflow", "mpi", "xgboost", "paddle", "jax", "mxnet"]
RestartWord = Literal["never", "on_failure", "always", "exit_code"]
HangWord = Literal["tell", "restart", "fail"]
AskWord = Literal["exec", "file"]
OrphanWord = Literal["stop", "finish"]
ORPHAN_AFTER_MIN, ORPHAN_AFTER_MAX = 60.0, 86_400.0
"""Seconds. A client that lives is seen three times in the shortest; the Lease of one that died is kept for
the longest.
"""
CleanWord = Literal["none", "running", "all"]
FitWord = Literal["shrink", "strict"]
PullWord = Literal["always", "if_not_present", "never"]


class Resources(TypedDict, total=False):
    """Resources of each member. Only stated ones count."""

    cpu: Annotated[str | int | float, "cores", "cores per member: 2, 0.5 or 500m", 2]
    memory: Annotated[str | int, "size", "memory per member: 512Mi, 32Gi", "32Gi"]
    gpu: Annotated[int, "gpus", "GPUs per member", 1, "0"]
    gpu_type: Annotated[
        str, "gpu_type", "the node label value of the GPU, or label=value", "NVIDIA-H100-80GB-HBM3"
    ]
    mig: Annotated[str, "mig", "a MIG profile, e.g. 1g.10gb", "1g.10gb"]
    shared: Annotated[bool, "bool", "share GPUs with other pods (time slicing, MPS)", True, "false"]
    devices: Annotated[
        dict[str, int],
        "devices",
        "other devices of the nodes, by their name",
        {"rdma/hca_shared_devices_a": 1},
    ]
    device_class: Annotated[
        str,
        "object",
        "gpu, or mig, are devices of this DeviceClass (DRA)",
        "gpu.nvidia.com",
        "none: GPUs of the device plugin",
    ]
    device_selector: Annotated[
        str,
        "expression",
        "which devices of device_class: a CEL expression that is true of each",
        "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'",
    ]


class Group(TypedDict, total=False):
    """Equal members of one role; what it sets overrides the job's."""

    replicas: Annotated[int, "members", "how many members", 3, "1"]
    resources: Annotated[Resources, "group", "what each member of this group needs", None, "the job's"]
    image: Annotated[str, "image", "the image of this group's members", "registry.lab/ml/ps:v3", "the job's"]
    command: Annotated[
        list[str], "command", "the command of this group's members", ["python", "worker.py"], "the job's"
    ]
    args: Annotated[
        list[str],
        "args",
        "the arguments of this group's members",
        ["--role=worker"],
        "the job's, unless the group has a command",
    ]
    environment: Annotated[
        dict[str, str], "environment", "added to the job's environment", {"NCCL_DEBUG": "INFO"}
    ]
    restart: Annotated[
        RestartWord, "choice", "when a member of this group is started again", "never", "policy.restart"
    ]
    pod: Annotated[
        dict[str, Any],
        "any",
        "merged over the pod template of this group after the job's pod",
        {"spec": {"hostNetwork": True}},
    ]


class Elastic(TypedDict, total=False):
    """The gang may lose and gain members between ``min`` and ``max`` (torchrun)."""

    min: Annotated[int, "members", "members needed to train", 2, "max, or the number of workers"]
    max: Annotated[int, "members", "members at most", 4, "the number of workers"]
    max_restarts: Annotated[
        int, "count0", "worker restarts that torchrun allows (PET_MAX_RESTARTS)", 3, "torchrun's own"
    ]
    rendezvous: Annotated[
        Literal["c10d", "etcd", "etcd-v2"], "choice", "torchrun's rendezvous backend", "c10d", "c10d"
    ]
    rendezvous_conf: Annotated[
        dict[str, str], "environment", "more of torchrun's --rdzv-conf", {"join_timeout": "600"}
    ]


class Topology(TypedDict, total=False):
    """Distance at which the members are placed."""

    require: Annotated[
        str,
        "domain",
        "all members within one such domain: a node label, host, zone, region or nvlink; a tier of Volcano",
        "topology.example.com/rack",
    ]
    prefer: Annotated[str, "domain", "the same, if possible", "zone"]


class Gang(TypedDict, total=False):
    """Scheduler that starts all members of a job or none, on a cluster."""

    scheduler: Annotated[
        str,
        "text",
        "auto, none, or a gang scheduler: coscheduling, kai, volcano, workload, yunikorn",
        "coscheduling",
        "auto",
    ]
    queue: Annotated[str, "queue", "the queue; of no meaning on one machine", "research"]
    priority: Annotated[
        str,
        "object",
        "the priority class; in a queue of Kueue also a WorkloadPriorityClass; of no meaning on one machine",
        "high",
    ]
    timeout: Annotated[str | int | float, "duration", "give up waiting for the gang after this long", "10m"]
    topology: Annotated[Topology, "group", "how close together"]
    require: Annotated[
        bool, "bool", "refuse to start where nothing starts all members together", True, "false"
    ]


class Clocks(TypedDict, total=False):
    """Limits of phases. Each stands still while an earlier phase holds it; none by default, but that on a
    cluster what can never start has failed after 10 minutes.
    """

    admitted: Annotated[
        str | int | float, "duration", "from coming into its queue until it is let in, each time", "12h"
    ]
    scheduled: Annotated[str | int | float, "duration", "until every member has a place", "1h"]
    image: Annotated[str | int | float, "duration", "until every image is there", "20m"]
    rendezvous: Annotated[str | int | float, "duration", "until the members have met", "10m"]
    first_step: Annotated[str | int | float, "duration", "until the script reports a step", "30m"]
    training: Annotated[
        str | int | float,
        "duration",
        "from the first step that the script reports until the end; without reports it never begins",
        "12h",
    ]


class Hang(TypedDict, total=False):
    """Treatment of a run without progress: no reported step, no line of a member, no checkpoint."""

    after: Annotated[
        str | int | float,
        "patience",
        "how long it may make no progress; auto: 10 minutes, or three times as long as it ever took before",
        "15m",
        "auto",
    ]
    then: Annotated[
        HangWord,
        "choice",
        "tell says which rank holds up the others; restart starts all members again, as often as "
        "backoff_limit allows; fail ends the run",
        "restart",
        "tell",
    ]
    ask: Annotated[
        AskWord,
        "choice",
        "how members on a cluster are asked where they are: exec runs a script in their containers; file, "
        "where exec is not allowed, has them read a file of their pod and answer in their logs, within two "
        "minutes",
        "file",
        "exec",
    ]


class Orphan(TypedDict, total=False):
    """Treatment of a run on a cluster that no client follows any more."""

    after: Annotated[
        str | int | float,
        "duration",
        "how long a client may stay away, from 1m to 1d; a reaper counts only time in which the API server "
        "answered",
        "3h",
        "1h; 10m for a run of the command line",
    ]
    then: Annotated[
        OrphanWord,
        "choice",
        "stop ends the members, who may save; finish lets them train to their end and hold their GPUs until "
        "then, though no client keeps clocks, policy.hang and further attempts",
        "finish",
        "stop",
    ]


class Policy(TypedDict, total=False):
    """Rules for the end of members, and for the end of the whole job."""

    restart: Annotated[RestartWord, "choice", "when a member is started again", "on_failure", "on_failure"]
    backoff_limit: Annotated[
        int | Literal["unlimited"],
        "limit",
        "restarts in all before the job fails, or unlimited; 3 when absent",
        5,
        "3",
    ]
    deadline: Annotated[str | int | float, "duration", "fail when it has been active this long", "12h"]
    ttl: Annotated[
        str | int | float, "duration", "delete the ended job, logs included, after this long", "1d"
    ]
    clean_pods: Annotated[CleanWord, "choice", "which members are removed at the end", "all", "running"]
    suspend: Annotated[bool, "bool", "start suspended", True, "false"]
    attempts: Annotated[
        int,
        "count1",
        "tries of the whole job if it may be retried; preemptions, evictions and lost nodes do not count",
        2,
        "3; 1 under Airflow, whose retries own it, and in a step's own pod of KFP",
    ]
    clocks: Annotated[Clocks, "group", "limits of phases"]
    hang: Annotated[Hang, "group", "what happens to a run that makes no progress"]
    orphan: Annotated[Orphan, "group", "what happens to a run on a cluster that no client follows any more"]


class Metadata(TypedDict, total=False):
    """Labels and annotations of the job object beside allaboard's own; pods have theirs in ``pod``."""

    labels: Annotated[
        dict[str, str], "labels", "labels of the job object", {"kueue.x-k8s.io/queue-name": "research"}
    ]
    annotations: Annotated[
        dict[str, str], "annotations", "annotations of the job object", {"example.com/owner": "vision"}
    ]


class Claim(TypedDict, total=False):
    """A PersistentVolumeClaim that allaboard makes; all attempts of a run share it."""

    size: Annotated[str | int, "size", "how much it holds at least", "500Gi"]
    storage_class: Annotated[
        str, "object", "the StorageClass that provides it", "cephfs", "the cluster's default class"
    ]
    access: Annotated[
        Literal["many", "once", "once_pod"],
        "choice",
        "how it may be mounted: by many nodes, by one node, by one pod",
        "many",
        "many for several members, else once",
    ]
    keep: Annotated[
        Literal["run", "always"],
        "choice",
        "run: it goes when the run is deleted, or forgotten 30 days after its end; always: one for all runs "
        "of the job, which allaboard never deletes",
        "always",
        "run",
    ]


class Ephemeral(TypedDict, total=False):
    """A volume of its own for each member, which goes with the member's pod: node-local SSD, for example."""

    size: Annotated[str | int, "size", "how much it holds at least", "200Gi"]
    storage_class: Annotated[
        str, "object", "the StorageClass that provides it", "local-ssd", "the cluster's default class"
    ]


class Storage(TypedDict, total=False):
    """One volume of every member, from one source."""

    mount: Annotated[str, "path", "where the members see it", "/data"]
    pvc: Annotated[str, "object", "a PersistentVolumeClaim that is there already", "datasets"]
    claim: Annotated[Claim, "group", "a PersistentVolumeClaim that is made for the run or the job"]
    empty_dir: Annotated[Literal["memory", "disk"], "choice", "scratch space of each member", "disk"]
    size: Annotated[str | int, "size", "the size of empty_dir", "16Gi"]
    ephemeral: Annotated[Ephemeral, "group", "a volume of each member that goes with its pod"]
    host_path: Annotated[
        str,
        "path",
        "a folder of the node; refused where Pod Security enforces baseline or restricted",
        "/mnt/ssd",
    ]
    volume: Annotated[
        dict[str, Any],
        "source",
        "any other source of a volume, in the words of Kubernetes: csi, nfs and the like",
        {"csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": {"bucketName": "photos"}}},
    ]
    read_only: Annotated[bool, "bool", "mounted read-only", True, "false"]


class Best(TypedDict, total=False):
    """Rule by which a checkpoint is the best."""

    metric: Annotated[str, "text", "the metric that decides", "val_loss"]
    mode: Annotated[Literal["min", "max"], "choice", "which end is better", "max", "min"]


class Hot(TypedDict, total=False):
    """A second copy of the newest state on fast storage that may vanish. What resumes takes it where it is
    newer than what the uri has, and writes it there first.
    """

    folder: Annotated[str, "path", "a folder below a mount of storage, like ephemeral or host_path", "/hot"]
    every: Annotated[str | int, "every", "50 (steps) or 1m", 50, "when the script says so"]


class Checkpoints(TypedDict, total=False):
    """Place and interval of the saved state, and the checkpoint that a run starts from."""

    uri: Annotated[
        str,
        "place",
        "a folder or s3://bucket/prefix; store://name hangs off the connection's store",
        "store://digits",
    ]
    format: Annotated[
        Literal["auto"],
        "choice",
        "auto: checkpoints that other libraries write into the uri, or into the run's folder below it, are "
        "known once they are whole, and {checkpoint} in the command is the newest of them",
        "auto",
        "those of allaboard alone",
    ]
    folder: Annotated[
        str,
        "folder",
        "the folder into which a script saves that knows no uri, relative to its working folder or absolute; "
        "whole checkpoints in it are copied to the uri while it trains, and the newest comes back before "
        "a start elsewhere",
        "out",
        "the script saves into the uri",
    ]
    every: Annotated[str | int, "every", "50 (steps) or 10m", "10m", "when the script says so"]
    keep: Annotated[int, "count1", "how many of the newest are kept", 3, "all"]
    best: Annotated[Best, "group", "which one is the best"]
    hot: Annotated[Hot, "group", "a second copy, on fast storage that may vanish"]
    start_from: Annotated[
        str,
        "place",
        "none, champion (what store://<name> has promoted last) or the uri of a checkpoint",
        "champion",
        "none",
    ]


class Data(TypedDict, total=False):
    """Data that the job trains on."""

    shards: Annotated[
        str, "place", "where the shards are: a folder, s3:// or store://", "s3://bucket/imagenet-shards"
    ]


Metrics = TypedDict(
    "Metrics",
    {
        "from": Annotated[
            str,
            "place",
            "the file, or the folder of the files: below the folder in which members start, s3:// or "
            "store://; on a cluster a uri, because nobody else sees a member's disk",
            "runs",
        ]
    },
    total=False,
)
"""Files in which the script keeps its metrics: event files of TensorBoard, tables, states of Trainer."""


class Spot(TypedDict, total=False):
    """Members on capacity that may be taken away."""

    tolerate: Annotated[bool, "bool", "may run where members are taken away", True, "false"]
    prefer: Annotated[bool, "bool", "prefers nodes that may be taken away, and tolerates them", True, "false"]
    grace: Annotated[str | int | float, "duration", "time between SIGTERM and SIGKILL", "2m", "30s"]


class Secret(TypedDict, total=False):
    """A secret by reference: a Secret of the cluster, or a folder on one machine."""

    name: Annotated[str, "object", "the secret", "aws-credentials"]
    env: Annotated[bool, "bool", "every key becomes an environment variable", True, "false"]
    mount: Annotated[str, "path", "every key becomes a file in this folder", "/etc/aws"]


class Code(TypedDict, total=False):
    """A git repository, or a packed folder, that members fetch before their command starts in it."""

    git: Annotated[str, "repository", "its URL: https, ssh or file", "https://github.com/team/train.git"]
    ref: Annotated[
        str, "ref", "a branch or a tag; its commit is recorded at the launch", "main", "the default branch"
    ]
    commit: Annotated[
        str,
        "commit",
        "the commit itself, 40 hexadecimal digits",
        "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
        "that of ref",
    ]
    secret: Annotated[
        str, "object", "the secret whose key token is the password of a private repository", "git-token"
    ]
    folder: Annotated[
        str, "file", "in place of git: a folder, packed into the store when the run is launched", "src"
    ]
    store: Annotated[str, "place", "where packed folders are kept", "store://code", "store://code"]
    digest: Annotated[
        str,
        "digest",
        "the SHA-256 of the packed folder, which is in the store",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "that of folder",
    ]


class Packages(TypedDict, total=False):
    """Python packages that each member installs before its command starts."""

    install: Annotated[
        list[str],
        "requirements",
        "lines of a requirements file; with --hash=sha256:... in each, nothing else is taken",
        ["einops==0.8.0"],
    ]
    index: Annotated[
        str, "index", "the URL of the package index", "https://pypi.lab/simple", "that of pip's configuration"
    ]


class Fields(TypedDict, total=False):
    """Every field of a job."""

    name: Annotated[str, "job_name", "the job's name; its runs are called <name>-<hash>", "digits"]
    metadata: Annotated[Metadata, "group", "labels and annotations of the job object, on a cluster"]
    framework: Annotated[Framework, "choice", "what trains", "pytorch", "pytorch"]
    engine: Annotated[str, "text", "auto, or the kind of job object", "pytorchjob", "auto"]
    image: Annotated[
        str, "image", "the container image", "registry.lab/ml/train:v3", "ALLABOARD_IMAGE, on a cluster"
    ]
    image_pull_policy: Annotated[
        PullWord,
        "choice",
        "when nodes pull images, on a cluster",
        "if_not_present",
        "if_not_present; always where an image has the tag latest or none",
    ]
    command: Annotated[list[str], "command", "program and arguments of every member", ["python", "train.py"]]
    args: Annotated[
        list[str],
        "args",
        "arguments after command; alone, on a cluster, those of the image's entrypoint",
        ["--epochs=20"],
    ]
    workers: Annotated[
        int,
        "members",
        "members in all: of pytorch 1 master and the rest workers, or workers alone when elastic",
        4,
        "1",
    ]
    groups: Annotated[
        dict[str, int | Group],
        "groups",
        "members by role: {master: 1, worker: 2}",
        {"master": 1, "worker": {"replicas": 2, "resources": {"gpu": 2}}},
        "what workers says",
    ]
    resources: Annotated[Resources, "group", "what each member needs"]
    processes_per_member: Annotated[
        str | int, "processes", "auto, cpu, gpu or a number", 4, "auto with GPUs, else 1"
    ]
    elastic: Annotated[Elastic, "group", "members may come and go"]
    gang: Annotated[Gang, "group", "all or nothing, on a cluster"]
    policy: Annotated[Policy, "group", "restarts, limits, clean-up"]
    storage: Annotated[list[Storage], "list", "volumes"]
    checkpoints: Annotated[Checkpoints, "group", "where the state is kept"]
    data: Annotated[Data, "group", "what is trained on"]
    spot: Annotated[Spot, "group", "members may be taken away"]
    progress: Annotated[
        str,
        "progress",
        "how the script prints its progress, where it is no known library's way: a regular expression with a "
        "group named step, and total, epoch or any other number; off: only what it reports itself",
        r"step (?P<step>\d+) of (?P<total>\d+), loss (?P<loss>\S+)",
        "what known libraries print",
    ]
    metrics: Annotated[
        Metrics,
        "group",
        "files with the script's metrics: TensorBoard's event files, metrics.csv, trainer_state.json; read "
        "where a status or a page is asked for",
    ]
    code: Annotated[
        list[str] | Code, "code", "small files shipped with the job, or a git repository", ["train.py"]
    ]
    packages: Annotated[
        list[str] | Packages,
        "packages",
        "Python packages that each member installs before its command",
        ["einops==0.8.0"],
    ]
    environment: Annotated[dict[str, str], "environment", "variables of every member", {"NCCL_DEBUG": "WARN"}]
    secrets: Annotated[list[Secret], "list", "secrets, by reference"]
    service_account: Annotated[
        str,
        "object",
        "the ServiceAccount of the members, on a cluster: a cloud's identity for buckets hangs off it",
        "trainer",
        "ALLABOARD_SERVICE_ACCOUNT, else the namespace's default",
    ]
    host_network: Annotated[
        bool, "bool", "members use the network of their nodes, on a cluster", True, "false"
    ]
    security: Annotated[
        Literal["restricted"],
        "choice",
        "the Pod Security level that members keep, on a cluster",
        "restricted",
        "what the namespace enforces, as far as it may be read",
    ]
    inject: Annotated[
        Literal["off"],
        "choice",
        "the helper of members: off leaves it out, and with it progress by Kubeflow's protocol, and stacks "
        "where the image has no allaboard",
        "off",
        "it comes with every pod, as a mount",
    ]
    pod: Annotated[
        dict[str, Any],
        "any",
        "merged over the pod template last, on a cluster: metadata and spec; null and $patch take away",
        {"spec": {"nodeSelector": {"zone": "a"}}},
    ]
    engine_spec: Annotated[
        dict[str, Any],
        "any",
        "spec of the engine's own object, on a cluster: what no other field says",
        {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}},
    ]
    fit: Annotated[
        FitWord, "choice", "on one machine: shrink to what is there, or refuse", "strict", "shrink"
    ]


SOURCES = ("pvc", "claim", "empty_dir", "ephemeral", "host_path", "volume")
"""The fields of `Storage` of which each volume has one."""
CODE_LIMIT = 2**20
"""Bytes of all files that a job ships: what a ConfigMap may hold (Kubernetes: MaxSecretSize)."""
PACKED = "store://code"
"""Place of packed folders, unless the job names another one."""
UNLIMITED = 2**31 - 1
"""Number of ``unlimited`` restarts in a layout: the most that Kubernetes counts (int32)."""
FIELDS: tuple[str, ...] = tuple(Fields.__annotations__)


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
        unknown = [_unknown_field(name) for name in fields if name not in Fields.__annotations__]
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

"""The fields of a job, as types: what a person may write, each field with its meaning and an example.

`allaboard.checking.job`, `allaboard.job.schema` and `allaboard.job.explaining` are derived from them, so a
field is described once. A DAG file imports `TrainingJob` and pays for no types, so they have a module of
their own.

A field is ``Annotated[type, kind, doc, example, default]``. ``kind`` says how `allaboard.job.fields` reads
it; ``example`` is a right value, None for fields that are explained one by one; ``default`` is what an absent
one means, in words, left out where that is: nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

Framework = Literal["pytorch", "tensorflow", "mpi", "xgboost", "paddle", "jax", "mxnet"]
RestartWord = Literal["never", "on_failure", "always", "exit_code"]
HangWord = Literal["tell", "restart", "fail"]
AskWord = Literal["exec", "file"]
OrphanWord = Literal["stop", "finish"]
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

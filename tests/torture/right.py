"""Right jobs and wrong ones, made by lot from the vocabulary itself: every engine, every field. The same
number and seed give the same job.

A value is made by the kind of its field (`allaboard.job.vocabulary`), so that a new field is covered by
being there; a new kind needs its values in `RIGHT` and `WRONG`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args, is_typeddict

from allaboard.checking.job import check
from allaboard.engines import BY_FRAMEWORK, ENGINES, Engine
from allaboard.gangs import GANGS
from allaboard.job.fields import Reader, hints, parts
from allaboard.job.training_job import SOURCES, copied
from allaboard.job.vocabulary import Fields, Group
from allaboard.render.compatibility import pair_engine_and_gang

NAMES = ("a", "digits", "resnet-50", "x" * 40, "a1-b2")
WORDS = ("train", "val_loss", "a b", "läuft", "{x}", "%s", "'", '"', "#", "- a", "x: y", "$(HOME)", "☃")
VARIABLES: tuple[dict[str, Any], ...] = (
    {}, {"NCCL_DEBUG": "INFO"}, {"A": "", "B.c-d": "$(A)", "N": 4, "F": 0.5, "L": "a\nb", "Y": "yes"},
)  # fmt: skip
PODS: tuple[dict[str, Any], ...] = (
    {},
    {"metadata": {"labels": {"team": "a"}, "annotations": {"example.com/b": "c"}}},
    {"spec": {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "a", "operator": "Exists"}]}},
    {"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet", "priorityClassName": "high"}},
    {"spec": {"initContainers": [{"name": "fetch", "image": "lab/fetch:1", "command": ["fetch"]}]}},
    {"spec": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}], "affinity": None}},
    {"spec": {"topologySpreadConstraints": [{"topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]}},
)

RIGHT: Mapping[str, tuple[Any, ...]] = {
    "job_name": NAMES,
    "image": ("lab/train:v3", "x", "h.lab:5000/a/b@sha256:" + "0" * 64),
    "command": (
        ["python", "train.py"],
        ["torchrun", "t.py", "--lr", 0.1],
        ["sh", "-c", "a; b"],
        ["$(A)", ""],
    ),
    "args": (["--epochs=20"], [], ["", "x y"]),
    "progress": ("off", r"step (?P<step>\d+)", r"\[(?P<step>\d+)/(?P<total>\d+)\] loss=(?P<loss>\S+)"),
    "members": (1, 2, 3, 7),
    "cores": (1, 0.5, "500m", "2", 96),
    "size": ("512Mi", "1G", 1234567, "32Gi", "1.5Ti"),
    "gpus": (0, 1, 8),
    "gpu_type": ("NVIDIA-H100-80GB-HBM3", "example.com/gpu=a100"),
    "mig": ("1g.10gb", "1g.10gb+me", "1c.3g.40gb", "1g.24gb-me"),
    "devices": ({}, {"rdma/hca_shared_devices_a": 1}, {"amd.com/gpu": 8, "nvidia.com/gpu.shared": 2}),
    "expression": ("true", "device.attributes['gpu.nvidia.com'].type == 'gpu'"),
    "bool": (True, False),
    "count0": (0, 1, 2**31 - 1),
    "count1": (1, 5),
    "limit": (0, 3, "unlimited"),
    "text": WORDS,
    "domain": ("topology.kubernetes.io/zone", "topology.example.com/rack"),
    "queue": ("research", "a.b-c"),
    "object": ("high", "a.b", "x" * 253),
    "duration": (0, 90, 1.5, "90s", "1h30m", "2d", "500ms"),
    "path": ("/data", "/data/", "/a/b c", "/ä"),
    "place": ("s3://bucket/a", "store://digits/a", "/data/sub"),
    "every": (1, 50, "10m", "90"),
    "patience": ("auto", "off", 90, "10m"),
    "processes": ("auto", "cpu", "gpu", 1, 4),
    "paths": ([], ["train.py"], ["./a/b.py", "a-b.py", "ä.bin"]),
    "requirements": (["einops"], ["a==1", f"x[y]>=1; python_version < '4' --hash=sha256:{'0' * 64}"]),
    "index": ("https://pypi.lab/simple", "http://127.0.0.1:8080"),
    "repository": ("https://git.lab/train.git", "git@git.lab:team/train.git", "file:///srv/train.git"),
    "ref": ("main", "v1.0", "feature/a-1"),
    "commit": ("0" * 40,),
    "digest": ("0" * 64,),
    "file": (".", "src", "./a/b"),
    "folder": ("out", "./a/b", "/srv/out"),
    "environment": VARIABLES,
    "source": (
        {"nfs": {"server": "nas", "path": "/sets"}},
        {"csi": {"driver": "s3.csi.aws.com", "volumeAttributes": {"bucketName": "b"}}},
    ),
    "labels": ({}, {"kueue.x-k8s.io/queue-name": "a"}),
    "annotations": ({}, {"example.com/a": "b c"}),
}
"""Kind -> right values. ``any`` stands below."""
WRONG: Mapping[str, tuple[Any, ...]] = {
    "job_name": ("Digits", "x" * 41, "", 3),
    "image": ("a b", "", 3, "A/b@sha256:0"),
    "command": ("python train.py", [], [None], {}),
    "args": ("--a", [None], {}),
    "members": (0, -1, 10_001, 1.5, "many", True),
    "cores": (0, "-1", "1Gi", [], "many"),
    "size": ("32GB", -1, [], "1.5.5Gi"),
    "gpus": (-1, 1001, "one", 0.5),
    "gpu_type": ("a b", "", 3),
    "mig": ("big", "", 1, "1g.11gb", "3c.3g.40gb"),
    "devices": ("rdma", [], 3),
    "expression": ("", " ", 3, "x" * 10_241),
    "bool": ("yes", 1, []),
    "count0": (-1, 2**31, 0.5, "x"),
    "count1": (0, -3, "x"),
    "limit": (-1, "none", 0.5),
    "text": ("", " ", 3, "a\x1bb"),
    "domain": ("", "a b", 3),
    "queue": ("Research", "x" * 64, ""),
    "object": ("A", "x" * 254, "a_b", 3),
    "duration": ("soon", -1, "1w", [], "999999999d"),
    "path": ("data", "/", "/a:b", 3),
    "place": ("", 3, "a" * 256),
    "every": (0, -1, "often", []),
    "patience": (0, -1, "0s", "soon", [], True),
    "processes": ("all", 0, -1),
    "progress": ("", "step", r"(?P<loss>\d+)", "(", 3, []),
    "code": ("train.py", [3], ["../x"], ["/x"], {"git": "/x"}),
    "packages": ("einops", [], [3], ["-r x"], {"install": []}),
    "requirements": ("einops", [], ["-r x"], ["a --no-deps"]),
    "index": ("", 3, "file:///x", "https://a:b@c"),
    "repository": ("", 3, "/srv/train.git", "ext::sh -c x", "https://a:b@c/d", "--x"),
    "ref": ("", 3, "a..b", "--x", "a b"),
    "commit": ("", 3, "abc", "g" * 40),
    "digest": ("", 3, "abc"),
    "file": ("", 3, "/x", "../x"),
    "folder": ("", 3, "s3://bucket/out", []),
    "environment": ("A=b", {"A": None}, {"a b": "c"}, {"A": []}),
    "labels": ("a", {"a b": "c"}, {"a": 1}),
    "annotations": ("a", {"a b": "c"}, {"a": 1}),
    "any": ("x", [1], 3),
    "source": ("x", {}, {"nfs": {}, "csi": {}}, 3),
    "choice": ("nearly", 3, [], True),
    "group": ("x", [1], 3),
    "list": ("x", {"a": 1}, 3),
    "groups": ("x", [1], {}),
}

LISTS = {"code": "paths", "packages": "requirements"}
"""Kind of a field that is a list or, in its place, fields -> the kind of the list."""


def _kind_in(base: Any) -> Any:
    """The typed dictionary of a field that is fields, or a list in their place."""
    return next(kind for kind in (base, *get_args(base)) if is_typeddict(kind))


Job = dict[str, Any]
Leaf = tuple[str, str, Any, Any]
"""(path, kind, container, key) of a field that stands in a job."""


# Right ones.


def a_right_job(rng: random.Random) -> Job:
    """A job without an error. Between none and all of its fields are there."""
    engine = rng.choice([*ENGINES.values()])
    framework = rng.choice(engine.FRAMEWORKS)
    density = rng.choice((0.1, 0.4, 0.8, 1.0))
    job = {
        name: _value(hint, rng, density)
        for name, hint in hints(Fields).items()
        if rng.random() < density and name not in ("workers", "groups", "engine", "framework", "elastic")
    }
    job |= {"name": rng.choice(NAMES), "framework": framework, "image": rng.choice(RIGHT["image"])}
    job["command"] = rng.choice(RIGHT["command"])
    if rng.random() < 0.5 or len(BY_FRAMEWORK[framework]) > 1:
        job["engine"] = engine.NAME
    _put_members(job, engine, framework, rng, density)
    _put_places(job, engine, rng)
    return _accepted(job)


def _value(hint: Any, rng: random.Random, density: float) -> Any:
    base, kind, _ = parts(hint)
    if kind == "group":
        return _fields(base, rng, density)
    if kind == "choice":
        return rng.choice(get_args(base))
    if kind == "list":
        return [_fields(get_args(base)[0], rng, density) for _ in range(rng.choice((0, 1, 3)))]
    if kind == "any":
        return rng.choice(PODS)
    if kind in LISTS:
        return rng.choice(RIGHT[LISTS[kind]]) if rng.random() < 0.5 else _fields(_kind_in(base), rng, density)
    return rng.choice(RIGHT[kind])


def _fields(kind: type, rng: random.Random, density: float) -> Job:
    return {name: _value(hint, rng, density) for name, hint in hints(kind).items() if rng.random() < density}


def _put_members(job: Job, engine: Engine, framework: str, rng: random.Random, density: float) -> None:
    """Groups or workers, and elastic bounds around their number."""
    roles = engine.roles(framework)
    if rng.random() < 0.5:
        groups: dict[str, Any] = {}
        for role, most in roles.items():
            if rng.random() < 0.7:
                number = min(rng.choice((1, 2, 4)), most or 4)
                more = _fields(Group, rng, density)
                groups[role] = {**more, "replicas": number} if rng.random() < 0.5 else number
        if groups:
            job["groups"] = groups
    if "groups" not in job and rng.random() < 0.9:
        job["workers"] = rng.choice(RIGHT["members"])
    if engine.is_elastic(framework) and rng.random() < 0.5 and "worker" in job.get("groups", roles):
        total = sum(g["replicas"] if isinstance(g, dict) else g for g in job.get("groups", {}).values())
        total = total or job.get("workers", 1)
        elastic = _fields(parts(hints(Fields)["elastic"])[0], rng, density)
        # An absent min is the max, which must not be more than there are then.
        most = total + (rng.choice((0, 3)) if "min" in elastic else 0)
        for name, bound in (("min", rng.randint(1, total)), ("max", most)):
            if name in elastic:
                elastic[name] = bound
        job["elastic"] = elastic


def _put_places(job: Job, engine: Engine, rng: random.Random) -> None:
    """What several fields have to agree about: mounts, claims, schedulers, what only an engine knows."""
    for n, volume in enumerate(job.get("storage", ())):
        volume["mount"] = f"/mnt/{n}"
        chosen = rng.choice([name for name in SOURCES if name in volume] or ["pvc"])
        volume.setdefault("pvc", "sets")
        for source in SOURCES:
            if source != chosen:
                volume.pop(source, None)
        if chosen in ("claim", "ephemeral"):
            volume[chosen]["size"] = rng.choice(RIGHT["size"])
            if volume[chosen].get("access") == "once_pod":  # for one member
                volume[chosen]["access"] = rng.choice(("once", "many"))
    for n, secret in enumerate(job.get("secrets", ())):
        secret |= {"name": rng.choice(RIGHT["object"])}
        secret |= {"mount": f"/secrets/{n}"} if "mount" in secret or not secret.get("env") else {}
    _put_setup(job, rng)
    if job.get("security") == "restricted":
        job.pop("host_network", None)
    if job.get("policy", {}).get("restart") == "never":
        job["policy"].get("hang", {}).pop("then", None)
    if "after" in job.get("policy", {}).get("orphan", {}):
        job["policy"]["orphan"]["after"] = rng.choice(("1m", "3h", "1d", 600))
    stated = [job.get("resources", {})]
    stated += [
        g["resources"] for g in job.get("groups", {}).values() if isinstance(g, dict) and "resources" in g
    ]
    for resources in stated:
        if "device_class" in resources or "device_selector" in resources:
            resources |= {"device_class": "gpu.nvidia.com", "gpu": resources.get("gpu") or 1}
    if "device_class" in stated[0]:  # which holds for the resources of each group, too
        for resources in stated[1:]:
            resources["gpu"] = resources.get("gpu") or 1
    if job.get("spot", {}).get("prefer"):
        job["spot"]["tolerate"] = True
    if "checkpoints" in job:
        job["checkpoints"]["uri"] = rng.choice(RIGHT["place"])
        job["checkpoints"].get("best", {}).setdefault("metric", "loss")
        if "folder" in job["checkpoints"]:
            for name in ("every", "hot"):
                job["checkpoints"].pop(name, None)
        if "hot" in job["checkpoints"]:
            job["checkpoints"]["hot"]["folder"] = "/mnt/0/hot"
        if "start_from" in job["checkpoints"]:
            job["checkpoints"]["start_from"] = rng.choice(("none", "s3://bucket/a/step-1"))
    if "metrics" in job:
        job["metrics"]["from"] = rng.choice(RIGHT["place"])
    if "scheduler" in job.get("gang", {}):
        usable = [n for n, g in GANGS.items() if pair_engine_and_gang(engine, g).how != "refused"]
        job["gang"]["scheduler"] = rng.choice(["auto", *usable])
    if (named := GANGS.get(job.get("gang", {}).get("scheduler"))) and named.REFUSES_DOMAIN is not None:
        job["gang"].get("topology", {}).pop("require", None)
    if job.get("gang", {}).get("scheduler", "auto") in ("auto", "none"):
        job.get("gang", {}).pop("require", None)  # it is for the cluster to say whether that is refused
    own = {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}} if "runPolicy" in engine.FIELDS else {}
    if "engine_spec" in job:
        job["engine_spec"] = own


def _put_setup(job: Job, rng: random.Random) -> None:
    """A repository or a folder; none for ranks that start in other members."""
    code, packages = job.get("code"), job.get("packages")
    if job["framework"] == "mpi":
        job.pop("packages", None)
        if isinstance(code, dict):
            job["code"] = ["train.py"]
        return
    if isinstance(packages, dict):
        packages["install"] = rng.choice(RIGHT["requirements"])
    if isinstance(code, dict):
        source = rng.choice(("git", "folder"))
        code |= {source: rng.choice(RIGHT["repository" if source == "git" else "file"])}
        others = ("folder", "store", "digest") if source == "git" else ("git", "ref", "commit", "secret")
        for name in others:
            code.pop(name, None)
        if not code.get("git", "").startswith("http"):
            code.pop("secret", None)


def _accepted(job: Job) -> Job:
    """Without the fields to which the engine objects: which they are is its own affair."""
    for _ in range(5):
        refused = {p.path.partition(".")[0] for p in _objections(job)}
        if not refused:
            return job
        for name in refused:
            job.pop(name, None)
    raise AssertionError(f"its engine objects to a job of almost no fields: {job}")


def _objections(job: Job) -> Iterator[Any]:
    engine = ENGINES.get(job.get("engine", "")) or BY_FRAMEWORK[job["framework"]][0]
    sound = Reader().mapping(Fields, copied(job), "")
    return (problem for problem in engine.objections(sound) if problem.severity == "error")


# Wrong ones.


def a_wrong_job(rng: random.Random) -> tuple[Job, list[str]]:
    """A right job with one to four things wrong, and where each of them is."""
    job = a_right_job(rng)
    if rng.random() < 0.3:
        return _contradicting(job, rng)
    leaves = [leaf for leaf in _leaves(job) if leaf[0] not in _OF_OTHERS]
    wrong: list[str] = []
    for path, kind, at, key in rng.sample(leaves, min(len(leaves), rng.choice((1, 1, 2, 4)))):
        # What holds another wrong field is replaced as a whole, and that one with it.
        if any(path.startswith(other) or other.startswith(path) for other in wrong):
            continue
        if isinstance(at[key], dict) and kind == "group" and rng.random() < 0.7:
            at[key]["wrkers"] = 1
            wrong.append(f"{path}.wrkers")
        else:
            at[key] = rng.choice(WRONG[kind])
            wrong.append(path)
    if not wrong or rng.random() < 0.1:
        job["nmae"] = 1
        wrong.append("nmae")
    return job, wrong


_OF_OTHERS = ("framework", "engine", "gang.scheduler")
"""What is wrong with these, and what follows from them, is told by rules over several fields."""


def _leaves(job: Job) -> Iterator[Leaf]:
    """Every field that stands in a job, and every group of fields."""
    yield from _inner(Fields, job, "")


def _inner(kind: type, fields: Job, path: str) -> Iterator[Leaf]:
    for name, hint in hints(kind).items():
        if name not in fields:
            continue
        base, its, _ = parts(hint)
        at, value = f"{path}.{name}" if path else name, fields[name]
        yield at, its, fields, name
        if its == "group" or (its in LISTS and isinstance(value, dict)):
            yield from _inner(_kind_in(base), value, at)
        elif its == "list":
            for n, item in enumerate(value):
                yield from _inner(get_args(base)[0], item, f"{at}[{n}]")
        elif its == "groups":
            for role, group in value.items():
                if isinstance(group, dict):
                    yield from _inner(_group_kind(base), group, f"{at}.{role}")


def _group_kind(base: Any) -> type:
    return next(kind for kind in get_args(get_args(base)[1]) if is_typeddict(kind))


def _contradicting(job: Job, rng: random.Random) -> tuple[Job, list[str]]:
    """Fields that are right by themselves, and not together."""
    changes, wrong = rng.choice(CONTRADICTIONS)
    made = {**job, **changes}
    for name in [name for name, value in made.items() if value is None]:
        del made[name]
    return made, [*wrong]


CONTRADICTIONS: tuple[tuple[Job, tuple[str, ...]], ...] = (
    ({"groups": {"worker": 2, "boss": 1}, "workers": 2}, ("workers", "groups.boss")),
    ({"name": None, "command": None, "args": None, "groups": None, "workers": 1}, ("name", "command")),
    ({"storage": [{"pvc": "a", "empty_dir": "disk"}, {"mount": "/a"}]},
     ("storage[0].mount", "storage[0]", "storage[1]")),
    ({"policy": {"restart": "never", "hang": {"then": "restart"}}}, ("policy.hang.then",)),
    ({"storage": [{"mount": "/a", "claim": {"keep": "run"}}, {"mount": "/b", "ephemeral": {}}]},
     ("storage[0].claim.size", "storage[1].ephemeral.size")),
    ({"groups": None, "elastic": None, "workers": 2, "storage": [
        {"mount": "/a", "claim": {"size": 1, "access": "once_pod"}},
        {"mount": "/b", "ephemeral": {"size": 0}}]},
     ("storage[0].claim.access", "storage[1].ephemeral.size")),
    ({"storage": [{"mount": "/a", "volume": {"hostPath": {"path": "/b"}}}]},
     ("storage[0].volume.hostPath",)),
    ({"storage": [{"mount": "/a", "pvc": "a"}, {"mount": "//a/.", "pvc": "b"}]}, ("storage[1].mount",)),
    ({"checkpoints": {"best": {"mode": "min"}}}, ("checkpoints.uri", "checkpoints.best.metric")),
    ({"secrets": [{"name": "a"}, {"env": True}]}, ("secrets[0]", "secrets[1].name")),
    ({"gang": {"scheduler": "cosheduling"}}, ("gang.scheduler",)),
    ({"host_network": True, "security": "restricted"}, ("host_network",)),
    ({"groups": None, "workers": 1, "resources": {"device_class": "a"}}, ("resources.device_class",)),
    ({"groups": None, "workers": 1, "resources": {"gpu": 1, "device_selector": "true"}},
     ("resources.device_selector",)),
    ({"engine": "pytochjob"}, ("engine",)),
    ({"pod": {"spec": {"restartPolicy": "Never", "containers": [{"image": "x"}]}, "kind": "Pod"}},
     ("pod.kind", "pod.spec.restartPolicy", "pod.spec.containers[0]")),
    ({"framework": "pytorch", "engine": None, "groups": None, "workers": 9, "elastic": {"min": 1, "max": 3}},
     ("workers",)),
    ({"framework": "pytorch", "engine": None, "elastic": {"min": 3, "max": 2}, "groups": None, "workers": 3},
     ("elastic.min",)),
    ({"framework": "pytorch", "engine": None, "elastic": {"max": 5}, "groups": None, "workers": 2},
     ("workers",)),
    ({"framework": "jax", "engine": None, "groups": None, "workers": 3, "elastic": {"min": 1}}, ("elastic",)),
)  # fmt: skip


def fields_of(job: Job) -> set[str]:
    """The paths of all fields that stand in a job, without roles and numbers of items."""
    return {_plain(path) for path, *_ in _leaves(job)}


def every_field(kind: type = Fields, path: str = "") -> Iterator[str]:
    """The paths of all fields of the vocabulary, as `fields_of` has them."""
    for name, hint in hints(kind).items():
        base, its, _ = parts(hint)
        at = f"{path}.{name}" if path else name
        yield at
        inner: Callable[[], type] | None = {
            "group": lambda base=base: base,
            **dict.fromkeys(LISTS, lambda base=base: _kind_in(base)),
            "list": lambda base=base: get_args(base)[0],
            "groups": lambda base=base: _group_kind(base),
        }.get(its)
        if inner is not None:
            yield from every_field(inner(), at)


def _plain(path: str) -> str:
    first, *rest = [part.partition("[")[0] for part in path.split(".")]
    return ".".join([first, *(rest[1:] if first == "groups" and rest else rest)])


def errors_of(job: Any) -> list[str]:
    """The paths of a job's errors."""
    return [problem.path for problem in check(job) if problem.severity == "error"]

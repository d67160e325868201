"""Problems of a job: all at once, each with its path and, for a typing slip, the nearest known word.

`check` knows the job alone. What a place can say about it (a folder that is not writable, a queue that does
not exist) is added by the backend. Values in, problems out; nothing is read from disk here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from allaboard.engines import BY_FRAMEWORK, ENGINES, Engine
from allaboard.errors import BadInput, Problem
from allaboard.job.fields import MEMBERS_MAX, Reader
from allaboard.job.identity import canonical
from allaboard.job.training_job import (
    ORPHAN_AFTER_MAX,
    ORPHAN_AFTER_MIN,
    SOURCES,
    TrainingJob,
    copied,
    member_count,
)
from allaboard.job.vocabulary import Fields
from allaboard.runs.trackers import is_secret
from allaboard.text import units
from allaboard.text.names import nearest, one_of
from allaboard.text.untrusted import find_flaws, show, size_flaw


def check(job: TrainingJob | Mapping[str, Any], *, lenient: bool = False) -> list[Problem]:
    """Every problem of a job, errors first; an empty list means it can be laid out.

    ``lenient`` takes ``"4"`` and ``4.0`` for 4, as templating makes them.
    """
    return _read_fields(job, lenient)[1]


def require_valid(job: TrainingJob | Mapping[str, Any], *, lenient: bool = False) -> TrainingJob:
    """The job with every value in its plain form. Raises `BadInput` with all errors; warnings are not
    errors.
    """
    read, problems = _read_fields(job, lenient)
    if errors := _errors(problems):
        raise BadInput(f"{_job_title(read)} has {_count(errors)}:", errors)
    return read


LARGEST = 512 * 1024
"""Bytes of a job as JSON. Kubernetes keeps an object of some 1.5 MB, and a run's record holds the job, its
layout and what was made of them.
"""


def _read_fields(job: TrainingJob | Mapping[str, Any], lenient: bool) -> tuple[TrainingJob, list[Problem]]:
    folder = job.folder if isinstance(job, TrainingJob) else None
    fields: Any = job.as_written() if isinstance(job, TrainingJob) else job
    if not isinstance(fields, Mapping):
        return TrainingJob(folder=folder), [
            Problem("", f"a job is a mapping of fields, not {type(fields).__name__}")
        ]
    if (flaw := size_flaw(fields)) is not None:
        return TrainingJob(folder=folder), [Problem(*flaw)]
    problems = [Problem(*flaw) for flaw in find_flaws(fields)]
    flawed = {p.path for p in problems}
    reader = Reader(lenient)
    values = reader.mapping(Fields, copied(fields), "")
    # An invalid value is reported once.
    problems += [p for p in reader.every_problem() if p.path not in flawed]
    problems += _missing_fields(values)
    problems += _contradictions(_without_problems(values, problems))
    if not _errors(problems):
        problems += _size_problems(values)
    # Of an invalid job only the name is used further.
    name = values.get("name")
    taken = values if not _errors(problems) else {"name": name} if isinstance(name, str) else {}
    return TrainingJob(folder=folder, **taken), sorted(problems, key=lambda p: p.severity != "error")


def _errors(problems: list[Problem]) -> list[Problem]:
    return [p for p in problems if p.severity == "error"]


def _size_problems(job: Mapping[str, Any]) -> Iterator[Problem]:
    size = len(canonical(job).encode())
    if size > LARGEST:
        largest = max(job, key=lambda name: len(canonical({name: job[name]})))
        yield Problem(
            largest,
            f"this job has {size:,} bytes, most of them here; {LARGEST:,} fit into the objects of a cluster; "
            "put what is large into a file of the image or a volume",
        )


def _without_problems(job: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """The fields, and the roles of groups, that are right by themselves: rules over several fields ask these
    alone.
    """
    wrong = [p.path for p in _errors(problems)]

    def right(path: str) -> bool:
        return not any(p == path or p.startswith((f"{path}.", f"{path}[")) for p in wrong)

    sound = {name: value for name, value in job.items() if right(name)}
    if isinstance(job.get("groups"), Mapping) and "groups" not in sound:
        sound["groups"] = {
            role: spec for role, spec in job["groups"].items() if right(f"groups.{show(role, quote=False)}")
        }
    return sound


def _missing_fields(job: Mapping[str, Any]) -> Iterator[Problem]:
    if "name" not in job:
        yield Problem("name", "is missing; every job has a name")
    groups = job.get("groups")
    named = all(isinstance(job.get(name, ""), str) for name in ("framework", "engine"))
    engine = _engine_of(job) if named else None
    idle = engine.idle(job.get("framework", "pytorch")) if engine is not None else frozenset()
    own = isinstance(groups, Mapping) and all(
        role in idle or (isinstance(g, Mapping) and ("command" in g or "args" in g))
        for role, g in groups.items()
    )
    if "command" not in job and "args" not in job and not (groups and own):
        yield Problem(
            "command",
            "is missing; give the program and its arguments, like [python, train.py], or args alone for the "
            "entrypoint of the image (args: [] for nothing more)",
        )


def _contradictions(job: Mapping[str, Any]) -> list[Problem]:
    """Rules over several fields, asked of values that are right by themselves."""
    return [
        *_engine(job),
        *_members(job),
        *_elastic(job),
        *_storage(job),
        *_mounts(job),
        *_checkpoints(job),
        *_metrics(job),
        *_trackers(job),
        *_secrets(job),
        *_gang(job),
        *_hang(job),
        *_orphan(job),
        *_spot(job),
        *_claims(job),
        *_network(job),
        *_launchers(job),
        *_setup(job),
        *_engine_problems(job),
    ]


def _engine(job: Mapping[str, Any]) -> Iterator[Problem]:
    framework, engine = job.get("framework", "pytorch"), job.get("engine", "auto")
    if engine != "auto" and engine not in ENGINES:
        yield Problem(
            "engine",
            f"{show(engine)} is not known; known: {one_of(['auto', *ENGINES])}",
            nearest(engine, ENGINES),
        )
    elif engine != "auto" and framework not in ENGINES[engine].FRAMEWORKS:
        runs = one_of(ENGINES[engine].FRAMEWORKS)
        yield Problem("engine", f"{engine!r} runs {runs}, and the framework is {framework!r}")


def _engine_of(job: Mapping[str, Any]) -> Engine | None:
    """The engine that a job names, else its framework's own; None: there is none in this version."""
    usual = BY_FRAMEWORK.get(job.get("framework", "pytorch"))
    return ENGINES.get(job.get("engine", "auto")) or (usual[0] if usual else None)


def _members(job: Mapping[str, Any]) -> Iterator[Problem]:
    groups = job.get("groups")
    if groups is None:
        return
    if "workers" in job:
        yield Problem("workers", "is given beside groups; give one of the two")
    engine = _engine_of(job)
    if engine is None:
        return
    roles = engine.roles(job.get("framework", "pytorch"))
    total = member_count(job)
    if total > MEMBERS_MAX:
        yield Problem("groups", f"{total} members are too many; give {MEMBERS_MAX} or fewer in all")
    for role, spec in groups.items():
        replicas = spec.get("replicas", 1) if isinstance(spec, Mapping) else spec
        if role not in roles:
            yield Problem(
                f"groups.{show(role, quote=False)}",
                f"no such role; {engine.KIND} has {one_of(roles)}",
                nearest(role, roles),
            )
        elif (most := roles[role]) is not None and replicas > most:
            others = next((name for name, number in roles.items() if number is None), "a job of their own")
            yield Problem(
                f"groups.{role}",
                f"{replicas} is too many; {engine.KIND} takes exactly {most}, put the others into {others}",
            )


def _elastic(job: Mapping[str, Any]) -> Iterator[Problem]:
    elastic = job.get("elastic")
    engine = _engine_of(job)
    if elastic is None or engine is None:
        return
    if not engine.is_elastic(job.get("framework", "pytorch")):
        yield Problem("elastic", f"{engine.KIND} has a fixed number of members; take it out")
        return
    most = elastic.get("max")
    # The operator's rule: an absent min is the max.
    least = elastic.get("min", 1 if most is None else most)
    groups = job.get("groups")
    if groups is not None and "worker" not in groups:
        yield Problem("groups", "an elastic job needs workers; add worker: N")
        return
    if most is not None and least > most:
        yield Problem("elastic.min", f"{least} is above elastic.max, {most}; give a min of {most} or less")
        return
    total = member_count(job)
    if total < least or (most is not None and total > most):
        path = "workers" if groups is None else "groups"
        yield Problem(
            path,
            f"{total} members are outside elastic.min {least} and elastic.max {most or total}",
        )


def _storage(job: Mapping[str, Any]) -> Iterator[Problem]:
    for n, volume in enumerate(job.get("storage", ())):
        if "mount" not in volume:
            yield Problem(f"storage[{n}].mount", "is missing; say where the members see it, like /data")
        if sum(source in volume for source in SOURCES) != 1:
            yield Problem(f"storage[{n}]", f"give one of {one_of(SOURCES).replace(' or ', ' and ')}")
        for source in ("claim", "ephemeral"):
            if source in volume and "size" not in volume[source]:
                yield Problem(f"storage[{n}].{source}.size", "is missing; say how much it holds, like 200Gi")
            elif source in volume and units.size(volume[source]["size"]) == 0:
                yield Problem(f"storage[{n}].{source}.size", "0 bytes hold nothing; give more, like 200Gi")
        if (volume.get("claim") or {}).get("access") == "once_pod" and (members := _most_members(job)) > 1:
            message = f"once_pod is for one member, and the job has {members}; say many, or ephemeral"
            yield Problem(f"storage[{n}].claim.access", message)
        if "size" in volume and "empty_dir" not in volume:
            inner = next((source for source in ("claim", "ephemeral") if source in volume), None)
            message = "a claim has a size of its own" if inner is None else f"say {inner}: {{size: ...}}"
            yield Problem(f"storage[{n}].size", f"has no meaning here: {message}", severity="warning")


def _most_members(job: Mapping[str, Any]) -> int:
    """Members that a job may have at one time."""
    return max(member_count(job), int((job.get("elastic") or {}).get("max", 0)))


def _mounts(job: Mapping[str, Any]) -> Iterator[Problem]:
    """One folder is one mount, however it is written."""
    from allaboard.job import helper
    from allaboard.render.pod_template import CODE_FOLDER

    mounts = [(f"storage[{n}].mount", entry.get("mount")) for n, entry in enumerate(job.get("storage", ()))]
    mounts += [(f"secrets[{n}].mount", entry.get("mount")) for n, entry in enumerate(job.get("secrets", ()))]
    seen = {CODE_FOLDER: "code"} if job.get("code") else {}
    seen |= {} if job.get("inject") == "off" else {helper.FOLDER: "the helper of members (inject: off)"}
    for at, path in mounts:
        if path is None:
            continue
        plain = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
        if plain in seen:
            yield Problem(at, f"{show(path)} is mounted twice, by {seen[plain]} too")
        seen.setdefault(plain, at)


def _checkpoints(job: Mapping[str, Any]) -> Iterator[Problem]:
    spec = job.get("checkpoints")
    if spec is None:
        return
    if "uri" not in spec:
        yield Problem("checkpoints.uri", "is missing; give a folder, s3://bucket/prefix or store://name")
    if "hot" in spec and "folder" not in spec["hot"]:
        yield Problem(
            "checkpoints.hot.folder", "is missing; give a folder below a mount of storage, like /hot"
        )
    if "folder" in spec:
        yield from _folder(spec)
    if "best" in spec and "metric" not in spec["best"]:
        yield Problem("checkpoints.best.metric", "is missing; name the metric that decides")


def _metrics(job: Mapping[str, Any]) -> Iterator[Problem]:
    if "from" not in job.get("metrics", {"from": ""}):
        yield Problem(
            "metrics.from", "is missing; give the folder of the files, like runs, or s3://bucket/prefix"
        )


def _trackers(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys of trackers in plain text, which manifests and records would hold."""
    written = [("environment", job.get("environment") or {})]
    groups = (job.get("groups") or {}).items()
    written += [
        (f"groups.{show(role, quote=False)}.environment", group.get("environment") or {})
        for role, group in groups
        if isinstance(group, Mapping)
    ]
    for at, variables in written:
        for name, value in variables.items():
            if is_secret(name, value):
                yield Problem(
                    f"{at}.{name}",
                    "is a secret, which the manifest and the record of the run would show; put it into a "
                    "Secret and name that, like secrets: [{name: tracker, env: true}]; on one machine the "
                    "variable of whoever launches is enough",
                )


def _folder(spec: Mapping[str, Any]) -> Iterator[Problem]:
    """A script that knows folders alone asks nobody when to save, or where a second copy goes."""
    for name in ("every", "hot"):
        if name in spec:
            message = "is for a script that saves by allaboard.inside, and folder for one that does not"
            yield Problem(f"checkpoints.{name}", f"{message}; give one of the two")


def _secrets(job: Mapping[str, Any]) -> Iterator[Problem]:
    for n, secret in enumerate(job.get("secrets", ())):
        if "name" not in secret:
            yield Problem(f"secrets[{n}].name", "is missing")
        if not secret.get("env") and "mount" not in secret:
            yield Problem(f"secrets[{n}]", "is not used; say env: true, or mount: /path")


def _gang(job: Mapping[str, Any]) -> Iterator[Problem]:
    scheduler = (job.get("gang") or {}).get("scheduler")
    if scheduler is not None:
        from allaboard.render.compatibility import name_problems

        yield from name_problems(scheduler)


def _hang(job: Mapping[str, Any]) -> Iterator[Problem]:
    policy = job.get("policy") or {}
    hang = policy.get("hang") or {}
    if hang.get("after") == "off" and "then" in hang:
        yield Problem("policy.hang.then", "has no meaning with after: off", severity="warning")
    elif hang.get("then") == "restart" and policy.get("restart") == "never":
        message = "restart starts members again, which policy.restart: never forbids; say tell or fail"
        yield Problem("policy.hang.then", message)


def _orphan(job: Mapping[str, Any]) -> Iterator[Problem]:
    orphan = (job.get("policy") or {}).get("orphan") or {}
    after = orphan.get("after")
    if after is None:
        return
    if not ORPHAN_AFTER_MIN <= units.seconds(after) <= ORPHAN_AFTER_MAX:
        yield Problem("policy.orphan.after", f"{show(str(after))} is out of range; give 1m to 1d")
    if orphan.get("then") == "finish":
        yield Problem("policy.orphan.after", "has no meaning with then: finish", severity="warning")


def _spot(job: Mapping[str, Any]) -> Iterator[Problem]:
    spot = job.get("spot") or {}
    if spot.get("prefer") and spot.get("tolerate") is False:
        message = "prefers nodes from which tolerate: false keeps the members; give one of the two"
        yield Problem("spot.prefer", message)


def _claims(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Devices of a class are counted by gpu or mig, and chosen by a selector."""
    every = job.get("resources") or {}
    groups = {role: g for role, g in (job.get("groups") or {}).items() if isinstance(g, Mapping)}
    stated = {"resources": every} | {
        f"groups.{show(role, quote=False)}.resources": {**every, **g["resources"]}
        for role, g in groups.items()
        if "resources" in g
    }
    for at, resources in stated.items():
        is_of_class = "device_class" in resources
        if "device_selector" in resources and not is_of_class:
            message = "chooses among the devices of a class; add device_class, like gpu.nvidia.com"
            yield Problem(f"{at}.device_selector", message)
        # Groups may say how many.
        counted_elsewhere = at == "resources" and groups
        if is_of_class and not resources.get("gpu") and "mig" not in resources and not counted_elsewhere:
            yield Problem(f"{at}.device_class", "does not say how many devices; add gpu: 1")
        if is_of_class and resources.get("shared"):
            message = "applies to GPUs of the device plugin; devices of a claim are not shared"
            yield Problem(f"{at}.shared", message, severity="warning")


def _setup(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of what members fetch and install before their command."""
    code, packages = job.get("code"), job.get("packages")
    if isinstance(code, Mapping) and ("git" in code) == ("folder" in code):
        yield Problem(
            "code", "give one of git (the URL of a repository) and folder; or a list of files as code"
        )
    elif isinstance(code, Mapping):
        source, others = (
            ("git", {"store", "digest"}) if "git" in code else ("folder", {"ref", "commit", "secret"})
        )
        for name in sorted(others & {*code}):
            yield Problem(f"code.{name}", f"has no meaning beside {source}; take it out")
    if (
        isinstance(code, Mapping)
        and "secret" in code
        and not str(code.get("git", "https:")).startswith("http")
    ):
        yield Problem("code.secret", "is the password of https; take it out, or give the https URL")
    if isinstance(packages, Mapping) and "install" not in packages:
        yield Problem("packages.install", "is missing; name the packages, like [einops==0.8.0]")
    if packages is None and not isinstance(code, Mapping):
        return
    at = "code" if isinstance(code, Mapping) else "packages"
    if "command" not in job and any("command" not in g for g in _groups_with_fields(job)):
        yield Problem(at, "is prepared before a command, and the image's own is not known; give command")


def _groups_with_fields(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The groups of a job by their fields; one without any where it has none. Workers of MPI wait, by a
    command of their own.
    """
    groups = dict(job.get("groups") or {"": {}})
    if job.get("framework") == "mpi" and len(groups) > 1:
        groups.pop("worker", None)
    return [group if isinstance(group, Mapping) else {} for group in groups.values()]


def _launchers(job: Mapping[str, Any]) -> Iterator[Problem]:
    from allaboard.checking.launchers import launcher_problems

    if (engine := _engine_of(job)) is not None:
        yield from launcher_problems(job, engine.helpers(job.get("framework", "pytorch")))


def _network(job: Mapping[str, Any]) -> Iterator[Problem]:
    if job.get("host_network") and job.get("security") == "restricted":
        message = (
            "is forbidden by the Pod Security level restricted, which security asks for; say one of the two"
        )
        yield Problem("host_network", message)


def _engine_problems(job: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems that the job's engine reports, and the fields of `pod` that contradict the engine."""
    engine = _engine_of(job)
    if engine is None:
        return
    yield from engine.objections(job)
    if "pod" in job:
        from allaboard.render.pod_template import pod_problems

        yield from pod_problems(job["pod"], engine.CONTAINER, engine.ALIASES)
    for role, group in (job.get("groups") or {}).items():
        if isinstance(group, Mapping) and "pod" in group:
            from allaboard.render.pod_template import pod_problems

            for problem in pod_problems(group["pod"], engine.CONTAINER, engine.ALIASES):
                yield replace(problem, path=f"groups.{show(role, quote=False)}.{problem.path}")


def clock_limits(job: Mapping[str, Any]) -> dict[str, float]:
    """``policy.clocks`` in seconds."""
    return {k: units.seconds(v) for k, v in ((job.get("policy") or {}).get("clocks") or {}).items()}


def _job_title(job: TrainingJob) -> str:
    return f"job {show(job.name)}" if job.name else "this job"


def _count(problems: list[Problem]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"

"""Which framework a JobSet trains with, and which roles its replicated jobs have.

A JobSet says neither. The framework is told by variables of the members, their program, their image, names
and devices, in this order; the member where others meet, or whose name says that it leads, is the master.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from allaboard.conversion.members import Gang, Hosts, Part, env_of, limits_of, program_of, values_of
from allaboard.conversion.values import Reading
from allaboard.names import one_of

AT = "spec.replicatedJobs"
_VARIABLES = (
    ("tensorflow", re.compile(r"TF_CONFIG")),
    ("paddle", re.compile(r"PADDLE_\w+")),
    ("jax", re.compile(r"JAX_\w+|COORDINATOR_ADDRESS")),
    ("xgboost", re.compile(r"DMLC_\w+|WORKER_ADDRS")),
    ("pytorch", re.compile(r"MASTER_ADDR|PET_\w+|TORCH\w+|WORLD_SIZE")),
)
_WORDS = (
    ("xgboost", re.compile(r"(?<![a-z])(xgboost|lightgbm|rabit)(?![a-z])")),
    ("paddle", re.compile(r"(?<![a-z])(paddle(paddle)?|fleetrun)(?![a-z])")),
    ("jax", re.compile(r"(?<![a-z])(jax|maxtext|flax)(?![a-z])")),
    ("tensorflow", re.compile(r"(?<![a-z])(tensorflow|tf|keras)(?![a-z])")),
    ("pytorch", re.compile(r"(?<![a-z])(py)?torch(run)?(?![a-z])|(?<![a-z])(accelerate|deepspeed)(?![a-z])")),
)
_MPI = re.compile(r"(?<![\w-])(mpirun|mpiexec|horovodrun|orterun|prterun)(?![\w-])")
_TPU = "google.com/tpu"
_LEADS = ("chief", "master")
"""Roles of the one member that leads, the first that a framework has."""
_ROLES = (
    ("chief", re.compile(r"chief")),
    ("master", re.compile(r"master|leader|launcher|driver|coordinator|head|main|primary|chief")),
    ("evaluator", re.compile(r"eval(uator)?s?")),
    ("ps", re.compile(r"ps|servers?|parameter-?servers?")),
    ("worker", re.compile(r"workers?|nodes?|trainers?|replicas?|slices?")),
)
"""Role -> words of a replicated job's name, or of its last part, that mean it."""
_MEETING = (
    "MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS",
    "PADDLE_MASTER", "DMLC_TRACKER_URI",
)  # fmt: skip
"""Variables that name the member where others meet, the surest first."""
_PROCESSES = re.compile(r"--nproc[-_]per[-_]node[= ]+[\"']?(\d{1,4})(?!\d)")
# The framework.


def framework_of(reading: Reading, obj: Mapping[str, Any], gang: Gang, ours: bool) -> tuple[str, bool]:
    """Its name, and whether anything tells it. ``ours``: the engine made the object."""
    containers = [part.trainer() for part in gang.parts]
    if ours:
        return _of_ours(containers), True
    for container in containers:
        if match := next(filter(None, map(_MPI.search, program_of(container))), None):
            words = f"runs {match[1]}: a job of MPI is an MPIJob; write it with framework: mpi"
            reading.wrong("kind", words)
    for framework, why in _evidence(obj, gang.parts, containers):
        reading.change(AT, None, f"framework: {framework}", f"a JobSet does not say it; {why}")
        return framework, True
    why = "nothing in this JobSet tells the framework, which a job says; torch is the usual one"
    reading.change(AT, None, "framework: pytorch", why)
    return "pytorch", False


def _of_ours(containers: Sequence[Mapping[str, Any]]) -> str:
    """By what the engine says to the members of each."""
    names = set(_names_of(containers))
    if "PET_NPROC_PER_NODE" in names:
        return "pytorch"
    told = {"COORDINATOR_ADDRESS": "jax", "PADDLE_JOB_ID": "paddle", "MASTER_ADDR": "xgboost"}
    return next((framework for name, framework in told.items() if name in names), "tensorflow")


def _names_of(containers: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        str(variable.get("name"))
        for container in containers
        for variable in env_of(container)
        if isinstance(variable, Mapping)
    ]


def _evidence(
    obj: Mapping[str, Any], parts: Sequence[Part], containers: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Frameworks with what tells them, the surest first."""
    names = _names_of(containers)
    for framework, pattern in _VARIABLES:
        for name in names:
            if pattern.fullmatch(name):
                yield framework, f"{name} is a variable of it"
    metadata = obj.get("metadata")
    title = metadata.get("name") if isinstance(metadata, Mapping) else None
    texts = {
        "the program": " ".join(word for container in containers for word in program_of(container)),
        "the image": " ".join(str(container.get("image")) for container in containers),
        "a container": " ".join(str(container.get("name")) for container in containers),
        "a name": " ".join([str(title), *(part.name for part in parts)]),
    }
    for where, text in texts.items():
        for framework, pattern in _WORDS:
            if match := pattern.search(text.lower()[:100_000]):
                yield framework, f"{where} says {match[0]}"
    if any(_TPU in limits_of(container) for container in containers):
        yield "jax", "it asks for TPUs"


# Roles.


class Kind(Protocol):
    """What is asked of the engine."""

    def roles(self, framework: str) -> Mapping[str, int | None]: ...


def assign_roles(reading: Reading, kind: Kind, framework: str, evident: bool, gang: Gang, ours: bool) -> None:
    """Gives each part the groups that it becomes, and its first rank. ``evident``: whether anything tells the
    framework.
    """
    roles = kind.roles(framework)
    if len(gang.parts) == 1 and not ours:
        _take_alone(gang, framework, evident)
        _tell_roles(reading, gang.parts[0])
        return
    leads = next((role for role in _LEADS if roles.get(role) == 1), None)
    found = {part.name: part.name for part in gang.parts}
    if not ours:
        found = {part.name: _role_of(part, roles, leads) for part in gang.parts}
        leader = _leader(gang.parts, found, leads, _meeting(gang))
        if leads is not None and leader is not None:
            found = {name: "worker" if role == leads else role for name, role in found.items()}
            found[leader.name] = leads
    if not _fits(reading, framework, roles, gang, found):
        return
    rank = 0
    for role in roles:
        for part in gang.parts:
            if found[part.name] == role:
                part.roles, part.first_rank = ((role, part.count),), rank
                rank += part.count
                _tell_roles(reading, part)


def _fits(
    reading: Reading, framework: str, roles: Mapping[str, int | None], gang: Gang, found: Mapping[str, str]
) -> bool:
    """Whether there are as many members of each role as the framework has."""
    taken = [*found.values()]
    too_many = [part for part in gang.parts if part.count > (roles.get(found[part.name]) or part.count)]
    if len({*taken}) == len(taken) and not too_many and {*taken} <= {*roles}:
        return True
    there = ", ".join(f"{part.name} ({part.count})" for part in gang.parts)
    known = one_of(f"{role} (at most {most})" if most else role for role, most in roles.items())
    words = (
        f"these members are no groups of one {framework} job, whose roles are {known}: {there}; give the one "
        "that leads a replicated job of one pod, or convert what is a job of its own by itself"
    )
    reading.wrong(AT, words)
    return False


def _role_of(part: Part, roles: Mapping[str, Any], leads: str | None) -> str:
    """By its name; workers where that says nothing."""
    for word in (part.name, part.name.rpartition("-")[2]):
        for role, pattern in _ROLES:
            if pattern.fullmatch(word):
                if role in _LEADS and leads is not None:
                    return leads
                if role in roles:
                    return role
                if role == "ps" and "master" in roles and leads is None:
                    return "master"  # servers of Paddle
    return "worker"


def _meeting(gang: Gang) -> Part | None:
    """The part of the member where the others meet, by their variables and texts."""
    for part in gang.parts:  # hosts are numbered within each part until ranks are known
        part.roles = (("worker", part.count),)
    starts: dict[int, Part] = {}
    rank = 0
    for part in gang.parts:
        part.first_rank = rank
        starts |= {rank + n: part for n in range(part.count)}
        rank += part.count
    named: list[tuple[int, int]] = []
    for part in gang.parts:
        variables = env_of(part.trainer())
        known = values_of(gang, part, variables)
        hosts = Hosts(gang, known)
        for variable in variables:
            if isinstance(variable, Mapping) and variable.get("name") in _MEETING:
                order = _MEETING.index(variable["name"])
                named += [(order, rank) for rank in hosts.ranks(str(variable.get("value")))]
        texts = program_of(part.trainer())
        named += [(len(_MEETING), rank) for text in texts for rank in hosts.ranks(text)]
    return starts[min(named)[1]] if named else None


def _leader(
    parts: Sequence[Part],
    found: Mapping[str, str],
    leads: str | None,
    meeting: Part | None,
) -> Part | None:
    if leads is None:
        return None
    called = [part for part in parts if found[part.name] == leads]
    alone = [part for part in parts if part.count == 1 and found[part.name] == "worker"]
    if meeting is not None and meeting.count == 1:
        return meeting
    if called:
        return called[0]
    return alone[0] if len(alone) == 1 or (alone and len(alone) == len(parts)) else None


def _take_alone(gang: Gang, framework: str, evident: bool) -> None:
    """Of equal members of a framework that a master leads, the first is it."""
    (part,) = gang.parts
    rest = part.count - 1
    part.roles = (("worker", part.count),)
    if framework == "xgboost" or (framework == "pytorch" and evident and _elastic(gang) is None):
        part.roles = (("master", 1), *((("worker", rest),) if rest else ()))


def _tell_roles(reading: Reading, part: Part) -> None:
    """What differs from the shape of the part."""
    groups = {role: count for role, count in part.roles}
    if [*groups] != [part.name]:
        why = "groups are called as the roles of the framework"
        if len(groups) > 1:
            why += ", and the first of equal members is its master"
        reading.change(f"{part.at}.name", part.name, ", ".join(groups), why)
    if part.pods > 1:
        at = f"{part.at}.template.spec.parallelism"
        reading.change(at, part.pods, 1, f"each member is a Job of one pod; there are {part.count}")
    if part.group != "default":
        reading.lose(f"{part.at}.groupName", part.group, "members of a job are in one group of JobSet's")


def _elastic(gang: Gang) -> tuple[int, int] | None:
    """The bounds of a gang that may lose members, as torchrun is told of them."""
    for part in gang.parts:
        for variable in env_of(part.trainer()):
            if isinstance(variable, Mapping) and variable.get("name") == "PET_NNODES":
                bounds = re.fullmatch(r"(\d{1,5}):(\d{1,5})", str(variable.get("value")))
                total = sum(other.count for other in gang.parts)
                if bounds and 1 <= int(bounds[1]) <= total <= int(bounds[2]):
                    return int(bounds[1]), int(bounds[2])
    return None


# The members' numbers.


def counts_of(framework: str, gang: Gang) -> dict[str, Any]:
    """``groups`` by their numbers, ``elastic`` and ``processes_per_member``."""
    groups = {role: count for part in gang.by_rank() for role, count in part.roles}
    found: dict[str, Any] = {"groups": groups}
    if framework != "pytorch":
        return found
    bounds = _elastic(gang)
    told: dict[str, str] = {}
    for part in reversed(gang.by_rank()):
        variables = env_of(part.trainer())
        told |= {name: values[0] for name, values in values_of(gang, part, variables).items() if values}
    if bounds is not None:
        found["elastic"] = {"min": bounds[0], "max": bounds[1]}
        if re.fullmatch(r"\d{1,6}", told.get("PET_MAX_RESTARTS", "")):
            found["elastic"]["max_restarts"] = int(told["PET_MAX_RESTARTS"])
        if told.get("PET_RDZV_BACKEND") in ("c10d", "etcd", "etcd-v2"):
            found["elastic"]["rendezvous"] = told["PET_RDZV_BACKEND"]
        pairs = [pair.partition("=") for pair in told.get("PET_RDZV_CONF", "").split(",") if "=" in pair]
        if pairs:
            found["elastic"]["rendezvous_conf"] = {key: value for key, _, value in pairs}
    return found | {"processes_per_member": _processes(gang, told, sum(groups.values()))}


def _processes(gang: Gang, told: Mapping[str, str], total: int) -> int | str:
    """As torchrun is told, else by the size of the world; 1 is torchrun's own."""
    said = told.get("PET_NPROC_PER_NODE", "")
    if said in ("auto", "cpu", "gpu"):
        return said
    if re.fullmatch(r"[1-9]\d{0,3}", said):
        return int(said)
    words = " ".join(word for part in gang.parts for word in program_of(part.trainer()))
    if match := _PROCESSES.search(words):
        return max(1, int(match[1]))
    world = told.get("WORLD_SIZE", "")
    if re.fullmatch(r"[1-9]\d{0,6}", world) and int(world) % total == 0:
        return int(world) // total
    return 1

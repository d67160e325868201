"""Framework of a JobSet, and roles of its replicated jobs: a JobSet says neither."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from allaboard.engines.reading.members import Gang, Part, env_of, limits_of, program_of, values_of
from allaboard.engines.reading.values import Reading
from allaboard.text.names import one_of

Roles = Mapping[str, int | None]
"""Role -> how many members at most, in rank order."""
AT = "spec.replicatedJobs"
_EVIDENCE = {
    "tensorflow": (r"TF_CONFIG", r"tensorflow|tf|keras"),
    "paddle": (r"PADDLE_\w+", r"paddle(paddle)?|fleetrun"),
    "jax": (r"JAX_\w+|COORDINATOR_ADDRESS", r"jax|maxtext|flax"),
    "xgboost": (r"DMLC_\w+|WORKER_ADDRS", r"xgboost|lightgbm"),
    "pytorch": (r"MASTER_ADDR|PET_\w+|WORLD_SIZE", r"(py)?torch(run)?|accelerate|deepspeed"),
}
"""Framework -> variables that only its members have, and words of its programs, images and names."""
_MPI = re.compile(r"(?<![\w-])(mpirun|mpiexec|horovodrun|orterun|prterun)(?![\w-])")
_TPU = "google.com/tpu"
_ROLES = {
    "lead": re.compile(r"(chief|master|leader|launcher|driver|coordinator|control|head|main|primary)s?"),
    "evaluator": re.compile(r"eval(uator)?s?"),
    "ps": re.compile(r"ps|servers?"),
}
"""Role -> words of a replicated job's name, or of its last part, that mean it; others are workers."""
_PROCESSES = re.compile(r"--nproc[-_]per[-_]node[= ]+[\"']?(\d{1,4})(?!\d)")


def framework_of(reading: Reading, gang: Gang, ours: bool, roles: Callable[[str], Roles]) -> tuple[str, bool]:
    """Its name, and whether anything tells it. ``ours``: allaboard made the object, from whose variables the
    framework follows. ``roles``: those of a framework.
    """
    containers = [part.trainer() for part in gang.parts]
    names = [
        str(v.get("name")) for container in containers for v in env_of(container) if isinstance(v, Mapping)
    ]
    if ours:
        if gang.part("launcher") is not None:
            reading.wrong(
                "kind", "was made by allaboard from an MPI job, and cannot be converted back; use the job"
            )
        return _of_ours({*names}), True
    program = " ".join(word for container in containers for word in program_of(container))
    if match := _MPI.search(program):
        message = f"runs {match[1]}: a job of MPI is an MPIJob; write it with framework: mpi"
        reading.wrong("kind", message)
    images = " ".join(str(container.get("image")) for container in containers)
    called = [str(container.get("name")) for container in containers] + [part.name for part in gang.parts]
    texts = {"the program": program, "the image": images, "a name": " ".join([*called, gang.name])}
    evidence = _by_variables(names) or _by_words(texts)
    if evidence is None and any(_TPU in limits_of(container) for container in containers):
        evidence = "jax", "it asks for TPUs"
    framework, reason = evidence or _by_roles(gang, roles)
    reading.change(AT, None, f"framework: {framework}", f"a job says its framework; {reason}")
    return framework, evidence is not None


def _of_ours(names: set[str]) -> str:
    frameworks = {"PET_NPROC_PER_NODE": "pytorch", "COORDINATOR_ADDRESS": "jax", "PADDLE_JOB_ID": "paddle"}
    frameworks["MASTER_ADDR"] = "xgboost"
    return next((framework for name, framework in frameworks.items() if name in names), "tensorflow")


def _by_variables(names: list[str]) -> tuple[str, str] | None:
    for framework, (pattern, _) in _EVIDENCE.items():
        for name in names:
            if re.fullmatch(pattern, name):
                return framework, f"{name} is a variable of it"
    return None


def _by_words(texts: Mapping[str, str]) -> tuple[str, str] | None:
    for where, text in texts.items():
        for framework, (_, pattern) in _EVIDENCE.items():
            if match := re.search(rf"(?<![a-z])({pattern})(?![a-z])", text.lower()[:100_000]):
                return framework, f"{where} says {match[0]}"
    return None


def _by_roles(gang: Gang, roles: Callable[[str], Roles]) -> tuple[str, str]:
    """Framework of a JobSet in which nothing tells it: torch, unless there are several leaders."""
    unknown = "nothing in this JobSet tells it, and "
    torch, paddle = roles("pytorch"), roles("paddle")
    is_led_by_several = len(gang.parts) > 1 and not _have_places(gang, torch, _by_names(gang, torch))
    if is_led_by_several and _have_places(gang, paddle, _by_names(gang, paddle)):
        return "paddle", f"{unknown}of those known here this one may have several masters"
    return "pytorch", f"{unknown}torch is the usual one"


# Roles.


def assign_roles(
    reading: Reading,
    framework: str,
    gang: Gang,
    roles: Roles,
    *,
    evident: bool,
    ours: bool,
) -> None:
    """Gives each part the groups that it becomes, and its first rank. ``roles``: of the framework, with how
    many members at most; ``evident``: whether anything tells the framework.
    """
    if len(gang.parts) == 1 and not ours:
        (part,) = gang.parts
        # Of equal members of a framework that a master leads, the first is it.
        led = framework == "xgboost" or (framework == "pytorch" and evident)
        shares = {"master": 1, "worker": part.count - 1} if led else {"worker": part.count}
        part.roles = tuple((role, count) for role, count in shares.items() if count)
    else:
        role_by_part = {part.name: part.name for part in gang.parts} if ours else _by_names(gang, roles)
        if not _fits(reading, framework, evident, roles, gang, role_by_part):
            return
        for part in gang.parts:
            part.roles = ((role_by_part[part.name], part.count),)
    rank = 0
    for part in sorted(gang.parts, key=lambda part: [*roles].index(part.roles[0][0])):
        part.first_rank = rank
        rank += part.count
        _tell_roles(reading, part)


def _by_names(gang: Gang, roles: Roles) -> dict[str, str]:
    """Name of a part -> its role. One pod beside others leads where no name says who does."""
    lead = next((role for role in ("chief", "master") if role in roles), None)
    role_by_part = {part.name: _role_of(part.name, roles, lead) for part in gang.parts}
    alone = [part.name for part in gang.parts if part.count == 1 and role_by_part[part.name] == "worker"]
    if lead is not None and lead not in role_by_part.values() and len(alone) == 1:
        role_by_part[alone[0]] = lead
    return role_by_part


def _role_of(name: str, roles: Roles, lead: str | None) -> str:
    for word in (name, name.rpartition("-")[2]):
        if word in roles:
            return word
        for role, pattern in _ROLES.items():
            known = lead if role == "lead" else role
            if pattern.fullmatch(word) and known in roles:
                return known or "worker"
    return "worker"


def _fits(
    reading: Reading,
    framework: str,
    evident: bool,
    roles: Roles,
    gang: Gang,
    role_by_part: Mapping[str, str],
) -> bool:
    """True if each role has as many members as the framework allows."""
    if _have_places(gang, roles, role_by_part):
        return True
    there = ", ".join(f"{part.name} ({part.count})" for part in gang.parts)
    known = one_of(f"{role} (at most {most})" if most else role for role, most in roles.items())
    message = (
        f"these are no groups of one {framework} job, whose roles are {known}: {there}; give the one that "
        "leads a replicated job of one pod, or convert what is a job of its own by itself"
    )
    if not evident:
        message += "; nothing in it names a framework, so it may not be a training job"
    reading.wrong(AT, message)
    return False


def _have_places(gang: Gang, roles: Roles, role_by_part: Mapping[str, str]) -> bool:
    """``role_by_part``: name of a part -> its role."""
    too_many = [
        part for part in gang.parts if part.count > (roles.get(role_by_part[part.name]) or part.count)
    ]
    return (
        len({*role_by_part.values()}) == len(gang.parts)
        and not too_many
        and {*role_by_part.values()} <= {*roles}
    )


def _tell_roles(reading: Reading, part: Part) -> None:
    """Report the differences from the shape of the part."""
    groups = [role for role, _ in part.roles]
    if groups != [part.name]:
        reason = "groups are called as the roles of the framework"
        if len(groups) > 1:
            reason += ", and the first of equal members is its master"
        reading.change(f"{part.at}.name", part.name, ", ".join(groups), reason)
    if part.pods > 1:
        at = f"{part.at}.template.spec.parallelism"
        reading.change(at, part.pods, 1, f"each member is a Job of one pod; there are {part.count}")


def processes_of(gang: Gang) -> int | str:
    """Processes of each member of a PyTorch job: as torchrun is told, else by the size of the world; 1 is
    torchrun's own.
    """
    settings: dict[str, str] = {}
    for part in reversed(gang.by_rank()):
        variables = env_of(part.trainer())
        settings |= {name: values[0] for name, values in values_of(gang, part, variables).items() if values}
    processes = settings.get("PET_NPROC_PER_NODE", "")
    if processes in ("auto", "cpu", "gpu"):
        return processes
    command = " ".join(word for part in gang.parts for word in program_of(part.trainer()))
    match = _PROCESSES.search(command)
    processes = processes or (match[1] if match else "")
    if re.fullmatch(r"[1-9]\d{0,3}", processes):
        return int(processes)
    world, total = settings.get("WORLD_SIZE", ""), sum(part.count for part in gang.parts)
    if re.fullmatch(r"[1-9]\d{0,6}", world) and int(world) % total == 0:
        return int(world) // total
    return 1

"""Problems of a job whose command runs a launcher (torchrun, accelerate launch and the like) that is told
another gang than the job's. They are warnings: published manifests have such options, and are converted and
run as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from allaboard.errors import Problem
from allaboard.job.training_job import member_count
from allaboard.runs.launchers import Gang, launch_in, objections
from allaboard.text.untrusted import show

_FRAMEWORKS = frozenset({"pytorch", "mpi"})


def launcher_problems(job: Mapping[str, Any], helpers: frozenset[str]) -> Iterator[Problem]:
    """The problems, by the words of commands. ``job``: fields that are right by themselves; ``helpers``:
    roles that do not train.
    """
    framework = job.get("framework", "pytorch")
    if framework not in _FRAMEWORKS or not {"workers", "groups", "elastic", "command", "args"} & {*job}:
        return
    groups = {role: g for role, g in (job.get("groups") or {}).items() if role not in helpers}
    owners: dict[str, Mapping[str, Any]] = {
        f"groups.{show(role, quote=False)}.": g
        for role, g in groups.items()
        if isinstance(g, Mapping) and "command" in g
    }
    for prefix, fields in {"": {}, **owners}.items():
        source = fields or job
        command, args = source.get("command") or (), source.get("args") or ()
        gang = _gang(job, fields, framework)
        yield from _problems(command, args, prefix, gang)


def _gang(job: Mapping[str, Any], group: Mapping[str, Any], framework: str) -> Gang:
    resources = {**(job.get("resources") or {}), **(group.get("resources") or {})}
    elastic, total = job.get("elastic"), member_count(job)
    processes = job.get("processes_per_member")
    bounds = None
    if elastic is not None:
        least = elastic.get("min", elastic.get("max", total))
        bounds = (least, elastic.get("max", max(total, least)))
    return Gang(
        members=total,
        elastic=bounds,
        processes=None if processes is None else str(processes),
        gpus=resources.get("gpu", 0) or int("mig" in resources),
        framework=framework,
    )


def _problems(command: Sequence[str], args: Sequence[str], prefix: str, gang: Gang) -> Iterator[Problem]:
    launch = launch_in([*command, *args])
    for objection in objections(launch, gang) if launch is not None else ():
        place, at = ("command", objection.at)
        if at >= len(command):
            place, at = "args", at - len(command)
        text = f"{objection.trouble}; {objection.remedy}"
        yield Problem(f"{prefix}{place}[{at}]", text, severity="warning")

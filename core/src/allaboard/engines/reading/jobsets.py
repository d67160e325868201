"""JobSets become jobs: replicated jobs are groups, and their Jobs' pods are members.

Read from JobSet 0.12.0: api/jobset/v1alpha2, pkg/controllers, pkg/webhooks. What differs between a JobSet and
a job:

- A JobSet knows no framework and no roles (`frameworks`).
- The engine injects what the operator of the framework would. A variable of the JobSet that says the same is
  not said again; one that says something else is a problem, because the engine's value would win
  (`templates`).
- Members have other hosts and other indices in a run (`members`).
- A member is a Job of its own, and is restarted with its gang (`restarts`). What a Job of several pods says
  of all of them, and what is no field of a job, is lost and told; a member that starts after another has
  ended is not part of a gang, and is a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from allaboard.engines.reading.frameworks import AT, assign_roles, framework_of, processes_of
from allaboard.engines.reading.members import Gang, Part, limits_of
from allaboard.engines.reading.pods import PodFields, job_fields, note_paths, read_pods
from allaboard.engines.reading.restarts import Rendering, policies_of
from allaboard.engines.reading.templates import Template
from allaboard.engines.reading.values import Conversion, Reading, identity, is_ours, join, marks, plain
from allaboard.text.names import why_not_an_object_name

_MOST_PARTS = 8
"""More than any framework has roles."""
_MOST_MEMBERS = 10_000
_UNNAMED = "\0jobset\0"
"""Stands for the name of a JobSet that gets one by lot. No text of a manifest holds a NUL."""
_EXCLUSIVE = ("alpha.jobset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/node-selector")
"""Annotations that give each Job a domain of nodes of its own."""
_BY_INDEX = ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy")
"""Fields of a Job that speak of the indices of its pods."""


class Kind(Protocol):
    """Methods of the engine that reading needs."""

    KIND: str
    NAME: str
    API_VERSION: str
    CONTAINER: str
    JOB_FIELDS: frozenset[str]

    def roles(self, framework: str) -> Mapping[str, int | None]: ...

    def rendering(self, job: Mapping[str, Any]) -> Rendering: ...


def job_of_jobset(kind: Kind, obj: Mapping[str, Any]) -> Conversion:
    """The job that a JobSet says. Raises BadInput with every problem and its path."""
    reading, ours, subject = Reading(), is_ours(obj), f"this {kind.KIND}"
    if obj.get("apiVersion") != kind.API_VERSION:
        reason = "the version that is known here; its fields have the same names"
        reading.change("apiVersion", plain(obj.get("apiVersion")), kind.API_VERSION, reason)
    job = identity(reading, obj)
    spec = reading.mapping(obj.get("spec"), "spec")
    parts = _parts(reading, spec)
    for part in parts:
        _choose_trainer(reading, part, kind.CONTAINER)
    reading.raise_problems(subject)
    engine_spec: dict[str, Any] = {}
    gang = _gang(reading, obj, spec, parts, engine_spec)
    framework, evident = framework_of(reading, gang, ours, kind.roles)
    assign_roles(reading, framework, gang, kind.roles(framework), evident=evident, ours=ours)
    reading.raise_problems(subject)
    job |= {"framework": framework, "engine": kind.NAME, "engine_spec": engine_spec, "groups": gang.groups()}
    gang = _with_coordinator(reading, spec, gang, engine_spec)
    if framework == "pytorch":
        job["processes_per_member"] = processes_of(gang)
    bare: dict[str, Any] = {"name": "bare", "image": "bare", "args": [], **job, "metadata": {}}

    def render(policy: Mapping[str, Any]) -> Rendering:
        return kind.rendering({**bare, "policy": policy})

    environment, name = render({}).environment, _container_name(kind, gang, framework)
    templates = {
        part.name: (
            Template(reading, gang, part, environment, framework, name, ours).pod_template(),
            f"{part.at}.template.spec.template",
        )
        for part in parts
    }
    pods = read_pods(reading, templates, name, ours=ours)
    if not reading.problems:
        _join(reading, gang, pods, job)
        if not ours:
            reason = "the engine says to each member what the operator of the framework would"
            reading.change(f"{AT}.env", None, sorted(environment(0)), reason)
    job["policy"] = policies_of(reading, render, spec, gang, engine_spec, kind.CONTAINER)
    _tell_restarts(reading, pods)
    _order(reading, spec, gang, job)
    _rest(reading, kind, spec, gang, job)
    reading.raise_problems(subject)
    return reading.conversion(job)


# The replicated jobs.


def _parts(reading: Reading, spec: dict[str, Any]) -> list[Part]:
    items = reading.items(spec.pop("replicatedJobs", None), AT)
    if len(items) > _MOST_PARTS:
        reading.wrong(AT, f"has {len(items)} entries; no framework has more than {_MOST_PARTS} roles")
        return []
    parts: list[Part] = []
    for n, item in enumerate(items):
        if part := _part(reading, item, f"{AT}[{n}]"):
            if any(other.name == part.name for other in parts):
                reading.wrong(f"{part.at}.name", "appears twice; each replicated job has a name of its own")
            part.first_job = sum(other.jobs for other in parts)
            parts.append(part)
    if not parts and not reading.problems:
        reading.wrong(AT, "has no members; a JobSet has them there")
    if sum(part.count for part in parts) > _MOST_MEMBERS:
        reading.wrong(AT, f"has more than {_MOST_MEMBERS:,} members, which is the most that a job has")
    return parts


def _part(reading: Reading, item: Any, at: str) -> Part | None:
    fields = reading.mapping(item, at)
    name = reading.text(fields.pop("name", None), f"{at}.name")
    if name is None or why_not_an_object_name(name, 63):
        reading.wrong(f"{at}.name", "is missing, or is not a name of Kubernetes")
        return None
    jobs = reading.whole(fields.pop("replicas", None), f"{at}.replicas")
    template = reading.mapping(fields.pop("template", None), f"{at}.template")
    metadata = reading.mapping(template.pop("metadata", None), f"{at}.template.metadata")
    marked = {
        kind: texts
        for kind in ("labels", "annotations")
        if (texts := marks(reading, metadata.pop(kind, None), f"{at}.template.metadata.{kind}"))
    }
    reading.lose_rest(metadata, f"{at}.template.metadata", "a Job of a JobSet has labels and annotations")
    spec = reading.mapping(template.pop("spec", None), f"{at}.template.spec")
    reading.lose_rest(template, f"{at}.template", "a template of Jobs has metadata and spec")
    pods = _pods_of(reading, spec, f"{at}.template.spec")
    if jobs == 0 or pods == 0:
        reading.lose(at, item, "a group of a job has at least one member")
        return None
    spec["dependsOn"] = fields.pop("dependsOn", None)
    own = {"metadata": marked} if marked else {}
    group = reading.text(fields.pop("groupName", None), f"{at}.groupName")
    reading.lose_rest(fields, at, "a replicated job has no such field")
    return Part(name, at, 1 if jobs is None else jobs, pods, spec.pop("template", None), spec, group, own)


def _pods_of(reading: Reading, spec: dict[str, Any], at: str) -> int:
    """The pods of one Job, which all run at once."""
    parallelism = reading.whole(spec.pop("parallelism", None), f"{at}.parallelism")
    completions = reading.whole(spec.pop("completions", None), f"{at}.completions")
    most = 1 if parallelism is None else parallelism
    if completions is not None and completions > most:
        message = f"{completions} pods of which {most} run at once; the members of a job run together"
        reading.wrong(f"{at}.completions", message)
    return most if completions is None else min(completions, most)


def _choose_trainer(reading: Reading, part: Part, name: str) -> None:
    """The container that trains: by the engine's name, alone, by its devices, the first."""
    at, containers = f"{part.at}.template.spec.template.spec.containers", part.containers()
    if not containers:
        reading.wrong(at, "is missing; one of them trains")
        return
    named = [n for n, item in enumerate(containers) if item.get("name") == name]
    equipped = [
        n for n, item in enumerate(containers) if any("/" in str(device) for device in limits_of(item))
    ]
    part.trains = (named or equipped or [0])[0]
    if not named:
        explanation = "the engine's name of the container that trains"
        if len(containers) > 1:
            reason = "it asks for devices" if equipped else "it is the first"
            explanation += f"; of several this is taken for it, because {reason}"
        reading.change(
            f"{at}[{part.trains}].name", plain(containers[part.trains].get("name")), name, explanation
        )


def _container_name(kind: Kind, gang: Gang, framework: str) -> str:
    """Name of the container that trains, in the job: as every engine of the framework knows it, unless
    another container has that name.
    """
    taken = [
        item.get("name")
        for part in gang.parts
        for n, item in enumerate(part.containers())
        if n != part.trains
    ]
    return kind.CONTAINER if framework in taken else framework


def _gang(
    reading: Reading,
    obj: Mapping[str, Any],
    spec: dict[str, Any],
    parts: list[Part],
    engine_spec: dict[str, Any],
) -> Gang:
    """All members, and where they are: at a Service of its name, unless ``network`` says another."""
    metadata, at = obj["metadata"], "spec.network"
    name = metadata.get("name") if isinstance(metadata.get("name"), str) else _UNNAMED
    fields = reading.mapping(spec.pop("network", None), at)
    if reading.flag(fields.pop("enableDNSHostnames", None), f"{at}.enableDNSHostnames") is False:
        reading.change(
            f"{at}.enableDNSHostnames", False, None, "members of a run are told the host of the first"
        )
    subdomain = reading.text(fields.pop("subdomain", None), f"{at}.subdomain")
    if subdomain is not None and subdomain != name:
        reason = "members of a run are at a Service of its own name"
        reading.change(f"{at}.subdomain", subdomain, None, reason)
    early = "publishNotReadyAddresses"
    if (flag := reading.flag(fields.pop(early, None), f"{at}.{early}")) is not None:
        engine_spec["network"] = {early: flag}
    reading.lose_rest(fields, at, "a network has no such field")
    return Gang(parts, name, subdomain or name)


# The fields of the job.


def _join(reading: Reading, gang: Gang, pods: Mapping[str, PodFields], job: dict[str, Any]) -> None:
    """Puts what the pods of all groups say into the job."""
    groups = {role: pods[part.name] for part in gang.by_rank() for role, _ in part.roles}
    shared, own = job_fields(groups)
    job |= shared
    job["groups"] = {
        role: {"replicas": count, **own[role]} if own[role] else count
        for role, count in gang.groups().items()
    }
    with_gpus = any("gpu" in group.resources or "mig" in group.resources for group in groups.values())
    if job.get("processes_per_member") == 1 and not with_gpus:
        del job["processes_per_member"]  # as it is where nothing is said
    note_paths(reading, groups, own)
    reading.paths["groups"] = AT
    for part in gang.parts:
        reading.paths |= {f"groups.{role}": part.at for role, _ in part.roles}


def _with_coordinator(
    reading: Reading, spec: dict[str, Any], gang: Gang, engine_spec: dict[str, Any]
) -> Gang:
    """The coordinator by the group and index that it has in a run."""
    at = "spec.coordinator"
    if (written := spec.pop("coordinator", None)) is None:
        return gang
    fields = reading.mapping(written, at)
    part = gang.part(reading.text(fields.pop("replicatedJob", None), f"{at}.replicatedJob"))
    index = reading.whole(fields.pop("jobIndex", None), f"{at}.jobIndex") or 0
    pod = reading.whole(fields.pop("podIndex", None), f"{at}.podIndex") or 0
    reading.lose_rest(fields, at, "a coordinator has no such field")
    if part is None or index >= part.jobs or pod >= part.pods:
        reading.wrong(at, "names a member that the JobSet does not have")
        return gang
    who = part.member(index, pod)
    engine_spec["coordinator"] = {"replicatedJob": who.role, "jobIndex": who.index}
    if (who.role, who.index, pod) != (part.name, index, 0):
        reading.change(at, plain(written), engine_spec["coordinator"], "the same member of a run")
    return replace(gang, coordinator=who.rank)


def _tell_restarts(reading: Reading, pods: Mapping[str, PodFields]) -> None:
    for fields in pods.values():
        if fields.restart not in (None, "Never"):
            reason = "a member that fails is restarted with its gang, which policy.restart says"
            reading.change(f"{fields.at}.spec.restartPolicy", fields.restart, "Never", reason)


def _order(reading: Reading, spec: dict[str, Any], gang: Gang, job: dict[str, Any]) -> None:
    """Read the start order. A member that waits for the end of another is not part of a gang."""
    at = "spec.startupPolicy"
    fields = reading.mapping(spec.pop("startupPolicy", None), at)
    orders = {"AnyOrder": "", "InOrder": "InOrder"}
    waits = bool(reading.word(fields.pop("startupPolicyOrder", None), orders, f"{at}.startupPolicyOrder"))
    reading.lose_rest(fields, at, "a startup policy has no such field")
    for part in gang.parts:
        waits = _depends(reading, part) or waits
    if not waits or len(gang.parts) == 1:
        return
    if [*gang.parts] != gang.by_rank():
        reason = "members start in the order of their ranks, which is another one; they start at once"
        reading.lose(at, "InOrder", reason)
        return
    job["engine_spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    job["gang"] = {"scheduler": "none"}
    reason = "members that wait for others cannot start with them, as a gang scheduler would have it"
    reading.change(at, None, {"gang": {"scheduler": "none"}}, reason)


def _depends(reading: Reading, part: Part) -> bool:
    """True if a part waits until the one before it is ready."""
    at, waits = f"{part.at}.dependsOn", False
    for n, item in enumerate(reading.items(part.spec.pop("dependsOn", None), at)):
        fields = reading.mapping(item, f"{at}[{n}]")
        status = fields.get("status")
        if status == "Ready":
            waits = True
            reason = "the same as startupPolicy: InOrder, in which a group waits for the one before it"
            reading.change(f"{at}[{n}]", plain(item), {"startupPolicyOrder": "InOrder"}, reason)
        else:
            message = (
                "starts when another has completed, and the members of a job start together; convert each "
                "by itself, and run them as steps (Airflow, KFP)"
            )
            reading.wrong(f"{at}[{n}]", message)
    return waits


def _rest(reading: Reading, kind: Kind, spec: dict[str, Any], gang: Gang, job: dict[str, Any]) -> None:
    for part in gang.parts:
        at = f"{part.at}.template.spec"
        mode = reading.text(part.spec.pop("completionMode", None), f"{at}.completionMode")
        if mode not in (None, "Indexed"):
            reason = "members always have an index; a member that does not need it can ignore it"
            reading.change(f"{at}.completionMode", mode, "Indexed", reason)
        if part.spec.get("suspend") is False:
            del part.spec["suspend"]
        _keep_own(reading, kind, part)
        reading.lose_rest(part.spec, at, "members are Jobs that the engine makes; a job says nothing of it")
    if own := [*_own(gang)]:
        job["engine_spec"]["replicatedJobs"] = own
    if manager := reading.text(spec.pop("managedBy", None), "spec.managedBy"):
        job["engine_spec"]["managedBy"] = manager
    if claims := reading.items(spec.pop("volumeClaimPolicies", None), "spec.volumeClaimPolicies"):
        job["engine_spec"]["volumeClaimPolicies"] = plain(claims)
    reading.lose_rest(spec, "spec", f"a {kind.KIND} has no such field")
    if any(part.pods > 1 for part in gang.parts):
        _lose_exclusive(reading, job, "metadata.annotations")


def _keep_own(reading: Reading, kind: Kind, part: Part) -> None:
    """Keep the fields of a part's Jobs that stay as they are; `_own` passes them to the engine."""
    at = f"{part.at}.template"
    for name in sorted(kind.JOB_FIELDS & {*part.spec}):
        value = part.spec.pop(name)
        if value is None:
            continue
        if part.pods > 1 and name in _BY_INDEX:
            reason = "speaks of the indices of a Job's pods; each member is a Job of its own"
            reading.lose(f"{at}.spec.{name}", plain(value), reason)
        else:
            part.own.setdefault("spec", {})[name] = plain(value)
    if part.pods > 1:
        _lose_exclusive(reading, part.own, f"{at}.metadata.annotations")


def _own(gang: Gang) -> Iterator[dict[str, Any]]:
    """Fields of each group's Jobs for the engine."""
    for part in gang.by_rank():
        group = {"groupName": part.group} if part.group else {}
        template = {"template": part.own} if part.own else {}
        if group or template:
            yield from ({"name": role, **group, **template} for role, _ in part.roles)


def _lose_exclusive(reading: Reading, marked: dict[str, Any], at: str) -> None:
    """Takes from an object's metadata what would give each member nodes of its own."""
    values = (marked.get("metadata") or {}).get("annotations") or {}
    for name in [name for name in _EXCLUSIVE if name in values]:
        reason = (
            "each member is a Job here, and would take such a domain for itself: of the pods of several Jobs "
            "no variable tells which is which; see gang.topology"
        )
        reading.lose(join(at, name), values.pop(name), reason)
    if not values:
        (marked.get("metadata") or {}).pop("annotations", None)
    if "metadata" in marked and not marked["metadata"]:
        del marked["metadata"]

"""One view of a job and of a manifest, so that a rule is written once: groups, their pod templates and
containers, the run policy, and the path of each field as its author finds it.

A job is looked at as its engine renders it. Of a manifest nothing is taken for granted: what has another
shape than it should is read as if it were absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from allaboard.engines import Engine, engine_of, engine_of_object
from allaboard.gangs.base import GangPlan
from allaboard.job.helper import without_helper
from allaboard.job.training_job import TrainingJob
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.render.pod_template import merged, pod_template
from allaboard.runs.layout import Layout, lay_out
from allaboard.text.names import run_name
from allaboard.text.untrusted import show

JOB, MANIFEST = "job", "manifest"
_DEPTH = 12
"""Levels within which pod templates are looked for: those of a JobSet are the deepest, at 7."""


def mapping(value: Any) -> Mapping[str, Any]:
    """The mapping, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """The list, or an empty one for anything else."""
    return value if isinstance(value, list) else []


def texts(value: Any) -> tuple[str, ...]:
    """The texts of a list."""
    return tuple(str(item) for item in items(value) if isinstance(item, (str, int, float)))


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a group. ``at``: the paths of its fields start here; ``trains``: whether it is the one
    that its operator looks at; ``begins``: whether it is an init container.
    """

    fields: Mapping[str, Any]
    at: str
    trains: bool
    begins: bool = False

    @property
    def name(self) -> str:
        return str(self.fields.get("name", ""))

    @property
    def line(self) -> tuple[str, ...]:
        """The command and its arguments."""
        return (*texts(self.fields.get("command")), *texts(self.fields.get("args")))

    @property
    def environment(self) -> Iterator[tuple[int, str, Any]]:
        """(place, name, literal value or None) of each variable."""
        for n, entry in enumerate(items(self.fields.get("env"))):
            if isinstance(mapping(entry).get("name"), str):
                yield n, entry["name"], entry.get("value")

    def variable(self, name: str) -> Any:
        """The literal value of a variable; ``""`` for one that comes from elsewhere, None: there is none."""
        values = [value for _, its, value in self.environment if its == name]
        return None if not values else values[-1] if values[-1] is not None else ""

    def amount(self, kind: str, resource: str) -> str | None:
        """Amount of a resource in ``requests`` or ``limits``, as it is written."""
        value = mapping(mapping(self.fields.get("resources")).get(kind)).get(resource)
        return None if value is None else str(value)

    @property
    def gpus(self) -> int:
        """GPUs, whole or slices, of one member."""
        resources = mapping(self.fields.get("resources"))
        stated = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
        wanted = [str(n) for name, n in stated.items() if _GPU.search(str(name))]
        return sum(int(n) for n in wanted if len(n) < 6 and n.isdecimal())


@dataclass(frozen=True, slots=True)
class Group:
    """Members of one role. ``replicas`` None: not said; ``restart``: as its kind or its pod says it."""

    role: str
    replicas: Any
    restart: str | None
    fields: Mapping[str, Any]
    metadata: Mapping[str, Any]
    pod: Mapping[str, Any]
    containers: tuple[Container, ...]
    at: str
    template_at: str
    helps: bool = False

    @property
    def count(self) -> int:
        """Members, as the operator counts them."""
        whole = isinstance(self.replicas, int) and not isinstance(self.replicas, bool)
        return int(self.replicas) if whole else 1

    @property
    def trainers(self) -> Iterator[Container]:
        return (container for container in self.containers if container.trains)


@dataclass(frozen=True, slots=True)
class View:
    """A job, or a job object. ``policy``: its runPolicy, empty where its kind has none; ``fields``: those of
    the job, empty of a manifest.
    """

    origin: str
    engine: Engine
    name: str
    spec: Mapping[str, Any]
    policy: Mapping[str, Any]
    groups: tuple[Group, ...]
    fields: Mapping[str, Any]

    @property
    def is_v1(self) -> bool:
        """True if it is of the Training Operator."""
        return self.engine.API_VERSION == "kubeflow.org/v1"

    @property
    def is_runtime(self) -> bool:
        """True if it is the template of jobs, each of which says some fields itself."""
        return self.origin == MANIFEST and "template" in self.spec

    @property
    def in_run_policy(self) -> bool:
        """True if its kind has a runPolicy with a cleanPodPolicy."""
        return self.engine.API_VERSION.startswith("kubeflow.org/")

    @property
    def total(self) -> int:
        """The number of members."""
        return sum(group.count for group in self.groups)

    @property
    def trainers(self) -> Iterator[tuple[Group, Container]]:
        """The containers that train, those of servers and evaluators left out."""
        return ((group, trainer) for group in self.groups if not group.helps for trainer in group.trainers)

    @property
    def containers(self) -> Iterator[tuple[Group, Container]]:
        """Each container with its group."""
        return ((group, container) for group in self.groups for container in group.containers)

    def container(self, group: Group, container: Container, field: str) -> str:
        """The path of a field of a container."""
        if self.origin == MANIFEST:
            return f"{container.at}.{field}"
        at = self._item(group, container, _first(field))
        return f"{at}.{field}" if at else self._of_group(group, field)

    def variable(self, group: Group, container: Container, n: int, name: str) -> str:
        """The path of a variable, by its place and its name."""
        if self.origin == MANIFEST:
            return f"{container.at}.env[{n}]"
        at = self._item(group, container, "env")
        return f"{at}.env" if at else f"{self._of_group(group, 'env', name)}.{name}"

    def whole(self, group: Group, container: Container) -> str:
        """The path of a container."""
        if self.origin == MANIFEST:
            return container.at
        return self._item(group, container) or "pod.spec.containers"

    def in_pod(self, group: Group, field: str) -> str:
        """The path of a field of a pod's spec."""
        if self.origin == MANIFEST:
            return f"{group.template_at}.spec.{field}"
        paths = [at for at, pod in self._pods(group) if _first(field) in mapping(pod.get("spec"))]
        return f"{paths[0] if paths else 'pod'}.spec.{field}"

    def volume(self, group: Group, n: int, volume: Mapping[str, Any]) -> str:
        """The path of a volume, by its place."""
        if self.origin == MANIFEST:
            return f"{group.template_at}.spec.volumes[{n}]"
        for at, pod in self._pods(group):
            names = [mapping(v).get("name") for v in items(mapping(pod.get("spec")).get("volumes"))]
            if volume.get("name") in names:
                return f"{at}.spec.volumes[{names.index(volume.get('name'))}]"
        kind, _, place = str(volume.get("name")).rpartition("-")
        return f"storage[{place}]" if kind == "storage" and place.isdecimal() else "pod.spec.volumes"

    def metadata(self, group: Group, kind: str, name: str) -> str:
        """The path of a label or an annotation of a pod."""
        if self.origin == MANIFEST:
            return f"{group.template_at}.metadata.{kind}.{name}"
        paths = [at for at, p in self._pods(group) if name in mapping(mapping(p.get("metadata")).get(kind))]
        return f"{paths[0] if paths else 'pod'}.metadata.{kind}.{name}"

    def in_policy(self, field: str) -> str:
        """The path of a field of the run policy."""
        return f"spec.runPolicy.{field}" if self.origin == MANIFEST else f"policy.{_POLICY[field]}"

    def restart(self, group: Group) -> str:
        """The path of a group's restart policy."""
        if self.origin == MANIFEST:
            return f"{group.at}.restartPolicy"
        return f"groups.{group.role}.restart" if "restart" in self._said(group) else "policy.restart"

    @property
    def at_groups(self) -> str:
        """The path of the groups."""
        if self.origin == JOB:
            return "groups" if "groups" in self.fields else "workers"
        return self.groups[0].at.rpartition(".")[0].partition("[")[0] if self.groups else "spec"

    def _said(self, group: Group) -> Mapping[str, Any]:
        """Fields of a job for a group alone."""
        return mapping(mapping(self.fields.get("groups")).get(group.role))

    def _pods(self, group: Group) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Templates that a job merges over the pods of a group, and their paths; first the group's own, which
        win.
        """
        yield f"groups.{group.role}.pod", mapping(self._said(group).get("pod"))
        yield "pod", mapping(self.fields.get("pod"))

    def _item(self, group: Group, container: Container, field: str | None = None) -> str | None:
        """The path of a container in what a job merges over its pods, where that says the field."""
        for at, pod in self._pods(group):
            for part in ("containers", "initContainers"):
                for n, item in enumerate(items(mapping(pod.get("spec")).get(part))):
                    if mapping(item).get("name") == container.name and (field is None or field in item):
                        return f"{at}.spec.{part}[{n}]"
        return None

    def _of_group(self, group: Group, field: str, name: str | None = None) -> str:
        """The path in the fields of a job's group, or of the job. ``name``: of a variable."""
        own = _CONTAINER.get(_first(field))
        if own is None:
            return f"pod.spec.containers.{field}"
        own_fields = self._said(group)
        if own == "args" and own not in own_fields and own not in self.fields:
            own = "command"
        there = own_fields.get(own)
        return f"groups.{group.role}.{own}" if there is not None and name in (None, *mapping(there)) else own


def _first(field: str) -> str:
    return field.partition(".")[0].partition("[")[0]


_GPU = re.compile(r"/gpu$|^nvidia\.com/mig-")
_CONTAINER = {
    "image": "image",
    "imagePullPolicy": "image_pull_policy",
    "command": "command",
    "args": "args",
    "env": "environment",
    "resources": "resources",
}
_POLICY = {
    "backoffLimit": "backoff_limit",
    "cleanPodPolicy": "clean_pods",
    "ttlSecondsAfterFinished": "ttl",
    "activeDeadlineSeconds": "deadline",
}


# From a manifest.

_RUNTIMES = {"TrainingRuntime": "TrainJob", "ClusterTrainingRuntime": "TrainJob"}
"""Kind of the object that holds the pods of a job object -> its kind."""


def view_of_object(obj: Mapping[str, Any]) -> View | None:
    """The view of a job object, or of the runtime of one; None: its kind is no engine's."""
    engine = engine_of_object({**obj, "kind": _RUNTIMES.get(str(obj.get("kind")), obj.get("kind"))})
    if engine is None:
        return None
    obj = without_helper(obj)
    return _view(MANIFEST, engine, obj, str(mapping(obj.get("metadata")).get("name", "")), {})


def _view(origin: str, engine: Engine, obj: Mapping[str, Any], name: str, fields: Mapping[str, Any]) -> View:
    spec = mapping(obj.get("spec"))
    groups = tuple(_groups(engine, spec, "spec", None, "", _DEPTH))
    return View(origin, engine, name, spec, mapping(spec.get("runPolicy")), groups, fields)


def _groups(
    engine: Engine, value: Any, at: str, owner: tuple[Mapping[str, Any], str] | None, role: str, depth: int
) -> Iterator[Group]:
    """Every pod template within a job object, whatever its kind. ``owner``: what holds it, the group of its
    role, and its path.
    """
    if depth == 0:
        return
    if isinstance(value, list):
        for n, item in enumerate(value):
            # A JobSet's groups are a list, each with its name.
            name = mapping(item).get("name")
            named = isinstance(name, str)
            own = (mapping(item), f"{at}[{n}]") if named else owner
            yield from _groups(engine, item, f"{at}[{n}]", own, str(name) if named else role, depth - 1)
        return
    if not isinstance(value, Mapping):
        return
    if isinstance(mapping(value.get("spec")).get("containers"), list):
        yield _group(engine, value, at, owner or ({}, at), role)
        return
    for key, inner in value.items():
        if str(key).endswith(("Patches", "Overrides")):
            continue  # what a TrainJob changes of its runtime's template is no template
        within = f"{at}.{show(str(key), quote=False)}"
        is_group = isinstance(inner, Mapping) and "template" in inner and owner is None
        own = (inner, within) if is_group else owner
        yield from _groups(engine, inner, within, own, str(key) if is_group else role, depth - 1)


def _group(
    engine: Engine, template: Mapping[str, Any], at: str, owner: tuple[Mapping[str, Any], str], role: str
) -> Group:
    fields, group_at = owner
    pod = mapping(template.get("spec"))
    restart = fields.get("restartPolicy", pod.get("restartPolicy"))
    return Group(
        role=role.lower(),
        replicas=_replicas(fields),
        restart=restart if isinstance(restart, str) else None,
        fields=fields,
        metadata=mapping(template.get("metadata")),
        pod=pod,
        containers=tuple(_containers(engine, pod, f"{at}.spec")),
        at=group_at,
        template_at=at,
        helps=_helps(engine, role.lower()),
    )


def _helps(engine: Engine, role: str) -> bool:
    """True if a role trains in none of the engine's frameworks that have it."""
    known = [name for name in engine.FRAMEWORKS if role in engine.roles(name)]
    return bool(known) and all(role in engine.helpers(name) for name in known)


def _replicas(fields: Mapping[str, Any]) -> Any:
    """As it is written; of a JobSet, whose groups are Jobs, the pods of all of them."""
    replicas = fields.get("replicas")
    pods = mapping(mapping(fields.get("template")).get("spec")).get("parallelism")
    if not isinstance(pods, int) or not isinstance(replicas, int | None):
        return replicas
    return pods * (1 if replicas is None else replicas)


def _containers(engine: Engine, pod: Mapping[str, Any], at: str) -> Iterator[Container]:
    every = [mapping(container) for container in items(pod.get("containers"))]
    names = [fields.get("name") for fields in every]
    trains = names.index(engine.CONTAINER) if engine.CONTAINER in names else 0
    for n, fields in enumerate(every):
        yield Container(fields, f"{at}.containers[{n}]", n == trains)
    for n, fields in enumerate(items(pod.get("initContainers"))):
        yield Container(mapping(fields), f"{at}.initContainers[{n}]", trains=False, begins=True)


# From a job.

_NO_IMAGE = "allaboard.invalid/image@sha256:" + "0" * 64
"""The image of a job that leaves it to its place."""


def view_of_job(job: TrainingJob) -> View:
    """The view of a checked job, as its engine renders it without a gang scheduler. Where it runs is not
    asked: a job of this machine has no image.
    """
    engine = engine_of(job)
    layout = replace(lay_out(job, engine, run_name(job.name, "lint")), setup={})
    facts = ClusterFacts(image=_NO_IMAGE)
    metadata = {"name": layout.name, "namespace": facts.namespace}
    templates = {
        group.role: pod_template(job, layout, group, facts, engine, metadata={"labels": {}})
        for group in layout.groups
    }
    gang = _no_gang(layout)
    obj = engine.render(layout, metadata, templates, gang)
    spec = merged(obj["spec"], job.get("engine_spec") or {})
    seen = _view(JOB, engine, {**obj, "spec": spec}, job.name, job.as_mapping())
    if seen.groups:
        return seen
    # Its object names a template that stands in another one.
    extras = [dict(extra) for extra in engine.extras(layout, metadata, templates, gang)]
    return _view(JOB, engine, {"spec": {**spec, "extras": extras}}, job.name, job.as_mapping())


def _no_gang(layout: Layout) -> GangPlan:
    return GangPlan("none", "none", layout.name, "default", layout.total, layout.total)

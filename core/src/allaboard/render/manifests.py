"""From a job to the objects that are sent: extra objects first, the job last. Values in, values out; twice
the same arguments give the same bytes, and a dry run prints exactly what a launch sends.

The extra objects come first, so that pods find their code and their gang when the operator makes them. They
are bound to the job (ownerReferences) once it exists and its uid is known: a launch that dies in between
leaves objects with our labels, which the next launch under the same key takes up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from allaboard.engines import ENGINES, Engine
from allaboard.errors import BadInput, Problem
from allaboard.gangs import GANGS
from allaboard.gangs.base import GangPlan
from allaboard.gangs.kueue import PRIORITY_CLASS, QUEUE
from allaboard.gangs.topology import affinity, label_of
from allaboard.job.training_job import CODE_LIMIT, TrainingJob, copied, is_below, is_shared
from allaboard.render import devices, labels, pod_template
from allaboard.render import helper as helpers
from allaboard.render.claims import claims_of
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.render.compatibility import check_place, engine_notes, fitted_engine, has_tiers, plan_gang
from allaboard.runs.layout import Group, Layout
from allaboard.text.units import show_bytes

_KEY = re.compile(r"[^-._a-zA-Z0-9]")


@dataclass(frozen=True, slots=True)
class Rendered:
    """``manifests`` in the order of their creation, the job last; ``gang``: how its members start together;
    ``notes``: sentences for people about what was chosen or left out; ``claims``: what the members mount and
    this attempt shares with others, made before all of these; ``unhelped``: what members lack of the helper.
    """

    manifests: tuple[dict[str, Any], ...]
    gang: GangPlan
    notes: tuple[str, ...] = ()
    claims: tuple[dict[str, Any], ...] = ()
    unhelped: tuple[str, ...] = ()

    @property
    def job(self) -> dict[str, Any]:
        return self.manifests[-1]

    @property
    def extras(self) -> tuple[dict[str, Any], ...]:
        return self.manifests[:-1]


def render(
    job: TrainingJob,
    layout: Layout,
    facts: ClusterFacts,
    *,
    launch: str,
    spec_hash: str,
    code: Mapping[str, bytes] | None = None,
    helper: Mapping[str, bytes] | None = None,
) -> Rendered:
    """The objects of one attempt. ``job``: checked, its places resolved; ``layout``: of that job, by its
    engine at this place (`allaboard.render.compatibility.engine_for`); ``launch``: the uid of the attempt
    (`labels.launch_uid`); ``spec_hash``: of the job as its author wrote it; ``code``: path -> content of the
    files that it ships; ``helper``: those of the helper of members, none where no launch follows. Raises
    BadInput with all problems.
    """
    check_place(facts)
    usual = ENGINES[layout.engine]
    engine = fitted_engine(usual, facts)
    known = {*usual.objections(job.as_mapping())}
    files = _normal_path(code or {})
    problems = [
        *(problem for problem in engine.objections(job.as_mapping()) if problem not in known),
        *pod_template.problems(job, layout, facts, engine),
        *_code_problems(files),
        *_place_problems(job),
    ]
    problems += _clock_problems(layout)
    try:
        plan, notes = plan_gang(job, layout, engine, facts)
    except BadInput as refused:
        _raise_problems(job, [*refused.problems, *problems])
        raise
    _raise_problems(job, problems)
    keys = _keys(files)
    helping = {} if job.get("inject") == "off" else dict(helper or {})
    helper_keys = _keys(helping)
    helper_name = labels.helper_name(layout.name)
    helper_volume = helpers.volume(helper_name, helper_keys, optional=_may_be_sent_away(facts))
    own = {labels.LAUNCH: launch, labels.SPEC_HASH: spec_hash, labels.GANG: plan.gang}

    def template_of(group: Group, gang: Mapping[str, Any]) -> dict[str, Any]:
        return pod_template.pod_template(
            job,
            layout,
            group,
            facts,
            engine,
            metadata={"labels": labels.labels(layout), "annotations": {labels.LAUNCH: launch}},
            code=labels.code_name(layout.name) if files else None,
            files=keys,
            gang=gang,
            helper_volume=helper_volume if helping else None,
        )

    if plan.how == "marks":
        specs = {group.role: template_of(group, {})["spec"] for group in layout.groups}
        plan = replace(plan, pods={role: _with_added(engine, spec) for role, spec in specs.items()})
    templates = {g.role: template_of(g, _gang_marks(plan, layout, g.role)) for g in layout.groups}
    of_helper = [
        *helpers.template_problems(layout, templates),
        *helpers.copy_problems(
            layout,
            templates,
            engine.CONTAINER,
            is_shared=pod_template.has_shared_folder(job, layout),
            code_folder=pod_template.CODE_FOLDER,
        ),
    ]
    _raise_problems(job, of_helper)
    problems += of_helper
    extras: list[Mapping[str, Any]] = []
    if files:
        extras.append(_config_map(labels.code_name(layout.name), facts, files, keys))
    if any(map(helpers.is_helped, templates.values())):
        # Nobody changes what runs in the containers, and kubelets need not watch it.
        extras.append({**_config_map(helper_name, facts, helping, helper_keys), "immutable": True})
    extras += devices.objects(layout, facts.namespace)
    if plan.how == "marks":
        extras += GANGS[plan.gang].objects(plan)
    metadata = _metadata(layout, layout.name, facts.namespace, own)
    extras += engine.extras(layout, metadata, templates, plan)
    extras = [
        {**extra, "metadata": pod_template.merged(extra["metadata"], _with_labels(layout, own))}
        for extra in extras
    ]
    queued = {"labels": dict(_of_queue(plan))}
    read = {"annotations": dict(plan.job_annotations)}
    own_metadata = pod_template.merged(pod_template.merged(read, job.get("metadata") or {}), queued)
    rendered = engine.render(layout, _with_own(metadata, own_metadata), templates, plan)
    engine_spec = job.get("engine_spec") or {}
    own_words = {name: value for name, value in engine_spec.items() if name not in engine.TAKES_IN}
    _raise_problems(job, [*_duplicate_problems(rendered["spec"], own_words, "engine_spec")])
    manifests = (*extras, {**rendered, "spec": pod_template.merged(rendered["spec"], own_words)})
    warnings = tuple(str(p) for p in problems)
    # A value of its own: parts that several templates share are not shared in what is handed out.
    notes = (*engine_notes(job, engine, facts), *notes)
    return Rendered(
        tuple(copied(manifest, spelling=False) for manifest in manifests),
        plan,
        (*notes, *warnings),
        claims_of(job, layout, facts.namespace),
        helpers.gaps(layout, templates, engine.CONTAINER) if helping else (),
    )


def _of_queue(plan: GangPlan) -> Iterator[tuple[str, str]]:
    """The labels by which Kueue takes a job."""
    if plan.local_queue:
        yield QUEUE, plan.local_queue
    if plan.queue_priority:
        yield PRIORITY_CLASS, plan.queue_priority


def _may_be_sent_away(facts: ClusterFacts) -> bool:
    """True unless it is known that no Kueue is there, whose MultiKueue sends a job to another cluster without
    its ConfigMaps. Elsewhere pods wait for the helper, which is made just after the job.
    """
    return facts.kinds is None or any(kind.startswith("kueue.x-k8s.io/") for kind in facts.kinds)


def _with_added(engine: Engine, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a pod with all init containers that the operator may add."""
    added = [
        {"name": added_container.name, "resources": {"requests": dict(added_container.requests)}}
        for added_container in engine.ADDED
    ]
    return {**spec, "initContainers": [*(spec.get("initContainers") or ()), *added]} if added else dict(spec)


def _gang_marks(plan: GangPlan, layout: Layout, role: str) -> Mapping[str, Any]:
    """Marks of a role's pods by which they start together, and close together."""
    gang = GANGS[plan.gang]
    marks = gang.marks(plan, role) if plan.how == "marks" else {}
    if plan.queue_priority is not None and plan.priority is None:
        # The job's word names a priority of its queue: pods have none by that name.
        marks = {**marks, "spec": {**(marks.get("spec") or {}), "priorityClassName": None}}
    by_label_alone = has_tiers(gang, plan.how)
    require, prefer = (
        label_of(domain) if domain is not None and ("/" in domain or not by_label_alone) else None
        for domain in (plan.require, plan.prefer)
    )
    if plan.placed_by_queue:
        return pod_template.merged(marks, {"metadata": {"annotations": dict(plan.placed_by_queue)}})
    every, own_names = labels.labels(layout), (labels.RUN, labels.ATTEMPT, labels.GENERATION)
    members = {name: every[name] for name in own_names}
    if plan.placed_by_scheduler:
        return marks
    return pod_template.merged(marks, affinity(require, prefer, members))


def _raise_problems(job: TrainingJob, problems: Sequence[Problem]) -> None:
    if errors := [p for p in problems if p.severity == "error"]:
        raise BadInput(f"job {job.name!r} cannot run on a cluster:", errors)


def _duplicate_problems(
    spec: Mapping[str, Any], expressed: Mapping[str, Any], path: str
) -> Iterator[Problem]:
    """Problems of fields in `engine_spec` that are written from the rest of the job: they would differ from
    what the job means, here and on one machine.
    """
    for name, value in expressed.items():
        there = spec.get(name)
        if isinstance(there, Mapping) and isinstance(value, Mapping):
            yield from _duplicate_problems(there, value, f"{path}.{name}")
        elif name in spec:
            message = "comes from other fields of the job; set those and take it out here"
            yield Problem(f"{path}.{name}", message)


def _metadata(layout: Layout, name: str, namespace: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, **_with_labels(layout, annotations)}


def _with_own(metadata: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of the job object with the job's own labels and annotations; allaboard's win."""
    both = {name: {**own.get(name, {}), **metadata[name]} for name in ("labels", "annotations")}
    return {**metadata, **both}


def _with_labels(layout: Layout, annotations: Mapping[str, str]) -> dict[str, Any]:
    return {"labels": labels.labels(layout), "annotations": dict(annotations)}


# Files.


def _config_map(
    name: str, facts: ClusterFacts, files: Mapping[str, bytes], keys: Mapping[str, str]
) -> dict[str, Any]:
    """A ConfigMap of files: text as text, so that people can read it, anything else as binaryData."""
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    for key, path in keys.items():
        try:
            data[key] = files[path].decode()
        except UnicodeDecodeError:
            import base64

            binary[key] = base64.b64encode(files[path]).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": facts.namespace},
        **({"data": data} if data else {}),
        **({"binaryData": binary} if binary else {}),
    }


def _keys(files: Mapping[str, bytes]) -> dict[str, str]:
    """Key of the ConfigMap -> path, in the order of the paths. Keys know no folders: ``a/b.py`` is
    ``a-b.py``, and where that is taken ``a-b.py.2``.
    """
    keys: dict[str, str] = {}
    for path in files:
        plain = _KEY.sub("-", path)[-240:]
        key, n = plain, 1
        while key in keys:
            n += 1
            key = f"{plain}.{n}"
        keys[key] = path
    return keys


def _normal_path(code: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files by their plain paths: ``./train.py`` is ``train.py``."""
    return {re.sub(r"(^|/)(\./+)+", r"\1", path): content for path, content in code.items()}


def _code_problems(files: Mapping[str, bytes]) -> Iterator[Problem]:
    for path in files:
        if path.startswith("/") or ".." in path.split("/"):
            message = (
                f"{path!r} is not below the job's folder; what is shipped keeps its place, so put it there"
            )
            yield Problem("code", message)
    total = sum(len(content) for content in files.values())
    if total > CODE_LIMIT:
        largest = sorted(files, key=lambda path: -len(files[path]))[:5]
        sizes = ", ".join(f"{path} {show_bytes(len(files[path]))}" for path in largest)
        more = f" and {len(files) - len(largest)} more" if len(files) > len(largest) else ""
        yield Problem(
            "code",
            f"{show_bytes(total)} in all, {total - CODE_LIMIT} bytes more than a ConfigMap holds "
            f"({sizes}{more}); put what is large into the image or a volume",
        )


# Places.


def _place_problems(job: TrainingJob) -> Iterator[Problem]:
    """Places that would lie in one pod and vanish with it."""
    saving, data = job.get("checkpoints") or {}, job.get("data") or {}
    folder, place = saving.get("folder"), saving.get("uri", "")
    if folder is not None and (is_below(folder, place) or is_below(place, folder)):
        yield Problem(
            "checkpoints.folder", f"{folder!r} and the uri lie one within the other; give two places"
        )
    hot = (saving.get("hot") or {}).get("folder")
    if hot is not None and not any(is_below(hot, s["mount"]) for s in job.get("storage", ())):
        message = (
            f"{hot!r} is below no mount of storage: unless pod mounts something there, it ends with its "
        )
        yield Problem("checkpoints.hot.folder", f"{message}container", severity="warning")
    for at, uri in (("checkpoints.uri", saving.get("uri")), ("data.shards", data.get("shards"))):
        if uri is None or "://" in uri:
            continue
        if not uri.startswith("/"):
            yield Problem(
                at,
                f"{uri!r} would be a folder inside each pod; give s3://bucket/prefix, store://name or a "
                "folder below a mount of storage",
            )
        elif not is_shared(job, uri):
            yield Problem(
                at,
                f"{uri!r} is below no mount of storage that outlives its pod and that all members see: "
                "unless pod mounts something there, it ends with its pod",
                severity="warning",
            )


def _clock_problems(layout: Layout) -> Iterator[Problem]:
    """A clock without a hand (`allaboard.backends.kubernetes.observe.observation`)."""
    if "rendezvous" in layout.policy.clocks:
        yield Problem(
            "policy.clocks.rendezvous",
            "not enforced on a cluster, where nothing tells when the members have met; limit first_step, "
            "whose clock begins when they have started",
            severity="warning",
        )

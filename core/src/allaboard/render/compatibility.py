"""Compatibility of engines and gang schedulers, and the choice of both for a job. Values in, values out.

The matrix is derived from what each file says of itself, so that a new engine or gang scheduler has its row
or column by being there:

``marks``     our objects and labels make the gang; the rule, unless something below speaks against it
``natively``  the engine's operator was started with that gang scheduler and makes the objects itself
``refused``   with a reason: the engine's or the gang scheduler's own, or what the cluster does not have
``none``      nobody makes them start together
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from allaboard.engines import BY_FRAMEWORK, ENGINES, Engine, engine_of
from allaboard.errors import BadInput, Problem
from allaboard.gangs import GANGS, Gang, is_gang_scheduler, kai, kueue
from allaboard.gangs.base import GangPlan
from allaboard.gangs.topology import LABELS, label_of
from allaboard.render import labels
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts
from allaboard.render.pod_template import fields_of_group
from allaboard.text import units
from allaboard.text.names import (
    nearest,
    one_of,
    why_not_a_qualified_name,
    why_not_an_image,
    why_not_an_object_name,
)
from allaboard.text.untrusted import show

if TYPE_CHECKING:  # `allaboard check` asks for names alone
    from allaboard.job.training_job import TrainingJob
    from allaboard.runs.layout import Layout

AUTO = "auto"
DEFAULT_SCHEDULER = "default-scheduler"
_SHOWN = 10
"""Names that a message lists."""


@dataclass(frozen=True, slots=True)
class Pair:
    """``how``: marks, natively, refused or none; ``reason``: why it is refused."""

    how: str
    reason: str = ""


def pair_engine_and_gang(engine: Engine, gang: Gang, facts: ClusterFacts = ASSUMED) -> Pair:
    """Pairing of this engine with this gang scheduler, on this cluster."""
    reason = engine.REFUSES.get(gang.NAME) or gang.REFUSES.get(engine.NAME)
    if reason:
        return Pair("refused", reason)
    operators = _operators(engine, facts)
    if operators == gang.NAME:
        return Pair("natively")
    if operators is not None:
        return Pair(
            "refused",
            f"the operator of {engine.KIND} makes gangs by {operators} here "
            f"(its {engine.OPERATOR.gang_flag}); leave gang.scheduler to auto, or say {operators}",
        )
    if not is_gang_scheduler(gang):
        return Pair("none")
    if gang.KINDS and _kind(gang, facts) is None:
        reason = f"this cluster does not serve {one_of(gang.KINDS)}; {gang.TITLE} is not installed"
        return Pair("refused", reason)
    if gang.POD_FIELD is not None and gang.POD_FIELD in facts.lacking.get(engine.NAME, ()):
        reason = (
            f"this cluster's definition of {engine.KIND} has no pod field {gang.POD_FIELD}; "
            f"update the {engine.OPERATOR.title}, or take another gang scheduler"
        )
        return Pair("refused", reason)
    return Pair("marks")


def _operators(engine: Engine, facts: ClusterFacts) -> str | None:
    """The gang scheduler that the engine's operator serves by itself, if it was started so."""
    gang = facts.operator_gangs.get(engine.OPERATOR.id)
    return gang if gang in engine.NATIVELY else None


def _kind(gang: Gang, facts: ClusterFacts) -> str | None:
    """The kind of object to make: the preferred one that is served; the preferred one if unknown."""
    return next((kind for kind in gang.KINDS if facts.serves(kind) is not False), None)


def _kind_of_job(gang: Gang, layout: Layout, facts: ClusterFacts) -> str:
    """The same for this job: of an elastic one of several roles, what makes one gang of several."""
    several = layout.elastic is not None and layout.elastic.min < layout.total and len(layout.groups) > 1
    if several and _has_composites(gang, facts):
        return gang.COMPOSITE[0]
    return _kind(gang, facts) or ""


def _has_composites(gang: Gang, facts: ClusterFacts) -> bool:
    """True if the cluster is known to serve its gangs of gangs, and their members as they are written."""
    needed = (*gang.COMPOSITE, *gang.KINDS[:1])
    return bool(gang.COMPOSITE) and all(facts.serves(kind) for kind in needed)


def matrix(facts: ClusterFacts = ASSUMED) -> dict[tuple[str, str], Pair]:
    """Every pair of engine and gang scheduler, decided."""
    return {
        (e.NAME, g.NAME): pair_engine_and_gang(e, g, facts) for e in ENGINES.values() for g in GANGS.values()
    }


def choose(engine: Engine, total: int, facts: ClusterFacts, schedulers: Collection[str] = frozenset()) -> str:
    """The gang scheduler of a job that leaves it open: what its operator was started with, else the first by
    `AUTO` that the cluster is known to have and that is not silent. One member needs none. Of a job whose
    pods name their ``schedulers``, it is one that acts under this name, or none.
    """
    if (operators := _operators(engine, facts)) is not None:
        return operators
    known = [
        g
        for g in GANGS.values()
        if g.AUTO is not None and (not g.KINDS or (_known_gang(g, facts) and g.NAME not in facts.silent))
    ]
    for gang in sorted(known, key=lambda g: g.AUTO or 0):
        if not gang.KINDS:
            return gang.NAME
        acts = facts.schedulers.get(gang.NAME, gang.SCHEDULER) or DEFAULT_SCHEDULER
        fits = {*schedulers} <= {acts} and pair_engine_and_gang(engine, gang, facts).how != "refused"
        if total > 1 and fits:
            return gang.NAME
    return "none"


def named_schedulers(job: TrainingJob, layout: Layout) -> frozenset[str]:
    """The schedulers of all members where `pod` names one, the job's or that of a group; else none."""

    def named(pod: Any) -> str | None:
        name = ((pod or {}).get("spec") or {}).get("schedulerName")
        return name if isinstance(name, str) else None

    groups = (fields_of_group(job, group.role) for group in layout.groups)
    names = [named(own.get("pod")) or named(job.get("pod")) for own in groups]
    return frozenset(name or DEFAULT_SCHEDULER for name in names) if any(names) else frozenset()


def _known_gang(gang: Gang, facts: ClusterFacts) -> bool:
    """True if it is known to be installed; nothing is assumed."""
    return any(facts.serves(kind) for kind in gang.KINDS)


def plan_gang(
    job: TrainingJob, layout: Layout, engine: Engine, facts: ClusterFacts
) -> tuple[GangPlan, tuple[str, ...]]:
    """The gang of a checked job, and what people should know about it. Raises BadInput for a pair that is
    refused.
    """
    written = job.get("gang") or {}
    own = written.get("scheduler", AUTO)
    elsewhere = own == AUTO and engine.brings_scheduler(layout)
    in_order = engine.starts_in_order(layout)
    alone = elsewhere or (own == AUTO and in_order is not None)
    asked = "none" if alone else own if own != AUTO else facts.gang or AUTO
    schedulers = named_schedulers(job, layout)
    name = choose(engine, layout.total, facts, schedulers) if asked == AUTO else asked
    gang = GANGS[name]
    pairing = pair_engine_and_gang(engine, gang, facts)
    problems = [*_topology_problems(written, gang, pairing.how)]
    if pairing.how == "refused":
        message = f"{engine.NAME} with {name}: {pairing.reason}"
        problems.append(Problem("gang.scheduler" if asked == own else "ALLABOARD_GANG", message))
    elif written.get("require") and pairing.how == "none" and layout.total > 1:
        message = "nothing here starts its members together; install a gang scheduler, or take it out"
        problems.append(Problem("gang.require", message))
    if in_order is not None and pairing.how in ("marks", "natively"):
        message = (
            f"{gang.TITLE} starts all members together, and by this some are made when others are ready: "
            "they would wait for each other for ever; take it out, or say gang: {scheduler: none}"
        )
        problems.append(Problem(in_order, message))
    queue = written.get("queue")
    by_kueue = "queue" not in gang.UNDERSTANDS and any(facts.serves(kind) for kind in kueue.QUEUES)
    local_queue = queue if by_kueue else None
    if local_queue is not None and (reason := kueue.why_not_admitted(engine.NAME)) is not None:
        problems.append(Problem("gang.queue", f"{reason}; take it out, or take another engine"))
    priority = priority_of(job)
    by_pods, by_queue = _priority_meant(priority, facts) if local_queue is not None else (True, False)
    if not by_pods and not by_queue:
        problems.append(_unknown_priority(priority or "", facts))
    if problems:
        raise BadInput(f"job {job.name!r} cannot run on this cluster:", problems)
    topology = written.get("topology") or {}
    groups = {group.role: group.replicas for group in layout.groups}
    plan = GangPlan(
        gang=name,
        how=pairing.how,
        # An operator that makes the PodGroup calls it as the job.
        name=layout.name if pairing.how == "natively" else labels.gang_name(layout.name),
        namespace=facts.namespace,
        members=layout.elastic.min if layout.elastic else layout.total,
        total=layout.total,
        kind=_kind_of_job(gang, layout, facts),
        scheduler=facts.schedulers.get(name, gang.SCHEDULER) if pairing.how == "marks" else None,
        timeout=None if written.get("timeout") is None else units.seconds(written["timeout"]),
        queue=queue,
        local_queue=local_queue,
        priority=priority if by_pods else None,
        queue_priority=priority if by_queue else None,
        require=topology.get("require"),
        prefer=topology.get("prefer"),
        placed_by_queue=_topology_request(topology, groups, facts) if local_queue is not None else {},
        groups=groups,
        annotations=(job.get("metadata") or {}).get("annotations") or {},
        elsewhere=elsewhere,
        constrained=_has_composites(gang, facts),
    )
    if name == kai.NAME:
        plan = _by_kai(plan, engine, facts)
    notes = [*_notes(written, plan, facts, engine)]
    if in_order is not None and own == AUTO:
        notes.append(f"members start one after the other, as {in_order} says, and in no gang")
    if asked == AUTO and (reason := _why_alone(plan, facts, schedulers)) is not None:
        plan = replace(plan, alone=reason)
        notes.append(reason)
    if elsewhere and layout.total > 1:
        message = (
            f"its runtime says who starts its members together: no {engine.KIND} changes their scheduler"
        )
        notes.append(message)
    return plan, tuple(notes)


def priority_of(job: TrainingJob) -> str | None:
    """The name of the priority that a job asks for."""
    priority = (job.get("gang") or {}).get("priority")
    return priority if isinstance(priority, str) else None


def _priority_meant(name: str | None, facts: ClusterFacts) -> tuple[bool, bool]:
    """Tell if a job in a queue of Kueue means a PriorityClass by this name, and if a WorkloadPriorityClass:
    the ones that exist. If the latter are not known it is the former, as for every job.
    """
    by_queue = name is not None and name in (facts.queue_priorities or ())
    if facts.priorities is None:
        return not by_queue, by_queue
    hidden = facts.queue_priorities is None
    return name is None or hidden or name in facts.priorities, by_queue


def _unknown_priority(name: str, facts: ClusterFacts) -> Problem:
    """Pods of a PriorityClass that is not there are refused, and Kueue admits no such job."""
    own, queues = sorted(facts.priorities or ()), sorted(facts.queue_priorities or ())
    message = f"there is no PriorityClass and no WorkloadPriorityClass {show(name)} here"
    there = f"PriorityClasses: {_some(own)}; WorkloadPriorityClasses: {_some(queues)}"
    return Problem("gang.priority", f"{message}; {there}", nearest(name, [*queues, *own]))


def _some(names: list[str]) -> str:
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])]) or "none"


def _topology_request(
    topology: Mapping[str, str], groups: Mapping[str, int], facts: ClusterFacts
) -> Mapping[str, str]:
    """Annotations that tell Kueue to place all members close together; empty if it knows no such domain, or
    has no word for these roles: then the affinity between the members does it.
    """
    labels_of = {name: label_of(domain) for name, domain in topology.items()}
    if not labels_of or not facts.topology_levels.issuperset(filter(None, labels_of.values())):
        return {}
    return kueue.topology_request(labels_of.get("require"), labels_of.get("prefer"), groups) or {}


def _by_kai(plan: GangPlan, engine: Engine, facts: ClusterFacts) -> GangPlan:
    """The plan with what KAI reads of the job object."""
    known, own = facts.kai_topologies, plan.annotations.get(kai.TOPOLOGY)
    placed = kai.topology_request(_label(plan.require), _label(plan.prefer), known, own)
    counted = kai.counted(plan.total) if engine.NAME in kai.COUNTED else {}
    return replace(plan, job_annotations={**counted, **placed}, placed_by_scheduler=bool(placed))


def _label(domain: str | None) -> str | None:
    return None if domain is None else label_of(domain)


def _notes(written: Mapping[str, Any], plan: GangPlan, facts: ClusterFacts, engine: Engine) -> Iterator[str]:
    name, total, gang = plan.gang, plan.total, GANGS[plan.gang]
    understood = {*gang.UNDERSTANDS, *(("queue",) if plan.local_queue else ())}
    void = [f"gang.{n}" for n in ("queue", "timeout") if n in written and n not in understood]
    if void:
        yield f"{', '.join(void)}: no meaning with {gang.TITLE}, left out"
    if name == "kai" and plan.members < total and engine.NAME != "pytorchjob":
        yield (
            f"{gang.TITLE} places all {total} members of a {engine.KIND} together, not {plan.members} of them"
        )
    if name == "kai" and plan.require is not None and not plan.placed_by_scheduler:
        yield (
            f"gang.topology: no Topology of {gang.TITLE} with this node label is known here; by affinity "
            "alone it may try one domain again and again, though another has room"
        )
    if plan.local_queue is not None:
        yield from _notes_on_kueue(plan, engine)
    if name in facts.silent and plan.how != "none":
        yield f"gang.scheduler: {gang.TITLE} is installed and does not answer; nothing starts until it does"


def _why_alone(plan: GangPlan, facts: ClusterFacts, schedulers: Collection[str]) -> str | None:
    """Return why nothing starts the members together of a job that leaves the gang scheduler open; None: one
    does, or the cluster is not known.
    """
    if plan.gang != "none" or plan.total == 1:
        return None
    if schedulers:
        return (
            f"members start one by one: their pods name {' and '.join(sorted(schedulers))} as scheduler, and "
            "no gang scheduler is known to act so here; say gang.scheduler, or leave the name out"
        )
    if away := _silent_titles(facts):
        advice = "; say gang.scheduler to wait for it" if len(away) == 1 else ""
        return f"members start one by one: {' and '.join(away)} is installed here and does not answer{advice}"
    if facts.kinds is None:
        return None
    return (
        "members start one by one: this cluster has no gang scheduler that jobs of this engine are given by "
        "themselves (`allaboard cluster` lists what there is)"
    )


def _silent_titles(facts: ClusterFacts) -> list[str]:
    return [gang.TITLE for gang in GANGS.values() if gang.NAME in facts.silent]


def _notes_on_kueue(plan: GangPlan, engine: Engine) -> Iterator[str]:
    """Notes on how Kueue treats this job."""
    if engine.NAME in kueue.OFF_BY_DEFAULT:
        yield (
            f"gang.queue: Kueue 0.19 and later leaves {engine.KIND} alone unless its configuration names "
            f"{kueue.ADMITS[engine.NAME]}"
        )
    if plan.members < plan.total:
        yield (
            f"gang.queue: Kueue admits all {plan.total} members or none; it admits a part of a job of "
            "batch/v1 alone"
        )
    if plan.queue_priority is not None and plan.priority is None:
        yield (
            f"gang.priority: {plan.queue_priority} is a WorkloadPriorityClass: it orders its queue, and its "
            "pods have no priority of their own"
        )
    if kueue.MIN_PARALLELISM in plan.annotations:
        yield f"metadata.annotations: {kueue.MIN_PARALLELISM} means something to jobs of batch/v1 alone"
    if plan.require is not None and plan.prefer is not None and plan.placed_by_queue:
        yield "gang.topology.prefer: Kueue takes one domain, the one that is required; left out"


def has_tiers(gang: Gang, how: str) -> bool:
    """True if it has fields of its own for domains, and gets them: an operator that makes its objects passes
    none on.
    """
    return "topology" in gang.UNDERSTANDS and how == "marks"


def _topology_problems(written: Mapping[str, Any], gang: Gang, how: str) -> Iterator[Problem]:
    """Domains that nobody here knows."""
    own = has_tiers(gang, how)
    topology = written.get("topology") or {}
    if own and len(topology) > 1 and not any("/" in domain for domain in topology.values()):
        message = f"{gang.TITLE} keeps one tier for a gang, the one that is required; take it out"
        yield Problem("gang.topology.prefer", message)
    if gang.REFUSES_DOMAIN is not None and "require" in topology:
        yield Problem("gang.topology.require", gang.REFUSES_DOMAIN)
    for name, domain in topology.items():
        if not own and label_of(domain) is None:
            message = (
                f"no node label is known for {domain!r}; write the label itself, such as "
                f"topology.example.com/{domain}, or one of {one_of(LABELS)}"
            )
            yield Problem(f"gang.topology.{name}", message)


def name_problems(name: Any, path: str = "gang.scheduler") -> Iterator[Problem]:
    """Problems of a gang scheduler's name."""
    yield from _unknown(path, name, [AUTO, *GANGS])


def _unknown(path: str, name: Any, known: list[str]) -> Iterator[Problem]:
    if name not in known:
        hint = nearest(str(name), known)
        yield Problem(path, f"{name!r} is not known; known: {one_of(known)}", hint)


# What the place says for jobs that do not.


def check_place(facts: ClusterFacts) -> None:
    """Raises BadInput for invalid settings of the place."""
    problems = [
        *name_problems(facts.gang or AUTO, "ALLABOARD_GANG"),
        *_unknown("ALLABOARD_ENGINE", facts.engine or AUTO, [AUTO, *ENGINES]),
        *(
            Problem("ALLABOARD_SECRETS", reason)
            for n in facts.secrets
            if (reason := why_not_an_object_name(n))
        ),
        *_invalid_value("ALLABOARD_IMAGE", facts.image, why_not_an_image),
        *_invalid_value("ALLABOARD_NAMESPACE", facts.namespace, why_not_an_object_name),
        *_invalid_value("ALLABOARD_SERVICE_ACCOUNT", facts.service_account, why_not_an_object_name),
        *_invalid_value("ALLABOARD_GPU_LABEL", facts.gpu_label, why_not_a_qualified_name),
    ]
    if problems:
        raise BadInput("these settings are not valid (ALLABOARD_*, or the connection):", problems)


def _invalid_value(name: str, value: str | None, rule: Callable[[str], str | None]) -> Iterator[Problem]:
    if value is not None and (reason := rule(value)):
        yield Problem(name, reason)


def engine_for(job: TrainingJob, facts: ClusterFacts) -> Engine:
    """The engine of a checked job at this place: the job's own; where it leaves that open, the place's, if it
    runs the job's framework; else the first that the cluster serves, whose operator lives, and that does not
    object to the job. Raises BadInput for what they object to.
    """
    check_place(facts)
    if job.get("engine", AUTO) != AUTO:
        return engine_of(job)
    engines = possible_engines(job, facts)
    where = " (ALLABOARD_ENGINE)" if engines == (ENGINES.get(facts.engine or AUTO),) else ""
    objections = {engine.NAME: _errors(fitted_engine(engine, facts), job) for engine in engines}
    chosen = next((engine for engine in engines if not objections[engine.NAME]), None)
    if chosen is None:
        first = engines[0]
        headline = f"job {job.name!r} cannot run as {first.NAME}{where}:"
        if len(engines) > 1:
            headline = f"job {job.name!r} cannot run as {one_of(objections)}; what {first.NAME} objects to:"
        raise BadInput(headline, objections[first.NAME])
    return chosen


def possible_engines(job: TrainingJob, facts: ClusterFacts) -> tuple[Engine, ...]:
    """The engines of which `engine_for` takes one, the first choice first."""
    if job.get("engine", AUTO) != AUTO:
        return (engine_of(job),)
    of_place = ENGINES.get(facts.engine or AUTO)
    if of_place is not None and job.get("framework", "pytorch") in of_place.FRAMEWORKS:
        return (of_place,)
    return _candidates(job, facts)


def fitted_engine(engine: Engine, facts: ClusterFacts) -> Engine:
    """The engine as this cluster's definitions of its objects allow it."""
    return engine.fitted(facts.lacking.get(engine.NAME, ()))


def _errors(engine: Engine, job: TrainingJob) -> list[Problem]:
    return [problem for problem in engine.objections(job.as_mapping()) if problem.severity == "error"]


def _candidates(job: TrainingJob, facts: ClusterFacts) -> tuple[Engine, ...]:
    """The engines of a job's framework that this cluster is known to serve, those whose operator is silent
    last; the preferred one where none is known.
    """
    every = BY_FRAMEWORK[job.get("framework", "pytorch")]
    served = [engine for engine in every if facts.serves(object_kind(engine))]
    return tuple(sorted(served, key=lambda e: e.OPERATOR.id in facts.silent)) or every[:1]


def object_kind(engine: Engine) -> str:
    """``group/version/Kind`` of an engine's job objects."""
    return f"{engine.API_VERSION}/{engine.KIND}"


def engine_notes(job: TrainingJob, engine: Engine, facts: ClusterFacts) -> Iterator[str]:
    """Return why a job that leaves its engine open gets another one than its framework prefers."""
    preferred = BY_FRAMEWORK[job.get("framework", "pytorch")][0]
    if job.get("engine", AUTO) != AUTO or engine is preferred:
        return
    same = engine.KIND == preferred.KIND  # in another version
    if facts.engine == engine.NAME:
        reason = "ALLABOARD_ENGINE says so"
    elif facts.serves(object_kind(preferred)) is False:
        reason = f"this cluster has no {object_kind(preferred) if same else preferred.KIND}"
    elif preferred.OPERATOR.id in facts.silent:
        reason = f"the {preferred.OPERATOR.title} does not answer"
    else:
        reason = f"{preferred.KIND} cannot do what it asks for"
    yield f"it runs as {object_kind(engine) if same else engine.KIND}: {reason}"

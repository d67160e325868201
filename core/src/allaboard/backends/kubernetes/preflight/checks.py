"""Checks of a job against its cluster, one small function each: facts in, checks out. `CHECKS` is the list;
adding one is adding a function to it.

A check that holds is ``ok``; one that does not is an error when the job would not run to its end because of
it, else a warning. None: not permitted, or inconclusive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from allaboard.backends.check import ERROR, WARNING, Check
from allaboard.backends.kubernetes.client.errors import ApiError, Exists
from allaboard.backends.kubernetes.client.resources import Resource
from allaboard.backends.kubernetes.client.values import at
from allaboard.backends.kubernetes.discovery import capacity
from allaboard.backends.kubernetes.discovery import pod_security as podsecurity
from allaboard.backends.kubernetes.discovery.capacity import Pods, show
from allaboard.backends.kubernetes.discovery.components import BY_GANG, guide_for, part_of
from allaboard.backends.kubernetes.discovery.installed import Survey
from allaboard.backends.kubernetes.discovery.kueue_objects import cluster_queue, flavor
from allaboard.backends.kubernetes.discovery.rbac import Access
from allaboard.backends.kubernetes.lifecycle.field_errors import problem_of
from allaboard.backends.kubernetes.observe.objects import object_seen
from allaboard.backends.kubernetes.preflight import (
    budgets,
    device_classes,
    gpu_nodes,
    namespace_objects,
    openshift,
)
from allaboard.backends.kubernetes.preflight.admission import judge
from allaboard.backends.kubernetes.preflight.lookup import HIDDEN, DryRunResult, Json, Lookup
from allaboard.backends.kubernetes.preflight.namespace_objects import Claim, Limit, Quota
from allaboard.diagnosis import Evidence
from allaboard.engines import Engine, engine_of_object
from allaboard.errors import Problem
from allaboard.gangs import GANGS
from allaboard.gangs.base import GangPlan
from allaboard.gangs.kueue import MULTIKUEUE
from allaboard.gangs.requests import amount
from allaboard.gangs.topology import label_of
from allaboard.job.gpus import nearest_device
from allaboard.render import labels
from allaboard.text.names import nearest, one_of
from allaboard.text.units import counted

if TYPE_CHECKING:
    from allaboard.diagnosis.verdict import Verdict

LONGEST_NAME = 63
_ALLOWED = "`allaboard cluster --rbac capacity` allows it"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the checks look at. ``allowed``: what this user may do, of all that will be done;
    ``helpful``: what lets these checks see more. ``quotas``, ``limits``, ``slices`` (of devices),
    ``budgets`` (of disruptions): None when they may not be read. ``admission_checks``: those of the
    ClusterQueue; ``worker_clusters``: their MultiKueueConfigs; ``pods_tried``: None when pods may not be
    created, not even dry. ``own_claims``: those that are made with the job; ``storage_classes``: None when
    they may not be read, or need not. ``unhelped``: what members lack of the helper. ``reaper``: whether one
    is at work, None: not known.
    """

    survey: Survey
    manifests: Sequence[Json]
    resources: Sequence[Resource]
    gang: GangPlan
    user: str | None = None
    namespace: Lookup = HIDDEN
    allowed: Mapping[Access, bool] = field(default_factory=dict)
    helpful: Mapping[Access, bool] = field(default_factory=dict)
    quotas: Sequence[Json] | None = None
    limits: Sequence[Json] | None = None
    claims: Mapping[str, Lookup] = field(default_factory=dict)
    own_claims: Sequence[Json] = ()
    storage_classes: Sequence[Json] | None = None
    secrets: Mapping[str, Lookup] = field(default_factory=dict)
    config_maps: Mapping[str, Lookup] = field(default_factory=dict)
    accounts: Mapping[str, Lookup] = field(default_factory=dict)
    priorities: Mapping[str, Lookup] = field(default_factory=dict)
    queue: Lookup | None = None
    cluster_queue: Lookup | None = None
    flavors: Mapping[str, Lookup] = field(default_factory=dict)
    admission_checks: Mapping[str, Lookup] = field(default_factory=dict)
    worker_clusters: Mapping[str, Lookup] = field(default_factory=dict)
    device_classes: Mapping[str, Lookup] = field(default_factory=dict)
    slices: Sequence[Json] | None = None
    budgets: Sequence[Json] | None = None
    tried: Sequence[DryRunResult] = ()
    pods_tried: Sequence[DryRunResult] | None = None
    unhelped: Sequence[str] = ()
    reaper: bool | None = None

    @property
    def job(self) -> Json:
        return self.manifests[-1]

    @property
    def engine(self) -> Engine:
        engine = engine_of_object(self.job)
        assert engine is not None, "jobs are rendered by our engines alone"
        return engine

    @property
    def pods(self) -> list[Pods]:
        return capacity.pods_of(self.manifests)

    @property
    def where(self) -> str:
        return self.survey.namespace


def _is_well(id: str, summary: str) -> Check:
    return Check(id, True, summary)


def _unknown(id: str, summary: str) -> Check:
    return Check(id, None, summary, severity=WARNING)


def _quote(subject: str, where: str, text: str) -> Evidence:
    return Evidence(subject, where, text)


# --- the cluster --------------------------------------------------------------------------------------------


def namespace(facts: Facts) -> Iterator[Check]:
    lookup = facts.namespace
    if not lookup.known:
        # What is created in a namespace that is not there is refused: the dry run tells.
        return
    if lookup.body is None:
        fix = f"create it (kubectl create namespace {facts.where}), or name another with --namespace"
        yield Check("namespace", False, f"namespace {facts.where} does not exist", fix=fix)
    elif "deletionTimestamp" in lookup.body["metadata"]:
        since = _quote(
            f"namespace/{facts.where}", "deletionTimestamp", lookup.body["metadata"]["deletionTimestamp"]
        )
        fix = "name another namespace"
        yield Check("namespace", False, f"namespace {facts.where} is being deleted", (since,), fix)
    else:
        yield _is_well("namespace", f"namespace {facts.where} is there")


def kinds(facts: Facts) -> Iterator[Check]:
    """The kinds of all objects are served, in their versions."""
    missing = []
    for resource in facts.resources:
        if not resource.group or f"{resource.api_version}/{resource.kind}" in facts.survey.kinds:
            continue
        missing.append(resource)
        served = sorted(k for k in facts.survey.kinds if k.endswith(f"/{resource.kind}"))
        evidence = _quote(
            "/apis", "kinds", f"served are {', '.join(served)}" if served else f"no {resource.kind} is served"
        )
        fix = _how_to_install(facts, resource)
        yield Check(
            "kinds", False, f"{resource.api_version} {resource.kind} is not served here", (evidence,), fix
        )
    if not missing:
        names = [f"{r.api_version} {r.kind}" for r in facts.resources if r.group]
        yield _is_well(
            "kinds", f"{one_of(names).replace(' or ', ' and ')} {'is' if len(names) == 1 else 'are'} served"
        )


def _how_to_install(facts: Facts, resource: Resource) -> str:
    part, guide = part_of(resource), guide_for(resource)
    if part is None:
        return f"install the CRD of {resource.name}"
    if guide is None:
        return f"install {part.title}"
    if facts.survey.part(part.id).installed:
        # What is written down may be older than what lives there, and would take its other kinds away.
        return (
            f"{part.title.partition(' up to ')[0]} is installed, and its release does not serve "
            f"{resource.name}: "
            "leave it as it is, and take a kind that it serves (`allaboard convert`), or ask who runs it"
        )
    command = guide.shortest(facts.survey.is_openshift)
    return f"install {part.title}" + (f": {command}" if command else ": `allaboard cluster` tells how")


def operator(facts: Facts) -> Iterator[Check]:
    """An operator reconciles the job."""
    resource = facts.resources[-1]
    part = part_of(resource)
    if part is None:
        return
    component = facts.survey.part(part.id)
    if not component.installed:
        return
    evidence = tuple(_quote(part.id, "signs of life", sign) for sign in component.signs)
    if component.alive is None:
        yield _unknown("operator", f"whether {part.title} is alive cannot be told")
    elif component.alive:
        yield Check("operator", True, f"{part.title} is alive: {component.signs[0]}", evidence)
    else:
        fix = f"ask who runs the cluster to {component.cure}"
        yield Check("operator", False, f"{part.title} does not answer", evidence, fix)


def gang(facts: Facts) -> Iterator[Check]:
    """A scheduler starts the members together."""
    plan = facts.gang
    if plan.total < 2:
        return
    if plan.elsewhere:
        summary = f"the runtime that the job names decides if its {plan.total} members start together"
        yield _unknown("gang", summary)
        return
    if plan.how == "none":
        summary = (
            f"nothing starts its {plan.total} members together: some may hold GPUs and wait for the rest"
        )
        there = {g: facts.survey.part(part.id) for g, part in BY_GANG.items() if g in GANGS}
        known = [g for g, component in there.items() if component.installed and component.alive is not False]
        away = [c for c in there.values() if c.cure is not None]
        fix = (
            f"say gang: {{scheduler: {known[0]}}}"
            if known
            else f"{away[0].part.title} does not answer: ask who runs the cluster to {away[0].cure}"
            if away
            else "install a gang scheduler: `allaboard cluster` tells how"
        )
        yield Check("gang", False, summary, fix=fix, severity=WARNING)
        return
    if plan.how == "natively":
        yield _is_well("gang", f"the operator makes the gang, by {plan.gang}")
        return
    part = BY_GANG.get(plan.gang)
    component = facts.survey.part(part.id) if part is not None else None
    if component is None or not component.installed:
        return
    used = facts.survey.schedulers.get(plan.gang)
    if used is not None and plan.scheduler is not None and used != plan.scheduler:
        evidence = _quote("pods", "spec.schedulerName", used)
        fix = "name the right one in the connection, or in pod: {spec: {schedulerName: ...}}"
        summary = f"members would ask for the scheduler {plan.scheduler}, and {used} was seen here"
        yield Check("gang", False, summary, (evidence,), fix, WARNING)
    elif component.alive:
        signs = tuple(_quote(component.part.id, "signs of life", sign) for sign in component.signs)
        yield Check("gang", True, f"{component.part.title} is at work: {component.signs[0]}", signs)
    elif component.cure is not None:
        signs = tuple(_quote(component.part.id, "signs of life", sign) for sign in component.signs)
        fix = f"ask who runs the cluster to {component.cure}; or name another with gang.scheduler"
        yield Check("gang", False, f"{component.part.title} is installed and does not answer", signs, fix)
    else:
        who = f" under the name {plan.scheduler}" if plan.scheduler else ""
        yield _unknown("gang", f"{component.part.title} is installed; its first gang shows if it acts{who}")


# --- who asks -----------------------------------------------------------------------------------------------


_ROLES = {"secrets": "mpi", "persistentvolumeclaims": "claims"}
"""The Role that gives rights to these; that of submitters gives the others."""


def rbac(facts: Facts) -> Iterator[Check]:
    """Everything that will be done is allowed."""
    denied = [access for access, allowed in facts.allowed.items() if not allowed]
    who = facts.user or "this user"
    if denied:
        evidence = tuple(_quote(who, f"namespace {facts.where}", f"may not {access}") for access in denied)
        some = ", ".join(map(str, denied[:4])) + (f" and {len(denied) - 4} more" if len(denied) > 4 else "")
        roles = dict.fromkeys(_ROLES.get(access.resource, "submitter") for access in denied)
        give = (f"allaboard cluster --rbac {role} -n {facts.where} | kubectl apply -f -" for role in roles)
        fix = f"{'; '.join(give)}; and bind its Role to {who}"
        yield Check("rbac", False, f"{who} may not {some}", evidence, fix)
    elif facts.allowed:
        yield _is_well("rbac", f"{who} may do all of the {len(facts.allowed)} things that the job needs")


def orphans(facts: Facts) -> Iterator[Check]:
    """Somebody ends the run when its clients do not come back."""
    yield reaper(facts.reaper, facts.where)


def reaper(at_work: bool | None, namespace: str) -> Check:
    """The check whether a reaper looks after a namespace. ``at_work``: None: that is not known."""
    if at_work:
        return _is_well("orphans", "a reaper ends runs here whose clients do not come back")
    there = "no reaper runs" if at_work is False else "it is not known whether a reaper runs"
    summary = (
        f"{there} in namespace {namespace}; without one nobody ends a run whose last client dies, and its "
        "members hold their GPUs until they end by themselves"
    )
    fix = f"allaboard cluster --reaper -n {namespace} | kubectl apply -f -"
    return Check("orphans", None if at_work is None else False, summary, fix=fix, severity=WARNING)


def blind_spots(facts: Facts) -> Iterator[Check]:
    """The rights that these checks lack."""
    denied = [access for access, allowed in facts.helpful.items() if not allowed]
    if denied:
        unseen = list(dict.fromkeys(access.resource for access in denied))
        evidence = tuple(
            _quote(facts.user or "this user", f"namespace {facts.where}", f"may not {a}") for a in denied
        )
        fix = f"for more: allaboard cluster --rbac submitter -n {facts.where} (Role allaboard-preflight)"
        yield Check("blind_spots", None, f"{', '.join(unseen)} may not be looked at", evidence, fix, WARNING)


# --- what admission says to the pods ------------------------------------------------------------------------


_SECURE = "say security: restricted in the job, and take out of pod what contradicts it"
_OF_NODES = (
    ("hostNetwork", "take host_network out, or use a namespace that enforces privileged"),
    ("IPC_LOCK", "say pod_security in the facts of the cluster, or use a namespace that enforces privileged"),
    (
        "hostPath",
        "a folder of the node is refused: say ephemeral: {size: ..., storage_class: ...} in place of "
        "host_path (node-local SSD), a claim, or empty_dir: disk",
    ),
)
"""Part of a violation -> what helps, where no securityContext does."""


def pod_security(facts: Facts) -> Iterator[Check]:
    body = facts.namespace.body
    if body is None:
        return
    level = podsecurity.level_of(body)
    wrong = {
        f"{pods.role}: {violation}": pods
        for pods in facts.pods
        for violation in podsecurity.violations(pods.spec, level)
    }
    if not wrong:
        yield _is_well("pod_security", f"pods keep the Pod Security level of the namespace ({level})")
        return
    evidence = tuple(_quote(f"namespace/{facts.where}", f"Pod Security {level}", text) for text in wrong)
    fix = _how_to_secure(wrong, facts.engine)
    summary = f"the namespace enforces the Pod Security level {level}, and no member would ever be created"
    yield Check("pod_security", False, summary, evidence, fix)


def _how_to_secure(violations: Collection[str], engine: Engine) -> str:
    """The remedy for violations of a Pod Security level: first for those of the job's own fields, then for
    those of its operator.
    """
    guilty = [
        next((container for container in engine.ADDED if container.name in text), None) for text in violations
    ]
    added = next((container for container in guilty if container is not None), None)
    if None in guilty or added is None:
        mine = [text for text, container in zip(violations, guilty, strict=True) if container is None]
        others = [text for text in mine if not any(word in text for word, _ in _OF_NODES)]
        fixes = [fix for word, fix in _OF_NODES if any(word in text for text in mine)]
        return "; ".join([*fixes, *([_SECURE] if others else [])])
    return f"the operator adds the container {added.name} without a securityContext: {added.remedy}"


def scc(facts: Facts) -> Iterator[Check]:
    """OpenShift's constraints are applied to each pod; only a dry run of one tells which it would get."""
    if not facts.survey.is_openshift:
        return
    refused = [
        t
        for t in facts.pods_tried or ()
        if (verdict := _meaning(str(t.error or ""))) is not None and verdict.code == "openshift_scc_denied"
    ]
    if refused:
        evidence = tuple(_quote(t.subject, "dry run", str(t.error)) for t in refused)
        fix = "drop runAsUser, fsGroup and hostPath from pod, or bind an SCC to its service account"
        yield Check("scc", False, "no SecurityContextConstraint of OpenShift fits the members", evidence, fix)
    elif facts.pods_tried is None:
        yield from openshift.without_dry_run(facts.pods, facts.namespace)
    else:
        yield _is_well("scc", "a SecurityContextConstraint fits the members")


def quota(facts: Facts) -> Iterator[Check]:
    """The whole gang fits into what is left of each quota."""
    if facts.quotas is None:
        yield _unknown("quota", "quotas of the namespace may not be read")
        return
    needed = gang_total(facts.pods, facts.resources[-1])
    wrong = False
    for item in namespace_objects.quotas(facts.quotas):
        if not _applies(item):
            continue
        for check in _quota(item, needed, facts):
            wrong = True
            yield check
    if not wrong:
        many = counted(len(facts.quotas), "quota")
        fits = f"the gang fits {many} of the namespace" if facts.quotas else "the namespace has no quota"
        yield _is_well("quota", fits)


def gang_total(pods: Sequence[Pods], job: Resource) -> dict[str, Decimal]:
    """The total that all members count for, by the names of quotas."""
    total: dict[str, Decimal] = {"pods": Decimal(0), f"count/{job.name}": Decimal(1)}
    for group in pods:
        for which, amounts in (("requests", group.pod.requests), ("limits", group.pod.limits)):
            for name, value in amounts.items():
                key = f"{which}.{name}"
                total[key] = total.get(key, Decimal(0)) + value * group.replicas
        total["pods"] += group.replicas
    total["count/pods"] = total["pods"]
    for name in ("cpu", "memory", "ephemeral-storage"):
        if f"requests.{name}" in total:
            total[name] = total[f"requests.{name}"]
    return total


def _applies(item: Quota) -> bool:
    """True if a quota counts the pods of a job: they have no deadline of their own, and mostly ask for
    something.
    """
    return not item.selects and item.scopes <= {"NotTerminating", "NotBestEffort"}


def _quota(item: Quota, needed: Mapping[str, Decimal], facts: Facts) -> Iterator[Check]:
    name = item.name
    for resource, hard in item.hard.items():
        used, need = item.used.get(resource, Decimal(0)), needed.get(resource)
        evidence = _quote(
            f"resourcequota/{name}",
            resource,
            f"used {show(resource, used)} of {show(resource, hard)}"
            + (f", the gang asks for {show(resource, need)}" if need is not None else ""),
        )
        if need is None:
            if _must_be_said(resource, facts):
                summary = (
                    f"quota {name} counts {resource}, and the members do not state it: they would be refused"
                )
                yield Check(
                    "quota",
                    False,
                    summary,
                    (evidence,),
                    f"state resources: {{{_field(resource)}: ...}} in the job",
                )
        elif need > hard:
            most = show(resource, hard)
            summary = (
                f"the gang asks for {show(resource, need)} {resource}; quota {name} allows {most} in all"
            )
            yield Check(
                "quota", False, summary, (evidence,), "make the gang smaller, or have the quota raised"
            )
        elif used + need > hard:
            summary = (
                f"the gang asks for {show(resource, need)} {resource}, and {show(resource, hard - used)} of "
                f"quota {name} are left: it waits half-started until others end"
            )
            yield Check(
                "quota",
                False,
                summary,
                (evidence,),
                "wait until others have ended, or make the gang smaller",
                WARNING,
            )


def _must_be_said(resource: str, facts: Facts) -> bool:
    """True if pods are refused that do not state this: quotas insist for cpu and memory, where no default
    helps.
    """
    bare = resource.removeprefix("requests.").removeprefix("limits.")
    if bare not in ("cpu", "memory") or resource.startswith("count/"):
        return False
    of_limits = resource.startswith("limits.")
    return not any(
        bare in (item.default if of_limits else item.default_request or item.default)
        for item in namespace_objects.limits(facts.limits or ())
        if item.type == "Container"
    )


def _field(resource: str) -> str:
    return resource.rpartition(".")[2] if resource.startswith(("requests.", "limits.")) else resource


def limit_range(facts: Facts) -> Iterator[Check]:
    """Each container and each pod is within the LimitRanges, defaults included."""
    if facts.limits is None:
        yield _unknown("limit_range", "LimitRanges of the namespace may not be read")
        return
    wrong = False
    for item in namespace_objects.limits(facts.limits):
        for text in _beyond(item, facts.pods):
            wrong = True
            evidence = _quote(f"limitrange/{item.range}", item.type, text)
            yield Check(
                "limit_range", False, text, (evidence,), "change resources of the job to what is allowed"
            )
        for text in _imposed(item, facts.pods):
            wrong = True
            evidence = _quote(f"limitrange/{item.range}", "default", text)
            fix = "state resources: {memory: ...} in the job"
            yield Check("limit_range", False, text, (evidence,), fix, WARNING)
    if not wrong:
        yield _is_well("limit_range", "members are within the LimitRanges of the namespace")


def _beyond(item: Limit, pods: Sequence[Pods]) -> Iterator[str]:
    for group in pods:
        bounded = [("Pod", f"a pod of {group.role}", group.pod.requests, group.pod.limits)]
        for container in group.pod.containers:
            who = f"container {container.name} of {group.role}"
            bounded.append(("Container", who, container.requests, container.limits))
        for kind, who, requests, limits in bounded:
            if kind != item.type:
                continue
            for name, most in item.max.items():
                stated = limits.get(name, requests.get(name))
                if stated is not None and stated > amount(most):
                    yield f"{who} has {show(name, stated)} {name}; at most {most} is allowed"
            for name, least in item.min.items():
                stated = requests.get(name)
                if stated is not None and stated < amount(least):
                    yield f"{who} asks for {show(name, stated)} {name}; at least {least} is required"
            for name, ratio in item.ratio.items():
                if name in limits and requests.get(name) and limits[name] / requests[name] > amount(ratio):
                    yield f"{who}: the limit of {name} is more than {ratio} times its request"


def _imposed(item: Limit, pods: Sequence[Pods]) -> Iterator[str]:
    """A default limit of memory is a trap: who states none is killed at it."""
    most = item.default.get("memory")
    if item.type == "Container" and most:
        for group in pods:
            for container in group.pod.containers:
                if "memory" not in container.limits:
                    who = f"container {container.name} of {group.role}"
                    yield f"{who} states no memory and would be killed at {most}"


# --- other objects ------------------------------------------------------------------------------------------


def queue(facts: Facts) -> Iterator[Check]:
    lookup = facts.queue
    if lookup is None:
        return
    name = facts.gang.queue or ""
    if not lookup.known:
        yield _unknown("queue", f"queue {name} may not be looked at")
    elif lookup.body is None:
        yield Check(
            "queue", False, f"queue {name} does not exist in {facts.where}", fix="name another in gang.queue"
        )
    else:
        seen = object_seen(lookup.body)
        active, state = seen.condition("Active"), seen.facts.get("status.state")
        if active is not None and active.status == "False":
            evidence = _quote(f"queue/{name}", "conditions.Active", active.message or active.reason)
            yield Check(
                "queue", False, f"queue {name} admits nothing now", (evidence,), "ask who runs the queue"
            )
        elif state not in (None, "Open"):
            evidence = _quote(f"queue/{name}", "status.state", str(state))
            yield Check("queue", False, f"queue {name} is not open", (evidence,), "ask who runs the queue")
        elif facts.gang.local_queue and (kueue := facts.survey.part("kueue")).cure is not None:
            signs = tuple(_quote("kueue", "signs of life", sign) for sign in kueue.signs)
            summary = f"queue {name} is there, and Kueue, which would admit its jobs, does not answer"
            yield Check("queue", False, summary, signs, f"ask who runs the cluster to {kueue.cure}")
        else:
            yield _is_well("queue", f"queue {name} is there and admits")
            yield from _admission(facts)


def _admission(facts: Facts) -> Iterator[Check]:
    """Check that the queue can ever admit a job of this size and kind, and that it has room now."""
    if facts.cluster_queue is None:
        return
    if facts.cluster_queue.body is None:
        yield _unknown(
            "queue_quota", f"what the ClusterQueue has may not be read (get clusterqueues; {_ALLOWED})"
        )
        return
    name = facts.cluster_queue.body["metadata"]["name"]
    flavors = {n: flavor(lookup.body) for n, lookup in facts.flavors.items() if lookup.body is not None}
    admission = judge(cluster_queue(facts.cluster_queue.body), flavors, facts.pods)
    where = f"clusterqueue/{name}"
    if admission.never:
        evidence = tuple(_quote(where, "spec.resourceGroups", reason) for reason in admission.never)
        fix = "ask for less, select other nodes, or name another queue in gang.queue"
        yield Check("queue_quota", False, f"ClusterQueue {name} can never admit it", evidence, fix)
    elif admission.not_covered:
        names = ", ".join(admission.not_covered)
        evidence = (_quote(where, "spec.resourceGroups", f"covers no {names}"),)
        fix = "ask who runs the queue to cover it, or to exclude it in Kueue's configuration"
        summary = f"ClusterQueue {name} has no quota of {names}, and Kueue admits no job that asks for it"
        yield Check("queue_quota", False, summary, evidence, fix, WARNING)
    elif admission.waits:
        yield _is_well(
            "queue_quota", f"ClusterQueue {name} can admit it, later: {'; '.join(admission.waits)}"
        )
    else:
        yield _is_well("queue_quota", f"ClusterQueue {name} has room for it now")


def sends_away(check: Json) -> bool:
    """True if an AdmissionCheck is MultiKueue's."""
    return bool(at(check, "spec", "controllerName") == MULTIKUEUE)


def admission_checks(facts: Facts) -> Iterator[Check]:
    """The other controllers that Kueue asks before it admits a job, and the cluster on which it then runs."""
    for name, lookup in facts.admission_checks.items():
        body = lookup.body
        if body is None:
            summary = f"admission check {name} is asked, too; it may not be looked at"
            missing = Check(
                "admission_check", False, f"the queue asks admission check {name}, which does not exist"
            )
            yield _unknown("admission_check", summary) if not lookup.known else missing
            continue
        active = object_seen(body).condition("Active")
        if active is not None and active.status == "False":
            evidence = _quote(f"admissioncheck/{name}", "conditions.Active", active.message)
            summary = f"admission check {name} does not work, and nothing is admitted without it"
            yield Check("admission_check", False, summary, (evidence,), "ask who runs the queue", WARNING)
        if sends_away(body):
            yield from _sent_away(facts, name, body)
        else:
            yield _is_well("admission_check", f"admission check {name} has to agree before it starts")


def _sent_away(facts: Facts, check: str, body: Json) -> Iterator[Check]:
    """The effect of MultiKueue: it makes the job object anew on another cluster, and nothing else."""
    config = at(body, "spec", "parameters", "name")
    worker_set = facts.worker_clusters.get(str(config), HIDDEN).body
    named = at(worker_set, "spec", "clusters")
    clusters = [str(name) for name in named] if isinstance(named, list) else []
    where = f"one of the clusters {', '.join(clusters)}" if len(clusters) > 1 else "another cluster"
    where = f"cluster {clusters[0]}" if len(clusters) == 1 else where
    summary = f"Kueue runs it on {where} (MultiKueue, admission check {check}), with its members, their logs"
    yield _is_well(
        "multikueue", f"{summary} and their reports; namespace {facts.where} must exist there, too"
    )
    helper = labels.helper_name(facts.job["metadata"]["name"])  # without it members start all the same
    others = [
        f"{manifest['kind']} {manifest['metadata']['name']}"
        for manifest in facts.manifests[:-1]
        if manifest["metadata"]["name"] != helper
    ]
    if others:
        evidence = (_quote(f"admissioncheck/{check}", "spec.controllerName", MULTIKUEUE),)
        summary = f"MultiKueue sends the {facts.job['kind']} alone, without {', '.join(others)}"
        fix = "create them there, and put code into the image; or name a queue of this cluster"
        yield Check("multikueue", False, summary, evidence, fix, WARNING)


def topology(facts: Facts) -> Iterator[Check]:
    """The node labels exist by whose values all members are to be placed together."""
    for word, domain in (("require", facts.gang.require), ("prefer", facts.gang.prefer)):
        label = None if domain is None else label_of(domain)
        if label is None:  # a tier of the gang scheduler's own
            continue
        known = facts.survey.nodes
        if known is None:
            yield _unknown(
                "topology", f"nodes may not be read; whether they have the label {label} is unknown"
            )
        elif not any(label in node.labels for node in known):
            near = nearest(label, {name for node in known for name in node.labels})
            hint = f"gang.topology.{word}: {near}" if near else f"correct gang.topology.{word}"
            severity = ERROR if word == "require" else WARNING
            yield Check("topology", False, f"no node has the label {label}", fix=hint, severity=severity)
        else:
            count = sum(label in node.labels for node in known)
            values = len({node.labels[label] for node in known if label in node.labels})
            many = "value" if values == 1 else "values"
            yield _is_well(
                "topology", f"{counted(count, 'node')} of {len(known)} have {values} {many} of {label}"
            )


def volumes(facts: Facts) -> Iterator[Check]:
    """Claims exist or can be made, get a volume, and may be mounted by as many members as mount them."""
    wanted = capacity.claims(facts.pods)
    own = {claim["metadata"]["name"]: claim for claim in facts.own_claims}
    wrong = False
    for name, (members, writes) in wanted.items():
        sought = facts.claims.get(name, HIDDEN)
        for check in _claim(name, members, writes, sought, own.get(name), facts):
            wrong = True
            yield check
    for group in facts.pods:
        for check in _ephemeral(group, facts):
            wrong = True
            yield check
    if wanted and not wrong:
        total = counted(sum(p.replicas for p in facts.pods), "member")
        made = [name for name in wanted if name in own and facts.claims[name].body is None]
        there = [name for name in wanted if name not in made]
        phrases = [_join_names("claim", there)] if there else []
        phrases += [_join_names("claim", made, "will be made")] if made else []
        yield _is_well(
            "volumes", f"{' there, '.join(phrases)}{' and fit' if made else ' there and fit'} {total}"
        )


def _claim(
    name: str, members: int, writes: bool, sought: Lookup, own: Json | None, facts: Facts
) -> Iterator[Check]:
    """``own``: as it will be made where it is not there yet."""
    if not sought.known and own is None:
        yield _unknown("volumes", f"claim {name} may not be looked at")
        return
    body = sought.body or own
    if body is None:
        fix = f"create the PersistentVolumeClaim {name} in {facts.where}, or name another in storage"
        yield Check("volumes", False, f"claim {name} does not exist in {facts.where}", fix=fix)
        return
    claim = namespace_objects.claim(body)
    modes = claim.modes
    subject = f"persistentvolumeclaim/{name}"
    evidence = _quote(subject, "accessModes", ", ".join(modes))
    if claim.deleted:
        summary = f"claim {name} is being deleted"
        since = _quote(subject, "deletionTimestamp", claim.deleted)
        yield Check("volumes", False, summary, (since,), "wait until it is gone and create it anew")
    if claim.phase == "Lost":
        summary = f"claim {name} has lost its volume"
        yield Check("volumes", False, summary, (_quote(subject, "phase", "Lost"),), "create it anew")
    elif claim.phase != "Bound":
        yield from _unbound(f"claim {name}", subject, claim, sought.body is not None, facts)
    if writes and {*modes} == {"ReadOnlyMany"}:
        fix = "say read_only: true for it in storage, or use another claim"
        yield Check(
            "volumes",
            False,
            f"claim {name} can only be read, and the job mounts it to write",
            (evidence,),
            fix,
        )
    shared = {*modes} & {"ReadWriteMany", "ReadOnlyMany"}
    if members > 1 and modes and not shared:
        once = {*modes} == {"ReadWriteOncePod"}
        nodes = facts.survey.nodes
        if not once and nodes is not None and len(nodes) == 1:
            return
        how = "in one pod" if once else "on one node"
        summary = f"claim {name} can be mounted {how} at a time, and {members} members mount it"
        severity = ERROR if once or nodes is not None else WARNING
        fix = "use a claim of ReadWriteMany, or one that only one group mounts"
        if own is not None:
            fix = "say access: many in its claim, with a storage_class that can, or mount ephemeral volumes"
            fix += f" (delete claim {name} first)" if sought.body is not None else ""
        yield Check("volumes", False, summary, (evidence,), fix, severity)


_ONE_NODE = {
    "ebs.csi.aws.com": "Amazon EBS",
    "pd.csi.storage.gke.io": "a Google persistent disk",
    "disk.csi.azure.com": "an Azure disk",
    "cinder.csi.openstack.org": "OpenStack Cinder",
    "csi.vsphere.vmware.com": "vSphere block storage",
    "rbd.csi.ceph.com": "Ceph RBD",
    "rancher.io/local-path": "a folder of a node",
    "topolvm.io": "a disk of a node",
    "local.csi.openebs.io": "a disk of a node",
}
"""Provisioners whose volumes with a file system are mounted to write by one node at a time, by the
documentation of each.
"""


def _unbound(holder: str, subject: str, claim: Claim, there: bool, facts: Facts) -> Iterator[Check]:
    """Of a claim without a volume: whether anything will provide one. ``there``: it waits already."""
    if claim.volume or facts.storage_classes is None:
        if there:
            yield _waiting(holder, subject, "it has none yet")
        return
    classes = namespace_objects.storage_classes(facts.storage_classes)
    default = [each.name for each in classes.values() if each.is_default]
    name = claim.storage_class
    if name is None and not default:
        fix = f"say storage_class: {one_of(classes)}" if classes else "ask who runs the cluster for storage"
        summary = f"{holder} names no storage class, and the cluster has no default one"
        # One that is there may still get a volume that somebody makes by hand.
        yield Check("volumes", False, summary, fix=fix, severity=WARNING if there else ERROR)
        return
    if name == "":
        yield _waiting(holder, subject, "it has no class, so somebody has to make a volume for it")
        return
    storage_class = classes.get(default[0] if name is None else name)
    if storage_class is None:
        near = nearest(str(name), classes)
        fix = (
            f"did you mean {near}?" if near else f"name one of {one_of(classes)}" if classes else "create it"
        )
        summary = f"{holder} names the storage class {name}, which does not exist"
        yield Check("volumes", False, summary, (_quote(subject, "storageClassName", str(name)),), fix)
        return
    who = storage_class.provisioner
    if claim.modes == ("ReadWriteMany",) and who in _ONE_NODE:
        evidence = _quote(f"storageclass/{storage_class.name}", "provisioner", who)
        summary = (
            f"{holder} is to be mounted by many nodes, and its class provides {_ONE_NODE[who]}, for one "
            "node alone"
        )
        fix = (
            "name a storage_class of a shared file system (NFS, CephFS, FSx, Filestore), or say access: once"
        )
        yield Check("volumes", False, summary, (evidence,), fix, WARNING)
    if there and not storage_class.waits:
        yield _waiting(holder, subject, "it has none yet")


def _waiting(holder: str, subject: str, reason: str) -> Check:
    name = subject.partition("/")[2]
    fix = f"kubectl describe persistentvolumeclaim {name} says what it waits for"
    evidence = _quote(subject, "phase", "Pending")
    return Check("volumes", False, f"{holder} waits for a volume: {reason}", (evidence,), fix, WARNING)


def _ephemeral(group: Pods, facts: Facts) -> Iterator[Check]:
    for name, template in group.pod.ephemeral:
        if template and facts.storage_classes is not None:
            holder = f"the ephemeral volume {name} of {group.role}"
            yield from _unbound(holder, f"volume/{name}", namespace_objects.claim(template), False, facts)


def secrets(facts: Facts) -> Iterator[Check]:
    """Secrets, ConfigMaps, service accounts and priority classes that members name."""
    sorts = (
        ("secret", facts.secrets, "secrets"),
        ("ConfigMap", facts.config_maps, "secrets"),
        ("service account", facts.accounts, "service_account"),
        ("priority class", facts.priorities, "priority_class"),
    )
    for sort, wanted, id in sorts:
        missing = [n for n, s in wanted.items() if s.known and s.body is None]
        hidden = [n for n, s in wanted.items() if not s.known]
        if missing:
            where = "" if sort == "priority class" else f" in {facts.where}"
            near = nearest(missing[0], facts.survey.priorities or ()) if sort == "priority class" else None
            correct = f"say gang.priority: {near}" if near else "correct the name in the job"
            fix = f"create {'it' if len(missing) == 1 else 'them'}{where}, or {correct}"
            yield Check(id, False, f"{_join_names(sort, missing)} not there{where}", fix=fix)
        if hidden:
            yield _unknown(id, f"{_join_names(sort, hidden, 'may not be looked at')}")
        if wanted and not missing and not hidden:
            yield _is_well(id, f"{_join_names(sort, wanted)} there")
    if facts.gang.queue_priority is not None:
        summary = f"{facts.gang.queue_priority} is a WorkloadPriorityClass"
        yield _is_well("priority_class", f"{summary}: it orders queue {facts.gang.local_queue}")


def _join_names(noun: str, names: Iterable[str], verb: str = "") -> str:
    all_names = [*names]
    many = len(all_names) > 1
    plural = (
        (f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("ss") else f"{noun}s")
        if many
        else noun
    )
    return f"{plural} {', '.join(all_names)} {verb or ('are' if many else 'is')}"


# --- nodes --------------------------------------------------------------------------------------------------


def nodes(facts: Facts) -> Iterator[Check]:
    """The members can run on the nodes that are there, were they empty."""
    known_nodes = facts.survey.nodes
    if known_nodes is None:
        yield _unknown(
            "nodes", f"nodes may not be read ({_ALLOWED}); whether the members fit them cannot be told"
        )
        return
    if not known_nodes:
        fix = "an autoscaler may add some when members wait; where there is none, ask who runs the cluster"
        yield Check("nodes", False, "the cluster has no nodes now", fix=fix, severity=WARNING)
        return
    severity = WARNING if any(node.grows for node in known_nodes) else ERROR
    wrong = [*_nodes(facts, severity)]
    yield from wrong
    if not wrong:
        total = sum(group.replicas for group in facts.pods)
        fits = capacity.room(facts.pods, known_nodes)
        if fits < total:
            summary = f"{fits} of {counted(total, 'member')} have a place at once, even on empty nodes"
            yield Check(
                "nodes",
                False,
                summary,
                fix="make the gang smaller, or ask for less per member",
                severity=severity,
            )
        else:
            who = "its one member fits" if total == 1 else f"all {total} members fit"
            yield _is_well("nodes", f"{who} the nodes, were they empty")


def gpu_labels(facts: Facts) -> Iterator[Check]:
    """Node labels about slices that change and GPUs that are shared."""
    known_nodes = facts.survey.nodes or ()
    yield from gpu_nodes.recarving(facts.pods, known_nodes)
    yield from gpu_nodes.sharing(facts.pods, known_nodes)


def devices(facts: Facts) -> Iterator[Check]:
    """The classes of devices are there that members claim, and enough devices."""
    yield from device_classes.judge(facts.manifests, facts.pods, facts.device_classes, facts.slices)


def disruptions(facts: Facts) -> Iterator[Check]:
    """Disruption budgets that keep members where they are when a node is emptied."""
    yield from budgets.judge(facts.pods, facts.budgets)


def _nodes(facts: Facts, severity: str) -> Iterator[Check]:
    every = facts.survey.nodes or ()
    for group in facts.pods:
        for name, value in group.pod.requests.items():
            if "/" in name and value > 0 and not any(amount(n.allocatable.get(name, 0)) for n in every):
                if (check := gpu_nodes.slice_not_offered(name, group.role, every, severity)) is not None:
                    yield check
                    return
                offered = sorted(
                    {r for n in every for r, v in n.allocatable.items() if "/" in r and amount(v) > 0}
                )
                near = nearest_device(name, offered)
                evidence = _quote(
                    "nodes", "status.allocatable", f"offered are {', '.join(offered) or 'no devices'}"
                )
                fix = (
                    f"did you mean {near}?"
                    if near
                    else "ask for what the nodes offer, or have its device plugin installed"
                )
                yield Check(
                    "nodes",
                    False,
                    f"no node offers {name}, which {group.role} asks for",
                    (evidence,),
                    fix,
                    severity,
                )
                return
        reasons = {node.name: capacity.misfit(group.pod, node) for node in every}
        open_ = [node for node in every if reasons[node.name] is None]
        if not open_:
            quotes = tuple(_quote(f"node/{name}", "", f"{reason}") for name, reason in [*reasons.items()][:8])
            fix = (
                _label_fix(group, facts)
                or "tolerate the taint or correct the selector in pod, or ask who runs the nodes"
            )
            yield Check("nodes", False, f"no node takes the members of {group.role}", quotes, fix, severity)
            return
        lacks = {node.name: capacity.lacking(group.pod, node) for node in open_}
        if all(lacks.values()):
            best = min(open_, key=lambda node: len(lacks[node.name]))
            quotes = tuple(
                _quote(f"node/{n}", "status.allocatable", "; ".join(texts))
                for n, texts in [*lacks.items()][:8]
            )
            summary = f"a member of {group.role} is larger than every node: {lacks[best.name][0]}"
            yield Check("nodes", False, summary, quotes, "ask for less per member", severity)
            return


def _label_fix(group: Pods, facts: Facts) -> str | None:
    for label, wanted in group.pod.node_selector.items():
        values = sorted({n.labels[label] for n in facts.survey.nodes or () if label in n.labels})
        if wanted not in values:
            return (
                f"{label} is {one_of(values)} here, not {wanted}"
                if values
                else f"no node has the label {label}"
            )
    return None


# --- the objects themselves ---------------------------------------------------------------------------------


def names(facts: Facts) -> Iterator[Check]:
    """Services are called like pods, and have 63 characters."""
    name = facts.job["metadata"]["name"]
    longest = max(
        (facts.engine.pod_name(name, f"{p.role.lower()}-{max(0, p.replicas - 1)}") for p in facts.pods),
        key=len,
        default=name,
    )
    if len(longest) > LONGEST_NAME:
        summary = f"{longest} has {len(longest)} characters; a Service may have {LONGEST_NAME}"
        yield Check(
            "names", False, summary, fix=f"give the job a name that is {len(longest) - LONGEST_NAME} shorter"
        )
    else:
        yield _is_well(
            "names", f"the longest name, {longest}, has {len(longest)} of {LONGEST_NAME} characters"
        )


def helper(facts: Facts) -> Iterator[Check]:
    """The helper stands around the command of each member, or what is lost."""
    for sentence in facts.unhelped:
        yield Check("helper", False, sentence, (), "or say inject: off", WARNING)


def dry_run(facts: Facts) -> Iterator[Check]:
    """The API server takes every object; and the pods, where one may try."""
    every = [*facts.tried, *(facts.pods_tried or ())]
    refused = [t for t in every if t.error is not None and not isinstance(t.error, Exists)]
    said_already: set[str] = set()
    limited = {name for group in facts.pods for name in group.pod.limits}
    for result in refused:
        causes = result.error.causes if isinstance(result.error, ApiError) else ()
        if causes and all(cause.message == "unknown field" for cause in causes):
            # The job and its pods have the same ones, each by a path of its own.
            is_pod = result in (facts.pods_tried or ())
            problems = [problem_of(cause, facts.engine, is_pod) for cause in causes]
            fresh = [problem for problem in problems if problem.path not in said_already]
            said_already |= {problem.path for problem in fresh}
            yield from (_misspelt(result.subject, problem) for problem in fresh)
            continue
        quotes = tuple(_quote(result.subject, cause.field, cause.message) for cause in causes) or (
            _quote(result.subject, "dry run", str(result.error)),
        )
        message = str(result.error)
        verdict = _meaning(message, limits=limited)
        yield Check(
            "dry_run",
            False,
            f"{result.subject} would be refused: {message}",
            quotes,
            _what_to_do(message),
            code=verdict.code if verdict is not None else None,
            retryable=verdict.passes if verdict is not None else None,
        )
    if every and not refused:
        more = (
            ""
            if facts.pods_tried is not None
            else "; its pods could not be tried, which takes the right to create pods"
        )
        yield _is_well(
            "dry_run",
            f"the API server takes {one_of([t.subject for t in every]).replace(' or ', ' and ')}{more}",
        )


def _misspelt(subject: str, problem: Problem) -> Check:
    evidence = _quote(subject, problem.path, problem.message)
    hint = (
        f"did you mean {problem.suggestion!r}?" if problem.suggestion else "take it out, or correct its name"
    )
    return Check("dry_run", False, f"{problem.path}: there is no such field here", (evidence,), hint)


_WRONG_TYPE = re.compile(r"cannot unmarshal (\w+) into Go struct field \w+\.(\S+) of type (\S+)")


def _meaning(message: str, limits: Collection[str] = ()) -> Verdict | None:
    """The cause that a refusal tells; ``limits``: the resources of which the job itself states a limit."""
    from allaboard.diagnosis.verdict import refusal_verdict  # not for who launches: nothing is refused there

    return refusal_verdict(message, limits=limits)


def _what_to_do(message: str) -> str:
    """By the cause that the refusal tells."""
    verdict = _meaning(message)
    if verdict is not None and verdict.code == "rbac_forbidden":
        role = next((r for resource, r in _ROLES.items() if f'resource "{resource}"' in message), "submitter")
        return f"have the right granted: allaboard cluster --rbac {role}"
    if (wrong := _WRONG_TYPE.search(message)) is not None:
        return f"{wrong[2]} is a {wrong[3].rpartition('.')[2]}, not a {wrong[1]}: correct it in pod"
    return verdict.fix if verdict is not None else "correct what it names in the job"


CHECKS: tuple[Callable[[Facts], Iterator[Check]], ...] = (
    namespace,
    kinds,
    operator,
    gang,
    rbac,
    orphans,
    queue,
    admission_checks,
    topology,
    volumes,
    secrets,
    nodes,
    gpu_labels,
    devices,
    disruptions,
    quota,
    limit_range,
    pod_security,
    scc,
    names,
    dry_run,
    helper,
    blind_spots,
)


def examine(facts: Facts) -> list[Check]:
    """Every check, what stops the job first."""
    checks = [check for ask in CHECKS for check in ask(facts)]
    return sorted(checks, key=lambda check: (not check.stops, check.ok is not False, check.ok is not None))

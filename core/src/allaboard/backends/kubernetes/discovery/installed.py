"""Components for training that a cluster has installed, and if they are alive, as far as this user may see
it.

Discovery is open to every user. Every other read is asked for first
(SelfSubjectAccessReview), and what may not be read stays unknown: None, never a guess. The signs that
something is alive, strongest first: its webhook answers a dry run that it alone refuses; its lease was
renewed, its Deployment is available (in the namespace where its guide puts it); it has written to an object
of this namespace lately. One sign is enough. A part that is installed under another name, and whose
signs may not be read, is neither alive nor dead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from allaboard.backends.kubernetes.client.errors import ApiError, Forbidden, Invalid, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import (
    ACCESS_REVIEWS,
    CONFIGMAPS,
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODGROUPS,
    PODGROUPS_ALPHA,
    PODGROUPS_COSCHEDULING,
    PODGROUPS_VOLCANO,
    PODS,
    PRIORITYCLASSES,
    Resource,
    resource_for,
)
from allaboard.backends.kubernetes.client.values import at, dicts, mapping, moment, text, texts, whole
from allaboard.backends.kubernetes.discovery.components import (
    BY_GANG,
    KAI_TOPOLOGIES,
    PARTS,
    TOPOLOGIES,
    WORKLOAD_PRIORITIES,
    Component,
)
from allaboard.backends.kubernetes.discovery.definitions import lacking_fields
from allaboard.backends.kubernetes.discovery.pod_security import level_of
from allaboard.engines import ENGINES, Engine
from allaboard.engines.base import JobSeen
from allaboard.errors import BackendUnreachable
from allaboard.gangs import GANGS
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.text.units import counted, show_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

RECENT = 3600.0
"""Seconds for which a sign of life counts."""
SETTLED = 60.0
"""Seconds after which an operator that lives has written a status."""
LOOKED_AT = 200
"""Objects of a kind that are looked at for signs of life."""
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
_OPENSHIFT = "security.openshift.io"


@dataclass(frozen=True, slots=True)
class InstalledComponent:
    """The state of one part. ``versions``: of its API that are served; ``alive``: None when no sign tells;
    ``signs``: the signs of life that were seen, as text.
    """

    part: Component
    versions: tuple[str, ...] = ()
    alive: bool | None = None
    signs: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        return bool(self.versions)

    @property
    def cure(self) -> str | None:
        """The remedy where it is installed and does not answer; None: it is not so. Helm leaves the
        definitions of kinds behind; those of jobs are nobody's to remove by the way.
        """
        if not self.installed or self.alive is not False:
            return None
        restart = f"start it again (kubectl -n {self.part.home} get deployments,pods)"
        if self.part.gang is None:
            return restart
        kinds = " ".join(kind.name for kind in self.part.kinds)
        return (
            f"{restart}; where it was uninstalled, install it again, or remove the kind that it left, with "
            f"all objects of it: kubectl delete crd {kinds}"
        )

    def to_dict(self) -> dict[str, Any]:
        guide = self.part.guide
        return {
            "id": self.part.id,
            "title": self.part.title,
            "installed": self.installed,
            "versions": list(self.versions),
            "alive": self.alive if self.installed else None,
            "evidence": list(self.signs),
            "cure": self.cure,
            "install": guide.to_dict() if guide is not None else None,
        }


AUTOSCALER_STATUS = "cluster-autoscaler-status"
"""The ConfigMap in kube-system in which the cluster autoscaler says how it is."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node, as far as it matters for where members may run. ``grows``: whether nodes of its sort are made
    on demand, None where that is not known; ``joined``: when it came, epoch seconds.
    """

    name: str
    allocatable: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    cordoned: bool = False
    ready: bool = True
    capacity: Mapping[str, str] = field(default_factory=dict)
    grows: bool | None = None
    joined: float | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """``kinds``: ``group/version/Kind`` of everything that is served. ``operator_gangs``, ``schedulers``,
    ``lacking``, ``topology_levels``, ``kai_topologies``, ``priorities``, ``queue_priorities``,
    ``pod_security``: as in `ClusterFacts`. ``nodes``: None when they may not be read.
    """

    server: str
    version: str
    namespace: str
    kinds: frozenset[str]
    parts: tuple[InstalledComponent, ...] = ()
    operator_gangs: Mapping[str, str] = field(default_factory=dict)
    schedulers: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    topology_levels: frozenset[str] = frozenset()
    kai_topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    priorities: frozenset[str] | None = None
    queue_priorities: frozenset[str] | None = None
    pod_security: str | None = None
    nodes: tuple[Node, ...] | None = None

    @property
    def is_openshift(self) -> bool:
        return any(kind.startswith(f"{_OPENSHIFT}/") for kind in self.kinds)

    def part(self, id: str) -> InstalledComponent:
        return next(component for component in self.parts if component.part.id == id)

    def facts(self, base: ClusterFacts) -> ClusterFacts:
        """The facts that rendering needs, over what is known of the place already."""
        return replace(
            base,
            kinds=self.kinds,
            operator_gangs={**base.operator_gangs, **self.operator_gangs},
            schedulers={**base.schedulers, **self.schedulers},
            lacking=self.lacking,
            topology_levels=self.topology_levels,
            kai_topologies=self.kai_topologies,
            priorities=self.priorities,
            queue_priorities=self.queue_priorities,
            pod_security=self.pod_security,
            silent=frozenset(c.part.id for c in self.parts if c.installed and c.alive is False),
            namespace=self.namespace,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "version": self.version,
            "namespace": self.namespace,
            "openshift": self.is_openshift,
            "components": [component.to_dict() for component in self.parts],
            "operator_gangs": dict(self.operator_gangs),
            "schedulers": dict(self.schedulers),
            "nodes": None if self.nodes is None else summary_of_nodes(self.nodes),
        }


# --- the whole survey ---------------------------------------------------------------------------------------


def survey_cluster(api: Api, server: str, namespace: str) -> Survey:
    """Everything. Some twenty small requests; nothing is created."""
    version = api.raw("GET", "/version")
    kinds = served(api)
    now = api.server_time()
    may = May(namespace)
    jobs = _jobs(api, ENGINES.values(), kinds, may)
    groups = _groups(api, kinds, may)
    pods = _listed(api, PODS, None, may)
    schedulers = schedulers_of(pods or ())
    parts = []
    for part in PARTS:
        component = InstalledComponent(part, versions_of(part, kinds))
        if component.installed:
            signs = [*_probed(api, part, kinds, may), *_at_home(api, part, may, now)]
            signs = _telling([*signs, *_in_namespace(part, jobs, groups, schedulers, now)])
            component = replace(component, alive=_verdict(signs), signs=tuple(sign.text for sign in signs))
        parts.append(component)
    nodes = _nodes(api, may)
    lacking = lacking_fields(api, kinds, namespace, ENGINES.values())
    return Survey(
        server=server,
        version=str(version.get("gitVersion", "")),
        namespace=namespace,
        kinds=kinds,
        parts=tuple(parts),
        operator_gangs=gangs_of_operators(kinds, jobs, groups, now),
        schedulers={gang: component.name for gang, component in schedulers.items()},
        lacking={name: fields for name, fields in lacking.items() if fields},
        topology_levels=_topology_levels(api, kinds, may),
        kai_topologies=_kai_topologies(api, kinds, may),
        priorities=_names_of(api, PRIORITYCLASSES, None, may),
        queue_priorities=_names_of(api, WORKLOAD_PRIORITIES, kinds, may),
        pod_security=_pod_security(api, namespace, may),
        nodes=nodes,
    )


def complete_facts(api: Api, base: ClusterFacts) -> ClusterFacts:
    """The facts that a launch needs and that cost a few requests: the kinds that are served, and what
    operators do by themselves. Fields that definitions lack are asked for with each job
    (`definitions.complete_lacking`).
    """
    kinds = served(api)
    may = May(base.namespace)
    jobs = _jobs(api, (engine for engine in ENGINES.values() if engine.NATIVELY), kinds, may)
    groups = _groups(api, kinds, may)
    now = api.server_time()
    gangs = gangs_of_operators(kinds, jobs, groups, now)
    return replace(
        base,
        kinds=kinds,
        operator_gangs={**base.operator_gangs, **gangs},
        silent=_silent_operators(api, kinds, may) | _silent_gangs(api, kinds, may, now),
        topology_levels=_topology_levels(api, kinds, may),
        kai_topologies=_kai_topologies(api, kinds, may),
        pod_security=_pod_security(api, base.namespace, may),
    )


def complete_priorities(api: Api, facts: ClusterFacts, priority: str | None) -> ClusterFacts:
    """The facts with the priorities that there are, where a job has one and Kueue is served: it may mean the
    queue's, or the pods'. What was read before is read anew for a name that is not among it.
    """
    kinds = facts.kinds or frozenset()
    known = (facts.priorities or frozenset()) | (facts.queue_priorities or frozenset())
    if priority is None or priority in known or _kind_of(WORKLOAD_PRIORITIES) not in kinds:
        return facts
    may = May(facts.namespace)
    return replace(
        facts,
        priorities=_names_of(api, PRIORITYCLASSES, None, may),
        queue_priorities=_names_of(api, WORKLOAD_PRIORITIES, kinds, may),
    )


def _names_of(api: Api, resource: Resource, kinds: frozenset[str] | None, may: May) -> frozenset[str] | None:
    """The names of all objects of a kind; None where they are not known, or too many to know them all."""
    items = _listed(api, resource, kinds, may)
    if items is None or len(items) >= LOOKED_AT:
        return None
    return frozenset(str(item["metadata"]["name"]) for item in items)


def _kind_of(resource: Resource) -> str:
    return f"{resource.api_version}/{resource.kind}"


def _pod_security(api: Api, namespace: str, may: May) -> str | None:
    """The level that the namespace enforces; None: it may not be read, or is not there."""
    if not may.do(api, "get", NAMESPACES):
        return None
    try:
        return level_of(api.get(NAMESPACES, namespace))
    except (Forbidden, Missing):
        return None


def _silent_gangs(api: Api, kinds: frozenset[str], may: May, now: float) -> frozenset[str]:
    """The gang schedulers whose kinds are served, and that are gone as far as may be seen where their guide
    puts them: Helm leaves the definitions of kinds behind.
    """
    silent = set()
    for part in (part for name, part in BY_GANG.items() if name in GANGS):
        if versions_of(part, kinds) and _verdict(_at_home(api, part, may, now)) is False:
            silent.add(part.id)
    return frozenset(silent)


def _topology_levels(api: Api, kinds: frozenset[str], may: May) -> frozenset[str]:
    """The node labels by which Kueue places members, as far as they may be read."""
    topologies = _listed(api, TOPOLOGIES, kinds, may) or ()
    return frozenset(label for topology in topologies for label in _labels_of_levels(topology))


def _kai_topologies(api: Api, kinds: frozenset[str], may: May) -> dict[str, tuple[str, ...]]:
    """KAI's Topologies, as far as they may be read, each with the node labels of its levels."""
    topologies = _listed(api, KAI_TOPOLOGIES, kinds, may) or ()
    return {str(topology["metadata"]["name"]): (*_labels_of_levels(topology),) for topology in topologies}


def _labels_of_levels(topology: Json) -> Iterator[str]:
    levels = dicts(at(topology, "spec", "levels"))
    return filter(None, (text(level.get("nodeLabel")) for level in levels))


def _silent_operators(api: Api, kinds: frozenset[str], may: May) -> frozenset[str]:
    """The operators whose webhook does not answer, asked where there are several to choose from."""
    served = {e.OPERATOR.id for e in ENGINES.values() if f"{e.API_VERSION}/{e.KIND}" in kinds}
    silent = set()
    for part in PARTS if len(served) > 1 else ():
        if part.id in served and _verdict(_probed(api, part, kinds, may)) is False:
            silent.add(part.id)
    return frozenset(silent)


def _jobs(
    api: Api, engines: Iterable[Engine], kinds: frozenset[str], may: May
) -> dict[str, tuple[Json, ...]]:
    """The jobs of each of these engines, by its name; none of those that may not be read."""
    jobs = {}
    for engine in engines:
        jobs[engine.NAME] = _listed(api, resource_for(engine), kinds, may) or ()
    return jobs


def _groups(api: Api, kinds: frozenset[str], may: May) -> dict[Resource, tuple[Json, ...] | None]:
    """PodGroups of every API that is served."""
    groups = {}
    for resource in (PODGROUPS_COSCHEDULING, PODGROUPS_VOLCANO, PODGROUPS, PODGROUPS_ALPHA):
        groups[resource] = _listed(api, resource, kinds, may)
    return groups


# --- what is served -----------------------------------------------------------------------------------------


def served(api: Api) -> frozenset[str]:
    """``group/version/Kind`` of everything outside the core group."""
    answer = api.raw("GET", "/apis", accept=_AGGREGATED)
    if answer.get("kind") == "APIGroupDiscoveryList":
        return frozenset(_aggregated(answer))
    return _one_by_one(api, answer)


def _aggregated(answer: Json) -> Iterator[str]:
    for group in dicts(answer.get("items")):
        for version in dicts(group.get("versions")):
            for resource in dicts(version.get("resources")):
                if kind := text(at(resource, "responseKind", "kind")):
                    yield f"{group['metadata']['name']}/{version['version']}/{kind}"


def _one_by_one(api: Api, answer: Json) -> frozenset[str]:
    """Before Kubernetes 1.30: each group and version by itself, and only those that matter here."""
    wanted = {kind.group for part in PARTS for kind in part.kinds} | {
        _OPENSHIFT,
        "scheduling.k8s.io",
        "karpenter.sh",
    }
    kinds = set()
    for group in dicts(answer.get("groups")):
        for version in dicts(group.get("versions")):
            if group["name"] in wanted:
                try:
                    listed = api.raw("GET", f"/apis/{version['groupVersion']}")
                except Missing:
                    continue
                resources = dicts(listed.get("resources"))
                kinds |= {f"{version['groupVersion']}/{r['kind']}" for r in resources if "/" not in r["name"]}
    return frozenset(kinds)


def versions_of(part: Component, kinds: Iterable[str]) -> tuple[str, ...]:
    """The versions in which kinds of a part are served."""
    versions = [tuple(kind.split("/")) for kind in kinds]
    return tuple(
        sorted(
            {
                version
                for group, version, kind in (f for f in versions if len(f) == 3)
                for own in part.kinds
                if (group, kind) == (own.group, own.kind) and (not part.exact or version == own.version)
            }
        )
    )


# --- what may be read ---------------------------------------------------------------------------------------


class May:
    """Asks what this user may do, each question once."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._answers: dict[tuple[str, ...], bool] = {}

    def do(
        self, api: Api, verb: str, resource: Resource, *, namespace: str | None = None, sub: str = ""
    ) -> bool:
        """``namespace``: another one than ours; ``""``: all of them."""
        # A namespace is within itself, so that a Role of it may allow to read it.
        within = resource.namespaced or resource == NAMESPACES
        where = "" if not within else self.namespace if namespace is None else namespace
        question = (verb, resource.group, resource.plural, sub, where)
        if question not in self._answers:
            self._answers[question] = may(api, verb, resource.group, resource.plural, sub, where)
        return self._answers[question]


def may(api: Api, verb: str, group: str, resource: str, sub: str, namespace: str) -> bool:
    """One SelfSubjectAccessReview; a server that does not answer it allows nothing."""
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**attributes, **({"subresource": sub} if sub else {})}},
    }
    try:
        answer = api.create(ACCESS_REVIEWS, body)
    except (Forbidden, Missing):
        return False
    return at(answer, "status", "allowed") is True


def _listed(
    api: Api, resource: Resource, kinds: frozenset[str] | None, may: May, namespace: str | None = None
) -> tuple[Json, ...] | None:
    """Objects of a kind; None when they may not be read or the kind is not served."""
    if kinds is not None and f"{resource.api_version}/{resource.kind}" not in kinds:
        return None
    if not may.do(api, "list", resource, namespace=namespace):
        return None
    try:
        items = api.list(resource, namespace=namespace, limit=LOOKED_AT, at_most=LOOKED_AT)[0]
    except (Forbidden, Missing):
        return None
    return tuple(items)


# --- signs of life ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sign:
    """``alive``: what it says; None: it only explains."""

    alive: bool | None
    text: str


def _telling(signs: Sequence[Sign]) -> list[Sign]:
    """Those that say something; where none does, those that explain why."""
    return [sign for sign in signs if sign.alive is not None] or list(signs)


def _verdict(signs: Sequence[Sign]) -> bool | None:
    answers = {sign.alive for sign in signs}
    return True if True in answers else False if False in answers else None


def _probed(api: Api, part: Component, kinds: frozenset[str], may: May) -> list[Sign]:
    """The answer of its webhook to an object that it must refuse, of its first kind that is served."""
    probes = ((k, p) for k, p in part.probes.items() if f"{k.api_version}/{k.kind}" in kinds)
    kind, probe = next(probes, (None, None))
    if kind is None or probe is None or not may.do(api, "create", kind):
        return []
    try:
        api.create(kind, dict(probe), dry_run=True)
    except (Forbidden, Invalid) as error:
        if "admission webhook" in error.message:
            return [Sign(True, "its webhook answers")]
        return []
    except BackendUnreachable as error:
        if "webhook" in str(error):
            reason = str(error).partition("failed calling webhook")[2].partition(" (")[0]
            return [Sign(False, f"its webhook does not answer:{reason}")]
        raise
    except ApiError:
        return []
    return [Sign(None, "it has no webhook here")]


def _at_home(api: Api, part: Component, may: May, now: float) -> list[Sign]:
    """Leases and Deployments in the namespace where its guide puts it."""
    signs = []
    leases = _listed(api, LEASES, None, may, part.home)
    for lease in leases or ():
        renewed = moment(at(lease, "spec", "renewTime"))
        name = lease["metadata"]["name"]
        if renewed is None or name.startswith("apiserver-"):
            continue
        if part.home == "kube-system" and name != "kube-scheduler":
            continue
        age = max(0.0, now - renewed)
        fresh = age <= 3 * (whole(at(lease, "spec", "leaseDurationSeconds")) or 15)
        sentence = f"lease {part.home}/{name} was renewed {show_seconds(age)} ago"
        signs.append(Sign(fresh if part.id != "workload" else None, sentence))
    if part.home == "kube-system":
        return signs  # its Deployments are others'
    deployments = _listed(api, DEPLOYMENTS, None, may, part.home)
    if leases == () and deployments == ():
        return [Sign(None, f"namespace {part.home}, where its guide puts it, has nothing of it")]
    for deployment in deployments or ():
        available = whole(at(deployment, "status", "availableReplicas")) or 0
        replicas = counted(available, "available replica")
        sentence = f"Deployment {part.home}/{deployment['metadata']['name']} has {replicas}"
        signs.append(Sign(available > 0, sentence))
    return signs


def _in_namespace(
    part: Component,
    jobs: Mapping[str, Sequence[Json]],
    groups: Mapping[Resource, Sequence[Json] | None],
    schedulers: Mapping[str, Scheduler],
    now: float,
) -> list[Sign]:
    """Its actions here lately."""
    its = [(ENGINES[name], job) for name, of_it in jobs.items() for job in of_it]
    its = [(engine, job) for engine, job in its if engine.OPERATOR.id == part.id]
    match part.id:
        case "coscheduling" if scheduler := schedulers.get("coscheduling"):
            return [scheduler.sign("coscheduling", now)]
        case "workload":
            every = [*(groups.get(PODGROUPS) or ()), *(groups.get(PODGROUPS_ALPHA) or ())]
            acted = [g for g in every if at(g, "status", "conditions")]
            return [
                Sign(True, f"PodGroup {g['metadata']['name']} was judged by the scheduler") for g in acted[:1]
            ]
        case "volcano":
            acted = [g for g in groups.get(PODGROUPS_VOLCANO) or () if at(g, "status", "phase")]
            return [Sign(True, f"PodGroup {g['metadata']['name']} has a phase") for g in acted[:1]]
    return [*_of_jobs(its, now)]


def _of_jobs(jobs: Sequence[tuple[Engine, Json]], now: float) -> Iterator[Sign]:
    """Signs of an operator in the statuses of its jobs."""
    written = [(time, job) for _, job in jobs for time in _written(job)]
    if written:
        time, job = max(written, key=lambda item: item[0])
        if now - time <= RECENT:
            sentence = f"it wrote to {job['metadata']['name']} {show_seconds(max(0.0, now - time))} ago"
            yield Sign(True, sentence)
            return
    for engine, job in jobs:
        created = moment(job["metadata"].get("creationTimestamp"))
        managed = engine.managed_by(job)
        if created is not None and now - created > SETTLED and not job.get("status") and managed is None:
            sentence = (
                f"{job['metadata']['name']} has no status {show_seconds(now - created)} after its creation"
            )
            yield Sign(False, sentence)
            return


def _written(job: Json) -> Iterator[float]:
    for condition in dicts(at(job, "status", "conditions")):
        written = moment(condition.get("lastUpdateTime") or condition.get("lastTransitionTime"))
        if written is not None:
            yield written


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The schedulerName under which a gang scheduler has acted here, and when it last did."""

    name: str
    at: float | None

    def sign(self, gang: str, now: float) -> Sign:
        if self.at is None or now - self.at > RECENT:
            return Sign(None, f"{self.name} has placed members of gangs here, but not lately")
        return Sign(True, f"{self.name} acted on a gang here {show_seconds(max(0.0, now - self.at))} ago")


def schedulers_of(pods: Iterable[Json]) -> dict[str, Scheduler]:
    """Gang scheduler -> what was seen of it: the members that it placed last."""
    schedulers: list[tuple[str, Scheduler]] = []
    for pod in pods:
        metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
        name = text(spec.get("schedulerName"))
        if name and name != "default-scheduler" and spec.get("nodeName"):
            if "scheduling.x-k8s.io/pod-group" in mapping(metadata.get("labels")):
                schedulers.append(("coscheduling", Scheduler(name, _placed(pod))))
            if "scheduling.k8s.io/group-name" in mapping(metadata.get("annotations")):
                schedulers.append(("volcano", Scheduler(name, _placed(pod))))
    return dict(sorted(schedulers, key=lambda item: item[1].at or 0.0))


def _placed(pod: Json) -> float | None:
    """The time at which it got its node."""
    for condition in dicts(at(pod, "status", "conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return moment(condition.get("lastTransitionTime"))
    return None


def gangs_of_operators(
    kinds: frozenset[str],
    jobs: Mapping[str, Sequence[Json]],
    groups: Mapping[Resource, Sequence[Json] | None],
    now: float,
) -> dict[str, str]:
    """Operator -> what it was started with (`gang_of_operator`), of those that may make gangs by themselves;
    left out: not known. ``jobs``: of each engine, by its name.
    """
    engines: dict[str, list[Engine]] = {}
    for engine in ENGINES.values():
        if engine.NATIVELY:
            engines.setdefault(engine.OPERATOR.id, []).append(engine)
    gangs = {}
    for operator, its in engines.items():
        seen = [engine.read(job, ()) for engine in its for job in jobs.get(engine.NAME, ())]
        owners = {(engine.API_VERSION, engine.KIND) for engine in its}
        if (gang := gang_of_operator(owners, kinds, seen, groups, now)) is not None:
            gangs[operator] = gang
    return gangs


def gang_of_operator(
    own: Collection[tuple[str, str]],
    kinds: frozenset[str],
    jobs: Iterable[JobSeen],
    groups: Mapping[Resource, Sequence[Json] | None],
    now: float,
) -> str | None:
    """The gang scheduler that an operator was started with, which may make gangs by itself
    (`Operator.gang_flag`). It shows in ``jobs``: with the flag, a PodGroup that has a job's name belongs to
    that job within seconds. ``own``: API version and kind of its jobs. ``off``, the gang's name, or None: not
    known.
    """
    apis = {"coscheduling": PODGROUPS_COSCHEDULING, "volcano": PODGROUPS_VOLCANO}
    here = {n: r for n, r in apis.items() if f"{r.api_version}/{r.kind}" in kinds}
    if not here:
        return "off"  # with the flag and without the kind it would have ended at its start
    for name, resource in here.items():
        for group in groups.get(resource) or ():
            name_of_group, owners = group["metadata"]["name"], dicts(at(group, "metadata", "ownerReferences"))
            kinds_of_owners = [
                (o.get("apiVersion"), o.get("kind"))
                for o in owners
                if o.get("controller") and o.get("name") == name_of_group
            ]
            if any(kind in own for kind in kinds_of_owners):
                return name
    if any(groups.get(resource) is None for resource in here.values()):
        return None
    for job in jobs:
        if job.started is not None and now - job.started > SETTLED and _runs(job):
            return "off"
    return None


def _runs(job: JobSeen) -> bool:
    """True if its operator would keep its PodGroup, had it made one: it deletes it at the end and while
    suspended.
    """
    ends = ("Succeeded", "Failed", "Suspended")
    return not job.suspended and not any(c.type in ends and c.status == "True" for c in job.conditions)


# --- nodes --------------------------------------------------------------------------------------------------


def _nodes(api: Api, may: May) -> tuple[Node, ...] | None:
    return nodes(api) if may.do(api, "list", NODES) else None


def nodes(api: Api) -> tuple[Node, ...] | None:
    """The nodes; None when they may not be read."""
    try:
        every = tuple(node_of(item) for item in api.list(NODES)[0])
    except (Forbidden, Missing):
        return None
    if any(node.grows for node in every) or not _are_fixed(api):
        return every
    return tuple(replace(node, grows=False) for node in every)


def _are_fixed(api: Api) -> bool:
    """True if nothing adds nodes on demand for certain: neither Karpenter nor the cluster autoscaler, which
    keeps its state in a ConfigMap, is there.
    """
    named = f"metadata.name={AUTOSCALER_STATUS}"
    try:
        if api.list(CONFIGMAPS, namespace="kube-system", fields=named)[0]:
            return False
        return not any(kind.startswith("karpenter.sh/") for kind in served(api))
    except ApiError:
        return False


def node_of(item: Json) -> Node:
    metadata, spec, status = map(mapping, (item.get("metadata"), item.get("spec"), item.get("status")))
    labels, conditions = texts(metadata.get("labels")), dicts(status.get("conditions"))
    return Node(
        name=text(metadata.get("name")),
        allocatable=texts(status.get("allocatable")),
        labels=labels,
        taints=tuple(dicts(spec.get("taints"))),
        cordoned=spec.get("unschedulable") is True,
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        capacity=texts(status.get("capacity")),
        grows=any(key.startswith("karpenter.sh/") or "autoscal" in key for key in labels) or None,
        joined=moment(metadata.get("creationTimestamp")),
    )


def summary_of_nodes(nodes: Sequence[Node]) -> dict[str, Any]:
    """The number of nodes, and the devices that they offer: resource -> in all, and nodes that have it."""
    devices: dict[str, dict[str, int]] = {}
    for node in nodes:
        for name, amount in node.allocatable.items():
            if "/" in name and not name.startswith("hugepages-") and str(amount).isdecimal() and int(amount):
                device = devices.setdefault(name, {"total": 0, "nodes": 0})
                device["total"] += int(amount)
                device["nodes"] += 1
    return {"total": len(nodes), "ready": sum(node.ready for node in nodes), "devices": devices}

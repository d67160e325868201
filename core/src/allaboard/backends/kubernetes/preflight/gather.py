"""Before a job is sent: everything that would stop it on this cluster is looked up, tried in a dry run, and
said.

Nothing is created. What may not be read stays unknown (SelfSubjectAccessReview before each optional read),
and `checks` judge the answers, touching nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allaboard.backends.check import Check
from allaboard.backends.kubernetes.client.errors import ApiError, Forbidden, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import (
    BUDGETS,
    CONFIGMAPS,
    DEVICE_CLASSES,
    LIMITRANGES,
    NAMESPACES,
    PODS,
    PRIORITYCLASSES,
    PVCS,
    RESOURCEQUOTAS,
    SECRETS,
    SERVICEACCOUNTS,
    SLICES,
    STORAGECLASSES,
    Resource,
    resource_of,
)
from allaboard.backends.kubernetes.client.values import at, dicts, text
from allaboard.backends.kubernetes.discovery import capacity, rbac
from allaboard.backends.kubernetes.discovery.components import (
    ADMISSION_CHECKS,
    CLUSTERQUEUES,
    FLAVORS,
    KUEUE_WORKLOADS,
    LOCALQUEUES,
    MULTIKUEUE_CONFIGS,
    VOLCANO_QUEUES,
)
from allaboard.backends.kubernetes.discovery.installed import May, Survey, may
from allaboard.backends.kubernetes.discovery.kueue_objects import ClusterQueue, cluster_queue, local_queue
from allaboard.backends.kubernetes.discovery.rbac import Access
from allaboard.backends.kubernetes.lifecycle.field_errors import lacks_extra
from allaboard.backends.kubernetes.lifecycle.prepare import PreparedAttempt
from allaboard.backends.kubernetes.lifecycle.reaper import is_at_work
from allaboard.backends.kubernetes.preflight import device_classes
from allaboard.backends.kubernetes.preflight.checks import Facts, examine, sends_away
from allaboard.backends.kubernetes.preflight.lookup import DryRunResult, Lookup
from allaboard.engines import ENGINES
from allaboard.errors import AllaboardError, BackendUnreachable

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

WHO_AM_I = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
LONGEST = 5.0
"""Seconds that a dry run may be tried again: an operator that is away is an answer, too."""


def preflight(api: Api, ready: PreparedAttempt, survey: Survey) -> list[Check]:
    """Every check of a job that is rendered for this cluster, what stops it first."""
    return examine(gather(api, ready, survey))


def gather(api: Api, ready: PreparedAttempt, survey: Survey) -> Facts:
    """All that the checks look at."""
    permitted = May(survey.namespace)
    resources = [resource_of(manifest) for manifest in ready.manifests]
    pods = capacity.pods_of(ready.manifests)
    own = [m["metadata"]["name"] for m in ready.manifests if m["kind"] == "ConfigMap"]
    kinds = [(resource.group, resource.plural) for resource in resources]
    kinds += [(PVCS.group, PVCS.plural)] if ready.claims else []
    claims = _look_up_each(api, PVCS, capacity.claims(pods), permitted)
    if ready.gang.local_queue:
        kinds += [(each.group, each.plural) for each in (KUEUE_WORKLOADS, LOCALQUEUES)]
    namespace = _sought(api, NAMESPACES, survey.namespace, permitted)
    claimed = device_classes.classes(ready.manifests)
    there = namespace.body is not None or not namespace.known
    queue = _queue(api, ready, permitted)
    above = _cluster_queue(api, queue, ready, permitted)
    kueue = ClusterQueue() if above is None or above.body is None else cluster_queue(above.body)
    asked = _look_up_each(api, ADMISSION_CHECKS, kueue.checks, permitted)
    return Facts(
        survey=survey,
        manifests=ready.manifests,
        resources=resources,
        gang=ready.gang,
        user=_who(api),
        namespace=namespace,
        allowed=_allowed_accesses(api, rbac.needed(kinds), survey.namespace),
        helpful=_allowed_accesses(api, rbac.needed(kinds, rbac.PREFLIGHT), survey.namespace),
        quotas=_list_permitted(api, RESOURCEQUOTAS, permitted),
        limits=_list_permitted(api, LIMITRANGES, permitted),
        claims=claims,
        own_claims=ready.claims,
        storage_classes=(
            _list_permitted(api, STORAGECLASSES, permitted) if _asks_for_volumes(pods, claims) else None
        ),
        secrets=_look_up_each(api, SECRETS, capacity.secrets(pods, ready.secrets), permitted),
        config_maps=_look_up_each(api, CONFIGMAPS, capacity.config_maps(pods, own), permitted),
        accounts=_look_up_each(api, SERVICEACCOUNTS, capacity.accounts(pods), permitted),
        priorities=_look_up_each(api, PRIORITYCLASSES, capacity.priorities(pods), permitted),
        queue=queue,
        cluster_queue=above,
        admission_checks=asked,
        worker_clusters=_look_up_each(api, MULTIKUEUE_CONFIGS, _configs(asked), permitted),
        device_classes=_look_up_each(api, DEVICE_CLASSES, claimed, permitted),
        slices=_list_permitted(api, SLICES, permitted) if claimed else None,
        budgets=_list_permitted(api, BUDGETS, permitted),
        flavors=_look_up_each(api, FLAVORS, {f for g in kueue.groups for f in g.flavors}, permitted),
        tried=_dry_run_objects(api, ready, claims, resources, survey) if there else (),
        unhelped=ready.unhelped,
        reaper=is_at_work(api),
        pods_tried=_dry_run_pods(api, ready, pods, permitted) if there else None,
    )


def _who(api: Api) -> str | None:
    """The name of this user, as the API server knows it."""
    body = {"apiVersion": WHO_AM_I.api_version, "kind": WHO_AM_I.kind}
    try:
        answer = api.create(WHO_AM_I, body)
    except ApiError:  # Kubernetes before 1.28
        return None
    return text(at(answer, "status", "userInfo", "username")) or None


def _allowed_accesses(api: Api, wanted: Iterable[Access], namespace: str) -> dict[Access, bool]:
    allowed = {}
    for access in wanted:
        allowed[access] = may(api, access.verb, access.group, access.resource, access.sub, namespace)
    return allowed


def _sought(api: Api, resource: Resource, name: str, permitted: May) -> Lookup:
    if not permitted.do(api, "get", resource):
        return Lookup(known=False)
    try:
        return Lookup(api.get(resource, name))
    except Missing as error:
        return Lookup(known=not error.unserved)
    except Forbidden:
        return Lookup(known=False)


def _look_up_each(api: Api, resource: Resource, names: Iterable[str], permitted: May) -> dict[str, Lookup]:
    lookups = {}
    for name in sorted(names):
        lookups[name] = _sought(api, resource, name, permitted)
    return lookups


def _list_permitted(api: Api, resource: Resource, permitted: May) -> Sequence[Json] | None:
    if not permitted.do(api, "list", resource):
        return None
    try:
        return api.list(resource)[0]
    except (Forbidden, Missing):
        return None


def _queue(api: Api, ready: PreparedAttempt, permitted: May) -> Lookup | None:
    resource = VOLCANO_QUEUES if ready.gang.gang == "volcano" else None
    resource = LOCALQUEUES if ready.gang.local_queue else resource
    if resource is None or ready.gang.queue is None:
        return None
    return _sought(api, resource, ready.gang.queue, permitted)


def _cluster_queue(api: Api, queue: Lookup | None, ready: PreparedAttempt, permitted: May) -> Lookup | None:
    """The ClusterQueue of a LocalQueue that is there; None: it is none of Kueue's."""
    if queue is None or queue.body is None or not ready.gang.local_queue:
        return None
    name = local_queue(queue.body).parent
    return _sought(api, CLUSTERQUEUES, name, permitted) if name else None


def _asks_for_volumes(pods: Iterable[capacity.Pods], claims: Mapping[str, Lookup]) -> bool:
    """True if a volume has still to be provided for one of these pods."""
    bodies = (lookup.body for lookup in claims.values() if lookup.known)
    unbound = any(at(body, "status", "phase") != "Bound" for body in bodies)
    return unbound or any(group.pod.ephemeral for group in pods)


def _configs(checks: Mapping[str, Lookup]) -> set[str]:
    """The names of the MultiKueueConfigs of admission checks."""
    bodies = (check.body for check in checks.values() if check.body is not None and sends_away(check.body))
    return {*filter(None, (text(at(body, "spec", "parameters", "name")) for body in bodies))}


def _dry_run_objects(
    api: Api,
    ready: PreparedAttempt,
    claims: Mapping[str, Lookup],
    resources: Sequence[Resource],
    survey: Survey,
) -> list[DryRunResult]:
    """A dry run of the creation of each object whose kind is served, and of claims that are not there yet."""
    results, manifests = [], ready.manifests
    for claim in ready.claims:
        name = claim["metadata"]["name"]
        if claims[name].body is None:
            results.append(DryRunResult(f"claim {name}", _dry(api, PVCS, claim)))
    for manifest, resource in zip(manifests, resources, strict=True):
        if not resource.group or f"{resource.api_version}/{resource.kind}" in survey.kinds:
            subject = f"{resource.kind} {manifest['metadata']['name']}"
            error = _dry(api, resource, manifest)
            missed = isinstance(error, ApiError) and lacks_extra(error.message, manifests[:-1])
            results.append(DryRunResult(subject, None if missed else error))
    return results


def _dry_run_pods(
    api: Api, ready: PreparedAttempt, pods: Sequence[capacity.Pods], permitted: May
) -> list[DryRunResult] | None:
    """The same for one pod of each role: nothing else tells what admission says to it. Its gang is left
    out, which may have to exist first.
    """
    if not permitted.do(api, "create", PODS):
        return None
    results = []
    for group in pods:
        spec = {k: v for k, v in group.spec.items() if k != "schedulingGroup"}
        # What the operator adds has an image of its own choice, which does not matter here.
        inits = [{"image": "init", **container} for container in dicts(spec.get("initContainers"))]
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": _pod_metadata(ready, group),
            "spec": {**spec, **({"initContainers": inits} if inits else {})},
        }
        results.append(DryRunResult(f"a pod of {group.role}", _dry(api, PODS, body)))
    return results


def _pod_metadata(ready: PreparedAttempt, group: capacity.Pods) -> Mapping[str, Any]:
    job, engine = ready.job["metadata"], ENGINES[ready.layout.engine]
    return {
        "name": engine.pod_name(job["name"], f"{group.role.lower()}-0"),
        "namespace": job["namespace"],
        "labels": dict(group.labels),
    }


def _dry(api: Api, resource: Resource, body: Json | Mapping[str, Any]) -> AllaboardError | None:
    try:
        api.create(resource, dict(body), dry_run=True)
    except BackendUnreachable as error:
        if "webhook" not in str(error):
            raise
        return error
    except ApiError as error:
        return error
    return None

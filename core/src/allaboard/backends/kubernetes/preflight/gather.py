"""Before a job is sent: everything that would stop it on this cluster is looked up, tried in a dry run, and
said.

Nothing is created. What may not be read stays unknown (SelfSubjectAccessReview before each optional read),
and `checks` judge the answers, touching nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allaboard.backends.check import Check
from allaboard.backends.kubernetes.client import effects
from allaboard.backends.kubernetes.client.effects import Json, Operation
from allaboard.backends.kubernetes.client.errors import ApiError, Forbidden, Missing
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
from allaboard.backends.kubernetes.discovery.rbac import Access
from allaboard.backends.kubernetes.lifecycle.field_errors import lacks_extra
from allaboard.backends.kubernetes.lifecycle.prepare import PreparedAttempt
from allaboard.backends.kubernetes.preflight import device_classes
from allaboard.backends.kubernetes.preflight.checks import Facts, examine, sends_away
from allaboard.backends.kubernetes.preflight.lookup import DryRunResult, Lookup
from allaboard.engines import ENGINES
from allaboard.errors import AllaboardError, BackendUnreachable

WHO_AM_I = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
LONGEST = 5.0
"""Seconds that a dry run may be tried again: an operator that is away is an answer, too."""


def preflight(ready: PreparedAttempt, survey: Survey) -> Operation[list[Check]]:
    """Every check of a job that is rendered for this cluster, what stops it first."""
    return examine((yield from gather(ready, survey)))


def gather(ready: PreparedAttempt, survey: Survey) -> Operation[Facts]:
    """All that the checks look at."""
    permitted = May(survey.namespace)
    resources = [resource_of(manifest) for manifest in ready.manifests]
    pods = capacity.pods_of(ready.manifests)
    own = [m["metadata"]["name"] for m in ready.manifests if m["kind"] == "ConfigMap"]
    kinds = [(resource.group, resource.plural) for resource in resources]
    kinds += [(PVCS.group, PVCS.plural)] if ready.claims else []
    claims = yield from _look_up_each(PVCS, capacity.claims(pods), permitted)
    if ready.gang.local_queue:
        kinds += [(each.group, each.plural) for each in (KUEUE_WORKLOADS, LOCALQUEUES)]
    namespace = yield from _sought(NAMESPACES, survey.namespace, permitted)
    claimed = device_classes.classes(ready.manifests)
    there = namespace.body is not None or not namespace.known
    queue = yield from _queue(ready, permitted)
    above = yield from _cluster_queue(queue, ready, permitted)
    asked = yield from _look_up_each(ADMISSION_CHECKS, _admission_checks(above), permitted)
    return Facts(
        survey=survey,
        manifests=ready.manifests,
        resources=resources,
        gang=ready.gang,
        user=(yield from _who()),
        namespace=namespace,
        allowed=(yield from _allowed_accesses(rbac.needed(kinds), survey.namespace)),
        helpful=(yield from _allowed_accesses(rbac.needed(kinds, rbac.PREFLIGHT), survey.namespace)),
        quotas=(yield from _list_permitted(RESOURCEQUOTAS, permitted)),
        limits=(yield from _list_permitted(LIMITRANGES, permitted)),
        claims=claims,
        own_claims=ready.claims,
        storage_classes=(
            (yield from _list_permitted(STORAGECLASSES, permitted))
            if _asks_for_volumes(pods, claims)
            else None
        ),
        secrets=(yield from _look_up_each(SECRETS, capacity.secrets(pods, ready.secrets), permitted)),
        config_maps=(yield from _look_up_each(CONFIGMAPS, capacity.config_maps(pods, own), permitted)),
        accounts=(yield from _look_up_each(SERVICEACCOUNTS, capacity.accounts(pods), permitted)),
        priorities=(yield from _look_up_each(PRIORITYCLASSES, capacity.priorities(pods), permitted)),
        queue=queue,
        cluster_queue=above,
        admission_checks=asked,
        worker_clusters=(yield from _look_up_each(MULTIKUEUE_CONFIGS, _configs(asked), permitted)),
        device_classes=(yield from _look_up_each(DEVICE_CLASSES, claimed, permitted)),
        slices=(yield from _list_permitted(SLICES, permitted)) if claimed else None,
        budgets=(yield from _list_permitted(BUDGETS, permitted)),
        flavors=(yield from _look_up_each(FLAVORS, _flavors(above), permitted)),
        tried=(yield from _dry_run_objects(ready, claims, resources, survey)) if there else (),
        pods_tried=(yield from _dry_run_pods(ready, pods, permitted)) if there else None,
    )


def _who() -> Operation[str | None]:
    """The name of this user, as the API server knows it."""
    body = {"apiVersion": WHO_AM_I.api_version, "kind": WHO_AM_I.kind}
    try:
        answer = yield from effects.create(WHO_AM_I, body)
    except ApiError:  # Kubernetes before 1.28
        return None
    return ((answer.get("status") or {}).get("userInfo") or {}).get("username")


def _allowed_accesses(wanted: Iterable[Access], namespace: str) -> Operation[dict[Access, bool]]:
    allowed = {}
    for access in wanted:
        allowed[access] = yield from may(access.verb, access.group, access.resource, access.sub, namespace)
    return allowed


def _sought(resource: Resource, name: str, permitted: May) -> Operation[Lookup]:
    if not (yield from permitted.do("get", resource)):
        return Lookup(known=False)
    try:
        return Lookup((yield from effects.get(resource, name)))
    except Missing as error:
        return Lookup(known=not error.unserved)
    except Forbidden:
        return Lookup(known=False)


def _look_up_each(resource: Resource, names: Iterable[str], permitted: May) -> Operation[dict[str, Lookup]]:
    lookups = {}
    for name in sorted(names):
        lookups[name] = yield from _sought(resource, name, permitted)
    return lookups


def _list_permitted(resource: Resource, permitted: May) -> Operation[Sequence[Json] | None]:
    if not (yield from permitted.do("list", resource)):
        return None
    try:
        return (yield from effects.list_all(resource))
    except (Forbidden, Missing):
        return None


def _queue(ready: PreparedAttempt, permitted: May) -> Operation[Lookup | None]:
    resource = VOLCANO_QUEUES if ready.gang.gang == "volcano" else None
    resource = LOCALQUEUES if ready.gang.local_queue else resource
    if resource is None or ready.gang.queue is None:
        return None
    return (yield from _sought(resource, ready.gang.queue, permitted))


def _cluster_queue(queue: Lookup | None, ready: PreparedAttempt, permitted: May) -> Operation[Lookup | None]:
    """The ClusterQueue of a LocalQueue that is there; None: it is none of Kueue's."""
    if queue is None or queue.body is None or not ready.gang.local_queue:
        return None
    name = str((queue.body.get("spec") or {}).get("clusterQueue") or "")
    return (yield from _sought(CLUSTERQUEUES, name, permitted)) if name else None


def _flavors(queue: Lookup | None) -> set[str]:
    """The names of the flavors of a ClusterQueue."""
    spec = (queue.body.get("spec") or {}) if queue is not None and queue.body is not None else {}
    groups = spec.get("resourceGroups") or ()
    return {str(flavor.get("name")) for group in groups for flavor in group.get("flavors") or ()}


def _asks_for_volumes(pods: Iterable[capacity.Pods], claims: Mapping[str, Lookup]) -> bool:
    """Whether a volume has still to be provided for one of these pods."""
    bodies = (one.body for one in claims.values() if one.known)
    unbound = any(((body or {}).get("status") or {}).get("phase") != "Bound" for body in bodies)
    volumes = (volume for group in pods for volume in group.spec.get("volumes") or ())
    return unbound or any("ephemeral" in volume for volume in volumes)


def _admission_checks(queue: Lookup | None) -> set[str]:
    """The names of the checks of a ClusterQueue: of every flavor, or of some."""
    spec = (queue.body.get("spec") or {}) if queue is not None and queue.body is not None else {}
    strategy = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return {*map(str, spec.get("admissionChecks") or ()), *(str(rule.get("name")) for rule in strategy)}


def _configs(checks: Mapping[str, Lookup]) -> set[str]:
    """The names of the MultiKueueConfigs of admission checks."""
    bodies = (check.body for check in checks.values() if check.body is not None and sends_away(check.body))
    parameters = ((body.get("spec") or {}).get("parameters") or {} for body in bodies)
    return {str(each["name"]) for each in parameters if each.get("name")}


def _dry_run_objects(
    ready: PreparedAttempt, claims: Mapping[str, Lookup], resources: Sequence[Resource], survey: Survey
) -> Operation[list[DryRunResult]]:
    """A dry run of the creation of each object whose kind is served, and of claims that are not there yet."""
    results, manifests = [], ready.manifests
    for claim in ready.claims:
        name = claim["metadata"]["name"]
        if claims[name].body is None:
            results.append(DryRunResult(f"claim {name}", (yield from _dry(PVCS, claim))))
    for manifest, resource in zip(manifests, resources, strict=True):
        if not resource.group or f"{resource.api_version}/{resource.kind}" in survey.kinds:
            what = f"{resource.kind} {manifest['metadata']['name']}"
            error = yield from _dry(resource, manifest)
            missed = isinstance(error, ApiError) and lacks_extra(error.message, manifests[:-1])
            results.append(DryRunResult(what, None if missed else error))
    return results


def _dry_run_pods(
    ready: PreparedAttempt, pods: Sequence[capacity.Pods], permitted: May
) -> Operation[list[DryRunResult] | None]:
    """The same for one pod of each role: nothing else tells what admission says to it. Its gang is left
    out, which may have to exist first.
    """
    if not (yield from permitted.do("create", PODS)):
        return None
    results = []
    for group in pods:
        spec = {k: v for k, v in group.spec.items() if k != "schedulingGroup"}
        # What the operator adds has an image of its own choice, which does not matter here.
        inits = [{"image": "init", **container} for container in spec.get("initContainers") or ()]
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": _pod_metadata(ready, group),
            "spec": {**spec, **({"initContainers": inits} if inits else {})},
        }
        results.append(DryRunResult(f"a pod of {group.role}", (yield from _dry(PODS, body))))
    return results


def _pod_metadata(ready: PreparedAttempt, group: capacity.Pods) -> Mapping[str, Any]:
    job, engine = ready.job["metadata"], ENGINES[ready.layout.engine]
    return {
        "name": engine.pod_name(job["name"], f"{group.role.lower()}-0"),
        "namespace": job["namespace"],
        "labels": dict(group.labels),
    }


def _dry(resource: Resource, body: Json | Mapping[str, Any]) -> Operation[AllaboardError | None]:
    try:
        yield from effects.create_dry_run(resource, body)
    except BackendUnreachable as error:
        if "webhook" not in str(error):
            raise
        return error
    except ApiError as error:
        return error
    return None

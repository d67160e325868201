"""Kinds of objects, and their places in the API; the kinds of jobs are those of the engines. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from allaboard.engines import ENGINES, Engine, engine_of_object
from allaboard.render import devices


@lru_cache(maxsize=4096)
def _quoted(part: str) -> str:
    return quote(part, safe="")


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API server serves it: ``Resource("batch", "v1", "jobs", "Job")``. The core group is
    ``""``.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The apiVersion of objects of this kind: ``v1``, ``batch/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """As people and RBAC call it: ``pods``, ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """Of the collection, of one object, or of a subresource (``status``, ``log``). Without a namespace:
        of all namespaces together.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, *([name] if name else []), *([sub] if sub else [])]
        return "/" + "/".join(map(_quoted, parts))


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
PVCS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
RESOURCEQUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LIMITRANGES = Resource("", "v1", "limitranges", "LimitRange")

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
JOBS = Resource("batch", "v1", "jobs", "Job")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
PRIORITYCLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
STORAGECLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")

PODGROUPS_COSCHEDULING = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
PODGROUPS_VOLCANO = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
PODGROUPS_KAI = Resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")
# kube-scheduler's own gang scheduling, behind the gate GenericWorkload: of Kubernetes 1.37, and of 1.36.
PODGROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
PODGROUPS_ALPHA = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")


KNOWN: Mapping[tuple[str, str], Resource] = {
    (resource.api_version, resource.kind): resource
    for resource in list(vars().values())
    if isinstance(resource, Resource)
}
"""By apiVersion and kind."""


def resource_for(engine: Engine) -> Resource:
    """The place of the jobs of this engine in the API."""
    group, _, version = engine.API_VERSION.rpartition("/")
    return Resource(group, version, engine.PLURAL, engine.KIND)


def job_kinds() -> tuple[Resource, ...]:
    """Those of every engine."""
    return tuple(resource_for(engine) for engine in ENGINES.values())


def extra_kinds() -> tuple[Resource, ...]:
    """The kinds of objects that jobs bring, of every engine or for all."""
    kinds = dict.fromkeys(kind for engine in ENGINES.values() for kind in engine.EXTRA_KINDS)
    kinds[devices.KIND] = None
    named = (kind.rpartition("/")[::2] for kind in kinds)
    return tuple(resource_of({"apiVersion": version, "kind": kind}) for version, kind in named)


def resource_of(body: Mapping[str, Any]) -> Resource:
    """The place of objects of this apiVersion and kind in the API. A kind that neither an engine nor this
    module knows has the plural of an ordinary English word.
    """
    engine = engine_of_object(body)
    if engine is not None:
        return resource_for(engine)
    known = KNOWN.get((body["apiVersion"], body["kind"]))
    if known is not None:
        return known
    group, _, version = body["apiVersion"].rpartition("/")
    return Resource(group, version, f"{body['kind'].lower()}s", body["kind"])

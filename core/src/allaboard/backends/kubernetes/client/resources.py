"""The kinds of objects that are spoken about, and where the API server keeps them. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


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
        """What objects of this kind say: ``v1``, ``kubeflow.org/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """As people and RBAC call it: ``pods``, ``pytorchjobs.kubeflow.org``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """Of the collection, of one object, or of a subresource (``status``, ``log``). Without a namespace:
        of all namespaces together.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, *([name] if name else []), *([sub] if sub else [])]
        return "/" + "/".join(quote(part, safe="") for part in parts)


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

PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
MPIJOBS_V1 = Resource("kubeflow.org", "v1", "mpijobs", "MPIJob")
MPIJOBS = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
TRAINJOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIMES = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIMES = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")

PODGROUPS_COSCHEDULING = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
PODGROUPS_VOLCANO = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
# kube-scheduler's own gang scheduling: alpha, behind GenericWorkload and GangScheduling.
WORKLOADS = Resource("scheduling.k8s.io", "v1alpha2", "workloads", "Workload")
PODGROUPS = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")

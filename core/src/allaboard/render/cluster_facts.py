"""What is known of the cluster, or assumed of it, when a job is rendered. Values only.

A backend asks its cluster; without one, `ASSUMED` stands in and the command line says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GPU_LABEL = "nvidia.com/gpu.product"
"""The node label of NVIDIA's GPU feature discovery, which the GPU operator installs. Clouds have their own
(GKE: cloud.google.com/gke-accelerator); a job may write ``label=value`` too.
"""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """``kinds``: ``group/version/Kind`` of what the API server serves; None: unknown. ``operator_gangs``:
    what each operator was started with, by its id: ``off``, or the name of the gang scheduler whose PodGroups
    it makes by itself (``coscheduling``, ``volcano``); left out: not known. ``silent``: the ids of operators
    that are installed and do not answer. ``schedulers``: gang scheduler -> the ``schedulerName`` under which
    it was found at work. The rest is what whoever set up the place says: namespace, the image of jobs that
    name none, the service account of members, the node label that tells the
    GPU; ``gang`` and ``engine`` of jobs that leave them open; and ``secrets``, whose keys every member has as
    variables. None of it is part of a job's spec. `allaboard.render.compatibility.check_place` says what
    cannot be meant.
    """

    kinds: frozenset[str] | None = None
    operator_gangs: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    schedulers: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"
    image: str | None = None
    service_account: str | None = None
    gpu_label: str = GPU_LABEL
    gang: str | None = None
    engine: str | None = None
    secrets: tuple[str, ...] = ()

    def serves(self, kind: str) -> bool | None:
        """Whether ``group/version/Kind`` is served; None: not known."""
        return None if self.kinds is None else kind in self.kinds


ASSUMED = ClusterFacts()


def assumed_facts(environ: Mapping[str, str], namespace: str | None = None) -> ClusterFacts:
    """What the settings of a place say: ``ALLABOARD_NAMESPACE``, ``ALLABOARD_IMAGE`` (of jobs that name
    none), ``ALLABOARD_SERVICE_ACCOUNT``, ``ALLABOARD_GPU_LABEL``; ``ALLABOARD_GANG`` and
    ``ALLABOARD_ENGINE`` (of jobs that leave them to ``auto``); ``ALLABOARD_SECRETS`` (``store-keys,proxy``:
    Secrets whose keys become variables of every member, which is how a job that names no place finds the
    store's). The cluster is not asked.
    """
    secrets = (name.strip() for name in environ.get("ALLABOARD_SECRETS", "").split(","))
    return ClusterFacts(
        namespace=namespace or environ.get("ALLABOARD_NAMESPACE") or "default",
        image=environ.get("ALLABOARD_IMAGE") or None,
        service_account=environ.get("ALLABOARD_SERVICE_ACCOUNT") or None,
        gpu_label=environ.get("ALLABOARD_GPU_LABEL") or GPU_LABEL,
        gang=environ.get("ALLABOARD_GANG") or None,
        engine=environ.get("ALLABOARD_ENGINE") or None,
        secrets=tuple(name for name in secrets if name),
    )

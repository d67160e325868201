"""Known or assumed facts about the cluster when a job is rendered. Values only.

A backend asks its cluster; without one, `ASSUMED` stands in and the command line says so. As JSON they go
from one place to another (``allaboard cluster --facts``, ``allaboard render --cluster-facts``): the fields of
`ClusterFacts` and a version, each of which may be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from allaboard.errors import BadInput, Problem
from allaboard.text.names import nearest, one_of
from allaboard.text.untrusted import show

VERSION = 1
"""Of the facts as JSON."""

GPU_LABEL = "nvidia.com/gpu.product"
"""The node label of NVIDIA's GPU feature discovery, which the GPU operator installs. Clouds have their own
(GKE: cloud.google.com/gke-accelerator); a job may write ``label=value`` too.
"""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """``kinds``: ``group/version/Kind`` of what the API server serves; None: unknown. ``operator_gangs``:
    what each operator was started with, by its id: ``off``, or the name of the gang scheduler whose
    PodGroups it makes by itself (``coscheduling``, ``volcano``); left out: not known. ``silent``: the ids
    of operators and gang schedulers that are installed and do not answer. ``schedulers``: gang scheduler ->
    the ``schedulerName`` under which it was found at work. ``lacking``: engine -> the fields that its objects
    may be written with and this cluster's definitions of them lack. ``topology_levels``: the node labels by
    which Kueue places members close together, and ``kai_topologies``: KAI's Topologies, each with the labels
    of its levels, as far as they may be read; ``priorities`` and
    ``queue_priorities``: the names of PriorityClasses and of Kueue's WorkloadPriorityClasses; None: not
    known. ``pod_security``: the level of Pod Security that the namespace enforces; None: not known. The rest
    is what whoever set up the place says: namespace, the image of jobs that name none, the service account of
    members, the node label that tells the GPU; ``gang`` and ``engine`` of jobs that leave them open; and
    ``secrets``, whose keys every member has as variables. None of it is part of a job's spec.
    `allaboard.render.compatibility.check_place` says what cannot be meant.
    """

    kinds: frozenset[str] | None = None
    operator_gangs: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    schedulers: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    topology_levels: frozenset[str] = frozenset()
    kai_topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    priorities: frozenset[str] | None = None
    queue_priorities: frozenset[str] | None = None
    namespace: str = "default"
    image: str | None = None
    service_account: str | None = None
    gpu_label: str = GPU_LABEL
    gang: str | None = None
    engine: str | None = None
    pod_security: str | None = None
    secrets: tuple[str, ...] = ()

    def serves(self, kind: str) -> bool | None:
        """True if ``group/version/Kind`` is served; None: not known."""
        return None if self.kinds is None else kind in self.kinds


ASSUMED = ClusterFacts()


def assumed_facts(environ: Mapping[str, str], namespace: str | None = None) -> ClusterFacts:
    """Facts from the settings of a place: ``ALLABOARD_NAMESPACE``, ``ALLABOARD_IMAGE`` (of jobs that name
    none), ``ALLABOARD_SERVICE_ACCOUNT``, ``ALLABOARD_GPU_LABEL``; ``ALLABOARD_GANG`` and ``ALLABOARD_ENGINE``
    (of jobs that leave them to ``auto``); ``ALLABOARD_SECRETS`` (``store-keys,proxy``: Secrets whose keys
    become variables of every member, which is how a job that names no place finds the store's). The cluster
    is not asked.
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


# As JSON.


def facts_to_dict(facts: ClusterFacts) -> dict[str, Any]:
    """The facts as JSON keeps them: the same facts give the same text."""
    kinds = None if facts.kinds is None else sorted(facts.kinds)
    lists: dict[str, Any] = {"kinds": kinds, "silent": sorted(facts.silent), "secrets": list(facts.secrets)}
    lists["topology_levels"] = sorted(facts.topology_levels)
    for name in ("priorities", "queue_priorities"):
        known = getattr(facts, name)
        lists[name] = None if known is None else sorted(known)
    for name in ("lacking", "kai_topologies"):
        lists[name] = {group: list(names) for group, names in sorted(getattr(facts, name).items())}
    return {"version": VERSION, **asdict(facts), **lists}


def facts_from_dict(data: Any, base: ClusterFacts = ASSUMED) -> ClusterFacts:
    """The inverse of `facts_to_dict`, of a JSON value that may hold anything; what it leaves out is that of
    ``base``. Raises BadInput with all problems.
    """
    if not isinstance(data, Mapping):
        raise BadInput(
            "facts of a cluster are a mapping of fields, as `allaboard cluster --facts` prints them"
        )
    known = [f.name for f in fields(ClusterFacts)]
    problems = [
        Problem(show(name, quote=False), f"no such fact; known: {one_of(known)}", nearest(name, known))
        for name in data
        if name not in known and name != "version"
    ]
    if data.get("version", VERSION) != VERSION:
        message = (
            f"this allaboard reads version {VERSION}; write the facts again (`allaboard cluster --facts`)"
        )
        problems.append(Problem("version", message))
    given = {name: data[name] for name in known if name in data}
    problems += [p for name, value in given.items() for p in _wrong(name, value)]
    if problems:
        raise BadInput("these facts of a cluster cannot be read:", problems)
    shaped: dict[str, Any] = {"kinds": _names, "silent": frozenset, "secrets": tuple}
    shaped |= {"topology_levels": frozenset, "priorities": _names, "queue_priorities": _names}
    shaped |= {"lacking": _tuples, "kai_topologies": _tuples}
    return replace(base, **{n: shaped[n](v) if n in shaped else v for n, v in given.items()})


def _tuples(value: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(texts) for name, texts in value.items()}


def _names(value: Any) -> frozenset[str] | None:
    return None if value is None else frozenset(value)


def _wrong(name: str, value: Any) -> Iterator[Problem]:
    """Problems of a fact's value."""
    is_right, allowed = _SHAPES.get(name, (_is_text_or_nothing, "text or null"))
    if not is_right(value):
        yield Problem(name, f"expected {allowed}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_text_or_nothing(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_texts_or_nothing(value: Any) -> bool:
    return value is None or _is_texts(value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, value.values()))


def _is_mapping_of_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_texts, value.values()))


_SHAPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "kinds": (_is_texts_or_nothing, "a list of group/version/Kind, or null"),
    "operator_gangs": (_is_mapping, "operator: gang scheduler, or off"),
    "silent": (_is_texts, "a list of operators"),
    "topology_levels": (_is_texts, "a list of node labels"),
    "kai_topologies": (_is_mapping_of_texts, "topology: a list of node labels"),
    "priorities": (_is_texts_or_nothing, "a list of names, or null"),
    "queue_priorities": (_is_texts_or_nothing, "a list of names, or null"),
    "schedulers": (_is_mapping, "gang scheduler: schedulerName"),
    "lacking": (_is_mapping_of_texts, "engine: a list of fields"),
    "namespace": (_is_text, "text"),
    "gpu_label": (_is_text, "text"),
    "secrets": (_is_texts, "a list of names"),
}
"""Of the facts that are more than one word or nothing."""

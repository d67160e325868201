"""Pod specs as values: the parts by which a pod depends on its cluster. Fields that are missing or of the
wrong kind are left out. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from allaboard.backends.kubernetes.client.values import Json, at, dicts, mapping, scalars, text, texts
from allaboard.gangs.requests import requested


@dataclass(frozen=True, slots=True)
class Toleration:
    """Fields of a toleration; an empty one matches every taint in its field."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """An expression of a node selector: ``key`` ``operator`` ``values``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a required node affinity: rules about labels, and about fields of the node."""

    labels: tuple[Rule, ...] = ()
    fields: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """``requests``, ``limits``: resource -> amount, as `requested` counts them."""

    name: str
    requests: Mapping[str, Decimal]
    limits: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class PodSpec:
    """``requests``, ``limits``: of the whole pod; ``containers``: without init containers; ``terms``: of the
    node affinity that is required, empty: none is; ``claims``: (PersistentVolumeClaim, True if it is mounted
    to write) of each volume; ``ephemeral``: (volume, template of its claim); ``secrets``, ``config_maps``:
    those without which the pod does not start; ``claim_template``: of its devices.
    """

    requests: Mapping[str, Decimal] = field(default_factory=dict)
    limits: Mapping[str, Decimal] = field(default_factory=dict)
    containers: tuple[ContainerSpec, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    terms: tuple[Term, ...] = ()
    has_affinity: bool = False
    claims: tuple[tuple[str, bool], ...] = ()
    ephemeral: tuple[tuple[str, Json], ...] = ()
    secrets: frozenset[str] = frozenset()
    config_maps: frozenset[str] = frozenset()
    account: str = "default"
    priority_class: str = ""
    claim_template: str = ""


def pod_spec(spec: Json) -> PodSpec:
    """Read the spec of a pod or of a pod template. Raises ValueError for an amount that is no quantity."""
    required = at(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    pull_secrets = (text(secret.get("name")) for secret in dicts(spec.get("imagePullSecrets")))
    templates = (text(claim.get("resourceClaimTemplateName")) for claim in dicts(spec.get("resourceClaims")))
    return PodSpec(
        requests=requested(spec),
        limits=requested(spec, "limits"),
        containers=tuple(map(_container, dicts(spec.get("containers")))),
        node_selector=texts(spec.get("nodeSelector")),
        tolerations=tolerations(spec.get("tolerations")),
        terms=tuple(
            Term(_rules(term.get("matchExpressions")), _rules(term.get("matchFields")))
            for term in dicts(at(required, "nodeSelectorTerms"))
        ),
        has_affinity=bool(spec.get("affinity")),
        claims=tuple(_claims(spec)),
        ephemeral=tuple(
            (text(volume.get("name")), mapping(at(volume, "ephemeral", "volumeClaimTemplate")))
            for volume in dicts(spec.get("volumes"))
            if "ephemeral" in volume
        ),
        secrets=frozenset(
            [
                *_sources(spec, "secret", "secretName", "secretRef", "secretKeyRef"),
                *filter(None, pull_secrets),
            ]
        ),
        config_maps=frozenset(_sources(spec, "configMap", "name", "configMapRef", "configMapKeyRef")),
        account=text(spec.get("serviceAccountName")) or "default",
        priority_class=text(spec.get("priorityClassName")),
        claim_template=next(filter(None, templates), ""),
    )


def tolerations(value: object) -> tuple[Toleration, ...]:
    """Read the tolerations of a pod, or of a ResourceFlavor."""
    parts = ("key", "operator", "value", "effect")
    return tuple(Toleration(*(text(item.get(part)) for part in parts)) for item in dicts(value))


def _container(container: Json) -> ContainerSpec:
    alone = {"containers": [container]}
    return ContainerSpec(text(container.get("name")), requested(alone), requested(alone, "limits"))


def _rules(value: object) -> tuple[Rule, ...]:
    return tuple(
        Rule(text(rule.get("key")), text(rule.get("operator")), scalars(rule.get("values")))
        for rule in dicts(value)
    )


def _claims(spec: Json) -> Iterator[tuple[str, bool]]:
    mounts = [mount for c in dicts(spec.get("containers")) for mount in dicts(c.get("volumeMounts"))]
    for volume in dicts(spec.get("volumes")):
        claim = mapping(volume.get("persistentVolumeClaim"))
        if name := text(claim.get("claimName")):
            own = [mount for mount in mounts if mount.get("name") == volume.get("name")]
            only_read = claim.get("readOnly") or (own and all(mount.get("readOnly") for mount in own))
            yield name, not only_read


def _sources(spec: Json, kind: str, name: str, whole: str, key: str) -> Iterator[str]:
    """The objects of a kind that volumes and variables need. ``name``: the field of a volume that names one;
    ``whole``: the source of all variables of a container; ``key``: that of one variable.
    """
    for volume in dicts(spec.get("volumes")):
        yield from _needed(volume.get(kind), name)
        for source in dicts(at(volume, "projected", "sources")):
            yield from _needed(source.get(kind))
    for container in (*dicts(spec.get("initContainers")), *dicts(spec.get("containers"))):
        for source in dicts(container.get("envFrom")):
            yield from _needed(source.get(whole))
        for variable in dicts(container.get("env")):
            yield from _needed(at(variable, "valueFrom", key))


def _needed(source: object, name: str = "name") -> Iterator[str]:
    """The name in a source, unless the object may be missing."""
    fields = mapping(source)
    if (needed := text(fields.get(name))) and not fields.get("optional"):
        yield needed


def plain_variables(spec: Json) -> dict[str, str]:
    """The variables of a pod's containers whose values stand in its spec."""
    variables = (item for container in dicts(spec.get("containers")) for item in dicts(container.get("env")))
    plain = (item for item in variables if isinstance(item.get("value"), str))
    return {text(item.get("name")): text(item.get("value")) for item in plain}

"""Quotas, LimitRanges, claims and storage classes as values: what the checks compare a job with. Whatever is
missing or of the wrong kind is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from allaboard.backends.kubernetes.client.values import dicts, mapping, text, texts
from allaboard.gangs.requests import amount

Json = Mapping[str, Any]
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True, slots=True)
class Quota:
    """``hard``, ``used``: resource -> how much; ``scopes``: the pods that it counts, empty: all; ``selects``:
    it counts those of some priority classes alone.
    """

    name: str
    hard: Mapping[str, Decimal]
    used: Mapping[str, Decimal]
    scopes: frozenset[str] = frozenset()
    selects: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """An item of a LimitRange. ``type``: Container, Pod or PersistentVolumeClaim; amounts as it writes
    them.
    """

    range: str
    type: str
    max: Mapping[str, str]
    min: Mapping[str, str]
    ratio: Mapping[str, str]
    default: Mapping[str, str]
    default_request: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """``deleted``: when somebody deleted it; ``storage_class``: None: it names none; ``volume``: the one that
    it names itself.
    """

    name: str
    phase: str = ""
    modes: tuple[str, ...] = ()
    deleted: str = ""
    storage_class: str | None = None
    volume: str = ""


@dataclass(frozen=True, slots=True)
class StorageClass:
    name: str
    provisioner: str
    waits: bool
    is_default: bool


def quotas(objects: Iterable[Json]) -> list[Quota]:
    return [_quota(body) for body in objects]


def _quota(body: Json) -> Quota:
    spec, status = mapping(body.get("spec")), mapping(body.get("status"))
    hard = texts(status.get("hard")) or texts(spec.get("hard"))
    scopes = spec.get("scopes")
    return Quota(
        _name(body),
        {name: amount(value) for name, value in hard.items()},
        {name: amount(value) for name, value in texts(status.get("used")).items()},
        frozenset(map(str, scopes)) if isinstance(scopes, list) else frozenset(),
        bool(spec.get("scopeSelector")),
    )


def limits(objects: Iterable[Json]) -> Iterator[Limit]:
    """All items of these LimitRanges."""
    for body in objects:
        for item in dicts(mapping(body.get("spec")).get("limits")):
            parts = ("max", "min", "maxLimitRequestRatio", "default", "defaultRequest")
            yield Limit(_name(body), text(item.get("type")), *(texts(item.get(part)) for part in parts))


def claim(body: Json) -> Claim:
    """A claim, or the template of one."""
    metadata, spec, status = map(mapping, (body.get("metadata"), body.get("spec"), body.get("status")))
    modes = status.get("accessModes") or spec.get("accessModes")
    named = spec.get("storageClassName")
    return Claim(
        text(metadata.get("name")),
        text(status.get("phase")),
        tuple(map(str, modes)) if isinstance(modes, list | tuple) else (),
        text(metadata.get("deletionTimestamp")),
        None if named is None else text(named),
        text(spec.get("volumeName")),
    )


def storage_classes(objects: Iterable[Json]) -> dict[str, StorageClass]:
    """Name -> class."""
    classes = (_storage_class(body) for body in objects)
    return {storage_class.name: storage_class for storage_class in classes}


def _storage_class(body: Json) -> StorageClass:
    annotations = texts(mapping(body.get("metadata")).get("annotations"))
    return StorageClass(
        _name(body),
        text(body.get("provisioner")),
        body.get("volumeBindingMode") == "WaitForFirstConsumer",
        annotations.get(_DEFAULT) == "true",
    )


def _name(body: Json) -> str:
    return text(mapping(body.get("metadata")).get("name"))

"""Which image members run under one name. Values in, values out.

A tag may mean other bytes on another node or another day, so that members of one gang run different code.
Kubelets tell the digest that they run (containerStatuses.imageID).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

DIFFER = "images_differ"
"""The flag of a run whose members run different images under one name."""


def differ(pods: Iterable[Mapping[str, Any]], container: str) -> bool:
    """Whether one name of the image of the container that trains means several digests. An ``imageID``
    without the digest of a registry is of the runtime's own, and says nothing beside another node's.
    """
    digests: dict[str, set[str]] = {}
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        named = {c.get("name"): c.get("image") for c in spec.get("containers") or ()}
        for one in status.get("containerStatuses") or ():
            _, at, digest = str(one.get("imageID") or "").rpartition("@sha256:")
            if one.get("name") == container and at:
                digests.setdefault(str(named.get(container)), set()).add(digest)
    return any(len(several) > 1 for several in digests.values())

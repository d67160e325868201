"""Which image members run under one name. Values in, values out.

A tag may mean other bytes on another node or another day, so that members of one gang run different code.
Kubelets tell the digest that they run (containerStatuses.imageID).
"""

from __future__ import annotations

from collections.abc import Iterable

from allaboard.runs.observation import PodSeen

DIFFER = "images_differ"
"""The flag of a run whose members run different images under one name."""


def differ(pods: Iterable[PodSeen], container: str) -> bool:
    """Whether one name of the image of the container that trains means several digests. An ``imageID``
    without the digest of a registry is of the runtime's own, and says nothing beside another node's.
    """
    digests: dict[str, set[str]] = {}
    for pod in pods:
        for one in pod.containers:
            _, at, digest = one.image_id.rpartition("@sha256:")
            if one.name == container and one.role != "init" and at:
                digests.setdefault(one.image, set()).add(digest)
    return any(len(several) > 1 for several in digests.values())

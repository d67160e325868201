"""Images that members run under one name. Values in, values out.

A tag may mean other bytes on another node or another day, so that members of one gang run different code.
Kubelets write the digest that they run (containerStatuses.imageID).
"""

from __future__ import annotations

from collections.abc import Iterable

from allaboard.runs.observation import PodSeen

DIFFER = "images_differ"
"""The flag of a run whose members run different images under one name."""


def differ(pods: Iterable[PodSeen], container: str) -> bool:
    """True when one image name of the container that trains has several digests. An ``imageID`` without the
    digest of a registry is the runtime's own, and cannot be compared with that of another node.
    """
    digests: dict[str, set[str]] = {}
    for pod in pods:
        for status in pod.containers:
            _, at, digest = status.image_id.rpartition("@sha256:")
            if status.name == container and status.role != "init" and at:
                digests.setdefault(status.image, set()).add(digest)
    return any(len(several) > 1 for several in digests.values())

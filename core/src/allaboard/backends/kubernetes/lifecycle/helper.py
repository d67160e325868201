"""The files of the helper that comes with the pods of a run (`allaboard.inside.helper`).

They are plain files in a ConfigMap of the attempt, not an init container: that would need an image, which
somebody has to put into each registry, and a second or more of each start; a mount is there with the pod, and
people read in it what runs in their containers.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

_PLACES = {
    "start.sh": "inside/helper/start.sh",
    "start.py": "inside/helper/start.py",
    "endpoint.py": "inside/helper/endpoint.py",
    "python/sitecustomize.py": "inside/startup/sitecustomize.py",
}
"""Path in the mount -> path in the package."""
_LISTENER = {"stacks.py": "backends/kubernetes/stacks/script.py"}


@cache
def helper_files(hang_ask: str) -> dict[str, bytes]:
    """Path -> content. ``hang_ask``: how members are asked for their stacks; by exec what asks comes then."""
    places = {**_PLACES, **(_LISTENER if hang_ask == "file" else {})}
    package = resources.files("allaboard")
    return {path: package.joinpath(place).read_bytes() for path, place in places.items()}

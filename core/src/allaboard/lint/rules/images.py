"""Rules about images."""

from __future__ import annotations

from collections.abc import Iterator

from allaboard.lint.rule import Hit, rule
from allaboard.lint.view import View
from allaboard.text.untrusted import show


def _moves(image: str) -> bool:
    """True if the name may mean other bytes tomorrow: it has no digest, and no tag but ``latest``."""
    if "@" in image:
        return False
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return not colon or tag == "latest"


@rule(
    "image_unpinned",
    "warning",
    "the image is not pinned",
    "A moving tag lets members that start on different days or nodes run different code: collectives hang "
    "when their NCCL differs, and nobody can repeat the run.",
    "give a tag of its own or a digest (train:v3, train@sha256:...)",
)
def image_unpinned(view: View) -> Iterator[Hit]:
    """Kubernetes, container images: the tag ``latest`` is assumed where there is none. A moving tag under
    IfNotPresent is the usual reason of ranks that differ.
    """
    for group, container in view.containers:
        image = container.fields.get("image")
        if isinstance(image, str) and image and _moves(image):
            yield Hit(view.container(group, container, "image"), show(image))


@rule(
    "image_kept_stale",
    "warning",
    "a moving tag is pulled only where it is absent",
    "Nodes keep whatever the tag meant when they pulled it, so that members of one job run different images.",
    "say Always, or pin the image",
)
def image_kept_stale(view: View) -> Iterator[Hit]:
    """Kubernetes, imagePullPolicy: the default of ``latest`` is Always; a stated IfNotPresent or Never takes
    what the node has.
    """
    for group, container in view.containers:
        image, policy = container.fields.get("image"), container.fields.get("imagePullPolicy")
        if isinstance(image, str) and image and _moves(image) and policy in ("IfNotPresent", "Never"):
            yield Hit(view.container(group, container, "imagePullPolicy"), str(policy))


@rule(
    "image_pulled_always",
    "advice",
    "an image with a digest is asked for at every start",
    "The digest cannot mean other bytes. Each restart of each member asks the registry all the same, which "
    "limits requests and may be away.",
    "say IfNotPresent",
)
def image_pulled_always(view: View) -> Iterator[Hit]:
    """Kubernetes, imagePullPolicy: Always resolves the digest at the registry at every start of a container;
    registries answer 429 to a large gang.
    """
    for group, container in view.containers:
        image = container.fields.get("image")
        if isinstance(image, str) and "@" in image and container.fields.get("imagePullPolicy") == "Always":
            yield Hit(view.container(group, container, "imagePullPolicy"), "Always")

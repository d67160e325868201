"""Getting a container's image onto its node: the states, the words and the back-off of a kubelet."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from tests.cluster.kubelet.images import Image, PullFailed, is_valid
from tests.cluster.kubelet.status import waiting

if TYPE_CHECKING:
    from tests.cluster.kubelet.pod import Pod

Object = dict[str, Any]


async def pulled(pod: Pod, spec: Object) -> Image:
    """The image of this container, once it is there; for ever where it never is."""
    registry, settings = pod.kubelet.images, pod.kubelet.settings
    name, policy = spec["image"], spec.get("imagePullPolicy", "IfNotPresent")
    failures = 0
    while True:
        if not is_valid(name):
            trouble = f'couldn\'t parse image name "{name}": invalid reference format'
            text = f'Failed to apply default image tag "{name}": {trouble}'
            _refused(pod, spec, "InspectFailed", "InvalidImageName", text)
            await asyncio.sleep(settings.pull.longest)
            continue
        present = registry.known(name) if registry.is_present(pod.node.name, name) else None
        if policy != "Always" and present is not None:
            text = f'Container image "{name}" already present on machine and can be accessed by the pod'
            pod.event("Normal", "Pulled", text, spec)
            return present
        if policy == "Never":
            text = f'Container image "{name}" is not present with pull policy of Never'
            _refused(pod, spec, "ErrImageNeverPull", "ErrImageNeverPull", text)
            await asyncio.sleep(settings.pull.longest)
            continue
        pod.event("Normal", "Pulling", f'Pulling image "{name}"', spec)
        began = time.monotonic()
        try:
            image = await registry.pull(pod.node.name, name)
        except PullFailed as error:
            failures += 1
            await _back_off(pod, spec, str(error), settings.pull.wait(failures))
        else:
            took = duration(time.monotonic() - began)
            text = f'Successfully pulled image "{name}" in {took} ({took} including waiting).'
            pod.event("Normal", "Pulled", f"{text} Image size: 1 bytes.", spec)
            return image


def _refused(pod: Pod, spec: Object, reason: str, state: str, text: str) -> None:
    """No pull is tried."""
    pod.event("Warning", reason, text, spec)
    pod.event("Warning", "Failed", f"Error: {state}", spec)
    pod.set(spec["name"], state=waiting(state, text))


async def _back_off(pod: Pod, spec: Object, trouble: str, wait: float) -> None:
    """The pull has failed: ErrImagePull, then ImagePullBackOff, both of which a reader has time to see."""
    name = spec["image"]
    pod.event("Warning", "Failed", f'Failed to pull image "{name}": {trouble}', spec)
    pod.event("Warning", "Failed", "Error: ErrImagePull", spec)
    pod.set(spec["name"], state=waiting("ErrImagePull", trouble))
    await asyncio.sleep(wait / 2)
    pod.event("Normal", "BackOff", f'Back-off pulling image "{name}"', spec)
    pod.event("Warning", "Failed", "Error: ImagePullBackOff", spec)
    text = f'Back-off pulling image "{name}": ErrImagePull: {trouble}'
    pod.set(spec["name"], state=waiting("ImagePullBackOff", text))
    await asyncio.sleep(wait / 2)


def duration(seconds: float) -> str:
    """As Go prints one."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"

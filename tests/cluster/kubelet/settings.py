"""How long this kubelet waits for what: the real one's times divided, so that a test need not sit them
out.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds of the first wait and of the longest; each is twice the one before."""

    first: float
    longest: float

    def wait(self, failures: int) -> float:
        """After so many failures in a row, 1 or more."""
        return float(min(self.longest, self.first * 2 ** min(failures - 1, 30)))


@dataclass(frozen=True, slots=True)
class Settings:
    """Seconds. In brackets what a real kubelet takes."""

    crash: Backoff = field(default=Backoff(0.2, 2.0))
    """Between two runs of a container that ends again and again (10 to 300)."""
    again: float = 0.3
    """Before the first restart, which waits for nothing but its container to be made (1)."""
    unmount: float = 0.3
    """Between the last status of a pod that is deleted and the end of its object (0.3 to 1.5)."""
    pull: Backoff = field(default=Backoff(0.2, 2.0))
    """Between two tries to pull an image (10 to 300)."""
    mount: Backoff = field(default=Backoff(0.2, 2.0))
    """Between two tries to set up volumes (0.5 to 122)."""
    config: float = 0.5
    """Between two tries to make a container whose ConfigMap or Secret is missing (10)."""
    lease: float = 1.0
    """Between two renewals of a node's lease (10)."""
    status: float = 2.0
    """Between two looks whether the node's status is still told as it is (10)."""
    refresh: float = 2.0
    """Between two looks at the sources of written volumes (60)."""
    forgiven: float = 20.0
    """A container that ran so long starts with the first wait again (600)."""


REAL = Settings(
    crash=Backoff(10, 300),
    again=1,
    unmount=1,
    pull=Backoff(10, 300),
    mount=Backoff(0.5, 122),
    config=10,
    lease=10,
    status=10,
    refresh=60,
    forgiven=600,
)

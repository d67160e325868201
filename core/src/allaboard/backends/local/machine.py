"""Facts about this machine. Reads files and the environment, starts nothing but ``nvidia-smi -L``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the pool may hand out: ``cpu`` in cores, ``memory`` in bytes, ``gpus`` as CUDA_VISIBLE_DEVICES takes them."""

    cpu: float
    memory: int
    gpus: tuple[str, ...] = ()


def machine_id(root: str = "/") -> str:
    raise NotImplementedError


def boot_id(root: str = "/") -> str:
    raise NotImplementedError


def pid_namespace(root: str = "/") -> str:
    raise NotImplementedError


def cpus(root: str = "/") -> float:
    raise NotImplementedError


def memory(root: str = "/") -> int:
    raise NotImplementedError


def gpus(environ: Mapping[str, str] | None = None, root: str = "/") -> tuple[str, ...]:
    raise NotImplementedError


def capacity(environ: Mapping[str, str] | None = None, with_gpus: bool = True) -> Capacity:
    raise NotImplementedError


def fingerprint(folder: str) -> dict[str, str | int]:
    """{"boot", "pid_namespace", "device", "inode"}: equal exactly when ``folder`` and its processes are seen from here."""
    raise NotImplementedError

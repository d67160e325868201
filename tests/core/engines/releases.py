"""What the releases of Kubeflow Trainer before 2.3 lack: tests/cluster/test_older_trainers.py asks an API
server with their definitions, and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

LACKING: Mapping[str, tuple[str, ...]] = {
    "2.0.1": ("activeDeadlineSeconds", "jax", "podTemplateOverrides", "runtimePatches", "xgboost"),
    "2.1.0": ("activeDeadlineSeconds", "jax", "runtimePatches", "xgboost"),
    "2.2.0": ("podTemplateOverrides", "terminationGracePeriodSeconds"),
}


def definitions_of(release: str) -> Path:
    """The file with its CustomResourceDefinitions."""
    return Path(__file__).with_name(f"trainer-{release}.yaml")

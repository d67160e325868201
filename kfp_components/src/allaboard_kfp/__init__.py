"""allaboard for Kubeflow Pipelines: components over the allaboard core, and a pipeline that chains them."""

from __future__ import annotations

__version__ = "0.1.0"

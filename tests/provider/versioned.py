"""Names of Airflow that tests need, whichever version is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from allaboard_provider import compat


def _first(name: str, *modules: str) -> Any:
    """The name in the first of these modules that is there."""
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"no {name} in {', '.join(modules)}")


_SERDE = ("airflow.sdk.serde", "airflow.serialization.serde")
_EXCEPTIONS = ("airflow.sdk.exceptions", "airflow.exceptions")
deserialize, serialize = _first("deserialize", *_SERDE), _first("serialize", *_SERDE)
AirflowRescheduleException = _first("AirflowRescheduleException", *_EXCEPTIONS)
TaskDeferralError = _first("TaskDeferralError", *_EXCEPTIONS)
TaskDeferralTimeout = _first("TaskDeferralTimeout", *_EXCEPTIONS)

needs_task_state = pytest.mark.skipif(
    not compat.keeps_task_state(), reason="tasks of this Airflow have no state store"
)
needs_retry_policies = pytest.mark.skipif(
    not compat.has_retry_policies(), reason="this Airflow has no retry policies"
)

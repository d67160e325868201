"""The JSON Schema of a job, derived from the same vocabulary that `check` reads."""

from __future__ import annotations

from typing import Any

from allaboard.job.fields import hints, json_type
from allaboard.job.vocabulary import Fields


def job_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `TrainingJob`. What spans several fields is checked by `allaboard check`
    alone.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "allaboard TrainingJob",
        **_describe(Fields),
        "required": ["name"],
        "anyOf": [{"required": [name]} for name in ("command", "args", "groups")],
    }


def _describe(kind: type) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: json_type(hint, _describe) for name, hint in hints(kind).items()},
    }

"""Variables of experiment trackers, which make a run of a tracker wherever they are: of a gang the first
member alone has them, so that a training is one run there. Values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from allaboard.text.redaction import hidden_value, redact_url

_TRACKER = re.compile(r"(?:MLFLOW|WANDB|COMET|CLEARML|NEPTUNE|SWANLAB)_(?P<rest>[A-Z0-9_]+)")
_OF_ALL = re.compile(
    r"(?:.*_)?(?:MODE|DISABLED?|OFFLINE|SILENT|QUIET|DIR|FOLDER|LEVEL|TIMEOUT\w*|RETRIES|TLS|SSL\w*|CERT\w*"
    r"|CA_\w+|VERIFY\w*|PROXY|ENDPOINT_URL|REGISTRY_URI)"
)
"""Rests of names that begin no run: switches, folders, how a server is reached, where models are fetched."""
_WANDB, _SWITCH = "WANDB_", ("WANDB_MODE", "disabled")
"""Weights & Biases asks for a key, and fails without one, unless its runs are switched off."""
_AUTH = "MLFLOW_TRACKING_AUTH"
"""Name of the plugin that authenticates, like ``kubernetes``; it is no secret."""


def begins_a_run(name: str) -> bool:
    """True for a variable that says where, as whom or as what a tracker makes a run."""
    match = _TRACKER.fullmatch(name)
    return match is not None and _OF_ALL.fullmatch(match["rest"]) is None


def for_others(
    variables: Mapping[str, str], own: Mapping[str, str], texts: Iterable[str] = ()
) -> dict[str, str]:
    """The variables for members that are not the first. ``own``: those that the job gives them apart from
    others, which may begin a run of their own; ``texts``: words of commands and values, which keep the
    variables that they name, ``$(WANDB_PROJECT)``.
    """
    named = "\0".join(texts)
    kept = {n: v for n, v in variables.items() if not begins_a_run(n) or f"$({n})" in named}
    is_theirs = any(name.startswith(_WANDB) and begins_a_run(name) for name in own)
    if not is_theirs and any(name.startswith(_WANDB) for name in variables):
        kept[_SWITCH[0]] = _SWITCH[1]
    return kept


def is_secret(name: str, value: str) -> bool:
    """True for a variable of a tracker whose value nobody may see: a key, or a URI with a password."""
    is_own = _TRACKER.fullmatch(name) is not None and "$(" not in value and name != _AUTH
    return is_own and (hidden_value(name, value) or redact_url(value) != value)

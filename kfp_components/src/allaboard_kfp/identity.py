"""Who a step is: the pipeline run and the task in it (contract, section 1). The same for every try of the
step.

A step is told neither in so many words. What it is told, and told alike in every try, is where its outputs
go:

    s3://bucket/v2/artifacts/retrain-digits/<run's uuid>/train/<task's uuid>/report            a cluster
    /home/ann/out/retrain-digits-2026-11-21-13-04-37-123456/for-loop-2-iteration-0/train/report    kfp.local

A parameter that held the run's id would be part of the cache key, and switch caching off for ever; this
does not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from allaboard.errors import BadInput
from allaboard.identity import kfp_key
from allaboard_kfp.given import on_cluster

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LOCAL = re.compile(r".+-\d{4}(-\d\d){5}-\d{6}")


def key_of(output: str) -> str:
    """The key of the step that was given this place for an output."""
    folder = output.rstrip("/").rpartition("/")[0]
    parts = folder.split("/")
    for n, part in enumerate(parts):
        if _UUID.fullmatch(part):
            return kfp_key(part, "/".join(parts[n + 1 :]))
        if _LOCAL.fullmatch(part):  # with the folder before it: another pipeline root is another run
            return kfp_key("/".join(parts[: n + 1]), "/".join(parts[n + 1 :]))
    return kfp_key("", folder)


def check_place(output: str, environ: Mapping[str, str], interpreter: str = sys.executable) -> None:
    """Refuse a pipeline root that kfp.local has garbled: its outputs would be written where nobody looks
    for them.
    """
    if not on_cluster(environ) and interpreter and output.find(interpreter) > 0:
        root = output.replace(interpreter, "python3")
        raise BadInput(
            f"the pipeline root has 'python3' in its path ({root}), which kfp.local takes for its own; "
            "give kfp.local.init a pipeline_root without it"
        )

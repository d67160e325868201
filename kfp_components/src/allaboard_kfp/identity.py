"""The identity of a step: the pipeline run and the task in it (core/docs/contract.md, Key), the same for
every try of the step.

kfp gives a step neither. But it gives the step, in every try alike, the places of its outputs:

    s3://bucket/v2/artifacts/retrain-digits/<run's uuid>/train/<task's uuid>/report            a cluster
    /home/ann/out/retrain-digits-2026-11-21-13-04-37-123456/for-loop-2-iteration-0/train/report    kfp.local

A parameter with the run's id would be part of the cache key, and switch caching off for ever; this does not.

The downward API can give a pod its identity (`identified`). Then "Retry" of a whole pipeline run, for which
Kubeflow makes new places, finds the runs of its steps again, too.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from allaboard.backends.base import Backend
from allaboard.errors import BadInput, SiteError
from allaboard.job.identity import kfp_key
from allaboard.running import new_owner
from allaboard.runs.observation import Owner
from allaboard_kfp.inputs import on_cluster

RUN_LABEL, NODE = "pipeline/runid", "workflows.argoproj.io/node-name"
DOWNWARD = {
    "KFP_RUN_ID": f"metadata.labels['{RUN_LABEL}']",
    "ARGO_NODE_NAME": f"metadata.annotations['{NODE}']",
}
"""The variables of a step's pod, and the fields that they come from: the run of the pipeline, and the node of
the workflow, which holds the task, the iteration of a loop, and the number of the try.
"""
_TRY = re.compile(r"\(\d+\)(?=\.|$)")
"""The number of a try in the name of a node. By Kubeflow's manifests every level has one, as Argo begins
anew with the level above where a step is out of tries: ``retrain-x7k(0).root(0).train(1).executor(0)``.
An iteration of a loop has a colon: ``(1:1)``.
"""
FOLLOWER = "kfp:"
"""Begins the names of owners that are pods of steps."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LOCAL = re.compile(r".+-\d{4}(-\d\d){5}-\d{6}")


def identified(task: Any) -> Any:
    """Give the pod of this task its identity, and return the task. Raises SiteError where
    ``kfp-kubernetes`` is not installed.
    """
    try:
        from kfp import kubernetes
    except ImportError as error:
        raise SiteError(
            "identified() needs kfp-kubernetes, which is not installed for this Python; "
            "run: pip install 'kfp-allaboard[kubernetes]'"
        ) from error
    for name, path in DOWNWARD.items():
        kubernetes.use_field_path_as_env(task, env_name=name, field_path=path)
    return task


def key_of(output: str, environ: Mapping[str, str] = os.environ) -> str:
    """The key of the step with an output at this place."""
    run, node = (environ.get(name, "") for name in DOWNWARD)
    if on_cluster(environ) and run and node:
        return kfp_key(run, _TRY.sub("", node))
    folder = output.rstrip("/").rpartition("/")[0]
    parts = folder.split("/")
    for n, part in enumerate(parts):
        if _UUID.fullmatch(part):
            return kfp_key(part, "/".join(parts[n + 1 :]))
        if _LOCAL.fullmatch(part):  # with the folder before it: another pipeline root is another run
            return kfp_key("/".join(parts[: n + 1]), "/".join(parts[n + 1 :]))
    return kfp_key("", folder)


def step_of(key: str) -> tuple[str, str]:
    """The pipeline run and the step that a key names; two empty texts for a key of others."""
    with suppress(ValueError, RecursionError):
        match json.loads(key):
            case ["kfp", str(run), str(task)]:
                return run, task
    return "", ""


def same_node(node: str, task: str) -> bool:
    """Return whether a node of a workflow is a try of the step that a key calls ``task``."""
    return bool(node) and _TRY.sub("", node) == task


def owner_of(backend: Backend, environ: Mapping[str, str] = os.environ) -> Owner:
    """The owner of the step's run. On a cluster the run outlives a pod that is taken away: the next pod
    adopts it, and the Lease of the last one shows that nobody follows it.
    """
    if backend.name == "local":
        return new_owner()
    pod = environ.get("KFP_POD_UID") or environ.get("KFP_POD_NAME")
    return Owner(f"{FOLLOWER}{pod}" if pod else new_owner().id, "worker", "orchestrated")


def check_place(output: str, environ: Mapping[str, str], interpreter: str = sys.executable) -> None:
    """Raises BadInput for a pipeline root that kfp.local has garbled: its outputs would be written
    elsewhere.
    """
    if not on_cluster(environ) and interpreter and output.find(interpreter) > 0:
        root = output.replace(interpreter, "python3")
        raise BadInput(
            f"the pipeline root has 'python3' in its path ({root}), which kfp.local takes for its own; "
            "give kfp.local.init a pipeline_root without it"
        )

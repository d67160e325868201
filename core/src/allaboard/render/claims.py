"""The PersistentVolumeClaims that are made for a job, and the volumes that come from them. Values in, values
out.

A claim of ``keep: run`` is called after the run and shared by its attempts; one of ``keep: always`` is called
after the job and shared by all its runs. Who makes and drops them: `allaboard.backends.kubernetes.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from allaboard.render import labels
from allaboard.text import units

if TYPE_CHECKING:
    from allaboard.job.training_job import TrainingJob
    from allaboard.runs.layout import Layout

MODES = {"many": "ReadWriteMany", "once": "ReadWriteOnce", "once_pod": "ReadWriteOncePod"}


def name_of(claim: Mapping[str, Any], mount: str, layout: Layout) -> str:
    """Name of a volume's claim."""
    return labels.claim_name(layout.job if _is_kept(claim) else layout.run, mount)


def claims_of(job: TrainingJob, layout: Layout, namespace: str) -> tuple[dict[str, Any], ...]:
    """The claims that have to be there before the job."""
    return tuple(
        _manifest(volume["claim"], volume["mount"], layout, namespace)
        for volume in job.get("storage", ())
        if "claim" in volume
    )


def _manifest(claim: Mapping[str, Any], mount: str, layout: Layout, namespace: str) -> dict[str, Any]:
    kept = _is_kept(claim)
    several = layout.total > 1 or layout.elastic is not None
    marks = {
        labels.MANAGED_BY: "allaboard",
        **({} if kept else {labels.RUN: layout.run}),
        labels.JOB: layout.job,
        labels.KEEP: "always" if kept else "run",
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name_of(claim, mount, layout), "namespace": namespace, "labels": marks},
        "spec": _spec(claim, MODES[claim.get("access", "many" if several else "once")]),
    }


def ephemeral(volume: Mapping[str, Any]) -> dict[str, Any]:
    """The source of a volume that is made with each pod and goes with it: nobody shares it."""
    return {"ephemeral": {"volumeClaimTemplate": {"spec": _spec(volume, MODES["once"])}}}


def _spec(claim: Mapping[str, Any], mode: str) -> dict[str, Any]:
    named = {"storageClassName": claim["storage_class"]} if "storage_class" in claim else {}
    size = units.quantity(units.size(claim["size"]))
    return {"accessModes": [mode], **named, "resources": {"requests": {"storage": size}}}


def _is_kept(claim: Mapping[str, Any]) -> bool:
    return claim.get("keep") == "always"

"""The party at fault for each cause: it decides whether another try is worth its GPUs, and who pays for it.

A table of codes. A code that is in no row is the place's: its hardware, network, storage or configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from allaboard.diagnosis.finding import Diagnosis

SURE = 0.5
"""Confidence below which a diagnosis decides nothing."""
CERTAIN = 0.8
"""Confidence below which an attempt counts: a bug taken for a lost node would start again and again."""


class Fault(StrEnum):
    INTERRUPTION = "interruption"  # the place took the members away; the job did nothing wrong
    MEMORY = "memory"
    IMAGE = "image"
    JOB = "job"  # only another job ends differently
    CODE = "code"  # the user's code or data
    PLACE = "place"


FAULTS: dict[Fault, frozenset[str]] = {
    Fault.INTERRUPTION: frozenset({
        "preempted_by_priority", "spot_or_node_shutdown", "drained_by_eviction_api", "node_lost",
        "evicted_node_pressure",
    }),
    Fault.MEMORY: frozenset({"oom_killed", "cuda_oom"}),
    Fault.IMAGE: frozenset({
        "image_pull_auth", "image_not_found", "image_pull_rate_limited", "image_pull_network",
    }),
    Fault.JOB: frozenset({
        "wrong_container_name", "runtime_ref_not_found", "job_spec_invalid", "pod_security_denied",
        "openshift_scc_denied", "limitrange_denied", "bad_entrypoint", "exec_format_error",
        "run_as_nonroot_violation", "world_size_mismatch", "mpi_slots_mismatch", "tf_config_error",
        "checkpoint_mismatch", "code_not_fetched", "packages_not_installed",
    }),
    Fault.CODE: frozenset({
        "python_exception", "missing_dependency", "native_crash", "device_side_assert", "nan_loss",
        "collective_mismatch", "duplicate_gpu_mapping", "data_not_found",
    }),
}  # fmt: skip
"""Fault -> its codes."""
_BY_CODE = {code: fault for fault, codes in FAULTS.items() for code in codes}


def fault_of(code: str) -> Fault:
    return _BY_CODE.get(code, Fault.PLACE)


def was_interrupted(diagnoses: Sequence[Diagnosis]) -> bool:
    """True if the first diagnosis is, surely enough, that members were taken away: a preemption, an eviction,
    a drain, a node that is gone.
    """
    first = diagnoses[0] if diagnoses else None
    return first is not None and first.confidence >= CERTAIN and fault_of(first.code) is Fault.INTERRUPTION

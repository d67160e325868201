"""The doctor beside the published rules of others, over the same failures: how often the cause is right, and
how often the member to look at.

- kubeflow/mcp-server: a list of patterns over one log (``_FAILURE_PATTERNS``). It reads the log of rank 0;
  it is also given the log that ends with the cause, which it would not find by itself.
- Prefect: ``diagnose_k8s_pod`` of each pod's status, the first that says something.
- Flyte: of the errors of all workers the one with the earliest time (its RFC 5598). It names a worker, and
  no cause.

Theirs are read from checkouts that these name: ``MCP_SERVER_TREE``, ``PREFECT_TREE``; without them they are
left out. A category of theirs is right where the cause is one of those that it may mean (`MEANS`). The
failures are those of tests/core/diagnosis/cases.jsonl, by which the doctor was made, and apart from them the
snapshots with `expected` in the folder that ``SAMPLES`` names.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import diagnose
from allaboard.text.units import from_rfc3339
from tests.core.diagnosis.cases import CASES
from tests.core.diagnosis.score import TOLD, names_the_same

Json = Mapping[str, Any]
Rule = Callable[[Json], "Said | None"]
MCP = "kubeflow_mcp/trainer/api/monitoring.py"
PREFECT = "src/integrations/prefect-kubernetes/prefect_kubernetes/diagnostics.py"
MEANS: Mapping[str, str] = {
    "OOM": "cuda_oom oom_killed",
    "CUDA_ERROR": "device_side_assert gpu_hardware_error gpu_arch_mismatch cuda_driver_mismatch",
    "MISSING_MODULE": "missing_dependency",
    "IMPORT_ERROR": "missing_dependency cuda_driver_mismatch",
    "FILE_NOT_FOUND": "data_not_found",
    "HF_CACHE_WRITE_ERROR": "filesystem_permission_denied",
    "OPENSHIFT_PIP_ERROR": "filesystem_permission_denied",
    "PERMISSION_ERROR": "filesystem_permission_denied data_access_denied",
    "NETWORK_ERROR": "data_endpoint_unreachable master_unreachable_network network_fabric_error",
    "PYTHON_EXCEPTION": "python_exception",
    "ImagePullError": "image_not_found image_pull_auth image_pull_network image_pull_rate_limited",
    "CrashLoopBackOff": "backoff_limit_exceeded bad_entrypoint python_exception missing_dependency",
    "OOMKilled": "oom_killed",
    "Evicted": "evicted_node_pressure evicted_ephemeral_storage",
    "Unschedulable": "unschedulable_constraints insufficient_gpu gang_unschedulable",
    "Unschedulable.InsufficientResources": "insufficient_gpu unschedulable_constraints gpu_not_advertised",
    "Unschedulable.NodeAffinity": "unschedulable_constraints",
    "Unschedulable.Taint": "unschedulable_constraints insufficient_gpu",
}
"""Category of a rival -> the causes for which it is taken."""


@dataclass(frozen=True)
class Said:
    """``cause``: a code of ours or a category of a rival, None: it names none."""

    cause: str | None
    blame: str | None


@dataclass(frozen=True)
class Failure:
    name: str
    causes: tuple[str, ...]
    blame: str | None
    snapshot: Json


def own_cases() -> Iterator[Failure]:
    for sample in CASES:
        yield Failure(sample.name, (sample.code,), sample.blame or None, sample.snapshot)


def samples() -> Iterator[Failure]:
    if folder := os.environ.get("SAMPLES"):
        for file in sorted(Path(folder).glob("*.json")):
            body = json.loads(file.read_text())
            wanted = body["expected"]
            causes = (wanted["cause"], *wanted.get("also_accept", ()))
            given = {name: value for name, value in body.items() if name not in TOLD}
            yield Failure(file.stem, causes, wanted.get("blame"), given)


def doctor(snapshot: Json) -> Said | None:
    first = diagnose(read_snapshot(snapshot), thorough=True)[0]
    return Said(first.code, first.blame)


def text_of(log: Any) -> str:
    if isinstance(log, Mapping):
        return "\n".join(map(text_of, log.values()))
    return "\n".join(map(str, log)) if isinstance(log, list) else str(log)


def mcp_server(tree: Path, blamed: bool) -> Rule:
    """Its list and its function alone: what they stand in imports its server."""
    wanted = ("_FAILURE_PATTERNS", "_extract_failure_hint")
    module = ast.parse((tree / MCP).read_text())
    module.body = [
        node
        for node in module.body
        if getattr(node, "name", None) in wanted
        or (isinstance(node, ast.AnnAssign) and getattr(node.target, "id", None) in wanted)
    ]
    space: dict[str, Any] = {"re": re}
    exec(compile(module, MCP, "exec"), space)

    def rule(snapshot: Json) -> Said | None:
        logs = {name: text_of(log) for name, log in (snapshot.get("logs") or {}).items()}
        first = diagnose(read_snapshot(snapshot), thorough=True)[0].blame if blamed else None
        chosen = next((name for name in logs if first and name in first), None)
        chosen = chosen or next(
            (name for name in sorted(logs) if re.search(r"(master|node|launcher|-0)", name)), None
        )
        hint = space["_extract_failure_hint"](logs[chosen]) if chosen is not None else None
        return Said(hint["category"], chosen) if hint else None

    return rule


def prefect(tree: Path) -> Rule:
    spec = importlib.util.spec_from_file_location("prefect_diagnostics", tree / PREFECT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)

    def rule(snapshot: Json) -> Said | None:
        for pod in snapshot.get("pods") or ():
            found = module.diagnose_k8s_pod(pod.get("status") or {})
            if found is not None:
                return Said(found.category.value, pod["metadata"]["name"])
        return None

    return rule


def flyte(snapshot: Json) -> Said | None:
    ended = []
    for pod in snapshot.get("pods") or ():
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            for state in ("state", "lastState"):
                over = (container.get(state) or {}).get("terminated") or {}
                if over.get("exitCode"):
                    at = from_rfc3339(over.get("finishedAt")) or float("inf")
                    ended.append((at, pod["metadata"]["name"]))
    return Said(None, min(ended)[1]) if ended else None


def rules() -> Iterator[tuple[str, Rule]]:
    yield "allaboard doctor", doctor
    if tree := os.environ.get("MCP_SERVER_TREE"):
        yield "mcp-server, log of rank 0", mcp_server(Path(tree), blamed=False)
        yield "mcp-server, the log we blame", mcp_server(Path(tree), blamed=True)
    if tree := os.environ.get("PREFECT_TREE"):
        yield "Prefect, status of pods", prefect(Path(tree))
    yield "Flyte, earliest error", flyte


def main(rounds: int) -> None:
    compare("our own cases", [*own_cases()])
    if found := [*samples()]:
        compare("samples", found)


def compare(title: str, every: list[Failure]) -> None:
    blamed = [each for each in every if each.blame not in (None, "", "-", "none")]
    causes = len({each.causes[0] for each in every})
    print(f"diagnosing, {title}: {len(every)} failures and waits of {causes} causes")
    print(f"{'':<30} {'cause right':>12} {'blame right':>12} {'says nothing':>13} {'each':>8}")
    confused: Counter[tuple[str, str]] = Counter()
    for name, rule in rules():
        begun = time.perf_counter()
        said = {each.name: rule(each.snapshot) for each in every}
        spent = (time.perf_counter() - begun) / len(every)
        right = sum(_is_right(each, said[each.name]) for each in every)
        named = sum(names_the_same(e.blame, s.blame) for e in blamed if (s := said[e.name]) is not None)
        silent = sum(s is None for s in said.values())
        shares = (f"{right / len(every):.0%}", f"{named / len(blamed):.0%}", f"{silent / len(every):.0%}")
        print(f"{name:<30} {shares[0]:>12} {shares[1]:>12} {shares[2]:>13} {spent * 1000:>5.1f} ms")
        if rule is doctor:
            confused.update(
                (e.causes[0], s.cause or "-")
                for e in every
                if not _is_right(e, s := said[e.name] or Said("-", None))
            )
    wrong = "; ".join(f"{wanted} taken for {told} x{n}" for (wanted, told), n in confused.most_common())
    print(f"confused by ours: {wrong or 'none'}")


def _is_right(failure: Failure, said: Said | None) -> bool:
    if said is None or said.cause is None:
        return False
    return any(cause in failure.causes for cause in MEANS.get(said.cause, said.cause).split())

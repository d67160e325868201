"""Kinds of failures, each by several of its inputs, and of each rule the healthy run that looks most like it.

A line of ``cases_of_kinds.jsonl`` is what one member wrote and how it ended; a line of ``look_alikes.jsonl``
is
what a run writes, or what was said of it, that goes on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import Diagnosis, diagnose
from allaboard.diagnosis.causes import all_rules
from allaboard.diagnosis.start_errors import why_not_started
from allaboard.runs.observation import Obstacle
from tests.core.diagnosis.building import at, condition, event, job, node, pod, snapshot

Json = dict[str, Any]
NO_RULES = {"healthy", "unknown"}


def lines(name: str) -> list[Json]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text().splitlines()]


def a_failure(case: Json) -> Json:
    """One member that ended, waits, or stands still."""
    code, again = case.get("exit"), case.get("again")
    if again is not None:
        member = pod(
            "master-0",
            waiting="CrashLoopBackOff",
            last=0,
            last_reason="Completed",
            restarts=again,
            begun=20.0,
        )
    elif case.get("pending"):
        member = pod("master-0", "Pending", unschedulable="waiting")
    elif case.get("creating"):
        member = pod("master-0", "Pending", waiting="ContainerCreating")
    elif code is None:
        member = pod("master-0")
    else:
        mounts = {"container": {"volumeMounts": case["mounts"]}} if "mounts" in case else None
        member = pod("master-0", "Failed", exit_code=code, spec=mounts)
    if "job_failed" in case:
        return snapshot(job("Created", condition("Failed", message=case["job_failed"])))
    members = [member, *([pod("worker-0")] if code is None and "log" in case and again is None else [])]
    there = node()
    there["status"]["conditions"] += [
        condition(kind, status, message=said, since=20.0)
        for kind, status, said in case.get("node_conditions", ())
    ]
    own = job("Created", *(["Failed"] if code is not None else ["Running"]), workers=len(members) - 1)
    return snapshot(
        own,
        *members,
        nodes=[there],
        events=[event(reason, said, on, when=29.5) for reason, said, on in case.get("events", ())],
        logs={"master-0": case["log"]} if "log" in case else {},
        taken=at(60),
    )


def told_of(snap: Json) -> list[Diagnosis]:
    return list(diagnose(read_snapshot(snap), thorough=True))


@pytest.mark.parametrize(
    "case", lines("cases_of_kinds.jsonl"), ids=lambda case: f"{case['kind']}: {case['name']}"
)
def test_each_input_of_a_kind_is_told_by_its_cause(case: Json) -> None:
    top = told_of(a_failure(case))[0]
    assert top.code in case["cause"], top.summary
    assert top.code not in case.get("not", ())
    if "retryable" in case:
        assert top.retryable is case["retryable"]
    assert case.get("blame", "") in (top.blame or "")
    everything = " ".join((top.summary, top.fix, *(e.text for e in top.evidence)))
    assert case.get("says", "") in everything
    assert "unsaid" not in case or case["unsaid"] not in everything


def a_look_alike(case: Json) -> Json:
    """Two members that train, before and after what is said."""
    steps = [f"[2026-05-20 12:{minute:02d}:00] step {minute} loss 2.{minute}" for minute in range(2, 59, 4)]
    log = "\n".join([*steps[:5], case.get("log", "all is well"), *steps[5:]])
    told = case.get("event")
    return snapshot(
        job("Created", "Running", workers=1),
        pod("master-0"),
        pod("worker-0"),
        nodes=[node()],
        events=[event(*told, when=0.5, type=case.get("type", "Warning"))] if told else [],
        logs={"master-0": log, "worker-0": log},
        taken=at(60),
    )


@pytest.mark.parametrize("case", lines("look_alikes.jsonl"), ids=lambda case: case["rule"])
def test_what_looks_like_a_cause_and_goes_on_is_healthy(case: Json) -> None:
    found = told_of(a_look_alike(case))
    assert found[0].code == "healthy", (found[0].code, found[0].summary)


def test_every_rule_has_a_look_alike() -> None:
    assert {case["rule"] for case in lines("look_alikes.jsonl")} == {*all_rules()} - NO_RULES


def test_a_gang_that_never_fits_the_cluster_is_one_verdict() -> None:
    """Seven GPUs are asked of six."""
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    names = ["master-0", *(f"worker-{n}" for n in range(5))]
    placed = [pod(name, node=f"n{n // 2}", gpus=1) for n, name in enumerate(names)]
    waits = pod("worker-5", "Pending", unschedulable=said, gpus=1)
    nodes = [node(f"n{n}", gpus=2) for n in range(3)]
    (top, *_) = told_of(snapshot(job("Created", workers=6), *placed, waits, nodes=nodes, taken=at(20)))
    assert (top.code, top.retryable) == ("insufficient_gpu", False)
    assert "6 of its 7 members have a place at once, even on empty nodes: it can never start" in top.summary
    more = [*nodes, node("n3", gpus=2)]
    (top, *_) = told_of(snapshot(job("Created", workers=6), *placed, waits, nodes=more, taken=at(20)))
    assert (top.code, top.retryable) == ("gang_partial_scheduling", True)


def test_two_gangs_that_block_each_other_or_a_pool_that_may_grow_are_not_too_large() -> None:
    said = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    ours = [pod("master-0", node="n0", gpus=1), pod("worker-0", "Pending", unschedulable=said, gpus=1)]
    theirs = [pod("worker-8", node="n1", gpus=1), pod("worker-9", "Pending", unschedulable=said, gpus=1)]
    for one in theirs:
        one["metadata"] = {"name": one["metadata"]["name"].replace("net-", "other-"), "uid": "x"}
    nodes = [node("n0", gpus=1), node("n1", gpus=1)]
    (top, *_) = told_of(snapshot(job("Created", workers=1), *ours, *theirs, nodes=nodes, taken=at(20)))
    assert (top.code, top.retryable) == ("gang_partial_scheduling", True)
    (top, *_) = told_of(snapshot(job("Created", workers=1), *ours, nodes=nodes[:1], taken=at(20)))
    assert (top.code, top.retryable) == ("insufficient_gpu", False)
    nodes[0]["metadata"]["labels"] = {"eks.amazonaws.com/nodegroup": "train"}
    (top, *_) = told_of(snapshot(job("Created", workers=1), *ours, nodes=nodes[:1], taken=at(20)))
    assert (top.code, top.retryable) == ("gang_partial_scheduling", True)


def test_what_an_obstacle_knows_is_what_the_doctor_says() -> None:
    never = Obstacle(
        "insufficient_gpu", "6 of its 7 members have a place: it can never start", True, "worker-6"
    )
    waits = pod(
        "worker-6", "Pending", unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    seen = read_snapshot(snapshot(job("Created", workers=0), pod("worker-0"), waits, taken=at(20)))
    top, *rest = diagnose(replace(seen, obstacle=never), thorough=True)
    assert (top.code, top.summary, top.retryable) == (never.code, never.text, False)
    assert "gang_partial_scheduling" not in {d.code for d in rest}


@pytest.mark.parametrize("program", ["sshd", "ssh", "sudo", "tini", "pod", "ip"])
def test_a_program_is_not_taken_for_a_misspelt_shell(program: str) -> None:
    _, sentence, _ = why_not_started(f'exec: "{program}": executable file not found in $PATH')
    assert program in sentence and "did you mean" not in sentence
    assert "'torchrun'" in why_not_started('exec: "torchrum": executable file not found in $PATH')[1]


def test_a_policy_of_the_api_server_is_no_webhook() -> None:
    said = (
        "pytorchjobs.kubeflow.org \"net\" is forbidden: ValidatingAdmissionPolicy 'owners' with binding "
        "'owners-ml' denied request: no owner label"
    )
    refused = {"code": 422, "reason": "Invalid", "message": said}
    (top, *_) = told_of({**snapshot(job()), "submit_error": refused})
    assert top.code == "admission_webhook_denied" and "no owner label" in top.summary
    assert top.blame == "ValidatingAdmissionPolicy owners (binding owners-ml)"


def test_the_line_for_people_is_quoted_and_not_a_frame_of_cpp() -> None:
    log = (
        "frame #3: c10d::TCPStore::connect(std::string) + 0x5f: socket.cpp: Connection refused\n"
        "[W socket.cpp:764] [c10d] The client socket has failed to connect to [net-master-0]:23456 "
        "(errno: 111 - Connection refused)."
    )
    members = (pod("master-0"), pod("worker-0", "Failed", exit_code=1))
    (top, *_) = told_of(snapshot(job("Created", workers=1), *members, logs={"worker-0": log}, taken=at(60)))
    assert top.code == "master_unreachable_network"
    assert "[net-master-0]:23456" in top.evidence[0].text and "frame #" not in top.evidence[0].text


@pytest.mark.parametrize(
    ("master", "peer", "cause"),
    [
        pytest.param(
            {"exit_code": 137, "ended": 30.1, "deleted": 30.05}, 30.0, "python_exception", id="with the rest"
        ),
        pytest.param(
            {"exit_code": 143, "ended": 30.1, "deleted": 30.05},
            30.0,
            "python_exception",
            id="within its grace",
        ),
        pytest.param(
            {"exit_code": 137, "ended": 29.0, "deleted": 30.5},
            30.0,
            "killed_externally",
            id="before its peer",
        ),
        pytest.param({"exit_code": 137, "ended": 29.0}, 30.0, "killed_externally", id="left where it is"),
    ],
)
def test_who_is_taken_away_after_a_peer_failed_was_not_killed_by_somebody(
    master: Json, peer: float, cause: str
) -> None:
    """An operator deletes the pods that are left, and the kernel kills who does not end within its grace."""
    found = told_of(
        snapshot(
            job("Created", "Failed", workers=1),
            pod("master-0", "Failed", **master),
            pod("worker-0", "Failed", exit_code=3, ended=peer),
            nodes=[node()],
            taken=at(60),
        )
    )
    assert found[0].code == cause, (found[0].code, found[0].summary)
    if cause == "python_exception":
        assert "worker-0" in str(found[0].blame) and not found[0].retryable
        assert "killed_externally" not in {one.code for one in found}

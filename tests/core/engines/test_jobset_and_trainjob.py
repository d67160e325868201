"""JobSet and TrainJob: what a job says becomes their words, every member knows its place, and what their
controllers write is read rightly. tests/cluster/test_jobset_and_trainjob.py compares with the controllers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from allaboard.checking.job import check
from allaboard.engines import BY_FRAMEWORK, ENGINES
from allaboard.engines.base import Address
from allaboard.engines.jobset import JobSet, with_environment
from allaboard.engines.trainjob import INJECTED, TrainJob
from allaboard.inside.context import context
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.manifests import Rendered, render
from allaboard.runs.layout import lay_out
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job

BOTH = ("jobset", "trainjob")
FRAMEWORKS = sorted({*JobSet.FRAMEWORKS} - {"mpi"})
"""Those whose members are equal before their operator; of MPI see test_mpi.py."""


def rendered(engine: str, **fields: Any) -> Rendered:
    job = a_job(**{"image": "lab/train:1", "workers": None, "engine": engine, **fields})
    layout = lay_out(job, ENGINES[engine], "digits-1f0c9a77")
    return render(job, layout, ASSUMED, launch="l", spec_hash="h")


def jobset_spec(found: Rendered) -> dict[str, Any]:
    """The spec of the JobSet that this becomes."""
    spec: dict[str, Any] = found.job["spec"]
    return found.extras[-1]["spec"]["template"]["spec"] if found.job["kind"] == "TrainJob" else spec


def jobs(found: Rendered) -> dict[str, dict[str, Any]]:
    return {job["name"]: job["template"]["spec"] for job in jobset_spec(found)["replicatedJobs"]}


def environment(template: Mapping[str, Any], index: int, rank: int) -> dict[str, str]:
    """The environment of a pod of this template, as a kubelet makes it: references to what stands before."""
    (main,) = template["spec"]["containers"]
    values: dict[str, str] = {}
    for variable in main["env"]:
        source = str(variable.get("valueFrom", ""))
        value = variable.get("value", str(index) if "metadata.labels" in source else str(rank))
        if "job-global-index" in source:
            value = str(rank)
        for name, known in values.items():
            value = value.replace(f"$({name})", known)
        values[variable["name"]] = value
    return values


def members(found: Rendered) -> list[dict[str, str]]:
    """The environment of every member, by rank."""
    every, rank = [], 0
    for job in jobset_spec(found)["replicatedJobs"]:
        nodes = int((found.job["spec"].get("trainer") or {}).get("numNodes", 1))
        for index in range(job.get("replicas", nodes)):
            every.append(environment(job["template"]["spec"]["template"], index, rank))
            rank += 1
    return every


# Down.


@pytest.mark.parametrize("engine", BOTH)
def test_every_member_of_a_torch_gang_knows_its_rank_and_its_master(engine: str) -> None:
    found = rendered(engine, groups={"master": 1, "worker": 2})
    name = found.job["metadata"]["name"]
    host = {"jobset": f"{name}-master-0-0.{name}", "trainjob": f"{name}-node-0-0.{name}"}[engine]
    every = members(found)
    assert [(e["RANK"], e["WORLD_SIZE"], e["MASTER_ADDR"]) for e in every] == [
        (str(rank), "3", host) for rank in range(3)
    ]
    seen = [context(e) for e in every]
    assert [(c.member, c.rank, c.world_size) for c in seen] == [
        ("master-0", 0, 3), ("worker-0", 1, 3), ("worker-1", 2, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_members_get_what_the_operator_of_their_framework_would_tell_them(
    engine: str, framework: str
) -> None:
    """All variables, and in those of ranks and indices the member's own; TrainJob leaves some to Trainer."""
    job = a_job(image="x", framework=framework, workers=3)
    usual = BY_FRAMEWORK[framework][0]
    layout = lay_out(job, usual, "digits-1f0c9a77")
    every = members(rendered(engine, framework=framework, workers=3))
    assert len(every) == layout.total
    for member, told in zip(layout.members, every, strict=True):
        place = {m.name: Address("host", 1) for m in layout.members}
        wanted = usual.environment(layout, member, place)
        by_trainer = INJECTED if engine == "trainjob" and framework != "paddle" else set()
        assert {*wanted} - by_trainer <= {*told}
        same = [name for name in wanted if name in ("RANK", "WORLD_SIZE", "PROCESS_ID", "NUM_PROCESSES")]
        assert {name: told[name] for name in same} == {name: wanted[name] for name in same}
        assert not [name for name, value in told.items() if "$(ALLABOARD" in value or "90000" in value]


def test_members_of_tensorflow_read_their_task_as_json() -> None:
    found = rendered("jobset", framework="tensorflow", groups={"chief": 1, "worker": 2, "ps": 1})
    tasks = [json.loads(e["TF_CONFIG"]) for e in members(found)]
    assert [t["task"] for t in tasks] == [
        {"type": "chief", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "ps", "index": 0},
    ]
    assert all(t["cluster"] == tasks[0]["cluster"] for t in tasks)
    name = found.job["metadata"]["name"]
    assert tasks[0]["cluster"]["worker"][1] == f"{name}-worker-1-0.{name}:29500"


def test_a_variable_of_the_operator_wins_over_the_jobs() -> None:
    env = [{"name": "RANK", "value": "7"}, {"name": "X", "value": "1"}]
    template = {"spec": {"containers": [{"name": "node", "env": env}]}}
    made = with_environment(template, {"RANK": "$(ALLABOARD_RANK)"}, {"fieldRef": {}})
    (main,) = made["spec"]["containers"]
    assert [v["name"] for v in main["env"]] == ["ALLABOARD_RANK", "X", "RANK"]
    found = rendered("trainjob", workers=2, environment={"MASTER_ADDR": "x", "PET_NNODES": "7", "Y": "2"})
    assert found.job["spec"]["trainer"]["env"] == [{"name": "Y", "value": "2"}], "Trainer refuses PET_NNODES"


@pytest.mark.parametrize(
    ("groups", "framework", "policy"),
    [
        ({"master": 1, "worker": 2}, "pytorch", {"operator": "All", "targetReplicatedJobs": ["master"]}),
        ({"worker": 2}, "pytorch", {"operator": "All", "targetReplicatedJobs": ["worker"]}),
        ({"chief": 1, "ps": 1}, "tensorflow", {"operator": "All", "targetReplicatedJobs": ["chief"]}),
        ({"worker": 2, "ps": 1}, "tensorflow", {"operator": "All", "targetReplicatedJobs": ["worker"]}),
        ({"master": 1, "worker": 2}, "paddle", {"operator": "All", "targetReplicatedJobs": ["master"]}),
        ({"worker": 3}, "jax", {"operator": "All", "targetReplicatedJobs": ["worker"]}),
    ],
)  # fmt: skip
def test_who_decides_is_who_decides_with_the_frameworks_own_operator(
    groups: dict[str, int], framework: str, policy: dict[str, Any]
) -> None:
    assert jobset_spec(rendered("jobset", framework=framework, groups=groups))["successPolicy"] == policy


def test_any_member_of_an_elastic_gang_decides_and_each_is_restarted_alone() -> None:
    job = {"workers": 3, "elastic": {"min": 2, "max": 4}, "command": ["torchrun", "x.py"]}
    found = rendered("jobset", **job, policy={"backoff_limit": 5})
    spec = jobset_spec(found)
    assert spec["successPolicy"] == {"operator": "Any", "targetReplicatedJobs": ["worker"]}
    assert "failurePolicy" not in spec and jobs(found)["worker"]["backoffLimit"] == 5
    assert jobs(found)["worker"]["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert members(found)[1]["PET_NNODES"] == "2:4"
    assert ENGINES["jobset"].needed(found.job) == 2


@pytest.mark.parametrize("engine", BOTH)
def test_a_restart_is_of_the_whole_gang(engine: str) -> None:
    found = rendered(
        engine, workers=2, policy={"restart": "on_failure", "backoff_limit": 4, "deadline": "1h"}
    )
    policy = jobset_spec(found)["failurePolicy"]
    assert (policy["maxRestarts"], policy["restartStrategy"]) == (4, "BlockingRecreate")
    deadline = [("deadline", "FailJobSet")] if engine == "jobset" else []  # a TrainJob has one of its own
    assert [(rule["name"], rule["action"]) for rule in policy["rules"]] == [
        ("takenAway", "RestartJobSetAndIgnoreMaxRestarts"), *deadline,
    ]  # fmt: skip
    assert (found.job["spec"].get("activeDeadlineSeconds") == 3600) is (engine == "trainjob")
    for job in jobs(found).values():
        assert (job["backoffLimit"], job.get("activeDeadlineSeconds")) == (0, 3600 if deadline else None)
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        assert job["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["type"] == "DisruptionTarget"


@pytest.mark.parametrize("engine", BOTH)
def test_an_exit_code_below_128_ends_the_job_and_never_restarts_nothing(engine: str) -> None:
    found = rendered(engine, workers=2, policy={"restart": "exit_code"})
    (rule,) = jobset_spec(found)["failurePolicy"]["rules"]
    assert (rule["name"], rule["action"]) == ("permanentExitCode", "FailJobSet")
    (codes,) = {
        tuple(j["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]) for j in jobs(found).values()
    }
    assert codes == tuple(range(1, 128))
    assert "failurePolicy" not in jobset_spec(rendered(engine, workers=2, policy={"restart": "never"}))


@pytest.mark.parametrize("engine", BOTH)
def test_what_they_cannot_do_is_said_with_its_path(engine: str) -> None:
    policy = {"restart": "always", "clean_pods": "all"}
    said = {p.path: p.severity for p in check(a_job(engine=engine, policy=policy))}
    assert said == {"policy.restart": "error", "policy.clean_pods": "warning"}


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"groups": {"master": 1, "worker": {"replicas": 1, "restart": "never"}}}, "groups.worker.restart"),
        ({"workers": 3, "elastic": {"min": 2}, "policy": {"restart": "exit_code"}}, "policy.restart"),
    ],
    ids=["a rule of one group", "exit codes of an elastic gang"],
)
def test_a_restart_rule_that_they_cannot_keep_is_an_error(
    engine: str, fields: dict[str, Any], path: str
) -> None:
    job = a_job(**{"image": "lab/train:1", "workers": None, "engine": engine, **fields})
    assert [problem.path for problem in check(job.as_mapping()) if problem.severity == "error"] == [path]


FAIL = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]}


@pytest.mark.parametrize(
    ("own", "paths"),
    [
        ({"name": "worker"}, [""]),
        (["worker"], ["[0].name"]),
        ([{"name": "wroker", "template": 3}], ["[0].name"]),
        ([{"name": "worker"}, {"name": "worker", "replicas": 3}], ["[1].name", "[1].replicas"]),
    ],
)
def test_an_entry_of_replicated_jobs_names_a_group_once(own: Any, paths: list[str]) -> None:
    said = check(a_job(engine="jobset", workers=2, engine_spec={"replicatedJobs": own}).as_mapping())
    assert sorted(p.path for p in said) == [f"engine_spec.replicatedJobs{path}" for path in paths]


@pytest.mark.parametrize(
    ("template", "paths"),
    [
        ("x", [""]),
        ({"spec": 3, "metadata": []}, [".metadata", ".spec"]),
        ({"metadata": {"labels": 1, "name": "x"}}, [".metadata.labels", ".metadata.name"]),
        ({"spec": {"template": {}, "backofLimit": 1}}, [".spec.backofLimit", ".spec.template"]),
    ],
)
def test_the_template_of_a_replicated_job_is_checked_with_its_path(template: Any, paths: list[str]) -> None:
    own = [{"name": "worker", "template": template}]
    said = check(a_job(engine="jobset", workers=2, engine_spec={"replicatedJobs": own}).as_mapping())
    assert sorted(p.path for p in said) == [f"engine_spec.replicatedJobs[0].template{path}" for path in paths]


@pytest.mark.parametrize("own", ["x", [3], [{"name": "worker", "template": {"spec": {"backoffLimit": 9}}}]])
def test_a_trainjob_has_no_jobs_of_its_own_to_say_something_of(own: Any) -> None:
    groups = {"master": {"resources": {"cpu": 4}}, "worker": 2}
    found = rendered("trainjob", groups=groups, resources={"cpu": 1}, engine_spec={"replicatedJobs": own})
    assert jobs(found)["worker"]["backoffLimit"] == 0


def test_a_pod_failure_policy_is_none_of_members_that_their_nodes_restart() -> None:
    own = {"replicatedJobs": [{"name": "worker", "template": {"spec": {"podFailurePolicy": FAIL}}}]}
    job = {"engine": "jobset", "workers": 3, "engine_spec": own, "command": ["torchrun", "train.py"]}
    path = "engine_spec.replicatedJobs[0].template.spec.podFailurePolicy"
    assert [p.path for p in check(a_job(**job, elastic={"min": 2}).as_mapping())] == [path]
    never = a_job(**job, elastic={"min": 2}, policy={"restart": "never"})
    assert not check(a_job(**job).as_mapping()) and not check(never.as_mapping())
    assert jobs(rendered("jobset", workers=3, engine_spec=own))["worker"]["podFailurePolicy"] == FAIL


def test_a_trainjob_has_no_ttl() -> None:
    """A JobSet that its ttl removes is made anew by Trainer, and trains again."""
    (problem,) = check(a_job(engine="trainjob", policy={"ttl": "1d"}))
    assert (problem.path, problem.severity) == ("policy.ttl", "warning")
    assert "ttlSecondsAfterFinished" not in str(
        rendered("trainjob", workers=2, policy={"ttl": "1d"}).manifests
    )
    assert rendered("jobset", workers=2, policy={"ttl": "1d"}).job["spec"]["ttlSecondsAfterFinished"] == 86400


def test_equal_members_are_nodes_and_others_replicated_jobs_of_their_own() -> None:
    equal = rendered("trainjob", groups={"master": 1, "worker": 2}, resources={"cpu": 1})
    assert [*jobs(equal)] == ["node"] and equal.job["spec"]["trainer"]["numNodes"] == 3
    assert equal.extras[-1]["spec"]["mlPolicy"] == {"numNodes": 3, "torch": {}}
    assert jobs(equal)["node"]["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    groups = {"master": {"resources": {"cpu": 4}}, "worker": 2}
    assert [*jobs(rendered("trainjob", groups=groups, resources={"cpu": 1}))] == ["master", "worker"]
    chief = rendered("trainjob", framework="tensorflow", groups={"chief": 1, "worker": 2})
    assert [*jobs(chief)] == ["chief", "worker"] and "trainer" not in chief.job["spec"]


@pytest.mark.parametrize(("gpu", "told"), [(0, 1), (2, None)])
def test_a_node_without_a_gpu_runs_one_process_and_not_one_for_each_core(gpu: int, told: int | None) -> None:
    found = rendered("trainjob", workers=2, resources={"cpu": 8, "gpu": gpu})
    assert found.job["spec"]["trainer"].get("numProcPerNode") == told


@pytest.mark.parametrize("engine", BOTH)
def test_a_pod_that_is_written_for_the_frameworks_container_reaches_the_node(engine: str) -> None:
    pod = {"spec": {"containers": [{"name": "pytorch", "ports": [{"containerPort": 1}]}]}}
    assert check(a_job(engine=engine, pod=pod)) == []
    for job in jobs(rendered(engine, workers=2, pod=pod)).values():
        (main,) = job["template"]["spec"]["containers"]
        assert main["name"] == "node" and main["ports"] == [{"containerPort": 1}]


@pytest.mark.parametrize("engine", BOTH)
def test_the_names_of_all_pods_fit(engine: str) -> None:
    job = a_job(name="x" * 40, image="x", workers=1000, engine=engine)
    layout = lay_out(job, ENGINES[engine], f"{'x' * 40}-1f0c9a77", 12, 3)
    assert len(ENGINES[engine].pod_name(layout.name, "worker-998")) <= 63
    assert "1f0c9a77" in layout.name and layout.name.endswith("-g3-12")


# Up.


def a_pod(role: str, index: int, phase: str, *, completion: int = 0, **labels: str) -> dict[str, Any]:
    name = f"digits-{role}-{index}-{completion}-abcde"
    own = {
        "jobset.sigs.k8s.io/jobset-name": "digits",
        "jobset.sigs.k8s.io/replicatedjob-name": role,
        "jobset.sigs.k8s.io/job-index": str(index),
        "batch.kubernetes.io/job-completion-index": str(completion),
    }
    state = {"running": {"startedAt": "2026-11-01T00:00:05Z"}} if phase == "Running" else {}
    statuses = [{"name": "node", "state": state}]
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {**own, **labels}},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


def a_jobset(**status: Any) -> dict[str, Any]:
    groups = [{"name": role, "replicas": n, "template": {"spec": {"template": {"spec": {}}}}}
              for role, n in (("master", 1), ("worker", 2))]  # fmt: skip
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "digits", "uid": "u", "creationTimestamp": "2026-11-01T00:00:00Z"},
        "spec": {"replicatedJobs": groups},
        "status": status,
    }


def condition(
    kind: str, reason: str, status: str = "True", at: str = "2026-11-01T00:01:00Z"
) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": at}


def state(seen: Any) -> State:
    return state_of(
        Observation(
            "r", conditions=seen.conditions, members=seen.members, suspended=seen.suspended, alive=True
        )
    )


GANG = [a_pod("master", 0, "Running"), a_pod("worker", 0, "Running"), a_pod("worker", 1, "Pending")]


@pytest.mark.parametrize(
    ("status", "pods", "expected"),
    [
        ({}, [], State.STARTING),
        ({}, [a_pod("master", 0, "Pending")], State.STARTING),
        ({"replicatedJobsStatus": [{"name": "master", "active": 1}]}, GANG, State.RUNNING),
        ({"conditions": [condition("RestartingJobSet", "DefaultFailurePolicy")]}, [], State.RESTARTING),
        ({"conditions": [condition("RestartingJobSet", "JobsReady", "False")]}, GANG, State.RUNNING),
        ({"conditions": [condition("Suspended", "ResumeJobs", "False")]}, GANG, State.RUNNING),
        ({"conditions": [condition("Suspended", "SuspendedJobs")]}, [], State.SUSPENDED),
        ({"conditions": [condition("Completed", "AllJobsCompleted")]}, [], State.SUCCEEDED),
        ({"conditions": [condition("Failed", "ReachedMaxRestarts")]}, [], State.FAILED),
        ({"conditions": [condition("StartupPolicyInProgress", "x")]}, GANG, State.RUNNING),
    ],
)  # fmt: skip
def test_what_jobset_writes_is_read(status: dict[str, Any], pods: list[Any], expected: State) -> None:
    seen = ENGINES["jobset"].read(a_jobset(**status), pods)
    assert state(seen) is expected and seen.total == 3
    assert [m.name for m in seen.members] == ["master-0", "worker-0", "worker-1"]
    assert [m.rank for m in seen.members] == [0, 1, 2]


@pytest.mark.parametrize(("generation", "phase"), [(1, "pending"), (2, "deleted")])
def test_a_jobset_that_was_created_suspended_has_not_lost_its_members(generation: int, phase: str) -> None:
    job = a_jobset(conditions=[condition("Suspended", "SuspendedJobs")])
    job["spec"]["suspend"], job["metadata"]["generation"] = True, generation
    assert {member.phase for member in ENGINES["jobset"].read(job, ()).members} == {phase}


def test_the_deadline_of_a_jobset_is_told_by_its_time() -> None:
    job = a_jobset(conditions=[condition("Failed", "FailJobSetFailurePolicyAction")])
    job["spec"]["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] = 60
    assert state(ENGINES["jobset"].read(job, ())) is State.TIMED_OUT
    job["spec"]["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] = 3600
    assert state(ENGINES["jobset"].read(job, ())) is State.FAILED


def test_pods_of_jobs_with_several_pods_each_have_names_of_their_own() -> None:
    """2 Jobs of 3 pods, as others write JobSets."""
    replicas = {"jobset.sigs.k8s.io/replicatedjob-replicas": "2"}
    pods = [a_pod("w", job, "Running", completion=n, **replicas) for job in (0, 1) for n in range(3)]
    names = [ENGINES["jobset"].member_of(pod) for pod in pods]
    assert sorted(map(str, names)) == [f"w-{n}" for n in range(6)]
    assert ENGINES["jobset"].member_of({"metadata": {"labels": {}}}) is None


def a_trainjob(groups: str | None, nodes: int | None = None, **status: Any) -> dict[str, Any]:
    annotations = {"allaboard.io/members": groups} if groups else {}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "digits", "uid": "u", "annotations": annotations},
        "spec": {"runtimeRef": {"name": "x"}, **({"trainer": {"numNodes": nodes}} if nodes else {})},
        "status": status,
    }


def test_the_nodes_of_a_trainjob_of_ours_are_the_members_of_the_job() -> None:
    pods = [a_pod("node", 0, "Running", completion=n) for n in range(3)]
    for pod in pods:
        pod["metadata"]["annotations"] = {"allaboard.io/members": "master:1,worker:2"}
    seen = TrainJob().read(a_trainjob("master:1,worker:2"), pods)
    assert [(m.name, m.rank, m.phase) for m in seen.members] == [
        ("master-0", 0, "running"), ("worker-0", 1, "running"), ("worker-1", 2, "running"),
    ]  # fmt: skip
    theirs = [a_pod("node", 0, "Running", completion=n) for n in range(2)]
    assert [m.name for m in TrainJob().read(a_trainjob(None, 2), theirs).members] == ["node-0", "node-1"]


@pytest.mark.parametrize(
    ("kind", "reason", "expected"),
    [
        ("Complete", "AllJobsCompleted", State.SUCCEEDED),
        ("Failed", "DeadlineExceeded", State.TIMED_OUT),
        ("Failed", "ReachedMaxRestarts", State.FAILED),
        ("Suspended", "Suspended", State.SUSPENDED),
    ],
)
def test_what_trainer_writes_is_read(kind: str, reason: str, expected: State) -> None:
    seen = TrainJob().read(a_trainjob("worker:2", conditions=[condition(kind, reason)]), ())
    assert state(seen) is expected and seen.total == 2


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("spec", [{}, {"trainer": None}, {"replicatedJobs": None}, {"replicatedJobs": [{}]}])
def test_a_strange_object_of_others_is_read(engine: str, spec: dict[str, Any]) -> None:
    job = {"metadata": {"name": "x"}, "spec": spec}
    assert state(ENGINES[engine].read(job, [a_pod("w", 0, "Running")])) is State.RUNNING
    assert ENGINES[engine].read(None, ()).members == ()


def test_a_job_is_the_same_bytes_twice() -> None:
    for engine in BOTH:
        assert rendered(engine, workers=3).manifests == rendered(engine, workers=3).manifests

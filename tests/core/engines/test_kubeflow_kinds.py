"""What the kinds of kubeflow.org/v1 share and where they differ: roles, environment, who decides, objections.

The values are those of the Training Operator 1.9.4; tests/cluster/test_engines.py compares with the operator.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from allaboard.checking.job import check
from allaboard.engines import ENGINES
from allaboard.engines.base import Address, Counts, Place
from allaboard.inside.context import ranks
from allaboard.runs.layout import Layout, allaboard_environment
from allaboard.runs.observation import State
from allaboard.runs.status import state_of
from allaboard.testing import a_job, a_layout
from allaboard.testing.cluster import FakeCluster
from tests.core.backends.kubernetes.golden import of_engine
from tests.core.backends.kubernetes.test_backend import ME, a_plan, running

PORTS = {"pytorch": 23456, "tensorflow": 2222, "xgboost": 9999, "paddle": 36543, "jax": 6666}


def services(layout: Layout) -> Place:
    """Where the operator's Services put the members."""
    port = PORTS[layout.framework]
    return {m.name: Address(f"{layout.name}-{m.name}", port) for m in layout.members}


def environments(**fields: Any) -> list[dict[str, str]]:
    layout = a_layout(**{"workers": None, **fields})
    engine = ENGINES[layout.engine]
    place = services(layout)
    needed = {name for names in engine.listeners(layout) for name in names}
    place = {name: address for name, address in place.items() if name in needed}
    return [engine.environment(layout, member, place) for member in layout.members]


# Roles.


@pytest.mark.parametrize(
    ("framework", "roles"),
    [
        ("pytorch", {"master": 1, "worker": 2}), ("xgboost", {"master": 1, "worker": 2}),
        ("tensorflow", {"worker": 3}), ("paddle", {"worker": 3}), ("jax", {"worker": 3}),
    ],
)  # fmt: skip
def test_who_says_only_how_many_gets_the_roles_of_the_framework(
    framework: str, roles: dict[str, int]
) -> None:
    layout = a_layout(framework=framework, workers=3)
    assert {group.role: group.replicas for group in layout.groups} == roles
    alone = a_layout(framework=framework, workers=1)
    assert [m.rank for m in alone.members] == [0]


def test_ranks_follow_the_roles() -> None:
    groups = {"evaluator": 1, "ps": 1, "worker": 2, "chief": 1}
    layout = a_layout(framework="tensorflow", workers=None, groups=groups)
    assert [m.name for m in layout.members] == ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"]
    servers = a_layout(framework="paddle", workers=None, groups={"master": 1, "worker": 2})
    assert [m.name for m in servers.members] == ["worker-0", "worker-1", "master-0"]


def test_members_know_their_rank_also_where_their_operator_tells_none() -> None:
    layout = a_layout(framework="tensorflow", workers=None, groups={"chief": 1, "worker": 2, "ps": 2})
    known = [ranks(allaboard_environment(layout, member)) for member in layout.members]
    assert known == [(0, 3), (1, 3), (2, 3), (3, 5), (4, 5)], "servers are none of those that train"
    layout = a_layout(framework="jax", workers=2)
    own = allaboard_environment(layout, layout.members[1])
    assert ranks(own) == (1, 2) and ranks({**own, "RANK": "5", "WORLD_SIZE": "8"}) == (5, 8)
    elastic = a_layout(workers=2, elastic={"min": 1})
    assert "ALLABOARD_GROUPS" not in allaboard_environment(elastic, elastic.members[0])


@pytest.mark.parametrize(
    "env",
    [
        {}, {"ALLABOARD_MEMBER": "worker-1"}, {"ALLABOARD_MEMBER": "x", "ALLABOARD_GROUPS": "worker:2"},
        {"ALLABOARD_MEMBER": "worker-1", "ALLABOARD_GROUPS": "worker"},
        {"ALLABOARD_MEMBER": "worker-1", "ALLABOARD_GROUPS": "worker:-2"},
    ],
)  # fmt: skip
def test_a_process_of_no_job_stands_alone(env: dict[str, str]) -> None:
    assert ranks(env) == (0, 1)


# What is sent.


def test_replica_types_have_the_names_of_the_operator() -> None:
    *_, job = yaml.safe_load_all(of_engine("tfjob"))
    assert [*job["spec"]["tfReplicaSpecs"]] == ["Chief", "Worker", "PS", "Evaluator"]


# What the operator injects.


def test_members_of_xgboost_get_the_tracker_and_each_other() -> None:
    master, first, second = environments(framework="xgboost", groups={"master": 1, "worker": 2})
    assert master == {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "digits-1-master-0",
        "MASTER_PORT": "9999",
        "WORLD_SIZE": "3",
        "RANK": "0",
        "WORKER_PORT": "9999",
        "WORKER_ADDRS": "digits-1-worker-0,digits-1-worker-1",
    }
    assert (first["RANK"], second["RANK"]) == ("1", "2")
    (alone,) = environments(framework="xgboost", groups={"master": 1})
    assert "WORKER_ADDRS" not in alone and alone["WORLD_SIZE"] == "1"


def test_members_of_jax_get_the_coordinator_without_the_prefix_of_jax() -> None:
    first, second = environments(framework="jax", groups={"worker": 2})
    assert second == {
        "PYTHONUNBUFFERED": "1",
        "COORDINATOR_PORT": "6666",
        "COORDINATOR_ADDRESS": "digits-1-worker-0",
        "NUM_PROCESSES": "2",
        "PROCESS_ID": "1",
    }
    assert first == {**second, "PROCESS_ID": "0"}


def test_a_collective_job_of_paddle_meets_at_its_first_worker_servers_at_the_master() -> None:
    _, worker = environments(framework="paddle", groups={"worker": 2})
    assert worker == {
        "PYTHONUNBUFFERED": "1",
        "PADDLE_JOB_ID": "digits-1",
        "PADDLE_NNODES": "2",
        "PADDLE_MASTER": "digits-1-worker-0:36543",
    }
    trainer, server = environments(framework="paddle", groups={"master": 1, "worker": 1})
    assert server["PADDLE_MASTER"] == trainer["PADDLE_MASTER"] == "digits-1-master-0:36543"
    assert server["PADDLE_SERVER_NUM"] == trainer["PADDLE_TRAINER_NUM"] == "1"
    assert "PADDLE_TRAINER_NUM" not in server and "PADDLE_SERVER_NUM" not in trainer


def test_members_of_tensorflow_get_the_whole_cluster() -> None:
    chief, _, ps = environments(framework="tensorflow", groups={"chief": 1, "worker": 1, "ps": 1})
    assert json.loads(ps["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["digits-1-chief-0:2222"],
            "ps": ["digits-1-ps-0:2222"],
            "worker": ["digits-1-worker-0:2222"],
        },
        "task": {"type": "ps", "index": 0},
        "environment": "cloud",
    }
    assert json.loads(chief["TF_CONFIG"])["task"] == {"type": "chief", "index": 0}
    assert environments(framework="tensorflow", groups={"worker": 1}) == [{}], "one alone gets none"


def test_workers_that_come_and_go_know_themselves_and_the_servers() -> None:
    _, worker, ps = environments(
        framework="tensorflow",
        groups={"worker": 2, "ps": 1},
        engine_spec={"enableDynamicWorker": True},
    )
    assert json.loads(worker["TF_CONFIG"]) == {
        "cluster": {"worker": {"1": "digits-1-worker-1:2222"}, "ps": ["digits-1-ps-0:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    assert json.loads(ps["TF_CONFIG"])["cluster"] == {"worker": {}, "ps": ["digits-1-ps-0:2222"]}


# Who decides.


def succeeded(replicas: int = 1, first: bool = True) -> Counts:
    return Counts(replicas, succeeded=replicas, first_succeeded=first)


GOES = Counts(2, active=2)


@pytest.mark.parametrize(
    ("framework", "groups", "counts", "over"),
    [
        ("xgboost", {"master": 1, "worker": 2}, {"master": succeeded(), "worker": GOES}, True),
        ("xgboost", {"master": 1, "worker": 2}, {"master": Counts(1), "worker": succeeded(2)}, False),
        ("jax", {"worker": 2}, {"worker": succeeded(2)}, True),
        ("jax", {"worker": 2}, {"worker": Counts(2, succeeded=1, first_succeeded=True)}, False),
        ("paddle", {"worker": 2}, {"worker": succeeded(2)}, True),
        ("paddle", {"master": 1, "worker": 2}, {"master": succeeded(), "worker": GOES}, True),
        ("paddle", {"master": 2, "worker": 2}, {"master": Counts(2, succeeded=1), "worker": GOES}, False),
        ("tensorflow", {"chief": 1, "worker": 2}, {"chief": succeeded(), "worker": GOES}, True),
        ("tensorflow", {"chief": 1, "worker": 2}, {"chief": Counts(1), "worker": succeeded(2)}, False),
        ("tensorflow", {"worker": 2}, {"worker": Counts(2, succeeded=1, first_succeeded=True)}, True),
        ("tensorflow", {"worker": 2}, {"worker": Counts(2, succeeded=1, active=1)}, False),
        ("tensorflow", {"worker": 2}, {"worker": succeeded(2)}, True),
    ],
)  # fmt: skip
def test_who_decides(framework: str, groups: dict[str, int], counts: dict[str, Counts], over: bool) -> None:
    layout = a_layout(framework=framework, workers=None, groups=groups)
    assert ENGINES[layout.engine].judge(layout, counts).succeeded is over


def test_under_all_workers_the_first_one_does_not_decide() -> None:
    layout = a_layout(framework="tensorflow", engine_spec={"successPolicy": "AllWorkers"})
    judge = ENGINES["tfjob"].judge
    assert not judge(layout, {"worker": Counts(2, succeeded=1, first_succeeded=True)}).succeeded
    assert judge(layout, {"worker": succeeded(2)}).succeeded


# What cannot be said to them.


@pytest.mark.parametrize(
    ("framework", "fields", "path", "words"),
    [
        ("jax", {"elastic": {"min": 1}}, "elastic", "JAXJob has a fixed number of members"),
        ("paddle", {"processes_per_member": 2}, "processes_per_member", "one process for each member"),
        ("xgboost", {"workers": None, "groups": {"worker": 2}}, "groups", "needs a master"),
        ("tensorflow", {"workers": None, "groups": {"ps": 2}}, "groups", "never succeeds"),
        (
            "tensorflow", {"workers": None, "groups": {"chief": 1, "master": 1}}, "groups",
            "a chief or a master",
        ),
        ("jax", {"workers": None, "groups": {"master": 1}}, "groups.master", "JAXJob has worker"),
    ],
)  # fmt: skip
def test_what_a_kind_cannot_do_is_an_error_at_its_field(
    framework: str, fields: dict[str, Any], path: str, words: str
) -> None:
    errors = {p.path: p.message for p in check(a_job(framework=framework, **fields)) if p.severity == "error"}
    assert words in errors.get(path, f"nothing; said {errors}")


@pytest.mark.parametrize(
    ("framework", "fields", "path"),
    [
        ("tensorflow", {"environment": {"TF_CONFIG": "{}"}}, "environment.TF_CONFIG"),
        (
            "xgboost", {"workers": None, "groups": {"master": {"environment": {"RANK": "1"}}}},
            "groups.master.environment.RANK",
        ),
        ("xgboost", {"policy": {"restart": "on_failure"}}, "policy.restart"),
        ("tensorflow", {"policy": {"restart": "always"}}, "policy.restart"),
        ("tensorflow", {"workers": None, "groups": {"worker": 1}}, "groups"),
    ],
)  # fmt: skip
def test_what_may_surprise_is_a_warning_at_its_field(
    framework: str, fields: dict[str, Any], path: str
) -> None:
    warnings = [p.path for p in check(a_job(framework=framework, **fields)) if p.severity == "warning"]
    assert path in warnings


@pytest.mark.parametrize("framework", ["xgboost", "tensorflow"])
def test_jobset_makes_a_lost_pod_anew(framework: str) -> None:
    job = a_job(framework=framework, engine="jobset", policy={"restart": "on_failure"})
    assert "policy.restart" not in [problem.path for problem in check(job)]


# A life in a cluster.


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.NAME)
@pytest.mark.parametrize(("code", "state"), [(0, State.SUCCEEDED), (3, State.FAILED)])
def test_a_job_of_each_kind_ends_as_its_members_do(engine: Any, code: int, state: State) -> None:
    cluster = FakeCluster()
    backend = cluster.backend()
    framework = engine.FRAMEWORKS[0]
    plan = a_plan(framework=framework, engine=engine.NAME, workers=3, policy={"restart": "never"})
    handle = backend.launch(plan, ME)
    running(cluster, backend, handle.run)
    seen = backend.observe(handle.run)
    total = {"mpi": 4, "mxnet": 5}.get(framework, 3)  # a launcher; a server and a scheduler
    assert state_of(seen) is State.RUNNING and [m.rank for m in seen.members] == [*range(total)]
    cluster.operator.end(handle.run, code)
    cluster.tick(3)
    seen = backend.observe(handle.run, evidence=True)
    assert state_of(seen) is state
    assert {condition.reason for condition in seen.conditions} >= {f"{engine.KIND}Created"}

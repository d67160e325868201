"""Who trains: groups, ranks, needs; and what the operator injects into each member."""

from __future__ import annotations

import pytest

from allaboard.engines import ENGINES
from allaboard.engines.base import Address, Counts, Place
from allaboard.runs.layout import Layout, Needs, allaboard_environment
from allaboard.testing import a_layout


@pytest.mark.parametrize(
    ("fields", "members"),
    [
        ({"workers": 1}, ["master-0"]),
        ({"workers": 3}, ["master-0", "worker-0", "worker-1"]),
        ({"workers": None}, ["master-0"]),
        ({"workers": 3, "elastic": {"min": 2, "max": 4}}, ["worker-0", "worker-1", "worker-2"]),
        ({"workers": None, "elastic": {"min": 1, "max": 2}}, ["worker-0", "worker-1"]),
        ({"workers": None, "groups": {"worker": 2, "master": 1}}, ["master-0", "worker-0", "worker-1"]),
        ({"workers": None, "groups": {"worker": 2}}, ["worker-0", "worker-1"]),
    ],
)
def test_members_by_the_rules_of_the_contract(fields: dict[str, object], members: list[str]) -> None:
    layout = a_layout(**fields)
    assert [m.name for m in layout.members] == members
    assert [m.rank for m in layout.members] == list(range(len(members)))


def test_a_layout_survives_json() -> None:
    layout = a_layout(
        elastic={"min": 1, "max": 2},
        resources={"cpu": "500m", "memory": "1Gi", "gpu": 1},
        checkpoints={"uri": "out", "every": 50, "best": {"metric": "acc", "mode": "max"}},
        policy={"clocks": {"image": "1m"}},
    )
    import json

    assert Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout


def test_a_group_overrides_the_job() -> None:
    layout = a_layout(
        workers=None,
        groups={
            "master": 1,
            "worker": {"replicas": 2, "resources": {"gpu": 2}, "environment": {"A": "2"}, "command": ["b"]},
        },
        resources={"cpu": 4, "gpu": 1},
        environment={"A": "1"},
    )
    master, worker = layout.groups
    assert master.needs == Needs(4.0, None, 1) and worker.needs == Needs(4.0, None, 2)
    assert master.environment == {"A": "1"} and worker.environment == {"A": "2"}
    assert master.command == ("python", "train.py") and worker.command == ("b",)


def test_what_the_place_adds_to_the_environment_gives_way_to_the_jobs_own() -> None:
    layout = a_layout(environment={"A": "1"})
    more = layout.with_environment({"A": "2", "B": "3"})
    assert all(group.environment == {"A": "1", "B": "3"} for group in more.groups)
    assert layout.with_environment({}) is layout


PYTORCH = ENGINES["pytorchjob"]


def services(name: str) -> Place:
    """Where the operator's Services put the members of a job of this name."""
    return {member: Address(f"{name}-{member}", 23456) for member in ("master-0", "worker-0")}


def test_master_and_workers_get_the_operators_variables() -> None:
    layout = a_layout(workers=3)
    env = PYTORCH.environment(layout, layout.members[2], services("digits-1"))
    assert env == {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "digits-1-master-0",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "3",
        "RANK": "2",
        "PET_MASTER_ADDR": "digits-1-master-0",
        "PET_MASTER_PORT": "23456",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NNODES": "3",
    }


def test_world_size_counts_processes_when_their_number_is_given() -> None:
    layout = a_layout(workers=3, processes_per_member=4)
    env = PYTORCH.environment(layout, layout.members[0], services("x"))
    assert env["WORLD_SIZE"] == "12" and env["PET_NPROC_PER_NODE"] == "4"


def test_a_masterless_gang_gets_no_rendezvous_unless_it_is_elastic() -> None:
    plain = a_layout(workers=None, groups={"worker": 2})
    assert PYTORCH.environment(plain, plain.members[0], services("x")) == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "1",
        "PET_NNODES": "2",
    }
    elastic = a_layout(workers=3, elastic={"min": 2, "max": 4, "max_restarts": 7})
    env = PYTORCH.environment(elastic, elastic.members[0], services("digits-1"))
    assert env["PET_NNODES"] == "2:4" and env["PET_RDZV_ENDPOINT"] == "digits-1-worker-0:23456"
    assert env["PET_RDZV_BACKEND"] == "c10d" and env["PET_MAX_RESTARTS"] == "7" and "RANK" not in env


def test_what_engine_spec_says_of_the_rendezvous_is_told_to_members_too() -> None:
    own = {"elasticPolicy": {"rdzvId": "mine", "standalone": True}}
    layout = a_layout(workers=2, elastic={"min": 1, "max": 2}, engine_spec=own)
    env = PYTORCH.environment(layout, layout.members[0], services(layout.name))
    assert (env["PET_RDZV_ID"], env["PET_STANDALONE"]) == ("mine", "")
    plain = a_layout(workers=2, elastic={"min": 1, "max": 2})
    env = PYTORCH.environment(plain, plain.members[0], services(plain.name))
    assert env["PET_RDZV_ID"] == plain.name and "PET_STANDALONE" not in env


def test_the_master_decides_else_all_workers_else_any_elastic_one() -> None:
    master, workers, elastic = (
        a_layout(workers=3),
        a_layout(workers=None, groups={"worker": 2}),
        a_layout(elastic={"min": 1, "max": 2}),
    )
    done, going = Counts(1, succeeded=1), Counts(1, active=1)
    assert PYTORCH.judge(master, {"master": done, "worker": Counts(2, active=2)}).succeeded
    assert not PYTORCH.judge(master, {"master": going, "worker": Counts(2, succeeded=2)}).succeeded
    assert not PYTORCH.judge(workers, {"worker": Counts(2, active=1, succeeded=1)}).succeeded
    assert PYTORCH.judge(workers, {"worker": Counts(2, succeeded=2)}).succeeded
    assert PYTORCH.judge(elastic, {"worker": Counts(2, active=1, succeeded=1)}).succeeded
    assert (
        PYTORCH.judge(workers, {"worker": Counts(2, active=1)}).running
        and not PYTORCH.judge(workers, {"worker": Counts(2)}).running
    )


def test_our_own_variables_say_where_the_state_is() -> None:
    layout = a_layout(
        checkpoints={"uri": "/out/", "every": "10m", "keep": 2, "best": {"metric": "acc", "mode": "max"}},
        data={"shards": "/s"},
    )
    env = allaboard_environment(layout, layout.members[1])
    assert env["ALLABOARD_CHECKPOINTS"] == "/out/digits-1" and env["ALLABOARD_CHECKPOINT_EVERY"] == "600s"
    assert env["ALLABOARD_CHECKPOINT_BEST"] == "acc:max" and env["ALLABOARD_DATA"] == "/s"
    assert env["ALLABOARD_MEMBER"] == "worker-0" and "ALLABOARD_START_FROM" not in env


def test_every_engine_has_all_that_an_engine_has() -> None:
    for engine in ENGINES.values():
        assert (
            all(engine.roles(framework) for framework in engine.FRAMEWORKS)
            and engine.KIND
            and all(
                engine.default_restart(framework) in ("never", "on_failure", "always", "exit_code")
                for framework in engine.FRAMEWORKS
            )
        )
        assert callable(engine.environment) and callable(engine.judge) and callable(engine.message)


def test_how_long_a_run_may_be_silent_is_its_own_history_unless_it_says_a_time_or_off() -> None:
    def policy(**hang: object) -> tuple[float | None, str]:
        laid = a_layout(policy={"hang": hang} if hang else {}).policy
        return laid.hang_after, laid.hang_then

    assert policy() == (None, "tell")
    assert policy(after="auto", then="fail") == (None, "fail")
    assert policy(after="15m", then="restart") == (900.0, "restart")
    assert policy(after="off") == (None, "off")

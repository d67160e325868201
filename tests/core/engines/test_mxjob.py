"""MXJob, which the Training Operator knew up to 1.8: what is sent fits the definition of its last release,
and what is injected is what that release wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.checking.job import check
from allaboard.engines import ENGINES
from allaboard.engines.base import Address, Counts
from allaboard.inside.context import ranks
from allaboard.runs.layout import Layout, allaboard_environment
from allaboard.testing import a_job, a_layout
from tests.core.backends.kubernetes.golden import made, of_engine

ENGINE = ENGINES["mxjob"]
PORT = 9091
DEFINITION = yaml.safe_load((Path(__file__).parent / "mxjobs-1.8.1.yaml").read_text())


def an_mxjob(**fields: Any) -> Layout:
    return a_layout(framework="mxnet", **fields)


def strict(schema: Any) -> Any:
    """The schema, with fields that it does not know being errors, as under strict validation."""
    if not isinstance(schema, dict):
        return schema
    known = {name: strict(part) for name, part in schema.items() if name not in ("required", "default")}
    if "required" in schema:
        known["required"] = schema["required"]
    closed = "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")
    return {**known, **({"additionalProperties": False} if closed else {})}


def flaws(job: dict[str, Any]) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    schema = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = strict(schema["properties"]["spec"])
    return [error.message for error in jsonschema.Draft202012Validator(spec).iter_errors(job["spec"])]


@pytest.mark.parametrize(
    "fields",
    [
        {"workers": 3},
        {"workers": 1, "policy": {"ttl": "1h", "deadline": "2h", "restart": "exit_code"}},
        {"workers": None, "groups": {"tuner": 1, "tunertracker": 1, "tunerserver": 2}},
    ],
)
def test_what_is_sent_fits_the_definition_of_the_last_release(fields: dict[str, Any]) -> None:
    job = made(framework="mxnet", **fields).job
    assert flaws(job) == []
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", DEFINITION["spec"]["names"]["kind"])


def test_the_definition_refuses_what_it_does_not_know() -> None:
    *_, job = yaml.safe_load_all(of_engine("mxjob"))
    job["spec"]["jobModes"] = job["spec"].pop("jobMode")
    assert len(flaws(job)) == 2, "one field is missing, and one is not known"


def test_modes_and_replica_types_have_the_names_of_the_operator() -> None:
    spec = made(framework="mxnet", workers=2).job["spec"]
    assert spec["jobMode"] == "MXTrain"
    assert {role: one["replicas"] for role, one in spec["mxReplicaSpecs"].items()} == {
        "Worker": 2, "Server": 1, "Scheduler": 1,
    }  # fmt: skip
    groups = {"tuner": 1, "tunertracker": 1, "tunerserver": 2}
    spec = made(framework="mxnet", workers=None, groups=groups).job["spec"]
    assert spec["jobMode"] == "MXTune" and [*spec["mxReplicaSpecs"]] == [
        "Tuner",
        "TunerServer",
        "TunerTracker",
    ]


def test_workers_train_and_servers_have_none_of_their_gpus() -> None:
    layout = an_mxjob(workers=2, resources={"gpu": 1})
    assert [(group.role, group.needs.gpu) for group in layout.groups] == [
        ("worker", 1), ("server", 0), ("scheduler", 0),
    ]  # fmt: skip
    known = [ranks(allaboard_environment(layout, member)) for member in layout.members]
    assert known == [(0, 2), (1, 2), (2, 4), (3, 4)]
    assert [group.role for group in an_mxjob(workers=1).groups] == ["worker"], "one alone needs no server"


def environment(layout: Layout, name: str) -> dict[str, str]:
    place = {m.name: Address(f"{layout.name}-{m.name}", PORT) for m in layout.members}
    assert {*place} == {member for names in ENGINE.listeners(layout) for member in names}
    (member,) = (m for m in layout.members if m.name == name)
    return ENGINE.environment(layout, member, place)


def test_members_get_the_scheduler_and_the_whole_cluster() -> None:
    layout = an_mxjob(workers=2)
    told = environment(layout, "worker-1")
    config = json.loads(told.pop("MX_CONFIG"))
    assert told == {
        "DMLC_PS_ROOT_PORT": "9091",
        "DMLC_PS_ROOT_URI": "digits-1-scheduler-0",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_ROLE": "worker",
        "DMLC_USE_KUBERNETES": "1",
        "DMLC_WORKER_ID": "1",
    }
    assert config == {
        "cluster": {
            "scheduler": [{"url": "digits-1-scheduler-0", "port": 9091}],
            "server": [{"url": "digits-1-server-0", "port": 9091}],
            "worker": [{"url": f"digits-1-worker-{n}", "port": 9091} for n in range(2)],
        },
        "labels": {"scheduler": "", "server": "", "worker": ""},
        "task": {"type": "worker", "index": 1},
    }
    server = environment(layout, "server-0")
    assert server["DMLC_ROLE"] == "server" and "DMLC_WORKER_ID" not in server
    assert ENGINE.listeners(layout)[0] == ("scheduler-0",), "where the others meet"


def test_one_alone_gets_the_address_of_nobody() -> None:
    told = environment(an_mxjob(workers=1), "worker-0")
    assert (told["DMLC_PS_ROOT_URI"], told["DMLC_PS_ROOT_PORT"]) == ("", "0")


@pytest.mark.parametrize(
    ("counts", "over"),
    [
        ({"scheduler": Counts(1, succeeded=1), "worker": Counts(2, active=2)}, True),
        ({"scheduler": Counts(1, active=1), "worker": Counts(2, succeeded=2)}, False),
        ({"worker": Counts(1, succeeded=1)}, True),
        ({"worker": Counts(2, succeeded=2)}, False),
        ({"tuner": Counts(1, succeeded=1)}, False),
    ],
)
def test_the_scheduler_decides_or_a_worker_that_is_alone(counts: dict[str, Counts], over: bool) -> None:
    assert ENGINE.judge(an_mxjob(), counts).succeeded is over


def test_it_says_which_operators_know_it() -> None:
    (problem,) = check(a_job(framework="mxnet"))
    assert (problem.path, problem.severity) == ("framework", "warning")
    assert "up to 1.8" in problem.message and "up to 1.8" in ENGINE.OPERATOR.title
    assert ENGINE.OPERATOR.guide == "training-operator-1.8" and ENGINE.OPERATOR.id == "training-operator"


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"worker": 2}, "never succeeds without a scheduler"),
        ({"worker": 1, "server": 1}, "never succeeds without a scheduler"),
        ({"worker": 1, "scheduler": 1, "tuner": 1}, "a job does one of both"),
        ({"tuner": 1}, "never succeeds by itself"),
    ],
)
def test_groups_that_lead_nowhere_are_told(groups: dict[str, int], words: str) -> None:
    found = {p.path: p.message for p in check(a_job(framework="mxnet", workers=None, groups=groups))}
    assert words in found.get("groups", f"nothing; said {found}")


def test_the_words_for_a_failure_are_the_operators() -> None:
    said = ENGINE.message("Failed", "digits", master=False, role="scheduler", count=1)
    assert said == "mxjob digits is failed because 1 Scheduler replica(s) failed."
    assert ENGINE.message("Running", "digits", master=False) == "MXJob digits is running."

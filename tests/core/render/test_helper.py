"""The helper in the objects of every engine: mounted, around the command, and gone again in a job of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.discovery.pod_security import violations
from allaboard.backends.kubernetes.lifecycle.helper import helper_files
from allaboard.checking.job import check, require_valid
from allaboard.convert.manifests import Document, convert
from allaboard.engines import ENGINES, engine_of
from allaboard.errors import BadInput
from allaboard.job.helper import CHECKPOINTS, FOLDER, VOLUME, start_words, without_helper
from allaboard.job.identity import spec_hash, spec_of
from allaboard.lint import lint_object
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts
from allaboard.render.helper import keeps_checkpoints
from allaboard.render.manifests import Rendered, render
from allaboard.runs.layout import lay_out

FRAMEWORKS = {
    "pytorchjob": "pytorch", "tfjob": "tensorflow", "mpijob": "mpi", "mpijob-v1": "mpi", "jaxjob": "jax",
    "xgboostjob": "xgboost", "paddlejob": "paddle", "trainjob": "pytorch", "jobset": "pytorch",
    "mxjob": "mxnet",
}  # fmt: skip
COMMAND = ["python3.8", "train.py", "--lr=$(LR)"]


def rendered(engine: str = "pytorchjob", facts: ClusterFacts = ASSUMED, **fields: Any) -> Rendered:
    job = require_valid(
        {
            "name": "digits",
            "engine": engine,
            "framework": FRAMEWORKS[engine],
            "image": "lab/train:1",
            "command": COMMAND,
            "args": ["--deep"],
            "workers": 2,
            "environment": {"LR": "0.1"},
            **fields,
        }
    )
    layout = lay_out(job, engine_of(job), "digits-1")
    return render(
        job, layout, facts, launch="l", spec_hash=spec_hash(spec_of(job)), helper=helper_files("exec")
    )


def within(value: Any, name: str) -> Iterator[Any]:
    """Every value of this name in an object."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == name:
                yield inner
            yield from within(inner, name)
    elif isinstance(value, list):
        for item in value:
            yield from within(item, name)


def test_every_engine_is_here() -> None:
    assert {*FRAMEWORKS} == {*ENGINES}


@pytest.mark.parametrize("engine", FRAMEWORKS)
def test_it_stands_around_the_command(engine: str) -> None:
    made = rendered(engine)
    manifests = list(made.manifests)
    (helper,) = [
        m for m in manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"].endswith("-helper")
    ]
    assert manifests.index(helper) < len(manifests) - 1, "it is there before the job"
    assert helper["immutable"] is True
    assert {*helper["data"]} == {"start.sh", "start.py", "endpoint.py", "python-sitecustomize.py"}
    commands = [command for command in within(manifests, "command") if command]
    ours = [command for command in commands if command[-3:] == COMMAND]
    assert ours and all(command == [*start_words(COMMAND), *COMMAND] for command in ours)
    assert all("sshd" in command[0] for command in commands if command not in ours), "sshd is the operator's"
    assert all(args == ["--deep"] for args in within(manifests, "args"))
    mounts = [mount for mounts in within(manifests, "volumeMounts") for mount in mounts]
    assert {"name": VOLUME, "mountPath": FOLDER, "readOnly": True} in mounts
    sources = [
        v["configMap"] for volumes in within(manifests, "volumes") for v in volumes if v["name"] == VOLUME
    ]
    assert sources and all(source["name"] == helper["metadata"]["name"] for source in sources)
    assert all(source["optional"] for source in sources), "a job that is sent elsewhere starts without it"
    kinds = frozenset({"kubeflow.org/v1/PyTorchJob"})
    alone = rendered(engine, facts=replace(ASSUMED, kinds=kinds))
    volumes = [v for volumes in within([*alone.manifests], "volumes") for v in volumes if v["name"] == VOLUME]
    assert volumes and not any("optional" in v["configMap"] for v in volumes), (
        "without Kueue pods wait for it"
    )
    paths = {item["path"] for item in sources[0]["items"]}
    assert paths == {"start.sh", "start.py", "endpoint.py", "python/sitecustomize.py"}


@pytest.mark.parametrize("engine", FRAMEWORKS)
def test_off_leaves_it_out_and_changes_nothing_else(engine: str) -> None:
    with_it, without = rendered(engine), rendered(engine, inject="off")
    hashes = {"allaboard.io/spec-hash": ""}
    there = [without_helper(m) for m in with_it.manifests if not m["metadata"]["name"].endswith("-helper")]
    for manifest in (*there, *without.manifests):
        manifest["metadata"]["annotations"] = {**manifest["metadata"].get("annotations", {}), **hashes}
    assert there == [dict(m) for m in without.manifests]
    assert FOLDER not in str(without.manifests) and without.unhelped == ()


@pytest.mark.parametrize("engine", [name for name in FRAMEWORKS if name != "trainjob"])
def test_a_manifest_with_it_is_the_job_again(engine: str) -> None:
    """But a TrainJob of a run, which is no job again."""
    made, without = rendered(engine), rendered(engine, inject="off")

    def job_of(objects: Rendered) -> Any:
        found = [*convert([Document("rendered", "one text", m) for m in objects.manifests])]
        (outcome,) = [one for one in found if one.documents]
        return outcome.documents[0], outcome.lost

    assert job_of(made) == job_of(without)
    assert COMMAND in list(within(job_of(made)[0], "command"))


def test_lint_sees_the_command_itself() -> None:
    fields: dict[str, Any] = {"command": ["sh", "-c", "python", "train.py"], "args": []}
    plain = [finding.code for finding in lint_object(rendered(inject="off", **fields).job) or ()]
    assert [finding.code for finding in lint_object(rendered(**fields).job) or ()] == plain
    assert [code for code in plain if "shell" in code], plain


def test_the_hash_of_a_job_without_the_field_is_what_it_was() -> None:
    job = require_valid({"name": "digits", "command": ["python", "train.py"]})
    assert spec_of(job) == {"name": "digits", "command": ["python", "train.py"]}


@pytest.mark.parametrize("word", ["off", False])
def test_the_field(word: object) -> None:
    """A bare off is false to YAML 1.1."""
    job = require_valid({"name": "digits", "command": ["python"], "inject": word})
    assert job.get("inject") == "off"
    [problem] = check({"name": "digits", "command": ["python"], "inject": "on"})
    assert problem.path == "inject" and "known: off" in problem.message


def test_its_folder_is_no_other_mount() -> None:
    fields = {"name": "digits", "command": ["python"], "storage": [{"mount": FOLDER + "/", "pvc": "x"}]}
    [problem] = check(fields)
    assert problem.path == "storage[0].mount" and "inject: off" in problem.message
    assert check({**fields, "inject": "off"}) == []


def test_the_level_restricted_takes_it() -> None:
    made = rendered(security="restricted")
    for template in within(made.job, "template"):
        assert violations(template["spec"], "restricted") == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": None}, "no command is given"),
        ({"host_network": True}, "the loopback is the node's"),
        ({"command": ["torchrun", "t.py"], "environment": {"a.b": "x"}}, "drops the 1 variable a.b"),
        ({"command": ["/usr/sbin/sshd", "-De"]}, "started by the operator's rules"),
        ({"pod": {"spec": {"containers": [{"name": "pytorch", "volumeMounts": [
            {"name": "shm", "mountPath": FOLDER}]}]}}}, "something else is mounted"),
    ],
)  # fmt: skip
def test_what_is_lost_is_told(fields: dict[str, Any], words: str) -> None:
    fields = {name: value for name, value in {"command": COMMAND, **fields}.items() if value is not None}
    job: dict[str, Any] = {"name": "digits", "image": "x", "args": ["a"], "workers": 1, **fields}
    layout = lay_out(require_valid(job), ENGINES["pytorchjob"], "digits-1")
    made = render(require_valid(job), layout, ASSUMED, launch="l", spec_hash="h", helper=helper_files("exec"))
    assert len(made.unhelped) == 1 and words in made.unhelped[0]
    off = render(
        require_valid({**job, "inject": "off"}), layout, ASSUMED, launch="l", spec_hash="h",
        helper=helper_files("exec"),
    )  # fmt: skip
    assert off.unhelped == ()


SHARED = {"storage": [{"mount": "/out", "pvc": "shared"}], "checkpoints": {"uri": "/out/x", "format": "auto"}}


def attempt(**fields: Any) -> Rendered:
    fields = {"name": "digits", "image": "x", "command": COMMAND, "workers": 2, **SHARED, **fields}
    job = require_valid({name: value for name, value in fields.items() if value is not None})
    layout = lay_out(job, engine_of(job), "digits-1")
    files = helper_files("exec", keeps_checkpoints(layout))
    return render(job, layout, ASSUMED, launch="l", spec_hash="h", helper=files)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ["adopt", "adopt"]),
        ({"command": [*COMMAND, "--resume", "{checkpoint}"]}, ["fill", "fill"]),
        ({"environment": {"RESUME": "{checkpoint}"}}, ["fill", "fill"]),
        ({"args": ["x={checkpoint}"]}, ["fill", "fill"]),
        ({"groups": {"master": 1, "worker": {"replicas": 1, "command": ["python", "w.py", "{checkpoint}"]}},
          "workers": None}, ["adopt", "fill"]),
        ({"checkpoints": {"uri": "/out/x"}}, []),
        ({"checkpoints": {"uri": "/out/x"}, "args": ["x={checkpoint}"]}, []),
        ({"checkpoints": {"uri": "s3://out/x", "format": "auto"}}, []),
    ],
)  # fmt: skip
def test_who_keeps_checkpoints_is_told_and_has_what_judges_them(
    fields: dict[str, Any], told: list[str]
) -> None:
    made = attempt(**fields)
    named = [v["value"] for env in within(made.job, "env") for v in env if v["name"] == CHECKPOINTS]
    assert named == told
    (helper,) = [m for m in made.manifests if m["metadata"]["name"].endswith("-helper")]
    assert ("binaryData" in helper) is bool(told)
    if told:
        assert {*helper["binaryData"]} == {"checkpoints.zip"} and "keep.py" in helper["data"]
        assert len(json.dumps(helper)) < 256 * 1024, "a quarter of a ConfigMap"


@pytest.mark.parametrize("engine", ["mpijob", "jobset", "trainjob"])
def test_a_launcher_fills_in_the_words_of_its_ranks(engine: str) -> None:
    """Workers run sshd; a variable reaches the ranks by `mpirun -x`."""
    command = ["mpirun", "-x", "RESUME", "python", "t.py", "{checkpoint}"]
    resumes = {"command": command, "environment": {"RESUME": "{checkpoint}"}}
    made = attempt(
        engine=engine, framework="mpi", workers=None, groups={"launcher": 1, "worker": 2}, **resumes
    )
    named = [v["value"] for env in within([*made.manifests], "env") for v in env if v["name"] == CHECKPOINTS]
    assert named == ["fill"]


def test_who_has_no_helper_is_told_that_nobody_adopts() -> None:
    assert "checkpoints adopt" in attempt(command=None, args=["a"]).unhelped[0]
    plain = attempt(command=None, args=["a"], checkpoints={"uri": "/out/x"})
    assert "checkpoints adopt" not in plain.unhelped[0]


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"inject": "off"}, "command", "filled in by the helper"),
        ({"command": None, "args": ["{checkpoint}"]}, "command", "filled in by the helper"),
        ({"environment": {"ALLABOARD_STARTUP": "off"}}, "command", "or is off"),
        ({"elastic": {"min": 1, "max": 2}}, "command", "an elastic gang"),
        ({"checkpoints": {"uri": "s3://out/x", "format": "auto"}}, "checkpoints.uri", "below a mount"),
    ],
)  # fmt: skip
def test_what_cannot_be_filled_in_is_a_problem(fields: dict[str, Any], path: str, words: str) -> None:
    fields = {"command": ["python", "t.py", "{checkpoint}"], "workers": 2, **SHARED, **fields}
    job = require_valid({"name": "digits", "image": "x"} | {k: v for k, v in fields.items() if v is not None})
    layout = lay_out(job, engine_of(job), "digits-1")
    with pytest.raises(BadInput) as refused:
        render(job, layout, ASSUMED, launch="l", spec_hash="h", helper=helper_files("exec", True))
    [problem] = [p for p in refused.value.problems if "{checkpoint}" in p.message]
    assert problem.path == path and words in problem.message


def test_no_endpoint_in_the_network_of_a_node() -> None:
    (container,) = next(within(rendered(host_network=True).job, "containers"))
    assert {"name": "ALLABOARD_ENDPOINT", "value": "off"} in container["env"]


def test_a_command_that_pod_gives_is_the_one() -> None:
    pod = {"spec": {"containers": [{"name": "pytorch", "command": ["bash", "-c", "x"]}]}}
    (container,) = next(within(rendered(pod=pod).job, "containers"))
    assert container["command"] == [*start_words(["bash"]), "bash", "-c", "x"]


def test_who_is_asked_by_a_file_has_what_asks() -> None:
    assert {*helper_files("file")} - {*helper_files("exec")} == {"stacks.py"}
    assert sum(map(len, helper_files("file").values())) < 64 * 1024, "a small part of a ConfigMap"

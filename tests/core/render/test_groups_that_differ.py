"""What a job says of its groups and of its object: images, arguments, restarts, pods, labels."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.checking.job import check, require_valid
from allaboard.engines import engine_of
from allaboard.job.explaining import explain
from allaboard.job.identity import spec_hash, spec_of
from allaboard.job.schema import job_schema
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts
from allaboard.render.manifests import render
from allaboard.runs.layout import UNLIMITED, Layout, lay_out
from allaboard.testing import a_job

Json = dict[str, Any]
NATIVE = ClusterFacts(operator_gangs={"training-operator": "volcano"})


def layout_of(**fields: Any) -> Layout:
    job = require_valid(a_job(**{"image": "lab/train:1", "workers": None, **fields}))
    return lay_out(job, engine_of(job), "digits-00000000")


def manifest(facts: ClusterFacts = ASSUMED, **fields: Any) -> Json:
    job = require_valid(a_job(**{"image": "lab/train:1", "workers": None, **fields}))
    layout = lay_out(job, engine_of(job), "digits-00000000")
    return render(job, layout, facts, launch="l", spec_hash="v1:0").job


def replicas(**fields: Any) -> Json:
    return dict(manifest(**fields)["spec"]["pytorchReplicaSpecs"])


def container(role: str, **fields: Any) -> Json:
    return dict(replicas(**fields)[role]["template"]["spec"]["containers"][0])


def errors(**fields: Any) -> dict[str, str]:
    job = {"name": "digits", "image": "lab/train:1", "command": ["python"], **fields}
    return {p.path: p.message for p in check({k: v for k, v in job.items() if v is not None})}


# Command and arguments.


def test_arguments_stand_beside_the_command_or_alone_for_the_entrypoint() -> None:
    both = container("Master", command=["python", "train.py"], args=["--epochs=2"])
    assert (both["command"], both["args"]) == (["python", "train.py"], ["--epochs=2"])
    alone = container("Master", command=None, args=["--epochs=2"])
    assert alone["args"] == ["--epochs=2"] and "command" not in alone
    nothing = container("Master", command=None, args=[])
    assert not {"command", "args"} & set(nothing)


def test_the_arguments_of_a_job_are_for_its_own_command() -> None:
    groups = {"master": 1, "worker": {"command": ["python", "worker.py"]}}
    worker = container("Worker", args=["--lead"], groups=groups)
    assert worker["command"] == ["python", "worker.py"] and "args" not in worker
    assert container("Master", args=["--lead"], groups=groups)["args"] == ["--lead"]
    groups = {"master": 1, "worker": {"args": []}}
    assert "args" not in container("Worker", args=["--lead"], groups=groups)


def test_a_group_without_a_command_runs_the_entrypoint_of_its_image() -> None:
    groups = {"master": {"command": ["python"]}, "worker": {"command": None, "args": ["--serve"]}}
    worker = container("Worker", command=None, groups=groups)
    assert worker["args"] == ["--serve"] and "command" not in worker
    assert "command" in errors(command=None, groups={"master": {"command": ["python"]}, "worker": 1})


@pytest.mark.parametrize(
    ("args", "path", "words"),
    [
        ("--epochs 2", "args", "write [--epochs, 2]"),
        ({"a": 1}, "args", "expected arguments"),
        ([None], "args[0]", "expected text"),
    ],
)
def test_what_are_no_arguments_is_said(args: Any, path: str, words: str) -> None:
    assert words in errors(args=args)[path]


def test_who_gives_nothing_to_run_is_told_both_ways() -> None:
    assert "args: []" in errors(command=None)["command"]


# Groups.


def test_groups_have_images_restarts_and_pods_of_their_own() -> None:
    found = replicas(
        policy={"restart": "never"},
        pod={"spec": {"hostNetwork": True, "nodeSelector": {"zone": "a"}}},
        groups={
            "master": 1,
            "worker": {
                "replicas": 2,
                "image": "lab/worker:1",
                "restart": "exit_code",
                "pod": {
                    "metadata": {"labels": {"tier": "worker"}},
                    "spec": {"hostNetwork": None, "nodeSelector": {"disk": "ssd"}},
                },
            },
        },
    )
    master, worker = found["Master"], found["Worker"]
    assert (master["restartPolicy"], worker["restartPolicy"]) == ("Never", "ExitCode")
    images = [one["template"]["spec"]["containers"][0]["image"] for one in (master, worker)]
    assert images == ["lab/train:1", "lab/worker:1"]
    assert master["template"]["spec"]["hostNetwork"] is True
    assert "hostNetwork" not in worker["template"]["spec"]
    assert worker["template"]["spec"]["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    assert worker["template"]["metadata"]["labels"]["tier"] == "worker"
    assert "tier" not in master["template"]["metadata"]["labels"]


def test_a_layout_knows_when_the_members_of_each_group_are_started_again() -> None:
    layout = layout_of(groups={"master": 1, "worker": {"restart": "never"}})
    assert (layout.restart_of("master"), layout.restart_of("worker")) == ("on_failure", "never")
    assert Layout.from_dict(layout.to_dict()) == layout


def test_what_is_wrong_with_a_group_is_said_at_its_path() -> None:
    groups = {
        "master": {"image": "Not An Image", "restart": "sometimes"},
        "worker": {"pod": {"spec": {"restartPolicy": "Never"}}},
    }
    found = errors(groups=groups)
    assert {"groups.master.image", "groups.master.restart"} <= {*found}
    found = errors(groups={"master": 1, "worker": groups["worker"]})
    assert "the engine sets it" in found["groups.worker.pod.spec.restartPolicy"]


def test_an_image_is_missing_unless_every_group_has_one() -> None:
    own = {"image": "lab/train:1"}
    assert container("Worker", image=None, groups={"master": own, "worker": own})["image"] == "lab/train:1"
    with pytest.raises(Exception, match="image"):
        manifest(image=None, groups={"master": own, "worker": 1})


# Labels and annotations of the job object.


def test_the_job_object_carries_labels_and_annotations_of_the_job() -> None:
    own = {"labels": {"kueue.x-k8s.io/queue-name": "q", "app.kubernetes.io/managed-by": "me"}}
    metadata = manifest(metadata={**own, "annotations": {"example.com/owner": "vision: team"}})["metadata"]
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "allaboard"
    assert metadata["annotations"]["example.com/owner"] == "vision: team"
    assert {"allaboard.io/launch", "allaboard.io/gang"} <= {*metadata["annotations"]}


@pytest.mark.parametrize(
    ("metadata", "path", "words"),
    [
        ({"labels": {"a b": "c"}}, "metadata.labels.a b", "not a label name"),
        ({"labels": {"a": "not a value"}}, "metadata.labels.a", "not a label value"),
        ({"labels": {"a": True}}, "metadata.labels.a", "quote it"),
        ({"labels": {"allaboard.io/run": "x"}}, "metadata.labels.allaboard.io/run", "take it out"),
        ({"annotations": ["a"]}, "metadata.annotations", "expected names and text"),
        ({"annotations": {"a": "x" * 300_000}}, "metadata.annotations", "256 KiB"),
        ({"name": "x"}, "metadata.name", "no such field"),
    ],
)
def test_what_the_job_object_cannot_carry_is_said(metadata: Any, path: str, words: str) -> None:
    assert words in errors(metadata=metadata)[path]


# Limits.


def test_restarts_may_be_unlimited() -> None:
    assert "backoffLimit" not in manifest(policy={"backoff_limit": "unlimited"})["spec"]["runPolicy"]
    assert manifest()["spec"]["runPolicy"]["backoffLimit"] == 3
    assert layout_of(policy={"backoff_limit": "unlimited"}).policy.backoff_limit == UNLIMITED
    assert "policy.backoff_limit" in errors(policy={"backoff_limit": "endless"})
    assert "policy.backoff_limit" in errors(policy={"backoff_limit": -1})


# What only the engine's own object says.


def test_a_job_may_say_the_gang_of_the_operator_itself() -> None:
    own = {"minAvailable": 1, "minResources": {"cpu": "4"}}
    spec = manifest(NATIVE, groups={"master": 1, "worker": 2}, gang={"queue": "q"},
                    engine_spec={"runPolicy": {"schedulingPolicy": own}})["spec"]  # fmt: skip
    assert spec["runPolicy"]["schedulingPolicy"] == {**own, "queue": "q"}


def test_a_job_may_say_the_rendezvous_that_others_know() -> None:
    own = {"rdzvId": "mine", "rdzvHost": "meet.example", "rdzvPort": 29400, "standalone": True}
    fields: Json = {"groups": {"worker": 2}, "elastic": {"min": 1, "max": 2}}
    policy = manifest(**fields, engine_spec={"elasticPolicy": own})["spec"]["elasticPolicy"]
    assert {name: policy[name] for name in own} == own
    assert manifest(**fields)["spec"]["elasticPolicy"]["rdzvId"] == "digits-00000000"


# The vocabulary.


def test_the_new_fields_are_explained_and_in_the_schema() -> None:
    for path in ("args", "metadata.labels", "groups.worker.image", "groups.worker.pod", "groups.ps.restart"):
        assert explain(path).doc
    assert explain("policy.backoff_limit").allowed == "unlimited or 0 to 2147483647"
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(job_schema())
    job: Json = {
        "name": "digits",
        "args": [],
        "metadata": {"labels": {"a": "b"}},
        "policy": {"backoff_limit": "unlimited"},
        "groups": {"worker": {"image": "a", "args": ["b"], "restart": "never", "pod": {"spec": {}}}},
    }
    assert not list(validator.iter_errors(job))
    assert list(validator.iter_errors({"name": "digits"}))


def test_the_hash_of_a_job_that_says_none_of_it_is_what_it_was() -> None:
    job = a_job(name="digits", command=["python", "train.py"], workers=2)
    assert spec_of(job) == {"name": "digits", "command": ["python", "train.py"], "workers": 2}
    known = "v1:564c275a34f9607f93b788cb9223e9a5d9896901ae563406093d49e7495cdfc9"
    assert spec_hash(spec_of(job)) == known

"""JobSets become jobs, and the JobSets of those mean the same; what differs is told with its path."""

# ruff: noqa: E501  (tables)

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

from allaboard.convert.manifests import Document, Outcome, convert
from allaboard.engines import ENGINES
from tests.core.convert.generated import a_jobset
from tests.core.convert.manifests import back, in_folder, there

Json = dict[str, Any]
AT = "spec.replicatedJobs"
POD = "template.spec.template.spec"
MARK = "metadata.annotations['{}']"
EXAMPLES = [one for one in in_folder("examples") if one.text.startswith("jobset-")]


def field(label: str) -> Json:
    return {"valueFrom": {"fieldRef": {"fieldPath": MARK.format(label)}}}


COMPLETION = field("batch.kubernetes.io/job-completion-index")


def a_part(
    name: str = "workers", pods: int = 1, *, jobs: int = 1, pod: Json | None = None, **job: Any
) -> Json:
    """A replicated job. ``pod``: fields of its container."""
    container = {"name": "main", "image": "lab/train:1", "command": ["python", "train.py"], **(pod or {})}
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, **job}
    spec["template"] = {"spec": {"containers": [container]}}
    return {"name": name, "replicas": jobs, "template": {"spec": spec}}


def a_set(*parts: Json, name: str = "mnist", **spec: Any) -> Json:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [*parts], **spec},
    }


def of(manifest: Json) -> Outcome:
    (outcome,) = convert([Document("x.yaml", "x.yaml", manifest)])
    return outcome


def job_of(manifest: Json) -> Json:
    outcome = of(manifest)
    assert not outcome.problems, outcome.problems
    return dict(outcome.documents[0])


def changes(manifest: Json) -> dict[str, Any]:
    return {one.path: one.after for one in of(manifest).changed}


def lost(manifest: Json) -> list[str]:
    return [one.path for one in of(manifest).lost]


def problems(manifest: Json) -> dict[str, str]:
    return {one.path: one.message for one in of(manifest).problems}


def rendered(manifest: Json) -> Json:
    """The spec of the JobSet of its job."""
    spec: Json = back(job_of(manifest), ENGINES["jobset"])["spec"]
    return spec


def job_spec_of(manifest: Json, group: int = 0) -> Json:
    """The spec of the Jobs of a group."""
    spec: Json = rendered(manifest)["replicatedJobs"][group]["template"]["spec"]
    return spec


def env_of(manifest: Json, group: int = 0) -> Json:
    """What the members of a group are told in the end: a value, or where it is from."""
    (container,) = rendered(manifest)["replicatedJobs"][group]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


# What was published.


@pytest.mark.parametrize("document", EXAMPLES, ids=lambda document: document.text)
def test_an_example_is_converted(document: Document) -> None:
    (outcome,) = convert([document])
    assert not outcome.problems
    told = {one.path.partition("].")[2] or one.path for one in outcome.lost}
    exclusive = {
        "metadata.annotations.alpha.jobset.sigs.k8s.io/exclusive-topology",
        f"{POD}.containers[0].env",
    }
    assert told == (exclusive if "exclusive" in document.text else set())
    assert_nothing_is_dropped(document.value)


def test_the_example_of_pytorch_reads_as_a_person_would_write_it() -> None:
    (document,) = [one for one in EXAMPLES if "cnn-mnist" in one.text]
    job = job_of(document.value)
    script = job["command"].pop()
    assert "--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT --node_rank=$RANK" in script
    assert job == {
        "name": "pytorch",
        "engine": "jobset",
        "framework": "pytorch",
        "image": "gcr.io/k8s-staging-jobset/pytorch-mnist:latest",
        "command": ["bash", "-xc"],
        "groups": {"master": 1, "worker": 3},
        "environment": {"JOB_COMPLETION_INDEX": "$(ALLABOARD_RANK)"},
        "pod": {"spec": {"containers": [{"name": "pytorch", "ports": [{"containerPort": 3389}]}]}},
        "policy": {"restart": "never"},
        "engine_spec": {"successPolicy": {"operator": "All", "targetReplicatedJobs": ["master", "worker"]}},
    }


# Properties.


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{n}]")
    elif value is not None:
        yield path, value


SAID_BY_DEFAULT = ("suspend", "completionMode", "startupPolicyOrder", "enableDNSHostnames", "operator")


def assert_nothing_is_dropped(manifest: Json) -> None:
    """Whatever it says is said by the JobSet of its job under the same name, or is told."""
    outcome = of(manifest)
    told = [one.path for one in (*outcome.changed, *outcome.lost)]
    spec = rendered(manifest)
    renamed = [one.before for one in outcome.changed if one.path.endswith("].name")]
    kept = {(path.rpartition(".")[2].partition("[")[0], str(value)) for path, value in leaves(spec)}
    for path, value in leaves(manifest["spec"], "spec"):
        name = path.rpartition(".")[2].partition("[")[0]
        meant = name in SAID_BY_DEFAULT or (name, str(value)) in kept or value in renamed
        assert meant or any(path.startswith(one) for one in told), (path, value)


@pytest.mark.parametrize("rounds", [40, pytest.param(400, marks=pytest.mark.thorough)])
def test_whatever_a_jobset_says_is_kept_or_told(rounds: int) -> None:
    rng = random.Random("jobsets")
    converted = 0
    for _ in range(rounds):
        manifest = a_jobset(rng)
        if not of(manifest).problems:
            converted += 1
            assert_nothing_is_dropped(with_plain_pods(manifest))
    assert converted == rounds


def with_plain_pods(manifest: Json) -> Json:
    """Without what becomes fields of a job, whose way back other tests go (test_there_and_back)."""
    plain = copy.deepcopy(manifest)
    for part in plain["spec"]["replicatedJobs"]:
        template = part["template"]["spec"]["template"]
        template["spec"] = {"containers": template["spec"]["containers"]}
        for container in template["spec"]["containers"]:
            for name in ("volumeMounts", "resources", "terminationMessagePolicy"):
                container.pop(name, None)
    return plain


@pytest.mark.parametrize("rounds", [20, pytest.param(150, marks=pytest.mark.thorough)])
def test_what_allaboard_renders_is_a_job_again_that_renders_the_same(rounds: int) -> None:
    rng = random.Random("back and there")
    for _ in range(rounds):
        first = back(there(a_jobset(rng)).job, ENGINES["jobset"])
        made = there(first)
        assert not made.lost
        second = back(made.job, ENGINES["jobset"])
        assert second["spec"]["replicatedJobs"] and back(there(second).job, ENGINES["jobset"]) == second
        for name in {*first["spec"]} - {"replicatedJobs"}:
            assert second["spec"][name] == first["spec"][name]


# Framework and roles.


@pytest.mark.parametrize(
    ("pod", "framework"),
    [
        ({"env": [{"name": "MASTER_ADDR", "value": "mnist-workers-0-0.mnist"}]}, "pytorch"),
        ({"command": ["torchrun", "x.py"]}, "pytorch"),
        ({"image": "lab/jax:1"}, "jax"),
        ({"command": ["python3", "MaxText/train.py"]}, "jax"),
        ({"resources": {"limits": {"google.com/tpu": 4}}}, "jax"),
        ({"image": "tensorflow/tensorflow:2"}, "tensorflow"),
        ({"name": "xgboost"}, "xgboost"),
        ({"image": "paddlepaddle/paddle:3"}, "paddle"),
        ({}, "pytorch"),
    ],
)  # fmt: skip
def test_the_framework_is_told_by_variables_program_image_and_devices(pod: Json, framework: str) -> None:
    manifest = a_set(a_part(pod=pod))
    assert job_of(manifest)["framework"] == framework
    assert changes(manifest)[AT] == f"framework: {framework}"


def test_a_job_of_mpi_is_refused_with_what_to_write() -> None:
    (message,) = problems(a_set(a_part(pod={"command": ["mpirun", "-np", "2", "x"]}))).values()
    assert "MPIJob" in message and "framework: mpi" in message


@pytest.mark.parametrize(
    ("parts", "groups"),
    [
        ([a_part("leader"), a_part("workers", 3)], {"master": 1, "worker": 3}),
        ([a_part("nodes", 3), a_part("driver")], {"master": 1, "worker": 3}),
        ([a_part("control"), a_part("worker", jobs=1)], {"master": 1, "worker": 1}),
        ([a_part("first"), a_part("second", 2)], {"master": 1, "worker": 2}),
        ([a_part("slice", 2, jobs=4)], {"worker": 8}),
        ([a_part("slice", pod={"command": ["torchrun"]}, jobs=3)], {"master": 1, "worker": 2}),
        ([a_part("a", 2), a_part("unused", 0)], {"worker": 2}),
    ],
)
def test_replicated_jobs_are_groups(parts: list[Json], groups: Json) -> None:
    manifest = a_set(*parts)
    counts = {one["name"]: one["replicas"] for one in rendered(manifest)["replicatedJobs"]}
    assert counts == groups


def test_servers_and_evaluators_are_those_of_tensorflow() -> None:
    image = {"image": "tensorflow/tensorflow:2"}
    parts = [a_part("chief", pod=image), a_part("ps", 2, pod=image), a_part("eval", pod=image)]
    assert [*job_of(a_set(*parts))["groups"]] == ["chief", "ps", "evaluator"]


def test_members_that_are_no_groups_of_a_framework_are_a_problem() -> None:
    (message,) = problems(a_set(a_part("a", 2), a_part("b", 2))).values()
    assert "a (2), b (2)" in message and "master (at most 1) or worker" in message
    assert "may not be a training job" in message
    torch = {"command": ["torchrun"]}
    (message,) = problems(a_set(a_part("a", 2, pod=torch), a_part("b", 2))).values()
    assert "may not be a training job" not in message


def test_several_leaders_of_no_framework_are_masters_of_the_one_that_may_have_them() -> None:
    parts = [a_part("leaders", 2, pod={"command": ["x"]}), a_part("workers", 3, pod={"command": ["x"]})]
    job = job_of(a_set(*parts))
    assert (job["framework"], job["groups"]) == ("paddle", {"worker": 3, "master": 2})
    parts[0] = a_part("leaders", 2, pod={"command": ["torchrun"]})
    (message,) = problems(a_set(*parts)).values()
    assert message.startswith("these are no groups of one pytorch job")


def test_what_allaboard_made_of_a_job_of_mpi_is_not_read_back() -> None:
    ours = {"allaboard.io/launch": "b39063c3cc771b6b"}
    manifest = a_set(a_part("launcher"), a_part("worker", 2))
    manifest["metadata"] = {**manifest["metadata"], "annotations": ours}
    assert problems(manifest)["kind"].endswith("cannot be converted back; use the job")


def test_of_several_containers_the_one_with_devices_trains() -> None:
    part = a_part(pod={"name": "side"})
    gpus = {"name": "train", "image": "lab/gpu:1", "resources": {"limits": {"nvidia.com/gpu": 2}}}
    part["template"]["spec"]["template"]["spec"]["containers"].append(gpus)
    job = job_of(a_set(part))
    assert job["image"] == "lab/gpu:1" and job["pod"]["spec"]["containers"][-1]["name"] == "side"


# Variables and hosts.


def torch(*env: Json, **pod: Any) -> Json:
    return a_set(a_part("workers", 4, pod={"env": [*env], **pod}))


def test_what_the_engine_says_is_not_said_again() -> None:
    manifest = torch(
        {"name": "NAME", **field("jobset.sigs.k8s.io/jobset-name")},
        {"name": "MASTER_ADDR", "value": "$(NAME)-workers-0-0.$(NAME)"},
        {"name": "MASTER_PORT", "value": "3389"},
        {"name": "WORLD_SIZE", "value": "16"},
        {"name": "RANK", **COMPLETION},
    )
    job = job_of(manifest)
    assert job["processes_per_member"] == 4 and not {"RANK", "MASTER_ADDR"} & {*job["environment"]}
    env = env_of(manifest, 1)
    assert env["MASTER_ADDR"] == "mnist-00000000-master-0-0.mnist-00000000"
    assert (env["WORLD_SIZE"], env["RANK"], env["MASTER_PORT"]) == ("16", "$(ALLABOARD_RANK)", "29500")
    told = changes(manifest)
    at = f"{AT}[0].{POD}.containers[0].env"
    assert told[f"{at}[2]"] == "29500" and told[f"{at}[1]"] is None


@pytest.mark.parametrize(
    "variable",
    [
        {"name": "RANK", "value": "0"},
        {"name": "WORLD_SIZE", "value": "3"},
        {"name": "MASTER_ADDR", "value": "mnist-workers-0-1.mnist"},
        {"name": "MASTER_ADDR", "value": "elsewhere.example"},
    ],
)
def test_a_variable_that_says_something_else_than_the_engine_is_a_problem(variable: Json) -> None:
    manifest = torch({"name": "PET_RDZV_BACKEND", "value": "c10d"}, variable)
    (path,) = problems(manifest)
    assert path == f"{AT}[0].{POD}.containers[0].env[1]"


def test_a_variable_of_the_engine_whose_value_nobody_knows_is_lost_and_said() -> None:
    source = {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
    assert lost(torch({"name": "MASTER_ADDR", **source})) == [f"{AT}[0].{POD}.containers[0].env[0]"]


@pytest.mark.parametrize(
    "text",
    [
        "mnist-workers-0-0.mnist", "mnist-workers-0-0.mnist.lab.svc.cluster.local", "mnist-workers-0-0",
        "${NAME}-workers-0-0.${NAME}", "$NAME-workers-0-0.$NAME", "$(NAME)-$(PART)-0-0.$(NAME)",
    ],
)  # fmt: skip
def test_the_host_of_the_first_member_is_the_variable_that_holds_it(text: str) -> None:
    manifest = torch(
        {"name": "NAME", **field("jobset.sigs.k8s.io/jobset-name")},
        {"name": "PART", **field("jobset.sigs.k8s.io/replicatedjob-name")},
        {"name": "RDZV", "value": text.replace("${NAME}", "$(NAME)").replace("$NAME", "$(NAME)")},
        command=["torchrun", f"--rdzv-endpoint={text}:29400"],
    )
    job = job_of(manifest)
    assert job["command"] == ["torchrun", "--rdzv-endpoint=$(MASTER_ADDR):29400"]
    env = env_of(manifest)
    assert env["RDZV"] == "$(MASTER_ADDR)" and [*env].index("RDZV") > [*env].index("MASTER_ADDR")


def test_a_subdomain_is_a_name_of_the_hosts() -> None:
    part = a_part("workers", 2, pod={"command": ["torchrun", "--master-addr=mnist-workers-0-0.train"]})
    manifest = a_set(part, network={"subdomain": "train", "publishNotReadyAddresses": True})
    assert job_of(manifest)["command"] == ["torchrun", "--master-addr=$(MASTER_ADDR)"]
    assert changes(manifest)["spec.network.subdomain"] is None
    assert rendered(manifest)["network"] == {"publishNotReadyAddresses": True}


@pytest.mark.parametrize(
    "word",
    [
        "mnist-workers-0-1.mnist",
        "mnist-workers-0-0.elsewhere",
        "mnist-workers-$i-0",
        "mnist-workers-0-{}",
        "http://mnist-workers-0-7.mnist",
    ],
)
def test_a_host_that_no_variable_holds_is_a_problem(word: str) -> None:
    (path,) = problems(torch(command=["torchrun", word]))
    assert path == f"{AT}[0].{POD}.containers[0].command[1]"


def test_a_text_that_only_looks_like_a_host_stays() -> None:
    words = ["torchrun", "my-mnist-workers-0-0", "gs://bucket/mnist-workers", "mnist-workers-old", "mnist"]
    assert job_of(torch(command=words))["command"] == words


def test_indices_are_the_place_of_a_member_in_a_run() -> None:
    named = [{"name": "RANK_OF", **field("jobset.sigs.k8s.io/job-global-index")}]
    parts = [a_part("leader", pod={"env": named}), a_part("workers", jobs=3, pod={"env": named})]
    label = {"fieldRef": {"fieldPath": MARK.format("jobset.sigs.k8s.io/job-global-index")}}
    assert env_of(a_set(*parts), 1)["RANK_OF"] == label  # the same, here and there
    parts = [a_part("leader"), a_part("workers", 3, pod={"env": [{"name": "ME", **COMPLETION}]})]
    env = env_of(a_set(*parts), 1)
    assert env["ME"] == env["JOB_COMPLETION_INDEX"] == "$(ALLABOARD_INDEX)"
    assert changes(a_set(*parts))[f"{AT}[1].{POD}.containers[0].env[0]"] == "$(ALLABOARD_INDEX)"


def test_an_index_that_nothing_in_a_run_says_is_a_problem() -> None:
    pod = {"command": ["sh", "-c", "echo $JOB_COMPLETION_INDEX"]}
    (message,) = problems(a_set(a_part("slice", 2, jobs=2, pod=pod))).values()
    assert "JOB_COMPLETION_INDEX" in message
    grouped = [{"name": "G", **field("jobset.sigs.k8s.io/job-group-index")}]
    (message,) = problems(a_set(a_part("slice", pod={"env": grouped}))).values()
    assert "job-group-index" in message


def test_other_containers_know_their_index_by_a_label() -> None:
    part = a_part("workers", 2)
    init = {"name": "fetch", "image": "x", "command": ["fetch", "$(JOB_COMPLETION_INDEX)"]}
    part["template"]["spec"]["template"]["spec"]["initContainers"] = [init]
    (made,) = job_of(a_set(part))["pod"]["spec"]["initContainers"]
    (variable,) = made["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['jobset.sigs.k8s.io/job-index']"


def test_another_kind_has_one_container_that_trains_and_what_it_does_not_tell_is_lost() -> None:
    part = a_part("workers", 2, pod={"command": ["torchrun"], "ports": [{"containerPort": 1}]})
    (outcome,) = convert([Document("x.yaml", "x.yaml", a_set(part))], "pytorchjob")
    spec = outcome.documents[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert [one["name"] for one in spec["containers"]] == ["pytorch"]
    (loss,) = [one for one in outcome.lost if one.path.endswith("env.JOB_COMPLETION_INDEX")]
    assert "ALLABOARD_RANK" in loss.reason
    (outcome,) = convert([Document("x.yaml", "x.yaml", a_set(part))], "trainjob")
    assert not [one for one in outcome.lost if one.path.endswith("env.JOB_COMPLETION_INDEX")]


# Policies.


def test_restarts_of_the_jobset_are_restarts_of_the_gang() -> None:
    manifest = a_set(a_part("workers", 2, backoffLimit=4), failurePolicy={"maxRestarts": 3})
    assert job_of(manifest)["policy"] == {"restart": "on_failure", "backoff_limit": 3}
    assert changes(manifest)["spec.failurePolicy"]["restartStrategy"] == "BlockingRecreate"
    assert rendered(manifest)["failurePolicy"]["maxRestarts"] == 3
    assert job_spec_of(manifest)["backoffLimit"] == 4  # a member's own tries come first
    none = a_set(a_part("workers", 2), failurePolicy={"maxRestarts": 3})
    assert job_spec_of(none)["backoffLimit"] == 0 and not lost(none) + lost(manifest)


def test_the_tries_of_a_job_are_tries_of_the_gang_where_it_has_none() -> None:
    manifest = a_set(a_part("workers", 2, backoffLimit=4))
    assert job_of(manifest)["policy"]["backoff_limit"] == 4 and not lost(manifest)
    assert changes(manifest)[f"{AT}[0].template.spec.backoffLimit"] == 4
    manifest = a_set(a_part("workers", 2, backoffLimit=None))
    assert job_of(manifest)["policy"]["backoff_limit"] == 6  # a Job's own
    assert job_of(a_set(a_part("workers", 2)))["policy"] == {"restart": "never"}


def test_what_the_failure_policy_says_otherwise_stays() -> None:
    rules = [{"name": "r", "action": "FailJobSet", "targetReplicatedJobs": ["nodes"]}]
    policy = {"maxRestarts": 2, "restartStrategy": "Recreate", "rules": rules}
    manifest = a_set(a_part("nodes", 2), failurePolicy=policy)
    kept = [{"name": "r", "action": "FailJobSet", "targetReplicatedJobs": ["worker"]}]
    assert rendered(manifest)["failurePolicy"] == {**policy, "rules": kept}
    rules[0]["targetReplicatedJobs"] = ["nobody"]
    assert [*problems(manifest)] == ["spec.failurePolicy.rules[0].targetReplicatedJobs[0]"]


def test_what_ends_a_job_at_once_is_told_where_the_jobset_has_rules_of_its_own() -> None:
    rules = [{"name": "r", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]
    manifest = a_set(a_part("nodes", 2, backoffLimit=None), failurePolicy={"maxRestarts": 1, "rules": rules})
    told = changes(manifest)
    assert told[f"{AT}[0].template.spec.podFailurePolicy"][0]["action"] == "FailJob"
    assert told[f"{AT}[0].template.spec.backoffLimit"] == 0 and not lost(manifest)


def test_a_pod_failure_policy_that_is_not_the_engines_stays() -> None:
    codes = {"containerName": "main", "operator": "In", "values": [3]}
    written = {"rules": [{"action": "Ignore", "onExitCodes": codes, "onPodConditions": []}]}
    kept = {"rules": [{"action": "Ignore", "onExitCodes": {**codes, "containerName": "node"}}]}
    once = a_set(a_part("workers", 2, podFailurePolicy=written))
    assert job_spec_of(once)["podFailurePolicy"] == kept and "failurePolicy" not in rendered(once)
    # Of a Job's own tries its end by such a rule was the end of the JobSet.
    tried = a_set(a_part("workers", 2, podFailurePolicy=written, backoffLimit=4))
    (rule,) = rendered(tried)["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    # Of the gang's it counted as any other.
    counted = a_set(a_part("workers", 2, podFailurePolicy=written), failurePolicy={"maxRestarts": 1})
    assert rendered(counted)["failurePolicy"]["rules"] == []
    assert job_spec_of(counted)["podFailurePolicy"] == kept
    assert not lost(once) + lost(tried) + lost(counted)
    usual = [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    said = a_set(a_part("workers", 2, podFailurePolicy={"rules": usual}), failurePolicy={"maxRestarts": 1})
    assert "engine_spec" not in job_of(said) and not lost(said)


def test_what_the_jobs_of_one_group_say_stays_with_them() -> None:
    marked = {"labels": {"team": "speech"}, "annotations": {"x.io/y": "1"}}
    leader = a_part(
        "leader", activeDeadlineSeconds=60, podReplacementPolicy="Failed", ttlSecondsAfterFinished=4
    )
    leader["groupName"], leader["template"]["metadata"] = "g", marked
    manifest = a_set(leader, a_part("nodes", 2, activeDeadlineSeconds=90))
    first, second = rendered(manifest)["replicatedJobs"]
    assert first["groupName"] == "g" and first["template"]["metadata"] == marked and "groupName" not in second
    said = {"activeDeadlineSeconds": 60, "podReplacementPolicy": "Failed", "ttlSecondsAfterFinished": 4}
    assert first["template"]["spec"].items() >= said.items() and not lost(manifest)
    assert second["template"]["spec"]["activeDeadlineSeconds"] == 90
    again = there(back(job_of(manifest), ENGINES["jobset"]))
    assert again.job["engine_spec"]["replicatedJobs"] == job_of(manifest)["engine_spec"]["replicatedJobs"]


@pytest.mark.parametrize(
    ("policy", "made"),
    [
        (None, {"operator": "All", "targetReplicatedJobs": ["master", "worker"]}),
        ({"operator": "All", "targetReplicatedJobs": ["leader"]}, {"operator": "All", "targetReplicatedJobs": ["master"]}),
        ({"operator": "Any", "targetReplicatedJobs": ["nodes"]}, {"operator": "Any", "targetReplicatedJobs": ["worker"]}),
    ],
)  # fmt: skip
def test_who_decides_stays(policy: Json | None, made: Json) -> None:
    parts = [a_part("leader"), a_part("nodes", jobs=2)]
    assert rendered(a_set(*parts, **({"successPolicy": policy} if policy else {})))["successPolicy"] == made


def test_any_of_several_jobs_of_several_pods_is_lost_and_said() -> None:
    manifest = a_set(a_part("nodes", 2, jobs=2), successPolicy={"operator": "Any"})
    assert "spec.successPolicy.operator" in lost(manifest)


def test_the_rest_of_its_fields_comes_back() -> None:
    fields = {
        "suspend": True,
        "ttlSecondsAfterFinished": 60,
        "managedBy": "kueue.x-k8s.io/multikueue",
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
        "coordinator": {"replicatedJob": "nodes", "jobIndex": 1},
    }
    manifest = a_set(
        a_part("leader", activeDeadlineSeconds=60),
        a_part("nodes", jobs=2, activeDeadlineSeconds=60),
        **fields,
    )
    job, spec = job_of(manifest), rendered(manifest)
    assert job["policy"] == {"restart": "never", "deadline": "1m", "ttl": "1m", "suspend": True}
    assert job["gang"] == {"scheduler": "none"}
    coordinator = {"replicatedJob": "worker", "jobIndex": 1}
    assert {name: spec[name] for name in fields} == {**fields, "coordinator": coordinator}
    assert spec["replicatedJobs"][1]["template"]["spec"]["activeDeadlineSeconds"] == 60


@pytest.mark.parametrize("name", ["short", "a-rather-long-name-of-a-set"])
def test_the_name_of_a_run_leaves_room_for_its_coordinators_label(name: str) -> None:
    who = {"name": "HEAD", **field("jobset.sigs.k8s.io/coordinator")}
    parts = [a_part("leader", pod={"env": [who]}), a_part("nodes", 2, pod={"env": [who]})]
    manifest = a_set(*parts, coordinator={"replicatedJob": "leader"}, name=name)
    assert env_of(manifest, 1)["HEAD"]["fieldRef"] and not lost(manifest)
    assert job_of(manifest)["name"] == name
    run = back(job_of(manifest), ENGINES["jobset"])["metadata"]["name"]
    assert run.startswith(name[:10]) and len(f"{run}-master-0-0.{run}") <= 63


@pytest.mark.parametrize(
    ("manifest", "path"),
    [
        (a_set(a_part("w"), a_part("leader"), startupPolicy={"startupPolicyOrder": "InOrder"}), "spec.startupPolicy"),
        (a_set(a_part(pods=2, maxFailedIndexes=1)), f"{AT}[0].template.spec.maxFailedIndexes"),
        (a_set(a_part(selector={})), f"{AT}[0].template.spec.selector"),
        (a_set(a_part(), unknown=1), "spec.unknown"),
    ],
)  # fmt: skip
def test_what_a_job_cannot_say_is_lost_and_said(manifest: Json, path: str) -> None:
    assert lost(manifest) == [path]


@pytest.mark.parametrize(
    ("manifest", "path"),
    [
        (a_set(), AT),
        (a_set(a_part(completions=8)), f"{AT}[0].template.spec.completions"),
        (a_set(a_part(), a_part()), f"{AT}[1].name"),
        (a_set({**a_part(), "dependsOn": [{"name": "x", "status": "Complete"}]}), f"{AT}[0].dependsOn[0]"),
        (a_set(a_part(), coordinator={"replicatedJob": "nobody"}), "spec.coordinator"),
        (a_set(a_part(pod={"image": ["x"]})), f"{AT}[0].{POD}.containers[0].image"),
        (a_set(a_part(), suspend="yes"), "spec.suspend"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_path_in_the_jobset(manifest: Json, path: str) -> None:
    assert path in problems(manifest)

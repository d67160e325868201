"""What is set on a task reaches the members of its job, and the step's own pod asks for nothing of it:
compiled, as the driver hands it on, run by kfp's own executor, and made into pods by a cluster in memory.
"""

# kfp reads the annotations of a pipeline: no `from __future__ import annotations` here.
# mypy: disable-error-code="no-untyped-def"

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kfp import dsl, kubernetes
from kfp.dsl.executor import Executor

from allaboard.checking.job import check
from allaboard.errors import BadInput
from allaboard.testing.cluster import FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from allaboard_kfp import evaluate, identified, prepare_shards, train
from allaboard_kfp.inputs import job_of
from allaboard_kfp.task_config import TaskConfig
from tests.kfp.conftest import PIPELINE_RUN
from tests.kfp.driver import WORKSPACE, constant, task_config
from tests.kfp.ir import compiled, validated

JOB = {"name": "quick", "command": ["python", "quick.py"], "workers": 2, "policy": {"restart": "never"}}


def placed(task: Any) -> Any:
    """A task with everything that Kubeflow passes on, and what stays."""
    task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(4)
    task.set_cpu_request("6").set_cpu_limit("8").set_memory_request("64Gi").set_memory_limit("64Gi")
    task.set_env_variable("LR", "0.5").set_env_variable("ALLABOARD_IMAGE", "lab/train:2")
    kubernetes.use_secret_as_env(task, "bucket", {"key": "AWS_SECRET_ACCESS_KEY"}, optional=True)
    kubernetes.use_config_map_as_env(task, "proxy", {"url": "HTTPS_PROXY"})
    kubernetes.use_field_path_as_env(task, "POD", "metadata.name")
    kubernetes.add_toleration(task, key="team", operator="Equal", value="vision", effect="NoSchedule")
    kubernetes.add_node_selector(task, "topology.kubernetes.io/zone", "a")
    kubernetes.add_node_affinity(
        task, match_expressions=[{"key": "disk", "operator": "In", "values": ["ssd"]}]
    )
    kubernetes.mount_pvc(task, "photos", "/photos")
    kubernetes.use_secret_as_volume(task, "tokens", "/etc/tokens")
    kubernetes.use_config_map_as_volume(task, "settings", "/etc/settings")
    return identified(task)


def pipeline(**arguments: Any) -> Any:
    @dsl.pipeline(
        name="passed", pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="10Gi"))
    )
    def passed():
        placed(train(**{"job": JOB, "backend": "kubernetes", "store": "s3://bucket/team", **arguments}))

    return passed


class Compiled:
    """A compiled pipeline with one step ``train``."""

    def __init__(self, what: Any, folder: Path, workspace: str = "") -> None:
        spec, *more = yaml.safe_load_all(compiled(what, folder / "p.yaml"))
        self.spec = spec
        self.component = spec["components"]["comp-train"]
        self.container = spec["deploymentSpec"]["executors"]["exec-train"]["container"]
        platform: Any = more[0]["platforms"]["kubernetes"] if more else {}
        executors = platform.get("deploymentSpec", {}).get("executors", {})
        self.config, self.pod = task_config(
            self.component, self.container, executors.get("exec-train", {}), workspace
        )

    def parameters(self) -> dict[str, Any]:
        """The inputs of the step, as the launcher has them."""
        known = self.component["inputDefinitions"]["parameters"]
        given = self.spec["root"]["dag"]["tasks"]["train"]["inputs"]["parameters"]
        values = {name: one["defaultValue"] for name, one in known.items() if "defaultValue" in one}
        for name, one in given.items():
            values[name] = constant(one["runtimeValue"])
        return {**values, "task_config": self.config}

    def run(self, folder: Path) -> dict[str, Any]:
        """Executed by kfp in this process; what it writes down for the launcher."""
        outputs = self.component["outputDefinitions"]
        task = folder / "out" / "passed" / PIPELINE_RUN / "train"
        task.mkdir(parents=True, exist_ok=True)
        given = {
            "inputs": {"parameterValues": self.parameters()},
            "outputs": {
                "parameters": {name: {"outputFile": str(task / name)} for name in outputs["parameters"]},
                "artifacts": {
                    name: {
                        "artifacts": [{"name": name, "uri": str(task / name), "type": one["artifactType"]}]
                    }
                    for name, one in outputs["artifacts"].items()
                },
                "outputFile": str(task / "executor_output.json"),
            },
        }
        Executor(executor_input=given, function_to_execute=train).execute()
        found: dict[str, Any] = json.loads((task / "executor_output.json").read_text())
        return found


def pod_of(cluster: FakeCluster, role: str = "Worker") -> Any:
    (job,) = cluster.all(PYTORCHJOBS)
    return job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]


# --- compiled


def test_the_steps_own_pod_asks_for_nothing_that_the_members_get(tmp_path: Path) -> None:
    made = Compiled(pipeline(), tmp_path)
    validated(yaml.safe_dump(made.spec))
    names = {one["name"] for one in made.pod.pop("env")}
    assert made.pod == {}
    # It works with the same store, and must know who it is.
    assert {"AWS_SECRET_ACCESS_KEY", "ALLABOARD_IMAGE", "KFP_RUN_ID", "ARGO_NODE_NAME"} <= names
    assert made.config["resources"]["limits"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4"}


@pytest.mark.parametrize("backend", ["local", ""])
def test_where_members_are_processes_of_the_step_its_pod_asks_for_all(backend: str, tmp_path: Path) -> None:
    made = Compiled(pipeline(backend=backend), tmp_path)
    assert made.config == {**dict.fromkeys(made.config), "resources": {}}
    assert made.pod["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert {*made.pod} == {
        "resources", "env", "affinity", "tolerations", "nodeSelector", "volumes", "volumeMounts"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("store", "on_the_step"),
    [
        ("/photos/store", True),
        (f"{dsl.WORKSPACE_PATH_PLACEHOLDER}/store", True),
        ("s3://b/c", False),
        ("", False),
    ],
)
def test_a_store_in_a_folder_is_mounted_into_the_step_too(
    store: str, on_the_step: bool, tmp_path: Path
) -> None:
    made = Compiled(pipeline(store=store), tmp_path)
    assert ("volumes" in made.pod) is on_the_step
    assert {one["name"] for one in made.config["volumes"]} == {"photos", "tokens", "settings"}


def test_a_backend_that_is_a_parameter_passes_nothing_on(tmp_path: Path) -> None:
    @dsl.pipeline(name="passed")
    def later(where: str = "kubernetes"):
        placed(train(job=JOB, backend=where, store="s3://bucket/team"))

    assert "taskConfigPassthroughs" not in Compiled(later, tmp_path).component


def test_an_evaluation_passes_it_on_and_steps_without_members_do_not(tmp_path: Path) -> None:
    @dsl.pipeline(name="others")
    def others():
        evaluate(job=JOB, checkpoint="s3://b/c", backend="kubernetes", store="s3://b")
        prepare_shards(source="a.py:b", into="store://c", store="s3://b")

    components = yaml.safe_load(compiled(others, tmp_path / "p.yaml"))["components"]
    assert len(components["comp-evaluate"]["taskConfigPassthroughs"]) == 6
    assert "taskConfigPassthroughs" not in components["comp-prepare-shards"]


# --- executed


def test_members_get_what_is_set_on_the_task(
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.operator.trains_for = 30
    made = Compiled(pipeline(), tmp_path).run(tmp_path)
    assert made["parameterValues"]["run"].startswith("quick-")
    pod = pod_of(cluster)
    (container,) = pod["containers"]
    gpus, memory = {"nvidia.com/gpu": "4"}, {"memory": "64Gi"}
    assert container["resources"] == {
        "requests": {"cpu": "6", **memory, **gpus},
        "limits": {"cpu": "8", **memory, **gpus},
    }
    env = {one["name"]: one for one in container["env"]}
    assert env["LR"]["value"] == "0.5"
    assert env["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"] == {
        "name": "bucket", "key": "key", "optional": True
    }  # fmt: skip
    assert env["HTTPS_PROXY"]["valueFrom"]["configMapKeyRef"]["name"] == "proxy"
    assert not {"POD", "KFP_RUN_ID", "ARGO_NODE_NAME", "ALLABOARD_IMAGE"} & {*env}
    assert {"key": "team", "operator": "Equal", "value": "vision", "effect": "NoSchedule"} in pod[
        "tolerations"
    ]
    assert pod["nodeSelector"] == {"topology.kubernetes.io/zone": "a"}
    assert '"disk"' in json.dumps(pod["affinity"]["nodeAffinity"])
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes[mounts["/photos"]]["persistentVolumeClaim"] == {"claimName": "photos"}
    assert volumes[mounts["/etc/tokens"]]["secret"]["secretName"] == "tokens"
    assert volumes[mounts["/etc/settings"]]["configMap"]["name"] == "settings"
    assert "counts" not in capsys.readouterr().out


def test_the_workspace_of_a_pipeline_run_is_the_store_of_step_and_members(
    cluster: FakeCluster,
    tmp_path: Path,
) -> None:
    store = f"{dsl.WORKSPACE_PATH_PLACEHOLDER}/store"
    job = {**JOB, "checkpoints": {"uri": "store://quick", "every": 2}}

    @dsl.pipeline(
        name="passed", pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="10Gi"))
    )
    def in_workspace():
        train(job=job, backend="kubernetes", store=store)

    cluster.operator.trains_for = 30
    made = Compiled(in_workspace, tmp_path, workspace="run-kfp-workspace")
    assert made.pod["volumeMounts"] == [{"name": "kfp-workspace", "mountPath": WORKSPACE}]
    made.run(tmp_path)
    pod = pod_of(cluster)
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["mountPath"] == WORKSPACE)
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    assert volume["persistentVolumeClaim"] == {"claimName": "run-kfp-workspace"}
    env = {one["name"]: one.get("value", "") for one in pod["containers"][0]["env"]}
    assert any(value.startswith(f"{WORKSPACE}/store/quick") for value in env.values())


def test_under_kfp_local_nothing_is_passed_on() -> None:
    config: Any = TASK()
    assert job_of(JOB, "", "", task=config).as_mapping() == job_of(JOB, "", "").as_mapping()


# --- job and task


def TASK(**given: Any) -> TaskConfig:
    names = ("affinity", "tolerations", "node_selector", "env", "volumes", "volume_mounts", "resources")
    return SimpleNamespace(**{**dict.fromkeys(names), **given})


def both(job: dict[str, Any], **given: Any) -> tuple[dict[str, Any], list[str]]:
    told: list[str] = []
    made = job_of({**JOB, **job}, "", "", task=TASK(**given), tell=told.append).as_mapping()
    return {name: value for name, value in made.items() if name not in JOB or name in job}, told


def variable(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def claim(name: str, path: str) -> dict[str, Any]:
    source = {"claimName": name}
    return {
        "volumes": [{"name": name, "persistentVolumeClaim": source}],
        "volume_mounts": [{"name": name, "mountPath": path}],
    }


SECRET = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


@pytest.mark.parametrize(
    ("job", "task", "made", "told"),
    [
        (
            {"resources": {"cpu": 2}},
            {"resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}},
            {"resources": {"cpu": 2, "memory": "1Gi"}},
            ["resources.cpu: the job says 2, the task 100m; the job's counts"],
        ),
        (
            {"resources": {"cpu": 2}},
            {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
            {"resources": {"cpu": 2}},
            [],
        ),
        (
            {"resources": {"gpu_type": "H100"}},
            {"resources": {"limits": {"nvidia.com/gpu": "4"}}},
            {"resources": {"gpu_type": "H100", "gpu": 4}},
            [],
        ),
        (
            {"resources": {"mig": "1g.10gb"}},
            {"resources": {"limits": {"nvidia.com/gpu": "4"}}},
            {"resources": {"mig": "1g.10gb"}},
            ["resources.gpu: the job says 1g.10gb, the task 4; the job's counts"],
        ),
        (
            {"resources": {"gpu": 1, "gpu_type": "A100"}},
            {"node_selector": {"nvidia.com/gpu.product": "H100", "zone": "a"}},
            {"resources": {"gpu": 1, "gpu_type": "A100"}, "pod": {"spec": {"nodeSelector": {"zone": "a"}}}},
            ["node selector nvidia.com/gpu.product: the job says A100, the task H100; the job's counts"],
        ),
        (
            {"environment": {"LR": "1"}},
            {"env": [variable("LR", "2"), variable("SEED", "3")]},
            {"environment": {"SEED": "3", "LR": "1"}},
            ["environment.LR: the job and the task set it; the job's counts"],
        ),
        ({"environment": {"LR": "1"}}, {"env": [variable("LR", "1")]}, {"environment": {"LR": "1"}}, []),
        (
            {"environment": {"K": "plain"}},
            {"env": [SECRET]},
            {"environment": {"K": "plain"}},
            ["environment.K: the job and the task set it; the job's counts"],
        ),
        (
            {"storage": [{"mount": "/data", "pvc": "ours"}]},
            claim("theirs", "/data/"),
            {"storage": [{"mount": "/data", "pvc": "ours"}]},
            ["mount /data: the job and the task set it; the job's counts"],
        ),
        (
            {"storage": [{"mount": "/data", "pvc": "same"}]},
            claim("same", "/data"),
            {"storage": [{"mount": "/data", "pvc": "same"}]},
            [],
        ),
        (
            {"storage": [{"mount": "/data", "pvc": "ours"}]},
            claim("theirs", "/more"),
            {"storage": [{"mount": "/more", "pvc": "theirs"}, {"mount": "/data", "pvc": "ours"}]},
            [],
        ),
        (
            {"pod": {"spec": {"tolerations": [{"key": "a"}], "nodeSelector": {"zone": "b"}}}},
            {"tolerations": [{"key": "b"}], "node_selector": {"zone": "c", "disk": "ssd"}},
            {
                "pod": {
                    "spec": {
                        "tolerations": [{"key": "b"}, {"key": "a"}],
                        "nodeSelector": {"disk": "ssd", "zone": "b"},
                    }
                }
            },
            ["node selector zone: the job says b, the task c; the job's counts"],
        ),
        (
            {"pod": {"spec": {"tolerations": [{"$patch": "replace"}, {"key": "a"}]}}},
            {"tolerations": [{"key": "b"}]},
            {"pod": {"spec": {"tolerations": [{"$patch": "replace"}, {"key": "a"}]}}},
            [],
        ),
        (
            {"pod": {"spec": {"affinity": {"podAffinity": {}}}}},
            {"affinity": {"nodeAffinity": {"x": 1}}},
            {"pod": {"spec": {"affinity": {"podAffinity": {}}}}},
            ["affinity: the job's pod and the task set it; the job's counts"],
        ),
    ],
)
def test_what_the_job_says_counts_and_a_difference_is_told(
    job: dict[str, Any], task: dict[str, Any], made: dict[str, Any], told: list[str]
) -> None:
    assert both(job, **task) == (made, told)


def test_a_group_that_says_an_amount_takes_none_from_the_task() -> None:
    groups = {"master": 1, "worker": {"replicas": 1, "resources": {"cpu": 8}, "environment": {"K": "own"}}}
    fields = {name: value for name, value in JOB.items() if name != "workers"}
    told: list[str] = []
    task = TASK(resources={"limits": {"cpu": "2"}}, env=[SECRET, variable("LR", "1")])
    made = job_of({**fields, "groups": groups}, "", "", task=task, tell=told.append).as_mapping()
    assert "resources" not in made and "pod" not in made and made["environment"] == {"LR": "1"}
    assert [sentence.partition(":")[0] for sentence in told] == ["environment.K", "resources.cpu"]


MLFLOW = {
    "MLFLOW_RUN_ID": "1", "MLFLOW_EXPERIMENT_ID": "7", "MLFLOW_TRACKING_URI": "http://mlflow:5000",
    "MLFLOW_TRACKING_AUTH": "kubernetes",
}  # fmt: skip
"""What Kubeflow's MLflow plugin sets on a task (backend/src/v2/common/plugins/mlflow/handler.go)."""


def test_the_tracker_of_a_pipeline_is_the_first_members_and_makes_no_other_job(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    made = Compiled(pipeline(), tmp_path)
    plain = made.config["env"]
    made.config["env"] = [*plain, *(variable(*pair) for pair in MLFLOW.items())]
    cluster.operator.trains_for = 30
    made.run(tmp_path)
    first, other = (
        {one["name"]: one.get("value") for one in pod_of(cluster, role)["containers"][0]["env"]}
        for role in ("Master", "Worker")
    )
    assert {name: first.get(name) for name in MLFLOW} == MLFLOW
    assert not {"MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"} & {*other}
    again = [*plain, *(variable(name, f"{value}-2") for name, value in MLFLOW.items())]
    assert job_of(JOB, "", "", task=TASK(env=again)) == job_of(JOB, "", "", task=TASK(env=plain))


def test_a_key_of_a_tracker_in_plain_sight_is_refused() -> None:
    with pytest.raises(BadInput, match=r"environment\.WANDB_API_KEY: is a secret, .* put it into a Secret"):
        both({}, env=[variable("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")])


def test_a_volume_of_the_task_never_takes_the_name_of_one_of_the_job() -> None:
    pod = {"spec": {"volumes": [{"name": "v", "nfs": {"server": "f", "path": "/d"}}]}}
    volume = {"name": "v", "configMap": {"name": "settings"}}
    made, _ = both({"pod": pod}, volumes=[volume], volume_mounts=[{"name": "v", "mountPath": "/etc/v"}])
    assert [one["name"] for one in made["pod"]["spec"]["volumes"]] == ["task-v", "v"]
    assert made["pod"]["spec"]["containers"][0]["volumeMounts"] == [{"name": "task-v", "mountPath": "/etc/v"}]


def test_all_problems_of_job_and_task_are_told_at_once() -> None:
    with pytest.raises(BadInput) as error:
        both(
            {"wrokers": 2},
            env=[variable("A B", "x")], node_selector={"a/b/c": "d"}, resources={"limits": {"cpu": "many"}},
        )  # fmt: skip
    message = str(error.value)
    for words in ("did you mean 'workers'", "A B", "nodeSelector.a/b/c", "'many'"):
        assert words in message


@pytest.mark.parametrize(
    "given",
    [
        {"env": "LR=1"}, {"env": [1]}, {"resources": {"limits": 4}}, {"tolerations": {"key": "a"}},
        {"node_selector": ["a"]}, {"volumes": "x", "volume_mounts": []}, {"affinity": [1]},
        {"volumes": [{"name": "a"}], "volume_mounts": [{"name": "a"}]},
        {"env": [{"name": ["x"], "value": {}}]}, {"resources": {"limits": {"cpu": []}}},
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_pod_is_refused_with_a_sentence(
    given: dict[str, Any],
) -> None:
    try:
        assert not [p for p in check(job_of(JOB, "", "", task=TASK(**given))) if p.severity == "error"]
    except BadInput as error:
        assert str(error)


JUNK: tuple[Any, ...] = (
    None,
    "",
    0,
    -1,
    1.5,
    True,
    [],
    {},
    [None],
    [{}],
    {"": None},
    ["a"],
    {"name": 1},
    "x" * 99,
)


def _some(rng: random.Random, depth: int = 0) -> Any:
    if depth > 3 or rng.random() < 0.4:
        return rng.choice(JUNK)
    words = (
        "name",
        "value",
        "valueFrom",
        "limits",
        "requests",
        "cpu",
        "mountPath",
        "spec",
        "containers",
        "env",
    )
    if rng.random() < 0.5:
        return {rng.choice(words): _some(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [_some(rng, depth + 1) for _ in range(rng.randrange(4))]


def test_a_thousand_odd_tasks_beside_odd_jobs_raise_nothing_but_bad_input() -> None:
    rng = random.Random(36)
    names = ("affinity", "tolerations", "node_selector", "env", "volumes", "volume_mounts", "resources")
    fields = ("environment", "resources", "storage", "secrets", "pod", "groups", "engine", "framework")
    refused = 0
    for _ in range(1000):
        job = {**JOB, **{name: _some(rng) for name in rng.sample(fields, 2)}}
        try:
            job_of(job, "", "", task=TASK(**{name: _some(rng) for name in names}))
        except BadInput:
            refused += 1
    assert 100 < refused <= 1000

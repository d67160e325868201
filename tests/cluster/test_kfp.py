"""The KFP component `train` as a pod of a real cluster, whose members are pods of their own.

What Argo and KFP's launcher do around a component's command is done here by hand: the executor input, the
places, the labels and annotations of the pod, and the way it is told to end (SIGTERM to the process group,
and less than a second later everything is gone). The command is the compiled component's own.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS, resource_for
from allaboard.backends.kubernetes.discovery import rbac
from allaboard.backends.kubernetes.state import records
from allaboard.engines import ENGINES
from allaboard.follow.run_record import RunRecord
from allaboard.render import labels
from allaboard.runs.status import state_of
from allaboard.storage import Store, open_store
from tests.cluster.components import s3
from tests.cluster.kubelet.handle import ProcessKubelet
from tests.cluster.kubelet.node import NodeSpec
from tests.cluster.plane import ControlPlane

pytest.importorskip("boto3")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "kfp" / "bin" / "python"
TEAM, STORE = "team", "s3://lab/team"

# Argo's first process of a pod: it hands signals on to everybody, and ends soon after the command has.
INIT = """
import os, signal, subprocess, sys, time
command = subprocess.Popen(sys.argv[1:], start_new_session=True)
def end(*_):
    os.killpg(command.pid, signal.SIGTERM)
    time.sleep(0.65)
    os._exit(143)
signal.signal(signal.SIGTERM, end)
code = command.wait()
if code == 0:
    print("OUTPUTS " + open(os.environ["OUTPUTS"]).read(), flush=True)
sys.exit(code)
"""


class Pipeline:
    """One run of a pipeline whose steps are pods."""

    def __init__(self, plane: ControlPlane, engine: str) -> None:
        self.plane, self.engine, self.run_id = plane, engine, str(uuid.uuid4())
        self.name = f"retrain-{self.run_id[:5]}"
        self.environ = s3.variables(plane)
        api = Access(kubeconfig=str(plane.kubeconfig), namespace=TEAM).api()
        self.backend = KubernetesBackend(api, environ=self.environ)

    @property
    def gate(self) -> Store:
        return open_store(f"{STORE}/gates/{self.run_id}", environ=self.environ)

    def step(self, number: int = 0) -> str:
        """Start a try of the step ``train``; the name of its pod."""
        values = {"job": self.job(), "folder": "/code", "task_config": TASK_CONFIG}
        return self._pod("train", node_name(self.name, number), f"{self.name}-{number}", values)

    def clean_up(self) -> str:
        """Start the step ``clean_up``; the name of its pod."""
        node = f"{self.name}(0).onExit(0)"
        return self._pod("clean_up", node, f"{self.name}-clean-up", {})

    def _pod(self, component: str, node: str, name: str, values: dict[str, Any]) -> str:
        place = f"s3://pipelines/v2/artifacts/retrain/{self.run_id}/{component}"
        command, outputs = command_of(component, values, place)
        self.plane.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": TEAM,
                    "labels": {"pipeline/runid": self.run_id},
                    "annotations": {"workflows.argoproj.io/node-name": node},
                },
                "spec": {
                    "serviceAccountName": "pipeline-runner",
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 30,
                    "volumes": [{"name": "code", "configMap": {"name": "code"}}],
                    "containers": [
                        {
                            "name": "main",
                            "image": "ghcr.io/allaboard/kfp-allaboard-python:0.1.0",
                            "command": ["python3", "-c", INIT, *command],
                            "volumeMounts": [{"name": "code", "mountPath": "/code"}],
                            "envFrom": [{"secretRef": {"name": "store"}}],
                            "env": [
                                *({"name": n, "value": v} for n, v in SAID.items()),
                                {"name": "OUTPUTS", "value": outputs},
                                *(field(n, path) for n, path in TOLD.items()),
                            ],
                        }
                    ],
                },
            }
        )
        return name

    def job(self) -> dict[str, Any]:
        return {
            "name": "held",
            "engine": self.engine,
            "command": ["python", "gated.py"],
            "code": ["gated.py"],
            "policy": {"restart": "never"},
            "checkpoints": {"uri": "store://held"},
            "environment": {"GATE": f"store://gates/{self.run_id}"},
            "spot": {"grace": "2s"},
            **(MPI if self.engine == "mpijob" else {"workers": 2}),
        }

    def phase(self, pod: str) -> str:
        found = self.plane.api.get("v1", "Pod", pod, TEAM)
        return str(found["status"]["phase"]) if found else "gone"

    def log(self, pod: str) -> str:
        return b"".join(self.backend.api.log(pod, container="main", timestamps=False)).decode()

    def until_the_training_works(self, pod: str) -> RunRecord:
        def works() -> bool:
            phase = self.phase(pod)
            assert phase != "Failed", self.log(pod)
            return phase == "Running" and "[rank0] rank 0 works at step 6" in self.log(pod)

        until("rank 0 works, and has saved at step 5", works)
        return self.record()

    def record(self) -> RunRecord:
        bodies, _ = self.backend.api.list(CONFIGMAPS, labels=records.selector())
        found = [records.parse(body).record for body in bodies]
        (mine,) = [one for one in found if json.loads(one.key)[:2] == ["kfp", self.run_id]]
        return mine

    def members(self) -> list[str]:
        found, _ = self.backend.api.list(PODS, labels=labels.selector(self.record().run))
        return [p["metadata"]["name"] for p in found if p["status"]["phase"] in ("Pending", "Running")]


MPI = {"framework": "mpi", "groups": {"launcher": 1, "worker": {"replicas": 1, "command": ["sleep", "600"]}}}
"""The launcher is what trains, as with one rank; the worker waits for mpirun."""
SAID = {
    "ALLABOARD_BACKEND": "kubernetes",
    "ALLABOARD_STORE": STORE,
    "ALLABOARD_SECRETS": "store",
    "ALLABOARD_IMAGE": "harness/python:3.12",
}
TOLD = {
    "KFP_POD_NAME": "metadata.name",
    "KFP_POD_UID": "metadata.uid",
    # As `allaboard_kfp.identified` asks for it.
    "KFP_RUN_ID": "metadata.labels['pipeline/runid']",
    "ARGO_NODE_NAME": "metadata.annotations['workflows.argoproj.io/node-name']",
}


def node_name(workflow: str, number: int) -> str:
    """Of a try of the step ``train``, from 0. By Kubeflow's manifests every level has three: after those of
    the step, the task that holds it begins anew.
    """
    return f"{workflow}(0).root(0).train({number // 3}).executor({number % 3})"


def field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


TASK_CONFIG = {
    "affinity": None,
    "tolerations": [{"key": "team", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "env": [
        {"name": "TASK_PLAIN", "value": "3"},
        {"name": "TASK_SECRET", "valueFrom": {"secretKeyRef": {"name": "store", "key": "AWS_ACCESS_KEY_ID"}}},
        {"name": "TASK_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ALLABOARD_STORE", "value": "s3://elsewhere"},
    ],
    "volumes": [{"name": "code", "configMap": {"name": "code", "optional": False}}],
    "volumeMounts": [{"name": "code", "mountPath": "/settings"}],
    "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "256Mi"}},
}
"""What Kubeflow's driver gives to a step on whose task all of this is set."""


def command_of(name: str, given_values: dict[str, Any], place: str) -> tuple[list[str], str]:
    """The command of a compiled component, with its input filled in; where it writes its outputs."""
    spec = yaml.safe_load((ROOT / "tests" / "kfp" / "golden" / f"{name}.yaml").read_text())
    ((_, component),) = spec["components"].items()
    box = spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
    known = component["inputDefinitions"]["parameters"]
    values = {name: one["defaultValue"] for name, one in known.items() if "defaultValue" in one}
    values |= given_values
    outputs = component["outputDefinitions"]
    file = f"{place.replace('s3://', '/s3/')}/output_metadata.json"
    given = {
        "inputs": {"parameterValues": values},
        "outputs": {
            "outputFile": file,
            "parameters": {name: {"outputFile": f"/tmp/kfp/{name}"} for name in outputs["parameters"]},
            "artifacts": {
                name: {"artifacts": [{"name": name, "uri": f"{place}/{name}", "type": one["artifactType"]}]}
                for name, one in outputs["artifacts"].items()
            },
        },
    }
    words = [word.replace("{{$}}", json.dumps(given)) for word in [*box["command"], *box["args"]]]
    return ["sh", "-c", f'mkdir -p /tmp/kfp {Path(file).parent} && exec "$@"', "sh", *words], file


@pytest.fixture(scope="module")
def plane(
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    if not PYTHON.exists():
        pytest.skip("the environment with kfp is not there; make env makes it")
    code = {"allaboard": ROOT / "core" / "src", "kfp": ROOT / "kfp_components" / "src"}
    with (
        new_plane_in(
            tmp_path_factory.mktemp("plane"),
            *("training-operator", "jobset", "trainer", "s3"),
            optional=["mpi-operator"],
        ) as plane,
        ProcessKubelet(plane.kubeconfig, [NodeSpec("one"), NodeSpec("two")], python=PYTHON, code=code),
    ):
        plane.make_namespace(TEAM)
        may_submit(plane, "pipeline-runner")
        gated = Path(__file__).with_name("dags") / "gated.py"
        about = {"namespace": TEAM}
        plane.api.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "code", **about},
                "data": {"gated.py": gated.read_text()},
            }
        )
        s3.give(plane, TEAM, "lab")
        yield plane


def may_submit(plane: ControlPlane, account: str) -> None:
    """What the how-to says: the Role of submitters, bound to the account that steps run as."""
    for thing in rbac.objects("submitter"):
        thing["metadata"]["namespace"] = TEAM
        if thing["kind"] == "ServiceAccount":
            thing["metadata"]["name"] = account
        for subject in thing.get("subjects", ()):
            subject |= {"namespace": TEAM, "name": account}
        plane.api.apply(thing)


@pytest.fixture
def pipeline(plane: ControlPlane, request: pytest.FixtureRequest) -> Pipeline:
    engine = getattr(request, "param", "pytorchjob")
    if engine == "mpijob" and (reason := plane.lacks("mpi-operator")):
        pytest.skip(reason)
    return Pipeline(plane, engine)


def until(what: str, look: Callable[[], Any], seconds: float = 180.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"within {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return found


def outputs_of(log: str) -> dict[str, Any]:
    (line,) = [line for line in log.splitlines() if line.startswith("OUTPUTS ")]
    found: dict[str, Any] = json.loads(line.removeprefix("OUTPUTS "))
    return found


@pytest.mark.parametrize("pipeline", ["pytorchjob", "trainjob", "jobset", "mpijob"], indirect=True)
def test_the_step_trains_on_the_cluster_and_gives_what_it_promises(pipeline: Pipeline) -> None:
    pod = pipeline.step()
    record = pipeline.until_the_training_works(pod)
    assert json.loads(record.key) == ["kfp", pipeline.run_id, f"{pipeline.name}.root.train.executor"]
    assert record.owner.kind == "orchestrated" and record.owner.phase == "worker"
    assert len(pipeline.members()) == 2
    assert_members_have_what_is_set_on_the_task(pipeline)
    pipeline.gate.write("finish", b"")
    until("the step is over", lambda: pipeline.phase(pod) in ("Succeeded", "Failed"))
    log = pipeline.log(pod)
    assert pipeline.phase(pod) == "Succeeded", log
    told = outputs_of(log)
    run = record.run
    assert told["parameterValues"]["run"] == run
    assert told["parameterValues"]["checkpoint"].startswith(f"{STORE}/held/{run}/step-")
    (model,) = told["artifacts"]["model"]["artifacts"]
    assert model["metadata"]["uri"] == told["parameterValues"]["checkpoint"]
    # The launcher refuses every other uri.
    assert model["uri"] == f"s3://pipelines/v2/artifacts/retrain/{pipeline.run_id}/train/model"
    engine = ENGINES[pipeline.engine]
    (job,) = pipeline.backend.api.list(resource_for(engine), labels=labels.selector(run))[0]
    conditions = engine.read(job, ()).conditions
    assert [c.status for c in conditions if c.type == "Succeeded"] == ["True"]
    assert pipeline.record().handed_over
    assert "AWS_SECRET" not in log and pipeline.environ["AWS_SECRET_ACCESS_KEY"] not in log


def assert_members_have_what_is_set_on_the_task(pipeline: Pipeline) -> None:
    found, _ = pipeline.backend.api.list(PODS, labels=labels.selector(pipeline.record().run))
    for pod in found:
        spec = pod["spec"]
        container = next(
            box for box in spec["containers"] if any(one["name"] == "TASK_PLAIN" for one in box["env"])
        )
        env = {one["name"]: one for one in container["env"]}
        assert env["TASK_PLAIN"]["value"] == "3" and "TASK_POD" not in env
        assert env["TASK_SECRET"]["valueFrom"]["secretKeyRef"]["name"] == "store"
        assert env.get("ALLABOARD_STORE", {}).get("value") != "s3://elsewhere"
        assert {"key": "team", "value": "vision"}.items() <= next(
            one for one in spec["tolerations"] if one.get("key") == "team"
        ).items()
        assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"
        assert "/settings" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert container["resources"]["requests"]["cpu"] == "10m"
        assert container["resources"]["limits"]["memory"] == "256Mi"


OTHERS = [pytest.param(engine, marks=pytest.mark.thorough) for engine in ("trainjob", "jobset", "mpijob")]


@pytest.mark.parametrize("pipeline", ["pytorchjob", *OTHERS], indirect=True)
def test_a_step_that_is_terminated_takes_its_training_with_it(pipeline: Pipeline) -> None:
    pod = pipeline.step()
    pipeline.until_the_training_works(pod)
    pipeline.plane.api.delete("v1", "Pod", pod, TEAM)
    until("the step is gone", lambda: pipeline.phase(pod) in ("gone", "Failed"))
    until("no member lives", lambda: pipeline.members() == [])
    record = pipeline.record()
    until("it is stopped", lambda: state_of(pipeline.backend.observe(record.run)).value == "stopped")
    assert record.stop is not None and record.stop.reason == "SIGTERM"


@pytest.mark.parametrize("pipeline", ["pytorchjob", *OTHERS], indirect=True)
def test_the_next_try_of_a_step_that_was_evicted_goes_on_with_its_training(
    pipeline: Pipeline, plane: ControlPlane
) -> None:
    pod = pipeline.step()
    before = pipeline.until_the_training_works(pod)
    plane.api.delete("v1", "Pod", pod, TEAM, grace=0)
    until("the pod is gone", lambda: pipeline.phase(pod) == "gone")
    again = pipeline.step(3)  # the step had lost two pods before
    until("it is adopted", lambda: pipeline.record().owner != before.owner)
    pipeline.gate.write("finish", b"")
    until("the step is over", lambda: pipeline.phase(again) in ("Succeeded", "Failed"))
    assert pipeline.phase(again) == "Succeeded", pipeline.log(again)
    record = pipeline.record()
    assert (record.uid, record.attempt, record.stop) == (before.uid, 1, None)


@pytest.mark.parametrize("pipeline", ["pytorchjob", *OTHERS], indirect=True)
def test_what_a_killed_step_leaves_behind_is_stopped_by_the_clean_up(
    pipeline: Pipeline, plane: ControlPlane
) -> None:
    pod = pipeline.step()
    pipeline.until_the_training_works(pod)
    plane.api.delete("v1", "Pod", pod, TEAM, grace=0)
    until("the pod is gone", lambda: pipeline.phase(pod) == "gone")
    assert pipeline.members() and pipeline.record().stop is None
    last = pipeline.clean_up()
    until("the clean-up is over", lambda: pipeline.phase(last) in ("Succeeded", "Failed"))
    log = pipeline.log(last)
    assert pipeline.phase(last) == "Succeeded", log
    run = pipeline.record().run
    assert outputs_of(log)["parameterValues"]["Output"] == [run]
    until("no member lives", lambda: pipeline.members() == [])
    until("it is stopped", lambda: state_of(pipeline.backend.observe(run)).value == "stopped")

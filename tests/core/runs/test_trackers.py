"""Variables of experiment trackers: who gets them, on every engine and in real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allaboard.checking.job import check
from allaboard.job.training_job import TrainingJob
from allaboard.runs.trackers import begins_a_run, for_others
from tests.core.cli.terminal import Terminal, a_terminal
from tests.core.render.test_helper import FRAMEWORKS, rendered, within

TRACKED = {
    "MLFLOW_TRACKING_URI": "http://mlflow.example:5000",
    "WANDB_PROJECT": "digits",
    "WANDB_DIR": "/tmp/wandb",
    "CLEARML_API_HOST": "http://clearml.example:8008",
    "LR": "0.1",
}
ALONE = {"MLFLOW_TRACKING_URI", "WANDB_PROJECT", "CLEARML_API_HOST"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MLFLOW_TRACKING_URI", True), ("MLFLOW_RUN_ID", True), ("MLFLOW_EXPERIMENT_NAME", True),
        ("MLFLOW_REGISTRY_URI", False), ("MLFLOW_S3_ENDPOINT_URL", False),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", False), ("MLFLOW_TRACKING_INSECURE_TLS", False),
        ("WANDB_API_KEY", True), ("WANDB_PROJECT", True), ("WANDB_NOTES", True), ("WANDB_CACHE_DIR", False),
        ("WANDB_MODE", False), ("WANDB_DISABLED", False), ("COMET_API_KEY", True),
        ("COMET_LOGGING_FILE_LEVEL", False), ("CLEARML_API_SECRET_KEY", True), ("NEPTUNE_API_TOKEN", True),
        ("MY_WANDB_PROJECT", False), ("WANDBOX_KEY", False), ("CUDA_VISIBLE_DEVICES", False),
    ],
)  # fmt: skip
def test_what_begins_a_run_is_told_from_how_a_server_is_reached(name: str, expected: bool) -> None:
    assert begins_a_run(name) is expected


def test_others_keep_what_a_word_names_and_have_weights_and_biases_switched_off() -> None:
    assert for_others(TRACKED, {}, ["--uri=$(MLFLOW_TRACKING_URI)"]) == {
        "MLFLOW_TRACKING_URI": TRACKED["MLFLOW_TRACKING_URI"],
        "WANDB_DIR": "/tmp/wandb",
        "WANDB_MODE": "disabled",
        "LR": "0.1",
    }
    assert for_others({"LR": "1", "MLFLOW_RUN_ID": "a"}, {}) == {"LR": "1"}
    assert "WANDB_MODE" not in for_others(TRACKED, {"WANDB_PROJECT": "mine"})


def variables(template: Any) -> dict[str, str]:
    found = [v for env in within(template, "env") for v in env if v["name"] in {*TRACKED, "WANDB_MODE"}]
    return {v["name"]: v.get("value", "") for v in found}


@pytest.mark.parametrize("engine", FRAMEWORKS)
def test_the_group_of_the_first_member_alone_has_them_on_every_engine(engine: str) -> None:
    made = rendered(engine, environment=TRACKED, command=["mpirun", "python", "t.py"], args=None)
    spec = made.job["spec"]
    groups = spec.get("replicatedJobs") or next((spec[n] for n in spec if n.endswith("ReplicaSpecs")), {})
    templates = [*groups.values()] if isinstance(groups, dict) else groups
    if len(templates) < 2:  # all members are of one template
        assert set(variables([*made.manifests])) >= ALONE
        return
    having = [index for index, template in enumerate(templates) if ALONE & set(variables(template))]
    assert len(having) == 1 and set(variables(templates[having[0]])) == {*TRACKED}
    for index, template in enumerate(templates):
        if index not in having and variables(template):
            assert variables(template) == {"WANDB_DIR": "/tmp/wandb", "LR": "0.1", "WANDB_MODE": "disabled"}


def test_a_group_that_names_them_itself_has_them() -> None:
    groups = {"master": 1, "worker": {"replicas": 2, "environment": {"WANDB_PROJECT": "per-rank"}}}
    specs = rendered(environment=TRACKED, groups=groups, workers=None).job["spec"]["pytorchReplicaSpecs"]
    assert variables(specs["Worker"]) == {
        "WANDB_PROJECT": "per-rank", "WANDB_DIR": "/tmp/wandb", "LR": "0.1",
    }  # fmt: skip


PRINTS = """
import json, os
names = ("MLFLOW_TRACKING_URI", "WANDB_PROJECT", "WANDB_API_KEY", "WANDB_MODE", "COMET_API_KEY", "WANDB_DIR")
print(json.dumps({n: os.environ[n] for n in names if n in os.environ}), flush=True)
"""


@pytest.fixture
def ab(tmp_path: Path) -> Any:
    with a_terminal(tmp_path) as terminal:
        yield terminal


ELASTIC = {"groups": {"worker": 3}, "elastic": {"min": 3, "max": 3}}


@pytest.mark.parametrize("shape", [{"workers": 3}, ELASTIC])
def test_of_real_members_the_first_alone_has_those_of_the_job_and_of_the_caller(
    ab: Terminal, shape: dict[str, Any]
) -> None:
    key = "e3c7f0a94b1d4c55a0f1"
    job = ab.job(PRINTS, environment={"MLFLOW_TRACKING_URI": "http://m", "WANDB_MODE": "offline"}, **shape)
    caller = {"WANDB_API_KEY": key, "WANDB_PROJECT": "digits", "WANDB_DIR": "/w", "COMET_API_KEY": "c" * 30}
    done = ab("run", job, **caller)
    assert done.code == 0, done.text
    found = {}
    for member in ab.seen().members:
        lines = Path(member.log or "").read_text().splitlines()
        found[member.rank] = json.loads(next(line for line in lines if line.startswith("{")))
    first = {"MLFLOW_TRACKING_URI": "http://m", "WANDB_MODE": "offline", **caller}
    others = {"WANDB_DIR": "/w", "WANDB_MODE": "disabled"}
    assert found == {0: first, 1: others, 2: others}
    kept = [p for p in (ab.folder.parent / "home").rglob("*") if p.is_file() and p.suffix != ".log"]
    assert kept and not any(key in path.read_text("latin-1") for path in kept)
    assert key not in done.text


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("WANDB_API_KEY", "0f" * 20, True),
        ("MLFLOW_TRACKING_PASSWORD", "hunter22", True),
        ("MLFLOW_TRACKING_URI", "https://me:hunter22@mlflow.example", True),
        ("CLEARML_API_SECRET_KEY", "abcdef123456", True),
        ("MLFLOW_TRACKING_URI", "https://mlflow.example/x", False),
        ("WANDB_API_KEY", "$(KEY_OF_A_SECRET)", False),
        ("WANDB_PROJECT", "digits", False),
        ("MLFLOW_TRACKING_AUTH", "kubernetes-namespaced", False),  # the name of a plugin
        ("OTHER_API_KEY", "0f" * 20, False),
    ],
)
def test_keys_of_trackers_in_plain_text_are_refused_wherever_they_stand(
    name: str, value: str, refused: bool
) -> None:
    groups = {"master": {"environment": {name: value}}, "worker": 1}
    for fields, at in (
        ({"environment": {name: value}}, f"environment.{name}"),
        ({"groups": groups}, f"groups.master.environment.{name}"),
    ):
        job = TrainingJob(name="digits", command=["python", "t.py"], **fields)
        problems = check(job)
        assert [problem.path for problem in problems] == ([at] if refused else [])
        assert all(value not in f"{problem}" for problem in problems)

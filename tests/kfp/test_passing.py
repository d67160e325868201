"""Parameters and artifacts that a pipeline passes into the inputs of a step: compiled, under kfp.local and
in pods.
"""

# kfp reads the annotations of a pipeline: no `from __future__ import annotations` here.

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List  # noqa: UP035  # kfp reads these

import pytest
import yaml
from kfp import dsl

from allaboard.checkpoints import Manifest, save
from allaboard.errors import BadInput
from allaboard.storage import open_store
from allaboard_kfp import collect_checkpoint, evaluate, prepare_shards, promote, start_local, train
from tests.core.s3server import S3Server, s3_server
from tests.kfp.conftest import JOBS, Here
from tests.kfp.driver import Driver, DriverError
from tests.kfp.golden import ROOT, subjects
from tests.kfp.ir import RELEASES, compiled, validated
from tests.kfp.pod import BUCKET, as_pod, why_not
from tests.kfp.test_picking import sweep as searched

SAY = (
    "import json, os, sys\n"
    "seen = dict(args=sys.argv[1:], env={k[3:]: v for k, v in os.environ.items() if k.startswith('IN_')})\n"
    "print('SEEN ' + json.dumps(seen, sort_keys=True))\n"
    "from allaboard.inside import result\n"
    "result(loss=float(os.environ.get('IN_LR', '0.5')))\n"
)
QUOTED = 'say "hi", \\ \u2713'


@dsl.pipeline(name="typed")
def typed(
    n: int = 12,
    lr: float = 12.0,
    small: float = 1e-05,
    text: str = "007",
    quoted: str = QUOTED,
    yes: bool = True,
    words: list = ["a", 1, 12.0, 'b"c'],  # noqa: B006
    table: dict = {"IN_T": "x", "IN_U": 3},  # noqa: B006
    where: str = "tmp",
    depth: Dict[str, int] = {"backoff_limit": 5},  # noqa: B006, UP006
):  # type: ignore[no-untyped-def]
    """Every type in every place."""
    train(
        job={
            "name": "seen", "command": ["python", "-c", SAY, n, f"--lr={lr}", quoted], "workers": 1,
            "environment": {"IN_N": n, "IN_LR": lr, "IN_TEXT": text, "IN_YES": yes, "IN_LIST": words},
            "policy": {"restart": "never", "attempts": n},
        },
        overrides={"policy": depth, "metadata": {"labels": {"team": f"t-{n}"}, "annotations": {"a": n}}},
        environment={"IN_QUOTED": quoted, "IN_SMALL": small, "IN_BIG": str(n)},
        args=["--text", text, yes, small, words],
    )  # fmt: skip
    train(
        job={"name": "whole", "command": ["python", "-c", SAY], "workers": 1, "args": words},
        overrides={"environment": table}, environment=table, args=words, folder=f"/{where}",
    )  # fmt: skip


WORDS = ["a", "1", "12", 'b"c']
SEEN = [
    {
        "args": ["12", "--lr=12.0", QUOTED, "--text", "007", "true", "1e-05", '["a",1,12,"b\\"c"]'],
        "env": {
            "N": "12", "LR": "12.0", "TEXT": "007", "YES": "true", "LIST": '["a",1,12,"b\\"c"]',
            "QUOTED": QUOTED, "SMALL": "1e-05", "BIG": "12",
        },
    },
    {"args": [*WORDS, *WORDS], "env": {"T": "x", "U": "3"}},
]  # fmt: skip


def seen(log: str) -> list[Any]:
    found = [line.partition("[rank0] SEEN ")[2] for line in log.splitlines() if "[rank0] SEEN " in line]
    return [json.loads(line) for line in found]


# --- compiled


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def grid() -> list:
    """Trials, of which nobody says what they are."""
    return [{"lr": 0.5, "n": 2}, {"lr": 0.25, "n": 3}]


TRIAL = {"name": "trial", "command": ["python", "-c", SAY], "workers": 1}


@dsl.pipeline(name="sweep")
def sweep(rates: List[float] = [0.5, 2.0], bare: list = [{"environment": {"IN_LR": "0.125"}}]):  # type: ignore[no-untyped-def]  # noqa: B006, UP006
    """Loops over everything."""
    with dsl.ParallelFor([{"lr": 0.5, "n": 2, "who": "a", "yes": True}]) as trial:
        train(
            job={**TRIAL, "args": ["--n", trial.n, f"--who={trial.who}", trial.yes]},
            environment={"IN_LR": trial.lr},
            overrides={"policy": {"attempts": trial.n}},
        )
    with dsl.ParallelFor(rates) as rate:
        train(job={**TRIAL, "environment": {"IN_LR": rate}}, args=[f"--lr={rate}"])
    with dsl.ParallelFor(grid().output) as cell:
        train(job={**TRIAL, "environment": {"IN_LR": cell.lr}, "args": [cell.n]})
    with dsl.ParallelFor(bare) as change:
        train(job=TRIAL, overrides=change)


SWEPT = [
    {"args": ["--n", "2", "--who=a", "true"], "env": {"LR": "0.5"}},
    {"args": ["--lr=0.5"], "env": {"LR": "0.5"}},
    {"args": ["--lr=2.0"], "env": {"LR": "2.0"}},
    {"args": ["2"], "env": {"LR": "0.5"}},
    {"args": ["3"], "env": {"LR": "0.25"}},
    {"args": [], "env": {"LR": "0.125"}},
]


@pytest.mark.parametrize("pipeline", [typed, sweep], ids=["typed", "sweep"])
def test_no_parameter_is_filled_into_json_as_text(pipeline: Any, tmp_path: Path) -> None:
    text = compiled(pipeline, tmp_path / "p.yaml")
    validated(text)
    for name, component in yaml.safe_load(text)["components"].items():
        for task in component.get("dag", {}).get("tasks", {}).values():
            constants = json.dumps(task["inputs"]["parameters"])
            assert "{{$.inputs" not in constants, name


def test_a_parameter_becomes_an_input_of_its_own_with_its_type(tmp_path: Path) -> None:
    spec = yaml.safe_load(compiled(typed, tmp_path / "p.yaml"))
    inputs = spec["components"]["comp-train"]["inputDefinitions"]["parameters"]
    found = {
        name.removeprefix("parameter_"): one["parameterType"]
        for name, one in inputs.items()
        if name[:10] == "parameter_"
    }
    assert found == {
        "n": "NUMBER_INTEGER", "lr": "NUMBER_DOUBLE", "small": "NUMBER_DOUBLE", "text": "STRING",
        "quoted": "STRING", "yes": "BOOLEAN", "words": "LIST", "depth": "STRUCT",
    }  # fmt: skip
    assert inputs["parameter_lr"]["description"] == "what stands in job.command[4]"


def test_a_call_without_parameters_of_the_pipeline_is_the_component_itself(tmp_path: Path) -> None:
    @dsl.pipeline(name="plain")
    def plain(store: str = ""):  # type: ignore[no-untyped-def]
        train(job=TRIAL, args=["--n", 3], store=store)

    spec = yaml.safe_load(compiled(plain, tmp_path / "p.yaml"))
    golden = yaml.safe_load((ROOT / "tests" / "kfp" / "golden" / "train.yaml").read_text())
    assert spec["components"]["comp-train"] == golden["components"]["comp-train"]


class Odd:
    """Nothing that Kubeflow holds."""


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"environment": {"SEED": 2**53 + 1}}, "environment.SEED: 9007199254740993 is not exact in Kubeflow"),
        (
            {"overrides": {"a": [{"b": -(2**60) - 1}]}},
            r"overrides\.a\[0\]\.b: -1152921504606846977 is not exact",
        ),
        ({"job": {"policy": None}}, "job.policy: Kubeflow's inputs hold no null; leave the field out"),
        ({"job": {"a": {"b": math.nan}}}, "job.a.b: nan is no number of JSON"),
        ({"args": ["a", Odd()]}, r"args\[1\]: Kubeflow's inputs cannot hold Odd"),
        ({"environment": {1: "a"}}, "environment: the field's name '1' is not text; quote it"),
    ],
)
def test_what_kubeflow_cannot_hold_is_refused_with_the_name_of_the_field(inputs: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):

        @dsl.pipeline(name="wrong")
        def wrong():  # type: ignore[no-untyped-def]
            train(**{"job": TRIAL, **inputs})


def test_an_artifact_inside_another_input_is_refused_with_the_name_of_the_field() -> None:
    with pytest.raises(BadInput, match=r"job\.environment\.MODEL: an artifact \(train-model\) cannot stand"):

        @dsl.pipeline(name="wrong")
        def wrong():  # type: ignore[no-untyped-def]
            first = train(job=TRIAL)
            train(job={**TRIAL, "environment": {"MODEL": first.outputs["model"]}})


def test_what_is_exact_is_kept() -> None:
    @dsl.pipeline(name="right")
    def right():  # type: ignore[no-untyped-def]
        train(job={**TRIAL, "environment": {"A": 2**53, "B": 2**60, "C": -(2**53), "D": 1e300}})


# --- under kfp.local


def test_every_type_arrives_as_its_author_wrote_it_under_kfp_local(
    here: Here, capfd: pytest.CaptureFixture[str]
) -> None:
    start_local(here.out)
    typed()
    # kfp.local runs tasks that do not depend on each other in any order.
    assert sorted(seen(capfd.readouterr().out), key=str) == sorted(SEEN, key=str)


@pytest.mark.thorough
def test_loops_over_typed_and_untyped_items_under_kfp_local(
    here: Here, capfd: pytest.CaptureFixture[str]
) -> None:
    start_local(here.out)
    sweep()
    key = json.dumps
    assert sorted(seen(capfd.readouterr().out), key=key) == sorted(SWEPT, key=key)


@dsl.pipeline(name="misspelt")
def misspelt(n: int = 3):  # type: ignore[no-untyped-def]
    """A field that is none."""
    train(job=TRIAL, overrides={"checkpoints": {"evry": n}})


def test_a_wrong_override_is_said_with_its_field(here: Here, capfd: pytest.CaptureFixture[str]) -> None:
    start_local(here.out)
    with pytest.raises(RuntimeError):
        misspelt()
    output = capfd.readouterr().out
    assert "checkpoints.evry: no such field (did you mean 'every'?)" in output and "Traceback" not in output
    assert not here.runs()


# --- artifacts in the place of uris


JUDGE = {"name": "judge", "command": ["python", "judge.py"], "workers": 1}
TRAINING = {
    "name": "quick", "command": ["python", "quick.py"], "workers": 1,
    "checkpoints": {"uri": "store://checkpoints", "every": 2},
}  # fmt: skip


@dsl.pipeline(name="imported")
def imported(uri: str, folder: str, store: str = ""):  # type: ignore[no-untyped-def]
    """A model that somebody else has made is judged and promoted."""
    given = dsl.importer(artifact_uri=uri, artifact_class=dsl.Model)
    judged = evaluate(job=JUDGE, checkpoint=given.output, folder=folder, store=store)
    promote(
        checkpoint=given.output, into="store://champions", results=judged.outputs["results"],
        metric="accuracy", store=store,
    )  # fmt: skip


@dsl.pipeline(name="artifacts")
def artifacts(folder: str, store: str = ""):  # type: ignore[no-untyped-def]
    """The chain, with artifacts between the steps."""
    data = prepare_shards(source="counting.py:samples", into="store://numbers", folder=folder, store=store)
    trained = train(job=TRAINING, shards=data.outputs["dataset"], folder=folder, store=store)
    kept = collect_checkpoint(source=trained.outputs["model"], into="store://models", store=store)
    evaluate(job=JUDGE, checkpoint=kept.outputs["model"], folder=folder, store=store)
    promote(checkpoint=kept.outputs["model"], into="store://champions", store=store, thresholds="val_loss<=1")


def test_an_importers_uri_is_given_so_that_nothing_is_downloaded(tmp_path: Path) -> None:
    spec = yaml.safe_load(compiled(imported, tmp_path / "p.yaml"))
    for task in ("evaluate", "promote"):
        inputs = spec["root"]["dag"]["tasks"][task]["inputs"]
        assert inputs["parameters"]["checkpoint"] == {"componentInputParameter": "uri"}
        assert "artifacts" not in inputs


def test_a_checkpoint_is_still_needed_and_only_one(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"evaluate\(\) missing 1 required argument: checkpoint"):

        @dsl.pipeline(name="wrong")
        def none():  # type: ignore[no-untyped-def]
            evaluate(job=JUDGE)

    with pytest.raises(BadInput, match="both source and source_artifact are given"):

        @dsl.pipeline(name="wrong")
        def both():  # type: ignore[no-untyped-def]
            model = train(job=TRIAL).outputs["model"]
            collect_checkpoint(source="store://a", source_artifact=model, into="store://b")


def test_the_chain_passes_artifacts_under_kfp_local(here: Here) -> None:
    start_local(here.out)
    artifacts(folder=str(JOBS))
    assert (here.store / "champions" / "promoted").is_dir()


# --- in pods


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    if (why := why_not()) is not None:
        pytest.skip(f"no mounts of our own: {why}")
    with s3_server("moto") as server:
        server.make_bucket(BUCKET)
        yield server


class Cluster:
    """Pods with a disk each, and one object store."""

    def __init__(self, here: Here, server: S3Server) -> None:
        self.here, self.server = here, server
        self.store = f"s3://{server.make_bucket()}/team"
        self.pods = 0

    def run(self, pipeline: Any, **parameters: Any) -> dict[str, dict[str, Any]]:
        return Driver(pipeline, self.here.folder, self._step).run(**parameters)

    def _step(self, name: str, file: Path, task: dict[str, Any]) -> dict[str, Any]:
        self.pods += 1
        disk = self.here.folder / f"disk-{self.pods}"
        own = {"ALLABOARD_HOME": str(disk / "home"), "ALLABOARD_POOL": str(disk / "pool")}
        return as_pod(self.here.folder, file, task, {**self.server.environ, **own})


@pytest.fixture
def cluster(here: Here, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return Cluster(here, s3)


@pytest.mark.thorough
def test_every_type_arrives_as_its_author_wrote_it_in_pods(cluster: Cluster) -> None:
    done = cluster.run(typed)
    assert [seen(pod["log"])[0] for pod in done.values()] == SEEN


@pytest.mark.thorough
def test_loops_over_typed_and_untyped_items_in_pods(cluster: Cluster) -> None:
    done = cluster.run(sweep)
    found = [line for pod in done.values() for line in seen(pod["log"])]
    assert sorted(found, key=json.dumps) == sorted(SWEPT, key=json.dumps)


@pytest.mark.thorough
def test_the_best_of_a_sweep_is_picked_in_pods(cluster: Cluster) -> None:
    done = cluster.run(searched, folder=str(JOBS), store=cluster.store)
    trainings = [pod["parameters"] for name, pod in done.items() if name.endswith("/train")]
    best = done["pick-best"]["parameters"]
    assert best == {"position": 1, "value": 0.1, **{n: trainings[1][n] for n in ("checkpoint", "run")}}
    assert [bool(one["checkpoint"]) for one in trainings] == [True, True, False, True]


@pytest.mark.thorough
def test_the_chain_passes_artifacts_in_pods(cluster: Cluster) -> None:
    done = cluster.run(artifacts, folder=str(JOBS), store=cluster.store)
    assert [*done] == ["prepare-shards", "train", "collect-checkpoint", "evaluate", "promote"]
    assert done["promote"]["parameters"]["champion"] == done["collect-checkpoint"]["parameters"]["Output"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("release", [None, *RELEASES], ids=lambda one: one and one.name)
def test_the_chain_of_the_examples_in_pods(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, release: Path | None
) -> None:
    """DistributedDataParallel on two processes of a pod; each step takes what the one before gave. Also the
    pipeline that a release has compiled, in the image of today.
    """
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    monkeypatch.setenv("EPOCHS", "1")
    folder = str(ROOT / "dags_examples" / "digits")
    pipeline = release / "retrain_digits.yaml" if release else subjects()["retrain_digits"]
    done = cluster.run(pipeline, store=cluster.store, folder=folder, least="accuracy>=0.1")
    assert [*done] == ["prepare-shards", "train", "collect-checkpoint", "evaluate", "promote"]
    assert {name: pod["message"] for name, pod in done.items() if pod["code"]} == {}
    digits = f"{cluster.store}/digits"
    run = done["train"]["parameters"]["run"]
    prepared = done["prepare-shards"]["artifacts"]["dataset"]["metadata"]["uri"]
    assert prepared.startswith(f"{digits}/shards/version-")
    copy = done["collect-checkpoint"]["parameters"]["Output"]
    assert copy.startswith(f"{digits}/models/{run}/step-")
    assert done["promote"]["parameters"] == {"promoted": True, "number": 1, "champion": copy}
    for name, pod in done.items():
        assert all(one["uploaded"] == [one["uri"]] for one in pod["artifacts"].values()), name


@pytest.mark.thorough
def test_an_imported_model_is_judged_and_promoted_in_pods(cluster: Cluster) -> None:
    save(open_store(f"{cluster.store}/theirs"), Manifest(step=400), {"state.bin": b"400"})
    uri = f"{cluster.store}/theirs/step-000000000400"
    done = cluster.run(imported, uri=uri, folder=str(JOBS), store=cluster.store)
    assert done["promote"]["parameters"]["champion"] == uri


def test_the_pods_driver_refuses_what_the_real_one_refuses(cluster: Cluster) -> None:
    @dsl.component(base_image="python:3.11", install_kfp_package=False)
    def double(n: int) -> int:
        return n * 2

    @dsl.pipeline(name="refused")
    def refused(bare: list = [1, 2]):  # type: ignore[no-untyped-def]  # noqa: B006
        with dsl.ParallelFor(bare) as n:
            double(n=n)

    with pytest.raises(DriverError, match="type mismatch: expect NUMBER_INTEGER, got str"):
        cluster.run(refused)

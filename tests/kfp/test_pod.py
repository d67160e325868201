"""The pod of the tests refuses what KFP's launcher refuses, in its words."""

# kfp reads the annotations of a component: no `from __future__ import annotations` here.

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from tests.core.s3server import S3Server, s3_server
from tests.kfp.ir import compiled
from tests.kfp.pod import BUCKET, USER, as_pod, why_not, why_root

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no mounts of our own: {why_not()}")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server("moto") as server:
        server.make_bucket(BUCKET)
        yield server


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def step(how: str, model: dsl.Output[dsl.Model], given: dsl.Input[dsl.Artifact] = None) -> str:  # type: ignore[assignment]
    """A step of somebody else."""
    import os
    from pathlib import Path

    Path(model.path).write_text("a model")
    if how == "astray":
        model.uri = "s3://elsewhere/model"
    if how == "same bucket":
        model.uri = "s3://pipelines/v2/models/mine"
    if how == "nan":
        model.metadata["loss"] = float("nan")
    if how == "fails":
        raise SystemExit(7)
    if how == "root":
        for folder in ("/", "/usr", "/dev", "/root"):
            assert not os.access(folder, os.W_OK), folder
        Path("/dev/termination-log").write_text("mine")
        return f"{os.getuid()} {os.environ['HOME']}"
    return Path(given.path).read_text() if given is not None else how


@pytest.fixture
def run(tmp_path: Path, s3: S3Server) -> Any:
    file = tmp_path / "step.yaml"
    compiled(step, file)

    def once(how: str, **artifacts: Any) -> dict[str, Any]:
        task = {"run": str(uuid.UUID(int=1)), "task": str(uuid.uuid4()), "parameters": {"how": how}}
        return as_pod(tmp_path, file, {**task, "artifacts": artifacts}, s3.environ)

    return once


def test_what_is_right_is_uploaded_and_downloaded_by_the_next_step(run: Any) -> None:
    first = run("right")
    assert (first["code"], first["parameters"]) == (0, {"Output": "right"})
    model = first["artifacts"]["model"]
    assert model["uploaded"] == [model["uri"]]
    assert run("right", given={"uri": model["uri"]})["parameters"] == {"Output": "a model"}


@pytest.mark.thorough(but=("astray",))
@pytest.mark.parametrize("how", ["astray", "same bucket"])
def test_an_artifact_that_points_out_of_the_pipeline_run_fails_its_step(run: Any, how: str) -> None:
    refused = run(how)
    assert refused["code"] == 1 and "artifacts" not in refused
    assert 'failed to upload output artifact "model": URI "s3://' in refused["log"]
    prefix = f"s3://pipelines/v2/artifacts/step/{uuid.UUID(int=1)}"
    assert f'does not have expected bucket prefix "{prefix}"' in refused["log"]


def test_a_nan_in_the_metadata_fails_its_step(run: Any) -> None:
    refused = run("nan")
    assert refused["code"] == 1 and "failed to unmarshall ExecutorOutput" in refused["log"]


@pytest.mark.thorough
def test_of_a_failed_step_nothing_is_kept(run: Any) -> None:
    failed = run("fails")
    assert failed["code"] == 7 and "artifacts" not in failed


def test_a_step_is_not_root_and_has_no_home(run: Any) -> None:
    if (why := why_root()) is not None:
        pytest.skip(why)
    found = run("root")
    assert found["code"] == 0, found["log"]
    assert found["parameters"] == {"Output": f"{USER} /"}
    assert found["message"] == "mine"

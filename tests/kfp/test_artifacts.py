"""Artifacts hold only what every reader of them takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kfp import dsl

from allaboard_kfp.artifacts import flat, log_numbers, place_of, refer, write_page


def test_only_finite_numbers_booleans_and_text_pass_under_dotted_names() -> None:
    given = {
        "a": 1, "b": 0.5, "c": float("nan"), "d": float("-inf"), "e": None, "f": [1, 2], "g": "text",
        "h": True, "deep": {"x": 2, "deeper": {"y": 0.25}}, "huge": 2**60,
    }  # fmt: skip
    assert dict(flat(given)) == {
        "a": 1, "b": 0.5, "g": "text", "h": True, "deep.x": 2, "deep.deeper.y": 0.25, "huge": float(2**60),
    }  # fmt: skip


def test_the_table_of_metrics_shows_numbers_alone(tmp_path: Path) -> None:
    metrics = dsl.Metrics(uri=str(tmp_path / "metrics"))
    log_numbers(metrics, {"loss": 0.5, "words": "fine", "odd": float("nan")})
    assert metrics.metadata == {"loss": 0.5}


@pytest.mark.parametrize("uri", ["s3://b/k", "gs://b/k", "minio://b/k", "oci://b/k", "/mnt/store/x"])
@pytest.mark.parametrize("pod", ["a-pod", ""])
def test_an_artifact_names_its_place_and_keeps_the_uri_that_kubeflow_gave_it(
    uri: str, pod: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_POD_NAME", pod)
    given = str(tmp_path / "task" / "model")
    model = dsl.Model(uri=given)
    refer(model, "checkpoint", uri, {"step": 3, "loss": float("inf")})
    assert (model.uri, model.metadata) == (given, {"uri": uri, "step": 3})
    assert json.loads(Path(given).read_text()) == {"what": "checkpoint", "uri": uri, "step": 3}
    assert place_of(model) == uri


def test_an_artifact_of_an_importer_is_its_own_place() -> None:
    assert place_of(dsl.Model(uri="s3://b/models/step-000000000400")) == "s3://b/models/step-000000000400"
    odd = dsl.Model(uri="s3://b/x", metadata={"uri": ["s3://b/y"]})
    assert place_of(odd) == "s3://b/x"


def test_an_artifact_of_nothing_names_no_place(tmp_path: Path) -> None:
    model = dsl.Model(uri=str(tmp_path / "model"))
    refer(model, "no checkpoint was saved", "", {})
    assert place_of(model) == "" and "no checkpoint was saved" in Path(model.path).read_text()


def test_a_page_replaces_that_of_an_earlier_try(tmp_path: Path) -> None:
    page = dsl.HTML(uri=str(tmp_path / "task" / "html"))
    write_page(page, "a longer one of the first try")
    write_page(page, "the second")
    assert Path(page.path).read_text() == "the second"

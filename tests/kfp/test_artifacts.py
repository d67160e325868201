"""Artifacts hold only what every reader of them takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kfp import dsl

from allaboard_kfp.artifacts import flat, log_numbers, point, write_page


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


@pytest.mark.parametrize("uri", ["s3://b/k", "gs://b/k", "minio://b/k"])
@pytest.mark.parametrize("pod", [True, False])
def test_an_artifact_becomes_what_is_in_the_store(
    uri: str, pod: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_a_cluster(monkeypatch, pod)
    model = dsl.Model(uri="s3://root/run/task/model")
    point(model, uri, {"step": 3, "loss": float("inf")})
    assert (model.uri, model.metadata) == (uri, {"uri": uri, "step": 3})


def test_a_folder_is_an_artifact_under_kfp_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _on_a_cluster(monkeypatch, False)
    model = dsl.Model(uri=str(tmp_path / "task" / "model"))
    point(model, str(tmp_path / "store"), {})
    assert model.path == str(tmp_path / "store")


def test_a_folder_of_a_mounted_disk_is_named_by_a_small_file_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_a_cluster(monkeypatch, True)
    model = dsl.Model(uri=str(tmp_path / "task" / "model"))
    point(model, "/mnt/store/x", {"step": 3})
    assert json.loads(Path(model.path).read_text()) == {"uri": "/mnt/store/x", "step": 3}


def test_a_page_replaces_that_of_an_earlier_try(tmp_path: Path) -> None:
    page = dsl.HTML(uri=str(tmp_path / "task" / "html"))
    write_page(page, "a longer one of the first try")
    write_page(page, "the second")
    assert Path(page.path).read_text() == "the second"


def _on_a_cluster(monkeypatch: pytest.MonkeyPatch, pod: bool) -> None:
    if pod:
        monkeypatch.setenv("KFP_POD_NAME", "a-pod")
    else:
        monkeypatch.delenv("KFP_POD_NAME", raising=False)

"""The manifest's format: what is written, what is read, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allaboard.checkpoints import Checkpoint, Manifest, Part, folder_name, locate, step_of
from allaboard.errors import BadInput, Corrupt

SHA = "ab" * 32


def a_body(**changes: Any) -> bytes:
    body = {"version": 1, "step": 3, "parts": [{"name": "state.pt", "size": 10, "sha256": SHA, "rank": 0}]}
    return json.dumps({**body, **changes}).encode()


def test_what_is_written_is_read_again() -> None:
    manifest = Manifest(
        step=120,
        parts=(Part("state.pt", 10, SHA), Part("m~1f.pt", 3, SHA, rank=2, part="m.pt")),
        run="digits-1f0c9a77",
        attempt=2,
        generation=1,
        world_size=4,
        created="2026-11-21T12:00:00.250Z",
        parent="s3://bucket/other/step-000000000007",
        versions={"python": "3.12.1"},
    ).with_metrics({"val_loss": 0.5, "broken": float("nan")})
    assert Manifest.decode(manifest.encode(), "here") == manifest


def test_copies_of_the_same_weights_have_one_fingerprint_and_other_weights_another() -> None:
    manifest = Manifest(step=1, run="a", parts=(Part("m.pt", 10, SHA), Part("o.pt", 3, SHA)))
    copy = Manifest(step=2, run="b", parts=(Part("o~1f.pt", 3, SHA, part="o.pt"), Part("m.pt", 10, SHA)))
    other = Manifest(step=1, run="a", parts=(Part("m.pt", 10, "cd" * 32), Part("o.pt", 3, SHA)))
    assert manifest.fingerprint == copy.fingerprint != other.fingerprint
    assert manifest.fingerprint.startswith("parts:v1:")


def test_the_shape_is_that_of_the_contract() -> None:
    body = json.loads(Manifest(step=1, parts=(Part("state.pt", 10, SHA),)).encode())
    assert list(body) == [
        *("version", "step", "run", "attempt", "generation", "world_size", "created"),
        *("metrics", "nonfinite", "parts", "parent", "versions", "writer"),
    ]
    assert body["parts"] == [{"name": "state.pt", "size": 10, "sha256": SHA, "rank": 0}]
    assert body["version"] == 1


def test_equal_manifests_have_equal_bytes() -> None:
    assert Manifest.decode(a_body(), "x").encode() == Manifest.decode(a_body(), "y").encode()


def test_nan_is_null_and_its_name_is_listed() -> None:
    manifest = Manifest(step=1).with_metrics({"loss": float("nan"), "speed": float("inf"), "accuracy": 0.5})
    assert manifest.metrics == {"loss": None, "speed": None, "accuracy": 0.5}
    assert manifest.nonfinite == ("loss", "speed")
    assert b"NaN" not in manifest.encode()


def test_fields_of_a_later_version_are_kept() -> None:
    manifest = Manifest.decode(a_body(version=7, sharding={"dim": 1}), "here")
    assert manifest.version == 7
    assert json.loads(manifest.encode())["sharding"] == {"dim": 1}


def test_a_bare_manifest_is_enough() -> None:
    manifest = Manifest.decode(a_body(), "here")
    assert (manifest.run, manifest.metrics, manifest.parent, manifest.size) == (None, {}, None, 10)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not JSON"),
        (a_body()[:40], "not JSON"),
        (b"\x00\xff\x00", "not UTF-8"),
        (b"[]", "not a JSON object"),
        (a_body(step="3"), "not a whole number"),
        (a_body(step=-1), "not a whole number"),
        (a_body(version=None), "not a whole number"),
        (a_body(parts=[]), "lists no parts"),
        (a_body(parts={"state.pt": 10}), "lists no parts"),
        (a_body(parts=["state.pt"]), "is not a part"),
        (a_body(parts=[{"name": "state.pt", "size": -1, "sha256": SHA}]), "is not a part"),
        (a_body(parts=[{"name": "state.pt", "size": 1, "sha256": "short"}]), "is not a part"),
        (a_body(parts=[{"name": "../../etc/passwd", "size": 1, "sha256": SHA}]), "is not a part"),
        (a_body(parts=[{"name": "/etc/passwd", "size": 1, "sha256": SHA}]), "is not a part"),
        (a_body(parts=[{"name": "a\\b", "size": 1, "sha256": SHA}]), "is not a part"),
        (a_body(parts=[{"name": "a", "size": 1, "sha256": SHA}] * 2), "lists a part twice"),
    ],
)
def test_what_is_no_manifest_is_corrupt_and_says_where_and_why(raw: bytes, why: str) -> None:
    with pytest.raises(Corrupt, match=rf"s3://b/step-3/manifest\.json: .*{why}"):
        Manifest.decode(raw, "s3://b/step-3/manifest.json")


def test_folders_are_steps_of_twelve_digits() -> None:
    assert folder_name(120) == "step-000000000120"
    assert [step_of(name) for name in ("step-000000000120", "step-120", "step-0000000001200", "other")] == [
        *(120, None, None, None)
    ]
    for step in (-1, 10**12, True, 2.0, "3"):
        with pytest.raises(BadInput, match="is not a step"):
            folder_name(step)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("s3://b/run-1/step-000000000120", ("s3://b/run-1", 120)),
        ("s3://b/run-1/step-000000000120/", ("s3://b/run-1", 120)),
        ("/data/run-1", ("/data/run-1", None)),
        ("step-000000000120", (".", 120)),
        ("/step-000000000120", ("/", 120)),
        ("runs/step-120", ("runs/step-120", None)),
    ],
)
def test_a_uri_is_split_into_the_runs_folder_and_the_step(uri: str, found: tuple[str, int | None]) -> None:
    assert locate(uri) == found


def test_a_checkpoint_shows_its_manifest_uri_and_bytes() -> None:
    shown = Checkpoint(
        "s3://b/r/step-000000000003", Manifest.decode(a_body(metrics={"loss": 1.0}), "here")
    ).to_dict()
    assert (shown["uri"], shown["step"], shown["bytes"], shown["metrics"]) == (
        *("s3://b/r/step-000000000003", 3, 10),
        {"loss": 1.0},
    )

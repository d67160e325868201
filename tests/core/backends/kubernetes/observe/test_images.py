"""Members that run different images under one name are told of, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.kubernetes.observe import images
from allaboard.backends.kubernetes.observe.objects import pod_seen
from allaboard.backends.kubernetes.observe.observation import of_object
from allaboard.diagnosis.rules import diagnose
from allaboard.testing.objects import a_pod, a_pytorchjob

Json = dict[str, Any]
A, B = ("registry.lab/ml/train@sha256:" + letter * 64 for letter in "ab")


def pod(member: str, image: str, image_id: str | None) -> Json:
    one = a_pod(member)
    one["spec"]["containers"][0]["image"] = image
    one["status"]["containerStatuses"][0]["imageID"] = image_id
    return one


@pytest.mark.parametrize(
    ("pods", "differ"),
    [
        ([("train:v3", A), ("train:v3", A)], False),
        ([("train:v3", A), ("train:v3", B)], True),
        ([("train:v3", A), ("ps:v3", B)], False),
        ([("train:v3", A), ("train:v3", None)], False),
        ([("train:v3", A), ("train:v3", "sha256:" + "c" * 64)], False),
        ([], False),
    ],
)
def test_one_name_is_one_image(pods: list[tuple[str, str | None]], differ: bool) -> None:
    members = [pod(f"worker-{n}", *one) for n, one in enumerate(pods)]
    assert images.differ([pod_seen(member, "pytorch") for member in members], "pytorch") is differ


def test_a_run_of_different_images_is_told_of() -> None:
    members = [pod("master-0", "train:v3", A), pod("worker-0", "train:v3", B)]
    seen = of_object(a_pytorchjob(), now=30.0, pods=members)
    assert images.DIFFER in seen.flags
    [told] = [d for d in diagnose(seen) if d.code == images.DIFFER]
    assert "digest" in told.fix

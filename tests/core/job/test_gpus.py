"""Which card has which slices, under which names."""

from __future__ import annotations

import pytest

from allaboard.job.gpus import (
    CARDS,
    PROFILES,
    card_of,
    cards_with,
    fits,
    nearest_device,
    profile_of,
    profile_problem,
    resource_of,
)


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA-A100-SXM4-40GB", "A100 40GB"),
        ("A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100 40GB"),
        ("NVIDIA-A800-80GB-PCIe", "A100 80GB, H100 80GB"),
        ("NVIDIA-H100-80GB-HBM3", "A100 80GB, H100 80GB"),
        ("NVIDIA-H100-PCIe", "A100 80GB, H100 80GB"),
        ("NVIDIA-H100-NVL", "H100 NVL"),
        ("NVIDIA-H800-NVL", "H100 NVL"),
        ("NVIDIA-GH200-480GB", "H100 96GB, GH200 96GB, H20"),
        ("NVIDIA-H20", "H100 96GB, GH200 96GB, H20"),
        ("NVIDIA-H200-NVL-SHARED", "H200"),
        ("NVIDIA-GH200-144G-HBM3e", "GH200 144GB"),
        ("NVIDIA-B200", "B200"),
        ("NVIDIA-GB200", "GB200"),
        ("NVIDIA-B300-SXM6-AC", "B300"),
        ("NVIDIA-GB300", "GB300"),
        ("NVIDIA-A30", "A30"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTX PRO 6000 Blackwell"),
    ],
)
def test_a_node_label_tells_the_card(product: str, name: str) -> None:
    card = card_of(product)
    assert card is not None and card.name == name


@pytest.mark.parametrize("product", ["", "Tesla-T4", "NVIDIA-A10", "NVIDIA-A100-SXM-64GB", "NVIDIA-H20-3e"])
def test_of_a_card_that_is_not_in_the_table_nothing_is_said(product: str) -> None:
    assert card_of(product) is None


@pytest.mark.parametrize(
    ("profile", "product", "number"),
    [
        ("1g.10gb", "NVIDIA-A100-SXM4-40GB", 4),
        ("1g.10gb", "NVIDIA-A100-SXM4-80GB", 7),
        ("1g.10gb+me", "NVIDIA-H100-80GB-HBM3", 1),
        ("1c.3g.40gb", "NVIDIA-H100-80GB-HBM3", 2),
        ("1g.35gb", "NVIDIA-H200", 4),
        ("1g.35gb", "NVIDIA-GB300", 7),
        ("1g.24gb", "NVIDIA-H100-NVL", 4),
        ("1g.24gb", "NVIDIA-GB200", 7),
        ("3g.93gb", "NVIDIA-GB200", 2),
        ("3g.95gb", "NVIDIA-GB200", 2),
        ("2g.12gb+me", "NVIDIA-A30", 1),
        ("1g.5gb", "NVIDIA-H100-80GB-HBM3", 0),
        ("7g.40gb", "NVIDIA-A30", 0),
    ],
)
def test_how_many_slices_fit_is_the_cards_own(profile: str, product: str, number: int) -> None:
    card = card_of(product)
    assert card is not None and fits(profile, card) == number


def test_no_card_holds_more_than_its_slices() -> None:
    """A 7g takes all; of the base shapes n compute slices each, 7 (or 4) in all."""
    for card in CARDS:
        most = max(int(name[0]) for name in card.profiles)
        assert all(int(name[0]) * number <= most for name, number in card.profiles.items()), card.name


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_and_the_name_of_its_resource_say_the_same(profile: str) -> None:
    resource = resource_of(profile)
    assert resource.startswith("nvidia.com/mig-") and "+" not in resource
    assert profile_of(resource) == profile
    assert profile_problem(profile, "mig") is None


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/mig-big", "cpu", "1g.10gb"]
)
def test_other_resources_are_no_slices(name: str) -> None:
    assert profile_of(name) is None


@pytest.mark.parametrize(
    ("profile", "words", "near"),
    [
        ("big", "is not a MIG profile", None),
        ("1g.10gb\n", "is not a MIG profile", None),
        ("7g.81gb", "no GPU is known to have the MIG profile '7g.81gb'", "7g.80gb"),
        ("1g.10gb+mee", "no GPU is known", "1g.10gb+me"),
        ("3c.3g.40gb", "no GPU is known", "3g.40gb"),
        ("4g.20gb+me", "no GPU is known", "4g.20gb"),
    ],
)
def test_a_profile_that_no_card_has_is_refused_with_the_nearest(
    profile: str, words: str, near: str | None
) -> None:
    problem = profile_problem(profile, "resources.mig")
    assert problem is not None and problem.path == "resources.mig" and words in problem.message
    assert problem.suggestion == near and problem.severity == "error"
    assert cards_with(profile) == []


@pytest.mark.parametrize(
    ("asked", "offered", "near"),
    [
        ("nvidia.com/mig-1g.10gb", ["nvidia.com/gpu"], None),
        ("nvidia.com/gpu", ["nvidia.com/mig-1g.10gb"], None),
        ("nvidia.com/mig-1g.10g", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"], "nvidia.com/mig-1g.10gb"),
        ("nvidia.com/gpus", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"], "nvidia.com/gpu"),
        ("nvidia.com/mig-3g.40gb", ["amd.com/gpu", "nvidia.com/gpu"], None),
    ],
)
def test_a_slice_is_no_misspelt_gpu(asked: str, offered: list[str], near: str | None) -> None:
    assert nearest_device(asked, offered) == near

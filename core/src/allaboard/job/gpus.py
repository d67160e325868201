"""MIG profiles: which card has which, and how many of each fit on one GPU. Values in, values out.

A profile is the name of a slice of a GPU, ``<compute slices>g.<memory>gb``, with ``+me``, ``+gfx`` and the
like for its media and graphics engines. The name alone does not tell the card: of 1g.10gb an A100 with 80 GB
holds 7, one with 40 GB holds 4.

Sources, as of November 2026: NVIDIA mig-parted (deployments/systemd/config-default.yaml: names and numbers),
the NVIDIA MIG User Guide (supported GPUs, supported profiles, device names), NVIDIA k8s-device-plugin and
gpu-feature-discovery (names of resources, labels of nodes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from allaboard.errors import Problem
from allaboard.text.names import nearest, why_not_a_qualified_name
from allaboard.text.untrusted import show

PRODUCT = "nvidia.com/gpu.product"
"""The node label that tells the card."""
_RESOURCE = "nvidia.com/mig-"
_PROFILE = re.compile(r"(?:(?P<compute>\d)c\.)?(?P<slice>(?P<slices>\d)g\.\d+gb(?:\+[a-z.]+|-me)?)")
_OF_RESOURCE = re.compile(r"(?P<size>(?:\dc\.)?\dg\.\d+gb)(?:\.(?P<more>[a-z.]+)|(?P<less>-me))?")


def nearest_device(asked: str, offered: Iterable[str]) -> str | None:
    """The resource of nodes that somebody meant who asked for this one; None: none is near. A slice of a GPU
    is no misspelt GPU, nor the other way round.
    """
    is_slice = asked.startswith(_RESOURCE)
    return nearest(asked, [name for name in offered if name.startswith(_RESOURCE) == is_slice])


class Card(NamedTuple):
    """``product``: what its nodes say in `PRODUCT`, without the vendor; ``profiles``: profile -> how many fit
    on one GPU.
    """

    name: str
    product: re.Pattern[str]
    profiles: Mapping[str, int]


def _card(name: str, product: str, profiles: Mapping[str, int]) -> Card:
    return Card(name, re.compile(rf"(?:{product})(?:-.*)?"), profiles)


def _in_sevenths(gb_1: int, gb_2: int, gb_4: int, gb_8: int) -> dict[str, int]:
    """The profiles of a card with 7 compute and 8 memory slices. Arguments: GB for 1, 2, 4, 8 slices."""
    return {
        f"1g.{gb_1}gb": 7,
        f"1g.{gb_1}gb+me": 1,
        f"1g.{gb_2}gb": 4,
        f"2g.{gb_2}gb": 3,
        f"3g.{gb_4}gb": 2,
        f"4g.{gb_4}gb": 1,
        f"7g.{gb_8}gb": 1,
    }


CARDS: tuple[Card, ...] = (  # the first whose product fits
    _card("A100 40GB", r"A[18]00-(.*-)?40GB", _in_sevenths(5, 10, 20, 40)),
    _card("H100 NVL", r"H[18]00-NVL|H100-(.*-)?94GB", _in_sevenths(12, 24, 47, 94)),
    _card("H100 96GB, GH200 96GB, H20", r"H100-(.*-)?96GB|GH200-480GB|H20", _in_sevenths(12, 24, 48, 96)),
    _card(
        "A100 80GB, H100 80GB",
        r"A[18]00-(.*-)?80GB|A100X|H[18]00-(.*-)?80GB|H[18]00-PCIe|H800",
        _in_sevenths(10, 20, 40, 80),
    ),
    _card("H200", r"H200", _in_sevenths(18, 35, 71, 141)),
    _card("GH200 144GB", r"GH200-144G", _in_sevenths(18, 36, 72, 144)),
    _card("B200", r"B200", _in_sevenths(23, 45, 90, 180)),
    # 186 GB by the guide, 189 by mig-parted.
    _card("GB200", r"GB200", {**_in_sevenths(23, 47, 93, 186), **_in_sevenths(24, 47, 95, 189)}),
    _card("B300", r"B300", _in_sevenths(34, 67, 135, 269)),
    _card("GB300", r"GB300", _in_sevenths(35, 70, 139, 278)),
    _card(
        "A30",
        r"A30",
        {"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1},
    ),
    _card(
        "RTX PRO 6000 Blackwell",
        r"RTX-PRO-6000-Blackwell",
        {
            "1g.24gb": 4,
            "1g.24gb+me": 1,
            "1g.24gb+gfx": 4,
            "1g.24gb+me.all": 1,
            "1g.24gb-me": 4,
            "2g.48gb": 2,
            "2g.48gb+gfx": 2,
            "2g.48gb+me.all": 1,
            "2g.48gb-me": 2,
            "4g.96gb": 1,
            "4g.96gb+gfx": 1,
        },
    ),
)
PROFILES: tuple[str, ...] = tuple(dict.fromkeys(name for card in CARDS for name in card.profiles))


def card_of(product: str) -> Card | None:
    """The card of a node's label `PRODUCT`, that of a sliced or shared GPU among them
    (``NVIDIA-A100-SXM4-40GB-MIG-1g.5gb``, ``...-SHARED``). None: not known here.
    """
    whole = product.partition("-MIG-")[0].removesuffix("-SHARED").removeprefix("NVIDIA-")
    # An H20 with 141 GB is called H20-3e: its memory is an H200's, and no list names its profiles.
    return None if whole == "H20-3e" else next((c for c in CARDS if c.product.fullmatch(whole)), None)


def fits(profile: str, card: Card) -> int:
    """Number of slices of a profile that one GPU of this card holds; 0: it has no such profile."""
    return card.profiles.get(_slice(profile), 0)


def cards_with(profile: str) -> list[str]:
    """The names of all cards that have a profile."""
    return [card.name for card in CARDS if fits(profile, card)]


def profile_problem(profile: str, path: str) -> Problem | None:
    """Return the problem of a profile's name; None: a card has it."""
    if _PROFILE.fullmatch(profile) is None:
        return Problem(path, f"{show(profile)} is not a MIG profile; write one like 1g.10gb or 1g.10gb+me")
    if cards_with(profile):
        return None
    message = (
        f"no GPU is known to have the MIG profile {show(profile)}; write one that `nvidia-smi mig -lgip` "
        f"lists, or, of a newer card, ask for {resource_of(profile)} in pod.spec.containers"
    )
    return Problem(path, message, nearest(profile, PROFILES))


def _slice(profile: str) -> str:
    """The slice that a profile takes: a name with ``c`` is of a part of its compute slices."""
    match = _PROFILE.fullmatch(profile)
    if match is None or (match["compute"] and match["compute"] >= match["slices"]):
        return ""
    return match["slice"]


def resource_of(profile: str) -> str:
    """The name under which the device plugin offers slices, under its strategy ``mixed``."""
    return _RESOURCE + profile.replace("+", ".")


def profile_of(resource: str) -> str | None:
    """The profile of a resource, whether a card has it or not; None: it is no slice of a GPU."""
    match = (
        _OF_RESOURCE.fullmatch(resource.removeprefix(_RESOURCE)) if resource.startswith(_RESOURCE) else None
    )
    if match is None:
        return None
    return match["size"] + (f"+{match['more']}" if match["more"] else match["less"] or "")


def why_not_a_device(name: str) -> str | None:
    """None for the name of an extended resource that no other field of a job says (Kubernetes:
    IsExtendedResourceName), else the reason.
    """
    if reason := why_not_a_qualified_name(name):
        return reason
    prefix = name.rpartition("/")[0]
    if not prefix or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io"):
        return f"{show(name)} is not a device name; write it with its vendor, like rdma/hca_shared_devices_a"
    if prefix.startswith("requests."):
        return f"{show(name)} is a quota name; write {show(name.removeprefix('requests.'))}"
    if name == "nvidia.com/gpu":
        return "write gpu instead"
    if (profile := profile_of(name)) is not None:
        return f"write mig: {profile} instead"
    return None

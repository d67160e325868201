"""What is declared of kfp is what is tested."""

from __future__ import annotations

import re

import kfp
import pytest

from tests.kfp.versions import declared, wanted


def test_the_lowest_and_the_newest_that_are_tested_are_those_declared() -> None:
    lowest = re.search(r">=([\d.]+)", declared())
    assert lowest is not None
    assert wanted("lowest") == [f"kfp=={lowest[1]}", f"kfp-kubernetes=={lowest[1]}"]
    assert wanted("newest") == [f"kfp{declared()}", f"kfp-kubernetes{declared()}"]


def test_this_environment_has_a_kfp_that_is_declared() -> None:
    specifiers = pytest.importorskip("packaging.specifiers")
    assert kfp.__version__ in specifiers.SpecifierSet(declared())

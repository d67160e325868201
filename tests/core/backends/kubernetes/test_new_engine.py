"""An engine is one file: `toy_stories` are played with one that allaboard has never heard of."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.core.backends.kubernetes.toy_stories import STORIES


@pytest.mark.parametrize(
    "story",
    [
        STORIES[0].__name__,
        *(pytest.param(story.__name__, marks=pytest.mark.thorough) for story in STORIES[1:]),
    ],
)
def test_a_new_engine_is_one_file(story: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.backends.kubernetes.toy_stories", story],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "well\n", done.stderr

"""An engine is one file: `toy_stories` are played with one that allaboard has never heard of."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.core.backends.kubernetes.toy_stories import STORIES


@pytest.mark.parametrize("story", [story.__name__ for story in STORIES])
def test_a_new_engine_is_one_file(story: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.backends.kubernetes.toy_stories", story],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "well\n", done.stderr

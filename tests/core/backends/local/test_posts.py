"""Kubeflow's progress protocol on one machine: what a script posts is the progress of its run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import allaboard
from allaboard import TrainingJob
from allaboard.runs.status import State
from tests.core.inside.test_helper import POSTS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the token lies in an anonymous file of Linux"
)
SHOWS = """
import json, os, sys
names = ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN")
found = [name for name in names if name in os.environ]
found += ["startup"] if "startup" in os.environ.get("PYTHONPATH", "") else []
with open(sys.argv[1] + os.environ["ALLABOARD_MEMBER"], "w") as file:
    json.dump(found, file)
"""


def test_posts_are_the_progress_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(POSTS)
    job = TrainingJob(name="posts", command=["python", "train.py"], folder=str(tmp_path))
    outcome = allaboard.run(job, key="posts")
    assert outcome.state is State.SUCCEEDED
    progress = outcome.seen.progress
    assert progress is not None
    assert (progress.step, progress.total, progress.metrics["loss"]) == (7, 20, 0.25)


@pytest.mark.parametrize("inject", ["off", None])
def test_who_has_the_helper(tmp_path: Path, inject: str | None) -> None:
    """Of the first member the reports count."""
    (tmp_path / "shows.py").write_text(SHOWS)
    fields = {} if inject is None else {"inject": inject}
    job = TrainingJob(
        name="shows",
        command=["python", "shows.py", f"{tmp_path}/"],
        workers=2,
        folder=str(tmp_path),
        **fields,
    )
    assert allaboard.run(job, key=f"shows-{inject}").state is State.SUCCEEDED
    first, second = (json.loads((tmp_path / f"{name}-0").read_text()) for name in ("master", "worker"))
    both = ["KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN", "startup"]
    assert (first, second) == (([], []) if inject else (both, both[2:]))

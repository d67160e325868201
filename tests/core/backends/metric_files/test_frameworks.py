"""The libraries themselves write: every value that they log is read, at its own step. Without network."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from allaboard.backends.metric_files.reading import read_metrics
from tests.core.checkpoints.foreign.test_frameworks import PYTHON, run

KINDS = (
    "torch_tensorboard", "tensorboardx", "lightning_csv", "lightning_tensorboard", "keras_csv",
    "hugging_face",
)  # fmt: skip
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="the libraries are not installed here: make frameworks"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_library_logs_is_read(kind: str, tmp_path: Path) -> None:
    logged = json.loads(run("metrics.py", kind, str(tmp_path / "out")).splitlines()[-1])
    measured = read_metrics(str(tmp_path / "out"), 0.0, {})
    assert measured.gaps == ()
    for name, points in logged.items():
        read = measured.curves[name]
        assert [step for step, _ in read] == [step for step, _ in points]
        assert all(math.isclose(a, b, rel_tol=1e-5) for (_, a), (_, b) in zip(read, points, strict=True)), (
            name
        )
        assert math.isclose(measured.last[name] or 0.0, points[-1][1], rel_tol=1e-5)
    assert measured.step == max(points[-1][0] for points in logged.values())
    assert measured.total == (4 if kind == "hugging_face" else None)

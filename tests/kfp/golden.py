"""Write the golden YAML anew, and look at the difference before you keep it.

.venv/kfp/bin/python -m tests.kfp.golden

``golden/<version>`` is what a release has published. It stays as it is for ever: pipelines that were compiled
with it run in images of later releases. A release makes its own: copy ``golden/*.yaml`` into a folder of its
version.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "prepare_shards", "train", "collect_checkpoint", "import_checkpoint", "evaluate", "pick_best", "promote",
    "clean_up",
)  # fmt: skip


def subjects() -> dict[str, Any]:
    """Everything whose IR is kept: each component, and the pipeline of the example."""
    sys.path.insert(0, str(ROOT / "dags_examples"))
    try:
        from retrain_digits_kfp import retrain_digits
    finally:
        sys.path.pop(0)
    import allaboard_kfp

    return {**{name: getattr(allaboard_kfp, name) for name in NAMES}, "retrain_digits": retrain_digits}


def main() -> None:
    from tests.kfp.ir import GOLDEN, compiled

    for name, what in subjects().items():
        compiled(what, GOLDEN / f"{name}.yaml")
        print(GOLDEN / f"{name}.yaml")


if __name__ == "__main__":
    main()

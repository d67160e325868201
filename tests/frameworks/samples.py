"""Makes the samples that `make test` judges: ``samples.py FOLDER``, by the Python of ``.venv/frameworks``.

Each library writes in a process of its own; one checkpoint of each kind is kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KEPT = {
    "hugging_face_trainer": "checkpoint-4/*",
    "peft": "checkpoint-4/*",
    "safetensors_sharded": "*",
    "accelerate": "checkpoints/checkpoint_1/*",
    "lightning": "checkpoints/*",
    "torch_dcp": "step-120/*",
    "torch_file": "*",
    "deepspeed": "**/*",
    "xgboost": "*",
    "lightgbm": "*",
    "keras": "*",
}
"""Writer -> the files that stay."""
LEFT_OUT = (".py", ".md")
"""Endings of what libraries put beside a checkpoint, and what is no part of it."""


def main(target: Path) -> None:
    writers = Path(__file__).with_name("writers.py")
    for kind, pattern in KEPT.items():
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run([sys.executable, str(writers), kind, scratch], check=True)
            shutil.rmtree(target / kind, ignore_errors=True)
            for path in sorted(Path(scratch).glob(pattern)):
                if path.is_file() and path.suffix not in LEFT_OUT:
                    copy = target / kind / path.relative_to(scratch)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

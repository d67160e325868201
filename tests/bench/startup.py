"""How long does one wait for allaboard itself? Imports, ``--help`` and ``check`` as whole processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.measure import alternate, table


def process(*words: str) -> float:
    before = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - before


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.yaml"
        job.write_text("name: digits\ncommand: [python, train.py]\nworkers: 2\n")
        as_json = Path(folder) / "job.json"
        as_json.write_text(json.dumps({"name": "digits", "command": ["python", "train.py"], "workers": 2}))
        figures = alternate(
            {
                "python (nothing)": lambda: process("-c", "pass"),
                "import allaboard": lambda: process("-c", "import allaboard"),
                "import allaboard; TrainingJob": lambda: process("-c", "from allaboard import TrainingJob"),
                "allaboard --help": lambda: process("-m", "allaboard", "--help"),
                "allaboard check job.yaml": lambda: process("-m", "allaboard", "check", str(job)),
                "allaboard check job.json": lambda: process("-m", "allaboard", "check", str(as_json)),
                "import torch": lambda: process("-c", "import torch"),
            },
            rounds,
        )
        table("Start-up, whole processes", figures, "import torch")

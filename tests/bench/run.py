"""``make bench``: every benchmark beside its peers, in one run. ``python tests/bench/run.py [NAME ...]
[--rounds N] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import measure

BENCHES = {
    "startup": "start-up of allaboard itself",
    "helper": "start of a member with the helper and without",
    "recorder": "the flight recorder of members, on and off",
    "launch": "launch to first all-reduce, exit to outcome",
    "dag_parse": "parsing a DAG with a TrainingJob in it",
    "checkpoints": "B3: saving and loading a state",
    "monitoring": "B1: following 1,000 jobs on an API server",
    "triggerer": "B1: 1,000 deferred tasks in a real triggerer of Airflow",
    "submission": "B2: submitting jobs to an API server",
    "doctor": "the doctor over 1,000 pods and 10 MB of logs",
    "printed": "progress from what scripts print",
    "diagnosing": "the doctor beside the published rules of others",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(BENCHES)}; all when none is named")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="all that was measured, too")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in BENCHES]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    print(f"{platform.platform()}, Python {platform.python_version()}, rounds: {chosen.rounds}")
    for name in chosen.names or BENCHES:
        importlib.import_module(f"tests.bench.{name}").main(chosen.rounds)
    if chosen.json:
        about = {
            "platform": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        }
        raw = {**about, "rounds": chosen.rounds, "day": f"{date.today()}", "tables": measure.RAW}
        chosen.json.write_text(json.dumps(raw, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

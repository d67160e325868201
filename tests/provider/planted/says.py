"""A training that says all that it was given, in the ways in which scripts and libraries in trouble do: in
its output, as base64 and in addresses, in its metrics, flags and versions, and in a traceback.

python says.py GATE ARGUMENT...
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path
from urllib.parse import quote, quote_plus

from allaboard.inside import Checkpointer, context, report, result

GIVEN = [
    *(os.environ[name] for name in sorted(os.environ) if name.startswith("GIVEN_")),
    *(
        os.environ[name]
        for name in ("AWS_SECRET_ACCESS_KEY", "FOLDER_KEY", "HF_TOKEN", "INDEX_URL", "DATA_URL")
    ),
    (Path(os.environ["MOUNTED"]) / "pem").read_text(),
    *sys.argv[2:],
]


def main() -> None:
    gate = Path(os.environ["GATES"]) / sys.argv[1]
    gate.mkdir(parents=True, exist_ok=True)
    save = Checkpointer(every=1)
    for given in GIVEN:
        raw = given.encode()
        print(f"opened the door with {given} today")
        print(f"sent https://hub.example/{quote(given, safe='')}?q={quote_plus(given)}")
        print(f"and {base64.b64encode(b'user:' + raw).decode()} {base64.urlsafe_b64encode(raw).decode()}")
        print(json.dumps({"what": given}), repr(given), flush=True)
    print(f"[allaboard] {json.dumps({'v': 1, 'kind': 'flag', 'code': 'odd', 'text': GIVEN[0]})}", flush=True)
    print(f"[allaboard] {json.dumps({'v': 1, 'kind': 'inputs', 'versions': {'hub': GIVEN[0]}})}", flush=True)
    report(1, 2, loss=0.5, **{GIVEN[0]: 1.0})
    save.step(1, lambda: b"weights", metrics={"loss": 0.5})
    if context().attempt == 1 or "fails" in sys.argv[1]:
        raise RuntimeError(f"was refused: {' and '.join(GIVEN)}")
    while not (gate / "finish").exists():
        time.sleep(0.05)
    result(steps=2, **{GIVEN[0]: 3.0})


if __name__ == "__main__":
    main()

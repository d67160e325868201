"""Run the job of each page of ``core/docs/how-to/frameworks``, kill it once, and take a picture of its page.

python -m tests.docs.pictures.frameworks core/docs/pictures trainer keras
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.core.cli.killed import Killed
from tests.core.cli.terminal import a_terminal

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
SIZE = "1000,900"
FIRST = {"trainer": 150, "accelerate": 150, "lightning": 150, "keras": 250, "xgboost": 115, "lightgbm": 115}
"""Steps before the kill."""


def picture(page: Path, target: Path, scratch: Path) -> None:
    """The first screen of a page of ours."""
    if BROWSER is None:
        raise SystemExit("no Chromium is installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={scratch / 'profile'}"]
    more = ["--hide-scrollbars", f"--window-size={SIZE}", f"--screenshot={target}", f"file://{page}"]
    subprocess.run([BROWSER, *options, *more], check=True, capture_output=True, timeout=300)


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        with tempfile.TemporaryDirectory(prefix="frameworks-") as scratch, a_terminal(Path(scratch)) as ab:
            killed = Killed(ab, name)
            done = killed.run(killed.job(), 1, FIRST[name])
            if done.returncode:
                raise SystemExit(f"{name} ended with {done.returncode}: {done.stdout[-2000:]}")
            ab("report", name, "-o", "page.html")
            target = folder.absolute() / f"{name}.png"
            picture(ab.folder / "page.html", target, Path(scratch))
            print(f"{target}: {target.stat().st_size:,} bytes\n{done.stdout}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or [*FIRST])

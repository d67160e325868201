"""``allaboard`` as people type it, on a cluster that the environment names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.api import until

ROOT = Path(__file__).resolve().parents[2]
LONG = 300.0
"""Five processes import torch on machines that have two cores."""
CODE = {"core": ROOT / "core" / "src"}
"""What images of Python must hold for members to find ``allaboard``."""
IMAGE = "harness/train:1"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


@dataclass
class Terminal:
    """A shell in ``folder`` with this environment."""

    folder: Path
    environ: dict[str, str]

    @classmethod
    def on(cls, kubeconfig: Path, namespace: str, folder: Path, **environ: str) -> Terminal:
        """One whose environment names this place, and nothing else of ours."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("ALLABOARD_", "AWS_"))}
        place = {
            "KUBECONFIG": str(kubeconfig),
            "ALLABOARD_BACKEND": "kubernetes",
            "ALLABOARD_NAMESPACE": namespace,
            "ALLABOARD_IMAGE": IMAGE,
            "ALLABOARD_HOME": str(folder / "home"),
            "PYTHONPATH": str(ROOT / "core" / "src"),
        }
        return cls(folder, {**own, **place, **environ})

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "allaboard", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env=self.environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *words: str, code: int | None = 0, **environ: str) -> Said:
        """What it said, once it is over. ``code``: with which it must end; None: with any."""
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=LONG * 2,
            check=False,
        )
        said = Said(done.returncode, done.stdout, done.stderr)
        assert code in (None, said.code), f"{words}: {said.code}\n{said.out}\n{said.err}"
        return said

    def seen(self, run: str) -> dict[str, Any]:
        body: dict[str, Any] = self("status", run, "--json").json
        return body

    def state(self, run: str) -> str:
        return str(self.seen(run)["state"])

    def until_it_runs(self, run: str) -> None:
        until(f"{run} to run", lambda: self.state(run) == "running", LONG)

    def run_of(self) -> str:
        """The only run of the namespace, once there is one."""

        def runs() -> list[str]:
            return [r["run"] for r in self("list", "--json").json["runs"]]

        (run,) = until("a run", runs)
        return run

"""The command lines that documents show, as a reader types them: of ours and of kubectl, from the blocks of
sh that are not marked as runnable, because they need a job of the reader's, or a cluster.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import yaml

from tests.meta.source import ROOT, tracked

BLOCK = re.compile(r"^```sh\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
JOB = re.compile(r"^```yaml runnable\n(?P<job>.*?)^```$", re.MULTILINE | re.DOTALL)
TYPED = re.compile(r"(^|[|;] *|/)(allaboard|kubectl) ")
CLUSTERS = re.compile(
    r"kubectl |allaboard (cluster|preflight|boost)\b"
    r"| -n \w| --namespace | --all-namespaces| --backend kubernetes| --from-cluster"
)

SCRIPT = """
import os
from allaboard.inside import Checkpointer, report
saves = Checkpointer(os.environ.get("ALLABOARD_CHECKPOINTS", "saves"))
for step in range(1, 101):
    report(step, 100, loss=1 / step)
    saves.step(step, lambda: b"the state", metrics={"val_loss": 1 / step})
    print("step", step, flush=True)
"""
BROKEN = "raise RuntimeError('no such data')\n"
MANIFEST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: nightly}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - {name: pytorch, image: "harness/python:3.12", command: [python, -c, "print('trained')"]}
"""


def lines(document: Path) -> list[str]:
    """Those with such a command, in order, without comments."""
    text = "\n".join(found["code"] for found in BLOCK.finditer(document.read_text()))
    text = re.sub(r"(?m)(?:^|\s+)#.*$", "", re.sub(r"\\\n *", " ", text))
    return [line.strip() for line in text.splitlines() if TYPED.search(line)]


def of_cluster(line: str) -> bool:
    return CLUSTERS.search(line) is not None


def documents() -> list[Path]:
    """Those that show such a line."""
    return [path for path in tracked() if path.suffix == ".md" and lines(path)]


@dataclass
class Reader:
    """Who follows a document, in a folder where the files are that its commands name. ``programs``: folders
    of further programs.
    """

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    programs: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = JOB.search((ROOT / "README.md").read_text())
        assert found is not None, "README shows no job"
        files = {
            "job.yaml": yaml.safe_dump({**yaml.safe_load(found["job"]), "code": ["train.py"]}),
            "train.py": SCRIPT,
            "train.log": "iter 10: loss 4.2, time 120.31ms\n",
            "photos/1.txt": "a cat",
            "pytorchjob.yaml": MANIFEST,
            "manifests/one.yaml": MANIFEST,
            "manifests/two.yaml": MANIFEST.replace("nightly", "weekly"),
        }
        for name, text in files.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def types(
        self, line: str, codes: tuple[int, ...] = (0,), environ: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """What is printed; ``RUN`` becomes the names of the reader's runs, the newest first."""
        runs = iter(self.runs()) if re.search(r"\bRUN\b", line) else iter(())
        line = re.sub(r"\bRUN\b", lambda _: next(runs), line)
        own = {k: v for k, v in os.environ.items() if not k.startswith("ALLABOARD_")}
        programs = [Path(sys.executable).parent, *self.programs]
        own["PATH"] = os.pathsep.join([*map(str, programs), own["PATH"]])
        own["ALLABOARD_HOME"] = str(self.folder / "home")
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder,
            env={**own, **self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode in codes, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def runs(self) -> list[str]:
        return [run["run"] for run in json.loads(self.types("allaboard list --json"))["runs"]]

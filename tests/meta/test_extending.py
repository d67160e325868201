"""What core/docs/extending.md shows works as it stands: each block of Python is played as the file that its
first line names.
"""

from __future__ import annotations

import re

import pytest

from tests.meta.source import ROOT, python

PAGE = ROOT / "core/docs/extending.md"
BLOCKS: dict[str, str] = {
    path: code
    for path, code in re.findall(
        r"^```python\n# core/src/allaboard/(\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
}
PLAY = """
import sys, tempfile, pathlib
path, code = sys.argv[1:]
def exec_block():
    # Like the file itself, of which it may be a part.
    names = {"__name__": "allaboard." + path.removesuffix(".py").replace("/", ".")}
    exec(compile(code, path, "exec"), names)
    return names
"""
STORIES = {
    "gangs/bus.py": """
folder = pathlib.Path(tempfile.mkdtemp())
folder.joinpath("bus.py").write_text(code)
from allaboard import gangs
gangs.__path__.append(str(folder))
found = {one.NAME: one for one in gangs._gangs()}
gangs.GANGS.update(found)
bus, protocol = found["bus"], gangs.Gang
wanted = {*protocol.__annotations__, *(n for n, v in vars(protocol).items() if callable(v) and n[0] != "_")}
assert wanted <= {*vars(bus)}, wanted - {*vars(bus)}
from tests.core.backends.kubernetes.golden import pair
pods = pair("pytorchjob", "bus").job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
assert pods["metadata"]["labels"]["bus.example/seats"] == "3", pods
assert pods["spec"]["schedulerName"] == "bus-scheduler"
from allaboard.gangs.base import GangView
from allaboard.backends.kubernetes.observe.objects import pod_seen
from allaboard.testing.objects import a_pod
waits = pod_seen(a_pod("worker-0", "Pending", unschedulable="0/4 nodes are available: 4 Insufficient cpu"))
assert bus.read(GangView(1, 1, 0.0, {"worker-0": waits})).startswith("Bus finds no 1 places together: ")
assert bus.read(GangView(1, 1, 0.0, {"worker-0": pod_seen(a_pod("worker-0", "Running"))})) is None
""",
    "diagnosis/infrastructure.py": """
from allaboard.diagnosis.causes import all_rules
before = {*all_rules()}
exec_block()
(new,) = {*all_rules()} - before
from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import diagnose
from tests.core.diagnosis.cases import failed
def first(log):
    return diagnose(read_snapshot(failed(log)), thorough=True)[0]
found = first("FlexNet: Cannot connect to license server")
assert (found.code, found.retryable) == (new, True), found
assert first("FlexNet: licence taken, 3 are left").code != new
from allaboard.diagnosis import page
assert "## licence_refused" in page.page()
""",
    "diagnosis/start.py": """
from tests.core.diagnosis.sayings import SAYINGS, scene
from tests.core.diagnosis.test_one_verdict import verdicts
from allaboard.diagnosis.causes import all_rules
before = {*all_rules()}
words = "failed to extract layer: write /var/lib/containerd/tmp: no space left on device"
full = {**SAYINGS[0], "text": words}
assert {code for code, _ in verdicts(full).values()} == {"image_pull_network"}
others = [(case["code"], case["passes"]) for case in SAYINGS]
exec_block()
(new,) = {*all_rules()} - before
asked = verdicts(full)
assert asked == dict.fromkeys(("doctor", "live view", "status", "its end"), (new, False)), asked
assert [v for case in SAYINGS for v in {*verdicts(case).values()}] == others, "the others are as they were"
from allaboard.diagnosis import diagnose, page
from tests.core.diagnosis.test_one_verdict import live
seen = live(scene(full))
sentence = "cannot start: its image docker.io/acme/train:9 does not fit the disk of its node"
assert seen.held_by == f"master-0 {sentence}", seen.held_by
assert diagnose(seen)[0].fix == all_rules()[new].cause.fix
assert "## image_too_large" in page.page()
""",
    "lint/rules/commands.py": """
rule = exec_block()["command_with_sudo"]
from allaboard.checking.job import require_valid
from allaboard.lint import RULES, lint_job
from allaboard.lint.rule import SEVERITIES
from allaboard.testing import a_job
assert rule.code not in RULES and rule.severity in SEVERITIES and rule.source
RULES[rule.code] = rule
def codes(*command):
    return {f.code for f in lint_job(require_valid(a_job(command=[*command])))}
assert rule.code in codes("sudo", "python", "train.py")
assert rule.code not in codes("python", "sudo.py")
""",
}


def test_every_block_has_a_story() -> None:
    assert BLOCKS.keys() == STORIES.keys()


@pytest.mark.parametrize("path", BLOCKS)
def test_a_block_works_as_it_stands(path: str) -> None:
    assert (ROOT / "core/src/allaboard" / path).parent.is_dir()
    python(PLAY + STORIES[path], path, BLOCKS[path])

"""Launchers in a command, for real: torchrun starts the processes of two members, which meet over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

import allaboard
from allaboard.backends.local.backend import LocalBackend

SUMS = """
import torch, torch.distributed as dist
from allaboard.inside import result
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
if dist.get_rank() == 0:
    result(world=dist.get_world_size(), total=total.item())
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "processes", "world"),
    [
        pytest.param(["torchrun", "--rdzv-backend=c10d", "train.py"], None, 2, id="filled"),
        pytest.param(["torchrun", "train.py"], 2, 4, id="variables"),
        pytest.param(
            ["torchrun", "--nnodes", "2", "--nproc_per_node", "1", "--node_rank", "$(RANK)", "train.py"],
            None,
            2,
            id="options",
        ),
        pytest.param(
            ["sh", "-c", "exec python -m torch.distributed.run train.py"],
            None,
            2,
            id="shell",
        ),
    ],
)
def test_members_of_torchrun_meet(
    backend: LocalBackend, tmp_path: Path, command: list[str], processes: int | None, world: int
) -> None:
    (tmp_path / "train.py").write_text(SUMS)
    job = allaboard.TrainingJob(
        folder=str(tmp_path),
        name="sums",
        command=command,
        workers=2,
        policy={"restart": "never", "deadline": "2m"},
        **({} if processes is None else {"processes_per_member": processes}),
    )
    outcome = allaboard.run(job, backend=backend)
    assert outcome.ok, outcome.message
    assert outcome.metrics == {"world": world, "total": world * (world + 1) / 2}

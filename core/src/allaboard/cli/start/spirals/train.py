"""Train a small net to tell the arms of a spiral apart: a copy on each member, each with a share of the data.

    allaboard run train.yaml

All that allaboard asks of a training script is in `main`: read shards by rank, report, save, resume. Whoever
is killed starts again and goes on where the last checkpoint was.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from data import ARMS
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from allaboard.inside import Checkpointer, ShardReader, context, report, result

EPOCHS = int(os.environ.get("EPOCHS", "40"))
PAUSE = float(os.environ.get("PAUSE", "0.02"))  # seconds; a step of so small a net is too short to be watched


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ARMS)
    )  # fmt: skip


def tensors(batch: Iterable[Mapping[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of the points, and the arms that they are on."""
    read = [json.loads(sample["json"]) for sample in batch]
    places = torch.tensor(read, dtype=torch.float32).reshape(-1, 2)
    return places, torch.tensor([int(sample["cls"]) for sample in batch], dtype=torch.long)


def main() -> None:
    torch.manual_seed(7)
    dist.init_process_group("gloo")  # rank, world size and where to meet: from the environment
    reader = ShardReader(context().data, batch_size=32, epochs=EPOCHS, seed=7)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    checkpoints = Checkpointer()  # where, how often, how many, and by what the best is chosen: from the job
    checkpoint = checkpoints.resume()
    done = 0
    if checkpoint:
        saved = checkpoint.load()
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        reader.load_state_dict(saved["data"])
        done = checkpoint.step
    total = done + len(reader)

    def state() -> dict[str, Any]:
        return {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "data": reader.state_dict(),
        }

    mean: float | None = None
    for step, batch in enumerate(reader, start=done + 1):
        places, arms = tensors(batch)
        loss = F.cross_entropy(model(places), arms)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.item() if mean is None else 0.95 * mean + 0.05 * loss.item()
        report(step, total, loss=loss)
        checkpoints.step(step, state, metrics={"mean_loss": mean})
        time.sleep(PAUSE)

    checkpoints.save(total, state(), metrics={"mean_loss": mean})
    if dist.get_rank() == 0:
        result(mean_loss=mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Train a small convolutional net to read digits: a copy on every member, each with its share of the data.

    allaboard run dags_examples/digits/job.yaml

DistributedDataParallel keeps the copies equal. All that allaboard asks of a training script is in `main`:
read shards by rank, report, save, resume. Weights, optimizer and the place in the data are in every
checkpoint, and what is random follows from the step alone. So a training that was killed and resumed, also
on another number of members, sees each sample as often as one that was not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from allaboard.inside import Checkpointer, ShardReader, context, report, result

EPOCHS = int(os.environ.get("EPOCHS", "16"))
BATCH = 32  # per member
LEARNING_RATE = float(os.environ.get("LEARNING_RATE", "3e-3"))
SEED = 7


class Net(nn.Module):
    """8 x 8 grey pixels in, a score for each of the ten digits out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, pictures: Tensor) -> Tensor:
        scores: Tensor = self.layers(pictures)
        return scores


def main() -> None:
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")  # rank, world size and where to meet: from the environment
    reader = ShardReader(data(), batch_size=BATCH, epochs=EPOCHS, seed=SEED)
    net = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    valid = tensors(validation()) if dist.get_rank() == 0 else None

    checkpoints = Checkpointer()  # where, how often, how many, and by what the best is chosen: from the job
    found = checkpoints.resume()
    done = 0
    if found:
        saved = found.load()
        net.module.load_state_dict(saved["model"])
        if found.resumed:  # else: weights of another run, to begin with
            optimizer.load_state_dict(saved["optimizer"])
            reader.load_state_dict(saved["data"])
        done = found.step
    total = done + len(reader)

    def state() -> dict[str, Any]:
        return {
            "model": net.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "data": reader.state_dict(),
        }

    def scores() -> dict[str, float]:
        assert valid is not None  # only rank 0 saves, so only rank 0 is asked
        return judge(net.module, *valid, prefix="val_")

    for step, batch in enumerate(reader, start=done + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * slope(step / total)
        pictures, labels = tensors(batch)
        guess = net(shifted(pictures, step))
        # Divided by the batch, not averaged: the very last batch of all may be empty on some member.
        loss = F.cross_entropy(guess, labels, reduction="sum") / max(1, len(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, total, loss=loss)
        checkpoints.step(step, state, metrics=scores)

    checkpoints.save(total, state(), metrics=scores)
    if dist.get_rank() == 0:
        result(**scores())
    dist.destroy_process_group()


def data() -> str:
    """Where the shards are: what the job names (`data.shards`), else ``DIGITS``: the first run makes them."""
    place = context().data or os.environ["DIGITS"]
    if dist.get_rank() == 0:
        make_shards(place)
    dist.barrier()
    return place


def make_shards(place: str) -> None:
    """Nothing, when they are there. Two runs that start together make the same bytes under the same names."""
    import prepare

    from allaboard import shards
    from allaboard.errors import StorageMissing
    from allaboard.storage import open_store

    try:
        shards.load_index(open_store(place))
    except StorageMissing:
        index = shards.prepare(prepare.samples, place, samples_per_shard=200)
        print(f"made {index.samples} samples in {len(index.shards)} shards: {place}", flush=True)


def validation() -> Iterable[Mapping[str, Any]]:
    import prepare

    return prepare.validation()


def tensors(samples: Iterable[Mapping[str, Any]]) -> tuple[Tensor, Tensor]:
    """Pictures, with pixels from 0 to 1, and labels."""
    read = list(samples)
    pixels = b"".join(sample["pgm"][-64:] for sample in read)
    pictures = torch.tensor(list(pixels), dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return pictures, torch.tensor([int(sample["cls"]) for sample in read], dtype=torch.long)


def shifted(pictures: Tensor, step: int) -> Tensor:
    """Each picture moved by up to a pixel, so that the net learns shapes and not places."""
    chance = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    padded = F.pad(pictures, (1, 1, 1, 1))
    windows = padded.unfold(2, 8, 1).unfold(3, 8, 1)[
        :, 0
    ]  # every 8 x 8 part: picture, down, across, row, column
    down, across = torch.randint(3, (2, len(pictures)), generator=chance)
    return windows[torch.arange(len(pictures)), down, across].unsqueeze(1)


def slope(done: float) -> float:
    """The learning rate's way, from 0 to 1 in the first tenth and down to 0 at the end."""
    return min(done / 0.1, (1 - done) / 0.9)


def judge(net: nn.Module, pictures: Tensor, labels: Tensor, prefix: str = "") -> dict[str, float]:
    """Loss and accuracy of a net on these pictures."""
    net.eval()
    with torch.no_grad():
        guess = net(pictures)
    net.train()
    right = (guess.argmax(1) == labels).double().mean().item()
    return {f"{prefix}loss": F.cross_entropy(guess, labels).item(), f"{prefix}accuracy": right}


if __name__ == "__main__":
    main()

"""A training that one can read at a glance, and whose result does not depend on how many members do it.

A plane is fitted to points by gradient descent. The points are in 12 fixed parts; rank r takes every part p
with p % world_size == r, and the members add up their gradients. Whoever comes and goes, the sum is the same.

Started by torchrun or as it is (allaboard sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT). It saves when
the job says where, and goes on from what it finds there.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

from allaboard.inside import Checkpointer, context, report, result

PARTS, POINTS, FEATURES, RATE = 12, 64, 8, 0.01


def part(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of one part: always the same."""
    chance = torch.Generator().manual_seed(number)
    x = torch.randn(POINTS, FEATURES, generator=chance, dtype=torch.float64)
    noise = torch.randn(POINTS, generator=chance, dtype=torch.float64)
    return x, x @ torch.arange(1.0, FEATURES + 1, dtype=torch.float64) + 0.1 * noise


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per step, as of a larger model")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} is {context().member}, process {os.getpid()}", flush=True)
    mine = [part(number) for number in range(rank, PARTS, world)]
    weights = torch.zeros(FEATURES, dtype=torch.float64)

    saver = Checkpointer() if context().checkpoints else None
    found = saver.resume() if saver is not None else None
    if found is not None:
        weights = found.load()["weights"]
    loss = 0.0
    for step in range(found.step + 1 if found is not None else 1, options.steps + 1):
        total = torch.zeros(FEATURES + 1, dtype=torch.float64)
        for x, y in mine:
            error = x @ weights - y
            total += torch.cat([x.T @ error, (error @ error).reshape(1)])
        dist.all_reduce(total)
        total /= PARTS * POINTS
        weights.sub_(RATE * total[:FEATURES])
        loss = float(total[FEATURES])
        time.sleep(options.pause)
        report(step=step, total=options.steps, loss=loss, members=world)
        if saver is not None:
            saver.step(step, lambda: {"weights": weights}, metrics={"loss": loss})
    result(final_loss=loss, members=world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

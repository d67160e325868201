"""Tell the arms of points that nobody has trained on, with the net of one checkpoint.

allaboard evaluate evaluate.yaml --checkpoint CHECKPOINT
"""

from __future__ import annotations

import torch
from data import held_out
from train import net, tensors

from allaboard.inside import open_checkpoint, result


def main() -> None:
    model = net()
    model.load_state_dict(open_checkpoint().load()["model"])  # the one that this evaluation was started for
    places, arms = tensors(list(held_out()))
    with torch.no_grad():
        right = (model(places).argmax(1) == arms).double().mean().item()
    result(accuracy=right, points=len(arms))


if __name__ == "__main__":
    main()

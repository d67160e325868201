"""Read the held-out digits with the net of one checkpoint, and say how many it got right.

    allaboard evaluate dags_examples/digits/evaluate.yaml --checkpoint CHECKPOINT

Nobody has trained on these digits, or chosen a checkpoint by them.
"""

from __future__ import annotations

import prepare
from train import Net, judge, tensors

from allaboard.inside import open_checkpoint, result


def main() -> None:
    found = open_checkpoint()  # the one that this evaluation was started for
    net = Net()
    net.load_state_dict(found.load()["model"])
    pictures, labels = tensors(prepare.held_out())
    print(f"{found.uri} reads {len(labels)} held-out digits", flush=True)
    result(**judge(net, pictures, labels), digits=len(labels))


if __name__ == "__main__":
    main()

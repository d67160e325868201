"""Each library trains a little and writes its metrics files: ``metrics.py KIND FOLDER``, by the Python of
``.venv/frameworks``. Without network. It imports nothing of allaboard, and prints what it logged, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

Logged = dict[str, list[tuple[int, float]]]


def torch_tensorboard(folder: Path) -> Logged:
    """torch.utils.tensorboard, started twice: the second goes on from step 6."""
    from torch.utils.tensorboard import SummaryWriter

    logged: Logged = {"loss/train": [], "loss/val": []}
    for begin in (0, 6):
        for points in logged.values():
            points[:] = [point for point in points if point[0] < begin]
        with SummaryWriter(str(folder / "runs" / "one")) as writer:
            for step in range(begin, 10):
                value = 1 / (step + 1 + begin)
                writer.add_scalar("loss/train", value, step)
                logged["loss/train"].append((step, value))
                if step % 3 == 2:
                    writer.add_scalar("loss/val", value + 1, step)
                    logged["loss/val"].append((step, value + 1))
            writer.add_text("note", "nothing to draw", 3)
            writer.add_histogram("weights", __import__("numpy").arange(20_000), 3)
    return logged


def tensorboardx(folder: Path) -> Logged:
    from tensorboardX import SummaryWriter

    points = [(step, 2.0 / (step + 1)) for step in range(20)]
    with SummaryWriter(str(folder / "out")) as writer:
        for step, value in points:
            writer.add_scalar("reward", value, step)
    return {"reward": points}


def _module(loggers: Any, folder: Path) -> Logged:
    import lightning
    import torch

    logged: Logged = {"train_loss": [], "val_loss": []}

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.layer(batch[0]).pow(2).mean()
            self.log("train_loss", loss)
            if (self.global_step + 1) % 2 == 0:
                logged["train_loss"].append((self.global_step, loss.item()))
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            loss = self.layer(batch[0]).pow(2).mean()
            self.log("val_loss", loss)

        def on_validation_epoch_end(self) -> None:
            if not self.trainer.sanity_checking:
                step, value = self.global_step - 1, self.trainer.callback_metrics["val_loss"].item()
                logged["val_loss"].append((step, value))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    rows = torch.utils.data.TensorDataset(torch.linspace(0.1, 1, 8).unsqueeze(1))
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    lightning.Trainer(
        max_epochs=3,
        logger=loggers,
        log_every_n_steps=2,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
        enable_checkpointing=False,
    ).fit(Model(), loader, loader)
    return logged


def lightning_csv(folder: Path) -> Logged:
    from lightning.pytorch.loggers import CSVLogger

    return _module(CSVLogger(str(folder), flush_logs_every_n_steps=1), folder)


def lightning_tensorboard(folder: Path) -> Logged:
    from lightning.pytorch.loggers import TensorBoardLogger

    return _module(TensorBoardLogger(str(folder)), folder)


def keras_csv(folder: Path) -> Logged:
    import keras
    import numpy

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = numpy.linspace(0, 1, 16).reshape(-1, 1)
    folder.mkdir(parents=True, exist_ok=True)
    log = keras.callbacks.CSVLogger(str(folder / "training.log"), separator=";")
    history = model.fit(rows, 2 * rows, epochs=4, validation_split=0.25, verbose=0, callbacks=[log]).history
    return {name: [(n + 1, float(v)) for n, v in enumerate(values)] for name, values in history.items()}


def hugging_face(folder: Path) -> Logged:
    from writers import hugging_face_trainer

    hugging_face_trainer(folder)
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    logged: Logged = {}
    for row in state["log_history"]:
        for name in ("loss", "eval_loss", "learning_rate"):
            if name in row:
                logged.setdefault(name, []).append((row["step"], row[name]))
    return logged


KINDS: dict[str, Callable[[Path], Logged]] = {
    kind.__name__: kind
    for kind in (
        torch_tensorboard, tensorboardx, lightning_csv, lightning_tensorboard, keras_csv, hugging_face,
    )
}  # fmt: skip

if __name__ == "__main__":
    written = KINDS[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(written))

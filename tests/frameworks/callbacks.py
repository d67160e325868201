"""A training with a callback of ours: ``callbacks.py KIND FOLDER``, by ``.venv/frameworks``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
STEPS = 1000


def trainer(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from allaboard.inside import TrainerCallback

    sizes: Any = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 16}
    heads: Any = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    rows = [{"input_ids": torch.tensor([1, 2]), "labels": torch.tensor([1, 2])} for _ in range(4)]
    arguments = TrainingArguments(
        str(folder),
        max_steps=STEPS,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    Trainer(model, arguments, train_dataset=rows, callbacks=[TrainerCallback()]).train()


def lightning(folder: Path) -> None:
    import lightning
    import torch

    from allaboard.inside import LightningCallback

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            time.sleep(0.01)
            loss = self.layer(batch).pow(2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    lightning.Trainer(
        default_root_dir=folder,
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[LightningCallback()],
    ).fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2))


def accelerate(folder: Path) -> None:
    import torch
    from accelerate import Accelerator

    from allaboard.inside import AccelerateTracker

    tracker = AccelerateTracker(save=lambda: accelerator.save_state(str(folder / "checkpoint_0")))
    accelerator = Accelerator(cpu=True, log_with=[tracker])
    accelerator.init_trackers("test")
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for step in range(1, STEPS + 1):
        time.sleep(0.01)
        loss = model(torch.ones(1, 2)).sum()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss}, step=step)


if __name__ == "__main__":
    {"trainer": trainer, "lightning": lightning, "accelerate": accelerate}[sys.argv[1]](Path(sys.argv[2]))

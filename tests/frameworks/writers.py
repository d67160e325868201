"""Each library writes a small checkpoint of its own: ``writers.py KIND FOLDER``, by the Python of
``.venv/frameworks``. No network: models are built here. It imports nothing of allaboard.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def _hugging_face_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            vocab_size=16,
        )
    )


def hugging_face_trainer(folder: Path, steps: int = 4, model: Any = None) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor([1, 2, 3])} for _ in range(8)]
    arguments = TrainingArguments(
        str(folder),
        max_steps=steps,
        save_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model or _hugging_face_model(), arguments, train_dataset=rows, eval_dataset=rows[:2]).train()


def peft(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=1, target_modules=["q_proj"], task_type="CAUSAL_LM")
    hugging_face_trainer(folder, model=get_peft_model(_hugging_face_model(), config))


def safetensors_sharded(folder: Path) -> None:
    _hugging_face_model().save_pretrained(folder, max_shard_size="1KB")


def accelerate(folder: Path) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    accelerator = Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True),
    )
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in range(2):
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        accelerator.save_state()


def lightning(folder: Path, steps: int = 4) -> None:
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.layer(batch).pow(2).mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(every_n_train_steps=2, save_top_k=-1, save_last=True)],
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2))


def torch_dcp(folder: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"model": {"weight": torch.ones(4, 4), "bias": torch.zeros(4)}, "step": 120}
    dcp.save(state, checkpoint_id=str(folder / "step-120"))


def torch_file(folder: Path) -> None:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": torch.nn.Linear(2, 1).state_dict(), "step": 7}, folder / "model-step7.pt")


def deepspeed(folder: Path) -> None:
    import deepspeed as library
    import torch

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    # Shared memory between ranks, of which there is one: a minute of a compiler, in each new environment.
    library.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    model = torch.nn.Linear(2, 1)
    engine, *_ = library.initialize(
        model=model,
        model_parameters=model.parameters(),
        dist_init_required=True,
        config={
            "train_batch_size": 1,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
        engine.save_checkpoint(str(folder))


def xgboost(folder: Path) -> None:
    import numpy as np
    import xgboost as library

    folder.mkdir(parents=True, exist_ok=True)
    data = library.DMatrix(np.arange(16).reshape(8, 2), np.arange(8))
    keep = library.callback.TrainingCheckPoint(directory=str(folder), name="model", interval=1)
    library.train({"max_depth": 1, "nthread": 1}, data, 2, callbacks=[keep])
    booster = library.train({"max_depth": 1, "nthread": 1}, data, 2)
    booster.save_model(folder / "final.json")


def xgboost_large(folder: Path) -> None:
    import numpy as np
    import xgboost as library

    folder.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(1).normal(size=(4000, 20))
    data = library.DMatrix(values, (values[:, :4] ** 2).sum(1))
    booster = library.train({"max_depth": 10, "eta": 0.05, "nthread": 1}, data, 700)
    booster.save_model(folder / "model_699.ubj")
    booster.save_model(folder / "model_699.json")


def lightgbm(folder: Path) -> None:
    import lightgbm as library
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    data = library.Dataset(np.arange(128).reshape(64, 2), np.arange(64), params={"verbose": -1})
    booster = library.train({"num_leaves": 3, "verbose": -1, "num_threads": 1, "min_data": 1}, data, 2)
    booster.save_model(folder / "model_2.txt")


def keras(folder: Path) -> None:
    import keras as library
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    model = library.Sequential([library.Input((2,)), library.layers.Dense(1)])
    model.compile("sgd", "mse")
    keep = library.callbacks.ModelCheckpoint(str(folder / "epoch-{epoch:02d}.keras"))
    model.fit(np.ones((4, 2)), np.ones(4), epochs=2, verbose=0, callbacks=[keep])
    model.save_weights(folder / "last.weights.h5")


WRITERS: dict[str, Callable[[Path], None]] = {
    writer.__name__: writer
    for writer in (
        hugging_face_trainer,
        peft,
        safetensors_sharded,
        accelerate,
        lightning,
        torch_dcp,
        torch_file,
        deepspeed,
        xgboost,
        xgboost_large,
        lightgbm,
        keras,
    )
}


if __name__ == "__main__":
    WRITERS[sys.argv[1]](Path(sys.argv[2]))

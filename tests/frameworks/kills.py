"""Kills savers at random moments: ``kills.py KIND FOLDER ROUNDS SEED``, by ``.venv/frameworks``.

One process loads the library and forks; each child saves without end and is killed. What a round left is in
``FOLDER/round-N``. Prints a JSON object: round -> the names of the checkpoints that the library loads again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
FIRST_SAVE = 60.0
NO_MORE = 5.0
"""Seconds without a new file after which no more are waited for."""


class Trainer:
    """Hugging Face's Trainer, which saves after each step; with ``over`` into the same few folders."""

    def __init__(self, over: bool = False) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.set_num_threads(1)
        self.over = over
        self.model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=128,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                vocab_size=4000,
            )
        )

    def save(self, folder: Path) -> None:
        import torch
        from transformers import Trainer, TrainingArguments

        rows = [{"input_ids": torch.tensor([1, 2]), "labels": torch.tensor([1, 2])} for _ in range(4)]
        while True:
            arguments = TrainingArguments(
                str(folder),
                max_steps=2 if self.over else 1000,
                save_steps=1,
                save_total_limit=None if self.over else 3,
                per_device_train_batch_size=1,
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                logging_steps=1,
            )
            Trainer(self.model, arguments, train_dataset=rows).train()

    def loads(self, folder: Path) -> Iterator[str]:
        import torch
        from safetensors.torch import load_file

        parts = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin")
        for path in folder.glob("checkpoint-*"):
            try:
                load_file(path / "model.safetensors")
                for part in parts:
                    torch.load(path / part, weights_only=False)
                json.loads((path / "trainer_state.json").read_text())
            except Exception:
                continue
            yield path.name


class Lightning:
    def __init__(self) -> None:
        import lightning
        import torch

        torch.set_num_threads(1)

        class Model(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1000, 1000)

            def training_step(self, batch: Any, _: int) -> Any:
                return self.layer(batch).pow(2).mean()

            def configure_optimizers(self) -> Any:
                return torch.optim.Adam(self.parameters(), 0.1)

        self.model = Model()

    def save(self, folder: Path) -> None:
        import lightning
        import torch
        from lightning.pytorch.callbacks import ModelCheckpoint

        lightning.Trainer(
            default_root_dir=folder,
            max_steps=1000,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[ModelCheckpoint(every_n_train_steps=1, save_top_k=-1, save_last=True)],
        ).fit(self.model, torch.utils.data.DataLoader(torch.ones(2000, 1000), batch_size=2))

    def loads(self, folder: Path) -> Iterator[str]:
        import torch

        for path in folder.rglob("*.ckpt"):
            try:
                torch.load(path, weights_only=False)
            except Exception:
                continue
            yield str(path.relative_to(folder))


class Single:
    """One file or folder that is written again and again."""

    def __init__(self, name: str, write: Callable[[Path], object], load: Callable[[Path], object]) -> None:
        self.name, self.write, self.load = name, write, load

    def save(self, folder: Path) -> None:
        for number in range(10_000):
            self.write(folder / self.name.format(number % 4))

    def loads(self, folder: Path) -> Iterator[str]:
        paths = [folder / self.name.format(number) for number in range(4)]
        yield from (path.name for path in paths if path.exists() and self._loads(path))

    def _loads(self, path: Path) -> bool:
        """Whether the library loads it, in a process of its own: some abort."""
        child = os.fork()
        if child == 0:
            try:
                self.load(path)
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0


def torch_file() -> Single:
    import torch

    torch.set_num_threads(1)
    state = {"model": torch.ones(2_000_000), "step": 7}
    return Single("model-{}.pt", lambda path: torch.save(state, path), torch.load)


def torch_dcp() -> Single:
    import torch
    import torch.distributed.checkpoint as dcp

    torch.set_num_threads(1)
    state = {"model": torch.ones(500_000), "more": torch.zeros(500_000)}

    def load(path: Path) -> None:
        dcp.load({name: value.clone() for name, value in state.items()}, checkpoint_id=str(path))

    return Single("step-{}", lambda path: dcp.save(state, checkpoint_id=str(path)), load)


def safetensors() -> Single:
    import torch
    from safetensors.torch import load_file, save_file

    state = {"model": torch.ones(2_000_000), "more": torch.zeros(2_000_000)}
    return Single("m{}.safetensors", lambda path: save_file(state, path), load_file)


def keras() -> Single:
    import keras as library

    model = library.Sequential([library.Input((1000,)), library.layers.Dense(1000)])
    return Single("m{}.keras", model.save, library.models.load_model)


def keras_h5() -> Single:
    import keras as library

    model = library.Sequential([library.Input((1000,)), library.layers.Dense(1000)])
    return Single("m{}.weights.h5", model.save_weights, model.load_weights)


def xgboost() -> Single:
    return _xgboost("json")


def xgboost_ubj() -> Single:
    return _xgboost("ubj")


def _xgboost(ending: str) -> Single:
    import numpy as np
    import xgboost as library

    random_numbers = np.random.default_rng(0)
    data = library.DMatrix(random_numbers.random((2000, 4)), random_numbers.random(2000))
    booster = library.train({"max_depth": 8, "nthread": 1}, data, 60)
    return Single(f"m{{}}.{ending}", booster.save_model, lambda path: library.Booster(model_file=path))


def lightgbm() -> Single:
    import lightgbm as library
    import numpy as np

    random_numbers = np.random.default_rng(0)
    data = library.Dataset(random_numbers.random((2000, 4)), random_numbers.random(2000))
    booster = library.train({"num_leaves": 200, "verbose": -1, "num_threads": 1}, data, 100)

    def load(path: Path) -> None:
        if library.Booster(model_file=path).num_trees() != 100:
            raise ValueError("it was cut")

    return Single("m{}.txt", booster.save_model, load)


KINDS: dict[str, Callable[[], Any]] = {
    "trainer": Trainer,
    "trainer_over": lambda: Trainer(over=True),
    "lightning": Lightning,
    **{
        make.__name__: make
        for make in (torch_file, torch_dcp, safetensors, keras, keras_h5, xgboost, xgboost_ubj, lightgbm)
    },
}


FILES = {"trainer": 9, "trainer_over": 4, "torch_dcp": 2}
"""Files of a checkpoint, of those that have several."""


def kill_one(saver: Any, folder: Path, files: int, pause: float) -> None:
    """Kill a saver ``pause`` seconds after it has begun so many files, or as many as it ever writes."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            saver.save(folder)
        finally:
            os._exit(1)
    begun: set[Path] = set()
    deadline = time.monotonic() + FIRST_SAVE
    while len(begun) < files and (not begun or time.monotonic() < deadline):
        if new := {path for path in folder.rglob("*") if path.is_file()} - begun:
            begun |= new
            deadline = time.monotonic() + NO_MORE
        elif time.monotonic() > deadline:
            raise SystemExit("nothing was saved")
        time.sleep(0.002)
    time.sleep(pause)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main(kind: str, target: Path, rounds: int, seed: int) -> None:
    saver, pauses = KINDS[kind](), random.Random(seed)
    loaded: dict[str, list[str]] = {}
    for number in range(rounds):
        folder = target / f"round-{number}"
        folder.mkdir(parents=True)
        kill_one(saver, folder, pauses.randint(1, 4 * FILES.get(kind, 1)), pauses.uniform(0, 0.1))
        loaded[folder.name] = sorted(saver.loads(folder))
    print(json.dumps(loaded))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

"""B3: what a checkpoint costs the training, beside torch.save, DCP and safetensors, in one process.

The state is 0.54 GB of float32 on the CPU (`STATE`), on the disk that holds the temporary folder. *Stops the
training* is the time until the call returns; *durable* the time until files and folder are synchronised.
Our save does both before it returns, with a SHA-256 of every byte; our load verifies it. Loading begins with
a warm page cache, as a restart on the same machine does.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.measure import alternate, table

TENSORS, SHAPE = 34, (1024, 4096)
Contender = Callable[[Path], float]


def main(rounds: int) -> None:
    import torch

    state = {f"layer{n}.weight": torch.randn(SHAPE) for n in range(TENSORS)}
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    print(f"\nB3: a state of {size / 1e9:.2f} GB in {TENSORS} tensors, torch {torch.__version__}")
    with _process_group():
        savers: dict[str, Contender] = {
            "torch.save and fsync": lambda folder: _timed(lambda: _torch_save(state, folder)),
            "allaboard Checkpointer.save": lambda folder: _timed(lambda: _save(state, folder)),
            "DCP save and fsync": lambda folder: _timed(lambda: _dcp_save(state, folder)),
            "safetensors and fsync": lambda folder: _timed(lambda: _safetensors(state, folder)),
        }
        _compare("Save until durable, the training stands still", savers, rounds)
        stops: dict[str, Contender] = {
            "torch.save and fsync": savers["torch.save and fsync"],
            "allaboard Checkpointer.save": savers["allaboard Checkpointer.save"],
            "DCP async_save": lambda folder: _dcp_async(state, folder),
        }
        _compare("How long a save stops the training", stops, rounds)
        _compare_loading(state, rounds)


def _compare(title: str, contenders: dict[str, Contender], rounds: int) -> None:
    usable = {name: contender for name, contender in contenders.items() if _works(name, contender)}
    figures = alternate({name: _in_new_folder(c) for name, c in usable.items()}, rounds)
    table(title, figures, "torch.save and fsync")


def _compare_loading(state: dict[str, Any], rounds: int) -> None:
    with _folder() as folder:
        _torch_save(state, folder)
        _save(state, folder / "ours")
        model = {name: tensor.clone() for name, tensor in state.items()}
        figures = alternate(
            {
                "torch.load": lambda: _timed(lambda: _torch_load(folder)),
                "allaboard resume and load": lambda: _timed(lambda: _load(folder / "ours")),
            },
            rounds,
        )
        table("Load; ours verifies every byte", figures, "torch.load")
        figures = alternate(
            {
                "torch.load": lambda: _timed(lambda: _copy(_torch_load(folder), model)),
                "allaboard resume and load": lambda: _timed(lambda: _copy(_load(folder / "ours"), model)),
            },
            rounds,
        )
        table("Load into a model (load_state_dict)", figures, "torch.load")


def _works(name: str, contender: Contender) -> bool:
    """A peer that is not installed is named and left out."""
    try:
        with _folder() as folder:
            contender(folder)
    except ImportError as error:
        print(f"  {name}: left out, {error}")
        return False
    return True


# --- contenders


def _torch_save(state: dict[str, Any], folder: Path) -> None:
    import torch

    torch.save(state, folder / "state.pt")
    _synchronise(folder)


def _save(state: dict[str, Any], folder: Path) -> None:
    from allaboard.inside import Checkpointer

    with contextlib.redirect_stdout(io.StringIO()):
        Checkpointer(uri=folder).save(1, state)


def _dcp_save(state: dict[str, Any], folder: Path) -> None:
    from torch.distributed import checkpoint

    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(folder, sync_files=True))
    _synchronise(folder)


def _dcp_async(state: dict[str, Any], folder: Path) -> float:
    from torch.distributed import checkpoint

    began = time.perf_counter()
    future: Any = checkpoint.async_save(state, storage_writer=checkpoint.FileSystemWriter(folder))
    seconds = time.perf_counter() - began
    future.result()
    return seconds


def _safetensors(state: dict[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(state, folder / "state.safetensors")
    _synchronise(folder)


def _torch_load(folder: Path) -> dict[str, Any]:
    import torch

    loaded: dict[str, Any] = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    return loaded


def _load(folder: Path) -> dict[str, Any]:
    from allaboard.inside import Checkpointer

    with contextlib.redirect_stdout(io.StringIO()):
        found = Checkpointer(uri=folder).resume()
    assert found is not None
    loaded: dict[str, Any] = found.load()
    return loaded


def _copy(loaded: dict[str, Any], model: dict[str, Any]) -> None:
    for name, tensor in loaded.items():
        model[name].copy_(tensor)


# --- measuring


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _in_new_folder(contender: Contender) -> Callable[[], float]:
    def measured() -> float:
        with _folder() as folder:
            return contender(folder)

    return measured


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="allaboard-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        os.sync()  # what one contender left to write must not be paid by the next


def _synchronise(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


@contextlib.contextmanager
def _process_group() -> Iterator[None]:
    """DCP's asynchronous save wants one, of a single rank too."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()

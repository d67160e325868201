"""Callbacks need their libraries when they are asked for, and not before."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

import allaboard.inside
from allaboard.inside import callbacks


class Scalar:
    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        if isinstance(self.value, list):
            raise RuntimeError("a tensor with 2 elements cannot be converted to a scalar")
        return self.value


def test_what_a_library_logs_becomes_numbers() -> None:
    logged = {
        "loss": Scalar(0.5),
        "eval_loss": 1,
        "many": Scalar([1, 2]),
        "text": "a",
        "flag": True,
        "step": 7,
        "v": 1,
        "kind": 2,
        "a/b": 3,
        "nan": float("nan"),
    }
    numbers = callbacks._numbers(logged)
    assert numbers.keys() == {"loss", "eval_loss", "nan"} and numbers["loss"] == 0.5
    assert callbacks._numbers(None) == {}


@pytest.mark.parametrize(
    ("steps", "total"), [(100, 100), (-1, None), (float("inf"), None), (None, None), (0, None)]
)
def test_a_number_of_steps(steps: Any, total: int | None) -> None:
    assert callbacks._total(steps) == total


def test_without_the_library_the_error_is_that_of_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    callbacks._trainer_callback.cache_clear()
    with pytest.raises(ImportError, match="transformers"):
        _ = allaboard.inside.TrainerCallback
    with pytest.raises(AttributeError):
        _ = callbacks.Unknown


def test_a_step_is_reported_and_sigterm_saves_then_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("transformers")
    module.TrainerCallback = type("Base", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", module)
    callbacks._trainer_callback.cache_clear()
    ended: list[bool] = []
    monkeypatch.setattr(callbacks, "exit_at_once", lambda: ended.append(True))
    callback = callbacks.TrainerCallback()
    state, control = ModuleType("state"), ModuleType("control")
    state.global_step, state.max_steps = 5, 10  # type: ignore[attr-defined]
    control.should_save = control.should_training_stop = False  # type: ignore[attr-defined]
    callback.on_log(None, state, control, logs={"loss": 0.25})
    callback.on_step_end(None, state, control)
    callback.on_save(None, state, control)
    assert not control.should_save and ended == []
    monkeypatch.setattr(callbacks.shutdown, "requested", True)
    callback.on_step_end(None, state, control)
    assert control.should_save and control.should_training_stop
    callback.on_save(None, state, control)
    assert ended == [True]
    callbacks._trainer_callback.cache_clear()
    line = [line for line in capfd.readouterr().out.splitlines() if '"progress"' in line][-1]
    assert '"step":5,"total":10,"loss":0.25' in line

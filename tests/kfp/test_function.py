"""`train_function`: a Python function as a training of a pipeline, with what the pipeline gives it."""

# kfp reads the annotations of a pipeline: no `from __future__ import annotations` here.

from typing import Any

import pytest
from kfp import dsl

from allaboard.errors import BadInput
from allaboard_kfp import start_local, train_function
from tests.kfp.conftest import Here

OUTSIDE = "of this module"


def trains(lr: float, n: int, text: str, yes: bool, table: dict, epochs: int = 3) -> dict:  # type: ignore[type-arg]
    import os

    seen = [type(value).__name__ for value in (lr, n, text, yes, table)]
    return {
        "loss": lr * n,
        "seen": seen,
        "text": text,
        "yes": yes,
        "table": table,
        "world": os.environ["WORLD_SIZE"],
    }


@dsl.pipeline(name="of-a-function")
def pipeline(  # type: ignore[no-untyped-def]
    lr: float = 0.5,
    n: int = 4,
    text: str = "007 {x}",
    yes: bool = True,
    table: dict = {"a": [1]},  # noqa: B006
):
    arguments = {"lr": lr, "n": n, "text": text, "yes": yes, "table": table}
    train_function(trains, arguments, workers=2, policy={"restart": "never"})


def test_a_pipeline_gives_the_arguments(here: Here) -> None:
    start_local(here.out)
    pipeline()
    assert here.the_run().progress.result == {
        "loss": 2.0,
        "seen": ["float", "int", "str", "bool", "dict"],
        "text": "007 {x}",
        "yes": True,
        "table": {"a": [1]},
        "world": "2",
    }


def test_a_function_that_cannot_run_elsewhere_is_refused_when_the_pipeline_is_made() -> None:
    def closes() -> Any:
        return OUTSIDE

    with pytest.raises(BadInput, match="closes uses `OUTSIDE` from outside"):

        @dsl.pipeline(name="wrong")
        def wrong():  # type: ignore[no-untyped-def]
            train_function(closes)

"""The best of several trainings of a loop: picked, told, and refused."""

# kfp reads the annotations of a pipeline: no `from __future__ import annotations` here.
# mypy: disable-error-code="no-untyped-def"

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl

from allaboard_kfp import pick_best, start_local, train
from tests.kfp.conftest import JOBS, Artifacts, Here
from tests.kfp.ir import compiled, validated

Of = Callable[..., Artifacts]
WORST = 1e308


def picked(of: Of, *trainings: tuple[str, Any], **more: Any) -> Any:
    """Of trainings with these checkpoints and values."""
    given = {"checkpoints": [one[0] for one in trainings], "values": [one[1] for one in trainings]}
    return pick_best.python_func(**{**given, "mode": "min", **more}, summary=of("pick-best")[dsl.Markdown])


@pytest.mark.parametrize(
    ("trainings", "more", "made"),
    [
        ([("a", 0.3), ("b", 0.1), ("c", 0.2)], {}, (1, "b", "", 0.1)),
        ([("a", 0.3), ("b", 0.1)], {"mode": "max", "runs": ["x", "y"]}, (0, "a", "x", 0.3)),
        ([("a", 1), ("b", 1.0)], {}, (0, "a", "", 1.0)),  # of equals the first
        ([("", WORST), ("b", 0.9)], {}, (1, "b", "", 0.9)),  # one failed
        ([("a", WORST), ("b", 0.9)], {}, (1, "b", "", 0.9)),  # one diverged
        ([("a", -WORST), ("b", 0.9)], {"mode": "max", "most_failed": 0}, (1, "b", "", 0.9)),
        ([("", WORST), ("b", 0.9)], {"most_failed": 1}, (1, "b", "", 0.9)),
        ([("", 0.3), ("", 0.1)], {"most_failed": 0}, (1, "", "", 0.1)),  # jobs that save nothing
    ],
)
def test_the_best_is_picked(artifacts: Of, trainings: Any, more: dict[str, Any], made: Any) -> None:
    assert picked(artifacts, *trainings, **more) == made


def test_the_table_has_all_in_order_and_why_some_do_not_count(
    artifacts: Of, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["sweep-1", "sweep-2", "sweep-3", "sweep-4"]
    picked(artifacts, ("a", 0.3), ("", WORST), ("c", 0.1), ("d", WORST), runs=runs)
    table = Path(artifacts("pick-best")[dsl.Markdown].path).read_text().splitlines()
    assert table[4:] == [
        "| 1 | sweep-3 | 0.1 |", "| 2 | sweep-1 | 0.3 |",
        "|  | sweep-2 | it failed: nothing came of it |",
        "|  | sweep-4 | value is not a finite number |",
    ]  # fmt: skip
    assert (
        "sweep-3 has the smallest value, 0.1, of 4 trainings; 2 cannot be compared" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("trainings", "more", "code", "words"),
    [
        ([("", WORST), ("", WORST)], {}, 1, "none of 2 trainings has a finite value"),
        ([("", WORST), ("b", 1.0)], {"most_failed": 0}, 1, "1 of 2 trainings failed, and 0 may"),
        ([("a", 1.0)], {"mode": "least"}, 2, "mode 'least' is not known"),
        ([], {}, 2, "there is nothing to choose from"),
        ([("a", 1.0), ("b", 1.0)], {"runs": ["x"]}, 2, "checkpoints has 2 items, values 2, runs 1"),
    ],
)
def test_where_nobody_is_the_best_the_step_fails_with_the_reason(
    artifacts: Of, trainings: Any, more: Any, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        picked(artifacts, *trainings, **more)
    assert ended.value.code == code
    assert words in "".join(capsys.readouterr())


QUICK = {
    "name": "quick", "command": ["python", "quick.py"], "workers": 1, "policy": {"restart": "never"},
    "checkpoints": {"uri": "store://checkpoints", "every": 2, "best": {"metric": "val_loss", "mode": "min"}},
}  # fmt: skip


@dsl.pipeline(name="sweep")
def sweep(folder: str, store: str = ""):
    """A grid of trainings, of which one fails and one diverges."""
    trials = [
        {"total": 4, "fail": 0, "odd": ""}, {"total": 10, "fail": 0, "odd": ""},
        {"total": 8, "fail": 3, "odd": ""}, {"total": 20, "fail": 0, "odd": "1"},
    ]  # fmt: skip
    with dsl.ParallelFor(trials) as trial:
        trained = train(
            job=QUICK,
            environment={"TOTAL": trial.total, "FAIL_AT": trial.fail, "ODD": trial.odd},
            folder=folder,
            store=store,
            may_fail=True,
        )
    pick_best(
        checkpoints=dsl.Collected(trained.outputs["checkpoint"]),
        values=dsl.Collected(trained.outputs["value"]),
        runs=dsl.Collected(trained.outputs["run"]),
        mode="min",
    )


def test_a_sweep_is_compiled_with_lists_of_types(tmp_path: Path) -> None:
    text = compiled(sweep, tmp_path / "p.yaml")
    validated(text)
    inputs = yaml.safe_load(text)["components"]["comp-pick-best"]["inputDefinitions"]["parameters"]
    assert {name: inputs[name]["parameterType"] for name in ("checkpoints", "values", "runs")} == {
        "checkpoints": "LIST", "values": "LIST", "runs": "LIST"
    }  # fmt: skip


def test_a_sweep_goes_on_without_those_that_fail_or_diverge(
    here: Here, capfd: pytest.CaptureFixture[str]
) -> None:
    start_local(here.out)
    sweep(folder=str(JOBS))
    output = capfd.readouterr().out
    best = next(run for run in here.runs() if run.progress.total == 10)
    assert f"{best.run} has the smallest value, 0.1, of 4 trainings; 2 cannot be compared" in output


@dsl.pipeline(name="strict")
def strict(folder: str):
    """A training that fails, in a step that fails with it."""
    train(job=QUICK, environment={"FAIL_AT": 2}, folder=folder)


def test_a_training_that_may_not_fail_fails_its_step(here: Here) -> None:
    start_local(here.out)
    with pytest.raises(RuntimeError):
        strict(folder=str(JOBS))

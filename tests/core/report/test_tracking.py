"""The page of a run elsewhere is linked where the script's tracker printed it, and nothing else is."""

from __future__ import annotations

import pytest

from allaboard.backends.base import LogLine
from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.report.output import OutputReader
from allaboard.report.page import run_page
from allaboard.report.page_data import page_data
from allaboard.report.reading import read_run
from allaboard.report.tracking import MOST, tracking_link
from tests.core.report.one_output import RUNNING, Wrote

PRINTED = {
    "\N{RUNNER} View run sedate-sloth-67 at: http://mlflow.lab:5000/#/experiments/3/runs/9c41": "MLflow",
    "View run a b at: https://mlflow.lab/#/experiments/0/runs/77": "MLflow",
    "wandb: \N{ROCKET} View run at https://wandb.ai/vision/digits/runs/1x2y": "Weights & Biases",
    "\x1b[34m\x1b[1mwandb\x1b[0m: \N{ROCKET} View run \x1b[33mnight-9\x1b[0m at: "
    "\x1b[34m\x1b[4mhttps://wandb.lab/v/d/runs/1\x1b[0m": "Weights & Biases",
    "COMET INFO: Experiment is live on comet.com https://www.comet.com/lab/digits/0f1e": "Comet",
    "ClearML results page: https://app.clear.ml/projects/1/experiments/2/output/log": "ClearML",
    "TensorBoard 2.20.0 at http://localhost:6006/ (Press CTRL+C to quit)": "TensorBoard",
}


@pytest.mark.parametrize(("line", "tracker"), PRINTED.items(), ids=range(len(PRINTED)))
def test_what_a_tracker_prints_is_a_link(line: str, tracker: str) -> None:
    found = tracking_link(line)
    assert found is not None and found[0] == tracker and "\x1b" not in found[1]


@pytest.mark.parametrize(
    "line",
    [
        "Downloading https://wandb.ai/vision/digits/runs/1x2y",
        "wandb: \N{ROCKET} View project at https://wandb.ai/vision/digits",
        "wandb: View run at javascript:alert(1)//https://a",
        "wandb: View run at https://user:pass@wandb.lab/v/d/runs/1",
        "wandb: View run at https://token@wandb.lab/v/d/runs/1",
        "View run x at: https://",
        "View run x at: https://[::1",
        "View run x at: https://a.lab/'onmouseover=alert(1)",
        "View run x at: https://a.lab/<script>",
        "see: View run x at: https://mlflow.lab/#/runs/77 for more",
        "View run x at: https://a.lab/" + "a" * 2000,
        "View run " + "x" * 5000 + " at: https://a.lab/1",
        "",
    ],
    ids=range(13),
)
def test_nothing_else_is(line: str) -> None:
    assert tracking_link(line) is None


def wrote(lines: list[str]) -> Wrote:
    backend = Wrote()
    backend.lines = [LogLine("master-0", 0, 0, None, text) for text in lines]
    return backend


def test_the_page_links_the_last_run_of_each_tracker_and_hides_secrets() -> None:
    lines = [*PRINTED, "View run b at: https://mlflow.lab/#/runs/8?token=hunter22hunter"]
    read = read_run(wrote(lines), Outcome(RUNNING), ["hunter22hunter"])
    assert len(read.history.tracked) == MOST
    page = run_page(page_data(Outcome(RUNNING), read, 0.0, at=HERE))
    assert (
        'rel="noopener noreferrer">https://mlflow.lab/#/runs/8?token=***</a>' in page
        and "hunter22hunter" not in page
    )
    assert "https://wandb.lab/v/d/runs/1" in page


def test_a_page_without_links_says_nothing_of_them() -> None:
    data = page_data(Outcome(RUNNING), read_run(wrote(["step 1"]), Outcome(RUNNING)), 0.0, at=HERE)
    assert data["tracked"] == {} and "tracks this run, too" not in run_page(data)
    del data["tracked"]  # as an older release wrote it
    assert "tracks this run, too" not in run_page(data)
    assert OutputReader().history.tracked == {}

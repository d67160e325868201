"""Pages about several runs: the same curve of all in one picture, and a job from run to run."""

from __future__ import annotations

import json
from typing import Any

from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.report.history import History
from allaboard.report.html import NONE
from allaboard.report.page_data import SNAPSHOT, Readings, page_data
from allaboard.report.runs_page import MOST_RUNS, compare_page, history_page
from allaboard.runs.observation import Progress, State
from allaboard.testing import a_job, seen
from allaboard.text.reportline import Report
from tests.core.report.pages import Page, hashed

ZERO = 1_790_000_000.0


def a_run(n: int, state: State = State.SUCCEEDED, timed: bool = True, **fields: Any) -> dict[str, Any]:
    history = History()
    for step in range(1, 101):
        numbers = {"step": step, "loss": n / step, "lr": 0.1}
        history.add(Report("progress", numbers), ZERO + step if timed else None)
    progress = Progress(step=100, total=100, lost_steps=25, result={"accuracy": n / 10})
    looked = seen(
        state,
        **{
            "run": f"digits-{n}",
            "created": ZERO + n,
            "started": ZERO + n,
            "finished": ZERO + 300,
            "progress": progress,
            **fields,
        },
    )
    job = a_job(environment={"LR": str(n), "API_KEY": "c4nary-V4lue_77"})
    return page_data(Outcome(looked), Readings(history), ZERO + 400, at=HERE, job=job, bounds=SNAPSHOT)


def test_the_same_curve_of_all_runs_is_in_one_picture() -> None:
    whole = compare_page([a_run(1), a_run(2), a_run(3)])
    found = Page(whole)
    assert found.tags.count("figure") == 2 and found.tags.count("svg") == 4  # over steps, over time
    assert whole.count('data-name="digits-2"') == 4
    assert [row[0] for row in found.rows["Runs"]] == ["digits-1", "digits-2", "digits-3"]
    assert found.rows["Runs"][1][1:4] == ["succeeded", "0.2", "100"]
    assert hashed(found) and "c4nary" not in whole


def test_a_comparison_says_how_the_jobs_differ() -> None:
    words = Page(compare_page([a_run(1), a_run(2), a_run(1, run="digits-same")])).words
    assert "What differs from digits-1" in words and 'environment.LR: "1" -> "2"' in words
    assert "nothing is different" in words


def test_curves_are_compared_over_time_only_where_all_times_are_known() -> None:
    assert Page(compare_page([a_run(1), a_run(2, timed=False)])).tags.count("svg") == 2


def test_runs_that_told_nothing_are_compared_all_the_same() -> None:
    looked = seen(State.FAILED, run="digits-9")
    nothing = page_data(Outcome(looked), Readings(), ZERO, at=HERE)
    found = Page(compare_page([nothing, a_run(1)]))
    assert found.rows["Runs"][0][:2] == ["digits-9", "failed"] and found.tags.count("figure") == 2
    assert "svg" not in Page(compare_page([nothing, nothing])).tags


def test_a_history_shows_metric_time_and_goodput_of_each_run_and_who_is_champion() -> None:
    runs = [a_run(1), a_run(2), a_run(3, State.FAILED)]
    whole = history_page("digits", runs, {"digits-1": 4, "digits-2": 5})
    found = Page(whole)
    assert [row[1] for row in found.rows["Runs"]] == ["digits-3", "digits-2", "digits-1"]
    assert [row[-1] for row in found.rows["Runs"]] == [NONE, "5 ★", "4"]
    assert found.rows["Runs"][0][3] == "failed" and "3 runs, of which 2 succeeded" in found.words
    for words in ("accuracy", "took, minutes", "goodput, %"):
        assert words in found.words, words
    assert whole.count('class="star"') == 3 and hashed(found)


def test_without_champions_there_is_no_column_for_them() -> None:
    assert "champion" not in Page(history_page("digits", [a_run(1)])).words


def test_the_history_of_very_many_runs_stays_small() -> None:
    runs = [json.loads(json.dumps(a_run(n))) for n in range(1, MOST_RUNS + 11)]
    whole = history_page("digits", runs)
    assert len(whole) < 200_000 and "10 earlier runs left out here." in Page(whole).words


def test_names_of_others_stay_text() -> None:
    evil = "</style><script>x</script>\x1b[2J"
    run = a_run(1, run=evil, job=evil)
    run["metrics"] = [{"name": evil, "value": 1.0}]
    for whole in (compare_page([run, a_run(2)]), history_page(evil, [run], {evil: 1})):
        found = Page(whole)
        assert found.tags.count("script") == 1 and hashed(found) and "\x1b" not in whole

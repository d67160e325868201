"""``allaboard report``: one page about any run, here and on a cluster, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.errors import BackendUnreachable
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.operations.test_foreign import theirs
from tests.core.cli.terminal import WAITS, Terminal, wait_for
from tests.core.cli.test_on_a_cluster import FORBIDDEN, Desk, desk
from tests.core.cli.test_promote import SAVES
from tests.core.report.pages import Page, hashed

__all__ = ["desk"]

CANARY = "c4nary-V4lue_77"
STUMBLES = f"""
import os, pathlib, sys
from allaboard.inside import report, result
first = not pathlib.Path("stumbled").exists()
pathlib.Path("stumbled").touch()
for step in range(1, 6 if first else 11):
    report(step=step, total=10, loss=1 / step, **{{"</style><script>": 0.5}})
print("the key is {CANARY} </pre><script>alert(1)</script> \\x1b[2J \\u202e", flush=True)
if first:
    sys.exit(3)
result(accuracy=0.9)
"""
FAILS = """
import os, time
from allaboard.inside import report
if os.environ["RANK"] != "0":
    time.sleep(60)  # it is taken along
report(step=1, total=10, loss=0.5)
print("one batch", flush=True)
raise ValueError("odd </style><script>alert(2)</script>")
"""


def page_of(path: Path) -> Page:
    return Page(path.read_text())


def test_a_run_that_stumbled_once_is_on_its_page_with_its_curve_and_restart(ab: Terminal) -> None:
    job = ab.job(STUMBLES, environment={"API_KEY": CANARY})
    assert ab("run", job, "--key", "nightly").code == 0
    (run,) = ab.runs()
    said = ab("report", "digits")
    assert (said.code, said.out, said.err) == (0, f"{run}.html\n", "")
    whole = (ab.folder / f"{run}.html").read_text()
    found = Page(whole)
    assert hashed(found) and found.links == [] and found.tags.count("style") == 1
    assert CANARY not in whole and "\x1b" not in whole and "\u202e" not in whole
    for words in (run, "succeeded", "nightly", "10/10", "accuracy", "Where the time went", "training",
                  "Events", "the key is ***", r"\x1b[2J \u202e", "master-0", "</style><script>"):  # fmt: skip
        assert words in found.words, words
    assert found.rows["Members"] == [["master-0", "0", "succeeded", "0", "1", found.rows["Members"][0][5]]]
    assert found.tags.count("figure") == 3  # loss, the one with the odd name, speed


def test_a_run_that_failed_says_why_on_its_page_and_the_verb_exits_0(ab: Terminal) -> None:
    assert ab("run", ab.job(FAILS, workers=2, policy={"restart": "never"})).code == 1
    said = ab("report", "digits", "-o", "page.html", "--json")
    assert said.code == 0 and said.json["run"] == ab.runs()[0] and said.json["page"] == "page.html"
    found = page_of(ab.folder / "page.html")
    assert hashed(found) and said.json["data"]["version"] == 1
    assert said.json["data"]["curves"][0]["points"] == [[1, 0.5]]
    for words in ("failed", "What went wrong", "ValueError: odd </style><script>alert(2)</script>",
                  "python_exception", "one batch", "Fix the script"):  # fmt: skip
        assert words in found.words, words
    assert "1" in [row[3] for row in found.rows["Members"]]  # whoever fails first takes the other along


def test_a_page_shows_the_job_without_its_secrets_and_what_differs_from_the_last_good_run(
    ab: Terminal,
) -> None:
    assert ab("run", ab.job("print('fine')", environment={"API_KEY": CANARY, "LR": "0.1"})).code == 0
    assert ab("run", ab.job(FAILS, environment={"API_KEY": CANARY, "LR": "9<b>"})).code == 1
    assert ab("report", "digits", "-o", "page.html").code == 0
    assert CANARY not in (ab.folder / "page.html").read_text()
    found = page_of(ab.folder / "page.html")
    for words in ("The job as it was run", "API_KEY", "Since the last good run", "environment.LR",
                  "9<b>", "Lines that it did not write"):  # fmt: skip
        assert words in found.words, words


def test_a_run_that_goes_on_is_shown_as_it_stands(ab: Terminal) -> None:
    script = "from allaboard.inside import report\nreport(step=3, total=10, loss=0.5)\n" + WAITS
    assert ab("run", ab.job(script), "--detach").code == 0
    ab.until_said("ready")
    wait_for(lambda: ab.seen().progress.step == 3)
    said = ab("report", "digits", "-o", "-")
    found = Page(said.out)
    assert said.code == 0 and "running for" in found.words and "when it was looked at: 20" in found.words
    assert "3/10 (30%)" in found.words and "ready" in found.words and "What went wrong" not in found.words
    assert [*ab.folder.glob("*.html")] == []


@pytest.fixture
def trained(ab: Terminal) -> Terminal:
    assert ab("run", ab.job("print('hello')"), "--key", "k").code == 0
    return ab


@pytest.mark.thorough
def test_an_earlier_page_of_the_run_is_replaced_and_nothing_else_unasked(trained: Terminal) -> None:
    (run,) = trained.runs()
    path = trained.folder / f"{run}.html"
    assert trained("report", "digits").code == 0 and trained("report", "digits").code == 0
    path.write_text(path.read_text().replace(run, "another-run"))
    mine = path.read_text()
    said = trained("report", "digits")
    assert said.code == 2 and f"is not a page of {run}; move it, or name another file" in said.err
    assert path.read_text() == mine
    assert trained("report", "digits", "-o", path.name).code == 0 and path.read_text() != mine
    assert {p.name for p in trained.folder.iterdir()} == {"job.json", "job.py", path.name}


@pytest.mark.thorough
def test_a_place_that_takes_no_page_is_one_sentence(trained: Terminal) -> None:
    (trained.folder / "folder").mkdir()
    for place, code, words in (
        ("folder", 2, "-o folder is a folder; name a file in it: -o folder/digits-"),
        ("job.py/page.html", 2, "a part of the path is a file, not a folder"),
        ("/dev/full", 1, "No space left on device"),
    ):
        said = trained("report", "digits", "-o", place)
        assert said.code == code and words in said.err and said.err.count("\n") == 1, said.err
    assert trained("report", "digits", "-o", "-", "--json").code == 2


@pytest.mark.thorough
def test_a_reader_that_has_seen_enough_of_a_page_is_no_error(trained: Terminal) -> None:
    reading = trained.start("report", "digits", "-o", "-")
    assert reading.stdout is not None and reading.stderr is not None
    reading.stdout.close()
    assert reading.stderr.read() == "" and reading.wait() == 0


@pytest.mark.thorough
def test_several_runs_are_compared_and_a_job_has_a_history(ab: Terminal) -> None:
    for n in (1, 2):
        assert ab("run", ab.job(environment={"LR": str(n)}), "--key", f"k{n}").code == 0
    runs = ab.runs()
    said = ab("report", "--compare", *runs, "-o", "both.html", "--json")
    assert said.code == 0 and [told["run"] for told in said.json["runs"]] == runs
    found = page_of(ab.folder / "both.html")
    assert hashed(found) and sorted(row[0] for row in found.rows["Runs"]) == runs
    assert "environment.LR" in found.words
    said = ab("report", "--history", "digits", "-o", "-")
    assert said.code == 0 and sorted(row[1] for row in Page(said.out).rows["Runs"]) == runs


def test_a_history_marks_who_was_promoted_and_a_page_has_the_size_of_checkpoints(ab: Terminal) -> None:
    job = ab.job(SAVES, checkpoints={"uri": "saved"})
    for key in ("k1", "k2"):
        assert ab("run", job, "--key", key).code == 0
    first, second = (told["run"] for told in reversed(ab("list", "--json").json["runs"]))
    for run, step in ((first, 10), (second, 20)):
        assert ab("promote", f"saved/{run}/step-{step:012d}", "--into", "champions").code == 0
    said = ab("report", "--history", "digits", "--champions", "champions", "-o", "-")
    rows = Page(said.out).rows["Runs"]
    assert [(row[1], row[-1]) for row in rows] == [(second, "2 ★"), (first, "1")]
    said = ab("report", first, "-o", "page.html", "--json")
    assert [saved["step"] for saved in said.json["data"]["checkpoints"]] == [20, 10]
    assert said.json["data"]["checkpoints"][0]["size"] == len(b"state 20")
    (row, _) = page_of(ab.folder / "page.html").rows["Checkpoints"]
    assert row[2:4] == ["0.8", "8 B"]


def test_words_that_name_no_page_are_one_sentence(trained: Terminal) -> None:
    (run,) = trained.runs()
    for words, said in (
        ((), "name a run (`allaboard list` shows them), or --history NAME"),
        ((run, run), "name one, or add --compare"),
        (("--compare", run, "-o", "-"), "--compare takes 2 to 6 runs; 1 are named"),
        (("--compare", run, run), "name the file of the page"),
        (("--history", "digits", run, "-o", "-"), "leave out the runs or --history"),
        (("--history", "nobody", "-o", "-"), "the job nobody has no run"),
        ((run, "--champions", "store://x"), "--champions needs --history NAME"),
    ):
        found = trained("report", *words)
        assert found.code == 2 and said in found.err and found.err.count("\n") == 1, found.err


@pytest.mark.thorough
def test_many_lines_make_no_large_page(ab: Terminal) -> None:
    script = "for n in range(40_000):\n    print(n, 'x' * 500)\nprint('y' * 5_000_000)"
    assert ab("run", ab.job(script)).code == 0
    assert ab("report", "digits", "-o", "page.html").code == 0
    found = page_of(ab.folder / "page.html")
    assert (ab.folder / "page.html").stat().st_size < 60_000
    assert "39999 xxx" in found.words and "39900 xxx" not in found.words and "yyyy" in found.words


# --- on a cluster


def test_a_run_on_a_cluster_has_the_same_page(desk: Desk) -> None:
    desk.cluster.operator.trains_for = None
    assert desk("run", desk.job(workers=2), "--detach", "--key", "k")[0] == 0
    desk.cluster.tick(5)
    pod = next(n for pod in desk.cluster.all(PODS) if "master-0" in (n := pod["metadata"]["name"]))
    desk.cluster.say(pod, '[allaboard] {"v":1,"kind":"progress","step":4,"total":8,"loss":0.5}')
    desk.cluster.say(pod, "half of it <b>")
    code, out, _ = desk("report", "digits", "-o", "-")
    found = Page(out)
    assert code == 0
    for words in ("running", "half of it <b>", "master-0", "worker-0", "Where the time went"):
        assert words in found.words, words
    assert found.tags.count("svg") == 1


def test_a_job_of_others_has_a_page_too(desk: Desk) -> None:
    desk.cluster.client().create(PYTORCHJOBS, theirs())
    desk.cluster.tick(3)
    desk.cluster.say("nightly-master-0", "step 1")
    code, out, _ = desk("report", "pytorchjob/nightly", "-o", "-")
    found = Page(out)
    assert code == 0 and "a PyTorchJob of others, which is only looked at" in found.words
    assert "step 1" in found.words and "worker-0" in found.words


def test_events_that_may_not_be_read_leave_a_page_that_says_so(desk: Desk) -> None:
    desk.cluster.operator.trains_for = None
    assert desk("run", desk.job(), "--detach", "--key", "k")[0] == 0
    desk.cluster.tick(3)

    def refuse(verb: str, kind: str) -> None:
        if kind == "events":
            raise Forbidden(FORBIDDEN, status=403)

    desk.on_request = refuse
    code, out, _ = desk("report", "digits", "-o", "-")
    assert code == 0 and "events may not be read here" in Page(out).words


def test_a_cluster_that_does_not_answer_is_said_with_its_code(desk: Desk) -> None:
    assert desk("run", desk.job(), "--detach", "--key", "k")[0] == 0

    def away(verb: str, kind: str) -> None:
        raise BackendUnreachable("API server is away")

    desk.on_request = away
    code, out, err = desk("report", "digits", "-o", "-")
    assert code == 5 and out == "" and "API server is away" in err

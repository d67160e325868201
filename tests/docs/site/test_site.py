"""The site says all that the code says, and its links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from allaboard.backends.kubernetes.discovery.rbac import ROLES, text
from allaboard.cli import VERBS
from allaboard.diagnosis.causes import all_rules
from allaboard.engines import ENGINES
from allaboard.errors import ExitCode
from allaboard.gangs import GANGS
from allaboard.job.schema import job_schema
from tests.core.diagnosis.test_causes import WITHOUT_A_CASE
from tests.docs.site import (
    benchmarks,
    build,
    causes,
    commands,
    environment,
    jobs,
    llms,
    roles,
    staging,
    versions,
)
from tests.docs.site.links import broken
from tests.meta.source import DISTS, ROOT

README = (ROOT / "README.md").read_text()
WHY_NOT = (ROOT / "core/docs/why-not.md").read_text()
PAGES = causes.pages()


@pytest.mark.parametrize("code", all_rules())
def test_every_code_of_the_doctor_has_its_page(code: str) -> None:
    cause, page = all_rules()[code].cause, PAGES[f"reference/causes/{code}.md"]
    assert page.startswith(f"# {code}\n")
    means, looks, fix = (
        section.strip()
        for section in re.split(r"^## (?:What it means|How it looks|What to do)$", page, flags=re.MULTILINE)[
            1:
        ]
    )
    assert means == cause.means
    assert looks.startswith(cause.looks)
    assert fix[1:].startswith(cause.fix[1:])
    # What the doctor really says, of a case that its tests hold it to.
    assert (f"\n{code}  " in looks) == (code not in WITHOUT_A_CASE)
    assert f"({code}.md)" in PAGES["reference/causes/index.md"]


def test_no_page_is_of_a_code_that_is_gone() -> None:
    named = {Path(path).stem for path in PAGES} - {"index"}
    assert named == set(all_rules())


def test_every_field_of_a_job_is_told() -> None:
    told = {field.path for field in jobs.fields(jobs.explain())}
    page = jobs.page()
    assert set(job_schema()["properties"]) <= told
    assert {"policy.hang.after", "checkpoints.best.metric", "resources.gpu", "gang.queue"} <= told
    assert [path for path in told if f"| `{path}` |" not in page] == []
    assert "<name>" not in page, "HTML would swallow it"


def test_every_verb_and_subcommand_has_its_help() -> None:
    page = commands.page()
    assert [verb for verb in VERBS if f"\n## {verb}\n" not in page] == []
    groups = {name: one for name in VERBS if (one := getattr(commands.command(name), "commands", None))}
    assert groups
    for name, below in groups.items():
        assert [sub for sub in below if f"Usage: allaboard {name} {sub}" not in page] == []


def test_every_exit_code_is_told_as_the_contract_has_it() -> None:
    rows = commands.exit_codes()
    told = {cells[1].strip(): cells[2] for cells in (row.split("|") for row in rows)}
    assert {*told} == {"Code", "---", *(str(code.value) for code in ExitCode)}
    assert "another client" in told[str(ExitCode.UNREACHABLE.value)], "report/attached_run.py ends with it"
    assert "\n".join(rows) in commands.page()


def test_every_variable_that_the_code_names_is_told_and_no_other() -> None:
    assert environment.named() == environment.told()
    page = environment.page()
    assert [name for name in environment.told() if f"| `{name}` |" not in page] == []


def test_every_role_is_told_as_it_is_printed() -> None:
    assert set(roles.WHO) == set(ROLES)
    page = roles.page()
    assert [role for role in ROLES if text(role).strip() not in page] == []


def test_the_matrix_has_every_engine_and_gang_scheduler() -> None:
    page = versions.matrix()
    assert [name for name in ENGINES if f"\n{name} " not in page] == []
    head = next(line for line in page.splitlines() if line.startswith("ENGINE") and "kueue" in line)
    assert set(head.split()) == {"ENGINE", *GANGS, "kueue"}


def test_the_versions_are_those_of_the_locks() -> None:
    page = versions.compatibility()
    airflow = versions.locked(ROOT / "tests/requirements-airflow.lock")
    assert f"| `torch` | `torch>=2.4` | {airflow['torch']} |" in page
    assert [dist.name for dist in DISTS if f"## {dist.name}\n" not in page] == []
    rows = re.findall(r"^\|[^|]*\| `(?!allaboard)[^`]+` \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    assert rows and all(one.strip() or other.strip() for one, other in rows), "a need that no lock has"


def test_the_figures_are_the_raw_ones() -> None:
    raw, page = json.loads(benchmarks.RAW.read_text()), benchmarks.page()
    assert raw["tables"]
    for one in raw["tables"]:
        assert f"## {one['title']}\n" in page
        assert [name for name in one["seconds"] if f"| {name} |" not in page] == []
    assert json.dumps(raw, indent=1) in page
    assert benchmarks.losses(
        [{"title": "t", "seconds": {"allaboard run": [2.0, 4.0], "a peer": [1.0, 1.0], "slow": [9.0, 9.0]}}]
    ) == ["- t: *allaboard run* took 3.00 times as long as *a peer*."]


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    return staging.site()


@pytest.mark.thorough
def test_links_lead_to_pages_of_the_site(site: dict[str, str]) -> None:
    """Without Sphinx: each relative link of each page, files and pictures included."""
    here = {f"core/docs/{path}" for path in site} | {
        path.relative_to(ROOT).as_posix() for path in (ROOT / staging.DOCS).rglob("*")
    }
    lost = []
    for path, page in site.items():
        for found in re.finditer(r"\]\((?!\w+:|#)([^)#\s]+)", re.sub(r"(?ms)^(`{3,}).*?^\1$", "", page)):
            target = (Path("/core/docs") / path).parent / found[1]
            if target.resolve().relative_to("/").as_posix() not in here:
                lost.append((path, found[1]))
    assert lost == []


def test_a_link_out_of_the_docs_leads_to_a_page_that_shows_the_file(site: dict[str, str]) -> None:
    assert "files/dags_examples/retrain_digits.py.md" in site["how-to/airflow.md"]
    assert "TrainingJobOperator(" in site["files/dags_examples/retrain_digits.py.md"]
    # Markdown is shown as Markdown, and its own links are followed.
    assert site["files/provider/README.md"].startswith("# airflow-provider-allaboard")
    assert "train.py" in site["files/dags_examples/exercises/train.py.md"]


def test_code_keeps_its_brackets() -> None:
    page = "`[a](b)` and [`c`](../core/docs/job.md)\n```\n[d](e)\n```\n"
    linked: dict[str, str] = {}
    assert staging._relinked("how-to/x.md", page.replace("../core/docs", ".."), ROOT, linked) == (
        "`[a](b)` and [`c`](../job.md)\n```\n[d](e)\n```\n"
    )
    assert linked == {}


def test_llms_names_every_page_but_those_of_files(site: dict[str, str]) -> None:
    said = site["llms.txt"]
    assert said.startswith("# allaboard\n\n> ")
    named = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", said, re.MULTILINE)
    assert sorted(named) == sorted(
        path for path in site if path.endswith(".md") and not path.startswith("files/")
    )
    assert llms.text({"a.md": "# A `b`\n\nFirst, e.g. this. Then [that](c.md).\n"}).endswith(
        "\n## Start\n\n- [A b](a.md): First, e.g. this.\n"
    )


def test_broken_links_of_built_pages_are_told(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="sub/"></a><a href="sub/index.html#there"></a><a href="sub/index.html#gone"></a>'
        '<img src="no.svg"><a href="https://elsewhere"></a><a href="#here"></a><p id="here">'
    )
    (tmp_path / "sub" / "index.html").write_text(
        '<p id="there"><a href="../index.html"></a><a href="../x%20y"></a>'
    )
    assert broken(tmp_path) == [
        "index.html: sub/index.html#gone leads nowhere",
        "index.html: no.svg leads nowhere",
        "sub/index.html: ../x%20y leads nowhere",
    ]


def test_the_readme_comes_to_the_point() -> None:
    before, _, rest = README.partition("```sh")
    prose = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", before)
    assert len(prose.split()) < 120
    assert "core/docs/pictures/run.svg" in before and rest.splitlines()[1].startswith("pip install ")
    assert len(README.splitlines()) < 160, "what is reference belongs into core/docs"


@pytest.mark.parametrize("page", ["README.md", "core/docs/why-not.md"])
def test_each_of_our_claims_leads_to_its_test_and_each_of_theirs_to_their_words(page: str) -> None:
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    table = rows[next(n for n, row in enumerate(rows) if "submitted twice" in row) :][:8]
    ours, *theirs = [row.strip("| ").split(" | ") for row in table[1:]]
    assert ours[0] == "**allaboard**" and len(theirs) == 6
    for cell in ours[1:]:
        claims = re.findall(r"\]\((\S+) \"(test_\w+)\"\)", cell)
        assert claims, cell
        for path, test in claims:
            assert f"def {test}(" in ((ROOT / page).parent / path).read_text(), test
    for name, *cells in theirs:
        assert len(cells) == 5, name
        assert [
            cell for cell in cells if "](https://" not in cell and not cell.startswith("not documented")
        ] == []


def test_both_tables_say_the_same() -> None:
    def table(page: str) -> list[str]:
        return [
            line.replace("../../", "") for line in page.splitlines() if line.startswith("| ") and "](" in line
        ]

    assert set(table(WHY_NOT)) <= set(table(README))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not build.SPHINX.exists(), reason="make docs makes the environment of the site, with the network"
)
def test_the_site_is_built_and_a_broken_link_stops_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    assert build.stage(source) > 100
    assert build.build(source, tmp_path / "html") == []
    for path in ("index.html", "llms.txt", "reference/causes/nccl_timeout.html", "how-to/cluster.md"):
        assert (tmp_path / "html" / path).exists() or path not in PAGES
    # Types and names in docstrings lead to their places on the pages of the Python reference.
    html = (tmp_path / "html/reference/python/allaboard.html").read_text()
    assert 'id="allaboard.run"' in html and html.count('href="#allaboard.TrainingJob"') > 3
    small = tmp_path / "small"
    small.mkdir()
    (small / "conf.py").write_text((source / "conf.py").read_text().replace('["static"]', "[]"))
    (small / "llms.txt").write_text("")
    (small / "index.md").write_text('# Small\n\n[lost](nowhere.md) <a href="gone.html">x</a>\n')
    wrong = build.build(small, tmp_path / "wrong")
    assert wrong == ["sphinx ended with 1", "index.html: gone.html leads nowhere"] or len(wrong) >= 2
    assert "nowhere.md" in capfd.readouterr().err


def test_the_lock_of_the_site_is_small_and_pinned() -> None:
    lock = (ROOT / "tests/requirements-docs.lock").read_text()
    names = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)
    assert {"sphinx", "furo", "myst-parser"} <= set(names) and len(set(names)) < 45
    ignored = subprocess.run(
        ["git", "check-ignore", "dist/docs", ".venv/docs"], cwd=ROOT, capture_output=True, text=True
    )
    assert ignored.returncode in (0, 128) and (
        ignored.returncode or ignored.stdout.split() == ["dist/docs", ".venv/docs"]
    )

"""The tabs and the card in a real browser, on a real Airflow: what people see of a training that ended,
failed, goes on, waits, and of a task of others, in light and dark. The pictures are kept for people to look
at: ``.allaboard/pictures/airflow``, or the folder that PICTURES names.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from allaboard_provider.hooks.allaboard import FIELDS
from dags_examples.own_airflow import end_family, free_port
from tests.provider.live import HERE, Live, Run, until
from tests.provider.ui.browser import BROWSER, Page, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.airflow_live,
    pytest.mark.thorough,
    pytest.mark.timeout(900),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
]
ROOT = HERE.parents[1]
PICTURES = Path(os.environ.get("PICTURES") or ROOT / ".allaboard/pictures/airflow")
FRAME = "document.querySelector('iframe[src*=\"allaboard/page\"]')"
INSIDE = f"{FRAME}?.contentDocument"
"""The tab of a task is a page of ours in a frame of Airflow's."""
DRAWN = f"!!({INSIDE} ?? document).querySelector('main header, main .nothing, .allaboard article')"


@dataclass
class Site:
    """A whole Airflow with runs of each kind."""

    live: Live
    runs: dict[str, Run]

    def tab(self, name: str, task: str = "train") -> str:
        run = self.runs[name]
        return f"{self.live.airflow.url}/dags/{run.dag}/runs/{run.name}/tasks/{task}/plugin/allaboard"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    live = Live(tmp_path_factory.mktemp("site"), HERE / "ui/dags")
    live.gates.mkdir(parents=True)
    try:
        live.airflow.start()
        live.airflow.wait_until_ready(400)
        first = live.start("digits", seed=1)
        runs = {name: live.start(name) for name in ("broken", "foreign", "swept")}
        assert ends(live, first) == "success", first.log()
        runs["digits"] = live.start("digits", seed=2)
        for name, run in runs.items():
            assert ends(live, run) == ("failed" if name == "broken" else "success"), run.log()
        runs["long"] = live.start("long")
        until("the long one runs", lambda: now(live).get("long") == "running")
        runs["waiting"] = live.start("waiting")
        until("the other one waits for it", lambda: now(live).get("waiting") == "queued")
        yield Site(live, runs)
    finally:
        live.stop()


def ends(live: Live, run: Run) -> str:
    """The state of a DAG run, once it has ended."""
    path = f"/dags/{run.dag}/dagRuns/{run.name}"
    return str(
        until(
            f"{run.name} ends",
            lambda: (s := live.airflow.api("GET", path)["state"]) in ("success", "failed") and s,
        )
    )


def ask(url: str, token: str = "") -> tuple[int, Any]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def now(live: Live) -> dict[str, Any]:
    """What the card tells: the state of the training of each DAG."""
    return {row["dag_id"]: row["state"] for row in ask(f"{live.airflow.url}/allaboard/api/now")[1]["runs"]}


@pytest.fixture(scope="module")
def window(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(window: Page) -> Iterator[Page]:
    """The browser, light and of the usual size."""
    window.size(1360, 900)
    window.errors.clear()
    yield window
    assert window.errors == []


def shown(page: Page, url: str, picture: str, height: int = 900) -> str:
    """The text of our part of a page, once it is drawn; kept as a picture of that height."""
    page.open(url)
    page.until(DRAWN)
    page.size(1360, height)
    page.until("document.fonts.ready && !document.querySelector('.chakra-skeleton')")
    page.picture(PICTURES / f"{picture}.png")
    return str(
        page.ask(f"({INSIDE}?.querySelector('main') ?? document.querySelector('.allaboard')).innerText")
    )


def test_a_training_that_ended_shows_its_curves_phases_members_and_checkpoints(
    site: Site, page: Page
) -> None:
    text = shown(page, site.tab("digits"), "training", 2400)
    for words in (
        "succeeded",
        "240/240",
        "Curves",
        "Where the time went",
        "Members",
        "Checkpoints",
        "★ best",
    ):
        assert words in text
    assert page.ask(f"{INSIDE}.querySelectorAll('.plot svg path.line').length") >= 4
    assert page.ask(f"{INSIDE}.querySelectorAll('.lane b.save').length") == 6
    assert page.ask(f"{INSIDE}.querySelectorAll('table tbody tr').length") >= 8


def test_curves_are_drawn_over_time_and_zoomed_by_a_drag(site: Site, page: Page) -> None:
    shown(page, site.tab("digits"), "training-steps")
    box = page.ask(
        f"(() => {{ const b = {INSIDE}.querySelector('.big svg').getBoundingClientRect();"
        f" const f = {FRAME}.getBoundingClientRect();"
        " return [f.left + b.left, f.top + b.top, b.width, b.height]; })()"
    )
    steps = f"[...{INSIDE}.querySelectorAll('.big .by-step i.x')].map((u) => u.textContent).join(' ')"
    assert page.ask(steps).startswith("0 ")
    for kind, share in (("mousePressed", 0.5), ("mouseMoved", 0.7), ("mouseReleased", 0.7)):
        place = {"x": box[0] + share * box[2], "y": box[1] + box[3] / 2}
        page.do("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **place)
    page.until(f"!!{INSIDE}.querySelector('.plot.zoomed')")
    assert not page.ask(steps).startswith("0 ")
    page.ask(f"{INSIDE}.querySelector('.tools button').click()")
    page.until(f"!{INSIDE}.querySelector('.plot.zoomed')")
    page.ask(f"{INSIDE}.querySelector('label[for=over-time]').click()")
    unit = f"[...{INSIDE}.querySelectorAll('.big .unit')].filter((u) => u.offsetParent)[0].textContent"
    page.until(f"{unit}.includes('seconds')")


def test_a_training_that_failed_says_what_went_wrong_and_how_to_mend_it(site: Site, page: Page) -> None:
    text = shown(page, site.tab("broken"), "failed", 1900)
    assert "What went wrong" in text and "illegal memory access" in text and "python_exception" in text
    reason = page.ask(f"{INSIDE}.querySelector('.lead').innerText").partition(": ")[2]
    assert reason and text.count(reason) == 1
    assert page.ask(f"{INSIDE}.querySelector('h1 .badge').innerText") == "failed"
    assert "Traceback" in page.ask(f"{INSIDE}.querySelector('details.lines pre').textContent")


def test_a_training_that_goes_on_is_shown_anew(site: Site, page: Page) -> None:
    text = shown(page, site.tab("long"), "running")
    assert "LIVE" in text and "running" in text
    step = (
        f"[...{INSIDE}.querySelectorAll('.tiles div')].find((d) => d.innerText.startsWith('steps')).innerText"
    )
    loaded = f"{INSIDE}.defaultView.performance.timeOrigin"
    before = page.ask(loaded), page.ask(step)
    page.until(f"({step}) !== {json.dumps(before[1])}")
    assert page.ask(loaded) == before[0], "it is the same page, which was loaded once"


def test_a_training_that_waits_says_why(site: Site, page: Page) -> None:
    text = shown(page, site.tab("waiting"), "waiting")
    assert "Why it waits" in text and "which run long-" in text and "queued" in text


def test_a_task_of_others_is_told_politely_that_nothing_is_here(site: Site, page: Page) -> None:
    text = shown(page, site.tab("foreign", "greet"), "foreign")
    assert "No training here" in text and "started no run of allaboard" in text


def test_a_task_that_names_the_run_of_another_dag_shows_nothing_of_it(site: Site) -> None:
    run = site.runs["digits"].xcom("allaboard_run")["run"]
    thief = site.live.run("borrowed", site.live.start("borrowed", run=run).name)
    ends(site.live, thief)
    url = f"{site.live.airflow.url}/allaboard/api/page/borrowed/{thief.name}/peek/-1"
    status, told = ask(url)
    assert status == 200 and "cannot be shown" in told["main"] and "Curves" not in told["main"]
    own = f"{site.live.airflow.url}/allaboard/api/page/digits/{site.runs['digits'].name}/train/-1"
    assert "Curves" in ask(own)[1]["main"]


def test_the_tabs_follow_the_colours_of_airflow(site: Site, page: Page) -> None:
    """The frame, too, also while it is open."""
    colour = "getComputedStyle(document.querySelector('.allaboard')).color"
    inside = f"getComputedStyle({INSIDE}.body).color"
    shown(page, site.tab("digits"), "light")
    light = page.ask(inside)
    page.ask("localStorage.setItem('theme', 'dark')")
    try:
        shown(page, site.tab("digits"), "dark", 1500)
        dark = page.ask(inside)
        page.ask("document.documentElement.classList.replace('dark', 'light')")
        page.until(f"{inside} === {json.dumps(light)}")
        shown(page, f"{site.live.airflow.url}/dags/digits/plugin/allaboard-models", "models-dark", 1500)
        assert page.ask(colour) == dark
        page.open(site.live.airflow.url + "/")
        page.until("document.querySelectorAll('.allaboard .card .row').length === 2")
        page.picture(PICTURES / "dashboard-dark.png")
        assert page.ask(colour) == dark
    finally:
        page.ask("localStorage.setItem('theme', 'light')")
    assert brightness(light) < 100 < brightness(dark)


def brightness(colour: str) -> float:
    """Of ``rgb(28, 36, 48)``."""
    parts = [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(parts) / 3


def test_a_narrow_window_cuts_nothing_off(site: Site, page: Page) -> None:
    page.open(site.tab("digits"))
    page.size(860, 900)
    page.until(DRAWN)
    page.picture(PICTURES / "narrow.png")
    parts = f"[...{INSIDE}.querySelectorAll('main > *, section > *:not(.wide)')]"
    wider = f"{parts}.filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth)"
    assert page.ask(f"{wider}.map((e) => e.className || e.tagName).join(' ')") == ""


def test_the_models_of_a_dag_show_metrics_from_run_to_run_and_the_champion(site: Site, page: Page) -> None:
    text = shown(page, f"{site.live.airflow.url}/dags/digits/plugin/allaboard-models", "models", 1500)
    assert "The champion" in text and "promotion 2 of" in text and "accuracy" in text
    assert page.ask("document.querySelectorAll('.allaboard .plot path.star').length") >= 2
    assert (
        page.ask("document.querySelectorAll('.allaboard table')[0].querySelectorAll('tbody tr').length") == 2
    )


def test_the_models_of_a_sweep_show_the_values_beside_the_metrics(site: Site, page: Page) -> None:
    text = shown(page, f"{site.live.airflow.url}/dags/swept/plugin/allaboard-models", "models-sweep")
    rows = page.ask("[...document.querySelectorAll('.allaboard tbody tr')].map((row) => row.innerText)")
    assert len(rows) == 2 and "values" in text.lower()
    assert {("LR 0.25" in row, "LR 0.5" in row) for row in rows} == {(True, False), (False, True)}
    assert all(("0.25" if "LR 0.25" in row else "0.5") in row.split("LR")[1][5:] for row in rows)


def test_times_are_in_the_zone_that_the_reader_chose_in_airflows_pages(site: Site, page: Page) -> None:
    champion = ask(f"{site.live.airflow.url}/allaboard/api/dag/digits/models")[1]["champions"][0]["at"]
    there = datetime.fromisoformat(champion).astimezone(ZoneInfo("Asia/Kolkata"))
    shown(
        page, f"{site.live.airflow.url}/dags/digits/plugin/allaboard-models", "models-before-a-choice", 1500
    )
    try:
        # As Airflow's own choice of a zone keeps it, and says that it did.
        page.ask("localStorage.setItem('timezone', JSON.stringify('Asia/Kolkata'))")
        page.ask("window.dispatchEvent(new StorageEvent('local-storage', {key: 'timezone'}))")
        page.until_text("when (Asia/Kolkata)")
        page.until_text(f"since {there:%Y-%m-%d %H:%M:%S}")
        text = page.ask("document.querySelector('.allaboard').innerText")
        assert "UTC" not in text and "Z," not in text and "(Asia/Kolkata), when a task of this DAG" in text
        assert "(Asia/Kolkata)" in shown(page, site.tab("digits"), "training-in-kolkata", 2400)
    finally:
        page.ask("localStorage.removeItem('timezone')")


def test_the_dashboard_has_a_card_of_what_trains_and_what_waits(site: Site, page: Page) -> None:
    page.open(site.live.airflow.url + "/")
    page.until("document.querySelectorAll('.allaboard .card .row').length === 2")
    page.until_text("Pool Slots")
    page.picture(PICTURES / "dashboard.png")
    text = page.ask("document.querySelector('.allaboard .card').innerText")
    assert "1 running, 1 waiting" in text and "which run long-" in text and "This machine" in text
    cores = str(os.cpu_count() or 1)  # as the DAG asks for them
    meter = page.ask("document.querySelector('.allaboard .meter').innerText")
    assert meter.split() == ["cpu", cores, "of", cores]
    assert page.ask("!!document.querySelector('.allaboard .meter .progress i.full')")
    page.ask("document.querySelector('.allaboard .card .row').click()")
    page.until(f"!!{INSIDE}?.body?.innerText.includes('Why it waits')")


def test_airflow_knows_each_field_of_the_connections_form_with_its_help(site: Site) -> None:
    url = site.live.airflow.url
    token = ask(f"{url}/auth/token")[1]["access_token"]
    status, kinds = ask(f"{url}/ui/connections/hook_meta", token)
    assert status == 200
    [kind] = [kind for kind in kinds if kind["connection_type"] == "allaboard"]
    fields = kind["extra_fields"]
    assert set(fields) == set(FIELDS) and all(field["description"] for field in fields.values())
    hidden = {name for name, how in kind["standard_fields"].items() if how and how.get("hidden")}
    assert {"host", "login", "password", "port"} <= {name.replace("url_schema", "schema") for name in hidden}


def test_the_details_of_a_task_link_to_its_tab(site: Site, page: Page) -> None:
    page.open(site.tab("digits").removesuffix("/plugin/allaboard") + "/details")
    link = "[...document.querySelectorAll('a[target=_self]')].find((a) => a.textContent === 'Training')"
    page.until(f"!!{link}")
    page.ask(f"{link}.scrollIntoView()")
    page.picture(PICTURES / "link.png")
    page.ask(f"{link}.click()")
    page.until(DRAWN)


# --- a server on another machine, which knows its users


@pytest.fixture(scope="module")
def other(site: Site) -> Iterator[str]:
    """The address of a second API server of the same Airflow, which has none of the local runs."""
    airflow, port = site.live.airflow, free_port()
    environ = {
        **airflow.environ,
        "ALLABOARD_HOME": str(airflow.home / "elsewhere"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
    }
    with airflow.log.open("ab") as log:
        process = subprocess.Popen(
            ["airflow", "api-server"], env=environ, cwd=airflow.home, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True, executable=str(airflow.home / "bin/airflow"),
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, "it ended at once"
        try:
            return ask(f"{url}/api/v2/monitor/health")[0] == 200
        except OSError:
            return False

    try:
        until("the second API server answers", answers)
        yield url
    finally:
        end_family(process.pid)
        process.wait()


def test_nobody_sees_a_training_without_signing_in(site: Site, other: str) -> None:
    run = site.runs["digits"]
    for path in (
        f"/allaboard/api/page/digits/{run.name}/train/-1", f"/allaboard/page/digits/{run.name}/train/-1",
        "/allaboard/api/dag/digits/models", "/allaboard/api/now",
    ):  # fmt: skip
        assert ask(other + path)[0] == 401


def test_a_server_that_cannot_read_a_run_shows_the_snapshot_that_the_trigger_left(
    site: Site, other: str
) -> None:
    token = ask(f"{site.live.airflow.url}/auth/token")[1]["access_token"]
    path = f"/allaboard/api/page/long/{site.runs['long'].name}/train/-1"

    def told() -> Any:
        status, found = ask(other + path, token)
        assert status == 200, found
        return found if "steps done" in found["main"] else None

    found = until("the trigger left a snapshot", told)
    assert found["title"].endswith(": running") and found["every"] == 10.0 and "Curves" in found["main"]
    assert "cannot be read from here now" in found["main"] and 'class="live"' not in found["main"]


def test_the_tab_of_a_server_that_cannot_read_a_run_says_when_it_was_seen(
    site: Site, other: str, page: Page
) -> None:
    token = ask(f"{site.live.airflow.url}/auth/token")[1]["access_token"]
    page.do("Network.setCookie", name="_token", value=token, url=other, httpOnly=False)
    run = site.runs["long"]
    page.open(f"{other}/dags/long/runs/{run.name}/tasks/train/plugin/allaboard")
    page.until(f"!!{INSIDE}?.querySelector('.plot svg')")
    page.size(1360, 1500)
    page.picture(PICTURES / "elsewhere.png")
    text = page.ask(f"{INSIDE}.body.innerText")
    assert "cannot be read from here now" in text and "running as seen at" in text

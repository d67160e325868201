"""The page in a frame of another page of the same server, in a real browser: it changes by itself, and the
reader keeps the place, the zoom, what is open and what is selected.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("websockets", reason="the browser is spoken to over a websocket")

from allaboard.diagnosis import Diagnosis, Evidence
from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.report.history import history
from allaboard.report.html import live_page, nothing
from allaboard.report.page import run_content
from allaboard.report.page_data import Readings, page_data
from allaboard.runs.observation import Event, Observation, Progress, State
from allaboard.testing import a_member, seen
from allaboard.text.reportline import encode
from tests.provider.ui.browser import BROWSER, Page, browser

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
    pytest.mark.timeout(300),
]
HOST = """<!doctype html><html class="{theme}" style="color-scheme: {theme}"><body style="margin: 0">
<iframe src="/page" sandbox="allow-scripts allow-same-origin"
  style="border: 0; width: 100%; height: 95vh"></iframe>"""
INSIDE = "document.querySelector('iframe').contentDocument"
MEMBERS = (a_member("master-0"), a_member("worker-0", rank=1))
HOSTILE = '<img src=x onerror="top.stolen = 1"><script>top.stolen = 1</script>'


@dataclass
class Server:
    """``shown``: title, HTML and seconds; ``status``: of the next answers."""

    shown: tuple[str, str, float | None] = ("", "", None)
    status: int = 200
    asked: int = 0
    theme: str = "dark"
    url: str = ""
    bytes: list[int] = field(default_factory=list)

    def show(self, observation: Observation, steps: int, every: float | None = 0.1, **more: Any) -> None:
        told = history(
            encode("progress", step=n, total=400, loss=1 / n, lr=n / 10) for n in range(1, steps + 1)
        )
        note, diagnoses = more.pop("note", None), more.pop("diagnoses", ())
        read = Readings(told, **{"lines": {"master-0": [f"line {n}" for n in range(steps)]}, **more})
        data = page_data(Outcome(observation, diagnoses), read, 1_790_000_500.0, at=HERE)
        self.shown = (*run_content(data, live=every is not None, note=note), every)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            title, main, every = found.shown
            match self.path:
                case "/page":
                    body, kind = live_page(title, main, "api", every), "text/html; charset=utf-8"
                case "/api":
                    found.asked += 1
                    body, kind = (
                        json.dumps({"title": title, "main": main, "every": every}),
                        "application/json",
                    )
                case _:
                    body, kind = HOST.format(theme=found.theme), "text/html"
            self.send_response(found.status if self.path == "/api" else 200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            return

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{httpd.server_address[1]}/"
    threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield found
    finally:
        httpd.shutdown()
        httpd.server_close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@contextmanager
def opened(window: Page, server: Server, width: int = 1100, height: int = 700) -> Iterator[Page]:
    window.size(width, height)
    window.errors.clear()
    window.open(server.url)
    window.until(f"!!{INSIDE}?.querySelector('main')?.children.length")
    yield window
    assert window.errors == [] and window.ask("window.stolen") is None


def running(step: int, **fields: Any) -> Observation:
    progress = Progress(step=step, total=400, metrics={"loss": 1 / step}, heartbeat=1.0)
    born = {"created": 1_790_000_000.0, "started": 1_790_000_010.0}
    return seen(State.RUNNING, **{"members": MEMBERS, "progress": progress, **born, **fields})


def text(page: Page) -> str:
    return str(page.ask(f"{INSIDE}.body.innerText"))


def until_text(page: Page, words: str) -> None:
    page.until(f"{INSIDE}.body.innerText.includes({json.dumps(words)})", 30)


def test_a_run_lives_moves_on_fails_and_is_over(window: Page, server: Server) -> None:
    server.shown = ("Training", nothing("No training here", "The run of this task is about to start."), 0.1)
    with opened(window, server) as page:
        until_text(page, "about to start")
        server.show(seen(State.QUEUED, waiting="waits for 2 CPUs"), 0)
        until_text(page, "waits for 2 CPUs")
        assert page.ask(f"!{INSIDE}.querySelector('.plot')")
        server.show(running(40), 40)
        until_text(page, "40/400 (10%)")
        assert "live" in text(page).lower() and page.ask(f"{INSIDE}.querySelectorAll('.plot').length") >= 2
        assert page.ask(f"{INSIDE}.querySelector('[role=progressbar]').getAttribute('aria-valuenow')") == "10"
        server.show(running(80), 80)
        until_text(page, "80/400 (20%)")
        assert page.ask(f"{INSIDE}.title") == "digits: running"
        line = Evidence("log/worker-0", "line 3", "Traceback")
        fix = "mend it: `allaboard logs digits worker-0`"
        cause = Diagnosis("python_exception", "ValueError: no", (line,), "worker-0", False, fix)
        failed = (a_member("master-0", "deleted"), a_member("worker-0", "failed", rank=1, exit_code=1))
        ended = seen(State.FAILED, members=failed, tails={"worker-0": f"Traceback\n{HOSTILE}"})
        server.show(ended, 80, every=None, diagnoses=(cause,), lines={"worker-0": ["Traceback", HOSTILE]})
        until_text(page, "What went wrong")
        assert HOSTILE in text(page) and "allaboard logs digits worker-0" in text(page)
        asked = server.asked
        assert page.ask(f"!{INSIDE}.querySelector('.live')") and page.ask(
            f"!!{INSIDE}.querySelector('.plot')"
        )
        page.ask("new Promise((done) => setTimeout(done, 600))")
        assert server.asked <= asked + 1, "what is over is not asked for again"


def test_the_reader_keeps_the_place_the_zoom_what_is_open_and_what_is_selected(
    window: Page, server: Server
) -> None:
    server.show(running(200), 200)
    with opened(window, server, height=500) as page:
        until_text(page, "200/400")
        page.ask(f"""(() => {{
          const doc = {INSIDE}, win = doc.defaultView;
          doc.querySelector("#over-time") && doc.querySelector("#over-time").click();
          const svg = doc.querySelector(".big svg"), box = svg.getBoundingClientRect();
          svg.setPointerCapture = () => {{}};
          const place = (x) => ({{ clientX: box.left + box.width * x, button: 0 }});
          const at = (kind, x) => svg.dispatchEvent(new win.PointerEvent(kind, place(x)));
          at("pointerdown", 0.5); at("pointermove", 0.75); at("pointerup", 0.75);
          for (const each of doc.querySelectorAll("details.lines")) each.open = !each.open;
          const cell = [...doc.querySelectorAll("td")].find((one) => one.textContent === "worker-0");
          win.getSelection().selectAllChildren(cell);
          doc.querySelector(".tools button").focus();
          win.scrollTo(0, 300);
        }})()""")
        state = f"""(() => {{ const doc = {INSIDE}, win = doc.defaultView; return JSON.stringify({{
          place: win.scrollY, selected: String(win.getSelection()), focus: doc.activeElement.textContent,
          open: [...doc.querySelectorAll("details.lines")].map((d) => d.open),
          zoomed: doc.querySelectorAll(".plot.zoomed").length,
          back: !doc.querySelector(".tools button").hidden,
          left: doc.querySelector(".big .plot i.x").textContent }}); }})()"""
        before = json.loads(page.ask(state))
        assert before["zoomed"] >= 2 and before["selected"] == "worker-0" and before["focus"] == "Show all"
        kept = page.ask(f"void ({INSIDE}.querySelector('header').kept = true)")
        assert kept is None
        server.show(running(240), 240)
        until_text(page, "240/400")
        assert json.loads(page.ask(state)) == before
        assert page.ask(f"{INSIDE}.querySelector('header').kept"), "the same page, not another one"
        page.ask(f"{INSIDE}.querySelector('.tools button').click()")
        assert page.ask(f"{INSIDE}.querySelectorAll('.plot.zoomed').length") == 0


def test_it_follows_the_colours_and_the_zone_of_the_pages_around_it(window: Page, server: Server) -> None:
    when = "2026-09-21T15:33:20Z"
    evicted = Event(1_790_000_300.0, "Warning", "Evicted", "worker-0", f"at {when}")
    lines = {"master-0": [f"logged at {when}"]}
    server.show(running(9), 9, lines=lines, note=f"As it was at {when}", events=[evicted])
    with opened(window, server) as page:
        colour = f"getComputedStyle({INSIDE}.body).color"
        dark = page.until(f"{colour} !== 'rgb(28, 36, 48)' && {colour}")
        assert page.ask(f"getComputedStyle({INSIDE}.body).backgroundColor") == "rgba(0, 0, 0, 0)"
        page.ask("document.documentElement.className = 'light'")
        page.until(f"{colour} === 'rgb(28, 36, 48)'")
        assert dark == "rgb(230, 234, 240)"
        try:
            page.ask("localStorage.setItem('timezone', JSON.stringify('Asia/Kolkata'))")
            until_text(page, "As it was at 2026-09-21 21:03:20 (Asia/Kolkata)")
            assert f"logged at {when}" in text(page), "as its author wrote it"
            server.show(running(10), 10, note="As it was at 2026-09-21T15:43:20Z")
            until_text(page, "As it was at 2026-09-21 21:13:20 (Asia/Kolkata)")
        finally:
            page.ask("localStorage.removeItem('timezone')")


def test_a_run_that_cannot_be_read_says_so_and_is_asked_for_again(window: Page, server: Server) -> None:
    server.show(running(9), 9, note="As it was a minute ago; it cannot be read from here now: it is on gpu-7")
    with opened(window, server) as page:
        until_text(page, "it is on gpu-7")
        server.status = 401
        until_text(page, "It could not be read again: you are signed out; sign in again.")
        assert "9/400" in text(page), "what was read stays"


def test_the_keyboard_reaches_everything(window: Page, server: Server) -> None:
    server.show(running(200), 200)

    def press(key: str) -> str:
        for kind in ("keyDown", "keyUp"):
            page.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])
        return str(page.ask(f"{INSIDE}.activeElement.nodeName + ' ' + {INSIDE}.activeElement.id"))

    with opened(window, server) as page:
        until_text(page, "200/400")
        page.ask(f"{INSIDE}.defaultView.focus()")
        reached = [press("Tab") for _ in range(8)]
        assert "svg " in reached and "SUMMARY " in reached
        page.ask(f"{INSIDE}.querySelector('.big svg').focus()")
        press("ArrowRight")
        assert page.ask(f"{INSIDE}.querySelector('.tip').innerText").startswith("step 10")
        press("Escape")
        assert page.ask(f"!{INSIDE}.querySelector('.tip')")


KEYS = {"Tab": 9, "Escape": 27, "ArrowRight": 39}


def test_a_narrow_window_cuts_nothing_off(window: Page, server: Server) -> None:
    server.show(running(200), 200)
    with opened(window, server, width=420) as page:
        until_text(page, "200/400")
        parts = f"[...{INSIDE}.querySelectorAll('main > *, section > *:not(.wide)')]"
        wider = f"{parts}.filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth)"
        assert page.ask(f"{wider}.map((e) => e.className || e.tagName).join(' ')") == ""
        assert page.ask(f"{INSIDE}.documentElement.scrollWidth <= {INSIDE}.documentElement.clientWidth")


def test_what_is_sent_again_is_small(server: Server) -> None:
    """Of a run with curves of hundreds of points: no styles, no script, no tables."""
    server.show(running(400), 400)
    title, main, _ = server.shown
    assert len(main) < 30_000 and '<table class="figures"' not in main and "<style" not in main
    assert len(live_page(title, main, "api", 4.0)) < len(main) + 40_000

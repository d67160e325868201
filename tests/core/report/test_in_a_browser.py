"""The page in a real browser: its policy lets the script of charts run, and no other."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.report.history import history
from allaboard.report.page import run_page
from allaboard.report.page_data import Readings, page_data
from allaboard.runs.observation import State
from allaboard.testing import seen
from allaboard.text.reportline import encode

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@pytest.fixture
def a_page() -> str:
    told = history(encode("progress", step=n, loss=1 / n, lr=n / 10) for n in range(1, 400))
    return run_page(page_data(Outcome(seen(State.SUCCEEDED)), Readings(told), 10.0, at=HERE))


def shown(text: str, folder: Path) -> str:
    """The document as it stands once a browser has run its scripts."""
    assert BROWSER is not None
    path = folder / "page.html"
    path.write_text(text)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [BROWSER, *options, "--virtual-time-budget=2000", "--dump-dom", f"file://{path}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def test_the_script_of_the_page_runs_and_no_other(a_page: str, tmp_path: Path) -> None:
    hostile = '<p id="x">calm</p><script>document.getElementById("x").textContent = "taken over"</script>'
    found = shown(a_page.replace("</main>", hostile + "</main>"), tmp_path)
    assert "Drag over a chart to zoom." in found and '<p id="x">calm</p>' in found


def test_a_drag_zooms_all_charts_and_the_button_undoes_it(a_page: str, tmp_path: Path) -> None:
    drag = """<script>
      const svg = document.querySelector(".plot svg"), box = svg.getBoundingClientRect();
      svg.setPointerCapture = () => {};
      const at = (kind, x) =>
        svg.dispatchEvent(new PointerEvent(kind, {clientX: box.left + box.width * x, button: 0}));
      at("pointerdown", 0.5); at("pointermove", 0.75); at("pointerup", 0.75);
      const all = (what, ask) => [...document.querySelectorAll(what)].map(ask);
      const boxes = () => all(".plot svg", (s) => s.getAttribute("viewBox")).join("|");
      const words = () => all(".plot i.x", (w) => w.textContent).join(" ");
      const zoomed = boxes(), told = words();
      document.querySelector("button").click();
      document.title = `${zoomed}; ${told}; ${boxes()}; ${words()}`;
    </script>"""
    open_page = POLICY.sub("", a_page).replace("</body>", drag + "</body>")
    title = re.search(r"<title>(.*?)</title>", shown(open_page, tmp_path))
    assert title is not None
    zoomed, told, after, words = title[1].split("; ")
    assert len(zoomed.split("|")) == 2
    for view in zoomed.split("|"):
        x, y, width, height = map(float, view.split())
        assert (x, width) == (pytest.approx(5000, abs=60), pytest.approx(2500, abs=60))
        assert 0 < height < 10_000 and y >= -1000
    assert "250" in told.split() and "0" not in told.split()
    assert after == "0 0 10000 10000|0 0 10000 10000" and words.split()[0] == "0"

"""A headless Chromium that is told what to do over its DevTools protocol: open, wait, ask, picture."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE = 180.0


class LeftPage(Exception):
    """The page that was asked gives way to another one."""


class Page:
    """One page of a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.errors: list[str] = []
        """What scripts of the page failed with."""
        self.do("Page.enable")
        self.do("Runtime.enable")

    def do(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv(PATIENCE))
            if told.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(told["params"]["exceptionDetails"])[:2000])
            if told.get("id") == self._number:
                if "navigated" in told.get("error", {}).get("message", ""):
                    raise LeftPage
                assert "error" not in told, told["error"]
                result: dict[str, Any] = told["result"]
                return result

    def open(self, url: str) -> None:
        self.do("Page.navigate", url=url)

    def ask(self, script: str) -> Any:
        """The value of an expression in the page; None where it has none yet."""
        try:
            return self.do("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")
        except LeftPage:
            return None

    def until(self, script: str, seconds: float = PATIENCE) -> Any:
        """What the expression gives, as soon as it is something true."""
        end = time.monotonic() + seconds
        while True:
            found = self.ask(script)
            if found:
                return found
            assert time.monotonic() < end, f"never: {script}\n{self.text()[:3000]}\n{self.errors}"
            time.sleep(0.2)

    def until_text(self, text: str, seconds: float = PATIENCE) -> None:
        self.until(f"document.body && document.body.innerText.includes({json.dumps(text)})", seconds)

    def text(self) -> str:
        return str(self.ask("document.body ? document.body.innerText : ''") or "")

    def size(self, width: int, height: int) -> None:
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """light or dark, as the system of a person says."""
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with a profile of its own in ``folder``."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--remote-debugging-port=0", "--remote-allow-origins=*",
        f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(folder / "DevToolsActivePort", process)
        with _open(f"http://127.0.0.1:{port}/json/list") as answer:
            targets = json.load(answer)
        target = next(each for each in targets if each["type"] == "page")
        with connect(target["webSocketDebuggerUrl"], max_size=1 << 28, proxy=None) as socket:
            page = Page(socket)
            page.size(1360, 900)
            yield page
    finally:
        process.terminate()
        process.wait(20)


def _open(url: str) -> Any:
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10)


def _port(path: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, "the browser ended at once"
        if path.exists() and (lines := path.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.1)
    raise AssertionError("the browser did not say its port")

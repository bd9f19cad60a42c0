"""A headless Chromium, driven by chromedriver over the plain HTTP of WebDriver: no package of Python's is needed."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVER, BROWSERS = "chromedriver", ("chromium", "chromium-browser", "google-chrome")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element's reference, by WebDriver's standard
SECONDS = 60.0


def find_browser() -> str | None:
    """Return the browser's path, None if it or its driver is not installed."""
    paths = [path for path in map(shutil.which, BROWSERS) if path]
    return paths[0] if paths and shutil.which(DRIVER) else None


@dataclass
class Browser:
    """One session of a browser."""

    address: str  # of the session

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the value that the driver answers with."""
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=SECONDS) as response:
            return json.load(response)["value"]

    def open(self, path: Path) -> None:
        """Load a page from disk."""
        self.call("POST", "/url", {"url": path.absolute().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function's body returns in the page."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """Click the first element of a selector, as a user does: it must be seen."""
        found_element = self.call("POST", "/element", {"using": "css selector", "value": selector})
        self.call("POST", f"/element/{found_element[ELEMENT]}/click")

    def press(self, *keys: str) -> None:
        """Press keys one after another."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def resize(self, width: int, height: int) -> None:
        """Give the page this size, whatever the least size of a window is."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def emulate(self, medium: str = "screen", scheme: str = "light") -> None:
        """Show the page on another medium, or to one who prefers dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", {"media": medium, "features": features})

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        """Return the answer to a command of the DevTools protocol."""
        return self.call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def read_errors(self) -> list[str]:
        """Return the errors on the console since the last time."""
        entries = self.call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def save_picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser without a window, and end it."""
    binary = find_browser()
    assert binary is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            browser = Browser(f"http://127.0.0.1:{_read_port(driver)}/session")
            options = {
                "binary": binary,
                "args": [
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--disable-background-networking",
                    f"--user-data-dir={profile}",
                ],
            }
            capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            answer = browser.call("POST", "", {"capabilities": {"alwaysMatch": capabilities}})
            browser.address += f"/{answer['sessionId']}"
            try:
                yield browser
            finally:
                browser.call("DELETE", "")
        finally:
            driver.terminate()
            driver.wait()


def _read_port(driver: subprocess.Popen[str]) -> str:
    assert driver.stdout is not None
    for line in driver.stdout:
        if match := re.search(r"started successfully on port (\d+)", line):
            return match.group(1)
    raise AssertionError("chromedriver did not start")

"""A page in headless Chromium, driven over the DevTools protocol's pipe: what its script says, what a pointer and keys do to it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0
"""Seconds that an answer may take."""


def browser() -> str | None:
    """The browser on this machine, if there is one."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Browser:
    """A running browser; what it says on its own is filed by the tab that it is about."""

    def __init__(self, executable: str) -> None:
        read_there, self._send = os.pipe()
        self._receive, write_there = os.pipe()
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The browser reads commands from descriptor 3 and answers on 4; the shell moves the pipes there.
        command = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
        words = ["bash", "-c", command, str(read_there), str(write_there), executable, *FLAGS, f"--user-data-dir={self._folder.name}"]
        self._process = subprocess.Popen(words, pass_fds=(read_there, write_there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read_there)
        os.close(write_there)
        self._text = b""
        self._number = 0
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def ask(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The answer to *method* of the tab *session*, or of the browser."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return dict(reply["result"])
            self._file(reply)

    def listen(self) -> None:
        """Wait until the browser says something on its own."""
        self._file(self._next())

    def _file(self, event: dict[str, Any]) -> None:
        self.events[event.get("sessionId", "")].append(event)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._receive], [], [], PATIENCE)
            assert ready, "the browser says nothing"
            read = os.read(self._receive, 1 << 20)
            assert read, "the browser is gone"
            self._text += read
        message, _, self._text = self._text.partition(b"\0")
        return dict(json.loads(message))

    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            os.write(self._send, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        os.close(self._send)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._receive)
        self._folder.cleanup()


class Tab:
    """One page; *context* is its own storage in *browser*, as of a new browser."""

    def __init__(self, browser: Browser, context: str) -> None:
        self._browser, self._context = browser, context
        self.session = ""

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the browser said on its own about this page."""
        return self._browser.events[self.session]

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The browser's answer to *method*."""
        return self._browser.ask(method, self.session, **parameters)

    def open(self, page: Path | str) -> None:
        """Open *page*, a file or an address, in a new tab, and wait until it has loaded."""
        target = self._browser.ask("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        self.session = self._browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.ask(f"{domain}.enable")
        self.go(page)

    def go(self, page: Path | str) -> None:
        """Go to *page* in this tab, and wait until it is there."""
        self.events.clear()
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self._browser.listen()

    def until(self, expression: str) -> None:
        """Wait until *expression* is true in the page, at most `PATIENCE` seconds."""
        end = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}; {self.complaints()}"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of *expression* in the page."""
        reply = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def point(self, selector: str) -> None:
        """Move the pointer to the middle of the first element that *selector* finds."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{find}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y = self.evaluate(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({find}.getBoundingClientRect())")
        for shift in (3, 0):
            self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x + shift, y=y)

    def click(self, selector: str) -> None:
        """Click the first element that *selector* finds."""
        self.point(selector)
        find = f"document.querySelector({json.dumps(selector)})"
        x, y = self.evaluate(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({find}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press *key*."""
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")

    def wear(self, scheme: str, medium: str = "") -> None:
        """Emulate the preferred color *scheme* (light, dark) and the *medium* (print)."""
        self.ask("Emulation.setEmulatedMedia", media=medium, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width: int, height: int) -> None:
        """Make the window *width* by *height*."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page to *path*."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """What the page's script or the browser complained of."""
        self.evaluate("0")
        said = [event for event in self.events if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        said += [
            event for event in self.events
            if event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning", "assert")
        ]  # fmt: skip
        return [json.dumps(event["params"]) for event in said]

    def requests(self) -> list[str]:
        """The addresses that the page requested, except for its own."""
        urls = [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("file:", "data:", "about:"))]


_RUNNING: list[Browser] = []


def close() -> None:
    """End the browser of this process, if one was started."""
    while _RUNNING:
        _RUNNING.pop().close()


@contextlib.contextmanager
def opened(page: Path | str) -> Iterator[Tab]:
    """The *page*, a file or an address, in the one browser of this process, which takes ten times as long to start as a page."""
    if not _RUNNING or not _RUNNING[0].is_running():
        executable = browser()
        assert executable is not None
        close()
        _RUNNING.append(Browser(executable))
    running = _RUNNING[0]
    context = running.ask("Target.createBrowserContext")["browserContextId"]
    tab = Tab(running, context)
    try:
        tab.open(page)
        yield tab
    finally:
        running.ask("Target.disposeBrowserContext", browserContextId=context)
        running.events.pop(tab.session, None)

"""Headless Chromium for tests of pages: DevTools' protocol through a pipe, so that nothing but the browser is needed."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36}

_WITH_PIPE = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
"""A program that becomes the browser, whose protocol comes in through file 3 and goes out through file 4."""


def installed() -> str | None:
    """The browser on the path, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in a headless browser; *urls* are what it has requested."""

    def __init__(self, program: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run --disable-background-networking "
            "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --mute-audio"
        )
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        words = [sys.executable, "-c", _WITH_PIPE, *map(str, ends), program, *flags.split(), f"--user-data-dir={self.folder.name}"]
        self.process = subprocess.Popen(
            words, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )  # fmt: skip
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._rest, self._last, self.urls, self.errors = b"", 0, [], []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = ""
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self._in)
        os.close(self._out)
        with contextlib.suppress(OSError):  # the browser's last children may still write there
            self.folder.cleanup()

    # --- what a test does -----------------------------------------------------------------------------------------

    def size(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def dark(self, wanted: bool = True) -> None:
        self._call(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}]}
        )  # fmt: skip

    def open(self, url: str) -> None:
        self._call("Page.navigate", {"url": url})

    def value(self, expression: str) -> Any:
        """What *expression* is on the page."""
        found = self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"]["exception"].get("description", found["exceptionDetails"]["text"]))
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> Any:
        """Wait until *expression* is true on the page; the limit only ends a test that hangs."""
        end = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"never true: {expression}; errors: {self.errors}"
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """Press and release *key* in the element that has the focus."""
        about: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"Enter": "\r", " ": " "}.get(key)
        self._call("Input.dispatchKeyEvent", {"type": "keyDown", "text": text, **about} if text else {"type": "rawKeyDown", **about})
        self._call("Input.dispatchKeyEvent", {"type": "keyUp", **about})

    def picture(self, path: Path, whole: bool = False) -> None:
        found = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(found["data"]))

    # --- the protocol ---------------------------------------------------------------------------------------------

    def _call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters or {}}
        if getattr(self, "_session", ""):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], 60)
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        if message.get("method") == "Network.requestWillBeSent":
            self.urls.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(message["params"]["exceptionDetails"].get("exception", {}).get("description", "an error"))
        return message

"""Headless Chromium, driven over its DevTools protocol by a pipe: nothing listens, and nothing is installed for it."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 30.0

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
    *("--disable-breakpad", "--no-proxy-server", "--hide-scrollbars"),
)

INSTALL = "needs chromium: apt-get install --no-install-recommends chromium"


class Page:
    """One tab.

    Attributes:
        complaints: uncaught errors, and what the console or the policy has said.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command.

        Raises:
            AssertionError: it is an error, or none comes in time.
        """
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False, touch: bool = False) -> None:
        """Loads a page in a window of a size; ``touch``: as on a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if touch else 1,
            mobile=touch,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.complaints.clear()
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until an expression is true, looked at in every frame of the page."""
        limit = int(TIMEOUT_S * 1000)
        found = self.evaluate(
            f"new Promise((done) => {{ const end = performance.now() + {limit}; const look = () =>"
            f" ({condition}) ? done(true) : performance.now() > end ? done(false) : setTimeout(look, 15); look(); }})"
        )
        assert found, f"{condition} has not become true within {TIMEOUT_S} s; complaints: {self.complaints}"

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, *keys: str) -> None:
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                text = "\r" if key == "Enter" else key if len(key) == 1 else ""
                letter = {"text": text} if text and kind == "keyDown" else {}
                code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, 0)
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **letter)

    def mouse(self, kind: str, x: float, y: float, **parameters: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **parameters)

    def picture(self, path: Path, *, whole: bool = False, clip: dict[str, float] | None = None) -> None:
        """Of the window, of the whole document, or of a part of it."""
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {**size, "scale": 1}
        more = {"clip": clip} if clip else {}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=bool(clip), **more)["data"]
        path.write_bytes(base64.b64decode(data))

    def _read(self, deadline: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            while b"\0" not in self._rest:
                assert selector.select(max(0.0, deadline - time.monotonic())), f"no answer within {TIMEOUT_S} s"
                data = os.read(self._from, 1 << 20)
                assert data, "chromium has ended"
                self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"].get("exception", {}).get("description")))
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(str(told["entry"]["text"]))


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A tab of a browser of its own; skips the test where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip(INSTALL)
    with contextlib.ExitStack() as stack:
        ends = [*os.pipe(), *os.pipe()]
        for end in ends:
            stack.callback(os.close, end)
        commands, to_browser, from_browser, answers = ends
        # It reads its commands from descriptor 3 and answers on 4.  Descriptors are given out in order: no clash.
        moves = f"import os, sys; os.dup2({commands}, 3); os.dup2({answers}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        words = [sys.executable, "-c", moves, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        browser = subprocess.Popen(words, pass_fds=(commands, answers), start_new_session=True, **quiet)
        try:
            yield Page(to_browser, from_browser)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()

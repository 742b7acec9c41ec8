"""A real browser for tests: Debian's Chromium, without a window, driven over its own debugging pipe.

The DevTools protocol is JSON over two pipes, ended by a zero byte each, so it needs neither a driver nor a port.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from types import TracebackType
from typing import Any

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
# The browser reads from descriptor 3 and writes to 4.
_LAUNCH = """
import os, sys
from fcntl import F_DUPFD, fcntl
ours = [fcntl(int(number), F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(ours[0], 3)
os.dup2(ours[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


# What the browser answers if the page goes away while a script is at work in it.
_LEFT = ("navigated or closed", "context was destroyed", "Cannot find context", "Cannot find default execution context")


class PageLeft(Exception):
    """The page was left before its script had an answer."""


def chromium() -> str | None:
    """Where the browser is, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page; `problems` are what its console, its loader and its network said."""

    def __init__(self, profile: Path) -> None:
        read_by_it, self._to = os.pipe()
        self._from, written_by_it = os.pipe()
        command = [str(chromium()), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(read_by_it), str(written_by_it), *command],
            pass_fds=(read_by_it, written_by_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_by_it)
        os.close(written_by_it)
        self._number, self._rest, self._session = 0, b"", ""
        self.problems: list[str] = []
        self.fetched: list[str] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)  # the browser ends when its pipe does
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def send(self, method: str, **parameters: Any) -> Any:
        """One command, and its answer; what the page says meanwhile is kept."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            self._hear(answer)
        if "error" in answer and any(words in answer["error"]["message"] for words in _LEFT):
            raise PageLeft(answer["error"]["message"])
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file, in a window of that width."""
        self.visit(path.resolve().as_uri(), width, height, dark)

    def visit(self, address: str, width: int, height: int = 900, dark: bool = False) -> None:
        """Show what is at an address, in a window of that width."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._go("about:blank")  # what the page before still complains of, of a server that has ended say, is its own
        self.problems.clear()
        self.fetched.clear()
        self._go(address)

    def _go(self, address: str) -> None:
        """Show an address, and hear what the browser says until it is loaded."""
        self._loaded = False
        self.send("Page.navigate", url=address)
        while not self._loaded:
            self._hear(self._receive())

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page; None if the page is left meanwhile, by a click say."""
        try:
            answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        except PageLeft:
            return None
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """The page (its top, if a height is given) as a PNG file."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(b64decode(shot["data"]))

    def _receive(self) -> Any:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _hear(self, event: Any) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(json.dumps(said))
        elif method == "Network.requestWillBeSent":
            self.fetched.append(said["request"]["url"])

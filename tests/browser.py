"""A headless Chromium for tests: the DevTools protocol over a pipe, without any package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# The browser reads commands from handle 3 and writes answers to handle 4.
START = """
import fcntl, os, sys
high = [fcntl.fcntl(int(handle), fcntl.F_DUPFD, 20) for handle in sys.argv[1:3]]
for handle, place in zip(high, (3, 4)):
    os.dup2(handle, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")


def find() -> str | None:
    """The browser of this machine: $SHOAL_CHROMIUM, or the first of NAMES that is installed."""
    return os.environ.get("SHOAL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. `errors` are the exceptions that its scripts raised."""

    def __init__(self, width: int = 1180, height: int = 860, scale: float = 1.0) -> None:
        path = find()
        assert path is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (own_in, theirs_out), (theirs_in, own_out) = os.pipe(), os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --hide-scrollbars --mute-audio".split()
        start = [sys.executable, "-c", START, str(theirs_in), str(theirs_out)]
        command = [*start, path, *flags, f"--user-data-dir={self._folder.name}", "about:blank"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(theirs_in, theirs_out)
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(own_in, "rb", buffering=0), os.fdopen(own_out, "wb", buffering=0)
        self._buffer, self._number, self.errors = b"", 0, []
        self._session = ""
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        self.call("Runtime.enable")
        self.call("Page.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        self._in.close()
        self._out.close()
        self._folder.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = self._in.read(1 << 16)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    # ---- what tests do ----

    def open(self, url: str | Path, ready: str = "Boolean(window.app)", timeout_s: float = 60.0) -> None:
        """Opens a file or an address and waits until a condition holds."""
        self.call("Page.navigate", url=url.resolve().as_uri() if isinstance(url, Path) else url)
        self.wait(ready, timeout_s)

    def wait(self, condition: str, timeout_s: float = 60.0) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + timeout_s
        while not self.run(condition):
            assert not self.errors, self.errors
            assert time.monotonic() < end, f"not within {timeout_s} s: {condition}"
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        out = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        details = out.get("exceptionDetails")
        assert details is None, details.get("exception", {}).get("description", details["text"])
        return out["result"].get("value")

    def key(self, code: str, *, hold: bool = False) -> None:
        """Presses a key, and releases it unless it is held."""
        named = {"code": code, "key": {"Space": " "}.get(code, code.removeprefix("Key").removeprefix("Digit"))}
        self.call("Input.dispatchKeyEvent", type="rawKeyDown", **named)
        if not hold:
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def release(self, code: str) -> None:
        """Releases a held key."""
        self.call("Input.dispatchKeyEvent", type="keyUp", code=code, key=code)

    def click(self, x: float, y: float) -> None:
        """Clicks at a point of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        """Writes a PNG of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

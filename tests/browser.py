"""A headless Chromium that a test drives, over the pipe that its DevTools protocol offers."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from pages import FLAGS, browser

_FLAGS = ("--headless=new", *FLAGS, "--remote-debugging-pipe")


class Browser:
    """One page of one Chromium; `errors` and `requests` are what it logged and asked for."""

    def __init__(self, folder: Path, width: int = 1280, dark: bool = False) -> None:
        name = browser()
        assert name is not None
        self.profile = folder / "profile"
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        launch = f'exec 3<&{there} 4>&{back}; exec "$0" "$@"'
        command = ["bash", "-c", launch, name, *_FLAGS, f"--user-data-dir={self.profile}"]
        self._process = subprocess.Popen(
            [*command, "about:blank"],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._buffer, self._number = b"", 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(one for one in targets if one["type"] == "page")
        attached = self._call(
            "Target.attachToTarget", session=None, targetId=page["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._call("Browser.close", session=None)
        for end in (self._write, self._read):
            with contextlib.suppress(OSError):
                os.close(end)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **given: Any) -> Any:
        return self._call(method, session=self._session, **given)

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, address: str) -> None:
        """Load a page and wait until its scripts have run."""
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a script's expression, awaited where it is a promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until a script's expression is true."""
        last = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < last, f"{condition} did not come true: {self.errors}"
            time.sleep(0.1)

    def picture(self, file: Path) -> None:
        """A screenshot of the whole page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, session: str | None = None, **given: Any) -> Any:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": given}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._message()
            if heard.get("id") == number:
                assert "error" not in heard, heard
                return heard["result"]
            self._note(heard)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise BrokenPipeError("the browser ended")
            self._buffer += part
        first, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        return found

    def _note(self, heard: dict[str, Any]) -> None:
        method, said = heard.get("method"), heard.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and said["type"] == "error":
            self.errors.append(json.dumps(said["args"])[:500])
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

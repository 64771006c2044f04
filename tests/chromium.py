"""Headless Chromium by its DevTools protocol, over pipes: what a page says, asks for, and looks like.

Also a command, for looking at pages: python tests/chromium.py PAGE.html FOLDER writes screenshots of it, wide and
phone, light and dark, and as it prints.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless-shell")
WIDE, PHONE = (1280, 900), (390, 844)


def binary() -> str | None:
    """Where Chromium is, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Visit:
    """One page at one size: everything that went wrong or out."""

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class Browser:
    """A process that takes commands on one pipe and answers on another."""

    def __init__(self, to: int, answers: int) -> None:
        self.to, self.answers = to, answers
        self.number, self.rest, self.session = 0, b"", ""
        self.visit = Visit()

    def _next(self, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium has said nothing for {seconds} s.")
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended.")
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.visit.complaints.append(told["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.visit.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded":
            self.visit.complaints.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.visit.requests.append(told["request"]["url"])

    def call(self, method: str, seconds: float = 60.0, **params: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self._next(seconds)).get("id") != self.number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path, size: tuple[int, int] = WIDE, scheme: str = "light") -> Visit:
        """Load a page; what it said and asked for."""
        self.visit = Visit()
        phone = size[0] < 600
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media="screen", features=features)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0], height=size[1], deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self._next(60.0).get("method") != "Page.loadEventFired":
            pass
        self.value("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        return self.visit

    def value(self, script: str) -> Any:
        """What an expression is, in the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """The whole page, to its end."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def printed(self, file: Path, scheme: str = "dark") -> None:
        """The page as a PDF on A4, for a reader whose screen is dark: paper is light all the same."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media="print", features=features)
        pdf = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
        file.write_bytes(base64.b64decode(pdf["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium with one empty tab, ended with the block."""
    program = binary()
    assert program is not None
    down, to = os.pipe()
    answers, up = os.pipe()
    # the protocol's pipes are file descriptors 3 (in) and 4 (out); the shell's redirections put ours there
    options = (
        "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking "
        "--disable-component-update --hide-scrollbars --remote-debugging-pipe"
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        line = f'exec "$0" {options} --user-data-dir="$1" 3<&{down} 4>&{up}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", line, program, home],
            pass_fds=(down, up), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, env={**os.environ, "HOME": home},
        )  # fmt: skip
        os.close(down)
        os.close(up)
        try:
            tab = Browser(to, answers)
            target = tab.call("Target.createTarget", url="about:blank")["targetId"]
            tab.session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                tab.call(f"{domain}.enable")
            yield tab
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its own group, started here
            process.wait()
            os.close(to)
            os.close(answers)


def main(page: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as tab:
        for scheme in ("light", "dark"):
            for name, size in (("wide", WIDE), ("phone", PHONE)):
                seen = tab.open(page, size, scheme)
                wide = tab.value("document.documentElement.scrollWidth")
                print(f"{scheme} {name}: {wide} px wide, {seen.complaints or 'no complaints'}, {seen.requests}")
                tab.screenshot(folder / f"{page.stem}-{name}-{scheme}.png")
        tab.printed(folder / f"{page.stem}.pdf")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

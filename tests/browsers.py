"""A page in headless Chromium that a test drives, served from `tests/browser`.

Needs Chromium and the packages of `tests/browser/package-lock.json` (`npm ci`); `.ci/run` installs
both. Where they are missing, tests that need a browser are skipped with that reason.
"""

from __future__ import annotations

import http.server
import itertools
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "browser"
START_S = 60.0


def browser_command() -> list[str]:
    """How the driver is started; skips the test where that is impossible."""
    node = shutil.which("node")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if node is None or chromium is None:
        pytest.skip("needs Chromium and Node.js on this machine")
    if not (FOLDER / "node_modules" / "playwright-core").is_dir():
        pytest.skip("needs the browser packages: npm ci --prefix tests/browser")
    return [node, str(FOLDER / "drive.js"), chromium]


class Browser:
    """One page. `js` expressions are evaluated in it, and awaited."""

    def __init__(self, page: str, *, flags: Sequence[str] = ()) -> None:
        self.events: list[str] = []
        self._page = page
        self._flags = flags
        self._ids = itertools.count(1)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()

    def __enter__(self) -> Browser:
        command = browser_command()
        handler = partial(_QuietFiles, directory=str(FOLDER))
        self._files = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._files.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._files.server_address[1]}/{self._page}"
        self._process = subprocess.Popen(
            [*command, url, *self._flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=FOLDER,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._take(lambda line: line.get("event") == "ready", within_s=START_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # the driver closes the browser, and ends
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._files.shutdown()
        self._files.server_close()

    def reload(self) -> None:
        """Load the page again: everything that ran in it is gone."""
        self._ask(None, within_s=30.0)

    def evaluate(self, js: str, *, within_s: float = 30.0) -> Any:
        """The value of an expression, or AssertionError with the page's error."""
        return self._ask(js, within_s=within_s)

    def _ask(self, js: str | None, *, within_s: float) -> Any:
        number = next(self._ids)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "js": js}) + "\n")
        self._process.stdin.flush()
        line = self._take(lambda line: line.get("id") == number, within_s=within_s)
        assert "error" not in line, line["error"]
        return line["value"]

    def _take(self, fits: Any, *, within_s: float) -> dict[str, Any]:
        while True:
            try:
                line = self._answers.get(timeout=within_s)
            except queue.Empty:
                raise AssertionError(f"the browser did not answer; it said {self.events}") from None
            if fits(line):
                return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "event" in line:
                self.events.append(line["event"])
            self._answers.put(line)


class _QuietFiles(http.server.SimpleHTTPRequestHandler):
    """The folder's files, without a line for each."""

    def log_message(self, format: str, *args: Any) -> None:
        return

"""Publishers of a bench, as processes that can be frozen, killed and told to lose packets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

from cameras.footage import Footage
from cameras.scene import Failed
from liveedge.core.tasks import OwnedThread

Way: TypeAlias = Literal["whip", "livekit"]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
POLL_S = 0.02
MAX_EVENTS = 1000
HERE = Path(__file__).parent


class Publisher:
    """One publisher of one stream: `publish` is what the server answered to its creation."""

    def __init__(
        self, way: Way, publish: dict[str, Any], footage: Footage, *, flags: Sequence[str] = ()
    ) -> None:
        url = publish["whip_url"] if way == "whip" else publish["url"]
        shape = json.dumps(asdict(footage.shape))
        program = str(HERE / f"{way}_camera.py")
        self._process = subprocess.Popen(
            [sys.executable, program, url, publish["token"], str(footage.path), shape, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._reader = OwnedThread(f"bench-{way}", self._read)
        self._reader.start()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def event(self, key: str) -> dict[str, Any]:
        """The first event with that key, once it is there."""
        waiting = threading.Event()
        for _ in range(round(START_LIMIT_S / POLL_S)):
            for event in list(self._events):
                if key in event:
                    return event
            if self.has_ended and not self._reader.alive:
                break
            waiting.wait(POLL_S)
        raise Failed(f"the publisher never told {key!r}; it told {list(self._events)[-2:]}")

    def lose(self, share: float) -> None:
        self._tell(f"loss {share}")

    def leave(self) -> None:
        """Say good-bye and end."""
        self._tell("leave")
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.stop()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self, _stopping: threading.Event) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._events.append(json.loads(line))

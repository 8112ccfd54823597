"""A camera of a bench: the RTSP server of `rtsp_server`, as a process that can be frozen and killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from cameras.footage import Footage

SERVER = Path(__file__).with_name("rtsp_server.py")
SYSTEM_PYTHON = "/usr/bin/python3"
NEEDED = (
    "gir1.2-gst-rtsp-server-1.0 gir1.2-gst-plugins-base-1.0 python3-gi gstreamer1.0-plugins-base"
    " gstreamer1.0-plugins-good gstreamer1.0-plugins-bad"
)


class RtspCamera:
    """Plays loops at its mount points; its port stays the same over restarts."""

    def __init__(self, mounts: Mapping[str, Footage], *, login: str = "") -> None:
        self._mounts = [
            word for path, loop in mounts.items() for word in (f"/{path}", str(loop.path))
        ]
        self._login = ["--user", login] if login else []
        self.port = 0
        self.start()

    def __enter__(self) -> RtspCamera:
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

    def start(self) -> None:
        arguments = [*self._login, "127.0.0.1", str(self.port), *self._mounts]
        self._process = subprocess.Popen(
            [SYSTEM_PYTHON, str(SERVER), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            raise SystemExit(f"no GStreamer RTSP server: apt-get install {NEEDED}")
        self.port = int(line)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

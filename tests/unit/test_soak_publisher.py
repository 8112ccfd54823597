"""The process that publishes for a camera of a soak ends with the soak, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

SOAK = """
import time
from liveedge.bench.soak.fleet import Camera, Publisher
from liveedge.bench.soak.options import SoakOptions
camera = Camera(slot=0, kind="push", stream_id="none", seed=2_000_000)
publisher = Publisher("http://127.0.0.1:9", camera, SoakOptions(hours=1.0))
publisher.stop()
print(publisher._process.pid, flush=True)
time.sleep(600)
"""


def state(pid: int) -> str:
    """`T` of a stopped process, `gone` of one that has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    return stat.rpartition(")")[2].split()[0].replace("Z", "gone")


def until(pid: int, wanted: str) -> None:
    for _ in range(3000):
        if state(pid) == wanted:
            return
        threading.Event().wait(0.01)
    pytest.fail(f"process {pid} is not {wanted} but {state(pid)}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_camera_that_is_silent_does_not_outlive_a_soak_that_is_killed():
    soak = subprocess.Popen([sys.executable, "-c", SOAK], stdout=subprocess.PIPE, text=True)
    assert soak.stdout is not None
    pid = int(soak.stdout.readline())
    try:
        until(pid, "T")  # a signal takes effect when the process runs next
        soak.kill()
        until(pid, "gone")
    finally:
        soak.kill()
        soak.wait()
        soak.stdout.close()
        if state(pid) != "gone":
            os.kill(pid, signal.SIGKILL)

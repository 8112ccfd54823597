"""Real cameras over RTSP, played by a GStreamer server in another process (cases 27 and 28)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from liveedge.core.clock import SystemClock
from liveedge.core.tasks import OwnedThread
from liveedge.media.pull import PullSettings
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.rtsp import RtspSource
from liveedge.media.supervisor import Supervisor, SupervisorSettings
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import ListTarget
from tests.media_files import encode_numbered
from tests.media_sinks import ListSink

SCRIPT = Path(__file__).parents[1] / "rtsp_server.py"
SYSTEM_PYTHON = "/usr/bin/python3"
NEEDED = (
    "gir1.2-gst-rtsp-server-1.0 python3-gi gstreamer1.0-plugins-base gstreamer1.0-plugins-good"
    " gstreamer1.0-plugins-ugly"
)
PICTURE = "videotestsrc is-live=true pattern=smpte ! video/x-raw,width=320,height=240,framerate=15/1,format=I420"
H264 = "x264enc tune=zerolatency speed-preset=ultrafast key-int-max={gop} ! rtph264pay"
PIPELINES = {
    "h264": f"{PICTURE} ! {H264.format(gop=15)} name=pay0 pt=96",
    "mjpeg": f"{PICTURE} ! jpegenc ! rtpjpegpay name=pay0 pt=26",
}


def _server_is_missing() -> str | None:
    probe = (
        "import gi; gi.require_version('GstRtspServer', '1.0');"
        "from gi.repository import Gst, GstRtspServer; Gst.init(None);"
        "names = ['x264enc', 'jpegenc', 'rtph264pay', 'rtph265pay', 'matroskademux', 'videotestsrc'];"
        "assert all(map(Gst.ElementFactory.find, names))"
    )
    if shutil.which(SYSTEM_PYTHON) is not None:
        done = subprocess.run([SYSTEM_PYTHON, "-c", probe], capture_output=True, check=False)
        if done.returncode == 0:
            return None
    return f"no GStreamer RTSP server; apt-get install {NEEDED}"


class Camera:
    """A server process; `stop` freezes it, `cont` lets it go on."""

    def __init__(self, pipelines: dict[str, str], *, port: int = 0, user: str = "") -> None:
        mounts = [word for path, pipeline in pipelines.items() for word in (f"/{path}", pipeline)]
        login = ["--user", *user.split(":")] if user else []
        self.process = subprocess.Popen(
            [SYSTEM_PYTHON, str(SCRIPT), *login, "127.0.0.1", str(port), *mounts],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def installed() -> None:
    missing = _server_is_missing()
    if missing is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture
def start(installed: None) -> Iterator[Callable[..., Camera]]:
    cameras: list[Camera] = []

    def make(pipelines: dict[str, str], *, port: int = 0, user: str = "") -> Camera:
        cameras.append(Camera(pipelines, port=port, user=user))
        return cameras[-1]

    yield make
    for camera in cameras:
        camera.close()


def source(port: int, path: str, *, login: str = "") -> RtspSource:
    return RtspSource(
        f"rtsp://{login}127.0.0.1:{port}/{path}",
        policy=PullPolicy(),
        clock=SystemClock(),
        settings=PullSettings(open_timeout_s=10, read_timeout_s=1),
    )


def watch(camera: RtspSource, n_frames: int) -> ListSink:
    stopping = threading.Event()
    sink = ListSink(FakeClock(), stop_after=n_frames, stopping=stopping)
    thread = OwnedThread("watch", lambda _: camera.run(sink, stopping))
    thread.start()
    until(lambda: stopping.is_set() or not thread.alive)
    assert thread.stop(5)
    assert thread.error is None
    return sink


def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("the condition never came true")


@pytest.mark.parametrize("codec", ["h264", "mjpeg"])
def test_a_camera_of_each_codec_delivers_clean_upright_frames(
    start: Callable[..., Camera], codec: str
) -> None:
    camera = start({"live": PIPELINES[codec]})
    sink = watch(source(camera.port, "live"), 8)
    assert sink.states == [("waiting_for_keyframe", "connected")]
    assert sink.codec == codec
    assert not any(sink.corrupt)
    for pixels in sink.pixels:
        rgb = pixels.rgb().astype(int)
        assert rgb.shape == (240, 320, 3)
        # The test picture's second bar is yellow, its sixth red.
        assert np.abs(rgb[60, 68] - (255, 255, 0)).max() < 40
        assert np.abs(rgb[60, 250] - (255, 0, 0)).max() < 40
    spacing = np.diff([time_s for time_s in sink.source_times_s if time_s is not None])
    assert spacing.mean() == pytest.approx(1 / 15, rel=0.5)


def test_an_h265_camera_delivers_its_frames_in_order(
    start: Callable[..., Camera], tmp_path: Path
) -> None:
    path = tmp_path / "h265.mkv"
    like_a_camera = {"x265-params": "log-level=none:pools=none:bframes=0", "preset": "ultrafast"}
    path.write_bytes(
        encode_numbered(90, fps=15, codec="libx265", container="matroska", gop=15, **like_a_camera)
    )
    play = f"filesrc location={path} ! matroskademux ! rtph265pay name=pay0 pt=96"
    camera = start({"live": play})
    sink = watch(source(camera.port, "live"), 20)
    assert sink.codec == "hevc"
    numbers = [number for number in sink.numbers() if number is not None]
    assert len(numbers) == 20
    assert numbers == list(range(numbers[0], numbers[0] + 20))
    spacing = np.diff([time_s for time_s in sink.source_times_s if time_s is not None])
    assert spacing == pytest.approx(1 / 15, abs=0.005)


def test_a_viewer_in_the_middle_of_a_group_sees_nothing_before_the_key_frame(
    start: Callable[..., Camera],
) -> None:
    camera = start({"live": f"{PICTURE} ! {H264.format(gop=45)} name=pay0 pt=96"})
    seen = ListSink(FakeClock())
    keep = OwnedThread("keep", lambda stopping: source(camera.port, "live").run(seen, stopping))
    keep.start()
    until(lambda: len(seen.pixels) >= 20)  # the pipeline is shared and now in mid-group
    second = watch(source(camera.port, "live"), 3)
    assert keep.stop(5)
    reference = seen.pixels[19].rgb().astype(int)
    for pixels in second.pixels:
        still = np.s_[:150]  # the lower part of the test picture is noise
        assert np.abs(pixels.rgb().astype(int) - reference)[still].mean() < 8


def test_a_camera_with_a_password_opens_with_it_and_says_401_without(
    start: Callable[..., Camera],
) -> None:
    camera = start({"live": PIPELINES["mjpeg"]}, user="bob:pa/ss")
    assert len(watch(source(camera.port, "live", login="bob:pa%2Fss@"), 2).pixels) == 2
    supervisor = Supervisor(
        source(camera.port, "live", login="bob:wrong@"),
        ListTarget(FakeClock()),
        clock=SystemClock(),
        name="locked",
    )
    supervisor.start()
    with pytest.raises(Exception, match=r"401 from the camera.*\(1 attempt\)"):
        supervisor.wait_opened(10)
    assert supervisor.stop()


def test_a_frozen_camera_is_noticed_and_comes_back_with_its_index_going_on(
    start: Callable[..., Camera],
) -> None:
    camera = start({"live": PIPELINES["mjpeg"]})
    clock = SystemClock()
    target = ListTarget(clock)
    supervisor = Supervisor(
        source(camera.port, "live"),
        target,
        clock=clock,
        name="frozen",
        settings=SupervisorSettings(backoff_first_s=0.1, jitter=0.0),
    )
    supervisor.start()
    supervisor.wait_opened(30)
    until(lambda: len(target.frames) >= 3)
    camera.signal(signal.SIGSTOP)
    until(lambda: supervisor.status().health == "reconnecting")
    assert supervisor.status().reason in ("timed out", "no frame for 5 s")
    n_before = len(target.frames)
    camera.signal(signal.SIGCONT)
    until(lambda: len(target.frames) >= n_before + 3)
    assert supervisor.status().health == "live"
    camera.close()
    until(lambda: supervisor.status().health == "reconnecting")
    n_before = len(target.frames)
    start({"live": PIPELINES["mjpeg"]}, port=camera.port)
    until(lambda: len(target.frames) >= n_before + 3)
    assert [frame.index for frame in target.frames] == list(range(len(target.frames)))
    assert supervisor.status().reconnects >= 2
    assert supervisor.stop()

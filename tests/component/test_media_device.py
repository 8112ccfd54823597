"""Cameras of this machine. None is needed: the opening is the test's, and its failures the kernel's."""

from __future__ import annotations

import errno
import io
import threading
from pathlib import Path

import av
import pytest
from av.container import InputContainer

from liveedge.core.errors import SourceUnavailable
from liveedge.media.device import DeviceOptions, DeviceSource, parse_device_url
from liveedge.media.source import SourceLost
from liveedge.testing.clock import FakeClock
from tests.media_files import encode_numbered
from tests.media_sinks import ListSink, run_to_end


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("/dev/video0", DeviceOptions(path="/dev/video0")),
        ("device:///dev/video12", DeviceOptions(path="/dev/video12")),
        (
            "v4l2:///dev/video0?size=1280x720&fps=29.97&format=mjpeg",
            DeviceOptions(path="/dev/video0", size="1280x720", fps="29.97", format="mjpeg"),
        ),
        (
            "/dev/v4l/by-id/usb-Cam_1:2-video-index0",
            DeviceOptions(path="/dev/v4l/by-id/usb-Cam_1:2-video-index0"),
        ),
    ],
)
def test_urls_name_a_device_and_what_is_asked_of_it(url: str, options: DeviceOptions) -> None:
    assert parse_device_url(url) == options


@pytest.mark.parametrize(
    "url",
    [
        "",
        "0",
        "/dev/sda",
        "/dev/video",
        "/dev/video0/../mem",
        "/dev/v4l/by-id/../../mem",
        "/dev/v4l/by-id/%2e%2e",
        "file:///dev/video0",
        "device://host/dev/video0",
        "/dev/video0?size=big",
        "/dev/video0?size=0x0",
        "/dev/video0?fps=-1",
        "/dev/video0?format=lavfi",
        "/dev/video0?framerate=30",
        "/dev/video0?fps=5&fps=30",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(SourceUnavailable, match=r"^device: "):
        parse_device_url(url)


@pytest.mark.parametrize("codec", ["mjpeg", "rawvideo"])
def test_frames_come_as_the_device_gives_them(codec: str) -> None:
    pix_fmt = {"mjpeg": "yuvj420p", "rawvideo": "yuv420p"}[codec]
    video = encode_numbered(8, codec=codec, container="avi", pix_fmt=pix_fmt)
    asked: list[tuple[str, dict[str, str]]] = []

    def opener(path: str, options: dict[str, str]) -> InputContainer:
        asked.append((path, options))
        return av.open(io.BytesIO(video), "r")

    source = DeviceSource(
        DeviceOptions(path="/dev/video0", size="320x240", fps="30", format="mjpeg"), opener=opener
    )
    sink = ListSink(FakeClock())
    with pytest.raises(SourceLost, match="no more frames"):
        run_to_end(source, sink)
    assert sink.numbers() == list(range(8))
    assert sink.codec == codec
    path, options = asked[0]
    assert path == "/dev/video0"
    assert options["video_size"] == "320x240"
    assert (options["framerate"], options["input_format"]) == ("30", "mjpeg")


def test_a_stop_ends_it_between_frames() -> None:
    video = encode_numbered(8, codec="mjpeg", container="avi", pix_fmt="yuvj420p")
    source = DeviceSource(
        DeviceOptions(path="/dev/video0"), opener=lambda *_: av.open(io.BytesIO(video), "r")
    )
    stopping = threading.Event()
    sink = ListSink(FakeClock(), stop_after=3, stopping=stopping)
    source.run(sink, stopping)
    assert len(sink.pixels) == 3


@pytest.mark.parametrize(
    ("number", "why", "hopeless"),
    [
        (errno.ENOENT, "no such device", True),
        (errno.EACCES, "no permission", True),
        (errno.EBUSY, "in use by another program", False),
        (errno.ENODEV, "unplugged", False),
        (errno.ENOTTY, "not a camera", True),
        (errno.EINVAL, "refuses this size", True),
        (errno.ENOMEM, "the device failed", False),
    ],
)
def test_each_failure_of_the_kernel_has_its_reason(number: int, why: str, hopeless: bool) -> None:
    def opener(*_: object) -> InputContainer:
        raise OSError(number, "said by the kernel", "/dev/video0")

    source = DeviceSource(DeviceOptions(path="/dev/video0"), opener=opener)
    with pytest.raises(SourceLost, match=why) as caught:
        run_to_end(source, ListSink(FakeClock()))
    assert caught.value.hopeless is hopeless


def test_the_real_opener_says_what_is_wrong_with_a_missing_device() -> None:
    assert not Path("/dev/video987").exists()
    with pytest.raises(SourceLost, match="no such device"):
        run_to_end(DeviceSource(DeviceOptions(path="/dev/video987")), ListSink(FakeClock()))


def test_what_is_not_a_camera_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(SourceLost, match="not a camera"):
        run_to_end(DeviceSource(DeviceOptions(path="/dev/null")), ListSink(FakeClock()))

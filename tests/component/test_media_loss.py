"""No smeared frame is shown as clean: what is lost on the way is noticed, and its remains flagged.

Cases 27 and 31 against cameras whose every packet the test controls.
"""

from __future__ import annotations

import dataclasses
import io
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from liveedge.core.clock import SystemClock
from liveedge.frames.timeline import Timeline
from liveedge.media.coded import CodedTrail
from liveedge.media.decode import DecodedFrame, VideoLimits, VideoReader
from liveedge.media.delivery import deliver
from liveedge.media.pixels import AvPixels
from liveedge.media.pull import PullSettings
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.rtsp import RtspSource
from liveedge.media.source import SourceLost
from liveedge.testing.clock import FakeClock
from tests.media_files import encode_numbered, encode_video, number_of, numbered, with_rotation
from tests.media_sinks import ListSink, run_to_end
from tests.rtp_camera import RtpCamera, Video, loses, loses_whole, video_of

FPS = 30
SAME = 0.5  # mean difference of two decodings of the same bytes; a smear is far above
QUIET = "log-level=none:pools=none"
ENCODERS: dict[str, dict[str, Any]] = {
    "h264": {"codec": "libx264", "tune": "zerolatency"},
    "h264 in slices": {"codec": "libx264", "tune": "zerolatency", "x264-params": "slices=3"},
    "h264 of many references": {"codec": "libx264", "bf": "0", "refs": "4", "preset": "faster"},
    "h264 refreshed in stripes": {
        "codec": "libx264",
        "tune": "zerolatency",
        "intra-refresh": "1",
    },
    "h265": {
        "codec": "libx265",
        "preset": "ultrafast",
        "x265-params": f"{QUIET}:bframes=0",
    },
}


@dataclasses.dataclass(frozen=True)
class Clip:
    """A video, and what every picture of it looks like whole."""

    data: bytes
    video: Video
    pictures: list[Any]


def read(data: bytes) -> tuple[list[DecodedFrame], VideoReader]:
    with av.open(io.BytesIO(data), "r") as file:
        reader = VideoReader(file, limits=VideoLimits(), keeps_packets=True)
        return [frame for frame in reader.frames() if frame is not None], reader


def planes(pixels: object) -> Any:
    assert isinstance(pixels, AvPixels)
    return pixels.frame.to_ndarray().astype(int)


@pytest.fixture(scope="module")
def clips() -> Callable[[str], Clip]:
    made: dict[str, Clip] = {}

    def clip(name: str) -> Clip:
        if name not in made:
            size = {"width": 640, "height": 480, "crf": "18"}
            options: dict[str, Any] = {**size, **ENCODERS[name]}
            data = encode_numbered(60, fps=FPS, container="mpegts", gop=20, **options)
            frames, _ = read(data)
            made[name] = Clip(data, video_of(data, fps=FPS), [planes(f.pixels) for f in frames])
        return made[name]

    return clip


@pytest.fixture
def watch() -> Iterator[Callable[..., ListSink]]:
    cameras: list[RtpCamera] = []

    def run(video: Video, **options: Any) -> ListSink:
        cameras.append(RtpCamera(video, **options))
        sink = ListSink(FakeClock())
        source = RtspSource(
            cameras[-1].url,
            policy=PullPolicy(),
            clock=SystemClock(),
            settings=PullSettings(open_timeout_s=10, read_timeout_s=5),
        )
        with pytest.raises(SourceLost, match="closed the connection"):
            run_to_end(source, sink)
        return sink

    yield run
    for camera in cameras:
        camera.close()


def smeared(sink: ListSink, clip: Clip, *, first: int = 0) -> list[tuple[int, bool]]:
    """The pictures that are not what was sent, and whether they say so."""
    found = []
    for pixels, time_s, corrupt in zip(sink.pixels, sink.source_times_s, sink.corrupt, strict=True):
        assert time_s is not None
        n = first + round(time_s * FPS)
        if np.abs(planes(pixels) - clip.pictures[n]).mean() > SAME:
            found.append((n, corrupt))
    return found


CAMERAS = ["h264", "h264 in slices", "h264 of many references", "h265"]


@pytest.mark.parametrize("name", CAMERAS)
def test_nothing_lost_is_nothing_flagged(
    watch: Callable[..., ListSink], clips: Callable[[str], Clip], name: str
) -> None:
    clip = clips(name)
    sink = watch(clip.video)
    assert smeared(sink, clip) == []
    assert len(sink.pixels) == 60
    assert not any(sink.corrupt)
    assert all(coded is not None for coded in sink.coded)


@pytest.mark.parametrize("name", CAMERAS)
def test_one_lost_packet_is_noticed_and_over_with_the_next_key_frame(
    watch: Callable[..., ListSink], clips: Callable[[str], Clip], name: str
) -> None:
    clip = clips(name)
    for picture in range(3, 40, 6):
        sink = watch(clip.video, sends=loses(picture=picture, part=picture))
        assert [n for n, says_so in smeared(sink, clip) if not says_so] == []
        assert any(sink.corrupt) or len(sink.pixels) < 60
        assert len(sink.pixels) + sink.n_broken == 60
        next_key = -(-(picture + 2) // 20) * 20
        late = [
            corrupt
            for time_s, corrupt in zip(sink.source_times_s, sink.corrupt, strict=True)
            if time_s is not None and round(time_s * FPS) >= next_key
        ]
        assert not any(late)


@pytest.mark.parametrize("name", CAMERAS)
def test_five_percent_of_all_packets_lost_shows_no_smear_as_clean(
    watch: Callable[..., ListSink], clips: Callable[[str], Clip], name: str
) -> None:
    """Case 27."""
    clip = clips(name)
    for seed in range(3):
        chance = random.Random(seed)

        def sends(
            number: int, payloads: list[bytes], chance: random.Random = chance
        ) -> list[bytes]:
            return [p for p in payloads if number == 0 or chance.random() > 0.05]

        sink = watch(clip.video, sends=sends)
        assert [n for n, says_so in smeared(sink, clip) if not says_so] == []
        assert sum(sink.corrupt) + 60 - len(sink.pixels) > 5


@pytest.mark.parametrize("name", CAMERAS)
def test_whole_pictures_lost_are_noticed(
    watch: Callable[..., ListSink], clips: Callable[[str], Clip], name: str
) -> None:
    clip = clips(name)
    sink = watch(clip.video, sends=loses_whole([10, 11]))
    assert [n for n, says_so in smeared(sink, clip) if not says_so] == []
    assert any(sink.corrupt) or len(sink.pixels) < 58
    assert len(sink.pixels) + sink.n_broken == 58  # case 34: what a decoder withholds is counted


@pytest.mark.parametrize("name", CAMERAS)
@pytest.mark.parametrize("out_of_band_sets", [True, False])
def test_who_joins_in_the_middle_of_a_group_sees_nothing_before_the_key_frame(
    watch: Callable[..., ListSink],
    clips: Callable[[str], Clip],
    name: str,
    out_of_band_sets: bool,
) -> None:
    """Case 27."""
    clip = clips(name)
    sink = watch(clip.video, first=13, out_of_band_sets=out_of_band_sets)
    assert sink.n_dropped == {"before_key_frame": 7}
    assert len(sink.pixels) == 40
    first_s = sink.source_times_s[0]
    assert first_s is not None
    late = 20 - 13 - round(first_s * FPS)
    assert smeared(sink, clip, first=13 + late) == []
    assert not any(sink.corrupt)


def test_who_joins_a_camera_without_key_frames_begins_where_a_refresh_begins(
    watch: Callable[..., ListSink], clips: Callable[[str], Clip]
) -> None:
    clip = clips("h264 refreshed in stripes")
    sink = watch(clip.video, first=13)
    assert sink.n_dropped["before_key_frame"] == 7
    assert len(sink.pixels) + sink.n_broken == 40
    assert not any(sink.corrupt[-10:])
    sent = clip.pictures[-len(sink.pixels) :]
    for pixels, whole, corrupt in zip(sink.pixels, sent, sink.corrupt, strict=True):
        assert corrupt or np.abs(planes(pixels) - whole).mean() <= SAME


def test_a_group_of_300_joined_late_waits_for_its_end(watch: Callable[..., ListSink]) -> None:
    data = encode_numbered(310, container="mpegts", gop=300, codec="libx264", tune="zerolatency")
    sink = watch(video_of(data, fps=FPS), first=150)
    assert sink.numbers() == list(range(300, 310))
    assert sink.n_dropped == {"before_key_frame": 150}


def test_a_camera_without_key_frames_is_clean_once_every_stripe_was_refreshed(
    watch: Callable[..., ListSink], clips: Callable[[str], Clip]
) -> None:
    clip = clips("h264 refreshed in stripes")
    sink = watch(clip.video, sends=loses_whole([5, 6]))
    found = smeared(sink, clip)
    assert [n for n, says_so in found if not says_so] == []
    assert found
    assert not any(sink.corrupt[-10:])


def test_a_clock_that_leaps_or_wraps_loses_no_frame(
    watch: Callable[..., ListSink], clips: Callable[[str], Clip]
) -> None:
    """Case 31: at picture 20 the clock falls to zero, at 30 one stamp is far off, at 40 it wraps."""
    clip = clips("h264")

    def stamp(n: int) -> int:
        if n == 30:
            return -9_800 * 90_000
        base = 2**32 - 123_456 - 40 * 3000 if n >= 30 else 0 if n >= 20 else 5_000_000
        return base + n * 3000

    sink = watch(clip.video, stamps=stamp)
    assert len(sink.pixels) == 60
    assert not any(sink.corrupt)
    timeline = Timeline()
    for n, claimed_s in enumerate(sink.source_times_s):
        stamped_s = timeline.stamp_ms(arrived_s=n / FPS, source_s=claimed_s) / 1000
        assert abs(stamped_s - n / FPS) < 0.05
    for pixels, whole in zip(sink.pixels, clip.pictures, strict=True):
        assert np.abs(planes(pixels) - whole).mean() <= SAME


def test_fifty_sessions_leave_no_thread_and_no_socket_behind(
    watch: Callable[..., ListSink],
) -> None:
    """Case 30."""
    video = video_of(encode_numbered(4, container="mpegts", tune="zerolatency"), fps=FPS)
    camera = RtpCamera(video)

    def session() -> int:
        sink = ListSink(FakeClock())
        source = RtspSource(camera.url, policy=PullPolicy(), clock=SystemClock())
        with pytest.raises(SourceLost):
            source.run(sink, threading.Event())
        return len(sink.pixels)

    assert [session() for _ in range(3)] == [4, 4, 4]
    n_before = (len(list(Path("/proc/self/fd").iterdir())), threading.active_count())
    assert sum(session() for _ in range(50)) == 200
    n_after = (len(list(Path("/proc/self/fd").iterdir())), threading.active_count())
    camera.close()
    assert n_after[0] <= n_before[0] + 2  # the last connection may still be closing
    assert n_after[1] <= n_before[1]


class Breaking:
    """Bytes that fail instead of ending, as a connection does."""

    def __init__(self, data: bytes) -> None:
        self._rest = io.BytesIO(data)

    def read(self, n_bytes: int) -> bytes:
        data = self._rest.read(n_bytes)
        if not data:
            raise ConnectionResetError
        return data


def test_frames_that_the_decoder_held_when_the_connection_broke_are_counted() -> None:
    """Case 34: received = used + dropped."""
    data = encode_numbered(90, gop=90, container="mpegts", bf="2")
    soon = {"probesize": "20000", "analyzeduration": "100000"}
    n_packets = 0
    with av.open(Breaking(data), "r", options=soon) as file, suppress(ConnectionResetError):
        for packet in file.demux(file.streams.video[0]):
            n_packets += packet.size > 0
    sink = ListSink(FakeClock())
    with av.open(Breaking(data), "r", options=soon) as file, pytest.raises(ConnectionResetError):
        deliver(VideoReader(file, limits=VideoLimits()), sink, threading.Event())
    assert len(sink.pixels) < n_packets
    assert sink.n_dropped == {"cut_off": n_packets - len(sink.pixels)}


def test_what_ffmpeg_says_of_damage_reaches_nobody(
    watch: Callable[..., ListSink],
    clips: Callable[[str], Clip],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(0)
    assert any(watch(clips("h264").video, sends=loses(picture=5, part=0)).corrupt)
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""
    assert "libav" not in caplog.text


# ── the packets behind the frames ──


def replayed(frames: list[DecodedFrame]) -> Iterator[tuple[Any, Any]]:
    """Every frame beside what a fresh decoder makes of its packets, begun anew at every key frame."""
    decoder: Any = None
    for frame in frames:
        coded = frame.coded
        assert coded is not None
        if coded.is_key:
            decoder = av.CodecContext.create(coded.params.codec, "r")
            decoder.thread_count = 1
            decoder.extradata = coded.params.extradata or None
        given = [f for packet in coded.packets for f in _decoded(decoder, packet)]
        yield planes(frame.pixels), given[-1].to_ndarray().astype(int)


def _decoded(decoder: Any, packet: bytes) -> list[Any]:
    try:
        return list(decoder.decode(av.Packet(packet)))
    except av.FFmpegError:
        return []


@pytest.mark.parametrize("container", ["mpegts", "matroska", "flv"])
@pytest.mark.parametrize("name", ["h264", "h264 in slices", "h264 of many references", "h265"])
def test_a_fresh_decoder_makes_the_same_frames_of_the_packets(name: str, container: str) -> None:
    data = encode_numbered(45, container=container, gop=15, **ENCODERS[name])
    frames, _ = read(data)
    assert len(frames) == 45
    assert [n for n, f in enumerate(frames) if f.coded and f.coded.is_key] == [0, 15, 30]
    assert len({id(f.coded.params) for f in frames if f.coded}) == 1
    for frame, again in replayed(frames):
        assert np.array_equal(frame, again)


@pytest.mark.parametrize(
    ("codec", "container", "options"),
    [
        ("libvpx", "matroska", {"deadline": "realtime", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "8"}),
        ("libvpx-vp9", "matroska", {"deadline": "realtime", "cpu-used": "8"}),
        ("mjpeg", "avi", {"pix_fmt": "yuvj420p"}),
    ],
)  # fmt: skip
def test_other_codecs_keep_their_packets_too(
    codec: str, container: str, options: dict[str, Any]
) -> None:
    frames, _ = read(encode_numbered(30, codec=codec, container=container, gop=10, **options))
    assert len(frames) == 30
    for frame, again in replayed(frames):
        assert np.array_equal(frame, again)


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("container", ["mpegts", "matroska"])
def test_reordered_frames_have_no_packets(codec: str, container: str) -> None:
    more: dict[str, Any] = (
        {"x265-params": f"{QUIET}:bframes=3"} if codec == "libx265" else {"preset": "fast"}
    )
    data = encode_numbered(30, codec=codec, container=container, bf="3", gop=15, **more)
    frames, _ = read(data)
    assert [number_of(frame.pixels.rgb()) for frame in frames] == list(range(30))
    assert all(frame.coded is None for frame in frames)


def test_damaged_packets_travel_with_the_frame_that_follows() -> None:
    """A later decoder must see them to arrive at the same picture."""
    data = encode_numbered(30, container="matroska", gop=15, **ENCODERS["h264"])
    at = data.index(_packets(data)[5])
    broken = data[: at + 10] + b"\xff" * 40 + data[at + 50 :]
    frames, reader = read(broken)
    keyed = [f for f in frames if f.coded is not None]
    assert reader.counts.broken or any(frame.corrupt for frame in frames)
    assert frames[-1].corrupt is False
    assert len(keyed) >= 20
    for frame, again in _replayed_runs(keyed):
        assert np.array_equal(frame, again)


def _packets(data: bytes) -> list[bytes]:
    with av.open(io.BytesIO(data), "r") as file:
        return [bytes(packet) for packet in file.demux(video=0) if packet.size]


def _replayed_runs(frames: list[DecodedFrame]) -> Iterator[tuple[Any, Any]]:
    first = next(n for n, f in enumerate(frames) if f.coded is not None and f.coded.is_key)
    return replayed(frames[first:])


def test_parameter_sets_sent_once_are_put_before_each_key_frame(
    watch: Callable[..., ListSink],
) -> None:
    """A camera changes its size and tells the new sets once: every later group needs them."""
    options: dict[str, Any] = {"container": "mpegts", "gop": 10, **ENCODERS["h264"]}
    small = video_of(encode_numbered(20, **options), fps=FPS)
    large = video_of(encode_numbered(30, width=640, height=480, **options), fps=FPS)
    later = tuple(
        tuple(unit for unit in units if not large.is_set(unit)) for units in large.pictures[1:]
    )
    pictures = (*small.pictures, large.pictures[0], *later)
    sink = watch(Video("h264", pictures, FPS))
    assert [pixels.width for pixels in sink.pixels] == [320] * 20 + [640] * 30
    assert [n for n, coded in enumerate(sink.coded) if coded and coded.is_key] == [
        *(0, 10, 20, 30, 40)
    ]
    frames = [
        DecodedFrame(pixels, 0.0, corrupt=False, coded=coded)
        for pixels, coded in zip(sink.pixels, sink.coded, strict=True)
        if isinstance(pixels, AvPixels)
    ]
    for frame, again in replayed(frames):
        assert np.array_equal(frame, again)


def test_a_turned_video_has_the_packets_of_its_pictures_as_stored() -> None:
    frames, _ = read(with_rotation(encode_numbered(5, bf="0", tune="zerolatency"), 90))
    assert [frame.pixels.turn.swap for frame in frames] == [True] * 5
    for frame, again in replayed(frames):
        assert np.array_equal(frame, again)


def test_a_clip_keeps_no_packets() -> None:
    with av.open(io.BytesIO(encode_video([(0, numbered(0))])), "r") as file:
        reader = VideoReader(file, limits=VideoLimits())
        frames = [frame for frame in reader.frames() if frame is not None]
    assert [frame.coded for frame in frames] == [None]


def test_packets_without_frames_are_not_kept_for_ever() -> None:
    trail = CodedTrail("h264", b"")
    trail.feed(b"key", is_key=True)
    assert trail.take() is not None
    for _ in range(1000):
        trail.feed(b"broken", is_key=False)
    assert trail.n_waiting <= 32
    assert trail.take() is None
    trail.feed(b"key", is_key=True)
    coded = trail.take()
    assert coded is not None
    assert (coded.packets, coded.is_key) == ((b"key",), True)

"""Whole clips become frames with their true times (cases 10, 11, 12, 14 and 15)."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import av
import numpy as np
import pytest

from liveedge.core.errors import MediaInvalid, MediaTooLarge
from liveedge.media.clip import Clip, ClipLimits, decode_clip
from liveedge.media.pixels import Turn
from tests.media_files import (
    Rgb,
    encode_changing,
    encode_numbered,
    encode_video,
    flip,
    grey_jpeg,
    jpeg_clip,
    number_of,
    numbered,
    packets_of,
    with_rotation,
)

LIMITS = ClipLimits()
WHAT = "messages[0].content[2].video_url"


def decode(data: bytes, limits: ClipLimits = LIMITS, max_fps: float | None = None) -> Clip:
    return decode_clip(data, limits=limits, what=WHAT, max_fps=max_fps)


def numbers(clip: Clip) -> list[int | None]:
    return [number_of(frame.pixels.rgb()) for frame in clip.frames]


def times(clip: Clip) -> list[float]:
    return [round(frame.time_s, 4) for frame in clip.frames]


@pytest.mark.parametrize(
    ("codec", "container", "name"),
    [
        ("libx264", "mp4", "h264"),
        ("libx264", "mov", "h264"),
        ("libx264", "matroska", "h264"),
        ("libx264", "mpegts", "h264"),
        ("mjpeg", "avi", "mjpeg"),
        ("libx265", "mp4", "hevc"),
        ("libvpx", "webm", "vp8"),
    ],
)
def test_every_frame_of_each_common_kind_comes_out_in_order(
    codec: str, container: str, name: str
) -> None:
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    options = {"x265-params": "log-level=none:pools=none"} if codec == "libx265" else {}
    if codec == "libvpx":
        options = {"deadline": "realtime", "cpu-used": "16", "b": "2M"}
    if codec == "mjpeg":
        options = {"qmin": "2", "qmax": "2"}
    data = encode_numbered(12, fps=25, codec=codec, container=container, pix_fmt=pix_fmt, **options)
    clip = decode(data)
    assert numbers(clip) == list(range(12))
    assert times(clip) == pytest.approx([n / 25 for n in range(12)], abs=1e-3)
    assert (clip.codec, clip.n_decoded, clip.n_broken) == (name, 12, 0)
    assert not any(frame.corrupt for frame in clip.frames)


def test_uncompressed_y4m_is_exact() -> None:
    pictures = [numbered(n, width=64, height=48) for n in range(3)]
    data = encode_video(
        [(n / 30, rgb) for n, rgb in enumerate(pictures)],
        codec="wrapped_avframe",
        container="yuv4mpegpipe",
        pix_fmt="yuv444p",
    )
    clip = decode(data)
    assert len(clip.frames) == 3
    for frame, rgb in zip(clip.frames, pictures, strict=True):
        assert np.abs(frame.pixels.rgb().astype(int) - rgb).max() <= 3  # rounding of YUV


def test_uneven_frames_carry_their_own_times() -> None:
    """Case 12, our part of it: the times that the prompt will show."""
    uneven = [0.0, 0.1, 0.5, 0.6, 2.0, 2.25, 7.0, 7.04]
    data = encode_video([(time_s, numbered(n)) for n, time_s in enumerate(uneven)])
    clip = decode(data)
    assert numbers(clip) == list(range(8))
    assert times(clip) == pytest.approx(uneven, abs=1e-3)


def test_b_frames_come_out_in_order_of_display() -> None:
    data = encode_numbered(20, preset="fast", bf="3")
    assert numbers(decode(data)) == list(range(20))


def test_a_broken_frame_in_the_middle_is_skipped_and_counted() -> None:
    """Case 10 with a key frame in every picture: only the damaged one is missing."""
    data = encode_numbered(
        30, codec="mjpeg", container="avi", pix_fmt="yuvj420p", qmin="2", qmax="2"
    )
    _, at, size = packets_of(data)[15]
    clip = decode(flip(data, at + size // 2))
    assert clip.n_broken == 1
    assert numbers(clip) == [n for n in range(30) if n != 15]
    assert times(clip) == pytest.approx([n / 30 for n in range(30) if n != 15], abs=1e-3)


@pytest.mark.parametrize("part", range(1, 10))
def test_a_damaged_jpeg_never_comes_out_smeared(part: int) -> None:
    data = encode_numbered(
        5, codec="mjpeg", container="avi", pix_fmt="yuvj420p", qmin="2", qmax="2"
    )
    _, at, size = packets_of(data)[2]
    clip = decode(flip(data, at + size * part // 10))
    assert clip.n_broken == 1
    assert numbers(clip) == [0, 1, 3, 4]


def test_what_follows_a_broken_frame_is_marked_until_the_next_key_frame() -> None:
    """Case 10 with references: the others keep their true times and say what may be smeared."""
    data = encode_numbered(40, gop=20)
    time_s, at, size = packets_of(data)[26]
    clip = decode(flip(data, at + size // 2 - 100))
    lost = round(time_s * 30)
    assert clip.n_broken == 1
    assert len(clip.frames) == 39
    expected = [n / 30 for n in range(40) if n != lost]
    assert times(clip) == pytest.approx(expected, abs=1e-3)
    marked = [round(frame.time_s * 30) for frame in clip.frames if frame.corrupt]
    assert marked == list(range(lost + 1, 40))
    assert numbers(clip)[:26] == list(range(26))


def test_damage_ends_at_the_next_key_frame() -> None:
    data = encode_numbered(40, gop=20)
    _, at, size = packets_of(data)[5]
    clip = decode(flip(data, at + size // 2 - 100))
    clean = [round(frame.time_s * 30) for frame in clip.frames if not frame.corrupt]
    assert clean == [*range(5), *range(20, 40)]
    assert [number_of(f.pixels.rgb()) for f in clip.frames if not f.corrupt] == clean


@pytest.mark.parametrize("container", ["mpegts", "matroska", "mp4"])
def test_a_clip_cut_short_gives_the_frames_that_are_there(container: str, tmp_path: Path) -> None:
    """Case 11: the header promises 60 frames, 70 % of the bytes are there."""
    path = tmp_path / "whole"
    options = {"movflags": "faststart"} if container == "mp4" else {}
    with (
        av.open(io.BytesIO(encode_numbered(60, gop=1)), "r") as source,
        av.open(str(path), "w", format=container, options=options) as target,
    ):
        track = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = track
                target.mux(packet)
    whole = path.read_bytes()
    clip = decode(whole[: len(whole) * 7 // 10])
    clean = [number_of(f.pixels.rgb()) for f in clip.frames if not f.corrupt]
    assert 30 <= len(clean) < 60
    assert clean == list(range(len(clean)))
    assert times(clip)[: len(clean)] == pytest.approx([n / 30 for n in range(len(clean))], abs=1e-3)


@pytest.mark.parametrize(
    ("container", "box", "offset", "claim", "n_frames"),
    [
        pytest.param("mp4", b"stsz", 12, 10, 10, id="mp4 with fewer samples"),
        pytest.param("mp4", b"stts", 12, 6000, 30, id="mp4 with more time stamps"),
        pytest.param("avi", b"avih", 24, 6000, 30, id="avi with more frames"),
        pytest.param("avi", b"avih", 24, 3, 30, id="avi with fewer frames"),
    ],
)
def test_the_frame_count_in_the_header_may_lie(
    container: str, box: bytes, offset: int, claim: int, n_frames: int
) -> None:
    """Case 11: an edited count neither invents frames nor moves those that are there."""
    codec, pix_fmt = ("mjpeg", "yuvj420p") if container == "avi" else ("libx264", "yuv420p")
    data = bytearray(
        encode_numbered(30, codec=codec, container=container, pix_fmt=pix_fmt, qmin="2", qmax="2")
    )
    order = ">I" if container == "mp4" else "<I"
    at = data.index(box) + offset
    assert struct.unpack_from(order, data, at)[0] != claim
    struct.pack_into(order, data, at, claim)
    clip = decode(bytes(data))
    assert numbers(clip) == list(range(n_frames))
    assert times(clip) == pytest.approx([n / 30 for n in range(n_frames)], abs=1e-3)


def test_sampling_takes_the_first_frame_at_or_after_every_tick() -> None:
    uneven = [0.0, 0.4, 0.99, 1.2, 1.3, 2.0, 4.7, 4.8, 5.0]
    data = encode_video([(time_s, numbered(n)) for n, time_s in enumerate(uneven)])
    assert times(decode(data, max_fps=1.0)) == pytest.approx([0, 1.2, 2, 4.7, 5], abs=1e-3)
    assert times(decode(data, max_fps=0.5)) == pytest.approx([0, 2, 4.7], abs=1e-3)
    assert len(decode(data, max_fps=1000).frames) == 9


# Case 14


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_side_data_is_applied_and_the_size_follows(degrees: int) -> None:
    data = encode_numbered(2)
    plain = decode(data).frames[0].pixels.rgb()
    pixels = decode(with_rotation(data, degrees)).frames[0].pixels
    expected = np.rot90(plain, -degrees // 90)
    assert (pixels.height, pixels.width) == expected.shape[:2]
    np.testing.assert_array_equal(pixels.rgb(), expected)
    assert pixels.rgb().flags.c_contiguous


def test_rotation_may_change_in_the_middle_of_a_clip() -> None:
    pictures = [numbered(n) for n in range(3)]
    segments = [(pictures, "yuv420p")] * 3
    clip = decode(encode_changing(segments, rotate=[0, 90, 180]))
    sizes = [(frame.pixels.width, frame.pixels.height) for frame in clip.frames]
    assert sizes == [(320, 240)] * 3 + [(240, 320)] * 3 + [(320, 240)] * 3
    upright = clip.frames[0].pixels.rgb().astype(int)
    for frame, turns in ((clip.frames[3], 1), (clip.frames[6], 2)):
        got = frame.pixels.rgb().astype(int)
        assert np.abs(got - np.rot90(upright, turns)).mean() < 2


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("mirror_x", [False, True])
@pytest.mark.parametrize("mirror_y", [False, True])
def test_all_eight_turns_are_what_their_matrix_says(
    swap: bool, mirror_x: bool, mirror_y: bool
) -> None:
    """The display matrix maps a stored point (x, y) to the shown one."""
    stored = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    shown = Turn(swap=swap, mirror_x=mirror_x, mirror_y=mirror_y).apply(stored)
    height, width = (3, 2) if swap else (2, 3)
    assert shown.shape == (height, width, 3)
    for y in range(2):
        for x in range(3):
            to_x, to_y = (y, x) if swap else (x, y)
            to_x = width - 1 - to_x if mirror_x else to_x
            to_y = height - 1 - to_y if mirror_y else to_y
            np.testing.assert_array_equal(shown[to_y, to_x], stored[y, x])


# Case 15


def test_size_and_format_may_change_at_any_frame() -> None:
    sizes = [(640, 480), (1280, 720), (321, 241), (640, 480)]
    formats = ["yuv422p", "yuv420p", "yuv444p", "yuv420p"]
    segments: list[tuple[list[Rgb], str]] = []
    n = 0
    for (width, height), pix_fmt in zip(sizes, formats, strict=True):
        segments.append(([numbered(n + k, width=width, height=height) for k in range(3)], pix_fmt))
        n += 3
    clip = decode(encode_changing(segments))
    assert numbers(clip) == list(range(12))
    got = [(frame.pixels.width, frame.pixels.height) for frame in clip.frames]
    assert got == [size for size in sizes for _ in range(3)]
    for frame, n in zip(clip.frames, range(12), strict=True):
        width, height = sizes[n // 3]
        original = numbered(n, width=width, height=height).astype(int)
        # No smear of another segment: close to its own picture, away from the code's edges.
        inner = np.s_[: int(height * 0.9)]
        assert np.abs(frame.pixels.rgb().astype(int) - original)[inner].mean() < 16, n


def test_a_format_may_change_at_equal_size() -> None:
    pictures = [numbered(n) for n in range(6)]
    clip = decode(encode_changing([(pictures[:3], "yuv422p"), (pictures[3:], "yuv420p")]))
    assert numbers(clip) == list(range(6))
    assert len({frame.pixels.frame.format.name for frame in clip.frames}) == 2


def test_a_frame_before_the_first_key_frame_is_not_shown() -> None:
    data = encode_numbered(20, gop=10, container="mpegts", bf="0")
    whole = decode(data)
    assert len(whole.frames) == 20
    second = packets_of(data)[4][1]
    clip = decode(data[second - second % 188 :])
    assert numbers(clip)[0] == 10
    assert clip.n_broken >= 4


# Limits and refusals


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (ClipLimits(max_bytes=100), "bytes"),
        (ClipLimits(max_pixels=320 * 240 - 1), "320x240"),
        (ClipLimits(max_side_px=319), "320x240"),
        (ClipLimits(max_frames=19), "19 frames"),
        (ClipLimits(max_kept_bytes=1_000_000), "fewer frames per second"),
    ],
)
def test_each_limit_holds(limits: ClipLimits, why: str) -> None:
    data = encode_numbered(20)
    with pytest.raises(MediaTooLarge, match=why):
        decode(data, limits)


def test_frames_that_no_model_takes_are_refused_with_the_clip() -> None:
    thin = jpeg_clip([grey_jpeg(4, 804)] * 2, width=4, height=804)
    with pytest.raises(MediaInvalid, match="4x804: one side is more than 200 times the other"):
        decode(thin)
    assert len(decode(jpeg_clip([grey_jpeg(4, 800)] * 2, width=4, height=800)).frames) == 2


def test_a_clip_of_exactly_the_limits_passes() -> None:
    exact = ClipLimits(max_pixels=330 * 242, max_side_px=330, max_frames=20)
    assert len(decode(encode_numbered(20, width=330, height=242), exact).frames) == 20


HUGE = textwrap.dedent(
    """
    from liveedge.core.errors import MediaTooLarge
    from liveedge.media.clip import ClipLimits, decode_clip
    from tests import media_files as make

    def peak_kb():
        with open("/proc/self/status") as status:
            return next(int(l.split()[1]) for l in status if l.startswith("VmHWM"))

    picture = make.grey_jpeg(15000, 15000)
    honest = make.jpeg_clip([picture], width=15000, height=15000)
    lying = make.jpeg_clip([picture], width=320, height=240)
    small = [make.grey_jpeg(320, 240)] * 3
    later = make.jpeg_clip([*small, picture], width=320, height=240)
    small = make.jpeg_clip(small, width=320, height=240)
    assert len(decode_clip(small, limits=ClipLimits(), what="a clip").frames) == 3
    before = peak_kb()
    for data in (honest, lying, later):
        try:
            decode_clip(data, limits=ClipLimits(), what="a clip")
        except MediaTooLarge as error:
            assert "15000x15000" in error.message, error.message
            continue
        raise SystemExit("a bomb was accepted")
    print(peak_kb() - before)
    """
)


def test_huge_frames_are_refused_before_memory_is_taken() -> None:
    """Case 3 for clips: what the container claims, and what the pictures in it turn out to be."""
    done = subprocess.run(
        [sys.executable, "-c", HUGE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 40_000  # the clip has 8 MB, one of its frames 225 MB


def test_a_limit_holds_for_a_size_that_comes_later() -> None:
    small, large = numbered(0, width=64, height=48), numbered(1, width=640, height=480)
    data = encode_changing([([small], "yuv420p"), ([large], "yuv420p")])
    with pytest.raises(MediaTooLarge, match="640x480"):
        decode(data, ClipLimits(max_side_px=320))


def test_sampling_keeps_a_long_clip_within_the_memory_limit() -> None:
    data = encode_numbered(60)
    limits = ClipLimits(max_kept_bytes=1_000_000)  # 8 frames
    assert len(decode(data, limits, max_fps=2.0).frames) == 4


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not a video at all", id="text"),
        pytest.param(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", id="playlist"),
        pytest.param(b"ffconcat version 1.0\nfile /etc/passwd\n", id="concat list"),
        pytest.param(b"\x00\x00\x00\x20ftypisom" + bytes(100), id="mp4 without anything"),
        pytest.param(b"\x1a\x45\xdf\xa3" + bytes(100), id="mkv without anything"),
        pytest.param(b"RIFF\x00\x00\x00\x00AVI " + bytes(100), id="avi without anything"),
        pytest.param(b"\x47" + bytes(187), id="one packet of nothing"),
        pytest.param(b"YUV4MPEG2 W0 H0\n", id="y4m without pixels"),
    ],
)
def test_what_is_no_video_is_invalid_and_named(data: bytes) -> None:
    with pytest.raises(MediaInvalid, match=r"messages\[0\]\.content\[2\]\.video_url"):
        decode(data)


def test_a_sound_file_has_no_video_track() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        track = file.add_stream("aac", rate=48_000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.float32), "fltp", "mono")
        sound.sample_rate = 48_000
        file.mux(track.encode(sound))
        file.mux(track.encode(None))
    with pytest.raises(MediaInvalid, match="no video track"):
        decode(out.getvalue())


def test_a_codec_outside_the_list_is_named() -> None:
    data = encode_numbered(2, codec="flv", container="avi")
    with pytest.raises(MediaInvalid, match=r"codec not supported \(flv"):
        decode(data)


def test_damaged_clips_give_frames_or_a_clear_error_and_nothing_else() -> None:
    rng = np.random.default_rng(3)
    whole = encode_numbered(4, width=64, height=48)
    outcomes = set()
    for _ in range(120):
        data = bytearray(whole)
        for at in rng.integers(8, len(data), size=int(rng.integers(1, 30))):
            data[at] = rng.integers(256)
        try:
            clip = decode(bytes(data))
            assert all(frame.pixels.rgb().ndim == 3 for frame in clip.frames)
            outcomes.add("decoded")
        except (MediaInvalid, MediaTooLarge) as error:
            outcomes.add("refused" if len(error.message) < 300 else "told too much")
    assert outcomes == {"decoded", "refused"}


def test_decoding_ends_within_a_frame_once_it_is_stopped() -> None:
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(MediaInvalid, match="was stopped"):
        decode_clip(encode_numbered(3), limits=LIMITS, what=WHAT, stopping=stopping)


def test_many_threads_may_read_one_frame() -> None:
    frame = decode(encode_numbered(1, width=854, height=480)).frames[0]
    expected = frame.pixels.rgb()
    seen: list[bool] = []

    def look() -> None:
        seen.extend(np.array_equal(frame.pixels.rgb(), expected) for _ in range(10))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 40

"""The history's codec over real streams: packets give the same pixels, our own encode close ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import count, pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from liveedge.frames.chunks import HistoryCodec, Piece, StoredRun
from liveedge.frames.frame import Frame, Pixels, RgbPixels
from liveedge.media.history_codec import AvHistoryCodec
from liveedge.media.pixels import AvPixels, Turn
from tests.coded_streams import Sent, coded_frames
from tests.media_files import number_of, numbered

CODECS = ["libx264", "libx265", "libvpx", "mjpeg"]


@pytest.fixture
def codec() -> AvHistoryCodec:
    return AvHistoryCodec()


def frame_of(index: int, pixels: Pixels, sent: Sent | None = None) -> Frame:
    return Frame(
        index=index,
        stream_time_ms=index * 33,
        captured_at_ms=index * 33,
        arrived_s=index / 30,
        pixels=pixels,
        corrupt=sent is not None and sent.corrupt,
        coded=None if sent is None else sent.coded,
    )


def kept(codec: HistoryCodec, sent: Sequence[Sent]) -> list[Piece]:
    pieces = [codec.keep(frame_of(i, one.pixels, one)) for i, one in enumerate(sent)]
    return [piece for piece in pieces if piece is not None]


def run_of(pieces: Sequence[Piece], *, first: int = 0, damaged: bool = False) -> StoredRun:
    return StoredRun(
        format=pieces[0].format,
        pieces=tuple((first + i, piece.packets) for i, piece in enumerate(pieces)),
        is_damaged=damaged,
    )


def replayed(codec: HistoryCodec, run: StoredRun) -> dict[int, np.ndarray]:
    return {index: pixels.rgb() for index, pixels in codec.replay(run)}


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("encoder", CODECS)
def test_packets_give_the_very_same_pixels_from_every_key_frame_on(encoder, n_threads):
    codec = AvHistoryCodec(n_threads=n_threads)
    sent = coded_frames(36, encoder=encoder, gop=12)
    pieces = kept(codec, sent)
    assert [i for i, piece in enumerate(pieces) if piece.is_key][:2] in ([0, 12], [0, 1])
    starts = [i for i in (0, 12, 24) if pieces[i].is_key]
    assert starts == [0, 12, 24]
    for start in starts:
        back = replayed(codec, run_of(pieces[start : start + 12], first=start))
        assert list(back) == list(range(start, start + 12))
        for index, rgb in back.items():
            assert np.array_equal(rgb, sent[index].pixels.rgb())


@pytest.mark.parametrize("encoder", ["libx264", "libvpx", "mjpeg"])
@pytest.mark.parametrize("broken", [[5], [5, 6, 7], [0 + 11]])
def test_broken_packets_shift_no_frame(codec, encoder, broken):
    sent = coded_frames(12, encoder=encoder, gop=12, broken=broken)
    pieces = kept(codec, sent)
    back = replayed(codec, run_of(pieces, damaged=True))
    # What a decoder shows of a damaged VP8 picture is whatever was in its memory.
    for index, rgb in back.items():
        if not sent[index].corrupt:
            assert np.array_equal(rgb, sent[index].pixels.rgb())
            assert number_of(rgb) == sent[index].number
    assert len(back) == len(sent)


def test_a_frame_without_packets_or_with_those_of_an_unknown_codec_is_not_kept(codec):
    assert codec.keep(frame_of(0, RgbPixels(numbered(0)))) is None
    one = coded_frames(1)[0]
    assert codec.keep(frame_of(0, RgbPixels(numbered(0)), one)) is None


def own(codec: HistoryCodec, pixels: Sequence[Pixels], *, begin_every: int = 15) -> list[Piece]:
    encoder = codec.encoder(bytes_per_s=500_000)
    return [
        encoder.encode(frame_of(i, one), begin=i % begin_every == 0) for i, one in enumerate(pixels)
    ]


@pytest.mark.parametrize("kind", ["rgb24", "yuv420p", "yuvj420p", "yuv422p", "nv12", "gray"])
def test_our_own_encode_comes_back_close_whatever_the_layout(codec, kind):
    pictures = [numbered(n) for n in range(20)]
    frames: list[Pixels] = [
        AvPixels(av.VideoFrame.from_ndarray(p, format="rgb24").reformat(format=kind))
        for p in pictures
    ]
    before = [frame.rgb() for frame in frames]
    pieces = own(codec, frames)
    assert [i for i, piece in enumerate(pieces) if piece.is_key] == [0, 15]
    assert not any(piece.exact for piece in pieces)
    back = replayed(codec, run_of(pieces[:15])) | replayed(codec, run_of(pieces[15:], first=15))
    assert list(back) == list(range(20))
    for index, rgb in back.items():
        assert number_of(rgb) == index
        assert np.abs(rgb.astype(int) - before[index]).mean() < 8
    for frame, rgb in zip(frames, before, strict=True):
        assert np.array_equal(frame.rgb(), rgb)  # what others look at is not touched


def test_the_beginning_of_our_own_chunk_needs_nothing_before(codec):
    pieces = own(codec, [RgbPixels(numbered(n)) for n in range(30)], begin_every=10)
    back = replayed(codec, run_of(pieces[10:15], first=10))
    assert [number_of(rgb) for rgb in back.values()] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (31, 32), (240, 321), (16, 16)])
def test_a_size_that_x264_refuses_becomes_jpeg(codec, size):
    rgb = np.full((*size, 3), (200, 30, 60), np.uint8)
    (piece,) = own(codec, [RgbPixels(rgb)])
    assert piece.is_key
    back = replayed(codec, run_of([piece]))[0]
    assert back.shape == rgb.shape
    assert np.abs(back.astype(int) - rgb).max() <= 8


def test_the_encoder_follows_a_change_of_size_and_begins_anew(codec):
    sizes = [(240, 320)] * 3 + [(120, 160)] * 3 + [(121, 161)] + [(240, 320)] * 2
    pixels = [RgbPixels(numbered(n, height=h, width=w)) for n, (h, w) in enumerate(sizes)]
    pieces = own(codec, pixels)
    assert [i for i, piece in enumerate(pieces) if piece.is_key] == [0, 3, 6, 7]
    ends = [0, 3, 6, 7, 9]
    for start, end in pairwise(ends):
        for index, rgb in replayed(codec, run_of(pieces[start:end], first=start)).items():
            assert (rgb.shape[:2], number_of(rgb)) == (sizes[index], index)


def test_a_turned_frame_comes_back_turned(codec):
    stored = av.VideoFrame.from_ndarray(numbered(7), format="rgb24").reformat(format="yuv420p")
    turned = AvPixels(stored, Turn(swap=True, mirror_x=True))
    (piece,) = own(codec, [turned])
    back = replayed(codec, run_of([piece]))[0]
    assert back.shape == (320, 240, 3)
    assert np.abs(back.astype(int) - turned.rgb()).mean() < 8


def test_a_turn_begins_anew_also_where_the_size_stays(codec):
    half = Turn(mirror_x=True, mirror_y=True)
    frames = [
        AvPixels(
            av.VideoFrame.from_ndarray(numbered(n), format="rgb24").reformat(format="yuv420p"), turn
        )
        for n, turn in enumerate([Turn(), Turn(), half, half])
    ]
    pieces = own(codec, frames)
    assert [piece.is_key for piece in pieces] == [True, False, True, False]
    for start in (0, 2):
        back = replayed(codec, run_of(pieces[start : start + 2], first=start))
        for index, rgb in back.items():
            assert np.abs(rgb.astype(int) - frames[index].rgb()).mean() < 8


def test_a_picture_that_was_too_large_the_first_time_takes_no_memory_now(codec):
    (piece,) = kept(codec, coded_frames(1, encoder="mjpeg"))
    context = av.VideoCodecContext.create("mjpeg", "w")
    context.width = context.height = 6400
    context.pix_fmt, context.time_base = "yuvj420p", Fraction(1, 30)
    (huge,) = context.encode(av.VideoFrame(6400, 6400, "yuvj420p")) or context.encode(None)
    run = StoredRun(format=piece.format, pieces=((0, (bytes(huge),)),), is_damaged=True)
    assert [pixels.nbytes for _, pixels in codec.replay(run)] == []


def test_our_own_encode_keeps_to_its_rate(codec):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (8, 240, 320, 3), dtype=np.uint8)
    encoder = codec.encoder(bytes_per_s=60_000)
    sizes = [
        encoder.encode(frame_of(i, RgbPixels(noise[i % 8])), begin=i % 15 == 0).nbytes
        for i in range(150)
    ]
    assert sum(sizes[30:]) / 4 <= 66_000  # the last four seconds, in bytes a second


def test_how_long_a_frame_takes_is_learned_from_what_was_decoded():
    ticks = count()
    codec = AvHistoryCodec(n_threads=1, cpu_s=lambda: next(ticks) * 0.001)
    pieces = kept(codec, coded_frames(10, gop=10))
    n_pixels = 320 * 240
    guessed_s = codec.replay_s(pieces[0].format, n_pixels=n_pixels)
    replayed(codec, run_of(pieces))
    measured_s = codec.replay_s(pieces[0].format, n_pixels=n_pixels)
    assert measured_s == pytest.approx(0.0011, rel=0.01)  # eleven calls for ten frames
    assert measured_s != guessed_s
    assert codec.replay_s(pieces[0].format, n_pixels=4 * n_pixels) == pytest.approx(4 * measured_s)


def test_a_run_may_be_given_up_in_the_middle(codec):
    pieces = kept(codec, coded_frames(20, gop=20))
    frames = codec.replay(run_of(pieces))
    assert [next(frames)[0] for _ in range(3)] == [0, 1, 2]
    frames.close()


def test_what_another_program_wrote_gives_nothing(codec):
    run = StoredRun(format=b"\0\4none", pieces=((0, (b"bytes",)),), is_damaged=False)
    assert replayed(codec, run) == {}


def test_the_encoder_is_told_how_often_frames_come():
    """At ten frames a second each may take three times the bytes that it may at thirty."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (8, 240, 320, 3), dtype=np.uint8)
    encoder = AvHistoryCodec().encoder(bytes_per_s=60_000)
    n_bytes = 0
    for i in range(150):
        frame = Frame(
            index=i,
            stream_time_ms=i * 100,
            captured_at_ms=0,
            arrived_s=0.0,
            pixels=RgbPixels(noise[i % 8]),
        )
        piece = encoder.encode(frame, begin=i % 30 == 0)
        n_bytes += piece.nbytes if i >= 90 else 0  # known after a second chunk, and settled
    assert 40_000 < n_bytes / 6 <= 66_000


_GIVING_UP = """
import struct
from liveedge.frames.chunks import StoredRun
from liveedge.media import av_log
from liveedge.media.history_codec import AvHistoryCodec
from tests.coded_streams import encoded
from tests.media_files import flip, numbered

av_log.listen()  # as a server does: warnings are passed on from whatever thread has them
packets = encoded((numbered(n) for n in range(20)), gop=20)
pieces = tuple((n, (flip(d, len(d) // 2, 40) if n else d,)) for n, (d, _) in enumerate(packets))
run = StoredRun(format=struct.pack("<BB", 0, 4) + b"h264", pieces=pieces, is_damaged=False)
codec = AvHistoryCodec(n_threads=2)
for n in range(20):
    frames = codec.replay(run)
    for index, _ in frames:
        if index >= n % 10:
            break
    frames.close()
print("done")
"""


def test_a_run_that_is_given_up_while_threads_decode_it_hangs_nobody():
    done = subprocess.run(
        [sys.executable, "-c", _GIVING_UP],
        cwd=Path(__file__).parents[2],
        timeout=100,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "done", done.stderr

"""How frames go into the history and come back: the source's packets, H.264 of our own, or JPEG.

Owns    how much work it is to decode packets of each kind on this machine, measured in passing: in
        processor time, for a busy machine must not make the history encode, which is more work.
Thread  one object for all streams; an encoder belongs to one stream's thread.
Exact   packets are decoded as they were the first time, so they give the same pixels. Frames are told
        apart by the time stamp that goes in with their packets, never by counting.

Our own encode is x264 at its fastest without reordering: about 4 ms for 1280x720 on one core, below
the rate that lets the retention fit. What it does not take (odd sizes, a few pixels) becomes JPEG.
"""

from __future__ import annotations

import os
import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import cast

import av
import numpy as np
from av import Packet, VideoFrame
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from liveedge.frames.chunks import Piece, Replay, StoredRun
from liveedge.frames.frame import Frame, RgbPixels
from liveedge.frames.history import JpegCodec
from liveedge.media.decode import CODECS, VideoLimits
from liveedge.media.pixels import AS_STORED, AvPixels, Turn

# As in `media.decode`: what failed the first time must not come out as a picture now.
_OPTIONS = {"mjpeg": {"err_detect": "explode"}}
_LIMITS = VideoLimits().decoder_options()  # nor take the memory that was refused then
MAX_THREADS = 2
_OWN = "own"  # H.264 of ours: decodes faster than a camera's
_JPEG = "jpeg"
_PLANAR = frozenset({"yuv420p", "yuvj420p"})  # what x264 takes as it is

_FORMAT_HEAD = struct.Struct("<BB")  # turn, length of the name
_THREADED_FROM = 8  # pieces; below, the threads cost more than they save
_THREADED_SHARE = 0.6  # of the time that one thread takes, where two decode
_MEASURED_FROM = 4  # frames; below, opening the decoder counts too much
_FORMATS = 128  # of all streams, remembered
_RECENT = 8  # measurements, of which the best counts
_GUESSED_S = 2e-9  # a pixel, before anything was decoded; 2 ms for 1280x720

_CRF = "23"
_RATE_SHARE = 0.9  # of the bytes; the rest is for what the rate control overshoots
# Below this hard scenes smear: the history then holds less time instead. 2.2 Mbit/s for 1280x720 at
# 30 a second; a scene that needs less takes less.
_LEAST_BITS_PER_PIXEL = 0.08
_BUFFER_S = 2  # over which the rate is kept
_FPS_OFF = 1.25  # beyond this factor the encoder is told the new rate, at the next chunk


@dataclass(frozen=True, slots=True)
class _Format:
    """What a decoder has to know, as it stands in front of a chunk."""

    codec: str
    extradata: bytes = b""
    turn: Turn = AS_STORED

    def packed(self) -> bytes:
        turn, name = self.turn, self.codec.encode()
        bits = turn.swap | turn.mirror_x << 1 | turn.mirror_y << 2
        return _FORMAT_HEAD.pack(bits, len(name)) + name + self.extradata

    @classmethod
    def unpacked(cls, data: bytes) -> _Format:
        bits, length = _FORMAT_HEAD.unpack_from(data)
        name_at = _FORMAT_HEAD.size
        return cls(
            codec=data[name_at : name_at + length].decode(),
            extradata=data[name_at + length :],
            turn=Turn(swap=bool(bits & 1), mirror_x=bool(bits & 2), mirror_y=bool(bits & 4)),
        )


@lru_cache(maxsize=_FORMATS)  # asked for at each frame
def _packed(codec: str, extradata: bytes, turn: Turn) -> bytes:
    return _Format(codec, extradata, turn).packed()


@lru_cache(maxsize=_FORMATS)
def _codec_of(format_: bytes) -> str:
    return _Format.unpacked(format_).codec


class AvHistoryCodec:
    """The `HistoryCodec` of a server."""

    def __init__(
        self,
        *,
        n_threads: int | None = None,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`n_threads` decode one chunk where that gives the same frames; None: two, if there are.

        `cpu_s` is the processor time of the calling thread.
        """
        self._cpu_s = cpu_s
        self._n_threads = min(MAX_THREADS, os.cpu_count() or 1) if n_threads is None else n_threads
        self._jpeg = JpegCodec()
        # Appending to a deque and reading it are one step each: no lock.
        self._measured: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))

    def keep(self, frame: Frame) -> Piece | None:
        coded, pixels = frame.coded, frame.pixels
        if coded is None or not isinstance(pixels, AvPixels) or coded.params.codec not in CODECS:
            return None
        format_ = _packed(coded.params.codec, coded.params.extradata, pixels.turn)
        return Piece(format=format_, packets=coded.packets, is_key=coded.is_key, exact=True)

    def encoder(self, *, bytes_per_s: float) -> OwnEncoder:
        return OwnEncoder(bytes_per_s=bytes_per_s, cpu_s=self._cpu_s, jpeg=self._jpeg)

    def replay(self, run: StoredRun) -> Replay:
        format_ = _Format.unpacked(run.format)
        if format_.codec == _JPEG:
            for index, packets in run.pieces:
                yield index, RgbPixels(format_.turn.apply(self._jpeg.decode(packets[-1])))
            return
        n_threads = 1 if run.is_damaged or len(run.pieces) < _THREADED_FROM else self._n_threads
        try:
            decoding = _Decoding(format_, self._cpu_s, n_threads=n_threads)
        except (av.FFmpegError, ValueError):  # files of a program with other codecs
            return
        # Of a damaged run a frame is the last that came with its stamp: known once the next comes.
        frames = decoding.frames(run)
        try:
            for frame in _last_of_each(frames) if run.is_damaged else frames:
                yield frame.pts or 0, AvPixels(frame, format_.turn)
        finally:
            decoding.end()
            if n_threads == 1 and decoding.n_frames >= _MEASURED_FROM:
                self._measured[format_.codec].append(decoding.spent_s / decoding.n_pixels)

    def replay_s(self, format: bytes, *, n_pixels: int) -> float:
        measured = tuple(self._measured[_codec_of(format)])
        share = _THREADED_SHARE if self._n_threads > 1 else 1.0
        return n_pixels * min(measured, default=_GUESSED_S) * share


class _Decoding:
    """One pass of a decoder over a run."""

    def __init__(self, format_: _Format, cpu_s: Callable[[], float], *, n_threads: int) -> None:
        self.spent_s = 0.0
        self.n_frames = 0
        self.n_pixels = 0
        self._cpu_s = cpu_s
        codec = "h264" if format_.codec == _OWN else format_.codec
        self._context = cast(VideoCodecContext, VideoCodecContext.create(codec, "r"))
        self._context.options = _LIMITS | _OPTIONS.get(codec, {})
        self._context.thread_count = n_threads
        self._context.thread_type = "FRAME" if n_threads > 1 else "NONE"
        if format_.extradata:
            self._context.extradata = format_.extradata

    def frames(self, run: StoredRun) -> Iterator[VideoFrame]:
        """What comes out, in order, stamped with the index of its frame."""
        for index, packets in run.pieces:
            for data in packets:
                packet = cast("Packet[VideoStream]", Packet(data))
                packet.pts = packet.dts = index
                yield from self._decoded(packet)
        yield from self._decoded(None)

    def end(self) -> None:
        """Wait for the decoder's threads. Freed while they work, one with something to say to the log
        would wait for the interpreter, and the interpreter for it."""
        self._context.flush_buffers()

    def _decoded(self, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
        began_s = self._cpu_s()
        try:
            frames = self._context.decode(packet)
        except av.FFmpegError:  # it gave nothing the first time either
            frames = []
        self.spent_s += self._cpu_s() - began_s
        self.n_frames += len(frames)
        self.n_pixels += sum(frame.width * frame.height for frame in frames)
        return [frame for frame in frames if frame.pts is not None]


def _last_of_each(frames: Iterator[VideoFrame]) -> Iterator[VideoFrame]:
    last: VideoFrame | None = None
    for frame in frames:
        if last is not None and frame.pts != last.pts:
            yield last
        last = frame
    if last is not None:
        yield last


class OwnEncoder:
    """Encodes one stream. A context per size and layout, replaced when they change."""

    def __init__(self, *, bytes_per_s: float, cpu_s: Callable[[], float], jpeg: JpegCodec) -> None:
        self._bytes_per_s = bytes_per_s * _RATE_SHARE
        self._cpu_s = cpu_s
        self._jpeg = jpeg
        self._reformatter = VideoReformatter()
        self._context: VideoCodecContext | None = None
        self._layout: tuple[int | str | Turn, ...] = ()
        self._n_in_context = 0
        self._fps = _FpsMeter()
        self._context_fps = 0.0
        self._spent_s: deque[float] = deque(maxlen=_RECENT)

    @property
    def encode_s(self) -> float:
        return min(self._spent_s, default=0.0)

    def encode(self, frame: Frame, *, begin: bool) -> Piece:
        began_s = self._cpu_s()
        self._fps.add(frame.stream_time_ms)
        piece = self._as_video(frame, begin=begin)
        if piece is None:
            self._context = None
            piece = self._as_jpeg(frame)
        self._spent_s.append(self._cpu_s() - began_s)
        return piece

    def _picture(self, frame: Frame) -> tuple[VideoFrame | None, Turn]:
        """What x264 takes, without a copy where the decoder's own layout is that."""
        pixels = frame.pixels
        if isinstance(pixels, AvPixels):
            picture, turn = pixels.frame, pixels.turn
        else:
            rgb = np.ascontiguousarray(pixels.rgb())
            picture, turn = VideoFrame.from_ndarray(rgb, format="rgb24"), AS_STORED
        if picture.width % 2 or picture.height % 2:
            return None, turn
        if picture.format.name not in _PLANAR:
            picture = self._reformatter.reformat(picture, format="yuv420p", threads=1)
        return picture, turn

    def _as_video(self, frame: Frame, *, begin: bool) -> Piece | None:
        """None for what x264 does not take."""
        try:
            picture, turn = self._picture(frame)
            packets = [] if picture is None else self._coded(picture, turn, begin=begin)
        except (av.FFmpegError, ValueError):
            return None
        if len(packets) != 1:
            return None
        return Piece(
            format=_Format(_OWN, turn=turn).packed(),
            packets=(bytes(packets[0]),),
            is_key=packets[0].is_keyframe,
            exact=False,
        )

    def _coded(self, picture: VideoFrame, turn: Turn, *, begin: bool) -> list[Packet[VideoStream]]:
        layout = (*_layout_of(picture), turn)  # a chunk has one turn
        is_off = begin and self._fps.is_off(self._context_fps)
        if self._context is None or layout != self._layout or is_off:
            self._context = self._opened(picture)
            self._layout, self._n_in_context = layout, 0
        context = self._context
        # Of a decoded frame only its planes are anybody else's business.
        picture.pts, picture.time_base = self._n_in_context, context.time_base
        is_key = begin or self._n_in_context == 0
        picture.pict_type = PictureType.I if is_key else PictureType.NONE
        self._n_in_context += 1
        return context.encode(picture)

    def _as_jpeg(self, frame: Frame) -> Piece:
        try:
            data = self._jpeg.encode(frame.pixels.rgb())
        except av.FFmpegError as error:
            raise ValueError(f"frame {frame.index} has no RGB") from error
        return Piece(format=_Format(_JPEG).packed(), packets=(data,), is_key=True, exact=False)

    def _opened(self, picture: VideoFrame) -> VideoCodecContext:
        fps = self._context_fps = self._fps.per_s()
        context = VideoCodecContext.create("libx264", "w")
        context.width, context.height = picture.width, picture.height
        context.pix_fmt = picture.format.name
        context.framerate = Fraction(fps).limit_denominator(1000)
        context.time_base = 1 / context.framerate
        context.gop_size = 600  # chunks are begun by hand
        context.thread_count = 1
        # The colours come back through the same numbers.
        context.color_range, context.colorspace = picture.color_range, picture.colorspace
        least = _LEAST_BITS_PER_PIXEL * picture.width * picture.height * fps
        bits_per_s = round(max(self._bytes_per_s * 8, least))
        context.options = {
            "preset": "ultrafast",
            "tune": "zerolatency",
            "forced-idr": "1",
            "crf": _CRF,
            "maxrate": str(bits_per_s),
            "bufsize": str(_BUFFER_S * bits_per_s),
        }
        return context


def _layout_of(picture: VideoFrame) -> tuple[int | str, ...]:
    colours = (int(picture.color_range), int(picture.colorspace))
    return (picture.width, picture.height, picture.format.name, *colours)


class _FpsMeter:
    """Frames a second of what is encoded, for the rate control alone."""

    def __init__(self) -> None:
        self._times_ms: deque[int] = deque(maxlen=32)

    def add(self, time_ms: int) -> None:
        self._times_ms.append(time_ms)

    def per_s(self) -> float:
        """Between 1 and 240; 30 before anything is known."""
        times = self._times_ms
        span_ms = times[-1] - times[0] if len(times) > 1 else 0
        return min(max((len(times) - 1) * 1000 / span_ms, 1.0), 240.0) if span_ms > 0 else 30.0

    def is_off(self, fps: float) -> bool:
        now = self.per_s()
        return len(self._times_ms) == 32 and not fps / _FPS_OFF <= now <= fps * _FPS_OFF

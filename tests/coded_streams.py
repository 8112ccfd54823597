"""Coded video as sources deliver it: frames of a decoder, each with the packets behind it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av

from liveedge.frames.frame import CodecParams, CodedFrame
from liveedge.media.pixels import AvPixels
from tests.media_files import Rgb, flip, numbered

FAST = {
    "libx264": {"preset": "ultrafast", "tune": "zerolatency", "crf": "20", "forced-idr": "1"},
    "libx265": {"preset": "ultrafast", "x265-params": "bframes=0:log-level=none:pools=1"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    "mjpeg": {"qmin": "3", "qmax": "3"},
}
DECODERS = {"libx264": "h264", "libx265": "hevc", "libvpx": "vp8", "mjpeg": "mjpeg"}


@dataclass(frozen=True, slots=True)
class Sent:
    """One frame on its way into a store."""

    number: int  # burned in
    pixels: AvPixels
    coded: CodedFrame | None
    corrupt: bool = False


def encoded(
    pictures: Iterable[Rgb], *, encoder: str = "libx264", gop: int = 10, **options: str
) -> list[tuple[bytes, bool]]:
    """Packets and whether they are key frames."""
    context: Any = None
    packets: list[Any] = []
    for n, rgb in enumerate(pictures):
        if context is None:
            context = av.CodecContext.create(encoder, "w")
            context.height, context.width = rgb.shape[:2]
            context.pix_fmt = "yuvj420p" if encoder == "mjpeg" else "yuv420p"
            context.time_base, context.framerate = Fraction(1, 30), Fraction(30)
            context.gop_size, context.thread_count = gop, 1
            context.options = {**FAST[encoder], **options}
        frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
        frame.pts = n
        packets += context.encode(frame)
    packets += context.encode(None)
    return [(bytes(packet), packet.is_keyframe) for packet in packets]


def coded_frames(
    n_frames: int,
    *,
    first: int = 0,
    encoder: str = "libx264",
    gop: int = 10,
    width: int = 320,
    height: int = 240,
    broken: Collection[int] = (),
    **options: str,
) -> list[Sent]:
    """Numbered frames as a decoder of one thread gives them; `broken` packets have flipped bytes."""
    pictures = (numbered(first + n, width=width, height=height) for n in range(n_frames))
    packets = encoded(pictures, encoder=encoder, gop=gop, **options)
    decoder: Any = av.CodecContext.create(DECODERS[encoder], "r")
    decoder.thread_count = 1
    if encoder == "mjpeg":
        decoder.options = {"err_detect": "explode"}
    params = CodecParams(codec=DECODERS[encoder])
    sent: list[Sent] = []
    waiting: list[bytes] = []
    is_key = is_corrupt = False
    for n, (whole, begins) in enumerate(packets):
        data = flip(whole, len(whole) // 2, 40) if n in broken else whole
        is_key, is_corrupt = is_key or begins, n in broken or (is_corrupt and not begins)
        waiting = [data] if begins else [*waiting, data]
        try:
            frames = decoder.decode(av.Packet(data))
        except av.FFmpegError:
            continue
        for frame in frames:
            coded = CodedFrame(params=params, packets=tuple(waiting), is_key=is_key)
            sent.append(Sent(first + n, AvPixels(frame), coded, is_corrupt))
            waiting, is_key = [], False
    return sent

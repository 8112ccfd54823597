"""A whole video in memory to frames with their true times.

What the header says about length and frame count is not used: files are cut short and edited.
Only the demuxers named here are ever run on strangers' bytes, and none of them opens anything
else: a playlist in disguise would make FFmpeg fetch files and URLs.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import av

from liveedge.core.errors import MediaInvalid, MediaTooLarge
from liveedge.media.decode import DecodedFrame, VideoLimits, VideoReader, VideoUnreadable

_EARLY_S = 1e-6  # a time stamp may lie this much before its tick: they are rounded to a time base


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipLimits:
    """What one clip may cost."""

    max_bytes: int = 64 * 2**20  # encoded
    max_pixels: int = 4096 * 2304  # per frame
    max_side_px: int = 8192
    max_frames: int = 5400  # decoded: three minutes at 30 fps
    max_kept_bytes: int = 512 * 2**20  # frames that sampling keeps, as decoded


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames in order with seconds from the beginning of the clip."""

    frames: tuple[DecodedFrame, ...]
    n_decoded: int  # before sampling
    n_broken: int  # could not be decoded and are missing from `frames`
    codec: str


def decode_clip(
    data: bytes,
    *,
    limits: ClipLimits,
    what: str,
    max_fps: float | None = None,
    stopping: threading.Event | None = None,
) -> Clip:
    """Decode an MP4, MOV, WebM, MKV, AVI, MPEG-TS or Y4M; `what` names it in errors.

    With `max_fps` only the first frame at or after every tick `k / max_fps` is kept. Once
    `stopping` is set, decoding ends within a frame and `MediaInvalid` is raised.
    """
    if not data:
        raise MediaInvalid(f"{what} is empty")
    if len(data) > limits.max_bytes:
        raise MediaTooLarge(
            f"{what} has {len(data)} bytes, the limit is {limits.max_bytes}; send a shorter clip"
        )
    demuxer = _demuxer(data)
    if demuxer is None:
        raise MediaInvalid(
            f"{what} is not a readable video; send an MP4, MOV, WebM, MKV, AVI, MPEG-TS or Y4M"
        )
    frame_limits = VideoLimits(max_pixels=limits.max_pixels, max_side_px=limits.max_side_px)
    try:
        with av.open(
            io.BytesIO(data),
            "r",
            format=demuxer,
            options=frame_limits.decoder_options(),
            metadata_errors="replace",  # titles are in any encoding and of no interest
        ) as container:
            reader = VideoReader(container, limits=frame_limits)
            return _collect(reader, limits=limits, what=what, max_fps=max_fps, stopping=stopping)
    except VideoUnreadable as error:
        kind = MediaTooLarge if error.too_large else MediaInvalid
        raise kind(f"{what} cannot be used: {error.reason}") from error
    except (av.FFmpegError, OSError) as error:
        raise MediaInvalid(f"{what} is a damaged video; no frame of it can be read") from error


def _collect(
    reader: VideoReader,
    *,
    limits: ClipLimits,
    what: str,
    max_fps: float | None,
    stopping: threading.Event | None,
) -> Clip:
    kept: list[DecodedFrame] = []
    n_decoded = n_bytes = 0
    next_tick = 0
    for frame in _until(reader.frames(), stopping, what=what):
        n_decoded += 1
        if n_decoded > limits.max_frames:
            raise MediaTooLarge(
                f"{what} has more than {limits.max_frames} frames; send a shorter clip"
            )
        if max_fps is not None:
            if frame.time_s + _EARLY_S < next_tick / max_fps:
                continue
            next_tick = math.floor((frame.time_s + _EARLY_S) * max_fps) + 1
        kept.append(frame)
        n_bytes += frame.pixels.nbytes
        if n_bytes > limits.max_kept_bytes:
            raise MediaTooLarge(
                f"the frames of {what} need more than {limits.max_kept_bytes} bytes; send a shorter"
                " or smaller clip, or ask for fewer frames per second"
            )
    if not kept:
        raise MediaInvalid(f"{what} is a damaged video; no frame of it can be read")
    return Clip(tuple(kept), n_decoded, reader.counts.broken + reader.counts.early, reader.codec)


def _until(
    frames: Iterator[DecodedFrame | None], stopping: threading.Event | None, *, what: str
) -> Iterator[DecodedFrame]:
    for frame in frames:
        if stopping is not None and stopping.is_set():
            raise MediaInvalid(f"reading {what} was stopped")
        if frame is not None:
            yield frame


def _demuxer(data: bytes) -> str | None:
    """The FFmpeg demuxer for these bytes, by their beginning."""
    if data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return "mp4"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return "avi"
    if data.startswith(b"YUV4MPEG2"):
        return "yuv4mpegpipe"
    if data[:1] == b"\x47" and data[188:189] in (b"\x47", b""):
        return "mpegts"
    return None

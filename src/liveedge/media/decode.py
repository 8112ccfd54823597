"""Compressed video to frames: the one loop behind files, clips and cameras.

A frame that cannot be decoded is left out and counted; the others keep their own times. What
follows a loss is marked `corrupt` until the next key frame: it may show remains of the loss.
Before the first key frame nothing comes out. Size, format and rotation may change at any frame.
Loss is what the decoder notices: flipped bytes show in MJPEG and, nine times of ten, in H.264;
H.265, VP8 and VP9 hold nothing that would give them away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import av
from av import Packet, VideoFrame
from av.container import InputContainer
from av.video.stream import VideoStream

from liveedge.media.header import read_header
from liveedge.media.pixels import AS_STORED, AvPixels, turn_in

# What cameras and people send. A container may name any of some hundred decoders, few of them
# hardened; the rest is refused.
CODECS = frozenset(
    {"h264", "hevc", "av1", "vp8", "vp9", "mjpeg", "mpeg4", "mpeg2video", "mpeg1video"}
    | {"prores", "ffv1", "png", "rawvideo"}
)
# By default a damaged JPEG comes out as a smeared picture without a word (20 of 30 tries, against
# none). Not for the others: it would refuse frames for a sloppy side note of the camera.
_STRICTNESS = {"mjpeg": {"err_detect": "explode"}}
_JPEG_HEADER_BYTES = 4096
_MAX_BAD_READS = 64  # in a row, before a damaged container counts as over
_FALLBACK_FPS = 25.0  # when a stream has neither time stamps nor a rate


class VideoUnreadable(Exception):
    """There is no video here that we can or may decode. Caught by whoever opened it."""

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.too_large = too_large


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoLimits:
    """How large one frame may be; refused by the decoder before it allocates."""

    max_pixels: int = 8192 * 4320
    max_side_px: int = 8192
    max_aspect_ratio: int = 200  # no model takes more

    def decoder_options(self) -> dict[str, str]:
        """About the same for FFmpeg, which also decodes while it probes.

        It counts with padded sides, so it gets some slack; `VideoReader` is exact.
        """
        return {"max_pixels": str(self.max_pixels + 128 * self.max_side_px)}


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """One frame with its time."""

    pixels: AvPixels
    time_s: float  # as the stream says, from its own beginning
    corrupt: bool


class VideoReader:
    """Frames of the first video track of an open container. One thread."""

    def __init__(self, container: InputContainer, *, limits: VideoLimits) -> None:
        self._container = container
        self._limits = limits
        self._stream = _video_track(container)
        self.codec = self._stream.codec_context.codec.canonical_name
        self.n_broken = 0
        self._seen_key = False
        self._damaged = False
        self._turn = AS_STORED
        self._last_s: float | None = None
        context = self._stream.codec_context
        self._check_size(context.width, context.height)
        context.options = limits.decoder_options() | _STRICTNESS.get(self.codec, {})
        context.thread_count = 1  # frame threads would add a frame of delay each
        rate = self._stream.average_rate or self._stream.guessed_rate
        self.period_s = 1 / float(rate) if rate else 1 / _FALLBACK_FPS
        start = self._stream.start_time
        self._start_s = 0.0 if start is None else float(start * self._time_base())

    def frames(self) -> Iterator[DecodedFrame | None]:
        """Frames in order, None wherever a packet gave none, so that the caller can look up.

        Raises `av.FFmpegError` when the transport fails, `VideoUnreadable` on an oversized frame.
        """
        for packet in self._packets():
            decoded = self._decode(packet) if self._is_usable(packet) else []
            if not decoded:
                yield None
            for frame in decoded:
                yield self._accept(frame)

    def _is_usable(self, packet: Packet[VideoStream]) -> bool:
        """Whether to decode: ours, and not before the first key frame. The last one is empty."""
        if packet.stream.index != self._stream.index:
            return False
        if not self._seen_key and packet.size:
            self._seen_key = packet.is_keyframe
            self.n_broken += not self._seen_key
        return self._seen_key

    def _packets(self) -> Iterator[Packet[VideoStream]]:
        n_bad = 0
        while n_bad < _MAX_BAD_READS:
            try:
                # All tracks: the caller must get its turn even when only sound arrives.
                for packet in self._container.demux():
                    n_bad = 0
                    yield cast("Packet[VideoStream]", packet)  # of ours, once _is_usable
                return
            except av.InvalidDataError:  # a damaged place in the container: read on behind it
                n_bad += 1

    def _decode(self, packet: Packet[VideoStream]) -> list[VideoFrame]:
        try:
            return packet.decode()
        except av.FFmpegError:  # whatever a decoder says about bytes: this frame is lost
            # FFmpeg does not tell a JPEG beyond our limit from a damaged one.
            claim = read_header(bytes(packet)[:_JPEG_HEADER_BYTES])
            if claim is not None:
                self._check_size(claim.width, claim.height)
            self.n_broken += 1
            self._damaged = True
            return []

    def _accept(self, frame: VideoFrame) -> DecodedFrame | None:
        self._check_size(frame.width, frame.height)
        time_s = self._time_s(frame)
        if frame.is_corrupt:
            self.n_broken += 1
            self._damaged = True
            return None
        if frame.key_frame:
            self._damaged = False
        # In the bitstream the rotation stands beside key frames only, and holds until the next.
        self._turn = turn_in(frame) or (AS_STORED if frame.key_frame else self._turn)
        return DecodedFrame(AvPixels(frame, self._turn), time_s, self._damaged)

    def _time_s(self, frame: VideoFrame) -> float:
        stamp = frame.pts if frame.pts is not None else frame.dts
        if stamp is not None:
            time_s = float(stamp * (frame.time_base or self._time_base())) - self._start_s
        elif self._last_s is None:
            time_s = 0.0
        else:
            time_s = self._last_s + self.period_s
        self._last_s = time_s
        return time_s

    def _time_base(self) -> float:
        return float(self._stream.time_base or 1 / 90_000)

    def _check_size(self, width: int, height: int) -> None:
        limits = self._limits
        if max(width, height) > limits.max_side_px or width * height > limits.max_pixels:
            raise VideoUnreadable(
                f"frames of {width}x{height} exceed the limit of {limits.max_pixels} pixels and"
                f" {limits.max_side_px} a side",
                too_large=True,
            )
        if max(width, height) > limits.max_aspect_ratio * max(1, min(width, height)):
            raise VideoUnreadable(
                f"frames of {width}x{height}: one side is more than {limits.max_aspect_ratio} times"
                " the other"
            )


def _video_track(container: InputContainer) -> VideoStream:
    # A cover picture of an audio file is formally a video track.
    tracks = [
        s for s in container.streams.video if "ATTACHED_PIC" not in str(s.disposition).upper()
    ]
    if not tracks:
        raise VideoUnreadable("no video track")
    track = tracks[0]
    # PyAV has no context for a track whose codec FFmpeg does not know.
    context = getattr(track, "codec_context", None)
    name = "unknown" if context is None else context.codec.canonical_name
    if name not in CODECS:
        raise VideoUnreadable(f"codec not supported ({name}); use H.264, H.265 or MJPEG")
    return track

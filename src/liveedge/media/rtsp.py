"""RTSP cameras over TCP: H.264 and H.265 received here, MJPEG and the like by FFmpeg.

FFmpeg's reader knows that a picture is whole only when the next one begins, which is a frame period
late; the packets say it at once (decision 0013). What a camera offers is known from its
description: if it is nothing that we read ourselves, FFmpeg connects anew.

Thread  the attempt's own, which reads, decodes and delivers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from fractions import Fraction

import av
from av import Packet
from av.video.codeccontext import VideoCodecContext

from liveedge.core.clock import Clock
from liveedge.media import refusals
from liveedge.media.decode import (
    DecodedFrame,
    TrackTimes,
    VideoDecoder,
    VideoLimits,
    VideoUnreadable,
)
from liveedge.media.delivery import deliver
from liveedge.media.pull import PulledSource, PullProtocol, PullSettings, resolve
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.rtsp_link import Link, Stopped
from liveedge.media.rtsp_sdp import VideoMedium
from liveedge.media.rtsp_session import OtherCodec, Session
from liveedge.media.source import FrameSink, SourceLost

BY_FFMPEG = PullProtocol(
    kind="rtsp",
    schemes=("rtsp", "rtsps"),
    demuxer="rtsp",
    whitelist="tcp,tls,rtp,rtsp,rtsps",
    what="an RTSP camera",
    options={
        "rtsp_transport": "tcp",
        # Take the codec from the camera's description instead of watching the video for seconds;
        # measured: opens in 0.2 s instead of 1 to 4 s.
        "analyzeduration": "0",
        "probesize": "32",
        # Over TCP nothing arrives out of order, but cameras leave packets out when they are in a
        # hurry. With a queue FFmpeg says so; without one it joins what is left in silence.
        "reorder_queue_size": "2",
    },
)
_CLEARED_UP_S = 0.5
_DECODERS = {"H264": "h264", "H265": "hevc"}


class RtspSource(PulledSource):
    """One RTSP camera."""

    def __init__(
        self,
        url: str,
        *,
        policy: PullPolicy,
        clock: Clock,
        settings: PullSettings | None = None,
        limits: VideoLimits | None = None,
    ) -> None:
        super().__init__(
            BY_FFMPEG, url, policy=policy, clock=clock, settings=settings, limits=limits
        )
        self._is_for_ffmpeg = False  # as its description said once

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        if not self._is_for_ffmpeg:
            try:
                self._receive(sink, stopping)
            except Stopped:
                return
            except OtherCodec:
                self._is_for_ffmpeg = True
            except VideoUnreadable as error:
                raise SourceLost(error.reason, hopeless=True) from error
        if self._is_for_ffmpeg:
            self._receive_by_ffmpeg(sink, stopping)
        elif not stopping.is_set():
            raise SourceLost(refusals.CLOSED)

    def _receive_by_ffmpeg(self, sink: FrameSink, stopping: threading.Event) -> None:
        try:
            super().run(sink, stopping)
        except SourceLost as loss:
            # Some servers say so while they clear up after the connection that only asked.
            if loss.reason != refusals.FAULT_OF_ITS_OWN:
                raise
            if not self._clock.wait(stopping, _CLEARED_UP_S):
                super().run(sink, stopping)

    def _receive(self, sink: FrameSink, stopping: threading.Event) -> None:
        address = resolve(self._target, self._policy)
        open_by_s = self._clock.monotonic_s() + self._settings.open_timeout_s
        link = Link(self._target, address, clock=self._clock, stopping=stopping)
        session = Session(
            link,
            self._url,
            clock=self._clock,
            open_by_s=open_by_s,
            read_timeout_s=self._settings.read_timeout_s,
        )
        try:
            link.connect(by_s=open_by_s)
            reader = RtspReader(session, session.open(), limits=self._limits)
            sink.state("waiting_for_keyframe", "connected", codec=reader.codec)
            deliver(reader, sink, stopping)
        finally:
            session.close()


class RtspReader:
    """Frames of a session that plays. One thread."""

    def __init__(self, session: Session, video: VideoMedium, *, limits: VideoLimits) -> None:
        context = av.CodecContext.create(_DECODERS[video.encoding], "r")
        assert isinstance(context, VideoCodecContext)
        # For cameras that send their parameter sets only with the description.
        context.extradata = video.parameter_sets() or None
        self._session = session
        self._time_base = Fraction(1, video.clock_hz)
        self._decoder = VideoDecoder(
            context,
            limits=limits,
            times=TrackTimes(base_s=1 / video.clock_hz),
            keeps_packets=True,
        )
        self.codec = self._decoder.codec
        self.counts = self._decoder.counts

    def frames(self) -> Iterator[DecodedFrame | None]:
        """Frames in order, None wherever a picture gave none, until the camera hangs up.

        Raises `SourceLost`, `Stopped`, and `VideoUnreadable` on an oversized frame.
        """
        decoder = self._decoder
        for unit in self._session.units():
            if self._session.is_behind:
                decoder.give_up()
            if unit.after_loss or unit.has_hole:
                decoder.lost(n_doubtful=int(unit.has_hole and unit.has_picture))
            if not unit.has_picture:
                decoder.missed()
                yield None
                continue
            packet = Packet(unit.data)
            packet.pts = unit.ticks
            packet.time_base = self._time_base
            yield from decoder.frames_of(packet, unit.data)
        yield from decoder.frames_of(Packet(), b"")

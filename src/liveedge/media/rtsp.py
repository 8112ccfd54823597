"""RTSP cameras over TCP: H.264, H.265 and MJPEG.

Every wait has an end: opening and each read are interrupted by FFmpeg's own deadline, so a silent
camera costs its own thread some seconds and nobody else anything.
FFmpeg's messages may repeat the URL; they are never used, only their kind.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from dataclasses import dataclass

import av
from av.container import InputContainer

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.media.decode import VideoLimits, VideoReader, VideoUnreadable
from liveedge.media.pull_policy import PullPolicy, check_pull_address, check_pull_url
from liveedge.media.source import FrameSink, SourceKind, SourceLost


@dataclass(frozen=True, slots=True, kw_only=True)
class RtspSettings:
    """Patience with a camera."""

    open_timeout_s: float = 5.0
    read_timeout_s: float = 5.0  # a camera slower than one frame in this time cannot be used


class RtspSource:
    """One camera. The URL stays inside; `repr` and messages do not show it."""

    kind: SourceKind = "rtsp"
    stall_after_s: float | None = 5.0
    restart_on_stall = True

    def __init__(
        self,
        url: str,
        *,
        policy: PullPolicy,
        clock: Clock,
        settings: RtspSettings | None = None,
        limits: VideoLimits | None = None,
    ) -> None:
        self._target = check_pull_url(url, policy=policy, schemes=("rtsp", "rtsps"))
        self._url = url.strip()
        self._policy = policy
        self._clock = clock
        self._settings = settings or RtspSettings()
        self._limits = limits or VideoLimits()

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        self._check_addresses()
        with self._open() as container:
            try:
                reader = VideoReader(container, limits=self._limits)
                sink.state("waiting_for_keyframe", "connected", codec=reader.codec)
                _deliver(reader, sink, stopping)
            except VideoUnreadable as error:
                raise SourceLost(error.reason, hopeless=True) from error
            except (av.FFmpegError, OSError) as error:
                raise _lost(error) from error
        if not stopping.is_set():
            raise SourceLost("the camera closed the connection")

    def _check_addresses(self) -> None:
        """Judge what the host's name resolves to now, as it may change between attempts.

        FFmpeg looks it up once more: a name server that answers differently within milliseconds
        is not caught here, and an RTSP redirect is not either.
        """
        target = self._target
        if target.address is not None:
            return
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise SourceLost("unknown host") from error
        for *_, address in found:
            ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
            try:
                check_pull_address(ip, port=target.port, policy=self._policy)
            except SourceUnavailable as error:
                raise SourceLost(error.message, hopeless=True) from error

    def _open(self) -> InputContainer:
        started_s = self._clock.monotonic_s()
        patience_s = self._settings.open_timeout_s
        try:
            return av.open(
                self._url,
                format="rtsp",
                metadata_errors="replace",
                timeout=(patience_s, self._settings.read_timeout_s),
                options={
                    "rtsp_transport": "tcp",
                    "protocol_whitelist": "tcp,tls,rtp,rtsp,rtsps",
                    # Take the codec from the camera's description instead of watching the video
                    # for seconds; measured: opens in 0.2 s instead of 1 to 4 s.
                    "analyzeduration": "0",
                    "probesize": "32",
                    **self._limits.decoder_options(),
                },
            )
        except (av.FFmpegError, OSError) as error:
            # A camera that accepts and stays silent is reported as invalid data after the deadline.
            if self._clock.monotonic_s() - started_s > 0.9 * patience_s:
                raise SourceLost("timed out") from error
            raise _lost(error) from error


def _deliver(reader: VideoReader, sink: FrameSink, stopping: threading.Event) -> None:
    n_broken = 0
    for frame in reader.frames():
        if stopping.is_set():
            return
        if reader.n_broken > n_broken:
            sink.broken(reader.n_broken - n_broken)
            n_broken = reader.n_broken
        if frame is not None:
            sink.frame(frame.pixels, source_time_s=frame.time_s, corrupt=frame.corrupt)


def _lost(error: Exception) -> SourceLost:
    for kind, reason, hopeless in _REASONS:
        if isinstance(error, kind):
            return SourceLost(reason, hopeless=hopeless)
    return SourceLost(f"connection failed ({type(error).__name__})")


# From the particular to the general: PyAV's errors are also Python's.
_REASONS: tuple[tuple[type[Exception], str, bool], ...] = (
    (
        av.HTTPUnauthorizedError,
        "401 from the camera: user name or password is missing or wrong",
        True,
    ),
    (av.HTTPForbiddenError, "403 from the camera: this user may not see the video", True),
    (av.HTTPNotFoundError, "404 from the camera: it has no such path", False),
    (av.HTTPClientError, "the camera refused the request", False),
    (av.HTTPServerError, "the camera reports an error of its own", False),
    (av.ExitError, "timed out", False),
    (TimeoutError, "timed out", False),
    (ConnectionRefusedError, "connection refused", False),
    (ConnectionError, "the connection broke", False),
    (av.ProtocolNotFoundError, "this build cannot speak the protocol of the URL", True),
    (av.DecoderNotFoundError, "codec not supported; use H.264, H.265 or MJPEG", True),
    (av.InvalidDataError, "what answers there is not an RTSP camera", False),
    (EOFError, "the camera closed the connection", False),
)

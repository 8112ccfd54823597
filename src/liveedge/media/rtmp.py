"""Live streams of an RTMP server: H.264 and H.265 in FLV.

FFmpeg speaks with the server, and puts together as many messages at once as that begins: a hostile
one can fill the memory, and nothing here sees how much was read. An attempt is short for that reason.
"""

from __future__ import annotations

import os
import socket
import ssl
from urllib.parse import urlsplit

from av.container import InputContainer

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.media import refusals
from liveedge.media.decode import VideoLimits
from liveedge.media.pull import PulledSource, PullProtocol, PullSettings
from liveedge.media.pull_policy import Address, PullPolicy, PullTarget
from liveedge.media.source import SourceLost

_OPEN_TIMEOUT_S = 4.0  # measured: 0.9 s; some servers begin with the next key frame
_GREETING_S = 1.0
_HELLO_BYTES = 1536
_VERSION = b"\x03"
NO_STREAM = (
    "the RTMP server answers, but sends no such stream: nobody publishes it, or the path of the URL"
    " is another"
)

RTMP = PullProtocol(
    kind="rtmp",
    schemes=("rtmp", "rtmps"),
    demuxer="flv",
    whitelist="rtmp,rtmps,tcp,tls",
    what="an RTMP server",
    options={
        "rtmp_live": "live",
        # The tracks are only known from their packets; measured: opens in 0.9 s instead of 3.4 s.
        "analyzeduration": "500000",
    },
)


class RtmpSource(PulledSource):
    """One live stream of an RTMP server."""

    def __init__(
        self,
        url: str,
        *,
        policy: PullPolicy,
        clock: Clock,
        settings: PullSettings | None = None,
        limits: VideoLimits | None = None,
    ) -> None:
        settings = settings or PullSettings(open_timeout_s=_OPEN_TIMEOUT_S)
        super().__init__(RTMP, url, policy=policy, clock=clock, settings=settings, limits=limits)
        parts = [part for part in urlsplit(self._url).path.split("/") if part]
        if len(parts) < 2:
            raise SourceUnavailable("the URL of the source needs an application and a stream name")
        self._app = "/".join(parts[: 1 if len(parts) == 2 else 2])  # as FFmpeg divides it

    def _more_options(self, target: PullTarget) -> dict[str, str]:
        # The name that the URL gave: servers with several sites tell them apart by it.
        host = f"[{target.host}]" if ":" in target.host else target.host
        return {"rtmp_tcurl": f"{target.scheme}://{host}:{target.port}/{self._app}"}

    def _open(self, address: Address) -> InputContainer:
        try:
            return super()._open(address)
        except SourceLost as loss:
            is_late = loss.reason == refusals.TIMED_OUT
            if is_late and _greets(address, self._target):
                raise SourceLost(NO_STREAM) from loss
            raise

    def _lost(self, error: Exception, address: Address | None = None) -> SourceLost:
        if address is not None and _is_no_greeting(error):
            return SourceLost("what answers there is not an RTMP server")
        return super()._lost(error, address)

    def _unexplained(self, error: Exception) -> str:
        return "the RTMP server gave nothing: it has no such live stream, or refuses it"


def _greets(address: Address, target: PullTarget) -> bool:
    """Whether a server of RTMP is there: FFmpeg does not tell how far it came."""
    try:
        with (
            socket.create_connection((str(address), target.port), timeout=_GREETING_S) as plain,
            _secured(plain) if target.scheme == "rtmps" else plain as connection,
        ):
            connection.sendall(_VERSION + bytes(8) + os.urandom(_HELLO_BYTES - 8))
            return connection.recv(1) == _VERSION
    except OSError:
        return False


def _secured(connection: socket.socket) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # as FFmpeg does
    return context.wrap_socket(connection)


def _is_no_greeting(error: Exception) -> bool:
    """What answers and is no RTMP server ends or fails the greeting; only FFmpeg's words tell."""
    said = getattr(error, "log", None)
    if said is None or said[1] != "rtmp":
        return False
    return "validating" in said[2] or ("handshake" in said[2] and isinstance(error, EOFError))

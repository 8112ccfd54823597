"""Pictures and clips that a question names by `http` or `https`: fetched once, behind a guard.

Judged  every URL, those of redirects too, and every address that its name has; the connection goes
        to an address that was judged, so a name that changes meanwhile gains nothing.
Bounded in bytes, redirects, ports, and in time; it ends within a moment once it is told to.
Never   sends a user or a password, asks a proxy, unpacks what is compressed, trusts a declared
        type, or repeats a URL. Blocks: it runs in a worker.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from urllib.parse import urlsplit

from liveedge.core.clock import Clock
from liveedge.core.errors import MediaInvalid, MediaTooLarge, SourceUnavailable
from liveedge.media.playlist import Part
from liveedge.media.pull import LookUp, look_up
from liveedge.media.pull_http import Web, WebBody, WebLimits
from liveedge.media.pull_policy import PullPolicy, check_pull_url
from liveedge.media.source import SourceLost

SCHEMES = ("http", "https")
MAX_URL_CHARS = 2048
_PIECE_BYTES = 65_536
_LIMITS = WebLimits(connect_s=5.0, answer_s=10.0, silence_s=5.0, whole_s=10.0, max_redirects=3)
# A name that leads nowhere and one that leads into the private network look alike: else a question
# would tell which names exist there.
_UNREACHABLE = (
    "its host is unknown, or its address is not allowed; private networks need the setting"
    " allow_private_media, ports need remote_media_ports"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLimits:
    """What one fetch may cost."""

    max_bytes: int = 16 << 20
    whole_s: float = 10.0  # from the look-up of the name to the last byte


def check_remote_url(url: str, *, policy: PullPolicy, what: str) -> None:
    """Raise MediaInvalid for what need not be tried: judged by its text alone."""
    if len(url) > MAX_URL_CHARS:
        raise MediaInvalid(f"the URL of {what} has more than {MAX_URL_CHARS} characters")
    try:
        check_pull_url(url, policy=policy, schemes=SCHEMES)
        has_login = "@" in urlsplit(url.strip()).netloc
    except SourceUnavailable as error:
        raise MediaInvalid(f"{what} is not fetched: {_plain(error.message)}") from error
    if has_login:
        raise MediaInvalid(
            f"the URL of {what} holds a user or a password, and none is ever sent on; leave it out"
        )


def fetch(
    url: str,
    *,
    policy: PullPolicy,
    limits: RemoteLimits,
    what: str,
    clock: Clock,
    stopping: threading.Event,
    look_up: LookUp = look_up,
) -> bytes:
    """The bytes under a URL; `what` names it in errors. Raises MediaInvalid or MediaTooLarge."""
    check_remote_url(url, policy=policy, what=what)
    try:
        web = Web(url, policy=policy, clock=clock, limits=_LIMITS, look_up=look_up)
        with web.get(Part(url.strip()), stopping) as body:
            return _bounded(body, limits.max_bytes, what=what)
    except (SourceUnavailable, SourceLost) as error:
        raise MediaInvalid(f"{what} could not be fetched: {_told(error)}") from error


def _bounded(body: WebBody, max_bytes: int, *, what: str) -> bytes:
    packed = body.header("content-encoding")
    if packed not in ("", "identity"):
        raise MediaInvalid(
            f"{what} could not be fetched: its server sends it compressed, though asked not to"
        )
    if (body.n_bytes or 0) > max_bytes:
        raise _too_large(what, max_bytes)
    pieces: list[bytes] = []
    n_bytes = 0
    while piece := body.read(_PIECE_BYTES):
        n_bytes += len(piece)
        if n_bytes > max_bytes:
            raise _too_large(what, max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(what: str, max_bytes: int) -> MediaTooLarge:
    return MediaTooLarge(
        f"{what} has more than the {max_bytes} bytes that are fetched (max_remote_mb); send a"
        " smaller one"
    )


def _told(error: SourceUnavailable | SourceLost) -> str:
    reason = error.reason if isinstance(error, SourceLost) else error.message
    if "unknown host" in reason or "not allowed" in reason:
        return _UNREACHABLE
    return _plain(reason)


def _plain(reason: str) -> str:
    """Reasons speak of a camera's source."""
    return (
        reason.replace(" of the source", "").replace("the source", "it").replace("the video", "it")
    )

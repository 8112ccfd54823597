"""Why a camera was lost, in the words that people get. Pure.

The same words whoever noticed it: our own reader of RTSP, or FFmpeg (`pull.py`).
"""

from __future__ import annotations

import errno

from liveedge.media.source import SourceLost

TIMED_OUT = "timed out"
CLOSED = "the camera closed the connection"
BROKE = "the connection broke"
CONNECTION_REFUSED = "connection refused"
NO_ROUTE = "no route to the camera: its network cannot be reached"
NOT_OVER_TCP = "the camera does not offer its video over TCP"
REDIRECTED = "the camera redirects to another URL, and redirects are not followed: use that one"
TLS_FAILED = "TLS failed: what answers there does not speak it, or not a version of today"
UNAUTHORIZED = "401 from the camera: user name or password is missing or wrong"
FORBIDDEN = "403 from the camera: this user may not see the video"
NOT_FOUND = "404 from the camera: it has no such path"
REQUEST_REFUSED = "the camera refused the request"
FAULT_OF_ITS_OWN = "the camera reports an error of its own"
NOT_A_CAMERA = "what answers there is not {what}"

_BY_STATUS = {
    401: (UNAUTHORIZED, True),
    403: (FORBIDDEN, True),
    404: (NOT_FOUND, False),
    461: (NOT_OVER_TCP, True),
}
_UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH})


def by_status(status: int) -> SourceLost:
    """For an answer that is not a success."""
    if status in _BY_STATUS:
        reason, hopeless = _BY_STATUS[status]
        return SourceLost(reason, hopeless=hopeless)
    if 300 <= status < 400:
        return SourceLost(REDIRECTED, hopeless=True)
    return SourceLost(FAULT_OF_ITS_OWN if status >= 500 else REQUEST_REFUSED)


def by_error(error: OSError) -> SourceLost:
    """For what a socket says."""
    if isinstance(error, TimeoutError):
        return SourceLost(TIMED_OUT)
    if isinstance(error, ConnectionRefusedError):
        return SourceLost(CONNECTION_REFUSED)
    if error.errno in _UNREACHABLE:
        return SourceLost(NO_ROUTE)
    return SourceLost(BROKE)

"""What FFmpeg says while it works, heard by the thread that works and by nobody else.

Its messages are the only place where a decoder admits that a reference was missing, and the reader
of RTP that packets were. They may also repeat URLs: none of them is ever printed.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator

import av.logging
from av.logging import Capture

_WHILE_READING = re.compile(r"missed \d+ packet|dropping frame|without a start", re.IGNORECASE)
_WHILE_DECODING = re.compile(
    r"missing|could not find ref|error while decoding|concealing|corrupt|reference (picture|frame)"
    r"|out of range|invalid (data|slice)|illegal|overread|decode_slice|cabac|undecodable",
    re.IGNORECASE,
)
# What a camera notes beside its pictures has no part in them; and some always keep one reference
# picture more than they said they would.
_BESIDE = re.compile(r"\bSEI\b|timecode|user data|VUI|\bAUD\b|exceeds max", re.IGNORECASE)


_opening = threading.local()  # FFmpeg says it in the thread that opens, and to nobody in particular


class _Redirects(logging.Filter):
    """Stops the thread that says it is being redirected. Lets nothing through."""

    def filter(self, record: logging.LogRecord) -> bool:
        hold: Callable[[], None] | None = getattr(_opening, "hold", None)
        if hold is not None and "Redirecting to" in record.getMessage():
            hold()
        return False


_REDIRECTS = _Redirects()


def listen() -> None:
    """Let `Hearing` hear warnings and errors, and `held_at_redirect` redirects; silence the rest and
    these for everyone else. Once is enough."""
    if av.logging.get_level() != av.logging.INFO:
        logging.getLogger("libav").setLevel(logging.CRITICAL + 1)
        logging.getLogger("libav.rtsp").setLevel(logging.INFO)
        logging.getLogger("libav.rtsp").addFilter(_REDIRECTS)
        av.logging.set_skip_repeated(False)  # or what another thread just said would be swallowed
        av.logging.set_level(av.logging.INFO)


@contextlib.contextmanager
def held_at_redirect(hold: Callable[[], None]) -> Iterator[None]:
    """FFmpeg says that it follows an RTSP redirect, then follows it: `hold` is called in between, in
    this thread. It must not raise."""
    _opening.hold = hold
    try:
        yield
    finally:
        _opening.hold = None


class Hearing:
    """What FFmpeg says in the thread that made this, inside its `with`. Used again and again."""

    def __init__(self) -> None:
        self._capture = Capture()
        self._said: list[tuple[int, str, str]] = self._capture.logs

    def __enter__(self) -> Hearing:
        self._said.clear()
        self._capture.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._capture.__exit__(None, None, None)

    def of_lost_packets(self) -> bool:
        return any(_WHILE_READING.search(said) for said in self._warnings())

    def of_damage(self) -> bool:
        return any(is_damage(said) for said in self._warnings())

    def _warnings(self) -> Iterator[str]:
        return (said for level, _, said in self._said if level <= av.logging.WARNING)


def is_damage(said: str) -> bool:
    """Whether a decoder's message means that the picture is not what was sent."""
    return _WHILE_DECODING.search(said) is not None and _BESIDE.search(said) is None

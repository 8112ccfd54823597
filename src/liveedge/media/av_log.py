"""What FFmpeg says while it works, heard by the thread that works and by nobody else.

Its messages are the only place where a decoder admits that a reference was missing, and the reader
of RTP that packets were. They may also repeat URLs: none of them is ever printed.
"""

from __future__ import annotations

import logging
import re

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


def listen() -> None:
    """Let `Hearing` hear warnings and errors, and silence them for everyone else. Once is enough."""
    if av.logging.get_level() != av.logging.WARNING:
        logging.getLogger("libav").setLevel(logging.CRITICAL + 1)
        av.logging.set_skip_repeated(False)  # or what another thread just said would be swallowed
        av.logging.set_level(av.logging.WARNING)


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
        return bool(self._said) and any(_WHILE_READING.search(said) for *_, said in self._said)

    def of_damage(self) -> bool:
        return bool(self._said) and any(is_damage(said) for *_, said in self._said)


def is_damage(said: str) -> bool:
    """Whether a decoder's message means that the picture is not what was sent."""
    return _WHILE_DECODING.search(said) is not None and _BESIDE.search(said) is None

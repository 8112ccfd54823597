"""The little that signalling has to know of an offer: its sections, and how to ask for less of it.

A LiveKit client puts all its tracks into one offer. What we do not want is offered on as inactive,
so that the answer tells the client to stop sending it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from liveedge.media.webrtc.session import OfferInvalid

T = TypeVar("T")

LARGE_CHARS = 64 << 10  # 20 tracks of an SDK; as `webrtc.connection` has it
DECODABLE = ("vp8", "h264")
MOST_SECTIONS = 256  # that are looked at; a text of 512 kB could hold 170,000
_DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")
_DIRECTION_LINES = frozenset(f"a={direction}" for direction in _DIRECTIONS)
_REPAIR = frozenset({"rtx", "red", "ulpfec", "flexfec-03"})  # carry nothing of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One `m=` section of an offer."""

    index: int
    kind: str  # audio, video, application
    mid: str
    sends: bool
    track_id: str  # the sender's name for its track; empty where it has none
    codecs: tuple[str, ...]  # in the order of preference, lower case, without those for repair

    @property
    def is_video(self) -> bool:
        return self.kind == "video" and self.sends

    @property
    def is_decodable(self) -> bool:
        return any(codec in DECODABLE for codec in self.codecs)


async def beside(offer: str, read: Callable[[str], T]) -> T:
    """`read(offer)`, of a large offer beside the event loop: 512 kB take a second."""
    if len(offer) < LARGE_CHARS:
        return read(offer)
    return await asyncio.to_thread(read, offer)


def sections(offer: str) -> tuple[Section, ...]:
    """The sections of an offer. Raises OfferInvalid for what is no SDP."""
    session, *rest = _split(offer)
    if not session or not session[0].startswith("v=0"):
        raise OfferInvalid("the offer is not SDP: it does not begin with v=0")
    if len(rest) > MOST_SECTIONS:
        raise OfferInvalid(f"the offer has {len(rest)} media sections, at most {MOST_SECTIONS}")
    return tuple(_section(index, lines) for index, lines in enumerate(rest))


def narrowed(offer: str, *, keep: str | None, codec: str | None = None) -> str:
    """The offer with every sent video but that of mid `keep` inactive, and `codec` preferred there."""
    session, *rest = _split(offer)
    lines = list(session)
    for index, section in enumerate(rest):
        facts = _section(index, section)
        if not facts.is_video:
            lines += section
        elif facts.mid != keep:
            lines += _inactive(section)
        else:
            lines += section if codec is None else _preferring(section, codec)
    return "".join(f"{line}\r\n" for line in lines)


def _split(offer: str) -> list[list[str]]:
    """Lines of the session, then those of each section."""
    parts: list[list[str]] = [[]]
    for line in offer.splitlines():
        if line.startswith("m="):
            parts.append([])
        parts[-1].append(line)
    return parts


def _section(index: int, lines: Sequence[str]) -> Section:
    words = lines[0].removeprefix("m=").split()
    direction = next((d for d in _DIRECTIONS if f"a={d}" in lines), "sendrecv")
    # Port 0 is also what a section has that goes with the others' transport (RFC 9143).
    is_rejected = len(words) > 1 and words[1] == "0" and "a=bundle-only" not in lines
    return Section(
        index=index,
        kind=words[0] if words else "",
        mid=_value(lines, "a=mid:"),
        sends=direction.startswith("send") and not is_rejected,
        track_id=_value(lines, "a=msid:").rpartition(" ")[2],
        codecs=tuple(dict.fromkeys(name for _, name in _codecs(lines) if name not in _REPAIR)),
    )


def _value(lines: Sequence[str], start: str) -> str:
    return next((line.removeprefix(start).strip() for line in lines if line.startswith(start)), "")


def _codecs(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Payload types with their codecs, in the order of the `m=` line."""
    names: dict[str, str] = {}
    for line in lines:
        if line.startswith("a=rtpmap:"):
            payload, _, codec = line.removeprefix("a=rtpmap:").partition(" ")
            names[payload] = codec.partition("/")[0].lower()
    return [(payload, names[payload]) for payload in lines[0].split()[3:] if payload in names]


def _inactive(section: Sequence[str]) -> list[str]:
    """Without any word about its direction a section sends, so the word is added."""
    return [*(line for line in section if line not in _DIRECTION_LINES), "a=inactive"]


def _preferring(section: Sequence[str], codec: str) -> list[str]:
    """The section with the payloads of `codec` first, in the `m=` line and among the `rtpmap`s.

    A receiver may go by either.
    """
    first = {payload for payload, name in _codecs(section) if name == codec}
    words = section[0].split()
    media, payloads = words[:3], words[3:]
    ordered = [*(p for p in payloads if p in first), *(p for p in payloads if p not in first)]
    maps = [line for line in section if line.startswith("a=rtpmap:")]
    maps.sort(key=lambda line: line.removeprefix("a=rtpmap:").partition(" ")[0] not in first)
    next_map = iter(maps)
    rest = [next(next_map) if line.startswith("a=rtpmap:") else line for line in section[1:]]
    return [" ".join([*media, *ordered]), *rest]

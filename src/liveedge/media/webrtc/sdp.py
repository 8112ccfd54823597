"""What a publisher offers: SDP read into values, everything checked, nothing trusted.

Pure. Raises OfferInvalid, whose text quotes names of codecs and nothing else of the offer.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from liveedge.media.webrtc.session import OfferInvalid

Direction: TypeAlias = Literal["sendrecv", "sendonly", "recvonly", "inactive"]

MAX_OFFER_CHARS = 512 << 10  # every republishing adds a section of about 3 kB
MAX_SECTIONS = 256
MAX_LINE_CHARS = 8192
MAX_CANDIDATES = 32  # each makes us send to the address that it names

_DIRECTIONS: tuple[Direction, ...] = ("sendrecv", "sendonly", "recvonly", "inactive")
_MEDIA = re.compile(r"m=([a-z]{1,20}) (\d{1,5})(?:/\d+)? ([A-Z/]{1,40}) ([^ ].*)")
_CONTROL = re.compile(r"[^\x20-\x7e\x80-\U0010ffff\r\n\t]")
_ICE_NAME = re.compile(r"[!-9;-~]{4,256}")  # the standard allows less; a colon would mislead
_ICE_PASSWORD = re.compile(r"[!-~]{22,256}")
_FINGERPRINT = re.compile(r"(?:[0-9A-Fa-f]{2}:){15,63}[0-9A-Fa-f]{2}")
_TOKEN = re.compile(r"[!-~]{1,64}")
_HASHES = frozenset({"sha-256", "sha-384", "sha-512"})
_CANDIDATE_TYPES = frozenset({"host", "srflx", "prflx", "relay"})
_MAX_FEEDBACK = 32  # kinds of one payload type; browsers have 5
_STATIC_AUDIO = {0: "pcmu", 8: "pcma", 9: "g722"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedCodec:
    """One payload type of a section."""

    payload_type: int
    name: str  # lower case
    rate: str  # clock and channels, as written
    parameters: Mapping[str, str]
    feedback: tuple[str, ...]  # what it lets us ask for: "nack", "nack pli"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLayer:
    """One picture size of a simulcast track."""

    rid: str
    n_pixels: int | None = None  # where the offer says it


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedSection:
    """One `m=` section."""

    kind: str
    port: int
    protocol: str
    formats: tuple[str, ...]
    mid: str
    direction: Direction
    codecs: tuple[OfferedCodec, ...]  # in the order of preference
    extensions: Mapping[str, int]
    layers: tuple[OfferedLayer, ...]
    ssrcs: frozenset[int]
    flags: frozenset[str]  # attributes without a value
    sctp_port: int | None

    @property
    def is_rejected(self) -> bool:
        return self.port == 0 and "bundle-only" not in self.flags

    @property
    def sends(self) -> bool:
        return not self.is_rejected and self.direction in ("sendrecv", "sendonly")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCandidate:
    """An address of the publisher that we can try."""

    ip: str
    port: int
    kind: str
    priority: int
    foundation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTransport:
    """How to reach and to recognise the publisher."""

    ufrag: str
    password: str = field(repr=False)
    fingerprints: tuple[tuple[str, str], ...] = ()  # hash, digest
    setup: str = "actpass"
    is_lite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An offer that makes sense."""

    sections: tuple[OfferedSection, ...]
    bundle: tuple[str, ...] | None  # mids that share one transport; None: nothing is said
    transport: RemoteTransport
    candidates: tuple[RemoteCandidate, ...]  # without those that cannot be used, or are too many


def read_offer(text: str) -> Offer:
    """Raises OfferInvalid."""
    session, parts = _split(text)
    bundle = _bundle(session)
    sections = tuple(_section(lines) for lines in parts)
    _check_mids(sections)
    transport_lines = _transport_lines(sections, parts, bundle)
    transport = _transport(session, transport_lines)
    found = [
        read_candidate(line[2:])
        for part in parts
        for line in part
        if line.startswith("a=candidate:")
    ]
    usable = list(dict.fromkeys(candidate for candidate in found if candidate is not None))
    return Offer(
        sections=sections,
        bundle=bundle,
        transport=transport,
        candidates=tuple(usable[:MAX_CANDIDATES]),
    )


def read_candidate(text: str) -> RemoteCandidate | None:
    """A candidate line; None if it is none that can be used: mDNS, TCP, another component."""
    words = text.strip().removeprefix("a=").removeprefix("candidate:").split()
    if len(words) < 8 or words[6] != "typ" or len(text) > MAX_LINE_CHARS:
        return None
    foundation, component, protocol, priority, ip, port, _, kind = words[:8]
    if component != "1" or protocol.lower() != "udp" or kind not in _CANDIDATE_TYPES:
        return None
    if not (_is_number(priority, 2**32 - 1) and _is_number(port, 65535) and int(port)):
        return None
    if not _TOKEN.fullmatch(foundation):
        return None
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:  # a name, as mDNS hides addresses behind
        return None
    if address.is_multicast or address.is_unspecified:
        return None
    return RemoteCandidate(
        ip=str(address), port=int(port), kind=kind, priority=int(priority), foundation=foundation
    )


# ── lines ──


def _split(text: str) -> tuple[list[str], list[list[str]]]:
    """Lines of the session, and of each section."""
    if len(text) > MAX_OFFER_CHARS:
        raise OfferInvalid(
            f"the offer has {len(text)} characters, more than the {MAX_OFFER_CHARS} allowed"
        )
    if _CONTROL.search(text):
        raise OfferInvalid("the offer is not SDP: it contains control characters")
    if not text.startswith("v=0"):
        raise OfferInvalid("the offer is not SDP: it does not begin with v=0")
    session: list[str] = []
    parts: list[list[str]] = []
    for line in re.split(r"\r\n|\n|\r", text):
        if len(line) > MAX_LINE_CHARS:
            raise OfferInvalid(f"the offer has a line of more than {MAX_LINE_CHARS} characters")
        if line.startswith("m="):
            parts.append([line])
            if len(parts) > MAX_SECTIONS:
                raise OfferInvalid(f"the offer has more than {MAX_SECTIONS} media sections")
        elif line:
            (parts[-1] if parts else session).append(line.rstrip())
    if not parts:
        raise OfferInvalid("the offer has no media section: nothing would be published")
    return session, parts


def _values(lines: Sequence[str], name: str) -> list[str]:
    start = f"a={name}:"
    return [line[len(start) :].strip() for line in lines if line.startswith(start)]


def _value(lines: Sequence[str], name: str) -> str | None:
    found = _values(lines, name)
    return found[0] if found else None


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most


def _number(text: str | None, most: int) -> int | None:
    return int(text) if text is not None and _is_number(text, most) else None


# ── the session ──


def _bundle(session: Sequence[str]) -> tuple[str, ...] | None:
    for group in _values(session, "group"):
        words = group.split()
        if words and words[0] == "BUNDLE":
            return tuple(words[1:])
    return None


def _check_mids(sections: Sequence[OfferedSection]) -> None:
    mids = [section.mid for section in sections if not section.is_rejected]
    if len(set(mids)) != len(mids):
        raise OfferInvalid(
            "the offer is not valid: two media sections have the same a=mid, or none"
        )


def _transport_lines(
    sections: Sequence[OfferedSection],
    parts: Sequence[list[str]],
    bundle: tuple[str, ...] | None,
) -> list[str]:
    """Of the section whose transport all others share."""
    able = [
        (section, lines)
        for section, lines in zip(sections, parts, strict=True)
        if not section.is_rejected and _values(lines, "ice-ufrag")
    ]
    tagged = [lines for section, lines in able if bundle and section.mid == bundle[0]]
    return [*tagged, *(lines for _, lines in able), parts[0]][0]


def _transport(session: Sequence[str], lines: Sequence[str]) -> RemoteTransport:
    def both(name: str) -> str | None:
        return _value(lines, name) or _value(session, name)

    ufrag, password = both("ice-ufrag"), both("ice-pwd")
    if ufrag is None or password is None:
        raise OfferInvalid("the offer has no a=ice-ufrag and a=ice-pwd: it is not one of WebRTC")
    if not _ICE_NAME.fullmatch(ufrag) or not _ICE_PASSWORD.fullmatch(password):
        raise OfferInvalid("the offer's a=ice-ufrag or a=ice-pwd is malformed")
    prints = [
        (words[0].lower(), words[1].upper())
        for words in map(
            str.split, _values(lines, "fingerprint") or _values(session, "fingerprint")
        )
        if len(words) == 2 and words[0].lower() in _HASHES and _FINGERPRINT.fullmatch(words[1])
    ]
    if not prints:
        raise OfferInvalid("the offer has no a=fingerprint of SHA-256, SHA-384 or SHA-512")
    setup = both("setup") or "actpass"
    if setup not in ("actpass", "active", "passive"):
        raise OfferInvalid("the offer's a=setup is none of actpass, active and passive")
    return RemoteTransport(
        ufrag=ufrag,
        password=password,
        fingerprints=tuple(prints),
        setup=setup,
        is_lite="a=ice-lite" in session,
    )


# ── sections ──


def _section(lines: Sequence[str]) -> OfferedSection:
    match = _MEDIA.fullmatch(lines[0].rstrip())
    if match is None or int(match[2]) > 65535:
        raise OfferInvalid("the offer is not SDP: a line with m= is malformed")
    kind, port, protocol, formats = match[1], int(match[2]), match[3], tuple(match[4].split())
    mid = _value(lines, "mid") or ""
    if mid and not _TOKEN.fullmatch(mid):
        raise OfferInvalid("the offer is not valid: an a=mid is malformed")
    direction: Direction = next((d for d in _DIRECTIONS if f"a={d}" in lines), "sendrecv")
    return OfferedSection(
        kind=kind,
        port=port,
        protocol=protocol,
        formats=formats,
        mid=mid,
        direction=direction,
        codecs=_codecs(kind, formats, lines) if kind in ("audio", "video") else (),
        extensions=_extensions(lines),
        layers=_layers(lines),
        ssrcs=_ssrcs(lines),
        flags=frozenset(line[2:] for line in lines if line.startswith("a=") and ":" not in line),
        sctp_port=_number(_value(lines, "sctp-port"), 65535),
    )


def _codecs(kind: str, formats: Sequence[str], lines: Sequence[str]) -> tuple[OfferedCodec, ...]:
    """In the order of the `m=` line, which is that of preference."""
    names = _by_payload_type(lines, "rtpmap")
    parameters = _by_payload_type(lines, "fmtp")
    feedback = _feedback(lines)
    codecs = []
    for payload_type in dict.fromkeys(formats):
        if not _is_number(payload_type, 127):
            continue
        name, _, rate = names.get(payload_type, "").partition("/")
        if not name and kind == "audio":
            name, rate = _STATIC_AUDIO.get(int(payload_type), ""), "8000"
        if not name:
            continue
        codecs.append(
            OfferedCodec(
                payload_type=int(payload_type),
                name=name.lower(),
                rate=rate,
                parameters=_parameters(parameters.get(payload_type, "")),
                feedback=(*feedback.get(payload_type, ()), *feedback.get("*", ())),
            )
        )
    return tuple(codecs)


def _feedback(lines: Sequence[str]) -> dict[str, list[str]]:
    """By payload type, or * for all."""
    found: dict[str, list[str]] = {}
    for value in _values(lines, "rtcp-fb"):
        payload_type, _, kind = value.partition(" ")
        kinds = found.setdefault(payload_type, [])
        if len(kinds) < _MAX_FEEDBACK:
            kinds.append(kind)
    return found


def _by_payload_type(lines: Sequence[str], name: str) -> dict[str, str]:
    pairs = (value.partition(" ") for value in _values(lines, name))
    return {payload_type: rest.strip() for payload_type, _, rest in pairs}


def _parameters(text: str) -> dict[str, str]:
    pairs = (part.strip().partition("=") for part in text.split(";"))
    return {key.lower(): value for key, _, value in pairs if key}


def _extensions(lines: Sequence[str]) -> dict[str, int]:
    """By URI. The first of a number or a URI counts."""
    found: dict[str, int] = {}
    for value in _values(lines, "extmap"):
        words = value.split()
        number = _number(words[0].partition("/")[0], 255) if len(words) > 1 else None
        if number and words[1] not in found and number not in found.values():
            found[words[1]] = number
    return found


def _layers(lines: Sequence[str]) -> tuple[OfferedLayer, ...]:
    """Those of a=simulcast:send that are not paused, in their order."""
    words = (_value(lines, "simulcast") or "").split()
    try:
        listed = words[words.index("send") + 1]
    except (ValueError, IndexError):
        return ()
    restrictions = _by_payload_type(lines, "rid")
    layers = []
    for alternatives in listed.split(";"):
        rid = alternatives.split(",")[0]
        if _TOKEN.fullmatch(rid) and not rid.startswith("~"):
            limits = _parameters(restrictions.get(rid, "").removeprefix("send").strip())
            width = _number(limits.get("max-width"), 65535)
            height = _number(limits.get("max-height"), 65535)
            layers.append(
                OfferedLayer(rid=rid, n_pixels=width * height if width and height else None)
            )
    return tuple(layers)


def _ssrcs(lines: Sequence[str]) -> frozenset[int]:
    numbers = (_number(value.split(" ")[0], 2**32 - 1) for value in _values(lines, "ssrc"))
    return frozenset(number for number in numbers if number is not None)

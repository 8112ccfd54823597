"""What we answer to an offer: which sections we take and how, and the SDP that says so.

Video is taken as VP8 or H.264 and only its best layer; sound is taken and thrown away, as an answer
that refuses it makes some publishers fail; data channels are tolerated; all else is refused.

Pure. Raises OfferInvalid.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from liveedge.media.webrtc.payload import START_CODE, Codec
from liveedge.media.webrtc.rtp import VIDEO_CLOCK_HZ, ExtensionIds
from liveedge.media.webrtc.sdp import Offer, OfferedCodec, OfferedLayer, OfferedSection
from liveedge.media.webrtc.session import OfferInvalid
from liveedge.media.webrtc.track import TrackFormats

MID = "urn:ietf:params:rtp-hdrext:sdes:mid"
RID = "urn:ietf:params:rtp-hdrext:sdes:rtp-stream-id"
REPAIRED_RID = "urn:ietf:params:rtp-hdrext:sdes:repaired-rtp-stream-id"
ORIENTATION = "urn:3gpp:video-orientation"
EXTENSIONS = (MID, RID, REPAIRED_RID, ORIENTATION)

# A publisher begins with what the server says here. By default it begins with 300 kbit/s, and 720p
# with less than half of its size.
START_BITRATE_BPS = 2_500_000
MAX_VIDEOS = 16  # sent at the same time by one publisher
SCTP_PORT = 5000
MAX_MESSAGE_BYTES = 65536

_CODECS: dict[str, Codec] = {"vp8": "vp8", "h264": "h264"}
_SOUND = frozenset({"opus", "pcmu", "pcma", "g722"})
_REPAIRS = frozenset({"rtx", "red", "ulpfec", "flexfec-03"})
_FEEDBACK = ("nack", "nack pli", "ccm fir", "goog-remb")
_NAMES = {"vp8": "VP8", "vp9": "VP9", "av1": "AV1", "h264": "H.264", "h265": "H.265"}
_LAYER_RANK = {"f": 3, "h": 2, "q": 1, "hi": 3, "mid": 2, "lo": 1, "high": 3, "medium": 2, "low": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionAnswer:
    """What becomes of one section."""

    section: OfferedSection
    is_rejected: bool = False
    takes: bool = False  # video or sound that the publisher sends
    codecs: tuple[OfferedCodec, ...] = ()
    layer: str | None = None

    @property
    def is_video(self) -> bool:
        return self.takes and self.section.kind == "video"

    @property
    def is_data(self) -> bool:
        return self.section.kind == "application" and not self.is_rejected

    @property
    def formats(self) -> TrackFormats:
        return TrackFormats(
            codecs={c.payload_type: _CODECS[c.name] for c in self.codecs if c.name in _CODECS},
            repairs={c.payload_type: _repaired(c) for c in self.codecs if c.name == "rtx"},
        )

    @property
    def parameter_sets(self) -> bytes:
        """Those of H.264 that the offer carries, with start codes."""
        return b"".join(_sprop(codec.parameters) for codec in self.codecs if codec.name == "h264")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTransport:
    """How the publisher reaches and recognises us."""

    ufrag: str
    password: str
    fingerprint: str  # SHA-256
    setup: str  # active or passive
    candidates: tuple[str, ...]


def decide(offer: Offer, *, is_first: bool) -> tuple[SectionAnswer, ...]:
    """One answer per section, in their order."""
    answers = [_decide(section, offer) for section in offer.sections]
    videos = [answer for answer in answers if answer.is_video]
    if len(videos) > MAX_VIDEOS:
        raise OfferInvalid(
            f"the offer sends {len(videos)} videos, more than the {MAX_VIDEOS} allowed"
        )
    if is_first and not videos and not any(answer.is_data for answer in answers):
        raise OfferInvalid("the offer sends no video; add a video track and offer again")
    return tuple(answers)


def extension_ids(answers: Iterable[SectionAnswer]) -> ExtensionIds:
    """Of all sections together: on one transport they share their numbers."""
    known: dict[str, int] = {}
    for answer in answers:
        if not answer.is_rejected:
            known |= {u: n for u, n in answer.section.extensions.items() if u in EXTENSIONS}
    return ExtensionIds(
        mid=known.get(MID),
        rid=known.get(RID),
        repaired_rid=known.get(REPAIRED_RID),
        orientation=known.get(ORIENTATION),
    )


def write_answer(
    offer: Offer,
    answers: Sequence[SectionAnswer],
    *,
    local: LocalTransport,
    session_id: int,
    version: int,
    max_bitrate_bps: int,
) -> str:
    """The SDP."""
    kept = [answer for answer in answers if not answer.is_rejected]
    tag = _tag(offer, kept)
    lines = ["v=0", f"o=- {session_id} {version} IN IP4 127.0.0.1", "s=-", "t=0 0"]
    if offer.bundle is not None:
        taken = {answer.section.mid for answer in kept}
        mids = [mid for mid in offer.bundle if mid in taken]
        lines.append(" ".join(["a=group:BUNDLE", *mids]))
    lines.append("a=msid-semantic: WMS *")
    start_kbps = min(START_BITRATE_BPS, max_bitrate_bps) // 1000
    for answer in answers:
        if answer.is_rejected:
            lines += _rejected(answer.section)
            continue
        lines += _data(answer.section) if answer.is_data else _media(answer, start_kbps)
        lines += _transport(local, with_candidates=answer.section.mid == tag)
    return "".join(f"{line}\r\n" for line in lines)


# ── decisions ──


def _decide(section: OfferedSection, offer: Offer) -> SectionAnswer:
    if section.is_rejected or not _shares_transport(section, offer):
        return SectionAnswer(section=section, is_rejected=True)
    if section.kind == "application":
        is_channel = section.protocol.endswith("DTLS/SCTP") and section.formats == (
            "webrtc-datachannel",
        )
        return SectionAnswer(section=section, is_rejected=not is_channel)
    if section.kind == "audio":
        sound = tuple(codec for codec in section.codecs if codec.name in _SOUND)
        is_usable = bool(sound) and "rtcp-mux" in section.flags
        return SectionAnswer(
            section=section, is_rejected=not is_usable, takes=section.sends, codecs=sound
        )
    if section.kind == "video":
        return _decide_video(section)
    return SectionAnswer(section=section, is_rejected=True)


def _decide_video(section: OfferedSection) -> SectionAnswer:
    codecs = _decodable(section.codecs)
    if not section.sends:
        codecs = codecs or section.codecs[:1]
        return SectionAnswer(section=section, is_rejected=not codecs, codecs=codecs)
    if not codecs:
        raise OfferInvalid(_refusal(section.codecs))
    if "rtcp-mux" not in section.flags:
        raise OfferInvalid("the offer's video has no a=rtcp-mux, which this server needs")
    layer = _best_layer(section.layers) if RID in section.extensions else None
    return SectionAnswer(section=section, takes=True, codecs=codecs, layer=layer)


def _shares_transport(section: OfferedSection, offer: Offer) -> bool:
    """There is one transport: of the bundle, or without one of the first video that is sent."""
    if offer.bundle is not None:
        return section.mid in offer.bundle
    open_sections = [s for s in offer.sections if not s.is_rejected]
    sent = [s for s in open_sections if s.kind == "video" and s.sends]
    return section is (sent or open_sections)[0]


def _decodable(codecs: Sequence[OfferedCodec]) -> tuple[OfferedCodec, ...]:
    """With their retransmissions."""
    rate = str(VIDEO_CLOCK_HZ)
    taken = {
        codec.payload_type
        for codec in codecs
        if codec.name in _CODECS
        and codec.rate == rate
        and codec.parameters.get("packetization-mode", "0") in ("0", "1")
    }
    return tuple(
        codec
        for codec in codecs
        if codec.payload_type in taken
        or (codec.name == "rtx" and codec.rate == rate and _repaired(codec) in taken)
    )


def _repaired(codec: OfferedCodec) -> int:
    apt = codec.parameters.get("apt", "")
    return int(apt) if apt.isascii() and apt.isdigit() and len(apt) < 4 else -1


def _refusal(codecs: Sequence[OfferedCodec]) -> str:
    names = dict.fromkeys(
        _NAMES.get(codec.name, codec.name[:20].upper())
        for codec in codecs
        if codec.name not in _REPAIRS
    )
    offered = " and ".join(list(names)[:6]) or "no codec"
    return f"the publisher offers {offered}; this server takes VP8 and H.264"


def _best_layer(layers: Sequence[OfferedLayer]) -> str | None:
    """The largest: by size where it is said, else by the usual names, else the first."""
    if not layers:
        return None
    best = max(layers, key=lambda layer: (layer.n_pixels or 0, _LAYER_RANK.get(layer.rid, 0)))
    return best.rid


def _sprop(parameters: Mapping[str, str]) -> bytes:
    sets = b""
    for part in parameters.get("sprop-parameter-sets", "").split(","):
        try:
            unit = base64.b64decode(part, validate=True)
        except (binascii.Error, ValueError):  # somebody else's spelling; the stream has them too
            return b""
        sets += START_CODE + unit if unit else b""
    return sets


# ── lines ──


def _tag(offer: Offer, kept: Sequence[SectionAnswer]) -> str | None:
    """The section that speaks for the transport of all."""
    mids = [answer.section.mid for answer in kept]
    if offer.bundle is not None:
        return next((mid for mid in offer.bundle if mid in mids), None)
    return mids[0] if mids else None


def _rejected(section: OfferedSection) -> list[str]:
    formats = " ".join(section.formats)
    lines = [f"m={section.kind} 0 {section.protocol} {formats}", "c=IN IP4 0.0.0.0", "a=inactive"]
    return [*lines, f"a=mid:{section.mid}"] if section.mid else lines


def _data(section: OfferedSection) -> list[str]:
    return [
        f"m=application 9 {section.protocol} webrtc-datachannel",
        "c=IN IP4 0.0.0.0",
        f"a=mid:{section.mid}",
        f"a=sctp-port:{SCTP_PORT}",
        f"a=max-message-size:{MAX_MESSAGE_BYTES}",
    ]


def _media(answer: SectionAnswer, start_kbps: int) -> list[str]:
    section = answer.section
    payloads = " ".join(str(codec.payload_type) for codec in answer.codecs)
    lines = [f"m={section.kind} 9 {section.protocol} {payloads}", "c=IN IP4 0.0.0.0"]
    lines += ["a=recvonly" if answer.takes else "a=inactive"]
    lines += [f"a=mid:{section.mid}"] if section.mid else []
    lines += ["a=rtcp-mux"]
    lines += ["a=rtcp-rsize"] if "rtcp-rsize" in section.flags else []
    wanted = EXTENSIONS if section.kind == "video" else (MID,)
    lines += [f"a=extmap:{n} {uri}" for uri, n in section.extensions.items() if uri in wanted]
    for codec in answer.codecs:
        lines += _codec(codec, start_kbps)
    if answer.layer is not None:
        lines += [f"a=rid:{answer.layer} recv", f"a=simulcast:recv {answer.layer}"]
    return lines


def _codec(codec: OfferedCodec, start_kbps: int) -> list[str]:
    number = codec.payload_type
    name = _SPELLING.get(codec.name, codec.name)
    lines = [f"a=rtpmap:{number} {name}/{codec.rate}"]
    if codec.name == "rtx":
        return [*lines, f"a=fmtp:{number} apt={_repaired(codec)}"]
    if codec.name not in _CODECS:
        return lines
    lines += [f"a=rtcp-fb:{number} {kind}" for kind in _FEEDBACK if kind in codec.feedback]
    agreed = [
        f"{key}={codec.parameters[key]}"
        for key in ("level-asymmetry-allowed", "packetization-mode", "profile-level-id")
        if key in codec.parameters
    ]
    agreed.append(f"x-google-start-bitrate={start_kbps}")
    return [*lines, f"a=fmtp:{number} {';'.join(agreed)}"]


_SPELLING = {"vp8": "VP8", "h264": "H264", "pcmu": "PCMU", "pcma": "PCMA", "g722": "G722"}


def _transport(local: LocalTransport, *, with_candidates: bool) -> list[str]:
    lines = [
        f"a=ice-ufrag:{local.ufrag}",
        f"a=ice-pwd:{local.password}",
        f"a=fingerprint:sha-256 {local.fingerprint}",
        f"a=setup:{local.setup}",
    ]
    if with_candidates:
        lines += [f"a={candidate}" for candidate in local.candidates]
        lines += ["a=end-of-candidates"]
    return lines

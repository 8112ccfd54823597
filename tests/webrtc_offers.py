"""Offers as publishers write them, made up section by section."""

from __future__ import annotations

from collections.abc import Sequence

FINGERPRINT = "sha-256 " + ":".join(f"{n:02X}" for n in range(32))
MID = "urn:ietf:params:rtp-hdrext:sdes:mid"
RID = "urn:ietf:params:rtp-hdrext:sdes:rtp-stream-id"
REPAIRED_RID = "urn:ietf:params:rtp-hdrext:sdes:repaired-rtp-stream-id"
ORIENTATION = "urn:3gpp:video-orientation"
TRANSPORT_CC = "http://www.ietf.org/id/draft-holmer-rmcat-transport-wide-cc-extensions-01"
EXTENSIONS = {4: MID, 10: RID, 11: REPAIRED_RID, 13: ORIENTATION, 3: TRANSPORT_CC}

VP8 = ["96 VP8/90000"]
VP8_RTX = ["96 VP8/90000", "97 rtx/90000 apt=96"]
VP9 = ["98 VP9/90000 profile-id=0", "99 rtx/90000 apt=98"]
AV1 = ["45 AV1/90000 level-idx=5;profile=0;tier=0"]
H264 = [
    "102 H264/90000 level-asymmetry-allowed=1;packetization-mode=1;profile-level-id=42001f",
    "103 rtx/90000 apt=102",
]
H264_MODE_0 = [
    "104 H264/90000 level-asymmetry-allowed=1;packetization-mode=0;profile-level-id=42001f"
]
BROWSER = [*VP8_RTX, *H264, *H264_MODE_0, *AV1, *VP9, "100 red/90000", "101 ulpfec/90000"]
OPUS = ["111 opus/48000/2 minptime=10;useinbandfec=1", "63 red/48000/2 111/111", "0 PCMU/8000"]


def transport(*, ufrag: str = "abcd", setup: str = "actpass") -> list[str]:
    return [
        f"a=ice-ufrag:{ufrag}",
        "a=ice-pwd:0123456789abcdefghijklmn",
        "a=ice-options:trickle",
        f"a=fingerprint:{FINGERPRINT}",
        f"a=setup:{setup}",
    ]


def video(
    mid: str,
    *,
    codecs: Sequence[str] = BROWSER,
    direction: str = "sendonly",
    layers: Sequence[str] = (),
    extra: Sequence[str] = (),
    port: int = 9,
) -> list[str]:
    numbers = " ".join(codec.split()[0] for codec in codecs)
    lines = [f"m=video {port} UDP/TLS/RTP/SAVPF {numbers}", "c=IN IP4 0.0.0.0", *transport()]
    lines += [f"a=mid:{mid}", *(f"a=extmap:{n} {uri}" for n, uri in EXTENSIONS.items())]
    lines += [f"a={direction}", "a=msid:stream track", "a=rtcp-mux", "a=rtcp-rsize"]
    for codec in codecs:
        number, name, *parameters = codec.split(" ", 2)
        lines.append(f"a=rtpmap:{number} {name}")
        if not name.startswith(("rtx", "red", "ulpfec")):
            kinds = ("goog-remb", "transport-cc", "ccm fir", "nack", "nack pli")
            lines += [f"a=rtcp-fb:{number} {kind}" for kind in kinds]
        lines += [f"a=fmtp:{number} {text}" for text in parameters]
    lines += [f"a=rid:{rid} send" for rid in layers]
    lines += [f"a=simulcast:send {';'.join(layers)}"] if layers else []
    return [*lines, *extra]


def audio(mid: str, *, direction: str = "sendonly", codecs: Sequence[str] = OPUS) -> list[str]:
    section = video(mid, codecs=codecs, direction=direction)
    return [section[0].replace("m=video", "m=audio"), *section[1:]]


def data(mid: str) -> list[str]:
    return [
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 0.0.0.0",
        *transport(),
        f"a=mid:{mid}",
        "a=sctp-port:5000",
        "a=max-message-size:262144",
    ]


def offer(*sections: Sequence[str], bundle: bool = True, extra: Sequence[str] = ()) -> str:
    mids = [
        line.removeprefix("a=mid:")
        for section in sections
        for line in section
        if line.startswith("a=mid:")
    ]
    head = ["v=0", "o=- 4611731400430051336 2 IN IP4 127.0.0.1", "s=-", "t=0 0"]
    head += ["a=group:BUNDLE " + " ".join(mids)] if bundle else []
    head += ["a=extmap-allow-mixed", "a=msid-semantic: WMS stream", *extra]
    return "".join(f"{line}\r\n" for line in [*head, *(line for s in sections for line in s)])


def livekit_first() -> str:
    """What the LiveKit SDKs send with the join request: nothing but places to receive, and data."""
    return offer(
        data("0"),
        *(audio(str(n), direction="recvonly") for n in (1, 2, 3)),
        *(video(str(n), direction="recvonly") for n in (4, 5, 6)),
    )

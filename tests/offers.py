"""SDP offers as WHIP clients send them, for tests without a network."""

from __future__ import annotations

UFRAG = "Fr4g"


def offer(
    *, codec: str = "VP8", ufrag: str = UFRAG, audio: bool = False, direction: str = "sendonly"
) -> str:
    """One video track, as OBS and browsers offer it."""
    lines = ["v=0", "o=- 1 2 IN IP4 127.0.0.1", "s=-", "t=0 0", "a=group:BUNDLE 0"]
    if audio:
        lines += _section("audio", "opus/48000/2", mid="1", ufrag=ufrag, direction="sendonly")
    lines += _section("video", f"{codec}/90000", mid="0", ufrag=ufrag, direction=direction)
    return "".join(f"{line}\r\n" for line in lines)


def fragment(*candidates: str, ufrag: str = UFRAG, mid: str = "0") -> str:
    """Trickled candidates as RFC 8840 writes them."""
    lines = [f"a=ice-ufrag:{ufrag}", "a=ice-pwd:pa55word-of-22-letters", "m=video 9 RTP/AVP 0"]
    lines += [f"a=mid:{mid}", *(f"a={one}" for one in candidates), "a=end-of-candidates"]
    return "".join(f"{line}\r\n" for line in lines)


def _section(kind: str, codec: str, *, mid: str, ufrag: str, direction: str) -> list[str]:
    return [
        f"m={kind} 9 UDP/TLS/RTP/SAVPF 96",
        "c=IN IP4 0.0.0.0",
        "a=rtcp-mux",
        f"a=ice-ufrag:{ufrag}",
        "a=ice-pwd:pa55word-of-22-letters",
        "a=fingerprint:sha-256 " + ":".join(["AB"] * 32),
        "a=setup:actpass",
        f"a=mid:{mid}",
        f"a={direction}",
        f"a=rtpmap:96 {codec}",
    ]

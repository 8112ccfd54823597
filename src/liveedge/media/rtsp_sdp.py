"""What a camera says about its video before it plays: the description (RFC 8866). Pure.

Only what is needed to ask for the first video and to decode it is read. Whatever the description
holds, URLs in it are only names that are sent back over the same connection.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from liveedge.media.webrtc.payload import START_CODE

DEFAULT_CLOCK_HZ = 90_000
_MAX_CLOCK_HZ = 10_000_000
_MAX_LINES = 2000
_MAX_NAME = 2048  # characters of a control URL
_UNSENDABLE = re.compile(r"[^\x21-\x7e]")
_PARAMETER_SETS = {
    "H264": ("sprop-parameter-sets",),
    "H265": ("sprop-vps", "sprop-sps", "sprop-pps"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoMedium:
    """One video that a camera offers."""

    encoding: str = ""  # capital letters; empty if only its number is told
    payload_type: int = -1
    clock_hz: int = DEFAULT_CLOCK_HZ
    control: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)

    def parameter_sets(self) -> bytes:
        """Those of the description, with start codes; what is not base64 is left out."""
        units: list[bytes] = []
        for name in _PARAMETER_SETS.get(self.encoding, ()):
            for text in self.parameters.get(name, "").split(","):
                try:
                    units.append(base64.b64decode(text.strip() + "=="))
                except (binascii.Error, ValueError):
                    continue
        return b"".join(START_CODE + unit for unit in units if unit)


@dataclass(frozen=True, slots=True)
class Description:
    """What was read."""

    control: str  # of the whole; empty: the URL of the description itself
    video: VideoMedium | None  # the first


def read_description(body: bytes) -> Description:
    """Malformed lines are left out."""
    sections = _sections(body.decode("utf-8", "replace"))
    video = next((s for s in sections[1:] if s[0].split()[:1] == ["video"]), None)
    control = _attribute(sections[0], "control")
    return Description(
        control="" if control == "*" else control, video=None if video is None else _video(video)
    )


def _sections(text: str) -> list[list[str]]:
    """The lines about the whole, then those about each medium, without their "m=" and "a="."""
    sections: list[list[str]] = [[""]]
    for line in text.splitlines()[:_MAX_LINES]:
        if line.startswith("m="):
            sections.append([line[2:].strip()])
        elif line.startswith("a="):
            sections[-1].append(line[2:].strip())
    return sections


def _attribute(section: list[str], name: str, number: int | None = None) -> str:
    prefix = f"{name}:" if number is None else f"{name}:{number} "
    return next(
        (line[len(prefix) :].strip() for line in section[1:] if line.startswith(prefix)), ""
    )


def _video(section: list[str]) -> VideoMedium:
    words = section[0].split()
    number = _number(words[3], most=127) if len(words) > 3 else None
    control = _attribute(section, "control")
    if number is None:
        return VideoMedium(control=control)
    encoding, _, rest = _attribute(section, "rtpmap", number).partition("/")
    clock_hz = _number(rest.partition("/")[0], most=_MAX_CLOCK_HZ)
    return VideoMedium(
        encoding=encoding.strip().upper(),
        payload_type=number,
        clock_hz=clock_hz or DEFAULT_CLOCK_HZ,
        control=control,
        parameters=_parameters(_attribute(section, "fmtp", number)),
    )


def _parameters(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(";"):
        name, equals, value = part.partition("=")
        if equals:
            found[name.strip().lower()] = value.strip()
    return found


def _number(text: str, *, most: int) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > most:
        return None
    return int(text)


def control_url(base: str, control: str) -> str | None:
    """What to ask for. Cameras expect their base and the rest simply joined, a query included.

    None: no request line could carry it.
    """
    if control in ("", "*"):
        name = base
    elif is_name(control):
        name = control
    else:
        name = base + control if base.endswith("/") else f"{base}/{control}"
    return None if len(name) > _MAX_NAME or _UNSENDABLE.search(name) else name


def is_name(url: str) -> bool:
    """Whether it names something by itself, not by what is added to another name."""
    return url.lower().startswith(("rtsp://", "rtsps://"))

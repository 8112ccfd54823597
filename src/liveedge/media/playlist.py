"""HLS playlists (RFC 8216): what to fetch and in which order. Pure: text in, facts out.

Addresses stay as they were written, beside the one of their playlist, and are joined when they are
needed: thousands of lines below a long address would be hundreds of megabytes. Whether they may be
fetched is decided by who fetches.
Of a live playlist only the newest segments come out, of a finished one all.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

MAX_LINES = 20_000  # eleven hours of four-second segments
MAX_LINE_CHARS = 16_384
MAX_URL_CHARS = 4096  # as many as a client may name
MAX_VARIANTS = 500
KEPT_LIVE = 16  # newest segments of a live playlist; nobody goes further back
# Begins at a comma only: from every letter of a long name on, it would take hours, in which no other
# thread of the process runs.
_ATTRIBUTE = re.compile(r'(?:^|,)\s*([A-Z0-9-]+)=("[^"]*"|[^,]*)')
_CODED_VIDEO = ("avc", "hvc", "hev", "vp0", "av01", "mp4v", "dvh")
NO_PLAYLIST = "what answers there is not an HLS playlist: it does not begin with #EXTM3U"
_DEFAULT_TARGET_S = 10.0
_MAX_TARGET_S = 60.0


class PlaylistInvalid(Exception):
    """Not a playlist, or none that can be played; says why. Caught by whoever fetched it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes to fetch."""

    where: str  # as it was written: whole, or relative to `base`
    base: str = ""
    first_byte: int | None = None  # with n_bytes: a range of the resource
    n_bytes: int | None = None

    @property
    def url(self) -> str:
        """Where they are. Raises PlaylistInvalid."""
        try:
            url = urljoin(self.base, self.where)
        except ValueError as error:
            raise PlaylistInvalid("the playlist is malformed: an address in it is none") from error
        if len(url) > MAX_URL_CHARS:
            raise PlaylistInvalid(
                f"the playlist names an address of more than {MAX_URL_CHARS} characters"
            )
        return url


@dataclass(frozen=True, slots=True)
class Key:
    """How a segment is encrypted: AES-128, the only way that is read."""

    part: Part
    iv: bytes | None  # None: the segment's number


@dataclass(frozen=True, slots=True)
class Segment:
    """A few seconds of the stream."""

    number: int
    seconds: float
    part: Part
    head: Part | None  # what a decoder of fragmented MP4 needs before
    key: Key | None
    run: int  # segments of one run continue each other


@dataclass(frozen=True, slots=True)
class MediaPlaylist:
    """The segments there are now."""

    segments: tuple[Segment, ...]  # numbered without a hole
    target_s: float  # no segment is longer
    is_over: bool  # nothing will be added


@dataclass(frozen=True, slots=True)
class Variant:
    """One of several qualities of the same stream."""

    part: Part
    bits_per_s: int
    pixels: int
    has_video: bool


@dataclass(frozen=True, slots=True)
class MasterPlaylist:
    """The qualities that there are."""

    variants: tuple[Variant, ...]

    def best(self) -> Variant:
        """The largest picture, and of those the highest rate."""
        with_video = [variant for variant in self.variants if variant.has_video]
        if not with_video:
            raise PlaylistInvalid("no video track: the playlist offers sound only")
        return max(with_video, key=lambda variant: (variant.pixels, variant.bits_per_s))


def is_playlist(begin: bytes) -> bool:
    """Whether the first bytes are those of a playlist."""
    return begin.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"#EXTM3U")


def parse_playlist(text: str, *, url: str) -> MediaPlaylist | MasterPlaylist:
    """`url` is where it was found in the end: addresses in it are relative to that."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or not lines[0].strip().startswith("#EXTM3U"):
        raise PlaylistInvalid(NO_PLAYLIST)
    if len(lines) > MAX_LINES:
        raise PlaylistInvalid(f"the playlist has more than {MAX_LINES} lines")
    if max(map(len, lines)) > MAX_LINE_CHARS:
        raise PlaylistInvalid(f"a line of the playlist has more than {MAX_LINE_CHARS} characters")
    lines = [line.strip() for line in lines]
    # A key of that URL, often another at every reload, would make another part of every one.
    base = urlsplit(url)._replace(query="", fragment="").geturl()
    if any(line.startswith("#EXT-X-STREAM-INF:") for line in lines):
        return _master(lines, base)
    return _Reader(base).read(lines)


def _master(lines: list[str], base: str) -> MasterPlaylist:
    variants: list[Variant] = []
    info: dict[str, str] | None = None
    for line in lines:
        if line.startswith("#EXT-X-STREAM-INF:"):
            info = _attributes(line)
        elif info is not None and line and not line.startswith("#"):
            codecs = info.get("CODECS", "")
            width, _, height = info.get("RESOLUTION", "0x0").partition("x")
            variants.append(
                Variant(
                    part=Part(line, base),
                    bits_per_s=_whole(info.get("BANDWIDTH", "0")),
                    pixels=_whole(width) * _whole(height),
                    has_video=not codecs or any(name in codecs for name in _CODED_VIDEO),
                )
            )
            info = None
            if len(variants) > MAX_VARIANTS:
                raise PlaylistInvalid(f"the playlist offers more than {MAX_VARIANTS} qualities")
    if not variants:
        raise PlaylistInvalid("the playlist names no stream")
    return MasterPlaylist(tuple(variants))


class _Reader:
    """State that tags set for the segments below them."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._segments: list[Segment] = []
        self._n_unwanted = 0  # segments before those that are kept
        self._number = 0
        self._run = 0
        self._seconds = 0.0
        self._target_s = _DEFAULT_TARGET_S
        # Read only above a segment that is kept: a live playlist comes again every second.
        self._head_line = self._key_line = ""
        self._head: Part | None = None
        self._key: Key | None = None
        self._range: tuple[int | None, int] | None = None
        self._next_byte: dict[str, int] = {}

    def read(self, lines: list[str]) -> MediaPlaylist:
        is_over = "#EXT-X-ENDLIST" in lines
        if not is_over:
            n_segments = sum(1 for line in lines if line and line[0] != "#")
            self._n_unwanted = max(n_segments - KEPT_LIVE, 0)
        for line in lines:
            if line.startswith("#EXT"):
                self._tag(line)
            elif line and line[0] != "#":
                self._segment(line)
        return MediaPlaylist(tuple(self._segments), self._target_s, is_over)

    def _tag(self, line: str) -> None:
        name, _, value = line.partition(":")
        match name:
            case "#EXTINF":
                self._seconds = _seconds(value.partition(",")[0])
            case "#EXT-X-TARGETDURATION":
                self._target_s = min(max(_seconds(value), 0.5), _MAX_TARGET_S)
            case "#EXT-X-MEDIA-SEQUENCE" if not self._segments:
                self._number = _whole(value)
            case "#EXT-X-DISCONTINUITY-SEQUENCE":
                self._run = _whole(value)
            case "#EXT-X-DISCONTINUITY":
                self._run += 1
            case "#EXT-X-BYTERANGE":
                self._range = _range(value)
            case "#EXT-X-MAP":
                self._head_line = line
            case "#EXT-X-KEY":
                self._key_line = line
            case _:
                pass  # of no use here

    def _segment(self, where: str) -> None:
        if self._n_unwanted:
            self._n_unwanted -= 1
            if self._range is not None:  # ranges may continue each other
                self._part(where, self._range)
        else:
            self._read_head_and_key()
            part = self._part(where, self._range)
            self._segments.append(
                Segment(self._number, self._seconds, part, self._head, self._key, self._run)
            )
        self._number += 1
        self._seconds = 0.0
        self._range = None

    def _part(self, where: str, wanted: tuple[int | None, int] | None) -> Part:
        if wanted is None:
            return Part(where, self._base)
        first, n_bytes = wanted
        first = self._next_byte.get(where, 0) if first is None else first
        self._next_byte[where] = first + n_bytes
        return Part(where, self._base, first, n_bytes)

    def _read_head_and_key(self) -> None:
        if self._head_line:
            self._head = self._map(_attributes(self._head_line))
            self._head_line = ""
        if self._key_line:
            self._key = self._key_of(_attributes(self._key_line))
            self._key_line = ""

    def _map(self, attributes: dict[str, str]) -> Part:
        where = attributes.get("URI")
        if not where:
            raise PlaylistInvalid("the playlist is malformed: EXT-X-MAP without a URI")
        wanted = attributes.get("BYTERANGE")
        if not wanted:
            return Part(where, self._base)
        first, n_bytes = _range(wanted)
        return Part(where, self._base, first or 0, n_bytes)

    def _key_of(self, attributes: dict[str, str]) -> Key | None:
        method = attributes.get("METHOD", "NONE")
        if method == "NONE":
            return None
        if method != "AES-128" or attributes.get("KEYFORMAT", "identity") != "identity":
            raise PlaylistInvalid("the stream is protected in a way that cannot be read")
        where = attributes.get("URI")
        if not where:
            raise PlaylistInvalid("the playlist is malformed: EXT-X-KEY without a URI")
        return Key(Part(where, self._base), _initial(attributes.get("IV")))


def _attributes(line: str) -> dict[str, str]:
    return {name: value.strip('"') for name, value in _ATTRIBUTE.findall(line.partition(":")[2])}


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _whole(text: str) -> int:
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0


def _range(text: str) -> tuple[int | None, int]:
    n_bytes, at, first = text.partition("@")
    return (_whole(first) if at else None), _whole(n_bytes)


def _initial(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return int(text, 16).to_bytes(16, "big")
    except (ValueError, OverflowError) as error:
        raise PlaylistInvalid("the playlist is malformed: its IV is not a number") from error

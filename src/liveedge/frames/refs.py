"""The `ovs://` grammar: text in, a frozen reference out.

A reference names frames of a stream without looking at it: `resolve` does that over a snapshot.
Pure. Shape errors come before query errors; within a query the first offence is reported. The
grammar is case-sensitive and takes every value as text, so that what one client may write another
reads the same way: no silent defaults for a misspelt key, no `+` as a space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, TypeVar, cast, overload
from urllib.parse import unquote

from liveedge.core.errors import QueryParamInvalid, StreamUrlInvalid

AnchorKind: TypeAlias = Literal["frame_index", "timestamp_ms", "offset_ms"]
Direction: TypeAlias = Literal["nearest", "forward", "backward"]
Edge: TypeAlias = Literal["newest", "grid"]
T = TypeVar("T")

PREFIX = "ovs://"
DEFAULT_TOLERANCE_MS = 100
DEFAULT_MAX_FPS = Fraction(1)

_ANCHORS: tuple[AnchorKind, ...] = ("frame_index", "timestamp_ms", "offset_ms")
_STREAM_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_INTEGER = re.compile(r"-?[0-9]{1,15}")  # 15 digits stay exact in int64 sums and products of ms
_DECIMAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_MAX_VALUE_CHARS = 64  # longer numbers carry no meaning and cost time to parse


@dataclass(frozen=True, slots=True)
class Anchor:
    """A point of a stream: a lifetime index, a stream time, or a distance from an end."""

    kind: AnchorKind
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """One frame."""

    stream_id: str
    anchor: Anchor
    tolerance_ms: int = DEFAULT_TOLERANCE_MS  # ignored beside a frame index, like `direction`
    direction: Direction = "nearest"
    max_age_ms: int | None = None
    max_pixels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRef:
    """A span of frames, sampled on a grid of the stream clock."""

    stream_id: str
    start: Anchor
    end: Anchor | None = None  # exclusive; None: the live edge, newest frame included
    max_fps: Fraction = DEFAULT_MAX_FPS  # as written: 29.97 is 2997/100
    edge: Edge = "newest"
    max_age_ms: int | None = None
    max_pixels: int | None = None

    @property
    def at_live_edge(self) -> bool:
        """No end was named, or the end is `end_offset_ms=0` after a negative start offset."""
        if self.end is None:
            return True
        counts_back = self.start.kind == "offset_ms" and self.start.value < 0
        return counts_back and self.end == Anchor("offset_ms", 0)


@overload
def parse_ref(url: str, *, kind: Literal["image"]) -> ImageRef: ...
@overload
def parse_ref(url: str, *, kind: Literal["video"]) -> SegmentRef: ...
@overload
def parse_ref(url: str, *, kind: Literal["image", "video"]) -> ImageRef | SegmentRef: ...
def parse_ref(url: str, *, kind: Literal["image", "video"]) -> ImageRef | SegmentRef:
    """Read the reference in an `image_url` or a `video_url`."""
    stream_id, query = _split(url)
    if kind == "image":
        return parse_image_query(stream_id, query)
    return parse_segment_query(stream_id, query)


def is_ref(url: str) -> bool:
    """Tell a reference from a `data:` or `http(s):` URL; a malformed reference is one too."""
    return url.lstrip()[:4].lower() == "ovs:"


def parse_image_query(stream_id: str, query: str) -> ImageRef:
    """Read the query of a single-frame reference, as `image_url` and `frame.jpg` carry it."""
    params = _parameters(query, legal=_IMAGE_KEYS, what="an image_url")
    anchor = _anchor(params, "")
    if anchor is None:
        raise QueryParamInvalid(
            f"the reference names no frame; give exactly one of {_listed(_ANCHORS)}"
        )
    return ImageRef(
        stream_id=stream_id,
        anchor=anchor,
        tolerance_ms=_optional(params, "tolerance_ms", _positive) or DEFAULT_TOLERANCE_MS,
        direction=cast("Direction", params.get("direction", "nearest")),
        max_age_ms=_optional(params, "max_age_ms", _positive),
        max_pixels=_optional(params, "max_pixels", _positive),
    )


def parse_segment_query(stream_id: str, query: str) -> SegmentRef:
    """Read the query of a segment reference, as `video_url` carries it."""
    params = _parameters(query, legal=_SEGMENT_KEYS, what="a video_url")
    start = _anchor(params, "start_")
    if start is None:
        names = _listed(tuple(f"start_{kind}" for kind in _ANCHORS))
        raise QueryParamInvalid(f"the reference names no start; give exactly one of {names}")
    return SegmentRef(
        stream_id=stream_id,
        start=start,
        end=_anchor(params, "end_"),
        max_fps=_optional(params, "max_fps", _rate) or DEFAULT_MAX_FPS,
        edge=cast("Edge", params.get("edge", "newest")),
        max_age_ms=_optional(params, "max_age_ms", _positive),
        max_pixels=_optional(params, "max_pixels", _positive),
    )


def _split(url: str) -> tuple[str, str]:
    """Stream id and query. By hand: `urlsplit` drops tabs and newlines and lower-cases."""
    form = f"{PREFIX}streams/<stream_id>?<key>=<value>"
    if not url.startswith(PREFIX):
        raise StreamUrlInvalid(f"{_shown(url)} does not start with {PREFIX}; write {form}")
    if "#" in url:
        raise StreamUrlInvalid(f"{_shown(url)} has a fragment (#); write {form}")
    place, _, query = url[len(PREFIX) :].partition("?")
    host, _, stream_id = place.partition("/")
    if host != "streams":
        raise StreamUrlInvalid(f"the host of {_shown(url)} is not 'streams'; write {form}")
    if not _STREAM_ID.fullmatch(stream_id):
        raise StreamUrlInvalid(
            f"the path of {_shown(url)} is not exactly one stream id; write {form}"
        )
    return stream_id, query


def _parameters(
    query: str, *, legal: Mapping[str, Callable[[str, str], object]], what: str
) -> dict[str, str]:
    """Every key known, given once, with a well-formed value."""
    params: dict[str, str] = {}
    for piece in query.split("&") if query else ():
        raw_key, _, raw_value = piece.partition("=")
        key, value = _decoded(raw_key), _decoded(raw_value)
        if key not in legal:
            raise QueryParamInvalid(
                f"{_shown(key)} is not a key of {what} reference; legal: {_listed(tuple(legal))}"
            )
        if key in params:
            raise QueryParamInvalid(f"{key} is given more than once; give it once")
        if not value:
            raise QueryParamInvalid(f"{key} has no value; write {key}=<value>")
        legal[key](key, value)
        params[key] = value
    return params


def _anchor(params: Mapping[str, str], prefix: str) -> Anchor | None:
    named: list[AnchorKind] = [kind for kind in _ANCHORS if prefix + kind in params]
    if len(named) > 1:
        names = _listed(tuple(prefix + kind for kind in named))
        raise QueryParamInvalid(f"{names} exclude each other; give one")
    return Anchor(named[0], int(params[prefix + named[0]])) if named else None


def _optional(params: Mapping[str, str], key: str, read: Callable[[str, str], T]) -> T | None:
    return read(key, params[key]) if key in params else None


def _integer(key: str, value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise QueryParamInvalid(
            f"{key} is {_shown(value)}; it must be a whole number of at most 15 digits"
        )
    return int(value)


def _positive(key: str, value: str) -> int:
    number = _integer(key, value)
    if number < 1:
        raise QueryParamInvalid(f"{key} is {number}; it must be at least 1")
    return number


def _rate(key: str, value: str) -> Fraction:
    plain = len(value) <= _MAX_VALUE_CHARS and _DECIMAL.fullmatch(value)
    if not plain or not 0.0 < float(value) < float("inf"):
        raise QueryParamInvalid(
            f"{key} is {_shown(value)}; it must be a finite number above 0, like 2 or 0.5"
        )
    return Fraction(value)


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def read(key: str, value: str) -> str:
        if value not in choices:
            raise QueryParamInvalid(f"{key} is {_shown(value)}; legal: {_listed(choices)}")
        return value

    return read


_COMMON_KEYS: Mapping[str, Callable[[str, str], object]] = {
    "max_age_ms": _positive,
    "max_pixels": _positive,
}
_IMAGE_KEYS: Mapping[str, Callable[[str, str], object]] = {
    **dict.fromkeys(_ANCHORS, _integer),
    "tolerance_ms": _positive,
    "direction": _one_of("nearest", "forward", "backward"),
    **_COMMON_KEYS,
}
_SEGMENT_KEYS: Mapping[str, Callable[[str, str], object]] = {
    **{f"{end}_{kind}": _integer for end in ("start", "end") for kind in _ANCHORS},
    "max_fps": _rate,
    "edge": _one_of("newest", "grid"),
    **_COMMON_KEYS,
}


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as exc:
        raise QueryParamInvalid(f"{_shown(text)} is not UTF-8 after percent-decoding") from exc


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _shown(text: str) -> str:
    """Quoted and short: an error must not carry a client's megabyte into a log."""
    return repr(text if len(text) <= 80 else text[:77] + "...")

"""The media of a question, sorted out before anything is looked up: syntax only, in order.

Every error names the part, `messages[0].content[1]`, because a question may hold many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from liveedge.core.errors import MediaInvalid, StreamError
from liveedge.frames.refs import ImageRef, SegmentRef, parse_ref
from liveedge.service.question import Content, MediaContent, TextContent, Turn, UnknownContent


@dataclass(frozen=True, slots=True)
class Reference:
    """Frames of a stream."""

    where: str
    ref: ImageRef | SegmentRef


@dataclass(frozen=True, slots=True)
class Upload:
    """A picture or clip that came inside the request."""

    where: str
    kind: Literal["image", "video"]
    url: str = field(repr=False)


Media: TypeAlias = Reference | Upload
Part: TypeAlias = TextContent | Media


def parse_turns(turns: Sequence[Turn]) -> tuple[tuple[Part, ...], ...]:
    """The parts of every turn. Raises StreamUrlInvalid, QueryParamInvalid or MediaInvalid."""
    return tuple(tuple(_part(content) for content in turn.content) for turn in turns)


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Put the part's place in front of what a stream error says."""
    try:
        yield
    except StreamError as error:
        raise type(error)(f"{where}: {error.message}") from error


def _part(content: Content) -> Part:
    match content:
        case TextContent():
            return content
        case UnknownContent():
            raise MediaInvalid(
                f"{content.where} is of the unknown type {content.type!r};"
                " known are text, image_url and video_url"
            )
        case MediaContent():
            return _media(content)


def _media(content: MediaContent) -> Media:
    scheme = content.url[:16].lstrip().partition(":")[0].lower()
    if scheme == "data":
        return Upload(content.where, content.kind, content.url)
    if scheme in ("http", "https"):
        raise MediaInvalid(
            f"{content.where} is an {scheme} URL, and this server fetches no remote media;"
            " send a data: URL, or an ovs:// reference to a stream"
        )
    if ":" not in content.url[:64]:
        raise MediaInvalid(
            f"{content.where} is no URL; bare base64 needs `data:image/jpeg;base64,` in front"
        )
    with naming(content.where):
        return Reference(content.where, parse_ref(content.url, kind=content.kind))

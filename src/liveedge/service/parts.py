"""The media of a question, sorted out before anything is looked up: syntax only, in order.

Every error names the part, `messages[0].content[1]`, because a question may hold many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from liveedge.core.errors import MediaInvalid, StreamError
from liveedge.frames.refs import ImageRef, SegmentRef, parse_ref
from liveedge.service.question import Content, MediaContent, TextContent, Turn, UnknownContent

REMOTE_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Reference:
    """Frames of a stream."""

    where: str
    ref: ImageRef | SegmentRef


@dataclass(frozen=True, slots=True)
class Upload:
    """A picture or clip that came inside the request, or whose URL did."""

    where: str
    kind: Literal["image", "video"]
    url: str = field(repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether it is still to be fetched."""
        return _scheme(self.url) in REMOTE_SCHEMES


Media: TypeAlias = Reference | Upload
Part: TypeAlias = TextContent | Media


def fetches_nothing(url: str, where: str) -> None:
    """Refuse remote media: what `parse_turns` does unless it is told what may be fetched."""
    raise MediaInvalid(
        f"{where} is an {_scheme(url)} URL, and this server fetches no remote media (setting"
        " allow_remote_media); send a data: URL, or an ovs:// reference to a stream"
    )


def parse_turns(
    turns: Sequence[Turn], *, check_remote: Callable[[str, str], None] = fetches_nothing
) -> tuple[tuple[Part, ...], ...]:
    """The parts of every turn. Raises StreamUrlInvalid, QueryParamInvalid or MediaInvalid.

    `check_remote` is asked for each remote URL, with its part's name, and raises MediaInvalid.
    """
    return tuple(tuple(_part(content, check_remote) for content in turn.content) for turn in turns)


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Put the part's place in front of what a stream error says."""
    try:
        yield
    except StreamError as error:
        raise type(error)(f"{where}: {error.message}") from error


def _part(content: Content, check_remote: Callable[[str, str], None]) -> Part:
    match content:
        case TextContent():
            return content
        case UnknownContent():
            raise MediaInvalid(
                f"{content.where} is of the unknown type {content.type!r};"
                " known are text, image_url and video_url"
            )
        case MediaContent():
            return _media(content, check_remote)


def _scheme(url: str) -> str:
    return url[:16].lstrip().partition(":")[0].lower()


def _media(content: MediaContent, check_remote: Callable[[str, str], None]) -> Media:
    scheme = _scheme(content.url)
    if scheme in REMOTE_SCHEMES:
        check_remote(content.url, content.where)
    if scheme == "data" or scheme in REMOTE_SCHEMES:
        return Upload(content.where, content.kind, content.url)
    if ":" not in content.url[:64]:
        raise MediaInvalid(
            f"{content.where} is no URL; bare base64 needs `data:image/jpeg;base64,` in front"
        )
    with naming(content.where):
        return Reference(content.where, parse_ref(content.url, kind=content.kind))

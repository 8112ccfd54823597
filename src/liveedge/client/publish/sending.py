"""What both ways of sending have in common: where to, and how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from liveedge.client.publish.newest import Newest

Codec: TypeAlias = Literal["vp8", "h264"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One stream, as the server describes it in `publish`, and how to send there."""

    url: str
    whip_url: str
    token: str = field(repr=False)
    size: tuple[int, int]
    fps: float
    codec: Codec
    is_local: bool  # on this machine: not through a proxy

    @property
    def max_bitrate_bps(self) -> int:
        """Enough for a picture of this size; a tenth of a bit per pixel is usual for cameras."""
        width, height = self.size
        return max(500_000, round(width * height * self.fps * 0.1))


class Lost(Exception):
    """The connection failed or broke: trying again may help. `is_gone`: the server ended it."""

    def __init__(self, reason: str, *, is_gone: bool = False) -> None:
        super().__init__(reason)
        self.is_gone = is_gone


class Refused(Exception):
    """The server, or this machine, will say no again; the text is for people."""


class Send(Protocol):
    """One connection: returns when the pictures are over. Raises Lost or Refused."""

    def __call__(
        self, target: Target, pictures: Newest, *, connected: Callable[[], None]
    ) -> Awaitable[None]: ...

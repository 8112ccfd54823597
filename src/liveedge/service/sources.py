"""From what a client asks for to a source that can be started: type, scheme and policy checked.

The messages name types and schemes, never the URL: it carries passwords.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable, Unsupported
from liveedge.frames.frame import Frame
from liveedge.frames.store import FrameStore, StoreLimits
from liveedge.media.file import FileSource, parse_file_url
from liveedge.media.picture import PictureLimits
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.push import PushSource
from liveedge.media.rtsp import RtspSource
from liveedge.media.sim import SimSource, parse_sim_url
from liveedge.media.source import Source, SourceStatus
from liveedge.media.supervisor import Supervisor

PUSHED = frozenset({"push"})  # published by the client; everything else is pulled
LATER = frozenset({"rtmp", "hls", "device", "whip", "livekit"})
WAY_OUT = "use a source of type rtsp, file, sim or push"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """The source as the client named it."""

    type: str
    url: str | None = field(default=None, repr=False)


class Feed(Protocol):
    """A running source, as `media.supervisor.Supervisor` is one."""

    def start(self) -> None: ...

    async def opened(self) -> None:
        """Return once it has opened, or raise SourceUnavailable."""
        ...

    def status(self) -> SourceStatus: ...

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End it. Blocks; no frame arrives once it has returned."""
        ...


class Pushed(Protocol):
    """The entrance of a source that its clients feed."""

    def push(self, data: bytes, *, captured_at_ms: int | None = None) -> Frame:
        """Decode and publish one picture. Blocks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One stream's frames and what fills them."""

    store: FrameStore
    feed: Feed
    pushed: Pushed | None = None  # only for sources that clients feed

    def close(self) -> None:
        """End the source and free all frames. Blocks until both are done."""
        self.feed.stop(timeout_s=0)  # cuts it off at once, so that the frames can go at once
        self.store.close()
        self.feed.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePolicy:
    """What clients may open."""

    pull: PullPolicy = field(default_factory=PullPolicy)
    allow_local: bool = False  # files of the server's machine
    pictures: PictureLimits = field(default_factory=PictureLimits)  # of pushed frames


class Pipelines:
    """Makes the pipeline of a new stream."""

    def __init__(self, *, clock: Clock, store: StoreLimits, policy: SourcePolicy) -> None:
        self._clock = clock
        self._store = store
        self._policy = policy

    def make(self, stream_id: str, spec: SourceSpec) -> Pipeline:
        """Blocking. Raises SourceUnavailable or Unsupported; opens nothing yet."""
        source = self._source(spec)
        store = FrameStore(stream_id, clock=self._clock, limits=self._store)
        feed = Supervisor(source, store, clock=self._clock, name=stream_id)
        pushed = source if isinstance(source, PushSource) else None
        return Pipeline(store=store, feed=feed, pushed=pushed)

    def _source(self, spec: SourceSpec) -> Source:
        if spec.type in LATER:
            raise Unsupported(f"sources of type {spec.type} are not available yet; {WAY_OUT}")
        makers: dict[str, Callable[[str | None], Source]] = {
            "sim": lambda url: SimSource(parse_sim_url(url), clock=self._clock),
            "file": self._file,
            "rtsp": self._rtsp,
            "push": self._push,
        }
        if spec.type not in makers:
            raise SourceUnavailable(f"there is no source type {spec.type!r}; {WAY_OUT}")
        return makers[spec.type](spec.url)

    def _file(self, url: str | None) -> Source:
        if not self._policy.allow_local:
            raise SourceUnavailable(
                "sources of type file are switched off; start the server with allow_local_sources"
            )
        return FileSource(parse_file_url(_needed(url, "file")), clock=self._clock)

    def _rtsp(self, url: str | None) -> Source:
        return RtspSource(_needed(url, "rtsp"), policy=self._policy.pull, clock=self._clock)

    def _push(self, url: str | None) -> Source:
        if url is not None:
            raise SourceUnavailable(
                "a source of type push takes no URL: its client sends the frames"
            )
        return PushSource(limits=self._policy.pictures)


def _needed(url: str | None, source_type: str) -> str:
    if url is None:
        raise SourceUnavailable(f"a source of type {source_type} needs a URL")
    return url

"""From what a client asks for to a source that can be started: type, scheme and policy checked.

The messages name types and schemes, never the URL: it carries passwords.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, cast

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.frames.frame import Frame
from liveedge.frames.store import FrameStore, StoreLimits
from liveedge.media.device import DeviceSource, parse_device_url
from liveedge.media.file import FileSource, parse_file_url
from liveedge.media.history_codec import AvHistoryCodec
from liveedge.media.hls import HlsSource
from liveedge.media.picture import PictureLimits
from liveedge.media.published import PublishedSource
from liveedge.media.pull_policy import PullPolicy
from liveedge.media.push import PushSource
from liveedge.media.rtmp import RtmpSource
from liveedge.media.rtsp import RtspSource
from liveedge.media.sim import SimSource, parse_sim_url
from liveedge.media.source import FrameSink, Source, SourceKind, SourceLost, SourceStatus
from liveedge.media.supervisor import Supervisor

PUBLISHED = frozenset({"whip", "livekit"})  # by the client, over WebRTC
PUSHED = frozenset({"push"}) | PUBLISHED  # fed by the client; everything else is pulled
SAVE_WITHIN_S = 2.0
WAY_OUT = "use a source of type rtsp, rtmp, hls, file, device, sim, push, whip or livekit"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """The source as the client named it."""

    type: str
    url: str | None = field(default=None, repr=False)


class Feed(Protocol):
    """A running source, as `media.supervisor.Supervisor` is one."""

    def start(self) -> None: ...

    def resume(self) -> None:
        """`start` for a source that has opened in an earlier life of the server: never given up."""
        ...

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
    pushed: Pushed | None = None  # only for sources whose clients send pictures
    published: PublishedSource | None = None  # only for sources whose clients publish

    def close(self) -> None:
        """End the source and free all frames. Blocks until both are done."""
        self.feed.stop(timeout_s=0)  # cuts it off at once, so that the frames can go at once
        self.store.close()
        self.feed.stop()

    def suspend(self) -> None:
        """End the source and leave the frames on the disk, for the server's next life. Blocks."""
        self.feed.stop(timeout_s=0)
        self.store.wait_encoded(SAVE_WITHIN_S)  # what is only in the hot ring is lost
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

    def __init__(
        self,
        *,
        clock: Clock,
        store: StoreLimits,
        policy: SourcePolicy,
        frames_of: Callable[[str], Path] | None = None,
        room_of: Callable[[str], Source] | None = None,
    ) -> None:
        """`frames_of` gives the folder where the frames of a stream survive a restart; `room_of` its
        room on an external LiveKit server, into which its client publishes instead of here."""
        self._clock = clock
        self._store = store
        self._policy = policy
        self._frames_of = frames_of
        self._room_of = room_of
        self._history = AvHistoryCodec()

    def make(self, stream_id: str, spec: SourceSpec, *, resumed: bool = False) -> Pipeline:
        """Blocking. Raises SourceUnavailable; opens nothing yet.

        `resumed`: the stream has lived before, and goes on whatever is said of its source now.
        """
        source = self._resumed(stream_id, spec) if resumed else self._source(stream_id, spec)
        folder = None if self._frames_of is None else self._frames_of(stream_id)
        store = FrameStore(
            stream_id,
            clock=self._clock,
            limits=self._store,
            codec=self._history,
            folder=folder,
        )
        feed = Supervisor(source, store, clock=self._clock, name=stream_id)
        return Pipeline(
            store=store,
            feed=feed,
            pushed=source if isinstance(source, PushSource) else None,
            published=source if isinstance(source, PublishedSource) else None,
        )

    def _resumed(self, stream_id: str, spec: SourceSpec) -> Source:
        try:
            return self._source(stream_id, spec)
        except SourceUnavailable as error:  # the settings are others now
            return _Refused(spec, reason=error.message)

    def _source(self, stream_id: str, spec: SourceSpec) -> Source:
        makers: dict[str, Callable[[str | None], Source]] = {
            "sim": lambda url: SimSource(parse_sim_url(url), clock=self._clock),
            "file": self._file,
            "device": self._device,
            "rtsp": lambda url: self._pulled(RtspSource, "rtsp", url),
            "rtmp": lambda url: self._pulled(RtmpSource, "rtmp", url),
            "hls": lambda url: self._pulled(HlsSource, "hls", url),
            "push": self._push,
            "whip": lambda url: _published("whip", url),
            "livekit": lambda url: self._livekit(stream_id, url),
        }
        if spec.type not in makers:
            raise SourceUnavailable(f"there is no source type {spec.type!r}; {WAY_OUT}")
        try:
            return makers[spec.type](spec.url)
        except ValueError as error:  # `urlsplit` says so, with a part of the URL
            raise SourceUnavailable(f"{spec.type}: the URL of the source is malformed") from error

    def _file(self, url: str | None) -> Source:
        self._require_local("file")
        return FileSource(parse_file_url(_needed(url, "file")), clock=self._clock)

    def _device(self, url: str | None) -> Source:
        self._require_local("device")
        return DeviceSource(parse_device_url(_needed(url, "device")))

    def _require_local(self, source_type: str) -> None:
        if not self._policy.allow_local:
            raise SourceUnavailable(
                f"sources of type {source_type} are switched off; start the server with"
                " allow_local_sources"
            )

    def _pulled(self, make: _MakePulled, source_type: str, url: str | None) -> Source:
        return make(_needed(url, source_type), policy=self._policy.pull, clock=self._clock)

    def _livekit(self, stream_id: str, url: str | None) -> Source:
        here = _published("livekit", url)
        return here if self._room_of is None else self._room_of(stream_id)

    def _push(self, url: str | None) -> Source:
        if url is not None:
            raise SourceUnavailable(
                "a source of type push takes no URL: its client sends the frames"
            )
        return PushSource(limits=self._policy.pictures)


class _MakePulled(Protocol):
    """The sources that connect to another machine."""

    def __call__(self, url: str, *, policy: PullPolicy, clock: Clock) -> Source: ...


class _Refused:
    """A source that may not be opened any more: its stream goes on, and says why nothing comes."""

    stall_after_s: float | None = None
    restart_on_stall = False

    def __init__(self, spec: SourceSpec, *, reason: str) -> None:
        self.kind = cast(SourceKind, spec.type)
        self._reason = reason

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        raise SourceLost(self._reason, hopeless=True)


def _published(kind: Literal["whip", "livekit"], url: str | None) -> Source:
    if url is not None:
        raise SourceUnavailable(
            f"a source of type {kind} takes no URL: its client publishes to the one in `publish`"
        )
    return PublishedSource(kind)


def _needed(url: str | None, source_type: str) -> str:
    if url is None:
        raise SourceUnavailable(f"a source of type {source_type} needs a URL")
    return url

"""A camera whose frames are known beforehand, and the prompts that the service makes of them.

References, resolution, pairing and messages are the service's own code, over a snapshot made here:
what is measured at the engine is what a stream's question sends there. The camera gives a frame at
every tick of the grid and one half a tick later, so that a newest frame off the grid exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from liveedge.engine.request import GenerateRequest, Message, SamplingParams, VideoPart
from liveedge.frames.refs import SegmentRef
from liveedge.frames.resolve import resolve_segment
from liveedge.frames.snapshot import Snapshot
from liveedge.service.lookup import Found
from liveedge.service.parts import Reference, parse_turns
from liveedge.service.prompt import Media, make_prompt
from liveedge.service.question import MediaContent, TextContent, Turn
from liveedge.sim.questions import TEST_SEEDS
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell

FPS = 2
TICK_MS = 1000 // FPS
FRAME_MS = TICK_MS // 2
ASKED = "Which way is the belt moving?"
# What differs comes first: two questions share the frames before them and no token of their own.
OPENINGS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

Picture = NDArray[np.uint8]
Edge = Literal["grid", "newest"]


def question(number: int) -> str:
    """The question of this number: all have the same length in tokens."""
    return f"{OPENINGS[number % len(OPENINGS)]}{number // len(OPENINGS) % 100:02d}. {ASKED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A trailing segment of the tape: `n_frames` ticks, the last of them `tick`."""

    stream_id: str  # equal ids and frames are equal keys
    tick: int
    n_frames: int
    edge: Edge = "grid"  # newest: the frame half a tick later stands in for the last

    @property
    def reference(self) -> str:
        from_ms = (self.tick - self.n_frames + 1) * TICK_MS
        query = f"start_timestamp_ms={from_ms}&max_fps={FPS}&edge={self.edge}"
        return f"ovs://streams/{self.stream_id}?{query}"


class Tape:
    """The frames of the simulated workcell, rendered once each."""

    def __init__(self, *, n_ticks: int, width: int, height: int) -> None:
        renderer = Renderer(Workcell(TEST_SEEDS.start), width=width, height=height)
        self.pictures = tuple(
            renderer.render(index, 5.0 + index * FRAME_MS / 1000, 0) for index in range(2 * n_ticks)
        )

    def request(
        self, request_id: str, window: Window, text: str | None = None, *, max_tokens: int = 1
    ) -> GenerateRequest:
        """A question about a window; without a text, what the window itself holds."""
        where = "messages[0].content[0]"
        media = MediaContent(kind="video", url=window.reference, where=where)
        content = (media,) if text is None else (media, TextContent(text))
        turn = Turn(role="user", content=content)
        return GenerateRequest(
            request_id=request_id,
            messages=self._messages(turn, window),
            sampling=SamplingParams(max_tokens=max_tokens),
        )

    def _messages(self, turn: Turn, window: Window) -> tuple[Message, ...]:
        (parts,) = parse_turns([turn])
        reference = parts[0]
        assert isinstance(reference, Reference)
        assert isinstance(reference.ref, SegmentRef)
        segment = resolve_segment(reference.ref, self._snapshot(window))
        found = Found(segment.picks, segment.at_live_edge)
        media = Media(tenant="bench", found={reference.where: found}, uploaded={}, load=self._load)
        return make_prompt([turn], [parts], media).messages

    def _snapshot(self, window: Window) -> Snapshot:
        """The stream as it is half a tick after the window's last tick."""
        n_frames = 2 * window.tick + 2
        index = np.arange(n_frames, dtype=np.int64)
        height, width = self.pictures[0].shape[:2]
        return Snapshot(
            stream_id=window.stream_id,
            taken_at_s=n_frames * FRAME_MS / 1000,
            n_produced=n_frames,
            newest_ms=(n_frames - 1) * FRAME_MS,
            index=index,
            stream_time_ms=index * FRAME_MS,
            captured_at_ms=index * FRAME_MS,
            arrived_s=index * FRAME_MS / 1000,
            width=np.full(n_frames, width, dtype=np.int32),
            height=np.full(n_frames, height, dtype=np.int32),
            corrupt=np.zeros(n_frames, dtype=np.bool_),
        )

    def _load(self, stream_id: str, index: int) -> Picture:
        return self.pictures[index]


def shown(request: GenerateRequest) -> tuple[Sequence[Picture], Sequence[float]]:
    """Every frame as the model gets it, doubled ones twice, with its time: for the reference."""
    frames = [
        frame
        for message in request.messages
        for part in message.content
        if isinstance(part, VideoPart)
        for frame in part.frames
    ]
    return [frame.load() for frame in frames], [frame.time_s for frame in frames]

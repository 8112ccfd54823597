"""A retained frame as a picture file: what a person would see of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from liveedge.core.clock import Clock
from liveedge.core.errors import QueryParamInvalid
from liveedge.frames.refs import parse_image_query
from liveedge.media.picture import encode_picture
from liveedge.service.lookup import find
from liveedge.service.parts import Reference
from liveedge.service.streams import Streams
from liveedge.service.workers import Workers

MAX_WAITING = 32  # of one stream: each is some milliseconds
NEWEST = "frame_index=-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One encoded frame and what is known of it."""

    data: bytes
    frame_index: int
    captured_at_ms: int
    age_ms: int


class Pictures:
    """Encodes frames on demand."""

    def __init__(
        self, *, clock: Clock, streams: Streams, workers: Workers, timeout_ms: int
    ) -> None:
        self._clock = clock
        self._streams = streams
        self._workers = workers
        self._timeout_ms = timeout_ms

    async def encode(
        self, tenant: str, stream_id: str, query: str, fmt: Literal["jpeg", "png"]
    ) -> Picture:
        """The frame that the query of an image reference names; without a query the newest."""
        ref = parse_image_query(stream_id, query or NEWEST)
        if ref.max_pixels is not None:
            raise QueryParamInvalid("max_pixels: a picture is given in the size of the stream")
        ((pick,),) = [
            one.picks
            for one in await find(
                [Reference("the picture", ref)],
                access=lambda: {stream_id: self._streams.own_store(tenant, stream_id)},
                max_age_ms=None,
                deadline_s=self._clock.monotonic_s() + self._timeout_ms / 1000,
                clock=self._clock,
            )
        ]
        store = self._streams.own_store(tenant, stream_id)
        data = await self._workers.run_in_turn(
            lambda: encode_picture(store.load(pick.index), fmt),
            owner=tenant,
            part=f"pictures of stream {stream_id}",
            max_waiting=MAX_WAITING,
        )
        age_ms = round((self._clock.monotonic_s() - pick.arrived_s) * 1000)
        return Picture(
            data=data,
            frame_index=pick.index,
            captured_at_ms=pick.captured_at_ms,
            age_ms=age_ms,
        )

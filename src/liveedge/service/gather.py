"""The frames and uploads of a question, for whoever answers it: checks 2, 3, 4 and 6 of `service.ask`.

The same snapshot, the same errors and the same order, whether our own model answers or another
server does.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from liveedge.core.clock import Clock
from liveedge.core.errors import MediaTooLarge, ParameterUnsupported, RegionMismatch
from liveedge.frames.store import FrameStore
from liveedge.service.backlog import Backlog
from liveedge.service.limits import Budget, Holding
from liveedge.service.lookup import Found, Resolved, find, fresh_until_s
from liveedge.service.parts import Part, Reference, Upload, fetches_nothing, parse_turns
from liveedge.service.prompt import Media
from liveedge.service.question import Question
from liveedge.service.remote import Fetches, RemoteMedia, fetching
from liveedge.service.streams import Streams
from liveedge.service.uploads import Encoded, Uploaded, UploadLimits, decode, read
from liveedge.service.workers import Workers

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherSettings:
    """What is not in the question."""

    region: str = "local"
    is_regional: bool = False  # several regions: a question for another one is refused
    uploads: UploadLimits = field(default_factory=UploadLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The frames of a question's references, of one instant."""

    found: Mapping[str, Found]  # by the part's place
    stores: Mapping[str, FrameStore]  # by stream id
    fresh_until_s: float | None  # no first token by then: the evidence is too old

    def media(self, tenant: str, uploaded: Mapping[str, Uploaded]) -> Media:
        """All media of the question, ready to be loaded."""
        stores = self.stores
        return Media(
            tenant=tenant,
            found=self.found,
            uploaded=uploaded,
            load=lambda stream_id, index: stores[stream_id].load(index),
            load_segment=lambda stream_id, indices: stores[stream_id].segment(indices).load,
            is_exact=lambda stream_id, index: stores[stream_id].is_exact(index),
        )


class Gatherer:
    """Looks frames up and decodes uploads."""

    def __init__(
        self,
        *,
        clock: Clock,
        streams: Streams,
        workers: Workers,
        decoded_bytes: Budget,
        backlog: Backlog,
        remote: RemoteMedia | None,
        settings: GatherSettings,
    ) -> None:
        self._clock = clock
        self._streams = streams
        self._workers = workers
        self._decoded_bytes = decoded_bytes
        self._backlog = backlog
        self._remote = remote
        self._settings = settings

    async def frames(
        self,
        question: Question,
        parts: Sequence[Sequence[Part]],
        *,
        deadline_s: float,
        admit: Callable[[Sequence[Reference], Sequence[Resolved]], None],
        check: Callable[[], Awaitable[None]] | None = None,
        warm: Callable[[], Sequence[Found] | None] = lambda: None,
    ) -> Gathered:
        """The frames of all references. `check` runs once the streams are known to be there and
        before frames are chosen; `admit` and `warm` as in `lookup.find`."""
        references, stores = self._own(question, parts)
        if check is not None:
            await check()
        found = await find(
            references,
            access=lambda: self._streams.stores(question.tenant, stores),
            max_age_ms=question.max_age_ms,
            deadline_s=deadline_s,
            clock=self._clock,
            admit=partial(admit, references),
            warm=warm,
        )
        return Gathered(
            found={item.where: one for item, one in zip(references, found, strict=True)},
            stores=stores,
            fresh_until_s=fresh_until_s(references, found, question.max_age_ms),
        )

    def check(self, question: Question, parts: Sequence[Sequence[Part]]) -> Sequence[Reference]:
        """The references of a question, whose streams are there and its owner's, in our region."""
        references, _ = self._own(question, parts)
        return references

    def _own(
        self, question: Question, parts: Sequence[Sequence[Part]]
    ) -> tuple[Sequence[Reference], Mapping[str, FrameStore]]:
        references = [p for turn in parts for p in turn if isinstance(p, Reference)]
        stream_ids = dict.fromkeys(item.ref.stream_id for item in references)
        stores = self._streams.stores(question.tenant, stream_ids)
        self._check_region(question)
        return references, stores

    def _check_region(self, question: Question) -> None:
        ours, asked = self._settings.region, question.region
        if self._settings.is_regional and asked is not None and asked != ours:
            raise RegionMismatch("this is another region", expected=ours, requested=asked)

    def parts(self, question: Question) -> tuple[tuple[Part, ...], ...]:
        """The parts of every turn. Raises what `parse_turns` raises, and ParameterUnsupported."""
        if question.unsupported:
            raise ParameterUnsupported(
                f"{', '.join(question.unsupported)}: this server cannot honour it yet, and ignoring"
                " it would change the answer; leave it out"
            )
        check = fetches_nothing if self._remote is None else self._remote.check
        return parse_turns(question.turns, check_remote=check)

    @asynccontextmanager
    async def fetched(
        self, parts: Sequence[Sequence[Part]], *, tenant: str, deadline_s: float
    ) -> AsyncIterator[Fetches]:
        """Remote uploads as they came, held until they are decoded or the block ends. Takes as long
        as other servers do: it is no work of ours."""
        with fetching(self._remote, tenant, deadline_s) as fetches:
            for upload in uploads_of(parts):
                if upload.is_remote:
                    await fetches.fetch(upload.url, where=upload.where)
            yield fetches

    async def decode(
        self,
        parts: Sequence[Sequence[Part]],
        decoded: Holding,
        *,
        fetched: Fetches,
        deadline_s: float,
    ) -> dict[str, Uploaded]:
        """All uploads decoded, by the part's place; `decoded` holds what they take."""
        try:
            encoded = await self._read(parts, fetched, deadline_s)
            announced_bytes = sum(one.announced_bytes for one in encoded)
            left_s = deadline_s - self._clock.monotonic_s()
            with self._backlog.waiting(announced_bytes, left_s=left_s):
                decoded.add(announced_bytes)
                return await self._decode_all(encoded, decoded, deadline_s)
        finally:
            fetched.give_back()

    async def _decode_all(
        self, encoded: list[Encoded], decoded: Holding, deadline_s: float
    ) -> dict[str, Uploaded]:
        limits = self._settings.uploads
        stopping = threading.Event()
        uploaded: dict[str, Uploaded] = {}
        try:
            while encoded:
                one = encoded.pop(0)  # its bytes go once it is decoded
                room_bytes = self._decoded_bytes.capacity - decoded.amount
                work = partial(decode, one, limits=limits, room_bytes=room_bytes, stopping=stopping)
                backlog, begun_s = self._backlog, self._clock.monotonic_s()
                ahead_bytes = backlog.waiting_bytes if one.announced_bytes else 0
                done = uploaded[one.upload.where] = await self._upload_work(work, deadline_s)
                backlog.took(ahead_bytes, self._clock.monotonic_s() - begun_s)
                more_bytes = max(0, done.nbytes - one.announced_bytes)
                self._require_room(decoded.amount + more_bytes, one.upload.where)
                decoded.add(more_bytes)
        finally:
            stopping.set()
        return uploaded

    async def _read(
        self,
        parts: Sequence[Sequence[Part]],
        fetched: Fetches,
        deadline_s: float,
    ) -> list[Encoded]:
        """All uploads, none of them decoded, and not more of them than there can be room for."""
        limits = self._settings.uploads
        encoded: list[Encoded] = []
        for upload in uploads_of(parts):
            data = fetched.data.pop(upload.where, None)
            work = partial(read, upload, limits=limits, fetched=data)
            one = await self._upload_work(work, deadline_s)
            encoded.append(one)
            announced_bytes = sum(known.announced_bytes for known in encoded)
            self._require_room(announced_bytes, upload.where)
        return encoded

    async def _upload_work(self, work: Callable[[], T], deadline_s: float) -> T:
        return await self._workers.run_until(
            work,
            deadline_s=deadline_s,
            clock=self._clock,
            what="the decoding of the uploads",
        )

    def _require_room(self, n_bytes: int, where: str) -> None:
        capacity = self._decoded_bytes.capacity
        if n_bytes > capacity:
            raise MediaTooLarge(
                f"with {where} the uploads of this question take {n_bytes} bytes decoded, the limit"
                f" is {capacity} (max_decoded_mb); send fewer or smaller ones"
            )


def uploads_of(parts: Sequence[Sequence[Part]]) -> Iterator[Upload]:
    """In the order of the parts."""
    return (part for turn in parts for part in turn if isinstance(part, Upload))

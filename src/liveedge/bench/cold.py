"""Cold and warm apart: what the first request pays, and what caches save. Rows of samples.jsonl.

Asked before the first step, one request after the other, so that nothing waits behind anything:
connections set up anew, the first request of the run, requests about media that were never asked about,
and the same media again. Process and model starts are those of a server that was started for this run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from liveedge.bench.asking import Asker, Planned
from liveedge.bench.interfaces import MediaSource, Prepared
from liveedge.bench.record import Record
from liveedge.client.local_server import Started
from liveedge.core.clock import Clock

N_CONNECTIONS = 5
N_REQUESTS = 5  # with empty caches, and with filled ones
PAUSE_S = 0.25  # between two requests about new media: a camera of 5 fps has given a new frame
_KINDS = ("frame_index", "timestamp_ms", "offset_ms")
_ANCHORS = frozenset(
    {
        *_KINDS,
        *(f"start_{kind}" for kind in _KINDS),
        *(f"end_{kind}" for kind in _KINDS),
        *("tolerance_ms", "direction", "edge", "max_age_ms"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdProbe:
    """`started` is how a server that this run started came up: name to ms."""

    clock: Clock
    started: Mapping[str, float] = field(default_factory=dict)

    async def __call__(self, asker: Asker, source: MediaSource) -> list[dict[str, Any]]:
        """Rows `{"kind": "cold", "name", "ms"}`; null where it did not succeed, with the record."""
        rows = [_row(name, ms) for name, ms in self.started.items()]
        rows.append(_row("connect_ms", await self._connect_ms(asker)))
        first = source.prepare(index := asker.next_index())
        record = await self._ask(asker, index, first)
        rows += _request_rows("first_request", [record])
        if record.outcome != "ok":
            return rows
        again = pinned(first, record)
        rows += _request_rows("new_media", await self._new(asker, source))
        rows += _request_rows("same_media", await self._same(asker, again))
        return rows

    async def _connect_ms(self, asker: Asker) -> float | None:
        """Median of new connections, TLS and all."""
        took_s = []
        for _ in range(N_CONNECTIONS):
            begun_s = self.clock.monotonic_s()
            try:
                connection = await asker.pool.make()
            except OSError:
                return None
            took_s.append(self.clock.monotonic_s() - begun_s)
            connection.abort()
        return median(took_s) * 1000

    async def _new(self, asker: Asker, source: MediaSource) -> list[Record]:
        records = []
        for _ in range(N_REQUESTS):
            await self.clock.sleep(PAUSE_S)
            index = asker.next_index()
            records.append(await self._ask(asker, index, source.prepare(index)))
        return records

    async def _same(self, asker: Asker, prepared: Prepared) -> list[Record]:
        await self._ask(asker, asker.next_index(), prepared)  # fills what the others find
        return [await self._ask(asker, asker.next_index(), prepared) for _ in range(N_REQUESTS)]

    async def _ask(self, asker: Asker, index: int, prepared: Prepared) -> Record:
        planned = Planned(index=index, due_s=asker.now_s(), warmup=True)
        return await asker.begin(planned, prepared)


def started_ms(started: Started) -> dict[str, float]:
    """How a server of our own came up."""
    stages = started.model_stages_ms()
    return {
        "process_start_ms": started.process_ms,
        "model_load_ms": started.model_ms,
        **{f"model_{name.replace(' ', '_')}_ms": ms for name, ms in stages.items()},
    }


def pinned(prepared: Prepared, record: Record) -> Prepared:
    """The same question about the very frames that `record` says were seen.

    References to the live edge mean other frames at every request; what is sent as data stays as it is.
    """
    indices: dict[str, list[int]] = {}
    for frame in record.frames:
        if isinstance(frame.get("frame_index"), int) and frame.get("stream_id"):
            indices.setdefault(str(frame["stream_id"]), []).append(frame["frame_index"])
    return replace(prepared, content=[_pinned_part(part, indices) for part in prepared.content])


def _pinned_part(part: Mapping[str, Any], indices: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    kind = str(part.get("type"))
    media = part.get(kind)
    if kind not in ("image_url", "video_url") or not isinstance(media, Mapping):
        return dict(part)
    url = urlsplit(str(media.get("url")))
    seen = indices.get(url.path.removeprefix("/"), ())
    if url.scheme != "ovs" or not seen:
        return dict(part)
    kept = [(key, value) for key, value in parse_qsl(url.query) if key not in _ANCHORS]
    if kind == "image_url":
        query = [("frame_index", str(max(seen))), *kept]
    else:
        span = [("start_frame_index", str(min(seen))), ("end_frame_index", str(max(seen) + 1))]
        query = [*span, *kept]
    return {**part, kind: {**media, "url": urlunsplit(url._replace(query=urlencode(query)))}}


def _request_rows(name: str, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Median TTFT and whole answer of what succeeded."""
    ok = [record for record in records if record.outcome == "ok"]
    whole = _median_ms([one.ended_s - one.due_s for one in ok if one.ended_s is not None])
    first = _median_ms(
        [one.first_content_s - one.due_s for one in ok if one.first_content_s is not None]
    )
    written = [record.as_json() for record in records]
    return [_row(f"{name}_ttft_ms", first), {**_row(f"{name}_ms", whole), "records": written}]


def _median_ms(values_s: Sequence[float]) -> float | None:
    return median(values_s) * 1000 if values_s else None


def _row(name: str, ms: float | None) -> dict[str, Any]:
    return {"kind": "cold", "name": name, "ms": ms}

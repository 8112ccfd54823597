"""Cold and warm apart, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from liveedge.bench.asking import Asker
from liveedge.bench.cold import N_CONNECTIONS, N_REQUESTS, ColdProbe, pinned
from liveedge.bench.interfaces import Prepared
from liveedge.bench.record import Record
from liveedge.bench.run import lost_in_probe
from liveedge.testing.clock import FakeClock
from tests.bench_parts import FixedSource, scenario
from tests.bench_stub import DONE, STOP, Piece, Script, Stub, chunk, driven, event, plain


def seen(indices: list[int]) -> bytes:
    frames = [{"stream_id": "s", "frame_index": index} for index in indices]
    return event({"choices": [], "liveedge": {"frames": frames}})


class LiveSource(FixedSource):
    """Asks about the newest frame."""

    def prepare(self, index: int) -> Prepared:
        url = "ovs://streams/s?frame_index=-1&max_pixels=900"
        part = {"type": "image_url", "image_url": {"url": url}}
        return Prepared(content=[part], question="lamp", source=0)


def caching(n: int, body: Mapping[str, Any]) -> Script:
    """1 s for the first request; 0.5 s for new frames, 0.1 s for frames that it has had."""
    is_pinned = "frame_index=7" in str(body)
    first_s = 1.0 if n == 0 else (0.1 if is_pinned else 0.5)
    pieces = [Piece(first_s, chunk(content="red")), Piece(0.05, STOP), Piece(0, seen([7]))]
    return Script(pieces=[*pieces, Piece(0, DONE)])


async def probed(stub: Stub, **started: float) -> tuple[dict[str, float | None], Asker]:
    asker = Asker(
        scenario=scenario(),
        model="m",
        api_key=None,
        dial=stub.dial,
        clock=stub.clock,
        begun_s=stub.clock.monotonic_s(),
    )
    source = LiveSource()
    await source.open()
    assert isinstance(stub.clock, FakeClock)
    probe = ColdProbe(clock=stub.clock, started=started)
    rows = await driven(stub.clock, probe(asker, source))
    await asker.close()
    assert {row["kind"] for row in rows} == {"cold"}
    return {row["name"]: row["ms"] for row in rows}, asker


async def test_what_is_cold_and_what_is_warm_are_told_apart() -> None:
    clock = FakeClock()
    stub = Stub(caching, clock=clock, connect_s=0.03)

    found, asker = await probed(stub, process_start_ms=800.0)

    assert found == {
        "process_start_ms": 800.0,
        "connect_ms": pytest.approx(30),
        "first_request_ttft_ms": pytest.approx(1030),
        "first_request_ms": pytest.approx(1080),
        "new_media_ttft_ms": pytest.approx(500),
        "new_media_ms": pytest.approx(550),
        "same_media_ttft_ms": pytest.approx(100),
        "same_media_ms": pytest.approx(150),
    }
    assert stub.n_connections == N_CONNECTIONS + 1
    assert asker.next_index() == len(stub.served) == 2 + 2 * N_REQUESTS


async def test_after_a_first_request_that_fails_nothing_more_is_asked() -> None:
    refusal = {"error": {"code": "model_unavailable", "message": "loading"}}
    stub = Stub(lambda _n, _body: plain(refusal, after_s=0.1, status=503), clock=FakeClock())

    found, _ = await probed(stub)

    assert found["first_request_ms"] is None
    assert "new_media_ms" not in found
    assert len(stub.served) == 1


def test_what_fails_before_the_first_step_is_told() -> None:
    record = Record(index=0, outcome="refused", status=503, code="x", message="loading")
    row = {"kind": "cold", "name": "first_request_ms", "records": [record.as_json()]}

    assert list(lost_in_probe(row)) == ["first_request_ms: refused: 503 x: loading"]


def test_a_clip_is_pinned_to_the_frames_that_were_seen() -> None:
    url = "ovs://streams/s?start_offset_ms=-2000&max_fps=2.0&max_age_ms=100"
    part = {"type": "video_url", "video_url": {"url": url}}
    words = {"type": "text", "text": "What?"}
    record = Record(index=0, frames=[{"stream_id": "s", "frame_index": n} for n in (3, 5, 8)])

    found = pinned(Prepared(content=[part, words], question="lamp", source=0), record)

    wanted = "ovs://streams/s?start_frame_index=3&end_frame_index=9&max_fps=2.0"
    assert found.content == [{"type": "video_url", "video_url": {"url": wanted}}, words]


def test_media_that_were_sent_as_data_stay_as_they_are() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    prepared = Prepared(content=[part], question="lamp", source=0)

    assert pinned(prepared, Record(index=0)).content == [part]

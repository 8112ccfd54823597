"""Whatever bytes a server sends and however it ends, one request is one record."""

from __future__ import annotations

import json
from typing import Literal

from hypothesis import given, settings, strategies as st

from liveedge.bench.asking import Asker, Planned
from liveedge.bench.interfaces import Prepared
from liveedge.bench.record import OUTCOMES, Record, record_of
from liveedge.testing.clock import FakeClock
from tests.bench_parts import scenario
from tests.bench_stub import (
    DONE,
    PING,
    ROLE,
    STOP,
    STREAM,
    Piece,
    Script,
    Stub,
    chunk,
    driven,
    event,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["choices", "delta", "content", "usage", "liveedge", "error", "frames"])
DOCUMENTS = st.recursive(
    st.dictionaries(KEYS, VALUES, max_size=3),
    lambda inner: st.dictionaries(KEYS, inner | st.lists(inner, max_size=2), max_size=3),
    max_leaves=6,
)
DATA = (
    st.sampled_from([ROLE, PING, STOP, DONE, chunk(content="red"), b"", b"\n\n", b"data: 1\n\n"])
    | st.binary(max_size=30)
    | DOCUMENTS.map(event)
)
PIECES = st.lists(st.builds(Piece, st.sampled_from([0.0, 0.1, 3.0]), DATA), max_size=8)
HEADERS = st.sampled_from(
    [
        STREAM,
        (("Content-Type", "text/event-stream"),),
        (("Content-Type", "application/json"), ("Content-Length", "40")),
        (("Content-Length", "0"),),
        (("Retry-After", "soon"), ("Content-Type", "text/html"), ("Connection", "close")),
    ]
)
ENDS: st.SearchStrategy[Literal["whole", "cut", "reset", "silent"]] = st.sampled_from(
    ["whole", "cut", "reset", "silent"]
)
SCRIPTS = st.builds(
    Script,
    headers_after_s=st.sampled_from([0.0, 0.5, 60.0]),
    status=st.sampled_from([100, 200, 200, 200, 204, 301, 429, 500]),
    headers=HEADERS,
    pieces=PIECES,
    end=ENDS,
    bytes_at_once=st.sampled_from([0, 1, 5]),
)


async def asked(script: Script) -> Record:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: script, clock=clock, connect_s=0.01)
    asker = Asker(
        scenario=scenario(load={"timeout_s": 4.0}),
        model="m",
        api_key=None,
        dial=stub.dial,
        clock=clock,
        begun_s=clock.monotonic_s(),
    )
    prepared = Prepared(content=(), question="lamp", source=0)
    record = await driven(clock, asker.begin(Planned(index=0, due_s=0.0), prepared))
    assert asker.n_open == 0
    await asker.close()
    return record


@settings(max_examples=30)
@given(SCRIPTS)
async def test_a_request_ends_once_with_its_moments_in_their_order(script: Script) -> None:
    record = await asked(script)

    assert record.outcome in OUTCOMES
    assert (record.code == "") == (record.outcome == "ok")
    moments = [
        record.due_s,
        record.sent_s,
        record.connected_s,
        record.headers_s,
        record.first_event_s,
        record.first_content_s,
        record.ended_s,
    ]
    known = [moment for moment in moments if moment is not None]
    assert known == sorted(known)
    assert record.ended_s is not None
    assert record.ended_s <= 4.0 + 1e-6
    assert record_of(json.loads(json.dumps(record.as_json()))).outcome == record.outcome

"""One request to one record: every moment, on a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from liveedge.bench.asking import Asker, Planned, body_of
from liveedge.bench.connections import MAX_DRAINING
from liveedge.bench.interfaces import Prepared
from liveedge.bench.record import Record
from liveedge.bench.scenario import Scenario
from liveedge.testing.clock import FakeClock
from tests.bench_parts import scenario
from tests.bench_stub import (
    DONE,
    PING,
    ROLE,
    STOP,
    Piece,
    Script,
    Served,
    Stub,
    chunk,
    driven,
    event,
    plain,
    streamed,
)

BEGUN_S = FakeClock().monotonic_s()
PICTURE = {"type": "image_url", "image_url": {"url": "ovs://streams/s?frame_index=-1"}}
WORDS = {"type": "text", "text": "Which lamp?"}
PREPARED = Prepared(
    content=(PICTURE, WORDS), question="lamp", source=1, share="clips", thread_id="t"
)
PLAIN = scenario()
WHOLE = {
    "choices": [{"message": {"role": "assistant", "content": "red"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 70, "completion_tokens": 2},
}


async def asked(
    script: Script,
    *,
    scenario: Scenario = PLAIN,
    prepared: Prepared = PREPARED,
    act: Callable[[Stub], None] = lambda _stub: None,
) -> tuple[Record, Served | None, Stub]:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: script, clock=clock, connect_s=0.02)
    act(stub)
    asker = asker_of(stub, scenario)
    record = await driven(clock, asker.begin(Planned(index=3, due_s=0.0), prepared))
    await asker.close()
    return record, stub.served[0] if stub.served else None, stub


def asker_of(stub: Stub, scenario: Scenario) -> Asker:
    return Asker(
        scenario=scenario,
        model="m",
        api_key="secret",
        dial=stub.dial,
        clock=stub.clock,
        begun_s=stub.clock.monotonic_s(),
    )


async def test_every_moment_of_a_stream_is_recorded() -> None:
    script = streamed(headers_s=0.1, first_s=0.3, gaps_s=[0.05, 0.07], end_s=0.2)

    record, _served, _stub = await asked(script)

    assert record.outcome == "ok"
    assert record.due_s == record.sent_s == 0
    assert record.connected_s == pytest.approx(0.02)
    assert record.headers_s == record.first_event_s == pytest.approx(0.12)
    assert record.first_content_s == pytest.approx(0.42)
    assert record.content_s == pytest.approx([0.42, 0.47, 0.54])
    assert record.ended_s == pytest.approx(0.74)
    assert (record.text, record.finish_reason) == ("word0 word1 word2 ", "stop")


async def test_the_request_is_what_the_scenario_says() -> None:
    told = scenario(
        target={"region": "eu", "extra_body": {"top_p": 0.5, "temperature": 0.7}},
        questions={"system": "Be short.", "max_tokens": 9},
    )

    record, served, _stub = await asked(streamed(headers_s=0, first_s=0, gaps_s=[]), scenario=told)

    assert served is not None
    assert served.body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": [PICTURE, WORDS]},
        ],
        "temperature": 0.7,
        "top_p": 0.5,
        "max_completion_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "thread_id": "t",
    }
    assert served.headers["authorization"] == "Bearer secret"
    assert served.headers["x-overshoot-region"] == "eu"
    assert served.headers["x-request-id"] == record.request_id
    assert served.headers["host"] == "stub.test"
    assert (record.index, record.source, record.question) == (3, 1, "lamp")
    assert (record.share, record.thread_id) == ("clips", "t")


def test_the_older_name_of_the_budget_takes_the_place_of_the_newer() -> None:
    body = body_of(scenario(target={"extra_body": {"max_tokens": 5}}), "m", PREPARED)

    assert body["max_tokens"] == 5
    assert "max_completion_tokens" not in body


NO_CONTENT = {
    "role alone": ROLE,
    "an empty string": chunk(content=""),
    "null": chunk(content=None),
    "a comment": PING,
    "reasoning": chunk(reasoning_content="thinking"),
    "no choices": event({"choices": [], "usage": {"prompt_tokens": 3}}),
    "an empty tool call": chunk(tool_calls=[{"index": 0, "function": {"arguments": ""}}]),
}


@pytest.mark.parametrize("data", NO_CONTENT.values(), ids=NO_CONTENT)
async def test_what_is_no_content_never_ends_the_time_to_the_first_token(data: bytes) -> None:
    early = [Piece(0.1, data) for _ in range(3)]
    late = [Piece(0.1, chunk(content="red")), Piece(0, STOP), Piece(0, DONE)]

    record, _served, _stub = await asked(Script(pieces=early + late))

    assert record.outcome == "ok"
    assert record.first_content_s == pytest.approx(0.42)
    assert record.content_s == pytest.approx([0.42])


async def test_heartbeats_are_no_events_and_the_role_is() -> None:
    pieces = [Piece(0.1, PING), Piece(0.1, ROLE), Piece(0.1, chunk(content="a"))]

    record, _, _ = await asked(Script(pieces=[*pieces, Piece(0, STOP), Piece(0, DONE)]))

    assert record.first_event_s == pytest.approx(0.22)
    assert record.first_content_s == pytest.approx(0.32)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_content_counts_when_its_event_is_whole_wherever_the_network_cuts(size: int) -> None:
    words = ["zwölf ", "Grüße 😀"]
    script = streamed(
        headers_s=0.1, first_s=0.3, gaps_s=[0.5], words=words, end_s=0.1, bytes_at_once=size
    )

    record, served, _ = await asked(script)

    assert served is not None
    assert record.outcome == "ok"
    assert record.text == "zwölf Grüße 😀"
    assert record.content_s == pytest.approx([at_s - BEGUN_S for at_s in served.at_s("content")])


async def test_half_an_event_is_no_content_until_the_rest_has_come() -> None:
    data = chunk(content="red")
    pieces = [Piece(0.1, data[:-3]), Piece(0.4, data[-3:]), Piece(0.0, STOP), Piece(0.0, DONE)]

    record, _, _ = await asked(Script(pieces=pieces))

    assert record.first_content_s == pytest.approx(0.52)


async def test_pieces_of_a_tool_call_are_content_and_no_text() -> None:
    call = chunk(tool_calls=[{"index": 0, "function": {"name": "look"}}])
    end = [Piece(0, chunk("tool_calls")), Piece(0, DONE)]

    record, _, _ = await asked(Script(pieces=[Piece(0.1, ROLE), Piece(0.2, call), *end]))

    assert (record.outcome, record.text) == ("ok", "")
    assert record.first_content_s == pytest.approx(0.32)


async def test_tokens_stages_and_evidence_are_taken_where_the_server_gives_them() -> None:
    last = event(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 70,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 60},
            },
            "overshoot": {"cache": {"cached_input_tokens": 59}},
            "liveedge": {
                "frames": [{"stream_id": "s", "frame_index": 4}],
                "age_ms": 41.5,
                "evidence_at_ms": 1_750_000_000_123,
                "timings_ms": {"queue": 1.5, "total": 9, "odd": None},
            },
        }
    )
    pieces = [Piece(0, chunk(content="a")), Piece(0, STOP), Piece(0, last), Piece(0, DONE)]

    record, _, _ = await asked(Script(pieces=pieces))

    assert (record.prompt_tokens, record.completion_tokens) == (70, 3)
    assert record.cached_tokens == 60
    assert record.frames == [{"stream_id": "s", "frame_index": 4}]
    assert (record.age_ms, record.evidence_at_ms) == (41.5, 1_750_000_000_123)
    assert record.timings_ms == {"queue": 1.5, "total": 9}


async def test_the_hosted_cache_block_counts_where_usage_has_no_details() -> None:
    last = event({"choices": [], "overshoot": {"cache": {"cached_input_tokens": 59}}})
    pieces = [Piece(0, chunk(content="a")), Piece(0, STOP), Piece(0, last), Piece(0, DONE)]

    record, _, _ = await asked(Script(pieces=pieces))

    assert record.cached_tokens == 59


async def test_frames_that_were_sent_as_data_stay_those_of_the_record() -> None:
    sent = ({"captured_at_ms": 5},)
    prepared = Prepared(content=(WORDS,), question="lamp", source=0, frames=sent)

    record, _, _ = await asked(plain(WHOLE, after_s=0.1), prepared=prepared)

    assert record.frames == sent


async def test_a_plain_answer_has_its_content_when_it_is_whole() -> None:
    record, served, _ = await asked(
        plain(WHOLE, after_s=0.4), scenario=scenario(questions={"stream": False})
    )

    assert served is not None
    assert "stream" not in served.body
    assert record.outcome == "ok"
    assert record.first_content_s == record.ended_s == pytest.approx(0.42)
    assert record.first_event_s is None
    assert (record.text, record.prompt_tokens) == ("red", 70)


HALF = (Piece(0.1, ROLE), Piece(0.2, chunk(content="re")))
FAILURES: Mapping[str, tuple[Script, str, str]] = {
    "a stream without an end": (Script(pieces=HALF), "cut_stream", "without [DONE]"),
    "a stream without a reason": (
        Script(pieces=[*HALF, Piece(0, DONE)]),
        "no_finish_reason",
        "without a finish_reason",
    ),
    "a connection that ends": (Script(pieces=HALF, end="cut"), "connection_lost", "within the"),
    "a connection that is lost": (Script(pieces=HALF, end="reset"), "connection_lost", "reset"),
    "an error in mid-answer": (
        Script(pieces=[*HALF, Piece(0.1, event({"error": {"code": "engine", "message": "gone"}}))]),
        "engine",
        "gone",
    ),
    "an error by the event's name": (
        Script(pieces=[*HALF, Piece(0.1, b'event: error\ndata: {"message": "gone"}\n\n')]),
        "error_event",
        "gone",
    ),
    "an event that is no JSON": (
        Script(pieces=[*HALF, Piece(0, b"data: {oops\n\n")]),
        "malformed_event",
        "no JSON",
    ),
    "a body that is no JSON": (plain(b"<html>", after_s=0), "unreadable", "no JSON"),
    "a body without choices": (plain({"choices": []}, after_s=0), "no_choices", "no choices"),
    "an error that says 200": (
        plain({"error": {"message": "no", "type": "x"}}, after_s=0),
        "x",
        "no",
    ),
    "a chunk of no size": (
        Script(headers=[("Transfer-Encoding", "chunked")], pieces=[Piece(0, b"zz\r\n")]),
        "connection_lost",
        "size of a chunk",
    ),
}


@pytest.mark.parametrize(("script", "code", "said"), FAILURES.values(), ids=FAILURES)
async def test_an_answer_that_is_none_is_failed(script: Script, code: str, said: str) -> None:
    record, _, _ = await asked(script)

    assert (record.outcome, record.code) == ("failed", code)
    assert said in record.message
    assert record.status == 200
    assert record.ended_s is not None


async def test_what_came_before_a_failure_is_kept() -> None:
    record, _, _ = await asked(Script(pieces=HALF, end="reset"))

    assert record.text == "re"
    assert record.first_content_s == pytest.approx(0.32)


REFUSALS: Mapping[str, tuple[Mapping[str, Any] | bytes, str, str]] = {
    "OpenAI's shape": ({"error": {"code": "queue_full", "message": "full"}}, "queue_full", "full"),
    "the hosted shape": ({"detail": {"error": {"code": "c", "message": "m"}}}, "c", "m"),
    "a flat one": ({"detail": "text"}, "http_429", "text"),
    "a validation error": (
        {"error": "validation_error", "message": "no", "details": []},
        "validation_error",
        "no",
    ),
    "vLLM's older one": ({"object": "error", "message": "m", "code": 404}, "404", "m"),
    "a web page": (b"<html>", "http_429", "the answer is no JSON"),
}


@pytest.mark.parametrize(("body", "code", "said"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_keeps_its_status_code_and_patience(
    body: Mapping[str, Any] | bytes, code: str, said: str
) -> None:
    script = plain(body, after_s=0.2, status=429, Retry_After="3", X_Request_Id="abc")

    record, _, _ = await asked(script)

    assert (record.outcome, record.status, record.code) == ("refused", 429, code)
    assert (record.message, record.retry_after_s, record.request_id) == (said, 3.0, "abc")
    assert record.ended_s == pytest.approx(0.22)


async def test_retry_after_may_be_a_date() -> None:
    at = "Sun, 15 Jun 2025 15:07:00 GMT"  # the fake clock's wall says 15:06:40

    record, _, _ = await asked(plain({}, after_s=0, status=503, Retry_After=at))

    assert record.retry_after_s == pytest.approx(20, abs=0.1)


async def test_no_connection_is_unreachable() -> None:
    record, _, _ = await asked(Script(), act=lambda stub: setattr(stub, "refuses", True))

    assert (record.outcome, record.code, record.status) == ("unreachable", "connect_failed", 0)
    assert "Connection refused" in record.message


async def test_a_connection_lost_before_any_status_is_unreachable() -> None:
    script = Script(status=100, headers=(), end="reset")  # `100 Continue` is not the answer yet

    record, _, _ = await asked(script)

    assert (record.outcome, record.code) == ("unreachable", "connection_lost")


SILENCE: Mapping[str, tuple[Script, str]] = {
    "before the headers": (Script(headers_after_s=1e5), "nothing"),
    "before the content": (Script(pieces=[Piece(0.1, ROLE), Piece(1e5, STOP)]), "headers"),
    "within the content": (Script(pieces=HALF, end="silent"), "content"),
}


@pytest.mark.parametrize(("script", "seen"), SILENCE.values(), ids=SILENCE)
async def test_silence_is_a_timeout_at_its_bound_and_the_server_sees_the_end(
    script: Script, seen: str
) -> None:
    record, served, stub = await asked(script, scenario=scenario(load={"timeout_s": 7.0}))

    assert (record.outcome, record.code) == ("timeout", "timeout")
    assert record.message == f"{seen} of the answer had come"
    assert record.ended_s == pytest.approx(7.0)
    assert served is not None
    assert served.left_s == pytest.approx(1007.0)
    assert stub.n_connections == 1


async def test_heartbeats_do_not_keep_a_request_from_its_deadline() -> None:
    script = Script(pieces=[Piece(0.5, PING) for _ in range(100)])

    record, _, _ = await asked(script, scenario=scenario(load={"timeout_s": 7.0}))

    assert record.outcome == "timeout"


async def test_the_time_limit_counts_from_when_the_request_was_due() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: Script(headers_after_s=1e5), clock=clock)
    asker = asker_of(stub, scenario(load={"timeout_s": 7.0}))
    await clock.advance(2.0)  # sent two seconds late

    record = await driven(clock, asker.begin(Planned(index=0, due_s=0.0), PREPARED))
    await asker.close()

    assert (record.sent_s, record.ended_s) == (2.0, 7.0)


async def test_connecting_counts_to_the_time_limit() -> None:
    def slow(stub: Stub) -> None:
        stub.connect_s = 1e5

    record, served, _ = await asked(Script(), scenario=scenario(load={"timeout_s": 7.0}), act=slow)

    assert (record.outcome, record.ended_s) == ("timeout", 7.0)
    assert served is None


async def in_turn(stub: Stub, asker: Asker, n: int, *, pause_s: float = 0.5) -> list[Record]:
    records = []
    for index in range(n):
        records.append(await asker.begin(Planned(index=index, due_s=asker.now_s()), PREPARED))
        await stub.clock.sleep(pause_s)
    return records


async def run(clock: FakeClock, asker: Asker, work: Awaitable[list[Record]]) -> list[Record]:
    records = await driven(clock, work)
    await asker.close()
    return records


async def test_a_connection_is_used_again_once_its_answer_has_ended() -> None:
    clock = FakeClock()
    script = streamed(headers_s=0.1, first_s=0.1, gaps_s=[])
    stub = Stub(lambda _n, _body: script, clock=clock)
    asker = asker_of(stub, scenario())

    records = await run(clock, asker, in_turn(stub, asker, 3))

    assert [one.connected_s is not None for one in records] == [True, False, False]
    assert stub.n_connections == 1


async def test_a_connection_that_was_idle_for_long_is_not_trusted() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: plain(WHOLE, after_s=0.1), clock=clock)
    asker = asker_of(stub, scenario())

    records = await run(clock, asker, in_turn(stub, asker, 2, pause_s=4.5))

    assert all(one.connected_s is not None for one in records)
    assert stub.n_connections == 2


async def test_a_connection_is_not_used_again_after_anything_but_a_whole_answer() -> None:
    clock = FakeClock()
    scripts = [Script(pieces=HALF, end="cut"), Script(pieces=HALF), plain(WHOLE, after_s=0)]
    stub = Stub(lambda n, _body: scripts[n], clock=clock)
    asker = asker_of(stub, scenario())

    records = await run(clock, asker, in_turn(stub, asker, 3))

    assert [one.outcome for one in records] == ["failed", "failed", "ok"]


async def test_an_error_that_comes_with_the_end_of_its_body_leaves_no_connection_behind() -> None:
    clock = FakeClock()
    error = event({"error": {"code": "engine"}})
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(error), error)
    head = (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"), ("A", "b"))
    scripts = [Script(headers=head, pieces=[Piece(0.1, body)]), plain(WHOLE, after_s=0.1)]
    stub = Stub(lambda n, _body: scripts[n], clock=clock)
    asker = asker_of(stub, scenario())

    records = await run(clock, asker, in_turn(stub, asker, 2, pause_s=0.0))

    assert [one.outcome for one in records] == ["failed", "ok"]
    assert stub.n_connections == 2


async def test_a_stream_is_over_with_its_done_though_the_body_has_not_ended() -> None:
    clock = FakeClock()
    pieces = [*HALF, Piece(0, STOP), Piece(0, DONE)]
    stub = Stub(lambda _n, _body: Script(pieces=pieces, end="silent"), clock=clock)
    asker = asker_of(stub, scenario())

    records = await run(clock, asker, in_turn(stub, asker, 2))

    assert [one.outcome for one in records] == ["ok", "ok"]
    assert stub.n_connections == 2  # the first still waits for the end of its body


async def test_bodies_that_never_end_are_let_go_beyond_a_bound_and_counted() -> None:
    clock = FakeClock()
    pieces = [*HALF, Piece(0, STOP), Piece(0, DONE)]
    stub = Stub(lambda _n, _body: Script(pieces=pieces, end="silent"), clock=clock)
    asker = asker_of(stub, scenario())

    await run(clock, asker, in_turn(stub, asker, MAX_DRAINING + 3))

    assert asker.pool.n_dropped == 3


async def test_closing_ends_what_is_open_as_failed() -> None:
    clock = FakeClock()
    stub = Stub(lambda _n, _body: Script(headers_after_s=1e5), clock=clock)
    asker = asker_of(stub, scenario())
    ended = asker.begin(Planned(index=0, due_s=0.0), PREPARED)
    await clock.advance(1.0)
    await asker.close()
    await asyncio.sleep(0)

    assert (ended.result().outcome, ended.result().code) == ("failed", "run_ended")
    assert asker.n_open == 0
    assert len(asker.pool) == 0

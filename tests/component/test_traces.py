"""Traces: a span per question and per stage, below the client's own, with no word of the question."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from liveedge.assembly import build_app
from liveedge.service.observed import AnswerRecord
from liveedge.service.traces import Traces
from liveedge.settings import Settings
from liveedge.testing.clock import FakeClock
from tests.serving import SMALL, chat_body, image, serving
from tests.unit.test_answer_stats import QUESTION, end, frame

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def record(outcome: str = "answered", traceparent: str | None = None) -> AnswerRecord:
    return AnswerRecord(
        question=replace(QUESTION, traceparent=traceparent),
        began_wall_ms=1_750_000_000_000,
        began_s=100.0,
        ended_s=100.2,
        outcome=outcome,
        ends=[end(frame(warm=True), frame(warm=False))] if outcome == "answered" else [],
    )


def spans(*records: AnswerRecord, share: float = 1.0) -> Sequence[ReadableSpan]:
    kept = InMemorySpanExporter()
    traces = Traces(SimpleSpanProcessor(kept), share=share)
    for one in records:
        traces.ended(one)
    return kept.get_finished_spans()


def test_an_answer_is_a_span_with_its_stages_below_it():
    *stages, whole = spans(record())
    assert whole.name == "chat"
    assert whole.start_time == 1_750_000_000_000_000_000
    assert whole.end_time == 1_750_000_000_200_000_000
    took_ms = {s.name: ((s.end_time or 0) - (s.start_time or 0)) / 1e6 for s in stages}
    assert took_ms == {"resolve": 2.0, "queue": 1.0, "encode": 30.0}
    assert whole.context is not None
    for stage in stages:
        assert stage.parent is not None
        assert stage.parent.span_id == whole.context.span_id
    attributes = dict(whole.attributes or {})
    assert attributes["gen_ai.request.model"] == "m"
    assert attributes["gen_ai.usage.input_tokens"] == 70
    assert attributes["liveedge.evidence_age_ms"] == 120
    assert attributes["liveedge.stream_ids"] == ("s",)
    assert (attributes["liveedge.frames"], attributes["liveedge.frames.warm"]) == (2, 1)
    assert [event.name for event in whole.events] == ["first_token"]
    assert whole.status.status_code.name == "UNSET"


def test_a_question_without_an_answer_says_its_code():
    (failed,) = spans(record("stream_not_found"))
    assert dict(failed.attributes or {})["error.type"] == "stream_not_found"
    assert failed.status.status_code.name == "ERROR"
    (left,) = spans(record("cancelled"))
    assert left.status.status_code.name == "UNSET"


def test_the_client_s_span_is_the_parent():
    *_, whole = spans(record(traceparent=f"00-{TRACE}-{PARENT}-01"))
    assert whole.parent is not None
    assert (f"{whole.parent.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize(
    "malformed",
    ["", "00", f"00-{TRACE}-{PARENT}", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", "é" * 99],
)  # fmt: skip
def test_a_malformed_parent_is_none(malformed: str):
    *_, whole = spans(record(traceparent=malformed))
    assert whole.parent is None


def test_what_is_not_sampled_is_not_sent_unless_the_client_asks_for_it():
    assert spans(record(), share=0.0) == ()
    assert spans(record(traceparent=f"00-{TRACE}-{PARENT}-01"), share=0.0) != ()
    assert spans(record(traceparent=f"00-{TRACE}-{PARENT}-00"), share=1.0) == ()


class Collector:
    """A collector on this machine that keeps what it is sent."""

    def __init__(self) -> None:
        self.received: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.received.append(ExportTraceServiceRequest.FromString(body))
                outer.paths.add(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Collector:
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


async def test_a_server_sends_its_spans_before_it_ends():
    with Collector() as collector:
        async with serving(otlp_endpoint=collector.url) as server:
            stream_id = await server.filled_stream(2)
            body = chat_body(image(f"ovs://streams/{stream_id}?frame_index=-1"))
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
            asked = await server.client.post("/v1/chat/completions", json=body, headers=headers)
            assert asked.status_code == 200
        sent = [
            ({a.key: a.value.string_value for a in found.resource.attributes}, span)
            for request in collector.received
            for found in request.resource_spans
            for scope in found.scope_spans
            for span in scope.spans
        ]
        assert collector.paths == {"/v1/traces"}
        resource, whole = next(one for one in sent if one[1].name == "chat")
        assert resource["service.name"] == "liveedge"
        assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
        told = str(collector.received)
        assert stream_id in told
        assert "mine" in told
        assert "what is there" not in told  # the question
        assert "ovs://" not in told


async def test_a_collector_that_is_not_there_costs_nobody_anything():
    async with serving(otlp_endpoint="http://127.0.0.1:9") as server:
        assert (await server.ask()).status_code == 200


def test_the_sdk_is_imported_where_it_is_asked_for_and_missed_in_words():
    code = (
        "import sys; from tests.serving import SMALL\n"
        "from liveedge.assembly import build_app; from liveedge.settings import Settings\n"
        "from liveedge.core.errors import SettingsInvalid\n"
        "from liveedge.testing.clock import FakeClock\n"
        "build_app(Settings(**SMALL), FakeClock())\n"
        "sent_by = ('opentelemetry.sdk', 'opentelemetry.exporter')\n"  # the framework has the API
        "print([n for n in sys.modules if n.startswith(sent_by)])\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "try: build_app(Settings(otlp_endpoint='http://127.0.0.1:4318'), FakeClock())\n"
        "except SettingsInvalid as error: print(error.message)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, told = done.stdout.splitlines()
    assert imported == "[]"
    assert "pip install 'liveedge[otel]'" in told


def test_an_endpoint_is_an_address():
    assert Settings(otlp_endpoint="http://127.0.0.1:4318/").otlp_endpoint == "http://127.0.0.1:4318"
    with pytest.raises(ValueError, match="otlp_endpoint"):
        Settings(otlp_endpoint="collector:4317")
    assert build_app(Settings(**SMALL), FakeClock()).certificate is None

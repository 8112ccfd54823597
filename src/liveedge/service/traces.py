"""OpenTelemetry traces of questions: one span each, and one per stage, made when the answer has ended.

The only module that imports OpenTelemetry's SDK, and itself imported only where an endpoint is set. Spans
hold numbers, ids and codes: no prompt, no answer, no key, no URL.

Owns    the SDK's tracer and its exporter's thread, whose queue is bounded: spans that find no room are
        dropped. Nothing global is set.
Thread  `ended`: the server's event loop. `close`: any; blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from liveedge.core.tasks import OwnedThread
from liveedge.core.version import VERSION
from liveedge.service.observed import ANSWERED, CANCELLED, AnswerRecord
from liveedge.service.question import Report

PATH = "/v1/traces"
MAX_QUEUED_SPANS = 2048
MAX_TEXT_CHARS = 200  # of an attribute; ids of models come from clients
CLOSE_S = 2.0  # for what is queued to reach the collector
_BEFORE_FIRST_TOKEN = ("resolve", "queue", "preprocess", "encode", "prefill")


class Traces:
    """An `AnswerObserver` that makes spans. A client's `traceparent` is the parent, and decides."""

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        share: float = 1.0,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`share` of the questions without a parent. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        hold. `give_up` ends attempts to send."""
        self._give_up = give_up
        named = Resource.create({"service.version": VERSION})
        if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
            named = named.merge(Resource({"service.name": "liveedge"}))
        self._provider = TracerProvider(
            resource=named,
            sampler=ParentBased(TraceIdRatioBased(share)),
            span_limits=SpanLimits(max_span_attribute_length=MAX_TEXT_CHARS),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("liveedge", VERSION)
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, record: AnswerRecord) -> None:
        began_ns = record.began_wall_ms * 1_000_000
        span = self._tracer.start_span(
            "chat",
            context=self._parent(record.question.traceparent),
            kind=SpanKind.SERVER,
            start_time=began_ns,
        )
        if span.is_recording():
            _describe(span, record)
            if record.ends:
                self._add_stages(span, record.ends[0].report, began_ns)
        span.end(began_ns + round((record.ended_s - record.began_s) * 1e9))

    def close(self) -> None:
        """Send what is queued, for `CLOSE_S` at most."""
        closing = OwnedThread("liveedge-traces", lambda _stopping: self._provider.shutdown())
        closing.start()
        if not closing.stop(CLOSE_S):
            self._give_up()

    def _parent(self, traceparent: str | None) -> Context:
        """Of no parent where there is none, or one that is malformed."""
        carrier = {} if traceparent is None else {"traceparent": traceparent}
        return self._propagator.extract(carrier, context=Context())

    def _add_stages(self, parent: Span, report: Report, began_ns: int) -> None:
        context = set_span_in_context(parent, Context())
        for stage, start_ms, end_ms in _stages(report):
            child = self._tracer.start_span(
                stage, context=context, start_time=began_ns + round(start_ms * 1e6)
            )
            child.end(began_ns + round(end_ms * 1e6))
        if "first_token" in report.timings_ms:
            at_ns = began_ns + round(report.timings_ms["first_token"] * 1e6)
            parent.add_event("first_token", timestamp=at_ns)


def sent_to(endpoint: str, *, share: float) -> Traces:
    """To a collector, in batches. Headers, timeouts and certificates come from OTEL_EXPORTER_OTLP_*."""
    url = endpoint if endpoint.endswith(PATH) else f"{endpoint}{PATH}"
    exporter = OTLPSpanExporter(endpoint=url)
    queue = BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS)
    return Traces(queue, share=share, give_up=exporter.shutdown)


def _stages(report: Report) -> Iterator[tuple[str, float, float]]:
    """Each stage that took time, with its beginning and end. How long each took is measured; those that
    overlap are laid one after the other, up to the first token."""
    spent = report.timings_ms
    first_ms = spent.get("first_token", spent.get("total", 0.0))
    at_ms = 0.0
    for stage in _BEFORE_FIRST_TOKEN:
        end_ms = min(at_ms + spent.get(stage, 0.0), first_ms)
        if end_ms > at_ms:
            yield stage, at_ms, end_ms
        at_ms = max(at_ms, end_ms)
    if spent.get("decode", 0.0) > 0:
        yield "decode", first_ms, first_ms + spent["decode"]


def _describe(span: Span, record: AnswerRecord) -> None:
    reports = [end.report for end in record.ends]
    span.set_attributes(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": record.question.model,
            "liveedge.request_id": record.question.request_id,
            "liveedge.outcome": record.outcome,
            "liveedge.choices": record.question.n,
        }
    )
    if reports:
        first = reports[0]
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": first.prompt_tokens,
                "gen_ai.usage.output_tokens": sum(one.completion_tokens for one in reports),
                "gen_ai.response.finish_reasons": [end.reason for end in record.ends],
                "liveedge.tokens.reused": first.cached_tokens,
                "liveedge.frames": len(first.frames),
                "liveedge.frames.warm": sum(frame.warm for frame in first.frames),
                "liveedge.stream_ids": record.stream_ids,
            }
        )
        if first.age_ms is not None:
            span.set_attribute("liveedge.evidence_age_ms", first.age_ms)
    if record.outcome not in (ANSWERED, CANCELLED):
        span.set_attribute("error.type", record.outcome)
        span.set_status(Status(StatusCode.ERROR))

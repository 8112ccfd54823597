"""`GET /metrics`: what the server counts, in the text format of Prometheus.

Names follow Prometheus (base units, `_total` for what only rises) and, where they exist, vLLM's.
Labels are closed sets (a reason, a pool, a process), never a stream, a key or a question, so that
the number of series is constant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from liveedge.api.connection import ENDS
from liveedge.api.exposition import (
    Kind,
    Metric,
    Sample,
    exposition,
    many as _many,
    one as _one,
)
from liveedge.api.http_stats import HttpStats
from liveedge.api.metrics_answers import answer_metrics, http_metrics
from liveedge.core.machine import resident_bytes
from liveedge.core.version import VERSION
from liveedge.engine.interface import EngineStats
from liveedge.engine.memory.plan import Line
from liveedge.service.answer_stats import AnswerStats
from liveedge.service.audit import REFUSALS, Audit
from liveedge.service.keys import KeyRing
from liveedge.service.limited import LIMITS, LimitedAnswers
from liveedge.service.limits import Bounded
from liveedge.service.models import ModelHost
from liveedge.service.providers.breaker import State
from liveedge.service.providers.catalog import OUTCOMES, Catalog, ModelProvider
from liveedge.service.providers.router import Router
from liveedge.service.publishing import Publishing
from liveedge.service.rates import Rates
from liveedge.service.streams import Streams
from liveedge.service.totals import StreamTotals
from liveedge.service.watches import Watches, WatchTotals
from liveedge.service.windows import Windows


@dataclass(frozen=True, slots=True)
class Stat:
    """A field of `EngineStats` as a metric. Fields that share a name differ in their label."""

    field: str
    name: str
    help: str
    label: tuple[str, str] | None = None

    @property
    def kind(self) -> Kind:
        return "counter" if self.name.endswith("_total") else "gauge"


_OUTCOME = "Requests that ended, by how."
_ENCODED = "Temporal groups of frames that were needed, by whether they were encoded already."
_WARM = "Updates of warm windows, by how they ended."
STATS = (
    Stat("queue_depth", "num_requests_waiting", "Requests that wait for a session."),
    Stat("running", "num_requests_running", "Requests that hold a session."),
    Stat("slots_total", "sessions_max", "Answers that can be written at once (max_sessions)."),
    Stat("slots_used", "sessions_used", "Sessions in use."),
    Stat("resident_tokens", "kv_resident_tokens", "Tokens kept in KV slots for reuse."),
    Stat("encoder_cache_bytes", "encoder_cache_bytes", "Features held by the encoder cache."),
    Stat("encoder_cache_capacity_bytes", "encoder_cache_capacity_bytes", "Most that it may hold."),
    Stat("encoder_pinned_bytes", "encoder_cache_pinned_bytes", "Features in use by a request."),
    Stat("encoder_hits", "encoder_groups_total", _ENCODED, ("cache", "hit")),
    Stat("encoder_misses", "encoder_groups_total", _ENCODED, ("cache", "miss")),
    Stat("loads_in_flight", "frame_loads_in_flight", "Groups of frames being loaded."),
    Stat("patch_bytes", "patch_bytes", "Preprocessed pixels that wait for the encoder."),
    Stat(
        "prefix_hits",
        "prefix_cache_hit_requests_total",
        "Requests that reused a resident prefix.",
    ),
    Stat(
        "prefix_tokens_reused",
        "prefix_cache_hits_total",
        "Prompt tokens that were not computed again.",
    ),
    Stat("prompt_tokens", "prompt_tokens_total", "Tokens of prompts, reused ones included."),
    Stat("generated_tokens", "generation_tokens_total", "Tokens of answers."),
    Stat("finished", "requests_total", _OUTCOME, ("outcome", "finished")),
    Stat("failed", "requests_total", _OUTCOME, ("outcome", "failed")),
    Stat("cancelled", "requests_total", _OUTCOME, ("outcome", "cancelled")),
    Stat("refused", "requests_total", _OUTCOME, ("outcome", "queue_full")),
    Stat("predicted_late", "requests_total", _OUTCOME, ("outcome", "predicted_late")),
    Stat("stale", "requests_total", _OUTCOME, ("outcome", "stale")),
    Stat("steps", "engine_steps_total", "Steps of the engine."),
    Stat("n_restarts", "engine_restarts_total", "Engine processes that had to be replaced."),
    Stat("windows", "windows", "Warm windows that hold a slot."),
    Stat("warm_updates", "window_updates_total", _WARM, ("result", "done")),
    Stat("warm_superseded", "window_updates_total", _WARM, ("result", "superseded")),
    Stat("warm_failed", "window_updates_total", _WARM, ("result", "failed")),
    Stat("warm_encoded", "window_encoded_groups_total", "Groups encoded for windows."),
    Stat("warm_prefilled", "window_prefilled_tokens_total", "Tokens computed for windows."),
    Stat("warm_busy_s", "window_busy_seconds_total", "Time of the device spent on windows."),
    Stat("verified", "verified_answers_total", "Warm answers that were computed again cold."),
    Stat(
        "verified_with_cached_features",
        "verified_with_cached_features_total",
        "Warm answers computed again, but with cached features of frames whose pixels were gone.",
    ),
    Stat(
        "verify_differences",
        "verify_differences_total",
        "Of these, answers that differed by more than rounding. Anything above 0 is a defect.",
    ),
    Stat(
        "verify_skipped",
        "verify_skipped_total",
        "Answers chosen to be verified that were not: a frame and its features were gone, or too"
        " many waited.",
    ),
    Stat("shared_frame_bytes", "shared_frame_bytes", "Pixels on their way to the engine process."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSources:
    """Who is let in."""

    keys: KeyRing
    audit: Audit
    rates: Rates
    answers: LimitedAnswers


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """What is measured."""

    access: AccessSources
    models: ModelHost
    streams: Streams
    windows: Windows
    watches: Watches
    budgets: Mapping[str, Bounded]  # what each bounds
    catalog: Catalog
    router: Router
    publishing: Publishing
    connections_ended: Mapping[str, int]  # by `connection.ENDS`
    answers: AnswerStats
    http: HttpStats
    certificate_until_s: Callable[[], float] = lambda: 0.0  # Unix
    planned: Sequence[Line]  # of the memory plan
    engine_pid: Callable[[], int | None]  # None: no process of its own, or none at this moment
    standby_pid: Callable[[], int | None] = lambda: None
    clock_speed: float = 1.0  # of the clock that all times are of


def metrics_text(sources: MetricSources) -> str:
    """Everything as of now."""
    stats = _stats(sources.models)
    return exposition(
        [
            *_server(sources),
            *engine_metrics(stats),
            *_as_vllm(stats),
            *answer_metrics(sources.answers),
            *http_metrics(sources.http),
            *stream_metrics(sources.streams.totals()),
            *_windows(sources.windows),
            *watch_metrics(sources.watches.totals()),
            *_publishers(sources.publishing),
            *_budgets(sources.budgets),
            *_providers(sources.catalog, sources.router),
            *_access(sources.access),
            _many(
                "http_connections_ended_total",
                "counter",
                "Connections that were ended at a limit of time or number.",
                "reason",
                {reason: sources.connections_ended.get(reason, 0) for reason in ENDS},
            ),
            _planned(sources.planned),
        ]
    )


def engine_metrics(stats: EngineStats) -> Iterator[Metric]:
    """Every field of the engine's statistics."""
    for name in dict.fromkeys(stat.name for stat in STATS):
        shown = [stat for stat in STATS if stat.name == name]
        samples = tuple(
            Sample(float(getattr(stats, stat.field)), () if stat.label is None else (stat.label,))
            for stat in shown
        )
        yield Metric(name, shown[0].kind, shown[0].help, samples)


def _as_vllm(stats: EngineStats) -> Iterator[Metric]:
    """What dashboards of vLLM divide by."""
    yield _one(
        "prefix_cache_queries_total",
        "counter",
        "Prompt tokens that were looked up; prefix_cache_hits_total of them were there.",
        stats.prompt_tokens,
    )
    share = stats.slots_used / stats.slots_total if stats.slots_total else 0.0
    what = "Share of the KV slots of answers that is in use, 0 to 1."
    yield _one("kv_cache_usage_perc", "gauge", what, share)


def stream_metrics(totals: StreamTotals) -> Iterator[Metric]:
    """Sums over all streams."""
    yield _one("streams", "gauge", "Active streams.", totals.active)
    yield _one("streams_opening", "gauge", "Streams whose source is being opened.", totals.opening)
    yield _one(
        "streams_unsaved",
        "gauge",
        "Streams whose newest change is not in the state folder yet; for long only where its disk"
        " refuses.",
        totals.unsaved,
    )
    yield _many(
        "streams_by_health", "gauge", "Active streams by health.", "health", totals.by_health
    )
    yield _one(
        "stream_retained_frames", "gauge", "Frames that can be asked for.", totals.retained_frames
    )
    yield _one("stream_memory_bytes", "gauge", "Frames in memory.", totals.memory_bytes)
    yield _one(
        "stream_reserved_bytes", "gauge", "Memory set aside for frames.", totals.reserved_bytes
    )
    yield _one("stream_frames_total", "counter", "Frames that got an index.", totals.frames)
    yield _many(
        "stream_evicted_frames_total", "counter", "Frames let go, by why.", "reason", totals.evicted
    )
    yield _many(
        "stream_dropped_frames_total",
        "counter",
        "Frames that got no index, by why.",
        "reason",
        totals.dropped,
    )
    yield _one(
        "stream_corrupt_frames_total",
        "counter",
        "Frames that may show remains.",
        totals.corrupt_frames,
    )
    yield _one(
        "stream_reconnects_total", "counter", "Connections to sources made anew.", totals.reconnects
    )
    yield _many(
        "streams_ended_total", "counter", "Streams that ended, by why.", "reason", totals.ended
    )


def _server(sources: MetricSources) -> Iterator[Metric]:
    info = (("version", VERSION), ("model", sources.models.model_id))
    yield Metric("build_info", "gauge", "Version and model.", (Sample(1.0, info),))
    is_ready = sources.models.status() == "ready"
    yield _one("model_ready", "gauge", "1 while the model answers.", int(is_ready))
    yield _one(
        "event_loop_tasks",
        "gauge",
        "Tasks of the server's event loop; each has an owner that ends it.",
        len(asyncio.all_tasks()),
    )
    what = "Speed of the server's clock; anything but 1 is a test, and scales all times told here."
    yield _one("clock_speed", "gauge", what, sources.clock_speed)
    what = "When the certificate of HTTPS ends to be valid, Unix time; 0 without HTTPS."
    yield _one("tls_not_after_timestamp_seconds", "gauge", what, sources.certificate_until_s())
    # Always all: a process that is not there has nothing in memory.
    pids = {"engine": sources.engine_pid(), "standby": sources.standby_pid()}
    resident = {name: 0 if pid is None else resident_bytes(pid) or 0 for name, pid in pids.items()}
    resident["server"] = resident_bytes() or 0
    what = "Memory of each process; in process, the engine is part of the server."
    yield _many("process_resident_memory_bytes", "gauge", what, "process", resident)


def _windows(windows: Windows) -> Iterator[Metric]:
    by_kind = {"auto": len(windows) - windows.n_explicit, "explicit": windows.n_explicit}
    yield _many("windows_kept", "gauge", "Windows that are to be warm, by kind.", "kind", by_kind)
    ends = {"expired": windows.expired, "displaced": windows.displaced}
    what = "Automatic windows that ended: unused, or to make room for another."
    yield _many("windows_ended_total", "counter", what, "reason", ends)
    yield _one(
        "windows_refused_total",
        "counter",
        "Automatic windows that found no room (max_windows).",
        windows.refused,
    )


def watch_metrics(totals: WatchTotals) -> Iterator[Metric]:
    """Standing questions of all keys."""
    yield _one("watches", "gauge", "Standing questions that are asked.", totals.active)
    yield _one("watch_listeners", "gauge", "Clients that read their events.", totals.listeners)
    yield _many(
        "watch_events_total", "counter", "Events of watches, by kind.", "event", totals.events
    )
    yield _many(
        "watch_skipped_total",
        "counter",
        "Moments at which nothing was asked, by why; one event may stand for many.",
        "reason",
        totals.skipped,
    )
    yield _many("watches_ended_total", "counter", "Watches that ended.", "reason", totals.ended)
    yield _many(
        "watch_listeners_ended_total",
        "counter",
        "Listeners that were ended because they read too slowly.",
        "reason",
        totals.listeners_ended,
    )
    yield _one(
        "watch_events_dropped_total",
        "counter",
        "Events that a full log let go: whoever resumes before them is told.",
        totals.dropped_events,
    )


def _publishers(publishing: Publishing) -> Iterator[Metric]:
    """Zeros until somebody publishes: then signalling is loaded."""
    ingest, totals = publishing.loaded, publishing.totals()
    yield _one("publishers", "gauge", "Publishers connected.", ingest.n_publishers if ingest else 0)
    yield _one(
        "signalling_sockets",
        "gauge",
        "Open WebSockets of LiveKit clients.",
        ingest.sockets.used if ingest else 0,
    )
    yield _many(
        "publisher_events_total",
        "counter",
        "What happened to publishers' connections: refusals by error, ends of sockets, resumes.",
        "event",
        dict(sorted(ingest.counters.items())) if ingest else {},
    )
    packets = {of: totals.get(f"packets_{of}", 0) for of in ("received", "lost", "recovered")}
    what = "Packets of publishers; recovered ones were lost and came again."
    yield _many("publisher_packets_total", "counter", what, "of", packets)
    yield _many(
        "webrtc_datagrams_dropped_total",
        "counter",
        "Datagrams that came to nothing: of nobody known, checks that were forged, not sent by the"
        " system; packets that cannot be decrypted, are of no track, or are empty.",
        "reason",
        {name.partition("_")[2]: totals.get(name, 0) for name in _DROPPED},
    )
    yield _one(
        "publisher_keyframe_requests_total",
        "counter",
        "Whole pictures asked of publishers.",
        totals.get("keyframe_requests", 0),
    )
    yield _one(
        "publisher_frames_decoded_total",
        "counter",
        "Frames of publishers that were decoded.",
        totals.get("frames_decoded", 0),
    )


_DROPPED = (
    "datagrams_unknown",
    "datagrams_forged",
    "datagrams_unsent",
    "packets_undecryptable",
    "packets_unrouted",
    "packets_empty",
)


def _access(access: AccessSources) -> Iterator[Metric]:
    yield _one("keys", "gauge", "Stored keys that are accepted.", access.keys.n_live)
    yield _many(
        "auth_refused_total",
        "counter",
        "Requests that were not let in, by why.",
        "reason",
        {reason: access.audit.refused[reason] for reason in REFUSALS},
    )
    by_limit = {"requests_per_second": access.rates.refused}
    by_limit |= {limit: access.answers.refused[limit] for limit in LIMITS}
    what = "Requests that were refused at a limit of their key or stream."
    yield _many("limit_refused_total", "counter", what, "limit", by_limit)


def _budgets(budgets: Mapping[str, Bounded]) -> Iterator[Metric]:
    for name, kind, help_, read in _BUDGET_METRICS:
        yield _many(name, kind, help_, "of", {of: read(one) for of, one in budgets.items()})


_BUDGET_METRICS: tuple[tuple[str, Kind, str, Callable[[Bounded], int]], ...] = (
    ("budget_used", "gauge", "What is in use of each budget: requests or bytes.", lambda b: b.used),
    ("budget_capacity", "gauge", "The bound of each budget.", lambda b: b.capacity),
    (
        "budget_refused_total",
        "counter",
        "What was refused at the bound of each budget.",
        lambda b: b.refused,
    ),
)


def _providers(catalog: Catalog, router: Router) -> Iterator[Metric]:
    """Names of providers and models come from the configuration: a closed set."""
    providers = {provider.config.name: provider for provider in catalog.providers}
    yield Metric(
        "provider_requests_total",
        "counter",
        "Requests to providers, retries included, by how they ended.",
        tuple(
            Sample(float(one.outcomes.get(outcome, 0)), (("provider", name), ("outcome", outcome)))
            for name, one in providers.items()
            for outcome in OUTCOMES
        ),
    )
    yield Metric(
        "provider_breaker_state",
        "gauge",
        "1 for the state of each provider's circuit breaker.",
        tuple(
            Sample(float(one.state == state), (("provider", name), ("state", state)))
            for name, one in providers.items()
            for state in get_args(State)
        ),
    )
    for metric, kind, what, read in _PROVIDER_METRICS:
        yield _many(metric, kind, what, "provider", {n: read(one) for n, one in providers.items()})
    yield Metric(
        "fallbacks_total",
        "counter",
        "Questions that another model answered, because the one that was asked was not available.",
        tuple(
            Sample(
                float(router.n_fallbacks[asked, answered]),
                (("requested", asked), ("answered", answered)),
            )
            for asked, others in router.fallbacks.items()
            for answered in dict.fromkeys(others)
        ),
    )


_PROVIDER_METRICS: tuple[tuple[str, Kind, str, Callable[[ModelProvider], int]], ...] = (
    (
        "provider_up",
        "gauge",
        "1 where the provider listed its models when it was last asked; GET /models asks.",
        lambda p: int(p.availability.is_up),
    ),
    ("provider_retries_total", "counter", "Requests made again.", lambda p: p.retries.n_taken),
    (
        "provider_retries_refused_total",
        "counter",
        "Requests not made again, because too many were.",
        lambda p: p.retries.n_refused,
    ),
    (
        "provider_breaker_opened_total",
        "counter",
        "Times the provider was left alone, because it failed again and again.",
        lambda p: p.breaker.n_opened,
    ),
    (
        "provider_questions",
        "gauge",
        "Questions that a provider works on, or that are made ready for it.",
        lambda p: p.connections.used,
    ),
    (
        "provider_questions_refused_total",
        "counter",
        "Questions refused because the provider had max_connections already.",
        lambda p: p.connections.refused,
    ),
)


def _planned(lines: Sequence[Line]) -> Metric:
    samples = tuple(
        Sample(float(line.n_bytes), (("place", line.place), ("pool", line.name))) for line in lines
    )
    return Metric("planned_bytes", "gauge", "The memory plan: what each pool may take.", samples)


def _stats(models: ModelHost) -> EngineStats:
    engine = models.engine
    return EngineStats() if engine is None else engine.stats()
